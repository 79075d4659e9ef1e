"""Problems of so many sends that their schedules are not listed: solved, verified and written in forms of their own."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from collsyn.bounds.large import large_bounds
from collsyn.check.large import verify_large
from collsyn.errors import InputError
from collsyn.model.large_file import SUFFIX, LargeSchedule, write_large
from collsyn.model.steps import PHASES
from collsyn.portfolio.auto import _warm_up
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import METHODS, method

# More sends than this are not listed where a method has another form for them.
MANY_SENDS = 20_000_000


class LargeSynthesizer(Protocol):
    """A row of the table that has a form for many sends."""

    def large(self, problem: Problem, options: Options, path: Path | None) -> LargeSchedule:
        """The schedule of an accepted problem; what does not fit the memory lies on the disk of the path."""


@dataclass(frozen=True)
class Large:
    """A verified large schedule, the method that made it and the seconds that were spent."""

    method: str
    schedule: LargeSchedule
    synthesis_s: float
    verify_s: float


def is_large_problem(problem: Problem, name: str, output: str | None) -> bool:
    """Whether a problem is to be solved in a large form: its file is to be one, or its sends are many and a method
    that has such a form is asked for (or `auto`)."""
    if output is not None and output.endswith(SUFFIX):
        return True
    if problem.kind not in PHASES or problem.groups is not None or (name != "auto" and not _has_form(name)):
        return False
    ranks, chunks = problem.topology.num_ranks, problem.chunks_per_rank or 1
    return len(PHASES[problem.kind]) * chunks * ranks * (ranks - 1) > MANY_SENDS


def solve_large(problem: Problem, options: Options, name: str = "auto", output: Path | None = None) -> Large:
    """The schedule of a method (`auto`: the first that serves the problem), found right; written to `output` if given.

    Raises InputError where no method serves the problem or there is no room, and what a method raises.
    """
    problem = problem.at_size()
    names = [row for row in METHODS if _has_form(row)] if name == "auto" else [name]
    if not _has_form(names[0]):
        forms = ", ".join(row for row in METHODS if _has_form(row))
        raise InputError(f"method {name}: has no form for files {SUFFIX}; expected auto or one of {forms}")
    refused = []
    for row in names:
        reason = method(row).accepts(problem)
        if reason is None:
            return _solved(problem, options, row, output)
        refused.append(f"{row}: {reason}")
    raise InputError(f"no method with a form for so many sends serves this problem ({'; '.join(refused)})")


def _solved(problem: Problem, options: Options, name: str, output: Path | None) -> Large:
    _warm_up(name, problem.kind)
    begin_s = time.monotonic()
    schedule = cast(LargeSynthesizer, method(name)).large(problem, options, output)
    made_s = time.monotonic()
    schedule = schedule.with_notes(large_bounds(schedule.collective, schedule.topology, schedule.size_bytes))
    bounded_s = time.monotonic()
    verify_large(schedule).raise_if_bad()
    found = Large(name, schedule, made_s - begin_s, time.monotonic() - bounded_s)
    if output is not None:
        write_large(schedule, output)
    return found


def _has_form(name: str) -> bool:
    return name.partition(":")[0] in METHODS and hasattr(method(name), "large")
