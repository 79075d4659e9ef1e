"""What calls of a communicator cost beside the plan that they run: python scripts/communicator_cost.py [RANKS]."""

import statistics
import sys
import time
from pathlib import Path

import numpy as np

from collsyn.comm.communicator import Communicator
from collsyn.runtime.launch import launch

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24)
BLOCKS = 15
BLOCK_S = 0.02


def work(bootstrap):
    """Median seconds of a plan alone and of three kinds of calls for every size, in alternating blocks."""
    rows = []
    with Communicator(bootstrap) as comm:
        for size in SIZES:
            data = np.ones(size // 4, np.float32)
            comm.all_reduce(data)
            prepared = comm.prepare("all_reduce", data.size)

            def blocking(calls, data=data):
                for _ in range(calls):
                    comm.all_reduce(data, "sum", data)

            def later(calls, data=data):
                works = [comm.all_reduce(data, "sum", data, async_op=True) for _ in range(calls)]
                for call in works:
                    call.wait()

            def alone(calls, prepared=prepared):
                for _ in range(calls):
                    prepared._plan.run()

            def shared(calls, prepared=prepared):
                for _ in range(calls):
                    prepared.run()

            kinds = {"plan": alone, "prepared": shared, "blocking": blocking, "asynchronous": later}
            rows.append([size, {name: statistics.median(times) for name, times in timed(comm, kinds).items()}])
            prepared.close()
    return rows


def timed(comm, kinds):
    """Seconds per call of every block."""
    times = {name: [] for name in kinds}
    calls = dict.fromkeys(kinds, 3)
    for block in range(BLOCKS + 1):
        for name, call in kinds.items():
            comm.barrier()
            begin = time.perf_counter()
            call(calls[name])
            seconds = (time.perf_counter() - begin) / calls[name]
            if block:
                times[name].append(seconds)
            else:
                # One number for all ranks, from the first block.
                agreed = float(comm.broadcast(np.array([seconds]))[0])
                calls[name] = max(1, min(300, int(BLOCK_S / agreed)))
    return times


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    print("microseconds, allreduce of    plan alone     prepared     blocking asynchronous")
    for row in zip(*launch("communicator_cost:work", num_ranks=ranks, launcher="fork"), strict=True):
        slowest = {name: max(times[name] for _, times in row) * 1e6 for name in row[0][1]}
        print(f"{row[0][0]:20d} bytes " + " ".join(f"{slowest[name]:12.1f}" for name in slowest))
