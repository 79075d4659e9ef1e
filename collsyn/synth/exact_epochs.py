"""Exact epochs: few chunks in the fewest parts of time, whatever hops load their links for and take to arrive.

Source: TE-CCL (SIGCOMM 2024); docs/exact.md says what differs.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import zip_longest

from collsyn.bounds import avoids_overhead
from collsyn.errors import Infeasible, InputError, SolverFailed
from collsyn.model.schedule import Schedule
from collsyn.synth.exact import BACKWARDS, BY_PHASES, PHASES, forwards
from collsyn.synth.exact_epoch_search import (
    CELLS,
    MAX_ENTRIES,
    Budget,
    EpochSearch,
    Found,
    as_schedule,
    fluid_s,
    whole_s,
)
from collsyn.synth.exact_grid import LATE, Grid
from collsyn.synth.exact_steps import NEVER, obstacle
from collsyn.synth.problem import Options, Problem, provenance
from collsyn.synth.table import method
from collsyn.synth.transform import by_reversal, compose

# Where the number of chunks is free: so many at most, of programs with so few entries. By at most these shares may
# chunks sent whole need more time than any splitting, with small programs and with a larger one.
FREE_CHUNKS, FREE_ENTRIES, SMALL_OVER, OVER = 4, 16_000, 0.1, 0.01
MAX_RANKS = 64
# What rounding can change of a time.
RELATIVE = 1e-9
# Share of a time limit that the schedule to begin with may take.
FOR_GREEDY = 0.25


class ExactEpochs:
    """Serves small problems of equal chunks; `exact:epochs/N` decides on N epochs."""

    def __init__(self, epochs: int | None = None) -> None:
        self.epochs = epochs

    @property
    def name(self) -> str:
        """`exact:epochs`, with the number of epochs if one is asked for."""
        return "exact:epochs" if self.epochs is None else f"exact:epochs/{self.epochs}"

    def with_epochs(self, inner: str) -> "ExactEpochs":
        """The method that decides on so many epochs; raises InputError."""
        match = re.fullmatch(r"epochs/([1-9]\d{0,5})", inner, re.ASCII)
        if match is None:
            raise InputError(f"method exact:{inner}: expected a number of epochs, such as exact:epochs/31")
        return ExactEpochs(int(match.group(1)))

    def accepts(self, problem: Problem) -> str | None:
        """Needs equal chunks with one source each, and a program that is small enough."""
        for forward in forwards(problem):
            if forward.topology.num_ranks > MAX_RANKS:
                return f"has {forward.topology.num_ranks} ranks, more than {MAX_RANKS}"
            reason = obstacle(forward)
            if reason is not None:
                return reason
        chunks, given = problem.chunks_per_rank or 1, problem.chunks_per_rank is not None
        need = _Need.of(problem, chunks)
        if need.entries > MAX_ENTRIES:
            counted = f"over {MAX_ENTRIES}" if need.entries >= CELLS else f"{need.entries} (at most {MAX_ENTRIES})"
            return f"needs a program of {counted} entries with {_count(chunks)}"
        if given or self.epochs is not None or need.is_worthwhile or _counts(problem):
            return None
        return f"needs {need.over:.1%} more than the bound with one chunk a rank (--chunks 1 tries it)"

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The quickest schedule that was found, or that of the greedy search.

        Raises Infeasible where there is none with a proof, SolverFailed where N epochs were not decided in the limits.
        Exponential in the number of starts that are possible.
        """
        budget = Budget(options)
        if self.epochs is not None:
            return _noted(problem, options, self.name, _decided(problem, self.epochs, budget))
        best: Choice | None = None
        try:
            counts = _counts(problem)
            if problem.chunks_per_rank is not None:
                best = _to_begin_with(problem, options)
            for chunks, only_least in counts:
                best = _better(problem, chunks, only_least, budget, best)
            if best is None:
                best = _to_begin_with(replace(problem, chunks_per_rank=counts[0][0]), options)
        except KeyboardInterrupt:
            if best is None:
                raise
        return _noted(problem, options, self.name, best)


@dataclass(frozen=True, eq=False)
class Choice:
    """A schedule and what of it is proven, in words; `found` are its phases (none: it is that of the greedy search)."""

    schedule: Schedule
    guarantee: str
    found: tuple[Found, ...] = ()


def _counts(problem: Problem) -> list[tuple[int, bool]]:
    """Numbers of chunks that are tried, and whether with the least possible number of epochs only."""
    if problem.chunks_per_rank is not None:
        return [(problem.chunks_per_rank, False)]
    counts: list[tuple[float, int, bool]] = []
    for chunks in range(1, min(FREE_CHUNKS, problem.size_bytes) + 1):
        need = _Need.of(problem, chunks)
        if need.entries > (FREE_ENTRIES if counts else MAX_ENTRIES):
            break
        if need.is_worthwhile:
            counts.append((need.over, chunks, not need.is_small))
    return [(chunks, only_least) for _, chunks, only_least in sorted(counts)]


@dataclass(frozen=True, eq=False)
class _Need:
    """Entries of the largest program of a number of chunks, and seconds of its least epochs but for one a phase.

    No entries where a receiver cannot be reached, which `synthesize` tells.
    """

    problem: Problem
    chunks: int
    entries: int
    least_s: float

    @classmethod
    def of(cls, problem: Problem, chunks: int) -> "_Need":
        """What is known before anything is solved."""
        entries, least_s = 0, 0.0
        for forward in forwards(problem):
            search = EpochSearch(forward, chunks)
            if search.is_empty:
                continue
            grid = next(search.grids())
            if not search.is_reachable(grid):
                # Where hops do lead there, a way takes more epochs than any program has.
                return cls(problem, chunks, 0 if search.case.least_steps >= NEVER else CELLS, 0.0)
            entries = max(entries, search.entries(grid, search.least(grid)))
            least_s += (search.least(grid) - 1) * grid.epoch_s
        return cls(problem, chunks, entries, least_s)

    @property
    def is_small(self) -> bool:
        """Whether more than the least possible number of epochs may be tried."""
        return self.entries <= FREE_ENTRIES

    @cached_property
    def over(self) -> float:
        """The share by which its schedules need more time than the fluid bound."""
        if not self.entries:
            return 0.0
        bound_s = fluid_s(self.problem)
        needed_s = max(whole_s(self.problem, self.chunks), 0.0 if self.is_small else self.least_s)
        return needed_s / bound_s - 1 if bound_s else 0.0

    @property
    def is_worthwhile(self) -> bool:
        """Whether it may come near enough to the bound to be tried where the number of chunks is free."""
        return self.over <= (SMALL_OVER if self.is_small else OVER)


def _count(chunks: int) -> str:
    return "one chunk a rank" if chunks == 1 else f"{chunks} chunks a rank"


def _to_begin_with(problem: Problem, options: Options) -> Choice:
    """The schedule of the greedy search."""
    limit_s = options.time_limit_s
    asked = replace(options, time_limit_s=None if limit_s is None else FOR_GREEDY * limit_s)
    schedule = method("greedy").synthesize(problem, asked)
    chunks = schedule.collective.chunks_per_rank
    proven = schedule.finish_s <= whole_s(problem, chunks, avoids_overhead(schedule)) * (1 + RELATIVE)
    return Choice(schedule, f"proven optimal for {_count(chunks)}" if proven else "none")


def _better(problem: Problem, chunks: int, only_least: bool, budget: Budget, best: Choice | None) -> Choice | None:
    """The best so far, or a quicker schedule of so many chunks."""
    searches = [EpochSearch(forward, chunks) for forward in forwards(problem)]
    if all(search.is_empty for search in searches):
        return Choice(_timed(problem, chunks, ()), f"proven optimal for {_count(chunks)}")
    kinds = PHASES if problem.kind == "allreduce" else (problem.kind,)
    enough_s = sum(whole_s(problem.as_kind(kind), chunks) for kind in kinds) * (1 + RELATIVE)
    for phases in zip(*(search.grids() for search in searches), strict=False):
        if best is not None and best.schedule.finish_s <= enough_s:
            return best
        found: list[Found] = []
        for search, grid in zip(searches, phases, strict=True):
            most = None if best is None else int(best.schedule.finish_s / grid.epoch_s) + 1
            answer = search.fewest(grid, budget, most, only_least)
            if answer is None:
                break
            found.append(answer)
        if len(found) == len(searches):
            schedule = _timed(problem, chunks, found)
            if best is None or schedule.finish_s < best.schedule.finish_s * (1 - RELATIVE):
                best = Choice(schedule, _guarantee(problem, chunks, schedule, found), tuple(found))
        if only_least or budget.is_spent:
            break
    return best


def _decided(problem: Problem, epochs: int, budget: Budget) -> Choice:
    """A schedule in so many epochs; raises Infeasible with the proof that there is none, SolverFailed without."""
    chunks = problem.chunks_per_rank or 1
    searches = [EpochSearch(forward, chunks) for forward in forwards(problem)]
    if all(search.is_empty for search in searches):
        return Choice(_timed(problem, chunks, ()), f"proven optimal for {_count(chunks)}")
    grids = [next(search.grids()) for search in searches]
    least = [search.least(grid) for search, grid in zip(searches, grids, strict=True)]
    what = f"{epochs} epochs of {_us(grids[0])} us for {_count(chunks)}"
    if sum(least) > epochs:
        raise Infeasible(f"exact:epochs: {what} are impossible: {problem.kind} needs {sum(least)} at least")
    if len(searches) == 1:
        answer = searches[0].decide(grids[0], epochs, budget)
        proven = answer is False
        found = [Found(grids[0], epochs, answer, epochs == least[0])] if not isinstance(answer, bool | None) else []
    else:
        found, rest = [], epochs - sum(least)
        for search, grid, need in zip(searches, grids, least, strict=True):
            part = search.fewest(grid, budget, need + rest)
            if part is None:
                break
            found.append(part)
            rest -= part.epochs - need
        proven = False
    if len(found) < len(searches):
        if proven:
            raise Infeasible(f"exact:epochs: {what} are impossible, proven by branch and bound")
        raise SolverFailed(f"exact:epochs: {what} were not decided within the limits")
    schedule = _timed(problem, chunks, found)
    return Choice(schedule, _guarantee(problem, chunks, schedule, found), tuple(found))


def _timed(problem: Problem, chunks: int, found: Sequence[Found]) -> Schedule:
    """The sends of every phase as one schedule of the problem."""
    phases = [problem] if problem.kind != "allreduce" else [problem.as_kind(kind, chunks) for kind in PHASES]
    parts = []
    for phase, part in zip_longest(phases, found):
        forward = partial(as_schedule, chunks=chunks, found=part)
        parts.append(by_reversal(phase, forward) if phase.kind in BACKWARDS else forward(phase))
    return parts[0] if len(parts) == 1 else compose(parts[0], parts[1], problem.collective(chunks))


def _guarantee(problem: Problem, chunks: int, schedule: Schedule, found: Sequence[Found]) -> str:
    """What is proven, in words: not that epochs are fewest where the program does not see all that takes time."""
    if schedule.finish_s <= whole_s(problem, chunks) * (1 + RELATIVE):
        return f"proven optimal for {_count(chunks)}"
    topology = problem.topology
    unseen = (problem.reduces and topology.reduce_s_per_byte.any()) or topology.multicast.any()
    phases = f" {BY_PHASES}" if len(found) > 1 else ""
    if unseen or not all(each.fewest for each in found) or len({each.grid.epoch_s for each in found}) > 1:
        return f"none{phases}"
    late = " (arrivals rounded)" if found[0].grid.late == LATE else ""
    return f"fewest epochs of {_us(found[0].grid)} us{late}{phases} for {_count(chunks)}"


def _us(grid: Grid) -> str:
    return f"{grid.epoch_s * 1e6:.6g}"


def _noted(problem: Problem, options: Options, name: str, best: Choice) -> Schedule:
    """The schedule with what it says of its origin."""
    shown: dict[str, object] = {"chunks_per_rank": best.schedule.collective.chunks_per_rank}
    if best.found:
        shown |= {"epochs": sum(found.epochs for found in best.found), "epoch_us": float(_us(best.found[0].grid))}
    notes = provenance(problem, options, name, **shown, guarantee=best.guarantee)
    return replace(best.schedule, provenance=notes)


EPOCHS = ExactEpochs()
