"""Exports the best schedule of every collective on some machines, reads every file back, and judges it.

    python scripts/export_table.py                                     # all, 20 minutes of one core
    python scripts/export_table.py --topologies dgx1 --sizes 1M --dialects azure

A row is a collective, a machine, a size and a dialect of MSCCL XML, or MSCCL++ JSON: simulated time of the plan and of
the file that was read back, their ratio, thread blocks and steps of the largest GPU, and what `collsyn verify` says of
the file, or the line with which the export was refused. The exit code counts the files that are wrong.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from collsyn import load_topology, lower, synthesize
from collsyn.check.simulate_plan import simulate_plan
from collsyn.errors import CollsynError, InputError
from collsyn.export.msccl import DIALECTS
from collsyn.export.msccl_check import read_msccl
from collsyn.export.mscclpp_check import read_mscclpp
from collsyn.export.table import Options, exporter
from collsyn.model.kinds import KINDS
from collsyn.model.schedule import Schedule
from collsyn.units import s_to_us

JSON = "mscclpp-json"
TOPOLOGIES = ["full:8", "dgx1", "dgx-a100:1", "ndv2:2", "dgx-a100:2", "mi250:1", "torus:4x4"]
COLLECTIVES = [kind for kind in KINDS if kind not in ("alltoallv", "custom")]


def main() -> int:
    """Print the table; returns the number of files that are wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collectives", nargs="+", default=COLLECTIVES)
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES)
    parser.add_argument("--sizes", nargs="+", default=["64K", "1M", "64M"])
    parser.add_argument("--dialects", nargs="+", default=[*DIALECTS, JSON], help=f"of MSCCL XML, or {JSON}")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--time-limit", type=float, help="seconds of synthesis a row (default: that of auto)")
    options = parser.parse_args()
    wrong = 0
    head = f"{'topology':11} {'collective':13} {'size':>5} {'method':10} {'dialect':12} {'plan us':>10} {'file us':>10}"
    print(f"{head} {'ratio':>6} {'tb':>4} {'steps':>5} {'s':>5}  verdict")
    for topology in options.topologies:
        for kind in options.collectives:
            for size in options.sizes:
                wrong += row(topology, kind, size, options)
    print(f"{wrong} wrong")
    return wrong


def row(topology: str, kind: str, size: str, options: argparse.Namespace) -> int:
    """All dialects of one schedule; returns how many files are wrong."""
    try:
        schedule = synthesize(
            kind, load_topology(topology), size, method=options.method, time_limit_s=options.time_limit
        )
    except CollsynError as error:
        print(f"{topology:11} {kind:13} {size:>5} refused: {error}", flush=True)
        return 0
    plan_s = simulate_plan(lower(schedule), schedule.topology, schedule.size_bytes).finish_s
    made = str(schedule.provenance.get("method"))
    wrong = 0
    for dialect in options.dialects:
        begin = time.perf_counter()
        cells = f"{topology:11} {kind:13} {size:>5} {made:10} {dialect:12} {s_to_us(plan_s):10.2f}"
        try:
            facts = judged(schedule, dialect)
        except InputError as error:
            print(f"{cells} refused: {error}", flush=True)
            continue
        wrong += not facts["ok"]
        took_s = time.perf_counter() - begin
        numbers = f"{s_to_us(facts['time_s']):10.2f} {facts['time_s'] / plan_s:6.3f} {facts['tb']:4} {facts['steps']:5}"
        print(f"{cells} {numbers} {took_s:5.1f}  {'right' if facts['ok'] else facts['why']}", flush=True)
    return wrong


def judged(schedule: Schedule, dialect: str) -> dict[str, Any]:
    """One file, written, read back, verified and simulated; raises InputError where the format cannot say it."""
    name, given = (JSON, None) if dialect == JSON else ("msccl-xml", dialect)
    [file] = exporter(name)([(Path("schedule"), schedule)], Options(dialect=given))
    program = read_mscclpp(file.content, file.name) if dialect == JSON else read_msccl(file.content, file.name)
    report = program.verify()
    plan = program.plan(schedule.size_bytes)
    return {
        "ok": report.ok,
        "why": str(report.problems[0]) if report.problems else "",
        "time_s": simulate_plan(plan, schedule.topology, schedule.size_bytes).finish_s,
        "tb": file.facts["blocks"],
        "steps": file.facts["steps"],
    }


if __name__ == "__main__":
    raise SystemExit(main())
