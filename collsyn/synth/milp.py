"""Routing, ordering and exact scheduling by integer programs, then large-neighbourhood search (docs/milp.md).

Source: TACCL (NSDI 2023), whose three stages these are.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from collsyn.bounds import chunk_bound
from collsyn.model.schedule import Schedule
from collsyn.synth.baseline import hops_of
from collsyn.synth.milp_budget import Budget
from collsyn.synth.milp_case import Case
from collsyn.synth.milp_grow import AFTERWARDS, AT_ONCE, SHARING, Trees, grown, relaxed_finish_s
from collsyn.synth.milp_improve import improved, split
from collsyn.synth.milp_order import Dispatch, Sends
from collsyn.synth.milp_routing import trees_of
from collsyn.synth.milp_timing import Timed
from collsyn.synth.problem import Options, Problem, provenance
from collsyn.synth.transform import by_composition, by_reversal

# Sends (chunks that stand for their orbits x receivers) up to which a problem is served.
MAX_SENDS = 6_000
# Chunks x hops, whose times are kept.
MAX_CELLS = 1_000_000
# Chunks a rank up to which finer ones are tried, and sends that they may make.
MAX_CHUNKS, MAX_FINE_SENDS = 8, 1_000
# Disturbed orders that list scheduling tries, for each size of messages.
TRIALS = 24
SIZES = (1, 2, 4, 8, 1 << 30)
# Chunks whose bytes take less than this part of the finish are not cut.
SHORT = 5e-3
# Trees whose links are done this close to the bound are not routed again.
ROUTED = 1e-3


class Effort(NamedTuple):
    """Work of a pass: rows of all programs and of those for the first and each finer number of chunks, choices (chunks
    x hops, one an orbit) that are routed by a program, and its branches."""

    rows: int
    coarse_rows: int
    fine_rows: int
    choices: int
    branches: int


# Where no limit of time is given, and where one is.
QUICK = Effort(12_000, 3_000, 2_500, 1_200, 100)
FULL = Effort(60_000, 8_000, 6_000, 4_000, 400)


@dataclass(frozen=True)
class Milp:
    """Serves every collective but custom reductions."""

    name: str = "milp"

    def accepts(self, problem: Problem) -> str | None:
        """Needs few sends, up to the symmetries of collective and topology."""
        if problem.kind == "custom" and problem.reduces:
            return "a custom reduction has no mirror image"
        if problem.kind == "allreduce":
            return self.accepts(problem.as_kind("reducescatter"))
        forward = problem.reversed if problem.kind in _BACKWARDS else problem
        cells = forward.collective(_least(problem)).num_chunks * len(hops_of(forward.topology))
        if cells > MAX_CELLS:
            return f"has {cells} chunks x hops, more than {MAX_CELLS}"
        case = Case.of(forward, _least(problem), None)
        sends = int(case.wanted[case.moving].sum())
        if sends > MAX_SENDS:
            return f"has {sends} sends up to symmetry, more than {MAX_SENDS}"
        return None

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The best schedule within the limits; raises Infeasible where a receiver cannot be reached.

        Without a time limit the work is about the same for all problems, else what time allows. Exponential in the
        branches of programs, which are few.
        """
        if problem.kind == "allreduce":
            half = options if options.time_limit_s is None else replace(options, time_limit_s=options.time_limit_s / 2)
            made = by_composition(problem, lambda phase: self.synthesize(phase, half))
        elif problem.kind in _BACKWARDS:
            sketch = None if options.sketch is None else options.sketch.reversed()
            made = by_reversal(problem, lambda forward: _solved(forward, replace(options, sketch=sketch)))
        else:
            made = _solved(problem, options)
        chunks = made.collective.chunks_per_rank
        notes = provenance(problem, options, self.name, chunks_per_rank=chunks, guarantee=_guarantee(made))
        return replace(made, provenance=notes)


_BACKWARDS = frozenset({"reducescatter", "reduce", "gather"})


def _least(problem: Problem) -> int | None:
    return None if problem.spec is not None else problem.chunks_per_rank or 1


def _solved(problem: Problem, options: Options) -> Schedule:
    limit_s = options.time_limit_s
    deadline_s = None if limit_s is None else time.monotonic() + limit_s
    best: Schedule | None = None
    try:
        for timed in _timed(problem, options, deadline_s):
            schedule = timed.sends.schedule(timed.case)
            if best is None or schedule.finish_s < best.finish_s * (1 - 1e-9):
                best = schedule
    except KeyboardInterrupt:
        if best is None:
            raise
    assert best is not None
    return best


def _guarantee(schedule: Schedule) -> str:
    """What is proven of a schedule, in words."""
    bound = chunk_bound(schedule.collective, schedule.topology, schedule.size_bytes, batched=True)
    if schedule.finish_s > bound.time_s * (1 + 1e-9):
        return "none"
    chunks = schedule.collective.chunks_per_rank
    return f"proven optimal for {chunks} chunk{'s' * (chunks != 1)} a rank"


def _timed(problem: Problem, options: Options, deadline_s: float | None) -> Iterator[Timed]:
    """Better and better sends: a pass of fixed work, then what the time that is left gives."""
    effort = QUICK if deadline_s is None else FULL
    budget = Budget(deadline_s, effort.rows, options.seed)
    chunks = _least(problem)
    case = Case.of(problem, chunks, options.sketch)
    case.require_reachable()
    if not len(case.moving):
        nothing = np.zeros(0, dtype=np.int64)
        yield Timed.of(case, Sends(nothing, nothing, nothing))
        return
    enough_s = _enough_s(case)
    best: Timed | None = None
    for first in _first(case, budget, effort, enough_s):
        if best is None:
            yield first
        with budget.part(effort.coarse_rows) as part:
            timed = improved(first, part, enough_s)
        if best is None or timed.finish_s < best.finish_s:
            best = timed
            yield best
    assert best is not None
    free = problem.chunks_per_rank is None and chunks is not None
    while free and chunks is not None and not budget.is_spent and _pays(best):
        chunks *= 2
        if chunks > min(MAX_CHUNKS, problem.size_bytes) or 2 * len(best.sends) > MAX_FINE_SENDS:
            break
        if 2 * case.collective.num_chunks * len(case.table) > MAX_CELLS:
            break
        case = Case.of(problem, chunks, options.sketch)
        enough_s = _enough_s(case)
        candidates = [split(best, case), *_first(case, budget, effort, enough_s)]
        with budget.part(effort.fine_rows) as part:
            best = improved(min(candidates, key=_finish), part, enough_s)
        yield best
    if deadline_s is not None:
        yield improved(best, replace(budget, rows=np.inf), enough_s, lasting=True)


def _pays(timed: Timed) -> bool:
    """Whether chunks are so long that the finish may lie in waiting for whole ones."""
    table, sends = timed.case.table, timed.sends
    longest_s = float((timed.case.chunk_bytes[sends.chunk] * table.beta_s_per_byte[sends.hop]).max(initial=0.0))
    return longest_s > SHORT * timed.finish_s


def _enough_s(case: Case) -> float:
    return _bound_s(case, batched=True) * (1 + 1e-9)


def _bound_s(case: Case, batched: bool) -> float:
    problem = case.problem
    return float(chunk_bound(case.collective, problem.topology, problem.size_bytes, batched).time_s)


def _first(case: Case, budget: Budget, effort: Effort, enough_s: float) -> list[Timed]:
    """What list scheduling makes of trees that were grown, and of those of the routing program where they fall short.

    The best where every chunk has a message of its own, and the best where some share one, if that is better.
    """
    ways = [grown(case, AFTERWARDS), grown(case, AT_ONCE)]
    ways.sort(key=lambda trees: relaxed_finish_s(case, trees))
    if case.table.overhead_s.any():
        ways.append(grown(case, SHARING))
    found = _listed(case, ways, budget)
    alone_s = _bound_s(case, batched=False) * (1 + ROUTED)
    falls_short = min(relaxed_finish_s(case, ways[0]), found[-1].finish_s) > max(enough_s, alone_s)
    small = len(case.moving) * len(case.table) <= effort.choices
    if small and falls_short and not budget.is_spent:
        found += _listed(case, [trees_of(case, ways[0], budget, effort.branches)], budget)
    alone = min((timed for timed in found if len(timed.hop) == len(timed.sends)), key=_finish, default=found[0])
    best = min(found, key=_finish)
    return [alone] if best.finish_s >= alone.finish_s else [alone, best]


def _listed(case: Case, trees: Sequence[Trees], budget: Budget) -> list[Timed]:
    most = None if case.sketch is None else case.sketch.message_chunks
    sizes = [size for size in SIZES if most is None or size <= most] or [most or 1]
    found: list[Timed] = []
    for shared in (sizes[:1], sizes[1:] if case.table.overhead_s.any() else []):
        made = [Timed.of(case, Dispatch(case, each).best(shared, TRIALS, budget.random)) for each in trees if shared]
        if made:
            found.append(min(made, key=_finish).sorted())
    return found


def _finish(timed: Timed) -> float:
    return timed.finish_s


MILP = Milp()
