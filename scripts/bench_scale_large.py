#!/usr/bin/env python3
"""Allgathers of 40,000 ranks: what their synthesis and verification cost, as tables in docs/large.md.

Runs `collsyn synthesize` and `collsyn verify` in processes of their own and measures wall time, CPU time, resident
memory and bytes on disk. Without arguments the mesh of 200 x 200 and two tori; or topologies of one's own.

    python scripts/bench_scale_large.py [--folder DIR] [--collective C] [TOPOLOGY ...]
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

TOPOLOGIES = ("mesh:200x200", "torus:200x200", "torus:32x32x40")


def measured(command: list[str], output: Path) -> dict[str, float]:
    """Run a command, its output to a file; seconds and bytes that it took. Ends the script if it fails."""
    begin = time.perf_counter()
    with open(output, "wb") as stream:
        actions = [(os.POSIX_SPAWN_DUP2, stream.fileno(), 1)]
        process = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
        _, status, used = os.wait4(process, 0)
    if status:
        raise SystemExit(f"{' '.join(command)}: exit {os.waitstatus_to_exitcode(status)}")
    wall_s = time.perf_counter() - begin
    return {"wall_s": wall_s, "cpu_s": used.ru_utime + used.ru_stime, "memory_gb": used.ru_maxrss * 1024 / 1e9}


def main() -> None:
    """Print a row for every topology."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topologies", nargs="*", default=list(TOPOLOGIES), metavar="TOPOLOGY")
    parser.add_argument("--collective", default="allgather")
    parser.add_argument("--folder", default=None, help="where the schedules are written and removed again")
    asked = parser.parse_args()
    tool = [sys.executable, "-m", "collsyn.cli"]
    titles = ("topology", "sends", "of chunk bound", "synthesis s", "wall s", "CPU s", "memory GB", "disk GB")
    print("| " + " | ".join((*titles, "verify s", "CPU s", "memory GB")) + " |")
    print("|" + "---|" * (len(titles) + 3))
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        for topology in asked.topologies:
            schedule, output = Path(folder) / "schedule.large", Path(folder) / "output"
            options = ["--collective", asked.collective, "--topology", topology, "--size", "1G", "--chunks", "1"]
            made = measured([*tool, "synthesize", *options, "-o", str(schedule), "--json"], output)
            document = json.loads(output.read_text())
            checked = measured([*tool, "verify", str(schedule)], output)
            row = (
                topology,
                document["num_sends"],
                f"{1 / (1 + document['chunk_gap']):.5f}",
                f"{document['synthesis_s']:.1f}",
                *(f"{made[name]:.1f}" for name in ("wall_s", "cpu_s", "memory_gb")),
                f"{schedule.stat().st_size / 1e9:.2f}",
                *(f"{checked[name]:.1f}" for name in ("wall_s", "cpu_s", "memory_gb")),
            )
            print("| " + " | ".join(map(str, row)) + " |", flush=True)
            schedule.unlink()


if __name__ == "__main__":
    main()
