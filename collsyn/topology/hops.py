"""Hops: the ways from one rank straight to another, through switches only, and the quickest chains of hops."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from collsyn.model.arrays import F64, I32, Rows, column
from collsyn.model.schedule import RouteCosts
from collsyn.model.topology import Topology


@dataclass(frozen=True, eq=False)
class Hops:
    """Columns with one entry a hop: ends, costs, and the links of its route (`routes[h]`).

    A message of n bytes takes alpha_s + n * beta_s_per_byte and occupies the hop's links for overhead_s + n * beta.
    """

    src: I32
    dst: I32
    routes: Rows
    alpha_s: F64
    overhead_s: F64
    beta_s_per_byte: F64
    num_ranks: int

    def __len__(self) -> int:
        return len(self.src)

    @cached_property
    def out_of(self) -> Rows:
        """Row r: the hops that leave rank r."""
        return Rows.grouped(self.src, self.num_ranks)

    @cached_property
    def into(self) -> Rows:
        """Row r: the hops that enter rank r."""
        return Rows.grouped(self.dst, self.num_ranks)

    def seconds(self, num_bytes: float) -> F64:
        """Time of a message of that many bytes over every hop."""
        return self.alpha_s + num_bytes * self.beta_s_per_byte

    def best(self, num_bytes: float) -> dict[tuple[int, int], int]:
        """For every ordered pair that a hop joins, the hop that is quickest for a message of that many bytes."""
        order = np.lexsort((np.arange(len(self)), self.seconds(num_bytes)))[::-1]
        pairs = zip(self.src[order].tolist(), self.dst[order].tolist(), strict=True)
        return dict(zip(pairs, order.tolist(), strict=True))


def hops(topology: Topology, alternatives: bool = False) -> Hops:
    """All hops of a topology: each direct link between ranks, and for other pairs the best way through switches.

    The best way has the widest bottleneck, then the least alpha, then the fewest links. With `alternatives`, ways
    through switches are also listed beside direct links (NVLink and PCIe at once). Pairs that may not exchange messages
    have none.
    Complexity: O(levels * ranks * (switch links) log), levels = distinct bandwidths at switches.
    """
    direct = np.flatnonzero((topology.src < topology.num_ranks) & (topology.dst < topology.num_ranks))
    routes: list[tuple[int, ...]] = [(link,) for link in direct.tolist()]
    joined = (
        set() if alternatives else set(zip(topology.src[direct].tolist(), topology.dst[direct].tolist(), strict=True))
    )
    if topology.switch_names:
        for source in range(topology.num_ranks):
            found = _through_switches(topology, source)
            routes += [route for target, route in sorted(found.items()) if (source, target) not in joined]
    if topology.allowed_pairs is not None:
        ends = ((int(topology.src[route[0]]), int(topology.dst[route[-1]])) for route in routes)
        routes = [route for route, pair in zip(routes, ends, strict=True) if pair in topology.allowed_pairs]
    return hops_along(topology, routes)


def hops_along(topology: Topology, routes: Sequence[Sequence[int]]) -> Hops:
    """The hops whose routes are given, each a way of links from a rank through switches to another rank."""
    table = Rows.of(routes)
    costs = RouteCosts.of(topology, table)
    first = table.data[table.ptr[:-1]]
    last = table.data[table.ptr[1:] - 1]
    return Hops(
        src=column(topology.src[first], np.int32),  # type: ignore[arg-type]
        dst=column(topology.dst[last], np.int32),  # type: ignore[arg-type]
        routes=table,
        alpha_s=costs.alpha_s,
        overhead_s=costs.overhead_s,
        beta_s_per_byte=1.0 / costs.rate,
        num_ranks=topology.num_ranks,
    )


def _through_switches(topology: Topology, source: int) -> dict[int, tuple[int, ...]]:
    """Widest, then quickest route from a rank to every rank that at least one switch leads to.

    Links are admitted in the order of falling bandwidth; a rank is settled at the first level that reaches it.
    """
    starts = [link for link in topology.out_links[source].tolist() if topology.is_switch(int(topology.dst[link]))]
    if not starts:
        return {}
    switch_links = (topology.src >= topology.num_ranks) | (topology.dst >= topology.num_ranks)
    levels = np.unique(topology.beta_s_per_byte[switch_links])
    settled: dict[int, tuple[int, ...]] = {}
    reachable = _reachable(topology, source)
    for level in levels.tolist():
        for target, route in _quickest(topology, source, level).items():
            settled.setdefault(target, route)
        if len(settled) == len(reachable):
            break
    return settled


def _reachable(topology: Topology, source: int) -> set[int]:
    seen, stack, ranks = {source}, [source], set()
    while stack:
        vertex = stack.pop()
        for link in topology.out_links[vertex].tolist():
            following = int(topology.dst[link])
            if following in seen or (vertex == source and not topology.is_switch(following)):
                continue
            seen.add(following)
            if topology.is_switch(following):
                stack.append(following)
            else:
                ranks.add(following)
    return ranks


def _quickest(topology: Topology, source: int, max_beta: float) -> dict[int, tuple[int, ...]]:
    """Least-alpha routes through switches over links of at most that beta (Dijkstra; ties by links, then by number)."""
    src, dst, alpha, beta = (getattr(topology, n) for n in ("src", "dst", "alpha_s", "beta_s_per_byte"))
    done: dict[int, tuple[int, ...]] = {}
    heap: list[tuple[float, int, tuple[int, ...]]] = [(0.0, 0, ())]
    while heap:
        reached_s, length, route = heapq.heappop(heap)
        vertex = int(dst[route[-1]]) if route else source
        if vertex in done or (route and vertex == source):
            continue
        done[vertex] = route
        if route and not topology.is_switch(vertex):
            continue
        for link in topology.out_links[vertex].tolist():
            following = int(dst[link])
            skip = beta[link] > max_beta or following in done or (not route and not topology.is_switch(following))
            if not skip:
                heapq.heappush(heap, (reached_s + float(alpha[link]), length + 1, (*route, link)))
    assert all(int(src[route[0]]) == source for route in done.values() if route)
    return {vertex: route for vertex, route in done.items() if route and not topology.is_switch(vertex)}


def chains(table: Hops, num_bytes: float, source: int) -> dict[int, tuple[int, ...]]:
    """Quickest chain of hops (store and forward) from a rank to every other rank it reaches, at that message size."""
    cost = table.seconds(num_bytes).tolist()
    done: dict[int, tuple[int, ...]] = {}
    heap: list[tuple[float, int, tuple[int, ...]]] = [(0.0, source, ())]
    while heap:
        reached_s, rank, chain = heapq.heappop(heap)
        if rank in done:
            continue
        done[rank] = chain
        for hop in table.out_of[rank].tolist():
            following = int(table.dst[hop])
            if following not in done:
                heapq.heappush(heap, (reached_s + cost[hop], following, (*chain, hop)))
    del done[source]
    return done
