"""Prints schedules beside what TE-CCL and TACCL published for the same machines and costs (alpha is a pure delay).

    python scripts/teccl_table.py                                              # all cells, a minute each at most
    python scripts/teccl_table.py --topologies dgx2:2 --collectives allgather --sizes 1GB 1KB --methods trees greedy

Columns: size (of the output, decimal); ours, the finish of the verified schedule in microseconds and method; theirs,
the best published finish (t: TACCL's, e: TE-CCL's); the fluid bound; ours over theirs and over the bound; CPU seconds.
Published finishes at large sizes are whole epochs and leave out alpha. A row is marked where ours is more than 1.001 of
theirs plus 1 us, or from 64MB on more than 1.02 of the bound; the exit code counts these.

Source: TE-CCL, SIGCOMM 2024, and output files of its code, with TACCL's on the same machines. TE-CCL's NDv2 x2 is of
15 GPUs (it takes GPU 0 for a switch): its alltoall is below what 16 need and left out, its allgather is kept.
"""

import argparse
import sys
import time

from collsyn.errors import CollsynError
from collsyn.portfolio.auto import best, chosen
from collsyn.synth.problem import Options, Problem
from collsyn.topology.resolve import load_topology
from collsyn.units import parse_size

SIZES = ["1GB", "256MB", "64MB", "16MB", "4MB", "1MB", "256KB", "64KB", "16KB", "4KB", "1KB"]
TOPOLOGIES = {
    "ndv2:2": "ndv2:2@costs=teccl",
    "ndv2:4": "ndv2:4@costs=teccl",
    "dgx2:2": "dgx2:2@costs=teccl",
    "dgx1": "dgx1@alpha_us=0.7",
}
# Microseconds in the order of SIZES; None where nothing is published.
PUBLISHED: dict[tuple[str, str], dict[str, list[float | None]]] = {
    ("ndv2:2", "allgather"): {
        "e": [43750, 11200, 2800, 700, 190, 48.75, 14.72, 6.08, 4.44, 4.18, 4.14],
        "t": [53767, 12495, 3133, None, 216.5, 62.2, 25.3, 13.1, 12.7, 11.9, 10.2],
    },
    ("ndv2:2", "alltoall"): {"t": [320049, 81964, 20532, 5164, 1324, 359, 115.7, 50.3, 35.8, 32.1, 36.8]},
    ("ndv2:4", "allgather"): {"e": [65000, 16640, 4160, 1040, 280, 69.4, 21.0, 8.32, 5.81, 5.52, 5.45]},
    ("dgx2:2", "allgather"): {
        "e": [7750, 1984, 496, 124, 33, 10.75, 5.38, 4.32, 4.08, 4.03, 4.01],
        "t": [9266, *[None] * 9, 21.7],
    },
    ("dgx2:2", "alltoall"): {
        "e": [80500, 20608, 5168, 1292, 327, 84.25, 24.0, 8.46, 4.70, 4.21, 4.06],
        "t": [89900, *[None] * 10],
    },
    ("dgx1", "allgather"): {"e": [7500, *[None] * 10]},
}
LARGE_BYTES = 64_000_000


def main() -> int:
    """Print the table; returns the number of cells that are over their limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topologies", nargs="+", default=list(TOPOLOGIES), choices=list(TOPOLOGIES))
    parser.add_argument("--collectives", nargs="+", default=["allgather", "alltoall"])
    parser.add_argument("--sizes", nargs="+", default=SIZES, choices=SIZES)
    parser.add_argument("--methods", nargs="+", default=None, help="methods of docs/synthesizers.md; all by default")
    parser.add_argument("--time-limit", type=float, default=None)
    options = parser.parse_args()
    print("| topology | collective | size | ours us | method | theirs us | bound us | /theirs | /bound | CPU s | |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    over = 0
    for name in options.topologies:
        for collective in options.collectives:
            warm_up(name, collective, options.methods)
            for size in options.sizes:
                text, good = row(name, collective, size, options.methods, options.time_limit)
                over += not good
                print(text, flush=True)
    print(f"{over} over their limits")
    return over


def warm_up(name: str, collective: str, methods: list[str] | None) -> None:
    """Compile and load, outside of the times."""
    best(Problem(collective, load_topology("ring:4"), 4096), Options(), methods, plans=False)


def row(name: str, collective: str, size: str, methods: list[str] | None, limit_s: float | None) -> tuple[str, bool]:
    """One row, and whether it is within its limits."""
    problem = Problem(collective, load_topology(TOPOLOGIES[name]), parse_size(size))
    begin_s = time.process_time()
    try:
        found = chosen(best(problem, Options(time_limit_s=limit_s), methods, plans=False))
    except CollsynError as error:
        return f"| {name} | {collective} | {size} | {error} |", False
    cpu_s = time.process_time() - begin_s
    ours_us, bound_us = found.finish_s * 1e6, (found.bound_s or 0.0) * 1e6
    theirs_us, source = published(name, collective, size)
    good = theirs_us is None or ours_us <= 1.001 * theirs_us + 1
    near = problem.size_bytes < LARGE_BYTES or ours_us <= 1.02 * bound_us
    theirs = "- | " if theirs_us is None else f"{theirs_us:g} {source} | "
    ratio = "- | " if theirs_us is None else f"{ours_us / theirs_us:.3f} | "
    marks = ("" if good else "over theirs ") + ("" if near else "over the bound")
    numbers = f"{bound_us:.2f} | {ratio}{ours_us / bound_us:.4f} | {cpu_s:.1f} | {marks} |"
    return f"| {name} | {collective} | {size} | {ours_us:.2f} | {found.method} | {theirs}{numbers}", good and near


def published(name: str, collective: str, size: str) -> tuple[float | None, str]:
    """The least published finish in microseconds and whose it is; (None, "") where there is none."""
    rows = PUBLISHED.get((name, collective), {})
    known = [(values[SIZES.index(size)], source) for source, values in rows.items()]
    return min(((value, source) for value, source in known if value is not None), default=(None, ""))


if __name__ == "__main__":
    sys.exit(main())
