"""Prints what `topology find` finds, beside the bounds and beside well-known graphs of the same size.

    python scripts/find_table.py                                  # the table of docs/direct-connect.md
    python scripts/find_table.py --sizes 64x4 1000x8 --two-way    # only wirings whose links go both ways
    python scripts/find_table.py --sizes 256x4 --schedules        # and the schedule of each design, verified, at 1M

Columns: ranks x degree; a graph; its steps and bandwidth factor; where it is part of the result (`best`), or the design
that is no worse in both (`covered`); CPU seconds of the search, after a first small one. The last row of each size has
the bounds. Returns how many well-known graphs are better than all that was found, and searches over 60 CPU seconds.
"""

import argparse
import sys
import time
from fractions import Fraction

import numpy as np

from collsyn.check.verify import verify_schedule
from collsyn.errors import InputError
from collsyn.finder.design import Cost, Design
from collsyn.finder.schedule import carried_schedule
from collsyn.finder.search import Search
from collsyn.synth.bfb_cost import bfb_cost
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology

SIZES = ["8x4", "12x4", "16x4", "32x4", "64x4", "128x4", "256x4", "1024x4", "1000x8"]
# Graphs that are known for some sizes: K4,4, its line graph and the line graph of that.
NAMED = {"8x4": ["bipartite:4x4"], "32x4": ["line:(bipartite:4x4)"], "128x4": ["line:(line:(bipartite:4x4))"]}
TORI = {"12x4": "torus:3x4", "1000x8": "torus:5x5x5x8"}
LIMIT_S = 60.0


def main() -> int:
    """Print the table; returns the number of broken promises."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="NxD")
    parser.add_argument("--collective", default="allgather")
    parser.add_argument("--two-way", action="store_true")
    parser.add_argument("--schedules", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    Search().find(16, 4)
    print("| ranks x degree | graph | steps | factor | | CPU s |")
    print("|---|---|---|---|---|---|")
    broken = 0
    for size in options.sizes:
        num_ranks, degree = map(int, size.split("x"))
        search = Search(options.collective, options.two_way, options.seed)
        begin_s = time.process_time()
        designs = search.find(num_ranks, degree)
        cpu_s = time.process_time() - begin_s
        broken += cpu_s > LIMIT_S
        names = [design.text for design in designs]
        for place, design in enumerate(designs):
            note = "best"
            if options.schedules:
                note += f", schedule {schedule_us(design, options.collective):.2f} us"
            print(row(size, design.text, design.cost, note, f"{cpu_s:.1f}" if place == 0 else ""))
        asked = known(num_ranks, degree, options.two_way) if options.collective == "allgather" else []
        for text in (text for text in asked if text not in names):
            cost = known_cost(text, degree)
            covering = [design for design in designs if design.cost.covers(cost)]
            broken += not covering
            print(row(size, text, cost, "covered" if covering else "NOT COVERED", ""), flush=True)
        print(row(size, "bounds", search.least(num_ranks, degree), "", ""), flush=True)
    return broken


def row(size: str, text: str, cost: Cost, note: str, cpu: str) -> str:
    """A line of the table."""
    name = text if text == "bounds" else f"`{text}`"
    return f"| {size} | {name} | {cost.steps} | {float(cost.factor):.4f} | {note} | {cpu} |"


def known(num_ranks: int, degree: int, two_way: bool) -> list[str]:
    """Well-known graphs of that size."""
    size = f"{num_ranks}x{degree}"
    found = [] if two_way else [*NAMED.get(size, []), f"genkautz:{degree}x{num_ranks}"]
    if size in TORI:
        found.append(TORI[size])
    elif degree == 4 and num_ranks & (num_ranks - 1) == 0 and num_ranks >= 16:
        root = 1 << ((num_ranks.bit_length() - 1) // 2)
        found.append(f"torus:{root}x{num_ranks // root}")
    return found


def known_cost(text: str, degree: int) -> Cost:
    """What a graph costs if B is the bandwidth of that many links."""
    topology = load_topology(text)
    cost = bfb_cost(topology)
    return Cost(cost.steps, cost.factor * Fraction(degree, int(np.bincount(topology.dst).max())))


def schedule_us(design: Design, collective: str) -> float:
    """Finish of the design's schedule at 1 MiB, which is verified."""
    problem = Problem(collective, load_topology(design.text), 1 << 20)
    if design.base is None:
        schedule = method("bfb").synthesize(problem, Options())
    else:
        schedule = carried_schedule(problem, design.text, design.base)
    verify_schedule(schedule).raise_if_bad()
    return schedule.finish_s * 1e6


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        sys.exit(str(error))
