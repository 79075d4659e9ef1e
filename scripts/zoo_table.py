"""Synthesizes every collective on a zoo of topologies through the command line and prints finish, bound and gap.

    python scripts/zoo_table.py                          # all collectives, ten topologies, 64M
    python scripts/zoo_table.py --size 256M --topologies torus:8x8 mesh:8x8 hypercube:6 full:8 switch:8 \
        --collectives allgather reducescatter allreduce alltoall

Each row is one run of `collsyn synthesize --json`, what a user gets; the exit code counts failures.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from collsyn.model.kinds import KINDS

TOPOLOGIES = ["ring:8", "full:8", "switch:8", "mesh:4x4", "torus:4x4", "hypercube:4"]
TOPOLOGIES += ["dgx1", "ndv2:2", "dgx2:2", "dgx-a100:2"]


def main() -> int:
    """Print the table; returns the number of rows that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collectives", nargs="+", default=KINDS)
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES)
    parser.add_argument("--size", default="64M")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--time-limit", default=None)
    options = parser.parse_args()
    failures = 0
    print(
        f"{'topology':14} {'collective':14} {'method':14} {'finish us':>12} {'bound us':>12} {'gap':>8} {'wall s':>7}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for topology in options.topologies:
            for collective in options.collectives:
                row = run(collective, topology, options, Path(folder))
                failures += "finish_us" not in row
                print(line(topology, collective, row), flush=True)
    print(f"{failures} failed")
    return failures


def run(collective: str, topology: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One call of the command line; the JSON it printed, or {"error": its message}."""
    command = [sys.executable, "-m", "collsyn.cli", "synthesize", "--collective", collective, "--topology", topology]
    command += ["--size", options.size, "--method", options.method, "--json", "-o", str(folder / "schedule.json")]
    command += ["--time-limit", options.time_limit] if options.time_limit else []
    ranks = number_of_ranks(topology)
    if collective == "alltoallv":
        command += ["--counts", skewed_counts(ranks, folder)]
    if collective == "custom":
        command += ["--spec", neighbours_spec(ranks, folder)]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    wall_s = time.monotonic() - start
    if done.returncode:
        return {"error": f"exit {done.returncode}: {done.stderr.strip().splitlines()[-1:]}", "wall_s": wall_s}
    row: dict[str, Any] = json.loads(done.stdout)
    return {**row, "wall_s": wall_s}


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


def line(topology: str, collective: str, row: dict[str, Any]) -> str:
    """One row of the table."""
    if "finish_us" not in row:
        return f"{topology:14} {collective:14} {row['error']} {row['wall_s']:.1f}"
    numbers = f"{row['finish_us']:12.2f} {row['bound_us']:12.2f} {100 * row['gap']:7.2f}% {row['wall_s']:7.1f}"
    return f"{topology:14} {collective:14} {row['method']:14} {numbers}"


if __name__ == "__main__":
    sys.exit(main())
