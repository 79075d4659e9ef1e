"""Whether every rank reaches every other one, and who does not."""

from collections.abc import Sequence

import numpy as np

from collsyn.errors import Infeasible
from collsyn.model.topology import Topology


def unreachable_pair(topology: Topology, ranks: Sequence[int] | None = None) -> tuple[int, int] | None:
    """A pair of ranks (all, or some of them) of which the first cannot reach the second over any links, or None.

    Links of other ranks and switches may be used. O(links).
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order

    members = np.arange(topology.num_ranks) if ranks is None else np.asarray(ranks, dtype=np.int64)
    if len(members) < 2:
        return None
    first, size = int(members[0]), (topology.num_vertices,) * 2
    for away in (True, False):
        ends = (topology.src, topology.dst) if away else (topology.dst, topology.src)
        graph = coo_array((np.ones(topology.num_links, dtype=np.int8), ends), shape=size).tocsr()
        reached = breadth_first_order(graph, first, return_predecessors=False)
        missing = np.setdiff1d(members, reached)
        if len(missing):
            other = int(missing[0])
            return (first, other) if away else (other, first)
    return None


def require_connected(topology: Topology, ranks: Sequence[int] | None = None) -> None:
    """Raise Infeasible, which names a pair, unless each of the ranks (all by default) reaches every other one."""
    pair = unreachable_pair(topology, ranks)
    if pair is not None:
        raise Infeasible(f"topology {topology.name}: no links lead from rank {pair[0]} to rank {pair[1]}")
