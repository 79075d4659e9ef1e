"""Steps: a collective as pieces that cross hops in numbered steps, up to the symmetries of collective and topology.

Source: SCCL (PPoPP 2021), whose instances are chunks, steps and rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from collsyn.model.arrays import I64, Bools, Rows
from collsyn.model.topology import Topology
from collsyn.synth.baseline import hops_of
from collsyn.synth.problem import Problem
from collsyn.synth.trees_symmetry import Moves, moves
from collsyn.topology.hops import Hops
from collsyn.topology.symmetry import link_images

# What a link carries in a round is a fraction with at most this denominator, rounded down to that.
MAX_DENOMINATOR = 1000
NEVER = 1 << 20


@dataclass(frozen=True, eq=False)
class StepCase:
    """A collective without reduction, its flows (who has what, who wants it) and the hops of the topology.

    A flow stands for as many equal chunks as an instance has a rank. In a round a link carries `lanes` chunks, in
    proportion to its bandwidth, 1 over the narrowest link. `group` moves flows to flows and hops to hops: `flow_image`
    and `hop_image` have a row an element. `first` are the flows that stand for their orbits.
    """

    problem: Problem
    table: Hops
    group: Moves
    source: I64
    receivers: tuple[tuple[int, ...], ...]
    flow_image: I64
    hop_image: I64
    first: I64
    lanes: tuple[Fraction, ...]

    @classmethod
    def of(cls, problem: Problem, symmetric: bool = True) -> "StepCase":
        """The case of a problem that `obstacle` lets pass; without symmetry the group is trivial."""
        topology, collective = problem.topology, problem.collective(1)
        flows = [
            (int(collective.contributors(chunk)[0]), tuple(collective.receivers(chunk).tolist()))
            for chunk in range(collective.num_chunks)
        ]
        number = {flow: i for i, flow in enumerate(flows)}
        table = hops_of(topology)
        hop_number = {route: hop for hop, route in enumerate(table.routes.tuples())}

        def flow_images(image: I64) -> list[int]:
            return [number.get((int(image[src]), tuple(sorted(image[list(dst)].tolist()))), -1) for src, dst in flows]

        def hop_images(links: I64) -> list[int]:
            moved = Rows(table.routes.ptr, links[table.routes.data]).tuples()
            return [hop_number.get(route, -1) for route in moved]

        def keeps(image: I64) -> bool:
            links = link_images(topology, image)
            return symmetric and links is not None and -1 not in flow_images(image) and -1 not in hop_images(links)

        group = moves(topology, keeps)
        flow_image = np.array([flow_images(image) for image in group.vertices], dtype=np.int64)
        return cls(
            problem=problem,
            table=table,
            group=group,
            source=np.array([src for src, _ in flows], dtype=np.int64),
            receivers=tuple(tuple(rank for rank in dst if rank != src) for src, dst in flows),
            flow_image=flow_image,
            hop_image=np.array([hop_images(links) for links in group.links], dtype=np.int64),
            first=np.unique(flow_image.min(axis=0)),
            lanes=_lanes(topology, table),
        )

    @cached_property
    def representatives(self) -> I64:
        """Flows that have to travel, one an orbit."""
        return np.array([flow for flow in self.first.tolist() if self.receivers[flow]], dtype=np.int64)

    def away(self, travel: I64) -> I64:
        """Periods from rank to rank along the quickest chain (NEVER where there is none). Shape [ranks, ranks].

        `travel[h]` are the periods of every hop. O(ranks x hops x longest chain).
        """
        n = self.table.num_ranks
        away = np.full((n, n), NEVER, dtype=np.int64)
        np.fill_diagonal(away, 0)
        while True:
            before = away.copy()
            np.minimum.at(away.T, self.table.dst, (before[:, self.table.src] + travel).T)
            if np.array_equal(before, away):
                return away

    @cached_property
    def each_step(self) -> I64:
        """One period for every hop."""
        return np.ones(len(self.table), dtype=np.int64)

    @cached_property
    def least_steps(self) -> int:
        """Steps that some flow needs at least (NEVER: a receiver cannot be reached)."""
        away = self.away(self.each_step)
        needed = (away[self.source[f], list(self.receivers[f])].max() for f in self.representatives.tolist())
        return int(max(needed, default=1))

    @cached_property
    def wanted(self) -> Bools:
        """Whether each rank has to receive each representative flow."""
        wanted = np.zeros((len(self.representatives), self.table.num_ranks), dtype=np.bool_)
        for row, flow in enumerate(self.representatives.tolist()):
            wanted[row, list(self.receivers[flow])] = True
        return wanted

    def usable(self, horizon: int, travel: I64) -> Bools:
        """Whether a flow may start over a hop in a period: shape [flows, periods, hops].

        It must have got to the hop's start, and from its end there must be time to get to a receiver.
        """
        source, away = self.source[self.representatives], self.away(travel)
        to_receiver = np.where(self.wanted[:, None, :], away[None, :, :], NEVER).min(axis=2)
        period, src, dst = np.arange(horizon), self.table.src, self.table.dst
        early = away[source][:, src][:, None, :] <= period[None, :, None]
        after = to_receiver[:, dst] + travel
        late = after[:, None, :] <= (horizon - period)[None, :, None]
        return np.asarray(early & late & (dst[None, :] != source[:, None])[:, None, :], dtype=np.bool_)

    def least_ratio_of_bytes(self, algbw_gb_s: Fraction) -> Fraction:
        """Rounds a chunk that the links need in any number of steps, from the throughput that none exceeds."""
        collective, topology = self.problem.collective(1), self.problem.topology
        share = Fraction(int(collective.units.max()), collective.total_units)
        return Fraction(_unit(topology, self.table) / (algbw_gb_s * share))


def obstacle(problem: Problem) -> str | None:
    """Why the flows of a problem are none of equal chunks with one source each, or None."""
    if problem.kind == "custom":
        return "the chunks of a custom collective are given"
    if problem.topology.size_rates:
        return "links have rates by length"
    collective = problem.collective(1)
    if len(np.unique(collective.units)) > 1:
        return "chunks differ in length (counts, or groups of several sizes)"
    return None


def unreachable(case: StepCase) -> str:
    """The pair that no hops join, in words."""
    away = case.away(case.each_step)
    pairs = ((int(case.source[f]), r) for f in case.representatives.tolist() for r in case.receivers[f])
    src, dst = next(pair for pair in pairs if away[pair] >= NEVER)
    return f"rank {dst} needs data of rank {src}, from which no way leads to it"


def _unit(topology: Topology, table: Hops) -> Fraction:
    """GB/s of the narrowest link that a hop uses: what carries one chunk in a round."""
    bandwidth = topology.exact_bandwidth_gb_s
    return Fraction(min(bandwidth[link] for link in np.unique(table.routes.data).tolist()))


def _lanes(topology: Topology, table: Hops) -> tuple[Fraction, ...]:
    if not len(table):
        return ()
    unit = _unit(topology, table)
    found = [bandwidth / unit for bandwidth in topology.exact_bandwidth_gb_s]
    if all(lanes.denominator <= MAX_DENOMINATOR for lanes in found):
        return tuple(found)
    return tuple(Fraction(int(lanes * MAX_DENOMINATOR), MAX_DENOMINATOR) for lanes in found)


def repeated(sends: I64, chunks: int, times: int) -> I64:
    """Sends (rows of flow, number of chunk, hop, step) of `times` as many chunks, each group of `chunks` alike."""
    again = [sends + np.array([0, chunks * i, 0, 0]) for i in range(times)]
    return np.concatenate(again)


def expanded(case: StepCase, sends: Sequence[tuple[int, int, int, int]]) -> I64:
    """Sends of all flows (rows of flow, number of chunk, hop, step) from those of the representatives."""
    rows = np.array(sends, dtype=np.int64).reshape(-1, 4)
    images = []
    for flow_image, hop_image in zip(case.flow_image, case.hop_image, strict=True):
        moved = rows.copy()
        moved[:, 0], moved[:, 2] = flow_image[rows[:, 0]], hop_image[rows[:, 2]]
        images.append(moved)
    return np.concatenate(images)
