"""Quickest paths: every chunk along quickest chains of hops, for every collective on every connected topology."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from collsyn.errors import Infeasible
from collsyn.model.collective import Collective
from collsyn.model.schedule import COPY, REDUCE, Schedule
from collsyn.synth.baseline import hops_of
from collsyn.synth.problem import REVERSED, Options, Problem, provenance, turned
from collsyn.synth.timing import Sends
from collsyn.synth.transform import by_composition, by_reversal
from collsyn.topology.hops import Hops, chains

Chain = tuple[int, ...]


class Step(NamedTuple):
    """One hop of a chunk; `after_s` orders steps: how long the way before it takes when nothing else is under way."""

    phase: int
    after_s: float
    turn: int
    chunk: int
    hop: int
    op: int


class Paths:
    """Each chunk goes to its receivers along the tree of quickest chains from its nearest holder, hop by hop.

    No load is balanced: this is the method that always works, and the yardstick for the others. Reductions of named
    kinds by reversal, allreduce by composition; a custom reduction gathers each chunk at its first receiver and spreads
    it from there.
    """

    name = "paths"

    def accepts(self, problem: Problem) -> str | None:
        """Serves every problem."""
        return None

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The schedule; raises Infeasible where a receiver cannot be reached."""
        schedule = self._solve(problem)
        chunks = schedule.collective.chunks_per_rank
        return replace(schedule, provenance=provenance(problem, options, self.name, chunks_per_rank=chunks))

    def _solve(self, problem: Problem) -> Schedule:
        if problem.kind == "allreduce":
            return by_composition(problem, self._solve)
        if problem.reduces and problem.kind in REVERSED:
            return by_reversal(problem, self._solve)
        collective, table = problem.collective(), hops_of(problem.topology)
        steps = _reducing(problem, collective) if problem.reduces else _spreading(problem, collective, table)
        sends = Sends(table.routes)
        for step in sorted(steps):
            sends.add([step.chunk], int(table.src[step.hop]), int(table.dst[step.hop]), step.hop, step.op)
        return sends.timed(collective, problem.topology, problem.size_bytes)


class _Ways:
    """Chains of hops from ranks, found when they are first asked for."""

    def __init__(self, problem: Problem, table: Hops, num_bytes: float) -> None:
        self.name, self.table, self.num_bytes = problem.topology.name, table, num_bytes
        self.seconds: list[float] = table.seconds(num_bytes).tolist()
        self._known: dict[int, Mapping[int, Chain]] = {}

    def chain(self, source: int, target: int, turned_round: bool = False) -> Chain:
        """Hops from source to target; raises Infeasible."""
        if source not in self._known:
            self._known[source] = {source: (), **chains(self.table, self.num_bytes, source)}
        if target not in self._known[source]:
            a, b = (target, source) if turned_round else (source, target)
            raise Infeasible(f"topology {self.name}: no way leads from rank {a} to rank {b}")
        return self._known[source][target]

    def duration_s(self, chain: Chain) -> float:
        """Time of the chain with nothing else under way."""
        return sum(self.seconds[hop] for hop in chain)


def _chunk_bytes(problem: Problem, collective: Collective) -> float:
    return float(collective.chunk_bytes(problem.size_bytes).mean())


def _spreading(problem: Problem, collective: Collective, table: Hops) -> Iterator[Step]:
    """Copies from the nearest holder to every receiver, shared where chains begin alike."""
    ways = _Ways(problem, table, _chunk_bytes(problem, collective))
    sets = collective.sets.tuples()
    trees: dict[tuple[int, int], list[tuple[float, int, int]]] = {}
    for chunk, ends in enumerate(zip(collective.pre.tolist(), collective.post.tolist(), strict=True)):
        if ends not in trees:
            trees[ends] = _tree(ways, sets[ends[0]], sets[ends[1]], problem.topology.num_ranks)
        for after_s, turn, hop in trees[ends]:
            yield Step(1, after_s, turn, chunk, hop, COPY)


def _tree(ways: _Ways, holders: Chain, receivers: Chain, num_ranks: int) -> list[tuple[float, int, int]]:
    """(time of the way before, distance of ranks, hop) for every hop by which some receiver is reached."""
    found: dict[int, tuple[float, int, int]] = {}
    for receiver in receivers:
        if receiver in holders:
            continue
        chain = min((ways.chain(holder, receiver) for holder in holders), key=ways.duration_s)
        for i, hop in enumerate(chain):
            entered = int(ways.table.dst[hop])
            if entered not in found and entered not in holders:
                found[entered] = (ways.duration_s(chain[:i]), (receiver - chain[0]) % num_ranks, hop)
    return list(found.values())


def _reducing(problem: Problem, collective: Collective) -> Iterator[Step]:
    """Sums along chains to the first receiver of each chunk, then copies from there to the others."""
    num_bytes = _chunk_bytes(problem, collective)
    out = _Ways(problem, hops_of(problem.topology), num_bytes)
    into = _Ways(problem, hops_of(turned(problem.topology)), num_bytes)
    # The hops of the turned topology are those of the topology, met by the same links.
    same = {tuple(route[::-1]): hop for hop, route in enumerate(out.table.routes.tuples())}
    reverse_routes = into.table.routes.tuples()
    sets = collective.sets.tuples()
    for chunk, (pre, post) in enumerate(zip(collective.pre.tolist(), collective.post.tolist(), strict=True)):
        hub = sets[post][0]
        gathered: dict[int, tuple[float, int]] = {}
        for contributor in sets[pre]:
            chain = into.chain(hub, contributor, turned_round=True)
            for i, hop in enumerate(chain):
                gathered[int(into.table.dst[hop])] = (into.duration_s(chain[: i + 1]), hop)
        for duration_s, hop in gathered.values():
            yield Step(0, -duration_s, chunk, chunk, same[reverse_routes[hop]], REDUCE)
        for after_s, turn, hop in _tree(out, (hub,), sets[post], problem.topology.num_ranks):
            yield Step(1, after_s, turn, chunk, hop, COPY)


PATHS = Paths()
