"""What makes `collsyn bench` a gate for changes: suites, baselines, histories and JUnit."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ._output import note, table

if TYPE_CHECKING:
    from collsyn.bench.gate import Assessment
    from collsyn.bench.history import PastRun
    from collsyn.bench.result import BenchResult, Row
    from collsyn.bench.run import Benchmark
    from collsyn.bench.suite import Rule, Suite

F = TypeVar("F", bound=Callable[..., Any])

# What a suite says itself.
_OF_SUITES = {
    "files": "FILE",
    "collective": "--collective",
    "method": "--method",
    "minbytes": "-b",
    "maxbytes": "-e",
    "stepfactor": "-f",
    "stepbytes": "-i",
    "datatype": "-d",
    "op": "-o",
    "root": "-r",
}


def gate_options(function: F, /) -> F:
    """`--suite`, `--launches`, `--baseline`, `--max-slowdown`, `--append`, `--junit`; the command gets `gate: Gate`."""
    options = [
        click.option("--suite", metavar="FILE|NAME", help="Run what a suite file lists, and keep to its rules."),
        click.option(
            "--launches",
            type=click.IntRange(1, 1000),
            metavar="N",
            help="Start the ranks N times, in turns of all sizes. [default: 1; more where runs are compared]",
        ),
        click.option(
            "--baseline",
            metavar="FILE",
            help="Compare with earlier runs (from --output or --append); exit code 7 if slower beyond noise.",
        ),
        click.option(
            "--max-slowdown",
            type=click.FloatRange(0, 10, min_open=True),
            metavar="SHARE",
            help="How much slower than the baseline is still no regression, where the suite does not say.  "
            "[default: 0.05]",
        ),
        click.option("--append", metavar="FILE.jsonl", help="Add the run as a line of JSON, with the commit."),
        click.option("--junit", metavar="FILE.xml", help="Write the rows as test cases, for CI servers."),
    ]

    @functools.wraps(function)
    def with_gate(*args: Any, **kwargs: Any) -> Any:
        names = ("suite", "launches", "baseline", "max_slowdown", "append", "junit")
        return function(*args, gate=Gate(**{name: kwargs.pop(name) for name in names}), **kwargs)

    decorated: Any = with_gate
    for option in reversed(options):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


@dataclass
class Gate:
    """The options, and what is read for them before anything runs."""

    suite: str | None
    launches: int | None
    baseline: str | None
    max_slowdown: float | None
    append: str | None
    junit: str | None
    plan: "Suite | None" = None
    runs: "list[PastRun]" = field(default_factory=list)
    speaks: bool = True

    @property
    def compares(self) -> bool:
        """Whether a run is to be compared with others, now or later."""
        return self.suite is not None or self.baseline is not None or self.append is not None

    def open(self, speaks: bool) -> None:
        """Read suite and baseline, and see that files can be written; raises InputError and UsageError."""
        from collsyn.files import require_writable

        self.speaks = speaks
        if self.suite is not None:
            context = click.get_current_context()
            for name, shown in _OF_SUITES.items():
                if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
                    raise click.UsageError(f"--suite and {shown} exclude each other; the suite says what is run")
            from collsyn.bench.suite import find_suite, read_suite

            self.plan = read_suite(find_suite(self.suite))
        if self.baseline is not None:
            from collsyn.bench.history import read_runs

            self.runs = read_runs(self.baseline)
            if speaks:
                self._note_other_machines()
        for path in (self.append, self.junit):
            if path is not None and speaks:
                require_writable(path)

    def _note_other_machines(self) -> None:
        from collsyn.runtime.facts import machine_facts

        others = sum(run.machine not in ({}, machine_facts()) for run in self.runs)
        if others:
            note(f"{self.baseline}: {others} of {len(self.runs)} runs were on another kind of machine than this")

    def chosen_launches(self, emulated: bool) -> int:
        """How often ranks are started."""
        from collsyn.bench.suite import DEFAULT_LAUNCHES, EMULATED_LAUNCHES

        of_suite = self.plan.launches if self.plan is not None else None
        usual = (EMULATED_LAUNCHES if emulated else DEFAULT_LAUNCHES) if self.compares else 1
        return self.launches or of_suite or usual

    @property
    def rules(self) -> "tuple[Rule, ...]":
        """Rules of the suite, then that of the option."""
        from collsyn.bench.suite import Rule

        own = (Rule(name="--max-slowdown", max_slowdown=self.max_slowdown),) if self.max_slowdown is not None else ()
        return (*(self.plan.rules if self.plan is not None else ()), *own)

    def assess(self, result: "BenchResult", benchmarks: "list[Benchmark]", launches: int, seed: int) -> "Assessment":
        """Hold the run against rules and baseline; rows that look slower are run once more."""
        from collsyn.bench.gate import assess, those_of
        from collsyn.bench.run import bench_all

        def again(rows: "Sequence[Row]") -> "BenchResult":
            if self.speaks:
                note(f"running {len(rows)} of {len(result.rows)} rows again, which look slower")
            return bench_all(those_of(benchmarks, rows), launches=launches)

        return assess(result, self.runs, self.rules, seed, again)

    def show(self, assessment: "Assessment") -> None:
        """Print the comparison with the baseline."""
        if not assessment.verdicts:
            return
        from collsyn.bench.junit import case_name
        from collsyn.bench.regression import drift

        cells: list[list[str | float | int | None]] = []
        for row, verdict in zip(assessment.result.rows, assessment.verdicts, strict=True):
            found = [verdict.runs, verdict.ratio, verdict.low, verdict.high, verdict.resolution, verdict.effect]
            cells.append([case_name(row), *(found if verdict.runs else [0, *[None] * 5]), verdict.word])
        columns = ["row", "runs", "x baseline", "low", "high", "sees from", "effect", ""]
        table(f"Against {self.baseline}", columns, cells)
        machine = drift(assessment.result.rows, self.runs)
        if machine is not None:
            note(f"the machine itself: a plain exchange takes {machine:.2f} times as long as in the baseline")

    def check_compared(self, assessment: "Assessment") -> None:
        """Raise InputError where nothing could be compared; say how many earlier rows were not run."""
        if not self.runs:
            return
        from collsyn.bench.history import Key
        from collsyn.errors import InputError

        left = set(self.runs[-1].samples) - {Key.of(row) for row in assessment.result.rows}
        if left:
            note(f"{self.baseline}: of the rows of the last run there, not run now: {len(left)}")
        if not any(verdict.runs for verdict in assessment.verdicts):
            raise InputError(
                f"{self.baseline}: has none of the rows that were run; expected runs of the same benchmarks"
            )

    def write(self, assessment: "Assessment") -> None:
        """Write the files that were asked for."""
        if self.append is not None:
            from collsyn.bench.history import append_run, current_commit

            commit = current_commit()
            append_run(self.append, assessment.result, assessment.regressions, commit)
            note(f"added a line to {self.append} for {commit or 'no commit'}")
        if self.junit is not None:
            from collsyn.bench.gate import told
            from collsyn.bench.junit import junit_text
            from collsyn.files import write_atomic

            name = self.plan.name if self.plan is not None else "collsyn"
            lines = {index: told(verdict) for index, verdict in enumerate(assessment.verdicts)}
            write_atomic(self.junit, junit_text(assessment.result, name, dict(enumerate(assessment.complaints)), lines))
            note(f"wrote {self.junit}")
