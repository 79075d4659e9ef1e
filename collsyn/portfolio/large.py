"""Problems of so many sends that their schedules are not listed: solved, verified and written in forms of their own."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from collsyn.bounds.large import large_bounds
from collsyn.check.large import verify_large
from collsyn.errors import InputError
from collsyn.model.large_file import SUFFIX, LargeSchedule, available_bytes, write_large
from collsyn.model.steps import PHASES
from collsyn.portfolio.trial import warm_up
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import METHODS, method

# More sends than this are not listed where a method has another form for them.
MANY_SENDS = 20_000_000
# What an ordinary schedule keeps of a send, without what checks take beside it.
BYTES_A_SEND = 39


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
    that has such a form, and is the one asked for or one of `auto`, serves it."""
    if output is not None and output.endswith(SUFFIX):
        return True
    if _least_sends(problem) <= MANY_SENDS:
        return False
    return any(method(row).accepts(problem) is None for row in _with_form(name))


def require_listable(problem: Problem, name: str) -> None:
    """Raise InputError where the sends of an ordinary schedule alone would fill the memory."""
    num_bytes, free = BYTES_A_SEND * _least_sends(problem), available_bytes()
    if num_bytes > free:
        forms = ", ".join(_with_form("auto"))
        sends = f"lists at least {_least_sends(problem)} sends, {num_bytes / 1e9:.1f} GB; {free / 1e9:.1f} GB are free"
        raise InputError(f"method {name}: {sends}. Methods that need not: {forms}, on some topologies")


def solve_large(problem: Problem, options: Options, name: str = "auto", output: Path | None = None) -> Large:
    """The schedule of a method (`auto`: the first that serves the problem), found right; written to `output` if given.

    Raises InputError where no method serves the problem or there is no room, and what a method raises.
    """
    problem = problem.at_size()
    names = _with_form(name)
    if not names:
        forms = ", ".join(_with_form("auto"))
        raise InputError(f"method {name}: has no form for files {SUFFIX}; expected auto or one of {forms}")
    refused = []
    for row in names:
        reason = method(row).accepts(problem)
        if reason is None:
            return _solved(problem, options, row, output)
        refused.append(f"{row}: {reason}")
    raise InputError(f"no method with a form for so many sends serves this problem ({'; '.join(refused)})")


def _solved(problem: Problem, options: Options, name: str, output: Path | None) -> Large:
    warm_up(name, problem.kind)
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


def _with_form(name: str) -> list[str]:
    """The method if it has a form for many sends, all that have if it is `auto`."""
    return [row for row in (METHODS if name == "auto" else [name]) if hasattr(method(row), "large")]


def _least_sends(problem: Problem) -> int:
    """Sends that a schedule has at least; 0 where it is not known at once."""
    if problem.kind not in PHASES or problem.groups is not None:
        return 0
    ranks = problem.topology.num_ranks
    return len(PHASES[problem.kind]) * (problem.chunks_per_rank or 1) * ranks * (ranks - 1)
