#!/usr/bin/env python3
"""How often `bench --baseline` raises false alarms, and how often it finds a slowdown of 10% of one collective.

    python scripts/regression_power.py emulated          # one class of links of an emulated machine is slower
    python scripts/regression_power.py host --ranks 2    # ranks of this machine, with a busy wait after each call

Runs are those of `bench --suite --baseline`: first those of the baseline, then unchanged ones and ones with a slowdown
in turn. What was found is kept in files, so that a script that was ended (`--limit`) goes on where it was.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from collsyn.bench import worker
from collsyn.bench.document import document
from collsyn.bench.gate import assess, those_of
from collsyn.bench.history import append_run, read_runs
from collsyn.bench.job import BenchOptions
from collsyn.bench.result import BenchResult, Row
from collsyn.bench.run import Benchmark, bench_all
from collsyn.bench.sources import Preparation, Source
from collsyn.check.simulate_plan import simulate_plan
from collsyn.model.topology import Topology
from collsyn.portfolio.auto import best_schedule
from collsyn.runtime.host import PreparedPlan
from collsyn.synth.problem import Options, Problem
from collsyn.topology.resolve import load_topology

MIB = 1 << 20
SLOWDOWN = 1.1


class Emulated:
    """Four GPUs of a DGX-1, whose pairs have one or two NVLinks; the single ones are made slower."""

    launches = 1

    def __init__(self, ranks: int) -> None:
        self.machine = load_topology("dgx1").subset(range(ranks))
        options = BenchOptions(
            sizes=(MIB,), iterations=2, warmup=1, average="max", in_place=False, emulate=self.machine, check=False
        )
        self.benchmarks = [
            Benchmark(made(kind, self.machine, mib * MIB), replace(options, sizes=(mib * MIB,)), f"{kind} of {mib} MiB")
            for kind, mib in (("allgather", 1), ("allreduce", 1), ("allreduce", 4))
        ]

    def run(self, slow: str | None, benchmarks: Sequence[Benchmark] | None = None) -> BenchResult:
        """One run, with the collective `slow` (None: none) on slower links."""
        chosen = [
            replace(one, options=replace(one.options, emulate=self.slower(one))) if one.name == slow else one
            for one in benchmarks or self.benchmarks
        ]
        return bench_all(chosen, launches=self.launches)

    def slower(self, benchmark: Benchmark) -> Topology:
        """The machine with a class of links so much slower that the collective takes a tenth longer there."""
        size = benchmark.options.sizes[-1]
        plan = Preparation(benchmark.source, 0, self.machine).at(size).plan
        usual_s = simulate_plan(plan, self.machine, size).finish_s
        beta = self.machine.beta_s_per_byte
        slowest = beta >= beta.max() * 0.99

        def machine(factor: float) -> Topology:
            return replace(self.machine, beta_s_per_byte=np.where(slowest, beta * factor, beta))

        low, high = 1.0, 4.0
        for _ in range(30):
            middle = (low + high) / 2
            if simulate_plan(plan, machine(middle), size).finish_s < SLOWDOWN * usual_s:
                low = middle
            else:
                high = middle
        return machine(high)


class Host:
    """Ranks of this machine; each waits after each call for a tenth of the time that it took."""

    launches = 14

    def __init__(self, ranks: int) -> None:
        machine = load_topology(f"full:{ranks}")
        options = BenchOptions(sizes=(MIB, 4 * MIB), iterations=40, warmup=2, in_place=False, yardstick=True)
        self.benchmarks = [Benchmark(made(kind, machine, MIB), options, kind) for kind in ("allgather", "allreduce")]

    def run(self, slow: str | None, benchmarks: Sequence[Benchmark] | None = None) -> BenchResult:
        """One run, with the collective `slow` (None: none) slowed down."""
        usual = worker._Case._timer

        def timer(case: Any, plan: PreparedPlan) -> Any:
            made = usual(case, plan)
            if case.plan.collective.kind == slow:
                made._call = waiting(made._call)
            return made

        # Ranks are forked, so they have what this process has.
        with patch.object(worker._Case, "_timer", timer):
            return bench_all(benchmarks or self.benchmarks, launches=self.launches)


def made(kind: str, machine: Topology, size_bytes: int) -> Source:
    """The best schedule, made once for all runs."""
    schedule = best_schedule(Problem(kind, machine, size_bytes), Options())
    return Source("auto", schedule.provenance["method"], schedule.collective, machine, schedule=schedule)


def waiting(call: Callable[[], Any]) -> Callable[[], None]:
    """The call, and a busy wait for a tenth of its time."""

    def slower() -> None:
        begin = time.perf_counter()
        call()
        end = begin + SLOWDOWN * (time.perf_counter() - begin)
        while time.perf_counter() < end:
            pass

    return slower


def main() -> None:
    """Go on with the runs, and print what was found so far."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("condition", choices=["emulated", "host"])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--baseline", type=int, default=6, help="runs of the baseline")
    parser.add_argument("--unchanged", type=int, default=20)
    parser.add_argument("--planted", type=int, default=10)
    parser.add_argument("--launches", type=int, help="launches of a run")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no run is begun")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("collsyn-out/power"), help="folder for what was found"
    )
    args = parser.parse_args()
    condition = (Emulated if args.condition == "emulated" else Host)(args.ranks)
    condition.launches = args.launches or condition.launches
    stem = f"{args.condition}-{args.ranks}"
    past, found = (args.output / f"{stem}-{what}.jsonl" for what in ("baseline", "found"))
    args.output.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + args.limit
    while count(past) < args.baseline and time.monotonic() < end:
        begin = time.monotonic()
        append_run(past, condition.run(None), [], None)
        print(f"baseline {count(past)} of {args.baseline}, {time.monotonic() - begin:.0f} s", flush=True)
    plan = planned(args.unchanged, args.planted, [one.name for one in condition.benchmarks])
    while count(past) >= args.baseline and count(found) < len(plan) and time.monotonic() < end:
        slow = plan[count(found)]
        begin = time.monotonic()
        again = partial(run_again, condition, slow)
        assessment = assess(condition.run(slow), read_runs(past), (), again=again)
        verdicts: list[list[Any]] = [
            [v.key.benchmark, v.key.size_bytes, v.ratio, v.low, v.resolution, v.word] for v in assessment.verdicts
        ]
        line = {"slow": slow, "verdicts": verdicts, "document": document(assessment.result)}
        with found.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        told = ", ".join(f"{name} {size >> 20}M {ratio:.3f} {word}" for name, size, ratio, _, _, word in verdicts)
        print(f"{slow or 'unchanged'} ({time.monotonic() - begin:.0f} s): {told}", flush=True)
    report(stem, [json.loads(line) for line in found.read_text().splitlines()] if found.exists() else [])


def run_again(condition: "Emulated | Host", slow: str | None, rows: Sequence[Row]) -> BenchResult:
    """These rows once more."""
    return condition.run(slow, those_of(condition.benchmarks, rows))


def planned(unchanged: int, planted: int, names: Sequence[str]) -> list[str | None]:
    """Which collective is slow in each run (None: none), ones with and without in turn."""
    kinds: list[str | None] = [None] * unchanged
    step = max(unchanged // max(planted, 1), 1)
    for index in range(planted):
        kinds.insert(min(index * (step + 1) + step, len(kinds)), names[index % len(names)])
    return kinds


def count(path: Path) -> int:
    """Lines of a file."""
    return len(path.read_text().splitlines()) if path.exists() else 0


def report(stem: str, lines: Sequence[dict[str, Any]]) -> None:
    """Alarms where nothing was slow, and slowdowns found."""
    unchanged = [line for line in lines if line["slow"] is None]
    planted = [line for line in lines if line["slow"] is not None]
    false = sum(any(word == "SLOWER" for *_, word in line["verdicts"]) for line in unchanged)
    hit = sum(any(v[0] == line["slow"] and v[-1] == "SLOWER" for v in line["verdicts"]) for line in planted)
    stray = sum(any(v[0] != line["slow"] and v[-1] == "SLOWER" for v in line["verdicts"]) for line in planted)
    print(f"{stem}: alarms in {false} of {len(unchanged)} unchanged runs; found in {hit} of {len(planted)} slowed runs")
    print(f"{stem}: alarms about another collective in {stray} of {len(planted)} slowed runs")


if __name__ == "__main__":
    main()
