"""Alltoall of boxes with skewed counts: balanced inside boxes, then box to box without two senders to one receiver."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from collsyn.model.arrays import F64, I64
from collsyn.model.collective import Collective
from collsyn.model.schedule import RouteCosts, Schedule
from collsyn.model.topology import Topology
from collsyn.synth import rebalanced_kernels as kernels
from collsyn.synth.baseline import affordable, hops_of, without_hop
from collsyn.synth.problem import Options, Problem, provenance
from collsyn.topology.hops import Hops

LADDER = (1, 2, 4, 8, 16, 32, 64)
# Counts in vain after which no more are tried, and the most legs of a piece.
PATIENCE, LEGS = 2, 3
# Flows that a link tells apart at most.
MOST_FLOWS = 64


class Rebalanced:
    """Serves alltoall and alltoallv among all ranks of equal boxes whose ranks of the same place are joined.

    A piece goes to the rank of its box that has the chosen rail, over it to the peer in the receiver's box, and there
    to its receiver; rails are chosen so that all ends of rails carry alike, however skewed the counts. Each rail is an
    open shop of boxes: a box sends to one and hears from one at a time, so that nothing collides. Source: FAST
    (arXiv 2505.09764), which takes stages of equal length from a Birkhoff decomposition; here a pair is served as soon
    as both ends are free.
    """

    name = "rebalanced"

    def accepts(self, problem: Problem) -> str | None:
        """None if it serves the problem, else why not."""
        if problem.kind not in ("alltoall", "alltoallv"):
            return f"makes no {problem.kind}"
        if problem.groups is not None:
            return "needs all ranks in one process group"
        topology = problem.topology
        boxes = _ranks_of_boxes(topology)
        if len(boxes) < 2 or len({len(box) for box in boxes}) > 1 or sum(map(len, boxes)) < topology.num_ranks:
            return "needs two boxes or more of equal size that the topology knows"
        inside = [(a, b) for box in boxes for a in box for b in box if a != b]
        across = [(box[i], other[i]) for box in boxes for other in boxes if box is not other for i in range(len(box))]
        return without_hop(topology, [*inside, *across])

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The best of several chunk counts. O(pieces x boxes) each."""
        fixed, boxed = problem.chunks_per_rank, _Boxed.of(problem)
        ladder = affordable(LADDER, LEGS * problem.topology.num_ranks**2) if fixed is None else [fixed]
        best, in_vain = None, 0
        for chunks in ladder:
            found = boxed.sent(problem.collective(chunks))
            in_vain += 1
            if best is None or found.finish_s < best.finish_s * (1 - 1e-6):
                best, in_vain = found, 0
            if in_vain == PATIENCE or chunks > problem.size_bytes / problem.topology.num_ranks:
                break
        assert best is not None
        notes = provenance(problem, options, self.name, chunks_per_rank=best.collective.chunks_per_rank)
        return replace(boxed.schedule(best), provenance=notes)


@dataclass(frozen=True, eq=False)
class _Legs:
    """Legs with their starts: the chunk, the hop and the start of each, and when all is done."""

    finish_s: float
    collective: Collective
    chunk: I64
    hop: I64
    start_s: F64


@dataclass(frozen=True, eq=False)
class _Boxed:
    """The boxes of a problem: `box[r]` and `place[r]` of every rank, `member[b, i]` the rank at place i of box b."""

    problem: Problem
    box: I64
    place: I64
    member: I64

    @classmethod
    def of(cls, problem: Problem) -> "_Boxed":
        """The boxes of an accepted problem."""
        member = np.array(_ranks_of_boxes(problem.topology), dtype=np.int64)
        box, place = np.empty(member.size, dtype=np.int64), np.empty(member.size, dtype=np.int64)
        box[member], place[member] = np.arange(len(member))[:, None], np.arange(member.shape[1])
        return cls(problem, box, place, member)

    @cached_property
    def table(self) -> Hops:
        """All hops."""
        return hops_of(self.problem.topology)

    @cached_property
    def costs(self) -> RouteCosts:
        """What hops cost."""
        return RouteCosts.of(self.problem.topology, self.table.routes)

    @cached_property
    def hop_between(self) -> I64:
        """The widest hop from rank to rank, -1 where there is none: shape [ranks, ranks]."""
        n = self.problem.topology.num_ranks
        found = np.full((n, n), -1)
        order = np.argsort(-self.table.beta_s_per_byte, kind="stable")
        found[self.table.src[order], self.table.dst[order]] = order
        return found

    def sent(self, collective: Collective) -> _Legs:
        """All pieces of a collective on their rails, in turn."""
        first = collective.sets.data[collective.sets.ptr[:-1]].astype(np.int64)
        source, target = first[collective.pre], first[collective.post]
        chunk = np.flatnonzero(source != target)
        source, target = source[chunk], target[chunk]
        num_bytes = collective.chunk_bytes(self.problem.size_bytes)[chunk]
        leaves = self.box[source] != self.box[target]
        before, behind = source.copy(), target.copy()  # the ends of the rail
        key_s = np.zeros(len(chunk))
        away = np.flatnonzero(leaves)
        if len(away):
            rail = self._rails(source[away], target[away], num_bytes[away])
            before[away] = self.member[self.box[source[away]], rail]
            behind[away] = self.member[self.box[target[away]], rail]
            seconds = num_bytes[away] / self.costs.rate[self.hop_between[before[away], behind[away]]]
            key_s[away] = self._starts(rail, source[away], target[away], seconds)
        # What stays in its box needs no rail, and is spread over the time of those that do.
        stays = np.flatnonzero(~leaves)
        key_s[stays] = np.linspace(0.0, float(key_s.max(initial=0.0)), len(stays) + 2)[1:-1]
        return self._timed(collective, chunk, num_bytes, key_s, (source, before, behind, target))

    def _rails(self, source: I64, target: I64, num_bytes: F64) -> I64:
        ends = (self.box[source], self.box[target], self.place[source], self.place[target])
        order = np.argsort(-num_bytes, kind="stable")
        return kernels.choose_rails(*ends, num_bytes, order, *self.member.shape)

    def _starts(self, rail: I64, source: I64, target: I64, seconds: F64) -> F64:
        """Planned starts on all rails."""
        boxes, rails = self.member.shape
        start_s = np.zeros(len(rail))
        cell = (rail * boxes + self.box[source]) * boxes + self.box[target]
        # Pieces whose source has the rail go first: nothing has to come before them.
        order = np.lexsort((-seconds, self.place[source] != rail, cell))
        cell_ptr = np.searchsorted(cell[order], np.arange(rails * boxes**2 + 1))
        for number in range(rails):
            part = cell_ptr[number * boxes**2 : (number + 1) * boxes**2 + 1]
            found = kernels.open_shop(part - part[0], order[part[0] : part[-1]], seconds, boxes)
            start_s = np.where(np.isnan(found), start_s, found)
        return start_s

    def _timed(
        self, collective: Collective, chunk: I64, num_bytes: F64, key_s: F64, stops: tuple[I64, I64, I64, I64]
    ) -> _Legs:
        """Legs of all pieces from stop to stop, in the order of the planned starts, as early as links allow.

        A leg to the rail is planned ahead of it by as much as the start of a rail's queue, a leg from it behind.
        """
        topology, costs, routes = self.problem.topology, self.costs, self.table.routes
        piece, hop, when_s = [], [], []
        lead_s = 4 * float(num_bytes.max(initial=0.0)) / float(costs.rate.min(initial=np.inf))
        for step, (a, b) in enumerate(pairwise(stops)):
            moves = np.flatnonzero(a != b)
            piece.append(moves)
            hop.append(self.hop_between[a[moves], b[moves]])
            direct = stops[1] == stops[2]
            ahead_s = np.where(direct[moves], 0.0, (step - 1) * lead_s)
            when_s.append(key_s[moves] + ahead_s)
        order = np.lexsort((np.repeat([0, 1, 2], [len(part) for part in piece]), np.concatenate(when_s)))
        legs, hops = np.concatenate(piece)[order], np.concatenate(hop)[order]
        slowest = np.full(topology.num_links, np.inf)
        np.minimum.at(slowest, routes.data, np.repeat(costs.rate, routes.lengths()))
        flows = (topology.bandwidth / slowest)[np.isfinite(slowest)].max(initial=1.0)
        start_s, finish_s = kernels.in_turn(
            legs,
            hops,
            num_bytes[legs],
            len(chunk),
            np.array(routes.ptr),
            np.array(routes.data),
            costs.before_s,
            costs.alpha_s,
            costs.overhead_s,
            costs.rate,
            np.array(topology.bandwidth),
            int(np.clip(np.ceil(flows) + 1, 2, MOST_FLOWS)),
        )
        return _Legs(float(finish_s), collective, chunk[legs], hops, start_s)

    def schedule(self, legs: _Legs) -> Schedule:
        """The schedule of the legs."""
        table, problem = self.table, self.problem
        # The order of Schedule by two keys instead of five: a chunk leaves no two ranks at once.
        order = np.lexsort((legs.chunk, legs.start_s))
        hop = legs.hop[order]
        return Schedule.build(
            legs.collective,
            problem.topology,
            problem.size_bytes,
            table.routes,
            {},
            chunk=legs.chunk[order],
            src=table.src[hop],
            dst=table.dst[hop],
            route=hop,
            start_s=legs.start_s[order],
        )


def _ranks_of_boxes(topology: Topology) -> list[list[int]]:
    found = [[vertex for vertex in box if vertex < topology.num_ranks] for box in topology.boxes]
    return [box for box in found if box]


REBALANCED = Rebalanced()
