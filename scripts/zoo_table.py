"""Synthesizes every collective on a zoo of topologies through the command line and prints times, bounds and gaps.

    python scripts/zoo_table.py                          # all collectives, ten topologies, 64M
    python scripts/zoo_table.py --sizes 1K 64K 1M 64M 1G --collectives allgather reducescatter allreduce alltoall
    python scripts/zoo_table.py --sizes 256M --topologies torus:8x8 mesh:8x8 hypercube:6 full:8 switch:8

Each row is one run of `collsyn synthesize --json`, what a user gets. Gaps are those of the simulated plan (at most 32
thread blocks a rank, pieces of 16 KiB or more) and of the schedule, to the strongest bound known: the fluid one or that
on allreduces along trees. Below stand the median, the 90th percentile and the maximum of the plans' gaps at each size.
The exit code counts failures.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from collsyn.model.kinds import KINDS

TOPOLOGIES = ["ring:8", "full:8", "switch:8", "mesh:4x4", "torus:4x4", "hypercube:4"]
TOPOLOGIES += ["dgx1", "ndv2:2", "dgx2:2", "dgx-a100:2"]


def main() -> int:
    """Print the table; returns the number of rows that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collectives", nargs="+", default=KINDS)
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES)
    parser.add_argument("--sizes", nargs="+", default=["64M"])
    parser.add_argument("--output", help="also write the rows as lines of JSON")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--time-limit", default=None)
    options = parser.parse_args()
    failures = 0
    titles = ("finish us", "plan us", "bound us", "gap", "plan gap", "wall s", "CPU s")
    print(f"{'size':5} {'topology':12} {'collective':14} {'method':18}", *(f"{title:>10}" for title in titles))
    gaps: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in options.sizes:
            for topology in options.topologies:
                for collective in options.collectives:
                    row = run(collective, topology, size, options, Path(folder))
                    failures += "finish_us" not in row
                    print(line(topology, collective, size, row), flush=True)
                    if options.output:
                        with open(options.output, "a") as stream:
                            stream.write(json.dumps({"size": size, "topology": topology, **row}) + "\n")
                    if row.get("plan_us"):
                        gaps.setdefault(size, []).append(row["plan_us"] / strongest_us(row) - 1)
    for size, found in gaps.items():
        print(summary_line(size, found))
    print(f"{failures} failed")
    return failures


def strongest_us(row: dict[str, Any]) -> float:
    """The larger of the bounds that hold for every schedule."""
    return float(max(row["bound_us"], row.get("tree_bound_us") or 0.0))


def summary_line(size: str, gaps: Sequence[float]) -> str:
    """Median, 90th percentile (the least value that nine of ten rows do not exceed) and maximum."""
    ascending = sorted(gaps)
    ninth = ascending[-(-9 * len(ascending) // 10) - 1]
    middle, most = 100 * median(ascending), 100 * ascending[-1]
    return (
        f"{size:5} {len(gaps)} plans: median gap {middle:.2f}%, 90th percentile {100 * ninth:.2f}%, maximum {most:.2f}%"
    )


def run(collective: str, topology: str, size: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One call of the command line; the JSON it printed, or {"error": its message}."""
    command = [sys.executable, "-m", "collsyn.cli", "synthesize", "--collective", collective, "--topology", topology]
    command += ["--size", size, "--method", options.method, "--json", "-o", str(folder / "schedule.json"), "--no-cache"]
    command += ["--time-limit", options.time_limit] if options.time_limit else []
    ranks = number_of_ranks(topology)
    if collective == "alltoallv":
        command += ["--counts", skewed_counts(ranks, folder)]
    if collective == "custom":
        command += ["--spec", neighbours_spec(ranks, folder)]
    start, before = time.monotonic(), children_cpu_s()
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    spent = {"wall_s": time.monotonic() - start, "cpu_s": children_cpu_s() - before}
    if done.returncode:
        return {"error": f"exit {done.returncode}: {done.stderr.strip().splitlines()[-1:]}", **spent}
    row: dict[str, Any] = json.loads(done.stdout)
    return {**row, **spent}


def children_cpu_s() -> float:
    """Seconds that processes which this one started, and theirs, have used up."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def number_of_ranks(topology: str) -> int:
    """Ranks of a topology, as `collsyn topology show` says."""
    command = [sys.executable, "-m", "collsyn.cli", "topology", "show", topology, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return int(json.loads(done.stdout)["num_ranks"])


def skewed_counts(ranks: int, folder: Path) -> str:
    """A count matrix in which some ranks send much, some little and some pairs nothing."""
    counts = [[(s * 7 + d * 3) % 5 for d in range(ranks)] for s in range(ranks)]
    path = folder / f"counts{ranks}.json"
    path.write_text(json.dumps({"counts": counts}))
    return str(path)


def neighbours_spec(ranks: int, folder: Path) -> str:
    """A custom collective: every rank gives half of its buffer to each of the two ranks behind it (a halo)."""
    chunks = [
        {"from": [r], "to": [(r + step) % ranks], "length": "1/2", "in_offset": offset, "out_offset": offset}
        for r in range(ranks)
        for step, offset in ((1, "0"), (2, "1/2"))
    ]
    path = folder / f"custom{ranks}.json"
    path.write_text(json.dumps({"schema": "collsyn-collective/1", "kind": "custom", "ranks": ranks, "chunks": chunks}))
    return str(path)


def line(topology: str, collective: str, size: str, row: dict[str, Any]) -> str:
    """One row of the table."""
    start = f"{size:5} {topology:12} {collective:14}"
    if "finish_us" not in row:
        return f"{start} {row['error']} {row['wall_s']:.1f}"
    bound = strongest_us(row)
    plan = f"{'-':>10}" if row["plan_us"] is None else f"{row['plan_us']:10.2f}"
    plan_gap = f"{'-':>10}" if row["plan_us"] is None else f"{100 * (row['plan_us'] / bound - 1):9.2f}%"
    gap = f"{100 * (row['finish_us'] / bound - 1):9.2f}%"
    spent = f"{row['wall_s']:10.1f} {row['cpu_s']:10.1f}"
    return f"{start} {row['method']:18} {row['finish_us']:10.2f} {plan} {bound:10.2f} {gap} {plan_gap} {spent}"


if __name__ == "__main__":
    sys.exit(main())
