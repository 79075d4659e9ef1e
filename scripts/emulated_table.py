"""Runs schedules on emulated machines: measured times against simulated ones, and methods against each other.

    python scripts/emulated_table.py                     # allgather and allreduce, four machines, 64K and 64M
    python scripts/emulated_table.py --machines dgx1 --sizes 1M --collectives alltoall

Each row is one run of `collsyn bench --emulate ... --json`: times in microseconds of the machine, the slowest rank's,
median of the calls; `off` is measured over simulated less 1. Where another method exists, `gain` is its measured time
over that of auto, `predicted` the same of simulated times. Fails where a byte is wrong, where a time is off by more
than 15%, or where less than 0.8 of a predicted gain was measured; the exit code counts these rows.
"""

import argparse
import json
import subprocess
import sys
from typing import Any

MACHINES = ["dgx1", "dgx1/0,1,4", "mesh:4x4", "ndv2:2"]
TOLERANCE, LEAST_GAIN = 0.15, 0.8


def main() -> int:
    """Print the table; returns the number of rows that miss a mark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", nargs="+", default=MACHINES, help="topologies; TOPO/0,1,4 is a subset of ranks")
    parser.add_argument("--collectives", nargs="+", default=["allgather", "allreduce"])
    parser.add_argument("--sizes", nargs="+", default=["64K", "64M"])
    parser.add_argument("--methods", nargs="+", default=["ring", "direct"], help="what auto is compared with")
    parser.add_argument("--iters", default="3")
    options = parser.parse_args()
    print(
        f"{'machine':12} {'collective':13} {'size':>5} {'method':16} {'measured':>10} {'simulated':>10} {'off':>6} ",
        end="",
    )
    print(f"{'bound':>10} {'wrong':>5} {'gain':>6} {'predicted':>9}  verdict")
    missed = 0
    for machine in options.machines:
        for collective in options.collectives:
            for size in options.sizes:
                auto = row(machine, collective, size, "auto", options.iters)
                missed += show(machine, collective, size, auto, None)
                for method in options.methods:
                    other = row(machine, collective, size, method, options.iters)
                    missed += show(machine, collective, size, other, auto)
    print(f"{missed} missed a mark")
    return missed


def row(machine: str, collective: str, size: str, method: str, iters: str) -> dict[str, Any]:
    """One run of the command line: its row of JSON, or {"reason": why there is no such schedule}."""
    topology, _, subset = machine.partition("/")
    command = [sys.executable, "-m", "collsyn.cli", "bench", "--collective", collective, "--method", method]
    command += ["--emulate", topology, *(["--subset", subset] if subset else [])]
    command += ["-b", size, "-e", size, "-n", iters, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    try:
        found: dict[str, Any] = json.loads(done.stdout)["results"][0]
    except (json.JSONDecodeError, LookupError):
        last = done.stderr.strip().splitlines()[-1:]
        return {
            "method": method,
            "reason": last[0] if last else f"exit code {done.returncode}",
            "code": done.returncode,
        }
    return found


def show(machine: str, collective: str, size: str, found: dict[str, Any], auto: dict[str, Any] | None) -> int:
    """Print a row, compared with that of auto; whether it misses a mark."""
    head = f"{machine:12} {collective:13} {size:>5} "
    if "reason" in found:
        print(f"{head}{found['method']:16} {found['reason']}", flush=True)
        # Some machines have no ring, or no links for direct; auto must always find something.
        return int(auto is None)
    ways = [found[way] for way in ("out_of_place", "in_place") if found[way] is not None]
    wrong = sum(way["nwrong"] for way in ways)
    measured, simulated = found["out_of_place"]["time"], found["simulated_us"]
    name = f"auto: {found['method']}" if auto is None else found["method"]
    if measured is None:
        print(f"{head}{name:16} {wrong} wrong elements", flush=True)
        return 1
    off = measured / simulated - 1
    line = f"{head}{name:16} {measured:10.2f} {simulated:10.2f} {off:+6.1%} {found['bound_us']:10.2f} {wrong:5g} "
    ok = not wrong and abs(off) <= TOLERANCE
    if auto is not None and "reason" not in auto and auto["out_of_place"]["time"] is not None:
        gain, predicted = measured / auto["out_of_place"]["time"], simulated / auto["simulated_us"]
        ok = ok and gain >= LEAST_GAIN * predicted
        line += f"{gain:5.2f}x {predicted:8.2f}x  "
    else:
        line += f"{'':17}  "
    print(line + ("ok" if ok else "MISSED"), flush=True)
    return int(not ok)


if __name__ == "__main__":
    sys.exit(main())
