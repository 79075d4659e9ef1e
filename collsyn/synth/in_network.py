"""Collectives whose switches copy and reduce on the way (NVLink SHARP, multicast), inside boxes and across them.

Sources: Graham et al., SHARP (COM-HPC 2016); NVIDIA NVLink SHARP (H100). The order of rounds is our own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from collsyn.model.arrays import Rows
from collsyn.model.collective import Collective
from collsyn.model.schedule import COPY, REDUCE, RouteCosts, Schedule
from collsyn.model.topology import Topology
from collsyn.synth.baseline import chunks_of, hops_of
from collsyn.synth.problem import Options, Problem, provenance

# Kinds, and whether they reduce towards an owner and copy from it.
_PHASES = {"allreduce": (True, True), "reducescatter": (True, False), "allgather": (False, True)}
# Chunks of a rank and rounds between the stages of a chunk that are tried; rows of a schedule.
CHUNKS, LAGS, MAX_ROWS = (1, 2, 4, 8, 16, 32, 64), (0, 1, 2), 100_000


@dataclass(frozen=True, eq=False)
class Boxes:
    """Ranks by box, and the switches that all of a box are on; rank i of every box has a hop to those of other boxes.

    `up[w][r]` and `down[w][r]` are the links between rank r and switch w; `across[r, s]` is a hop.
    """

    ranks: tuple[tuple[int, ...], ...]
    switches: tuple[tuple[int, ...], ...]
    up: dict[int, dict[int, int]]
    down: dict[int, dict[int, int]]
    across: dict[tuple[int, int], tuple[int, ...]]


@dataclass(frozen=True)
class Step:
    """A chunk on its way from all `sources` to all `targets` at once (one of either), over a route for each pair."""

    chunk: int
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    routes: tuple[tuple[int, ...], ...]
    op: int


class InNetwork:
    """Allreduce, reduce-scatter and allgather of all ranks, each chunk by way of its owner.

    In every box the switch adds up what the box has of a chunk and gives it to one rank; these ranks, one a box, add
    theirs up at the chunk's owner, from which the sum goes the same way back, the switches copying. In a round every
    rank is the one of its box in turn; the link to it brings sums and that from it takes results of an earlier round,
    so that at an allreduce all links of a box are busy both ways: every byte crosses each of them once.
    """

    name = "in-network"

    def accepts(self, problem: Problem) -> str | None:
        """None if it serves the problem, else why not."""
        if problem.kind not in _PHASES:
            return f"makes no {problem.kind}"
        if problem.groups is not None or problem.counts is not None:
            return "serves all ranks with equal parts"
        found = boxes_of(problem.topology, *_PHASES[problem.kind])
        return found if isinstance(found, str) else None

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The quickest of several numbers of chunks and distances between stages."""
        boxes = boxes_of(problem.topology, *_PHASES[problem.kind])
        assert isinstance(boxes, Boxes)
        found = min(self._plans(problem, boxes), key=lambda plan: plan.finish_s)
        origin = provenance(problem, options, self.name, chunks_per_rank=found.chunks, lag=found.lag)
        return replace(found.schedule(problem), provenance=origin)

    def _plans(self, problem: Problem, boxes: Boxes) -> Iterator["_Rounds"]:
        most = problem.size_bytes / problem.topology.num_ranks / problem.topology.min_piece_bytes
        for chunks in CHUNKS if problem.chunks_per_rank is None else (problem.chunks_per_rank,):
            rows = chunks * problem.topology.num_ranks**2 * sum(_PHASES[problem.kind])
            if chunks > 1 and problem.chunks_per_rank is None and (chunks > most or rows > MAX_ROWS):
                return
            for lag in LAGS:
                if lag < max(chunks, 2):
                    yield _Rounds(problem, boxes, chunks, lag)


class _Rounds:
    """The steps of all chunks, each as early as those before it on its links and its data allow."""

    def __init__(self, problem: Problem, boxes: Boxes, chunks: int, lag: int) -> None:
        self.boxes, self.chunks, self.lag = boxes, chunks, lag
        self.topology, self.size_bytes = problem.topology, problem.size_bytes
        self.collective: Collective = problem.collective(chunks)
        self.owned = chunks_of(problem.as_kind("allgather", chunks).collective())
        self.steps = list(self._steps(*_PHASES[problem.kind]))
        self.start_s, self.finish_s = self._timed()

    def _steps(self, reduces: bool, copies: bool) -> Iterator[Step]:
        many = len(self.boxes.ranks) > 1
        stages: list[tuple[Callable[..., Iterator[Step]], int]] = []
        stages += [(self._in_box, REDUCE)] if reduces else []
        stages += [(self._across, REDUCE)] if reduces and many else []
        stages += [(self._across, COPY)] if copies and many else []
        stages += [(self._in_box, COPY)] if copies else []
        for turn in range(self.chunks + self.lag * (len(stages) - 1)):
            for i in range(len(self.boxes.ranks[0])):
                for late, (stage, op) in enumerate(stages):
                    if 0 <= turn - late * self.lag < self.chunks:
                        yield from stage(i, op, turn - late * self.lag)

    def _in_box(self, i: int, op: int, number: int) -> Iterator[Step]:
        """Chunk `number` of the owners of number i, in all boxes between rank i and the others."""
        for owner in (box[i] for box in self.boxes.ranks):
            chunk = int(self.owned[owner][number])
            for box, switches in zip(self.boxes.ranks, self.boxes.switches, strict=True):
                w, head, others = switches[number % len(switches)], box[i], tuple(r for r in box if r != box[i])
                up, down = self.boxes.up[w], self.boxes.down[w]
                if op == REDUCE:
                    yield Step(chunk, others, (head,), tuple((up[r], down[head]) for r in others), op)
                else:
                    yield Step(chunk, (head,), others, tuple((up[head], down[r]) for r in others), op)

    def _across(self, i: int, op: int, number: int) -> Iterator[Step]:
        """The same between the owners and rank i of other boxes, each meeting another one at a time."""
        heads = [box[i] for box in self.boxes.ranks]
        for shift in range(1, len(heads)):
            for owner, head in zip(heads, heads[shift:] + heads[:shift], strict=True):
                ends = (head, owner) if op == REDUCE else (owner, head)
                yield Step(int(self.owned[owner][number]), ends[:1], ends[1:], (self.boxes.across[ends],), op)

    @cached_property
    def _costs(self) -> dict[tuple[int, ...], tuple[float, float, float, list[float]]]:
        """Alpha, overhead, bytes/s, and alphas before every link, of all routes."""
        routes = list(dict.fromkeys(way for step in self.steps for way in step.routes))
        table = Rows.of(routes)
        costs = RouteCosts.of(self.topology, table)
        return {
            way: (
                float(costs.alpha_s[n]),
                float(costs.overhead_s[n]),
                float(costs.rate[n]),
                costs.before_s[table.ptr[n] : table.ptr[n + 1]].tolist(),
            )
            for n, way in enumerate(routes)
        }

    def _timed(self) -> tuple[list[float], float]:
        lengths = self.collective.chunk_bytes(self.size_bytes).tolist()
        reduce_s = self.topology.reduce_s_per_byte.tolist()
        free_s = [0.0] * self.topology.num_links
        known_s: dict[tuple[int, int], float] = {}
        starts, finish_s = [], 0.0
        for step in self.steps:
            start = max(known_s.get((rank, step.chunk), 0.0) for rank in step.sources)
            if step.op == COPY:
                # What is there is replaced only when it has been passed on.
                start = max(start, *(known_s.get((rank, step.chunk), 0.0) for rank in step.targets))
            for way in step.routes:
                ahead = self._costs[way][3]
                start = max(start, *(free_s[link] - before for link, before in zip(way, ahead, strict=True)))
            for way, rank in zip(step.routes, step.targets * (len(step.routes) // len(step.targets)), strict=True):
                alpha, overhead, rate, ahead = self._costs[way]
                transfer = lengths[step.chunk] / rate
                for link, before in zip(way, ahead, strict=True):
                    free_s[link] = max(free_s[link], start + before + overhead + transfer)
                done = start + alpha + transfer + (lengths[step.chunk] * reduce_s[rank] if step.op == REDUCE else 0.0)
                known_s[rank, step.chunk] = max(known_s.get((rank, step.chunk), 0.0), done)
                finish_s = max(finish_s, done)
            starts.append(start)
        return starts, finish_s

    def schedule(self, problem: Problem) -> Schedule:
        """The steps as sends; those of one step start together, so that the switch joins them."""
        routes = {way: number for number, way in enumerate(self._costs)}
        rows = [
            (step.chunk, source, target, routes[way], start, step.op)
            for step, start in zip(self.steps, self.start_s, strict=True)
            for source, target, way in _pairs(step)
        ]
        names = ("chunk", "src", "dst", "route", "start_s", "op")
        columns = {name: np.array(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
        return Schedule.build(self.collective, problem.topology, problem.size_bytes, list(routes), None, **columns)


def _pairs(step: Step) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    many = len(step.routes)
    sources, targets = (ends * (many // len(ends)) for ends in (step.sources, step.targets))
    return zip(sources, targets, step.routes, strict=True)


def boxes_of(topology: Topology, reduces: bool, copies: bool) -> Boxes | str:
    """The boxes of a topology whose switches can do what is asked, or why there are none."""
    able = np.ones(topology.num_vertices, dtype=np.bool_)
    words = [word for word, asked in (("multicast", copies), ("reduction", reduces)) if asked]
    for word in words:
        able &= getattr(topology, word)
    up: dict[int, dict[int, int]] = {int(w): {} for w in np.flatnonzero(able) if topology.is_switch(int(w))}
    down: dict[int, dict[int, int]] = {w: {} for w in up}
    for link, (u, v) in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True)):
        if v in up and u < topology.num_ranks:
            up[v].setdefault(u, link)
        if u in down and v < topology.num_ranks:
            down[u].setdefault(v, link)
    on: dict[tuple[int, ...], list[int]] = {}
    for w, links_up in up.items():
        ranks = tuple(sorted(links_up.keys() & down[w].keys()))
        if len(ranks) > 1:
            on.setdefault(ranks, []).append(w)
    boxes = sorted(on)
    if sorted(rank for box in boxes for rank in box) != list(range(topology.num_ranks)):
        return f"needs every rank on the {' and '.join(words)} switches of one box"
    if len({len(box) for box in boxes}) > 1:
        return "needs boxes of equal size"
    for w in (w for box in boxes for w in on[box]):
        for links in (up[w], down[w]):
            ids = np.array(list(links.values()))
            costs = np.stack([topology.alpha_s[ids], topology.beta_s_per_byte[ids], topology.overhead_s[ids]])
            if not (costs == costs[:, :1]).all():
                return f"needs links of equal cost on switch {topology.vertex_name(w)}"
    across = _across(topology, boxes)
    if across is None:
        return "needs a hop between ranks of equal number in all boxes"
    return Boxes(tuple(boxes), tuple(tuple(on[box]) for box in boxes), up, down, across)


def _across(topology: Topology, boxes: Sequence[tuple[int, ...]]) -> dict[tuple[int, int], tuple[int, ...]] | None:
    if len(boxes) == 1:
        return {}
    table = hops_of(topology)
    hop = {pair: h for h, pair in enumerate(zip(table.src.tolist(), table.dst.tolist(), strict=True))}
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    for ranks in zip(*boxes, strict=True):
        for pair in ((u, v) for u in ranks for v in ranks if u != v):
            if pair not in hop:
                return None
            found[pair] = tuple(table.routes[hop[pair]].tolist())
    return found


IN_NETWORK = InNetwork()
