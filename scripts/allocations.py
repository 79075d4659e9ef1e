"""Trees on every kind of part of a DGX-1 that a job can get, beside the known optima, the best ring, and composition.

    python scripts/allocations.py            # 60 rows: broadcast from the best root, allgather and allreduce, at 1G

For each allocation: the optimum in links (one direction), the time of the bytes at the optimum over the time of the
verified schedule, and how much faster that is than the ring methods (no number: no ring was found) and, for allreduce,
than the reduce-scatter and allgather of `trees`, which is used where it is as fast as trees up and down can be. The
optima are those of tests/support/dgx1_allocations.csv; the exit code counts rows that miss them, or 0.97 of them at 1G.
"""

import argparse
import csv
import sys
from fractions import Fraction
from math import exp, log, nan
from pathlib import Path

from collsyn.bounds import fluid_bound, tree_bound
from collsyn.check.verify import verify_schedule
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from collsyn.units import parse_size

TABLE = Path(__file__).parents[1] / "tests" / "support" / "dgx1_allocations.csv"
MACHINES = {"DGX-1P": ("dgx1p", 20), "DGX-1V": ("dgx1", 25)}
# Part of the optimum that is asked of schedules.
ENOUGH = 0.97
# The table has four decimals of the allreduce.
ROUNDED = Fraction(1, 10_000)


def main() -> int:
    """Print the table; returns the number of rows that miss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1G")
    size_bytes = parse_size(parser.parse_args().size)
    print("| machine | GPUs | collective | optimum | method | schedule | against ring | against composition |")
    print("|---|---|---|---|---|---|---|---|")
    missed = 0
    gains: dict[str, list[float]] = {}
    for row in rows():
        preset, link_gb_s = MACHINES[row["machine"]]
        topology = load_topology(preset).subset([int(rank) for rank in row["gpus"].split()])
        by_root = [Fraction(rate) for rate in row["broadcast"].split()]
        root = by_root.index(max(by_root))
        known = {"broadcast": by_root[root], "allgather": Fraction(row["allgather"]) * topology.num_ranks}
        known["allreduce"] = Fraction(row["allreduce_joint"])
        for kind, optimum in known.items():
            problem = Problem(kind, topology, size_bytes, root=root if kind == "broadcast" else None)
            name = "joint" if kind == "allreduce" and method("joint").accepts(problem) is None else "trees"
            schedule = method(name).synthesize(problem, Options())
            verify_schedule(schedule).raise_if_bad()
            exact = optimum_gb_s(problem) / link_gb_s
            reached = size_bytes / float(exact * link_gb_s) * 1e-9 / schedule.finish_s
            missed += abs(exact - optimum) > ROUNDED or round(reached, 3) < ENOUGH
            faster = {"ring": best_ring_s(problem) / schedule.finish_s, "composition": nan}
            if kind == "allreduce":
                composed = method("trees").synthesize(problem, Options()) if name == "joint" else schedule
                faster["composition"] = composed.finish_s / schedule.finish_s
            for rival, gain in faster.items():
                if gain == gain:
                    gains.setdefault(f"{row['machine']} {kind} against {rival}", []).append(gain)
            against = " | ".join("-" if gain != gain else f"{gain:.2f}" for gain in faster.values())
            print(
                f"| {row['machine']} | {row['gpus']} | {kind} | {exact} | {name} | {reached:.3f} | {against} |",
                flush=True,
            )
    print()
    for what, values in gains.items():
        print(f"{what}: geometric mean of {len(values)} {exp(sum(map(log, values)) / len(values)):.3f}")
    print(f"missed: {missed}")
    return missed


def optimum_gb_s(problem: Problem) -> Fraction:
    """The exact rate that no schedule, or no allreduce along trees, exceeds."""
    bound = tree_bound if problem.kind == "allreduce" else fluid_bound
    found = bound(problem.collective(), problem.topology, problem.size_bytes)
    assert found is not None and found.algbw_exact is not None
    return found.algbw_exact


def rows() -> list[dict[str, str]]:
    """The rows of the table of known optima."""
    with TABLE.open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def best_ring_s(problem: Problem) -> float:
    """Seconds of the quicker of the two ring methods; not a number where neither finds a ring."""
    found = [method(name) for name in ("ring", "two-way-ring")]
    times = [m.synthesize(problem, Options()).finish_s for m in found if m.accepts(problem) is None]
    return min(times, default=nan)


if __name__ == "__main__":
    sys.exit(main())
