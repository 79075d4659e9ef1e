"""Allreduce of large meshes from split links: algorithm bandwidth against the joint program; docs/allreduce.md.

    python scripts/scale_allreduce.py                                  # mesh:8x8, 16x16 and 32x16 at 1 GiB
    python scripts/scale_allreduce.py --size 64M mesh:20x20

CPU seconds are user and system time after compilation: of the linear programs, of the synthesis, and of the check of
the schedule, contributor by contributor. The last column is the best of a reduce-scatter and an allgather in turn.
"""

import argparse
import resource
import time

from collsyn.bounds.joint import even_split, joint_split
from collsyn.bounds.tightest import tightest_rate
from collsyn.check.verify import verify_schedule
from collsyn.synth.problem import Options, Problem
from collsyn.synth.split import SPLIT
from collsyn.topology.resolve import load_topology
from collsyn.units import parse_size

MESHES = ("mesh:8x8", "mesh:16x16", "mesh:32x16")


def main() -> None:
    """Print a row for every topology."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topologies", nargs="*", default=MESHES)
    parser.add_argument("--size", type=parse_size, default=1 << 30)
    parser.add_argument("--chunks", type=int)
    asked = parser.parse_args()
    SPLIT.prepare("allreduce")
    verify_schedule(SPLIT.synthesize(Problem("allreduce", load_topology("mesh:2x2"), 1 << 20), Options()))
    print("| topology | joint GB/s | split GB/s | of it | chunks a rank | sends ", end="")
    print("| CPU s: programs | synthesis | check | GiB | in turn GB/s |")
    print("|---" * 11 + "|")
    for name in asked.topologies:
        print(row(name, asked.size, asked.chunks), flush=True)


def row(name: str, size_bytes: int, chunks: int | None) -> str:
    """One topology; the memory is the most that this process has had so far."""
    topology = load_topology(name)
    problem = Problem("allreduce", topology, size_bytes, chunks)
    begin_s = time.process_time()
    best = float(joint_split(topology).algbw_exact)
    even_split(topology)
    solved_s = time.process_time()
    schedule = SPLIT.synthesize(problem, Options())
    made_s = time.process_time()
    verify_schedule(schedule).raise_if_bad()
    checked_s = time.process_time()
    rates = [tightest_rate(problem.as_kind(kind, 1).collective(), topology) for kind in ("reducescatter", "allgather")]
    in_turn = 1 / sum(1 / float(rate) for rate in rates if rate)
    reached = size_bytes / schedule.finish_s / 1e9
    most_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    return (
        f"| {name} | {best:.1f} | {reached:.1f} | {reached / best:.3f} | {schedule.collective.chunks_per_rank} "
        f"| {schedule.num_sends} | {solved_s - begin_s:.2f} | {made_s - solved_s:.1f} | {checked_s - made_s:.1f} "
        f"| {most_gib:.1f} | {in_turn:.1f} |"
    )


if __name__ == "__main__":
    main()
