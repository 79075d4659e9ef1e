"""Everything that a run must keep to, row by row: right bytes, the limits of rules, and the times of a baseline."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from collsyn.bench.document import document
from collsyn.bench.history import PastRun
from collsyn.bench.junit import case_name
from collsyn.bench.regression import QUANTILE, Verdict, judge
from collsyn.bench.result import BenchResult, Row
from collsyn.bench.run import Benchmark
from collsyn.bench.suite import Rule
from collsyn.errors import Regression
from collsyn.model.metrics import busbw_gb_s
from collsyn.units import s_to_us


@dataclass(frozen=True)
class Assessment:
    """What was found: a verdict a row (none without a baseline), and complaints, a tuple of lines a row."""

    result: BenchResult
    verdicts: Sequence[Verdict]
    complaints: Sequence[tuple[str, ...]]

    @property
    def regressions(self) -> list[str]:
        """Complaints other than wrong bytes, each with the row that it is about."""
        rows = zip(self.result.rows, self.complaints, strict=True)
        return [f"{case_name(row)}: {line}" for row, lines in rows if not _is_wrong(row) for line in lines]

    def raise_if_regressed(self, what: str) -> None:
        """Raise Regression, which begins with `what`, if a limit or the baseline is missed."""
        found = self.regressions
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise Regression(f"{what}: {found[0]}{more}")


def assess(
    result: BenchResult,
    runs: Sequence[PastRun],
    rules: Sequence[Rule],
    seed: int = 0,
    again: Callable[[Sequence[Row]], BenchResult] | None = None,
) -> Assessment:
    """Hold a run against rules and, if there are any, earlier runs.

    Rows that look slower are run once more by `again`, which must give the same rows: what was noise does not come
    twice. Their samples of both runs count, and the second alone must be slower than the rule allows, too.
    """
    verdicts = judge(result.rows, runs, rules, seed) if runs else []
    suspects = [index for index, verdict in enumerate(verdicts) if verdict.regressed]
    if suspects and again is not None:
        second = again([result.rows[index] for index in suspects])
        alone = dict(zip(suspects, judge(second.rows, runs, rules, seed), strict=True))
        rows = list(result.rows)
        for index, row in zip(suspects, second.rows, strict=True):
            rows[index] = merged(rows[index], row)
        result = replace(result, rows=rows)
        verdicts = [
            replace(verdict, confirmed=alone[index].is_slow) if index in alone else verdict
            for index, verdict in enumerate(judge(rows, runs, rules, seed))
        ]
    complaints = []
    for index, row in enumerate(result.rows):
        lines = _limits(row, rules)
        if verdicts and verdicts[index].regressed:
            lines.append(told(verdicts[index]))
        complaints.append(tuple(lines))
    return Assessment(result, verdicts, complaints)


def assessed_document(assessment: Assessment) -> dict[str, Any]:
    """The JSON of the result, each row with its complaints and, against a baseline, with what was found there."""
    whole = document(assessment.result)
    for index, row in enumerate(whole["results"]):
        row["complaints"] = list(assessment.complaints[index])
        row["baseline"] = _verdict(assessment.verdicts[index]) if assessment.verdicts else None
    return whole


def _verdict(verdict: Verdict) -> dict[str, Any]:
    numbers = {name: getattr(verdict, name) for name in ("ratio", "low", "high", "effect", "resolution")}
    return {
        "verdict": verdict.word.lower(),
        "runs": verdict.runs,
        **(numbers if verdict.runs else dict.fromkeys(numbers)),
        "rule": verdict.rule.name,
        "max_slowdown": verdict.rule.max_slowdown,
    }


def merged(first: Row, second: Row) -> Row:
    """One row from two runs of it, one after the other."""
    timing, later = first.out_of_place, second.out_of_place
    if timing.time_s is None or later.time_s is None:
        return first if timing.time_s is None else second
    blocks_s = timing.blocks_s + later.blocks_s
    return replace(
        first,
        out_of_place=replace(timing, time_s=float(np.median(blocks_s)), blocks_s=blocks_s),
        launches=first.launches + second.launches,
        iterations=first.iterations + second.iterations,
        yardstick_s=first.yardstick_s + second.yardstick_s,
    )


def those_of(benchmarks: Sequence[Benchmark], rows: Sequence[Row]) -> list[Benchmark]:
    """The benchmarks that gave these rows, at their sizes only."""
    chosen = []
    for benchmark in benchmarks:
        source = benchmark.source
        origin = (benchmark.name, source.label, source.collective.kind)
        sizes = [row.asked_bytes for row in rows if (row.benchmark, row.source, row.collective) == origin]
        if sizes:
            chosen.append(replace(benchmark, options=replace(benchmark.options, sizes=tuple(sizes))))
    return chosen


def told(verdict: Verdict) -> str:
    """A verdict as a line."""
    if not verdict.runs:
        return "is not in the baseline"
    return (
        f"takes {verdict.ratio:.3f} times as long as in {verdict.runs} earlier run{'s' if verdict.runs > 1 else ''} "
        f"(at least {verdict.low:.3f}; rule {verdict.rule.name} allows {1 + (verdict.rule.max_slowdown or 0):g})"
    )


def _limits(row: Row, rules: Sequence[Rule]) -> list[str]:
    """What is wrong with a row by itself. Times are judged by their lower quarter, which noise does not reach."""
    lines = []
    for way, timing in (("out of place", row.out_of_place), ("in place", row.in_place)):
        if timing is not None and timing.wrong:
            lines.append(f"{timing.wrong} wrong elements {way}")
    if not row.out_of_place.blocks_s:
        return lines
    time_s = float(np.quantile(row.out_of_place.blocks_s, QUANTILE))
    for rule in rules:
        if not rule.covers(row):
            continue
        busbw = busbw_gb_s(row.collective, row.group_size, row.size_bytes, time_s)
        if rule.min_busbw_gb_s is not None and busbw < rule.min_busbw_gb_s:
            lines.append(f"bus bandwidth {busbw:.3g} GB/s; rule {rule.name} wants {rule.min_busbw_gb_s:g}")
        if rule.max_over_simulated is not None and row.simulated_s is not None:
            ratio = time_s / row.simulated_s
            if ratio > rule.max_over_simulated:
                lines.append(
                    f"{s_to_us(time_s):.1f} us are {ratio:.2f} times the simulated time; "
                    f"rule {rule.name} allows {rule.max_over_simulated:g}"
                )
    return lines


def _is_wrong(row: Row) -> bool:
    return any(timing.wrong for timing in row.timings)
