"""The tree of switches that explains which pairs of a profile share links."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from collsyn.model.arrays import F64

if TYPE_CHECKING:
    from collsyn.model.profile import LinkFit, SharedFit

_Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Edge:
    """A link of the tree: between a rank or a set of ranks and the least set around it, outwards or inwards."""

    ranks: _Ranks
    parent: _Ranks
    out: bool
    beta_s_per_byte: float
    alpha_s: float


def tree_edges(links: Sequence["LinkFit"], shared: Sequence["SharedFit"]) -> list[Edge]:
    """Links of the tree over all ranks whose pairs share: what crosses the border of a set leaves its switch.

    `shared` has the bandwidth of the border of each set in each direction; the sets are nested. Latencies are the ones
    that, added up along each pair's way, come closest to what was measured (nonnegative least squares of relative
    errors). O(pairs * edges^2).
    """
    pairs = [link for link in links if link.shares]
    if not pairs:
        return []
    members = tuple(sorted({rank for link in pairs for rank in (link.src, link.dst)}))
    sets = sorted(
        {*((rank,) for rank in members), *(one.ranks for one in shared)}, key=lambda ranks: (len(ranks), ranks)
    )
    beta = {(one.ranks, one.out): one.beta_s_per_byte.value for one in shared}
    edges = [
        (ranks, _parent(ranks, sets, members), out)
        for ranks in sets
        if set(ranks) < set(members)
        for out in (True, False)
        if (ranks, out) in beta
    ]
    alpha_s = _latencies(pairs, [(set(ranks), out) for ranks, _, out in edges])
    return [
        Edge(ranks, parent, out, beta[ranks, out], float(latency_s))
        for (ranks, parent, out), latency_s in zip(edges, alpha_s, strict=True)
    ]


def _parent(ranks: _Ranks, sets: Sequence[_Ranks], everybody: _Ranks) -> _Ranks:
    return next((other for other in sets if set(ranks) < set(other) < set(everybody)), everybody)


def _latencies(pairs: Sequence["LinkFit"], edges: Sequence[tuple[set[int], bool]]) -> F64:
    from scipy.optimize import nnls

    measured = np.array([max(link.alpha_s.value, 1e-12) for link in pairs])
    uses = _uses(pairs, edges)
    # A little weight on equal shares settles what no pair tells, for instance what is outwards and what inwards.
    even = 1e-4 * np.eye(len(edges))
    goal = np.concatenate([np.ones(len(pairs)), 1e-4 * np.full(len(edges), 0.5)])
    scale = float(np.median(measured))
    found, _ = nnls(np.concatenate([uses * (scale / measured)[:, np.newaxis], even]), goal)
    return np.asarray(found * scale, dtype=np.float64)


def way_latencies(links: Sequence["LinkFit"], edges: Sequence[Edge], alpha_s: F64) -> F64:
    """Latency of every pair that shares, if the edges had those."""
    uses = _uses([link for link in links if link.shares], [(set(edge.ranks), edge.out) for edge in edges])
    return np.asarray(uses @ alpha_s, dtype=np.float64)


def _uses(pairs: Sequence["LinkFit"], edges: Sequence[tuple[set[int], bool]]) -> F64:
    return np.array([[_crosses(link, ranks, out) for ranks, out in edges] for link in pairs], dtype=np.float64)


def _crosses(link: "LinkFit", ranks: Iterable[int], out: bool) -> bool:
    inner, outer = (link.src, link.dst) if out else (link.dst, link.src)
    return inner in ranks and outer not in ranks
