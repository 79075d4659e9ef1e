"""Runs one synthesizer over topologies, collectives and sizes, and prints finish, bound, gap and the time it took.

    python scripts/bench_synth.py                                        # greedy on the topologies of docs/greedy.md
    python scripts/bench_synth.py --sizes 64K 64M --collectives allgather alltoall --topologies torus:8x8 dgx2:2
    python scripts/bench_synth.py --chunks 1 --collectives allgather --topologies torus:4x4 torus:6x6 torus:16x16

Every schedule is verified. CPU seconds are those of the synthesizer alone, after a first small problem of each kind, so
that imports and compilation do not count. The table is Markdown.
"""

import argparse
import sys
import time

from collsyn.bounds import fluid_bound
from collsyn.check.verify import verify_schedule
from collsyn.errors import CollsynError
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import METHODS, method
from collsyn.topology.resolve import load_topology
from collsyn.units import parse_size, s_to_us

TOPOLOGIES = ["torus:8x8", "mesh:8x8", "hypercube:6", "full:8", "switch:8"]
TOPOLOGIES += ["dgx1", "ndv2:2", "dgx2:2", "dgx-a100:2", "mi250:2"]
COLLECTIVES = ["allgather", "reducescatter", "allreduce", "broadcast", "scatter", "alltoall"]


def main() -> int:
    """Print the table; returns the number of rows that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES)
    parser.add_argument("--collectives", nargs="+", default=COLLECTIVES)
    parser.add_argument("--sizes", nargs="+", default=["256M"])
    parser.add_argument("--method", default="greedy", choices=list(METHODS))
    parser.add_argument("--chunks", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-limit", type=float, default=None)
    chosen = parser.parse_args()
    options = Options(seed=chosen.seed, time_limit_s=chosen.time_limit)
    for collective in chosen.collectives:
        method(chosen.method).synthesize(Problem(collective, load_topology("ring:4"), 4096), Options())
    print("| topology | collective | size | finish us | bound us | gap | chunks | sends | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|")
    failures = 0
    for topology in chosen.topologies:
        for collective in chosen.collectives:
            for size in chosen.sizes:
                try:
                    row = measured(chosen.method, collective, topology, size, chosen.chunks, options)
                except CollsynError as error:
                    failures += 1
                    row = f"| {topology} | {collective} | {size} | {error} |"
                print(row, flush=True)
    return failures


def measured(name: str, collective: str, topology: str, size: str, chunks: int | None, options: Options) -> str:
    """One row of the table; raises VerificationError for a wrong schedule."""
    problem = Problem(collective, load_topology(topology), parse_size(size), chunks_per_rank=chunks)
    start_s = time.process_time()
    schedule = method(name).synthesize(problem, options)
    cpu_s = time.process_time() - start_s
    verify_schedule(schedule).raise_if_bad()
    bound_s = fluid_bound(schedule.collective, problem.topology, problem.size_bytes).time_s
    times = (
        f"{s_to_us(schedule.finish_s):.1f} | {s_to_us(bound_s):.1f} | {100 * (schedule.finish_s / bound_s - 1):.1f}%"
    )
    numbers = f"{schedule.collective.chunks_per_rank} | {schedule.num_sends} | {cpu_s:.1f}"
    return f"| {topology} | {collective} | {size} | {times} | {numbers} |"


if __name__ == "__main__":
    sys.exit(main())
