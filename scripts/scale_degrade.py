"""Failures: how near repaired schedules are to the bound of what remains, and in what part of the time; docs/repair.md.

    python scripts/scale_degrade.py                                    # an 8x8 torus
    python scripts/scale_degrade.py --topology torus:8x8x8 --rank 77   # 512 ranks
    python scripts/scale_degrade.py --collective reducescatter --chunks 4

CPU seconds are user and system time after compilation: of the first synthesis, of one from nothing for what remains,
and of the repair. Every schedule is verified.
"""

import argparse
import time

from collsyn.bounds import fluid_bound
from collsyn.check.verify import verify_schedule
from collsyn.model.schedule import Schedule
from collsyn.synth.problem import Options, Problem, Synthesizer
from collsyn.synth.repair import Repair
from collsyn.synth.table import method
from collsyn.topology.degrade import Failures, degrade
from collsyn.topology.resolve import load_topology
from collsyn.units import parse_size


def timed(solver: Synthesizer, problem: Problem) -> tuple[Schedule, float]:
    """The verified schedule of a method, and its CPU seconds."""
    begin_s = time.process_time()
    schedule = solver.synthesize(problem, Options())
    spent_s = time.process_time() - begin_s
    verify_schedule(schedule).raise_if_bad()
    return schedule, spent_s


def main() -> None:
    """Print a row for every failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="torus:8x8")
    parser.add_argument("--collective", default="allgather")
    parser.add_argument("--method", default="greedy")
    parser.add_argument("--size", type=parse_size, default=1 << 30)
    parser.add_argument("--chunks", type=int)
    parser.add_argument("--rank", type=int, default=27, help="the rank that dies")
    asked = parser.parse_args()
    solver, whole = method(asked.method), load_topology(asked.topology)
    warm_up(asked.collective, solver)
    old, first_s = timed(solver, Problem(asked.collective, whole, asked.size, asked.chunks))
    bound_s = fluid_bound(old.collective, whole, asked.size).time_s
    print(
        f"{asked.collective} on {asked.topology}, {old.collective.chunks_per_rank} chunks a rank: first synthesis "
        f"{first_s:.2f} CPU s, {bound_s / old.finish_s:.3f} of the bound of {bound_s * 1e6:.1f} us\n"
    )
    print("| failure | bound us | cost | repair CPU s | of the bound | sends kept | new | from nothing CPU s | of it |")
    print("|---" * 9 + "|")
    row = [f"{i}-{i + 1}" for i in range(7)]
    cases = {
        "link 0-1 at half": Failures((), (("0-1", 0.5),)),
        "a row of links at half": Failures((), tuple((link, 0.5) for link in row)),
        "link 0-1 dead": Failures(("0-1",)),
        f"rank {asked.rank} dead": Failures((), (), (asked.rank,)),
        "two links dead, one at half, a rank dead": Failures(("0-1", "8-9"), (("16-17", 0.5),), (asked.rank,)),
    }
    for label, failures in cases.items():
        problem = Problem(asked.collective, degrade(whole, failures), asked.size, asked.chunks)
        found, repair_s = timed(Repair(old), problem)
        fresh, fresh_s = timed(solver, problem)
        after_s = fluid_bound(found.collective, problem.topology, asked.size).time_s
        options = found.provenance["options"]
        print(
            f"| {label} | {after_s * 1e6:.1f} | {after_s / bound_s - 1:+.1%} | {repair_s:.2f} "
            f"| {after_s / found.finish_s:.3f} | {options['kept_sends']} | {options['new_sends']} | {fresh_s:.2f} "
            f"| {after_s / fresh.finish_s:.3f} |",
            flush=True,
        )


def warm_up(kind: str, solver: Synthesizer) -> None:
    """Compile what is used."""
    small = load_topology("torus:3x3")
    old = solver.synthesize(Problem(kind, small, 1 << 20), Options())
    rest = Problem(kind, degrade(small, Failures(("0-1",), (("3-4", 0.5),))), 1 << 20)
    Repair(old).synthesize(rest, Options())
    solver.synthesize(rest, Options())


if __name__ == "__main__":
    main()
