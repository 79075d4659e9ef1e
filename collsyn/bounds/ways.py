"""Shortest ways for messages of one length: latency alone for fluid bounds, whole chunks hop by hop for the others."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64, I32, I64, Bools
from collsyn.model.topology import Topology

# Up to this many ranks all pairs are computed once.
TABLE_RANKS = 256


@dataclass(frozen=True, eq=False)
class Ways:
    """Least times between vertices for data of `num_bytes` that ranks store and forward whole (0: latency alone).

    From rank to rank a message costs its alphas and num_bytes over its slowest link. That maximum is made additive by
    a node (switch, slowest link so far) for every switch and bandwidth; at a rank the bytes are charged and it is
    forgotten. Nodes: the ranks, then `levels` nodes a switch. On machines of up to `table_ranks` ranks all pairs are
    computed at the first question.
    """

    topology: Topology
    num_bytes: float
    table_ranks: int = TABLE_RANKS

    @cached_property
    def betas(self) -> F64:
        """Distinct inverse bandwidths that a message at a switch can have met, ascending (one where none counts)."""
        t = self.topology
        at_switch = (t.src >= t.num_ranks) | (t.dst >= t.num_ranks)
        return np.unique(t.beta_s_per_byte[at_switch]) if self.num_bytes and at_switch.any() else np.zeros(1)

    @property
    def num_nodes(self) -> int:
        """Ranks, and a node for each switch and level."""
        return self.topology.num_ranks + len(self.topology.switch_names) * len(self.betas)

    @cached_property
    def _edges(self) -> tuple[I64, I64, F64]:
        """Source, target and least cost of every edge, no two with the same ends."""
        t, betas = self.topology, self.betas
        own = np.searchsorted(betas, t.beta_s_per_byte) if self.num_bytes else np.zeros(t.num_links, np.int64)
        from_rank, to_rank = t.src < t.num_ranks, t.dst < t.num_ranks
        parts: list[tuple[I64, I64, F64]] = []
        for level in range(len(betas)):
            # From a rank a message starts afresh: once is enough. From a switch it comes at any level.
            links = np.flatnonzero(~from_rank | (level == 0))
            worst = np.where(from_rank[links], own[links], np.maximum(own[links], level))
            beta = np.where(from_rank[links], t.beta_s_per_byte[links], betas[np.minimum(worst, len(betas) - 1)])
            cost = t.alpha_s[links] + np.where(to_rank[links], self.num_bytes * beta, 0.0)
            parts.append((self._node(t.src[links], level), self._node(t.dst[links], worst), cost))
        tail, head, cost = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return _lightest(tail, head, cost)

    def _node(self, vertex: npt.NDArray[np.integer[Any]], level: I64 | int) -> I64:
        ranks = self.topology.num_ranks
        switch = ranks + (vertex.astype(np.int64) - ranks) * len(self.betas) + level
        return np.where(vertex < ranks, vertex, switch).astype(np.int64)

    def between(self, sources: npt.NDArray[np.integer[Any]], backwards: bool = False) -> F64:
        """Least time from each source rank to every rank (to it, if `backwards`): shape [sources, ranks]; inf: no way.

        Complexity: a Dijkstra search a source.
        """
        return self._search(sources, backwards, False)[:, : self.topology.num_ranks]

    def nearest(self, sources: npt.NDArray[np.integer[Any]], backwards: bool = False) -> F64:
        """Least latency from the nearest source to every vertex (from every vertex to it, if `backwards`)."""
        assert not self.num_bytes, "nodes are vertices only where latency alone counts"
        return self._search(sources, backwards, True)

    @cached_property
    def _graphs(self) -> tuple[Any, Any]:
        """The edges as they are and turned round."""
        return _matrix(*self._edges, self.num_nodes, False), _matrix(*self._edges, self.num_nodes, True)

    def _search(self, sources: npt.NDArray[np.integer[Any]], backwards: bool, together: bool) -> F64:
        if self.topology.num_ranks <= self.table_ranks:
            rows = self._table[backwards][sources]
            return np.asarray(rows.min(axis=0) if together else rows)
        return self._dijkstra(sources, backwards, together)

    @cached_property
    def _table(self) -> tuple[F64, F64]:
        """Times from every rank, and to every rank, for machines where many sets of ranks are asked for."""
        ranks = np.arange(self.topology.num_ranks)
        return self._dijkstra(ranks, False, False), self._dijkstra(ranks, True, False)

    def _dijkstra(self, sources: npt.NDArray[np.integer[Any]], backwards: bool, together: bool) -> F64:
        from scipy.sparse.csgraph import dijkstra

        graph = self._graphs[backwards]
        if together:
            return np.asarray(dijkstra(graph, indices=sources, min_only=True), dtype=np.float64)
        return np.asarray(dijkstra(graph, indices=sources), dtype=np.float64)


def shortest(topology: Topology, lengths: npt.NDArray[np.integer[Any]]) -> F64:
    """Least sum of link lengths from each rank to each, all switches open: shape [ranks, ranks]."""
    from scipy.sparse.csgraph import dijkstra

    edges = _lightest(topology.src.astype(np.int64), topology.dst.astype(np.int64), lengths.astype(np.float64))
    graph = _matrix(*edges, topology.num_vertices, False)
    found = dijkstra(graph, indices=np.arange(topology.num_ranks))
    return np.asarray(found, dtype=np.float64)[:, : topology.num_ranks]


def steps_from_ranks(topology: Topology) -> F64:
    """Number of links from each rank to every vertex: shape [ranks, vertices], inf where no way is."""
    from scipy.sparse.csgraph import dijkstra

    ones = np.ones(topology.num_links)
    graph = _matrix(topology.src.astype(np.int64), topology.dst.astype(np.int64), ones, topology.num_vertices, False)
    found = dijkstra(graph, indices=np.arange(topology.num_ranks), unweighted=True)
    return np.asarray(found, dtype=np.float64)


def within(topology: Topology, inside: Bools) -> Topology:
    """The same vertices with the links between those `inside` alone (shape [vertices]), for ways that stay there."""
    kept = np.flatnonzero(inside[topology.src] & inside[topology.dst])
    columns = topology.link_columns(kept, np.arange(topology.num_vertices))
    return replace(topology, **columns, symmetries=(), boxes=(), cuts=())


def through_switches(topology: Topology, vertices: npt.NDArray[np.integer[Any]], backwards: bool = False) -> F64:
    """Least latency from each vertex over switches alone to each rank (from it, if `backwards`); 0 from a rank to
    itself, inf where no way is: shape [vertices, ranks]."""
    from scipy.sparse.csgraph import dijkstra

    links = np.flatnonzero((topology.dst if backwards else topology.src) >= topology.num_ranks)
    tail, head = topology.src[links].astype(np.int64), topology.dst[links].astype(np.int64)
    graph = _matrix(*_lightest(tail, head, topology.alpha_s[links]), topology.num_vertices, backwards)
    found = dijkstra(graph, indices=vertices)
    return np.asarray(found, dtype=np.float64)[:, : topology.num_ranks]


def _lightest(tail: I64, head: I64, cost: F64) -> tuple[I64, I64, F64]:
    """Of edges with the same ends the one of least cost (a sparse matrix would add them up)."""
    order = np.lexsort((cost, head, tail))
    tail, head, cost = tail[order], head[order], cost[order]
    first = np.ones(len(tail), dtype=np.bool_)
    first[1:] = (tail[1:] != tail[:-1]) | (head[1:] != head[:-1])
    return tail[first], head[first], cost[first]


def _matrix(tail: I64, head: I64, cost: F64, size: int, turned: bool) -> Any:
    """Sparse matrix of edges in which free ones stay (explicit zeros are edges of length 0)."""
    from scipy.sparse import csr_matrix

    ends = (head, tail) if turned else (tail, head)
    return csr_matrix((cost, ends), shape=(size, size))


def narrowest(topology: Topology) -> F64:
    """For every link a bandwidth (bytes/s) that the slowest link of no route over it falls short of."""
    bandwidth = topology.bandwidth
    before = _narrowest_at(topology, topology.src, topology.dst)
    after = _narrowest_at(topology, topology.dst, topology.src)
    return np.minimum(bandwidth, np.minimum(before[topology.src], after[topology.dst]))


def _narrowest_at(topology: Topology, tail: I32, head: I32) -> F64:
    """Slowest bandwidth on any walk from ranks through switches to each switch; infinite at ranks, where routes end."""
    at = np.full(topology.num_vertices, np.inf)
    links = np.flatnonzero(head >= topology.num_ranks)
    for _ in range(len(topology.switch_names)):
        before = at.copy()
        np.minimum.at(at, head[links], np.minimum(topology.bandwidth[links], before[tail[links]]))
        if (at == before).all():
            break
    return at


def least_overhead(topology: Topology) -> F64:
    """For every link an overhead (seconds) that the messages over no route over it fall short of: the largest of a
    route's overheads counts for all its links."""
    before = _least_overhead_at(topology, topology.src, topology.dst)
    after = _least_overhead_at(topology, topology.dst, topology.src)
    known = np.maximum(before[topology.src], after[topology.dst])
    return np.maximum(topology.overhead_s, np.where(np.isfinite(known), known, 0.0))


def _least_overhead_at(topology: Topology, tail: I32, head: I32) -> F64:
    """Least over the walks from ranks through switches to each switch of their largest overhead; 0 at ranks, where
    routes end, and infinite where no walk is."""
    at = np.where(np.arange(topology.num_vertices) < topology.num_ranks, 0.0, np.inf)
    links = np.flatnonzero(head >= topology.num_ranks)
    for _ in range(len(topology.switch_names)):
        before = at.copy()
        np.minimum.at(at, head[links], np.maximum(topology.overhead_s[links], before[tail[links]]))
        if (at == before).all():
            break
    return at


def unreachable_pair(topology: Topology, is_source: Bools, is_target: Bools) -> tuple[int, int] | None:
    """Some target rank that no source reaches, with a source; None if all are reached."""
    found = Ways(topology, 0.0).nearest(np.flatnonzero(is_source))[: topology.num_ranks]
    lost = np.flatnonzero(np.isinf(found) & is_target)
    return (int(np.flatnonzero(is_source)[0]), int(lost[0])) if len(lost) else None
