"""Prints the table of TACCL with HiGHS: its finish beside ours, free to split chunks, and with its chunks kept whole.

    python scripts/taccl_table.py                                  # all rows, up to a minute each
    python scripts/taccl_table.py --rows ndv2:2 --columns whole    # those whose topology holds the text

Costs are TACCL's (`@costs=taccl`: alpha occupies the link), 1 MB is 10^6 bytes. Columns: the finish that TACCL's
program reached with HiGHS in the place of Gurobi; ours, free (any chunks, messages shared), its method and its part
over the fluid bound; ours with the table's chunks kept whole, its method and its part over the bound for whole chunks
with one message a chunk; CPU seconds of both. That is the bound TACCL's table names; a schedule whose chunks share
messages pays fewer latencies and can be below it. Asked: free within 3% of the fluid bound and not above TACCL's (other
limits where a row names one), whole within 2% of its bound. Marked rows are beyond; the exit code counts marks.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from collsyn.bounds import chunk_bound, fluid_bound
from collsyn.check.verify import verify_schedule
from collsyn.errors import CollsynError
from collsyn.model.schedule import Schedule
from collsyn.portfolio.auto import best
from collsyn.synth.problem import Options, Problem
from collsyn.topology.resolve import load_topology
from collsyn.units import parse_size


@dataclass(frozen=True)
class Row:
    """An instance: `theirs_us` as TACCL reached it, `limit_us` where more than that is allowed."""

    topology: str
    collective: str
    size: str
    chunks: int
    theirs_us: float
    limit_us: float | None = None


# Sizes are those of nccl-tests: an allgather's output, an alltoall's buffer of one rank.
ROWS = (
    Row("ndv2:1@costs=taccl", "allgather", "8MB", 1, 92),
    Row("ndv2:1@costs=taccl", "allgather", "48MB", 6, 437),
    Row("ndv2:1@costs=taccl", "alltoall", "8MB", 1, 184),
    Row("ndv2:2@costs=taccl", "allgather", "16MB", 1, 968),
    Row("ndv2:2@costs=taccl", "alltoall", "16MB", 1, 6834),
    Row("ndv2:4@costs=taccl", "allgather", "32MB", 1, 2674),
    Row("dgx2:1@costs=taccl", "allgather", "16MB", 1, 120, 121),
    Row("dgx2:2@costs=taccl", "allgather", "64MB", 2, 583, 526),
    Row("ndv2:2@costs=taccl,sketch=2", "allgather", "16KB", 1, 10.16, 6),
    Row("dgx2:2@costs=taccl,sketch=2", "allgather", "32KB", 1, 9.30, 6),
    Row("ndv2:10@costs=taccl", "allgather", "80MB", 1, float("inf"), float("inf")),
)
FREE, WHOLE = 1.03, 1.02
# The 1 KB rows are bounded by latencies, which the fluid bound of the bytes says little about.
SMALL = 1 << 20


def main() -> int:
    """Print the table; returns the number of marks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="only topologies with this text")
    parser.add_argument("--columns", nargs="+", choices=["free", "whole"], default=["free", "whole"])
    parser.add_argument("--methods", nargs="+", help="instead of auto's")
    parser.add_argument("--time-limit", type=float, default=60.0)
    asked = parser.parse_args()
    print("| instance | TACCL us | free us | method | over bound | whole us | method | over bound | CPU s | |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    marks = 0
    for row in ROWS:
        if asked.rows in row.topology:
            line, marked = shown(row, asked.columns, asked.methods, asked.time_limit)
            marks += marked
            print(line, flush=True)
    return marks


def shown(row: Row, columns: Sequence[str], methods: Sequence[str] | None, limit_s: float) -> tuple[str, int]:
    """A row as text, and how many of its columns are beyond what is asked for."""
    cells, marks, begin_s = [], 0, time.process_time()
    for column in ("free", "whole"):
        found = solved(row, column, methods, limit_s) if column in columns else None
        if found is None:
            cells += ["-", "-", "-"]
            continue
        finish_us, over = found.finish_s * 1e6, found.finish_s / bound_s(found, column)
        cells += [f"{finish_us:.2f}", str(found.provenance["method"]), f"{over:.4f}"]
        small = parse_size(row.size) < SMALL
        if column == "free":
            limit = row.theirs_us if row.limit_us is None else row.limit_us
            marks += finish_us > limit or (over > FREE and not small and row.limit_us is None)
        else:
            marks += over > WHOLE and not small
    name = f"{row.topology} {row.collective} {row.size}, {row.chunks} a rank"
    seconds = time.process_time() - begin_s
    theirs = "-" if row.theirs_us == float("inf") else f"{row.theirs_us:g}"
    return f"| {name} | {theirs} | {' | '.join(cells)} | {seconds:.1f} | {'beyond' * bool(marks)} |", marks


def solved(row: Row, column: str, methods: Sequence[str] | None, limit_s: float) -> Schedule | None:
    """The quickest verified schedule of all methods."""
    # Free to choose, the table's own chunks are a choice as well; both searches share the limit.
    tried = [row.chunks] if column == "whole" else [None, row.chunks]
    schedules = []
    for chunks in tried:
        problem = Problem(row.collective, load_topology(row.topology), parse_size(row.size), chunks_per_rank=chunks)
        try:
            found = best(problem, Options(time_limit_s=limit_s / len(tried)), methods, plans=False)
        except CollsynError as error:
            print(f"{row.topology} {row.collective}: {error}", file=sys.stderr)
            continue
        schedules += [each.schedule for each in found if each.schedule]
    schedule = min(schedules, key=lambda one: one.finish_s, default=None)
    if schedule is not None:
        verify_schedule(schedule).raise_if_bad()
    return schedule


def bound_s(schedule: Schedule, column: str) -> float:
    """The bound that counts for a column; for whole chunks that of one message each, even where a schedule shares."""
    asked = schedule.collective, schedule.topology, schedule.size_bytes
    return (fluid_bound if column == "free" else chunk_bound)(*asked).time_s


if __name__ == "__main__":
    sys.exit(main())
