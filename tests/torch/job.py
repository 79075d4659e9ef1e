"""Starts torch's process groups inside ranks that the tests launch."""

import contextlib
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

LIMIT = timedelta(seconds=60)


@contextlib.contextmanager
def process_group(bootstrap, backend="collsyn", timeout=LIMIT, **options):
    """The default group of all ranks of a bootstrap, by a store of its own."""
    import collsyn.torch  # noqa: F401

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning)
    rank, size = bootstrap.rank, bootstrap.size
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False) if rank == 0 else None
    port = bootstrap.allgather(str(store.port if store is not None else 0).encode())[0]
    if store is None:
        store = dist.TCPStore("127.0.0.1", int(port), None, False)
    store.set_timeout(LIMIT)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout, **options)
    yield dist.group.WORLD
    # Nobody takes the store along before the others are done. An error leaves the job as a program would.
    bootstrap.barrier()
    dist.destroy_process_group()
    bootstrap.barrier()
