"""Rechecks the lower bounds that a schedule carries."""

from typing import Protocol

from collsyn.check.report import Problem
from collsyn.check.words import us
from collsyn.model.bound import Bound
from collsyn.model.collective import Collective
from collsyn.model.topology import Topology


class Bounded(Protocol):
    """A schedule of any form, as bounds see it."""

    @property
    def collective(self) -> Collective:
        """What it does."""

    @property
    def topology(self) -> Topology:
        """Where."""

    @property
    def size_bytes(self) -> int:
        """At which size."""

    @property
    def finish_s(self) -> float:
        """When it is done."""

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """What no schedule can beat."""


def bound_problems(schedule: Bounded) -> list[Problem]:
    """Bounds of a schedule that do not hold, or that its finish beats."""
    if not schedule.bounds:
        return []
    from collsyn.bounds import recheck

    problems = []
    for bound in schedule.bounds:
        where = f"{bound.scope} bound of {us(bound.time_s)}"
        wrong = recheck(bound, schedule.collective, schedule.topology, schedule.size_bytes)
        if wrong is not None:
            problems.append(Problem(where, f"certificate of kind {bound.kind} does not hold", "a proof", wrong))
        elif schedule.finish_s < bound.time_s * (1 - 1e-9):
            expected = f"at least {us(bound.time_s)}"
            problems.append(Problem(where, "is beaten by the schedule itself", expected, us(schedule.finish_s)))
    return problems
