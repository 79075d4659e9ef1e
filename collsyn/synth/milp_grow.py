"""Trees grown chunk by chunk: what the routing program starts from, and for short messages what it does not see."""

import heapq
from dataclasses import dataclass, field

import numpy as np

from collsyn.errors import Infeasible
from collsyn.model.arrays import F64, I64
from collsyn.synth.milp_case import Case


@dataclass(frozen=True, eq=False)
class Trees:
    """Which hops every chunk takes: columns `chunk` and `hop`, parents before children; `parent` is a row or -1."""

    chunk: I64
    hop: I64
    parent: I64

    def __len__(self) -> int:
        return len(self.chunk)


# When what a tree loads counts: for the trees after it; for itself as well; and so that chunks may share messages.
AFTERWARDS, AT_ONCE, SHARING = "afterwards", "at once", "sharing"


def grown(case: Case, manner: str = AFTERWARDS) -> Trees:
    """Trees of the chunks that stand for their orbits, each rank reached as soon as what was grown before leaves room.

    With SHARING a chunk may join a message that is not before it over the same hop, at no cost of latency: so trees
    grow wide where latency counts (as Bruck's algorithm does on a switch). O(chunks x hops log hops).
    """
    growth = _Growth(case, manner)
    rows: list[tuple[int, int]] = []
    for chunk in sorted(case.moving.tolist(), key=lambda c: (-float(case.away_s[c][case.wanted[c]].max()), c)):
        rows += growth.tree(chunk)
    return in_depth_order(case, rows)


@dataclass
class _Growth:
    """Until when links are busy, and the starts of the messages over every hop that stands for its orbit."""

    case: Case
    manner: str
    slots: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        case = self.case
        self.busy_s = np.zeros(len(case.lanes))
        self.routes = case.routes.tuples()
        self.first = case.hop_image.min(axis=0).tolist()

    def tree(self, chunk: int) -> list[tuple[int, int]]:
        """Rows (chunk, hop) by which a chunk gets to all who want it."""
        case, table = self.case, self.case.table
        via = self._via(chunk)
        needed: set[int] = set()
        for rank in np.flatnonzero(case.wanted[chunk]).tolist():
            while not case.holds[chunk, rank] and via[rank] not in needed:
                needed.add(via[rank])
                rank = int(table.src[via[rank]])
        if self.manner == AFTERWARDS:
            for hop in needed:
                for link in self.routes[hop]:
                    self.busy_s[link] += case.work_s[chunk, hop] / case.lanes[link]
        return [(chunk, hop) for hop in sorted(needed)]

    def _via(self, chunk: int) -> dict[int, int]:
        """The hop by which every rank gets a chunk first, or, where hops are limited, by the fewest if need be."""
        via = self._quickest(chunk)
        if self._keeps(chunk, via):
            return via
        case, table, via = self.case, self.case.table, {}
        level = [(int(rank), -1) for rank in np.flatnonzero(case.holds[chunk])]
        while level:
            via |= {rank: hop for rank, hop in reversed(level) if rank not in via}
            following = [h for rank in sorted({r for r, _ in level}) for h in table.out_of[rank].tolist()]
            level = [(int(table.dst[h]), h) for h in following if case.allowed[chunk, h]]
            level = [(rank, hop) for rank, hop in level if rank not in via]
        if not self._keeps(chunk, via):
            raise Infeasible(
                f"milp: chunk {chunk} cannot reach all its receivers within the hops that the sketch allows"
            )
        return via

    def _keeps(self, chunk: int, via: dict[int, int]) -> bool:
        """Whether no receiver is further than a sketch allows."""
        case = self.case
        if case.sketch is None or case.sketch.extra_hops is None:
            return True
        for receiver in np.flatnonzero(case.wanted[chunk]).tolist():
            rank, hops = receiver, 0
            while not case.holds[chunk, rank]:
                rank, hops = int(case.table.src[via[rank]]), hops + 1
            if hops > case.fewest_hops[chunk, receiver] + case.sketch.extra_hops:
                return False
        return True

    def _quickest(self, chunk: int) -> dict[int, int]:
        case, table = self.case, self.case.table
        via: dict[int, int] = {}
        heap = [(0.0, int(rank), -1, 0.0) for rank in np.flatnonzero(case.holds[chunk])]
        while heap:
            arrival, rank, hop, since = heapq.heappop(heap)
            if rank in via:
                continue
            if self.manner != AFTERWARDS and hop >= 0:
                at = self._start(hop, since)
                if at + case.seconds[chunk, hop] > arrival * (1 + 1e-12):
                    heapq.heappush(heap, (float(at + case.seconds[chunk, hop]), rank, hop, since))
                    continue
                self._take(chunk, hop, at)
            via[rank] = hop
            for following in table.out_of[rank].tolist():
                end = int(table.dst[following])
                if case.allowed[chunk, following] and end not in via:
                    at = self._start(following, arrival)
                    heapq.heappush(heap, (float(at + case.seconds[chunk, following]), end, following, arrival))
        return via

    def _start(self, hop: int, since: float) -> float:
        """When a chunk that is there since some time can cross a hop: with a message that leaves then or later, or
        when the links are free."""
        joined = [at for at in self.slots.get(self.first[hop], ()) if at >= since * (1 - 1e-12)]
        return min([*joined, max(since, *(float(self.busy_s[link]) for link in self.routes[hop]))])

    def _take(self, chunk: int, hop: int, at: float) -> None:
        """Note a crossing: more bytes of a message that is known, or a new message."""
        case, joins = self.case, False
        if self.manner == SHARING:
            slots = self.slots.setdefault(self.first[hop], [])
            joins = at in slots
            if not joins:
                slots.append(at)
        work_s = case.work_s[chunk, hop] - (case.table.overhead_s[hop] if joins else 0.0)
        for link in self.routes[hop]:
            begin = self.busy_s[link] if joins else max(at, self.busy_s[link])
            self.busy_s[link] = begin + work_s / case.lanes[link]


def relaxed_finish_s(case: Case, trees: Trees) -> float:
    """When the last chunk is there if no chunk waits for another, or the last link is done, if that is later."""
    seconds = case.seconds[trees.chunk, trees.hop]
    arrival = np.zeros(len(trees))
    for row, parent in enumerate(trees.parent.tolist()):
        arrival[row] = seconds[row] + (arrival[parent] if parent >= 0 else 0.0)
    return float(max(arrival.max(initial=0.0), _loads_s(case, trees).max(initial=0.0)))


def _loads_s(case: Case, trees: Trees) -> F64:
    """How long the links of every orbit are busy."""
    row, link, share = link_entries(case, trees.hop)
    return np.bincount(link, share * case.work_s[trees.chunk, trees.hop][row], len(case.lanes)).astype(np.float64)


def link_entries(case: Case, hop: I64) -> tuple[I64, I64, F64]:
    """For every link of the hops of some rows: the row, the link's orbit, and the part of it that a message takes."""
    routes = case.routes
    lengths = routes.lengths()[hop]
    row = np.repeat(np.arange(len(hop)), lengths)
    entry = np.repeat(routes.ptr[hop], lengths) + np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return row, routes.data[entry].astype(np.int64), case.link_share[entry]


def in_depth_order(case: Case, rows: list[tuple[int, int]]) -> Trees:
    """Rows (chunk, hop) that make up trees, parents first."""
    table = case.table
    below: dict[tuple[int, int], list[int]] = {}
    for chunk, hop in rows:
        below.setdefault((chunk, int(table.src[hop])), []).append(hop)
    ordered: list[tuple[int, int, int]] = []
    for chunk in sorted({chunk for chunk, _ in rows}):
        level = [(rank, -1) for rank in np.flatnonzero(case.holds[chunk]).tolist()]
        while level:
            following = []
            for rank, parent in level:
                for hop in sorted(below.get((chunk, rank), ())):
                    following.append((int(table.dst[hop]), len(ordered)))
                    ordered.append((chunk, hop, parent))
            level = following
    columns = np.array(ordered, dtype=np.int64).reshape(-1, 3).T
    return Trees(columns[0], columns[1], columns[2])
