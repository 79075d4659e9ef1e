"""Four ranks call collectives on NumPy arrays: blocking, asynchronous, and in groups of their own."""

import numpy as np

from collsyn import Communicator
from collsyn.runtime.launch import launch


def work(bootstrap):
    """What every rank does."""
    with Communicator(bootstrap, timeout_s=30) as comm:
        total = comm.all_reduce(np.full(4, comm.rank, np.float32))

        # Two groups that overlap, and calls that nobody waits for yet.
        low = comm.group([0, 1, 2]) if comm.rank < 3 else None
        high = comm.group([1, 2, 3]) if comm.rank > 0 else None
        issued = [group.all_gather(np.array([comm.rank]), async_op=True) for group in (low, high) if group is not None]
        gathered = [work.result().tolist() for work in issued]

        # Rank 0 sends a row to rank 3.
        row = np.arange(3) if comm.rank == 0 else np.zeros(3, int)
        if comm.rank == 0:
            comm.send(row, 3)
        elif comm.rank == 3:
            comm.receive(row, 0)
        return [total.tolist(), gathered, row.tolist()]


if __name__ == "__main__":
    for rank, (total, gathered, row) in enumerate(launch("communicator:work", num_ranks=4, launcher="fork")):
        print(f"rank {rank}: sum {total}, groups {gathered}, row {row}")
