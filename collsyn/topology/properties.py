"""What a topology can do at a glance: degrees, diameter, bisection and symmetry."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from math import comb, isfinite

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64, I64
from collsyn.model.topology import Topology
from collsyn.topology.symmetry import group_elements, orbits

# Halves times placements of switches that are tried, and sources times links that are searched, within seconds.
MAX_HALVES = 1 << 20
MAX_SEARCH = 10**8


@dataclass(frozen=True)
class Degree:
    """Of the ranks, the least and the most: links (a trunk counts once), lanes and bytes per second, one way."""

    links: tuple[int, int]
    lanes: tuple[int, int]
    bandwidth: tuple[float, float]


@dataclass(frozen=True)
class Bisection:
    """The least capacity (bytes per second, one way) from a half of the ranks to the others.

    `exact`: all halves were tried, with the best place for every switch; otherwise it is the best of the topology's
    named cuts and boxes that split the ranks in halves, an upper limit. `cut` is what it belongs to.
    """

    bandwidth: float
    exact: bool
    cut: str


@dataclass(frozen=True)
class Properties:
    """Properties of a topology; None is what does not exist (disconnected) or would take too long to find.

    `hops` is the most hops (ways through switches count as one) and `alpha_s` the most latency that the quickest way
    between two ranks takes. `orbits` is how many kinds of ranks the recorded symmetries leave, `order` their group's.
    """

    out: Degree
    into: Degree
    hops: int | None
    alpha_s: float | None
    bisection: Bisection | None
    orbits: int
    order: int | None


def properties(topology: Topology) -> Properties:
    """All properties; within seconds whatever the topology."""
    kinds = np.unique(orbits(topology)[: topology.num_ranks])
    hops = _farthest(topology, kinds.tolist(), np.where(topology.src < topology.num_ranks, 1.0, 0.0))
    elements = group_elements(topology)
    return Properties(
        out=_degree(topology, topology.src),
        into=_degree(topology, topology.dst),
        hops=None if hops is None else round(hops),
        alpha_s=_farthest(topology, kinds.tolist(), topology.alpha_s),
        bisection=bisection(topology),
        orbits=len(kinds),
        order=None if elements is None else len(elements),
    )


def capacity(topology: Topology, vertices: Sequence[int]) -> tuple[float, float]:
    """Bytes per second that leave and that enter a set of vertices."""
    inside = np.zeros(topology.num_vertices, dtype=np.bool_)
    inside[list(vertices)] = True
    src, dst = inside[topology.src], inside[topology.dst]
    return float(topology.bandwidth[src & ~dst].sum()), float(topology.bandwidth[dst & ~src].sum())


def bisection(topology: Topology) -> Bisection | None:
    """The bisection by trying all halves where they are few, else by the named cuts, else None."""
    n = topology.num_ranks
    if n < 2:
        return None
    halves = comb(n - 1, n // 2 - 1) if n % 2 == 0 else comb(n, n // 2)
    if halves << len(topology.switch_names) <= MAX_HALVES:
        return _least_half(topology)
    cuts = [(cut.name, cut.vertices) for cut in topology.cuts]
    cuts += [(f"box {number}", box) for number, box in enumerate(topology.boxes)]
    halving = [cut for cut in cuts if abs(2 * sum(v < n for v in cut[1]) - n) <= 1]
    if not halving:
        return None
    found = [(min(capacity(topology, vertices)), name) for name, vertices in halving]
    bandwidth, name = min(found, key=lambda pair: pair[0])
    return Bisection(bandwidth, False, name)


def _least_half(topology: Topology) -> Bisection:
    """Try every half of the ranks with every placement of the switches; of mirror images only one for even numbers."""
    n, switches = topology.num_ranks, len(topology.switch_names)
    halves = combinations(range(n), n // 2) if n % 2 else ((0, *rest) for rest in combinations(range(1, n), n // 2 - 1))
    members = np.fromiter(chain.from_iterable(halves), dtype=np.int64).reshape(-1, n // 2)
    inside = np.zeros((topology.num_vertices, len(members)), dtype=np.bool_)
    inside[members.T, np.arange(len(members))] = True
    direct = (topology.src < n) & (topology.dst < n)
    between_ranks = _crossing(topology, np.flatnonzero(direct), inside)
    best, where = np.inf, 0
    for placement in range(1 << switches):
        inside[n:] = np.array([placement >> s & 1 for s in range(switches)], dtype=np.bool_)[:, None]
        at_switches = _crossing(topology, np.flatnonzero(~direct), inside)
        for crossing in (a + b for a, b in zip(between_ranks, at_switches, strict=True)):
            least = int(crossing.argmin())
            if crossing[least] < best * (1 - 1e-12):
                best, where = float(crossing[least]), least
    return Bisection(best, True, f"ranks {', '.join(map(str, members[where].tolist()))}")


def _crossing(topology: Topology, links: I64, inside: npt.NDArray[np.bool_]) -> tuple[F64, F64]:
    """Bandwidth of some links that leave and that enter each vertex set (columns of `inside`)."""
    leaving, entering = np.zeros(inside.shape[1]), np.zeros(inside.shape[1])
    for link in links.tolist():
        src, dst = inside[topology.src[link]], inside[topology.dst[link]]
        leaving += topology.bandwidth[link] * (src & ~dst)
        entering += topology.bandwidth[link] * (dst & ~src)
    return leaving, entering


def _farthest(topology: Topology, sources: Sequence[int], weights: F64) -> float | None:
    """The largest of the least weights of chains of links from the sources to all ranks; None if one is not reached."""
    if len(sources) * (topology.num_links + topology.num_vertices) > MAX_SEARCH:
        return None
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    # Of parallel links the lightest counts; weights of 0 must stay as links.
    order = np.lexsort((weights, topology.dst, topology.src))
    src, dst = topology.src[order], topology.dst[order]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    size = (topology.num_vertices, topology.num_vertices)
    graph = csr_array((weights[order][first], (src[first], dst[first])), shape=size)
    most = 0.0
    step = max(1, (1 << 24) // topology.num_vertices)
    for begin in range(0, len(sources), step):
        reached = dijkstra(graph, indices=list(sources[begin : begin + step]))
        most = max(most, float(reached[:, : topology.num_ranks].max()))
    return most if isfinite(most) else None


def _degree(topology: Topology, ends: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Degree:
    n = topology.num_ranks
    links = np.bincount(ends, minlength=topology.num_vertices)[:n]
    lanes = np.bincount(ends, weights=topology.count, minlength=topology.num_vertices)[:n]
    bandwidth = np.bincount(ends, weights=topology.bandwidth, minlength=topology.num_vertices)[:n]
    return Degree(
        (int(links.min()), int(links.max())),
        (int(lanes.min()), int(lanes.max())),
        (float(bandwidth.min()), float(bandwidth.max())),
    )
