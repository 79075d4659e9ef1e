"""What became of the methods that were asked, and which of them is the best."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from collsyn.errors import Infeasible, InputError
from collsyn.model.schedule import Schedule

# A plan pipelines what its schedule moves whole, but no plan makes up for a schedule this many times slower.
CONTENDING = 2.0
# Simulated plans this close are equally good: what the simulator leaves out is more.
ALIKE = 1.01

INTERRUPTED = "interrupted"
OUT_OF_TIME = "not begun within the time limit"
STOPPED = "stopped at the time limit"


@dataclass(frozen=True)
class Candidate:
    """What became of one method: a verified schedule with its bounds, or the reason why there is none.

    `finish_s`, `bound_s` (the fluid bound) and `chunks_per_rank` are those of the schedule, and outlive it: where
    candidates come from a file, only the best has its schedule at hand. `plan_s` is the finish of the simulated plan;
    where the plan was not made, `cut` may say why. `synthesis_s` and `verify_s` are the seconds that were spent,
    `loading_s` those before them for what compiles and loads at first use. `interrupted` says that an interruption from
    the keyboard came in between, `not_needed` that the method was left out because another cannot be beaten, `lost`
    that the process that worked on it went down, which need not happen again.
    """

    method: str
    schedule: Schedule | None = None
    refused: str | None = None
    plan_s: float | None = None
    cut: str | None = None
    synthesis_s: float = 0.0
    verify_s: float = 0.0
    loading_s: float = 0.0
    interrupted: bool = False
    not_needed: bool = False
    lost: bool = False
    finish_s: float = inf
    bound_s: float | None = None
    chunks_per_rank: int | None = None

    def __post_init__(self) -> None:
        if self.schedule is not None:
            fluid = next((bound.time_s for bound in self.schedule.bounds if bound.scope == "fluid"), None)
            object.__setattr__(self, "finish_s", self.schedule.finish_s)
            object.__setattr__(self, "bound_s", fluid)
            object.__setattr__(self, "chunks_per_rank", self.schedule.collective.chunks_per_rank)

    @property
    def served(self) -> bool:
        """Whether the method made a schedule."""
        return self.refused is None

    @property
    def gap(self) -> float | None:
        """How far the finish lies over the fluid bound, as a share of it (None without a bound above 0)."""
        return self.finish_s / self.bound_s - 1 if self.bound_s and self.served else None


def chosen(candidates: Sequence[Candidate]) -> Candidate:
    """The first candidate, which has a schedule; raises InputError, Infeasible or KeyboardInterrupt where none has."""
    first = candidates[0]
    if first.schedule is not None:
        return first
    if any(candidate.interrupted for candidate in candidates):
        raise KeyboardInterrupt
    if len(candidates) == 1:
        raise InputError(f"method {first.method}: {first.refused}")
    reasons = "; ".join(f"{candidate.method}: {candidate.refused}" for candidate in candidates)
    raise Infeasible(f"no method serves this problem ({reasons})")


def contenders(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those whose plans may be the best, the quickest schedules first; a schedule counts until its plan is known."""
    served = sorted((each for each in candidates if each.served), key=lambda each: each.finish_s)
    quickest = (c.finish_s if c.plan_s is None else c.plan_s for c in served if c.plan_s is not None or c.cut is None)
    limit = CONTENDING * min(quickest, default=inf)
    return [candidate for candidate in served if candidate.finish_s <= limit]


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Best first: contenders by their plans if all have one or none to win by, then the others by their own finish.

    Plans within ALIKE of the best one count as equal: among them the schedule decides.
    """
    contending = contenders(candidates)
    timed = [candidate.plan_s for candidate in contending if candidate.plan_s is not None]
    by_plan = bool(timed) and all(c.plan_s is not None or c.cut is not None for c in contending)
    alike_s = ALIKE * min(timed, default=0.0)

    def place(candidate: Candidate) -> tuple[bool, float, float]:
        if by_plan and candidate in contending and candidate.plan_s is not None:
            return False, max(candidate.plan_s, alike_s), candidate.finish_s
        return by_plan or not candidate.served, candidate.finish_s, candidate.finish_s

    return sorted(candidates, key=place)


def with_rivals(candidates: list[Candidate]) -> list[Candidate]:
    """The candidates, the schedule of the first noting what it was chosen from, and whether time was short."""
    if len(candidates) == 1 or candidates[0].schedule is None:
        return candidates
    notes: dict[str, Any] = {"chosen_from": sorted(c.method for c in candidates if c.served)}
    late = sorted(c.method for c in candidates if c.refused in (OUT_OF_TIME, STOPPED, INTERRUPTED))
    if late:
        notes["not_begun"] = late
    lost = sorted(c.method for c in candidates if c.lost)
    if lost:
        notes["lost"] = lost
    best = replace(candidates[0], schedule=candidates[0].schedule.with_notes(**notes))
    return [best, *candidates[1:]]
