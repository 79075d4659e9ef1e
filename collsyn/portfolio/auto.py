"""The portfolio: every method that serves a problem is run, judged and simulated, and the best schedule is kept."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from collsyn.bounds import avoids_overhead, chunk_bound, fluid_bound
from collsyn.check.simulate_plan import simulate_plan
from collsyn.check.verify import verify_schedule
from collsyn.errors import CollsynError, Infeasible, InputError, interrupts
from collsyn.lower.lower import lower
from collsyn.model.bound import Bound
from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology
from collsyn.synth.problem import Options, Problem, Synthesizer
from collsyn.synth.sketch_reasons import require_feasible
from collsyn.synth.sketched import Sketched
from collsyn.synth.table import METHODS, method

# Seconds after which no further method is begun, where no other limit is given.
TIME_LIMIT_S = 30.0
# Share of the limit in which methods are begun in the order of the table.
EARLY = 1 / 3
# Plans of more ranks are lowered and simulated only on request.
MAX_PLAN_RANKS = 64
# A plan pipelines what its schedule moves whole, but no plan makes up for a schedule this many times slower.
CONTENDING = 2.0

# Simulated plans this close are equally good: what the simulator leaves out is more.
ALIKE = 1.01

INTERRUPTED = "interrupted"
OUT_OF_TIME = "not begun within the time limit"


@dataclass(frozen=True)
class Candidate:
    """What became of one method: a verified schedule with its bounds, or the reason why there is none.

    `plan_s` is the finish of the simulated plan (None where it was not lowered); `synthesis_s` and `verify_s` are the
    seconds that were spent; `interrupted` says that an interruption from the keyboard came in between.
    """

    method: str
    schedule: Schedule | None = None
    refused: str | None = None
    plan_s: float | None = None
    synthesis_s: float = 0.0
    verify_s: float = 0.0
    interrupted: bool = False

    @property
    def finish_s(self) -> float:
        """When the schedule is done under the time model; infinite without one."""
        return float("inf") if self.schedule is None else self.schedule.finish_s

    @property
    def bound_s(self) -> float | None:
        """The fluid bound of the problem (None without a schedule, which carries it)."""
        bounds = () if self.schedule is None else self.schedule.bounds
        return next((bound.time_s for bound in bounds if bound.scope == "fluid"), None)

    @property
    def gap(self) -> float | None:
        """How far the finish lies over the fluid bound, as a share of it (None without a bound above 0)."""
        return self.finish_s / self.bound_s - 1 if self.bound_s else None


def best(
    problem: Problem, options: Options, methods: Sequence[str | Synthesizer] | None = None, plans: bool | None = None
) -> list[Candidate]:
    """Run methods (all by default) on a problem; their candidates, best first, those without a schedule last.

    Candidates are ranked by the finish of their plans if every contender can be lowered, else by their own. `plans`
    says whether to lower at all (None: up to MAX_PLAN_RANKS ranks). No method is begun after the time limit of the
    options (TIME_LIMIT_S by default), and an interruption from the keyboard ends the search: what was found until then
    counts, the other methods are marked INTERRUPTED. Without a time limit in the options the result is the same every
    time, unless the default one was met, which the provenance then says. Raises Infeasible where ranks that must
    exchange data are not connected or a sketch keeps them apart, and whatever a method raises that is the only one.
    """
    problem = problem.at_size()
    if options.sketch is not None:
        require_feasible(problem, options.sketch)
    run = _Run(problem, options, list(METHODS) if methods is None else list(methods))
    found = run.candidates()
    if plans or (plans is None and problem.topology.num_ranks <= MAX_PLAN_RANKS):
        found = run.with_plans(found)
    ranked = _ranked(found)
    return ranked if len(ranked) == 1 else [_with_rivals(ranked), *ranked[1:]]


def best_schedule(problem: Problem, options: Options, name: str = "auto", plans: bool | None = None) -> Schedule:
    """The verified schedule of one method, or of the best of all (`auto`); raises the reason where there is none."""
    return chosen(best(problem, options, None if name == "auto" else [name], plans)).schedule  # type: ignore[return-value]


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


class _Run:
    """One pass over the methods."""

    def __init__(self, problem: Problem, options: Options, methods: Sequence[str | Synthesizer]) -> None:
        self.problem, self.options = problem, options
        self.names = [each if isinstance(each, str) else each.name for each in methods]
        # Those that are no rows of the table.
        self.given = {each.name: each for each in methods if not isinstance(each, str)}
        self.begin_s = time.monotonic()
        self.limit_s = TIME_LIMIT_S if options.time_limit_s is None else options.time_limit_s
        self.interrupted = False
        self.share = 0.0
        self.fluid = fluid_bound(problem.collective(), problem.topology, problem.size_bytes)
        self.whole: dict[tuple[int, bool], Bound] = {}

    def left_s(self) -> float:
        """Seconds until the limit."""
        return self.begin_s + self.limit_s - time.monotonic()

    def candidates(self) -> list[Candidate]:
        """One candidate a method, in the order given.

        The last methods of the table search longest and find most, so that they are next once time grows short.
        """
        found: list[Candidate] = []
        pending = list(self.names)
        while pending:
            self._report(found)
            name = pending.pop(0 if self.left_s() > self.limit_s * (1 - EARLY) else -1)
            if self.interrupted:
                found.append(Candidate(name, refused=INTERRUPTED, interrupted=True))
                continue
            if found and self.left_s() <= 0:
                found.append(Candidate(name, refused=OUT_OF_TIME))
                continue
            try:
                with interrupts():
                    found.append(self._candidate(name))
            except KeyboardInterrupt:
                self.interrupted = True
                found.append(Candidate(name, refused=INTERRUPTED, interrupted=True))
        return sorted(found, key=lambda candidate: self.names.index(candidate.method))

    def with_plans(self, candidates: list[Candidate]) -> list[Candidate]:
        """The candidates with the times of their plans, as far as they contend, can be lowered and time allows."""
        contenders = _contenders(candidates)
        result: list[Candidate] = []
        for candidate in sorted(candidates, key=lambda each: each.finish_s):
            lowered = candidate
            in_time = not self.interrupted and (self.left_s() > 0 or len(contenders) == 1)
            if candidate.schedule is not None and candidate in contenders and in_time:
                try:
                    with interrupts():
                        lowered = replace(candidate, plan_s=_plan_s(candidate.schedule))
                except KeyboardInterrupt:
                    self.interrupted = True
                    lowered = replace(candidate, interrupted=True)
                except CollsynError:
                    pass  # a schedule that cannot be lowered is ranked by its finish, like all others then
            result.append(lowered)
        return result

    def _candidate(self, name: str) -> Candidate:
        synthesizer = self.given.get(name) or method(name)
        if self.options.sketch is not None:
            synthesizer = Sketched(synthesizer, self.options.sketch)
        reason = synthesizer.accepts(self.problem)
        if reason is not None:
            return Candidate(name, refused=reason)
        if name not in self.given:
            if self.options.progress is not None and hasattr(method(name), "prepare"):
                self.options.progress(self.share, f"loading {name}, which is compiled at first use")
            self._warm_up(name)
        try:
            begin_s = time.monotonic()
            schedule = synthesizer.synthesize(self.problem, self._options())
            made_s = time.monotonic()
            schedule = schedule.with_notes(bounds=self._bounds(schedule))
            bounded_s = time.monotonic()
            verify_schedule(schedule).raise_if_bad()
        except CollsynError as error:
            if len(self.names) == 1:
                raise
            return Candidate(name, refused=str(error))
        return Candidate(name, schedule, synthesis_s=made_s - begin_s, verify_s=time.monotonic() - bounded_s)

    def _warm_up(self, name: str) -> None:
        """Compile and load; of a limit that nobody asked for, that takes nothing."""
        begin_s = time.monotonic()
        _warm_up(name, self.problem.kind)
        if self.options.time_limit_s is None:
            self.begin_s += time.monotonic() - begin_s

    def _options(self) -> Options:
        """What a method may use: the time that is left, if a limit was given at all."""
        if self.options.time_limit_s is None:
            return replace(self.options, progress=None)
        return replace(self.options, time_limit_s=max(self.left_s(), 1e-3), progress=None)

    def _bounds(self, schedule: Schedule) -> list[Bound]:
        alike = schedule.collective.chunks_per_rank, avoids_overhead(schedule)
        if alike not in self.whole:
            collective, topology = schedule.collective, schedule.topology
            self.whole[alike] = chunk_bound(collective, topology, schedule.size_bytes, alike[1])
        return [self.fluid, self.whole[alike], *(bound for bound in schedule.bounds if bound.scope == "tree")]

    def _report(self, found: list[Candidate]) -> None:
        self.share = len(found) / len(self.names)
        if self.options.progress is None:
            return
        leader = min(found, key=lambda candidate: candidate.finish_s, default=None)
        detail = ""
        if leader is not None and leader.schedule is not None:
            gap = "" if leader.gap is None else f", {leader.gap:.1%} over the bound"
            detail = f"best so far {leader.method}: {leader.finish_s * 1e6:.1f} us{gap}"
        self.options.progress(self.share, detail)


def _plan_s(schedule: Schedule) -> float:
    return float(simulate_plan(lower(schedule), schedule.topology, schedule.size_bytes).finish_s)


def _contenders(candidates: Sequence[Candidate]) -> list[Candidate]:
    limit = CONTENDING * min((candidate.finish_s for candidate in candidates), default=0.0)
    return [candidate for candidate in candidates if candidate.schedule is not None and candidate.finish_s <= limit]


def _ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Best first: contenders by their plans if all have one, then the others by their own finish.

    Plans within ALIKE of the best one count as equal: among them the schedule decides.
    """
    contenders = _contenders(candidates)
    by_plan = all(candidate.plan_s is not None for candidate in contenders)
    alike_s = ALIKE * min((c.plan_s for c in contenders if c.plan_s is not None), default=0.0)

    def place(candidate: Candidate) -> tuple[bool, float, float]:
        if by_plan and candidate in contenders:
            assert candidate.plan_s is not None
            return False, max(candidate.plan_s, alike_s), candidate.finish_s
        return by_plan or candidate.schedule is None, candidate.finish_s, candidate.finish_s

    return sorted(candidates, key=place)


def _with_rivals(ranked: list[Candidate]) -> Candidate:
    """The best candidate, its schedule noting which methods it was chosen from, and whether time was short."""
    best = ranked[0]
    if best.schedule is None:
        return best
    notes: dict[str, Any] = {"chosen_from": sorted(c.method for c in ranked if c.schedule is not None)}
    late = sorted(c.method for c in ranked if c.refused in (OUT_OF_TIME, INTERRUPTED))
    if late:
        notes["not_begun"] = late
    return replace(best, schedule=best.schedule.with_notes(**notes))


@cache
def _warm_up(name: str, kind: str) -> None:
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
