"""Calls with random shapes, each made once by collsyn and once by gloo on copies of the same tensors."""

import random

import torch
import torch.distributed as dist

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
MOVED = (*DTYPES, "int8")
SHAPES = ((), (1,), (0,), (7,), (3, 5), (2, 0, 3), (4, 3, 2), (257,), (64, 33), (5000,))


class Shapes:
    """Random tensors: the generator of numbers is this rank's own, that of shapes and choices equal on all."""

    def __init__(self, seed, rank, size, is_plain):
        """Where `is_plain`, tensors are contiguous: gloo takes some others for it."""
        self.is_plain = is_plain
        self.choose = random.Random(seed)
        self.numbers = torch.Generator().manual_seed(1000 * seed + rank)
        self.rank, self.size = rank, size

    def dtype(self, names=DTYPES):
        return getattr(torch, self.choose.choice(names))

    def tensor(self, shape, dtype):
        """Small whole numbers, so that sums are exact in every type; sometimes not contiguous."""
        low = 0 if dtype in (torch.uint8, torch.bool) else -3
        high = 2 if dtype == torch.bool else 4
        values = torch.randint(low, high, tuple(shape), generator=self.numbers).to(dtype)
        layout = self.choose.randrange(4)
        if self.is_plain:
            return values
        if layout == 0 and values.dim() >= 2:
            return values.transpose(0, 1).contiguous().transpose(0, 1)
        if layout == 1:
            wide = torch.zeros((*values.shape, 2), dtype=dtype)
            wide[..., 0] = values
            return wide[..., 0]
        return values

    def shape(self):
        if self.choose.random() < 0.5:
            return self.choose.choice(SHAPES)
        return tuple(self.choose.randrange(1, 9) for _ in range(self.choose.randrange(1, 4)))

    def flat(self):
        """A first dimension of at least one, for what is cut along it."""
        return (self.choose.randrange(1, 9), *self.shape()[:2])


def _op(given, kinds=("SUM", "MIN", "MAX", "PRODUCT")):
    return getattr(dist.ReduceOp, given.choose.choice(kinds))


def all_reduce(given, group, is_async):
    tensor = given.tensor(given.shape(), given.dtype())
    return dist.all_reduce(tensor, _op(given), group, is_async), [tensor]


def broadcast(given, group, is_async):
    tensor, root = given.tensor(given.shape(), given.dtype(MOVED)), given.choose.randrange(given.size)
    return dist.broadcast(tensor, group=group, async_op=is_async, group_src=root), [tensor]


def reduce(given, group, is_async):
    tensor, root = given.tensor(given.shape(), given.dtype()), given.choose.randrange(given.size)
    work = dist.reduce(tensor, group=group, async_op=is_async, op=_op(given), group_dst=root)
    # What the others are left with is not defined.
    return work, [tensor] if given.rank == root else []


def all_gather(given, group, is_async):
    shape, dtype = given.shape(), given.dtype(MOVED)
    tensor, outputs = given.tensor(shape, dtype), [torch.zeros(shape, dtype=dtype) for _ in range(given.size)]
    return dist.all_gather(outputs, tensor, group, is_async), outputs


def all_gather_single(given, group, is_async):
    shape, dtype = given.flat(), given.dtype(MOVED)
    tensor = given.tensor(shape, dtype).contiguous()
    output = torch.zeros((given.size * shape[0], *shape[1:]), dtype=dtype)
    return dist.all_gather_into_tensor(output, tensor, group, is_async), [output]


def gather(given, group, is_async):
    shape, dtype, root = given.shape(), given.dtype(MOVED), given.choose.randrange(given.size)
    tensor = given.tensor(shape, dtype)
    outputs = [torch.zeros(shape, dtype=dtype) for _ in range(given.size)] if given.rank == root else None
    return dist.gather(tensor, outputs, group=group, async_op=is_async, group_dst=root), outputs or []


def scatter(given, group, is_async):
    shape, dtype, root = given.shape(), given.dtype(MOVED), given.choose.randrange(given.size)
    inputs = [given.tensor(shape, dtype) for _ in range(given.size)]
    output = torch.zeros(shape, dtype=dtype)
    work = dist.scatter(output, inputs if given.rank == root else None, group=group, async_op=is_async, group_src=root)
    return work, [output]


def reduce_scatter(given, group, is_async):
    shape, dtype = given.shape(), given.dtype()
    inputs, output = [given.tensor(shape, dtype) for _ in range(given.size)], torch.zeros(shape, dtype=dtype)
    return dist.reduce_scatter(output, inputs, _op(given), group, is_async), [output]


def reduce_scatter_single(given, group, is_async):
    shape, dtype = given.flat(), given.dtype()
    tensor = given.tensor((given.size * shape[0], *shape[1:]), dtype).contiguous()
    output = torch.zeros(shape, dtype=dtype)
    return dist.reduce_scatter_tensor(output, tensor, _op(given), group, is_async), [output]


def all_to_all(given, group, is_async):
    shape, dtype = given.shape(), given.dtype(MOVED)
    inputs = [given.tensor(shape, dtype).contiguous() for _ in range(given.size)]
    outputs = [torch.zeros(shape, dtype=dtype) for _ in range(given.size)]
    return dist.all_to_all(outputs, inputs, group, is_async), outputs


def all_to_all_single(given, group, is_async):
    dtype, width = given.dtype(MOVED), given.choose.randrange(1, 5)
    if given.choose.random() < 0.3:
        rows = given.size * given.choose.randrange(1, 40)
        tensor, output = given.tensor((rows, width), dtype).contiguous(), torch.zeros((rows, width), dtype=dtype)
        return dist.all_to_all_single(output, tensor, group=group, async_op=is_async), [output]
    most = given.choose.choice((3, 60))
    lengths = [[given.choose.randrange(most) for _ in range(given.size)] for _ in range(given.size)]
    sent, arriving = lengths[given.rank], [row[given.rank] for row in lengths]
    tensor = given.tensor((sum(sent), width), dtype).contiguous()
    output = torch.zeros((sum(arriving), width), dtype=dtype)
    return dist.all_to_all_single(output, tensor, arriving, sent, group, is_async), [output]


CALLS = (
    all_reduce,
    broadcast,
    reduce,
    all_gather,
    all_gather_single,
    gather,
    scatter,
    reduce_scatter,
    reduce_scatter_single,
    all_to_all,
    all_to_all_single,
)
