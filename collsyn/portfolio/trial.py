"""One method on one problem, judged: what the portfolio does in its own process and in those of its workers alike."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from collsyn.bounds import avoids_overhead, chunk_bound
from collsyn.check.simulate_plan import simulate_plan
from collsyn.check.verify import verify_schedule
from collsyn.errors import CollsynError
from collsyn.lower.lower import lower
from collsyn.model.bound import Bound
from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology
from collsyn.portfolio.candidates import ALIKE, Candidate
from collsyn.synth.problem import Options, Problem, Synthesizer
from collsyn.synth.sketched import Sketched
from collsyn.synth.table import method

# A schedule this close to the bound leaves others nothing to win.
AT_BOUND = 1.001


@dataclass
class Trial:
    """A problem with its fluid bound, and how to work on it.

    `given` are methods that are no rows of the table, by name. `plans` says whether schedules are lowered. `alone`
    means that there is one method only, whose errors are the caller's.
    """

    problem: Problem
    options: Options
    fluid: Bound
    plans: bool
    alone: bool = False
    given: dict[str, Synthesizer] = field(default_factory=dict)
    _whole: dict[tuple[int, bool], Bound] = field(default_factory=dict, repr=False)

    def candidate(self, name: str, limit_s: float | None) -> Candidate:
        """What a method makes of the problem, within `limit_s` seconds if given; at the bound with its plan's time."""
        synthesizer = self.given.get(name) or method(name)
        if self.options.sketch is not None:
            synthesizer = Sketched(synthesizer, self.options.sketch)
        reason = synthesizer.accepts(self.problem)
        if reason is not None:
            return Candidate(name, refused=reason)
        begin_s = time.monotonic()
        if name not in self.given:
            warm_up(name, self.problem.kind)
        loaded_s = time.monotonic()
        if limit_s is not None and self.options.time_limit_s is not None:
            limit_s = max(limit_s - (loaded_s - begin_s), 1e-3)
        try:
            schedule = synthesizer.synthesize(self.problem, replace(self.options, time_limit_s=limit_s, progress=None))
            made_s = time.monotonic()
            schedule = schedule.with_notes(bounds=self._bounds(schedule))
            bounded_s = time.monotonic()
            verify_schedule(schedule).raise_if_bad()
        except CollsynError as error:
            if self.alone:
                raise
            return Candidate(name, refused=str(error), loading_s=loaded_s - begin_s)
        found = Candidate(
            name,
            schedule,
            synthesis_s=made_s - loaded_s,
            verify_s=time.monotonic() - bounded_s,
            loading_s=loaded_s - begin_s,
        )
        return self.with_plan(found) if self.plans and not self.alone and self._is_at_bound(found) else found

    def with_plan(self, candidate: Candidate) -> Candidate:
        """The candidate with the time of its plan, if it can be lowered."""
        assert candidate.schedule is not None
        try:
            return replace(candidate, plan_s=plan_time_s(candidate.schedule))
        except CollsynError:
            return candidate  # ranked by its finish, like all others then

    def settles(self, candidate: Candidate) -> bool:
        """Whether no other candidate can come before this one, but for what AT_BOUND leaves."""
        if not self.plans:
            return self._is_at_bound(candidate)
        alike_s = ALIKE * self.fluid.time_s
        return candidate.plan_s is not None and candidate.plan_s <= alike_s and self._is_at_bound(candidate)

    def _is_at_bound(self, candidate: Candidate) -> bool:
        return candidate.served and candidate.finish_s <= AT_BOUND * self.fluid.time_s

    def _bounds(self, schedule: Schedule) -> Sequence[Bound]:
        alike = schedule.collective.chunks_per_rank, avoids_overhead(schedule)
        if alike not in self._whole:
            collective, topology = schedule.collective, schedule.topology
            self._whole[alike] = chunk_bound(collective, topology, schedule.size_bytes, alike[1])
        return [self.fluid, self._whole[alike], *(bound for bound in schedule.bounds if bound.scope == "tree")]


def plan_time_s(schedule: Schedule) -> float:
    """Simulated time of the plan of a schedule."""
    return float(simulate_plan(lower(schedule), schedule.topology, schedule.size_bytes).finish_s)


def least_plan_s(schedule: Schedule) -> float:
    """What no plan of a schedule is quicker than: the bytes on its busiest link; O(messages x links of a route)."""
    topology, messages, routes = schedule.topology, schedule.messages, schedule.routes
    if not len(messages) or topology.multicast.any() or topology.reduction.any():
        return 0.0
    lengths = routes.lengths()[messages.route]
    inside = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    link = routes.data[np.repeat(routes.ptr[messages.route], lengths) + inside]
    carried = np.bincount(link, np.repeat(messages.num_bytes, lengths), topology.num_links)
    return float((carried * topology.beta_s_per_byte).max(initial=0.0))


@cache
def warm_up(name: str, kind: str) -> None:
    """Solve a problem of two ranks, so that what compiles or loads at first use does not count as synthesis."""
    columns = {"alpha_s": [0.0] * 2, "beta_s_per_byte": [1e-9] * 2, "overhead_s": [0.0] * 2, "count": [1] * 2}
    alike: dict[str, Any] = {"symmetries": ((1, 0),), "boxes": ((0,), (1,))}
    pair = Topology("pair", 2, src=[0, 1], dst=[1, 0], **columns, **alike)  # type: ignore[arg-type]
    counts = [[0, 1], [1, 0]] if kind == "alltoallv" else None
    problem = Problem("allgather" if kind == "custom" else kind, pair, 2, counts=counts)
    if method(name).accepts(problem) is None:
        method(name).synthesize(problem, Options())
        prepare = getattr(method(name), "prepare", None)
        if prepare is not None:
            prepare(kind)
