"""Training on every rank of a job that a test launches, against one process that sees all rows."""

import hashlib
import os
import signal
import time

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from collsyn.runtime.worker import report
from tests.torch.job import process_group
from tests.torch.models import EXPERTS, batch, mixture, network, part, train

_BUCKET_MB = 0.005


def _distance(mine, theirs):
    return max(float((one - other).abs().max()) for one, other in zip(mine, theirs, strict=True))


def _digest(tensors):
    return hashlib.sha256(b"".join(one.detach().contiguous().numpy().tobytes() for one in tensors)).hexdigest()


def ddp(bootstrap):
    """How far gradients are from those of one process, and their digest."""
    rank, size = bootstrap.rank, bootstrap.size
    with process_group(bootstrap):
        model = DistributedDataParallel(network(seed=rank), bucket_cap_mb=_BUCKET_MB)
        mine = train(model, lambda step: part(batch(step, size), rank))
        assert len(model._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")) > 1
    theirs = train(network(), lambda step: batch(step, size))
    return _distance(mine, theirs), _digest(mine)


def fsdp(bootstrap):
    """The same with parameters that are spread over the ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank, size = bootstrap.rank, bootstrap.size
    with process_group(bootstrap):
        model, mesh = network(), init_device_mesh("cpu", (size,))
        for layer in model:
            if list(layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        mine = [one.full_tensor() for one in train(model, lambda step: part(batch(step, size), rank))]
    theirs = train(network(), lambda step: batch(step, size))
    return _distance(mine, theirs), _digest(mine)


def moe(bootstrap):
    """The same for a mixture of experts that are spread over the ranks; the router's gradients are averaged."""
    rank, size = bootstrap.rank, bootstrap.size
    here = EXPERTS // size
    with process_group(bootstrap) as world:
        model = mixture(rank, size, world)

        def average(gradient):
            summed = gradient / size
            dist.all_reduce(summed)
            return summed

        for one in model.router.parameters():
            one.register_hook(average)
        for one in model.experts.parameters():
            one.register_hook(lambda gradient: gradient / size)
        mine = train(model, lambda step: part(batch(step, size), rank))
    whole = mixture()
    train(whole, lambda step: batch(step, size))
    share = whole.experts[rank * here : (rank + 1) * here]
    theirs = [one.grad for one in [*share.parameters(), *whole.router.parameters()]]
    return _distance(mine, theirs), _digest(mine)


def lose_a_rank(bootstrap, doomed, how):
    """One rank ends while all train; the others report what they see, and after how many seconds."""
    rank, size = bootstrap.rank, bootstrap.size
    with process_group(bootstrap):
        model, rows = DistributedDataParallel(network()), part(batch(0, size), rank)
        try:
            for step in range(1000):
                if step == 5:
                    dist.barrier()
                    begin = time.monotonic()
                    if rank == doomed and how == "killed":
                        os.kill(os.getpid(), signal.SIGKILL)
                    elif rank == doomed:
                        raise RuntimeError("out of luck")
                model(rows).square().mean().backward()
        except Exception as error:
            if rank == doomed:
                raise
            report([time.monotonic() - begin, str(error)])
            raise
