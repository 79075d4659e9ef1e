"""Small models that are trained by several ranks, and by one process that sees the whole batch."""

import torch
import torch.distributed as dist
from torch import nn

STEPS, ROWS, WIDTH, EXPERTS = 3, 4, 12, 4


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 40), nn.GELU(), nn.Linear(40, 33), nn.Tanh(), nn.Linear(33, WIDTH)).double()


def batch(step, size):
    """Rows of all ranks."""
    numbers = torch.Generator().manual_seed(100 + step)
    return torch.randn(size * ROWS, WIDTH, generator=numbers, dtype=torch.float64)


def part(rows, rank):
    return rows[rank * ROWS : (rank + 1) * ROWS]


def loss_of(model, rows):
    return (model(rows) - rows.flip(1)).square().mean()


def train(model, rows_of, parameters=None):
    """Some steps of plain descent; the gradients of the last one."""
    given = list(model.parameters() if parameters is None else parameters)
    descent = torch.optim.SGD(given, lr=0.1)
    for step in range(STEPS):
        descent.zero_grad()
        loss_of(model, rows_of(step)).backward()
        if step < STEPS - 1:
            descent.step()
    return [one.grad for one in given]


class _Exchange(torch.autograd.Function):
    """Rows to the ranks that have their experts, and gradients back."""

    @staticmethod
    def forward(context, rows, sent, arriving, group):
        context.back = (arriving, sent, group)
        received = rows.new_empty((sum(arriving), rows.shape[1]))
        dist.all_to_all_single(received, rows.contiguous(), arriving, sent, group)
        return received

    @staticmethod
    def backward(context, grown):
        sent, arriving, group = context.back
        rows = grown.new_empty((sum(arriving), grown.shape[1]))
        dist.all_to_all_single(rows, grown.contiguous(), arriving, sent, group)
        return rows, None, None, None


class Mixture(nn.Module):
    """Each row goes to the expert that its router likes best; experts are spread over the ranks of a group."""

    def __init__(self, experts, router, group=None):
        super().__init__()
        self.experts, self.router, self.group = nn.ModuleList(experts), router, group

    def forward(self, rows):
        weights = self.router(rows).softmax(1)
        best = weights.argmax(1)
        outputs = self._apart(rows, best) if self.group is not None else _by_expert(self.experts, rows, best)
        return rows + outputs * weights.gather(1, best[:, None])

    def _apart(self, rows, best):
        size = dist.get_world_size(self.group)
        here = EXPERTS // size
        order = torch.argsort(best, stable=True)
        counts = torch.bincount(best, minlength=EXPERTS)
        arriving_counts = torch.empty_like(counts)
        dist.all_to_all_single(arriving_counts, counts, group=self.group)
        sent = counts.view(size, here).sum(1).tolist()
        arriving = arriving_counts.view(size, here).sum(1).tolist()
        received = _Exchange.apply(rows[order], sent, arriving, self.group)
        which = torch.arange(here).repeat(size).repeat_interleave(arriving_counts)
        done = _Exchange.apply(_by_expert(self.experts, received, which), arriving, sent, self.group)
        return torch.zeros_like(done).index_copy(0, order, done)


def _by_expert(experts, rows, which):
    outputs = torch.zeros_like(rows)
    for number, expert in enumerate(experts):
        mine = (which == number).nonzero()[:, 0]
        outputs = outputs.index_add(0, mine, expert(rows[mine]))
    return outputs


def mixture(rank=None, size=1, group=None):
    """The whole layer, or the share of a rank."""
    torch.manual_seed(5)
    experts = [nn.Sequential(nn.Linear(WIDTH, 9), nn.Tanh(), nn.Linear(9, WIDTH)).double() for _ in range(EXPERTS)]
    router = nn.Linear(WIDTH, EXPERTS).double()
    if rank is None:
        return Mixture(experts, router)
    here = EXPERTS // size
    return Mixture(experts[rank * here : (rank + 1) * here], router, group)
