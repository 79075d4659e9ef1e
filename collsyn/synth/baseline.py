"""What textbook algorithms share: rounds of messages become a schedule; reductions and allreduce come from the rest."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from collsyn.model.collective import Collective
from collsyn.model.schedule import COPY, VALUE, Schedule
from collsyn.model.topology import Topology
from collsyn.synth.problem import REVERSED, Options, Problem, provenance
from collsyn.synth.timing import Sends
from collsyn.synth.transform import by_reversal, compose
from collsyn.topology.hops import Hops, hops

hops_of = lru_cache(maxsize=32)(hops)

# Schedules of more rows take longer to make than further chunks win.
MAX_ROWS = 1 << 18


class Message(NamedTuple):
    """Chunks that travel together from rank to rank; a message from a rank to itself merges slots."""

    chunks: Sequence[int]
    src: int
    dst: int
    op: int = COPY
    src_slot: int = VALUE
    dst_slot: int = VALUE


Rounds = Iterable[Sequence[Message]]


class Baseline(ABC):
    """A synthesizer that builds some collectives itself and gets the others from them.

    `builds` are the kinds it builds; their reversals follow by running time backwards, and allreduce by doing `phases`
    (each a kind that it builds or reverses) one after the other.
    """

    name: str
    builds: frozenset[str]
    phases: tuple[str, str] | None = None

    @abstractmethod
    def obstacle(self, problem: Problem) -> str | None:
        """Why a problem of a kind that it builds is not served, or None."""

    @abstractmethod
    def build(self, problem: Problem) -> Schedule:
        """The schedule of a problem of a kind that it builds."""

    def accepts(self, problem: Problem) -> str | None:
        """None if it serves the problem, else why not."""
        if problem.kind in self.builds:
            return self.obstacle(problem)
        if REVERSED.get(problem.kind) in self.builds:
            return self.obstacle(problem.reversed)
        if problem.kind == "allreduce" and self.phases:
            sizes = {len(group) for group in problem.members}
            if "reduce" in self.phases and len(sizes) > 1:
                return "needs process groups of equal size"
            return next(filter(None, (self.accepts(problem.as_kind(kind)) for kind in self.phases)), None)
        return f"makes no {problem.kind}"

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The schedule of a problem that it accepts."""
        schedule = self._solve(problem)
        chunks = schedule.collective.chunks_per_rank
        return replace(schedule, provenance=provenance(problem, options, self.name, chunks_per_rank=chunks))

    def _solve(self, problem: Problem) -> Schedule:
        if problem.kind in self.builds:
            return self.build(problem)
        if REVERSED.get(problem.kind) in self.builds:
            return by_reversal(problem, self.build)
        assert self.phases is not None
        # The buffer of an allreduce has as many chunks for every rank; that of a reduce or broadcast has them in all.
        factor = len(problem.members[0]) if "reduce" in self.phases else 1
        asked = problem.chunks_per_rank if factor == 1 else factor * (problem.chunks_per_rank or 1)
        first = self._solve(problem.as_kind(self.phases[0], asked))
        chunks = first.collective.chunks_per_rank
        second = self._solve(problem.as_kind(self.phases[1], chunks))
        return compose(first, second, problem.collective(chunks // factor))


def from_rounds(problem: Problem, collective: Collective, groups: Iterable[Rounds]) -> Schedule:
    """The schedule of the rounds of every process group, round by round, each message over its pair's quickest hop.

    Messages of all groups share the links; each starts as soon as its data is there and its links are free.
    """
    table = hops_of(problem.topology)
    lengths = collective.chunk_bytes(problem.size_bytes)
    sends = Sends(table.routes)
    best: dict[float, dict[tuple[int, int], int]] = {}
    for rounds in zip_longest(*groups, fillvalue=()):
        for message in (message for group in rounds for message in group):
            route = -1
            if message.src != message.dst:
                num_bytes = float(lengths[np.asarray(message.chunks, dtype=np.int64)].sum())
                if num_bytes not in best:
                    best[num_bytes] = table.best(num_bytes)
                route = best[num_bytes][message.src, message.dst]
            chunks, src, dst, *rest = message
            sends.add(chunks, src, dst, route, *rest)
    return sends.timed(collective, problem.topology, problem.size_bytes)


@lru_cache(maxsize=32)
def joined_pairs(topology: Topology) -> frozenset[tuple[int, int]]:
    """The ordered pairs of ranks that some hop joins."""
    table = hops_of(topology)
    return frozenset(zip(table.src.tolist(), table.dst.tolist(), strict=True))


def without_hop(topology: Topology, pairs: Iterable[tuple[int, int]]) -> str | None:
    """The first pair of ranks that no hop joins, in words; None where all are joined."""
    joined = joined_pairs(topology)
    missing = next((pair for pair in pairs if pair not in joined), None)
    return None if missing is None else f"needs a link or a way through switches from rank {missing[0]} to {missing[1]}"


def chunks_of(collective: Collective) -> dict[int, list[int]]:
    """For every rank, the chunks that it alone holds at the start, ascending."""
    alone = collective.sets.lengths()[collective.pre] == 1
    owners = collective.sets.data[collective.sets.ptr[:-1]][collective.pre]
    found: dict[int, list[int]] = {}
    for chunk in np.flatnonzero(alone).tolist():
        found.setdefault(int(owners[chunk]), []).append(chunk)
    return found


def quickest(problem: Problem, ladder: Iterable[int], build: Callable[[Problem], Schedule]) -> Schedule:
    """The schedule with the chunk count of a rising ladder that finishes first; stops when two in a row do not pay.

    A count that the problem fixes is taken.
    """
    if problem.chunks_per_rank is not None:
        return build(problem)
    best, in_vain = None, 0
    for chunks in ladder:
        found = build(replace(problem, chunks_per_rank=chunks))
        in_vain += 1
        if best is None or found.finish_s < best.finish_s * (1 - 1e-6):
            best, in_vain = found, 0
        if in_vain == 2:
            break
    assert best is not None
    return best


def affordable(ladder: Sequence[int], rows_per_chunk: int) -> list[int]:
    """The chunk counts of a ladder that are worth trying; always the first."""
    return [ladder[0], *(chunks for chunks in ladder[1:] if chunks * rows_per_chunk <= MAX_ROWS)]


def pair_table(table: Hops, num_bytes: float) -> dict[tuple[int, int], float]:
    """Seconds of a message of that many bytes between every pair that a hop joins."""
    seconds = table.seconds(num_bytes).tolist()
    return {pair: seconds[hop] for pair, hop in table.best(num_bytes).items()}
