"""Trees on every kind of part of a DGX-1 that a job can get, beside the known optima and the best ring.

    python scripts/allocations.py            # 60 rows: the broadcast from the best root, and the allgather, at 1G

For each allocation: the optimum in links (one direction), the rate of the trees over it, the time of the bytes at the
optimum over the time of the verified schedule, and how much faster that is than the ring methods (no number: no ring
was found). The optima are those of tests/support/dgx1_allocations.csv; the exit code counts rows that miss them, or
0.97 of them at 1G.
"""

import argparse
import csv
import sys
from fractions import Fraction
from math import exp, log, nan
from pathlib import Path

from collsyn.bounds import fluid_bound
from collsyn.check.verify import verify_schedule
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from collsyn.units import parse_size

TABLE = Path(__file__).parents[1] / "tests" / "support" / "dgx1_allocations.csv"
MACHINES = {"DGX-1P": ("dgx1p", 20), "DGX-1V": ("dgx1", 25)}
# Part of the optimum that is asked of schedules.
ENOUGH = 0.97


def main() -> int:
    """Print the table; returns the number of rows that miss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1G")
    size_bytes = parse_size(parser.parse_args().size)
    print("| machine | GPUs | collective | optimum | trees | schedule | against ring |")
    print("|---|---|---|---|---|---|---|")
    missed, gains = 0, []
    for row in rows():
        preset, link_gb_s = MACHINES[row["machine"]]
        ranks = [int(rank) for rank in row["gpus"].split()]
        topology = load_topology(preset).subset(ranks)
        by_root = [Fraction(rate) for rate in row["broadcast"].split()]
        root = by_root.index(max(by_root))
        known = {"broadcast": by_root[root], "allgather": Fraction(row["allgather"]) * len(ranks)}
        for kind, optimum in known.items():
            problem = Problem(kind, topology, size_bytes, root=root if kind == "broadcast" else None)
            schedule = method("trees").synthesize(problem, Options())
            verify_schedule(schedule).raise_if_bad()
            bound = fluid_bound(schedule.collective, topology, size_bytes).algbw_exact
            rate = Fraction(schedule.provenance["options"]["algbw_exact"]) / (optimum * link_gb_s)
            reached = size_bytes / float(optimum * link_gb_s) * 1e-9 / schedule.finish_s
            gain = best_ring_s(problem) / schedule.finish_s
            gains += [] if gain != gain else [gain]
            missed += bound != optimum * link_gb_s or round(reached, 3) < ENOUGH
            shown = f"{optimum} | {float(rate):.3f} | {reached:.3f} | {'-' if gain != gain else f'{gain:.2f}'}"
            print(f"| {row['machine']} | {row['gpus']} | {kind} | {shown} |", flush=True)
    mean = exp(sum(map(log, gains)) / len(gains))
    print(f"\nagainst ring, geometric mean of {len(gains)}: {mean:.3f}; missed: {missed}")
    return missed


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
