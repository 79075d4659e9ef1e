"""Lengths of links that show how much every pair of ranks can exchange at once: the dual of a linear program."""

from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np

from collsyn.bounds.case import Case
from collsyn.model.arrays import F64, I64
from collsyn.model.topology import Topology
from collsyn.topology.symmetry import link_images, orbits

# Flows (sources x links) up to which the program is solved: half a second.
MAX_FLOWS = 6_000
# Lengths are whole numbers of at most this.
MAX_LENGTH = 1 << 20
_SIMPLE = 1000


def concurrent_lengths(case: Case) -> I64 | None:
    """Whole lengths of the links that prove the least time of the bytes; None where the program does not apply.

    For data that goes from one rank to one rank each (alltoall, sendrecv): the program splits it over all ways, with
    one flow for every source, so that the busiest link is least busy (maximum concurrent flow, grouped by source). The
    duals are lengths for which the argument `lengths` shows the optimum, exactly where they are multiples of a common
    measure. For an alltoall of all ranks one source of every orbit of the topology's symmetries is enough.
    """
    pre, post, amount = case.pairs
    if case.collective.reduces or (case.set_sizes[pre] > 1).any() or (case.set_sizes[post] > 1).any():
        return None
    t, n = case.topology, case.topology.num_ranks
    first = case.collective.sets.data[case.collective.sets.ptr[:-1]]
    demand = np.zeros((n, n))
    np.add.at(demand, (first[pre], first[post]), amount)
    np.fill_diagonal(demand, 0.0)
    apart = ~np.eye(n, dtype=np.bool_)
    alike = n > 1 and demand[apart].min() == demand[apart].max()
    vertex_orbit = orbits(t)[:n] if alike else np.arange(n)
    link_orbit = _link_orbits(t) if alike else np.arange(t.num_links)
    sources = np.unique(vertex_orbit[demand.any(axis=1)])
    if not len(sources) or len(sources) * t.num_links > MAX_FLOWS:
        return None
    many = np.bincount(vertex_orbit, minlength=n)[sources]
    price = _prices(t, demand[sources] / demand.max(), sources, many, link_orbit)
    return None if price is None else _whole(price[link_orbit])


def _link_orbits(topology: Topology) -> I64:
    """The number of the orbit of every link under the recorded symmetries."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = topology.num_links
    images = [found for perm in topology.symmetries if (found := link_images(topology, perm)) is not None]
    ends = np.concatenate(images) if images else np.zeros(0, dtype=np.int64)
    starts = np.tile(np.arange(n), len(images))
    graph = coo_array((np.ones(len(ends), dtype=np.int8), (starts, ends)), shape=(n, n))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def _prices(t: Topology, demand: F64, sources: I64, many: I64, orbit: I64) -> F64 | None:
    """The dual of every orbit of links; `many` is how many sources each stands for."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    links, vertices, count = t.num_links, t.num_vertices, len(sources)
    flow = np.arange(count * links)
    own, link = np.divmod(flow, links)
    # What enters a vertex less what leaves it is what it needs; nothing is asked of the source itself.
    rows = np.concatenate([own * vertices + t.dst[link], own * vertices + t.src[link]])
    signs = np.concatenate([np.ones(len(flow)), -np.ones(len(flow))])
    kept = np.ones(count * vertices, dtype=np.bool_)
    kept[np.arange(count) * vertices + sources] = False
    width = len(flow) + 1
    balance: Any = coo_array((signs, (rows, np.tile(flow, 2))), shape=(count * vertices, width)).tocsr()[kept]
    need = np.zeros((count, vertices))
    need[:, : t.num_ranks] = demand
    room = np.zeros(int(orbit.max()) + 1)
    np.add.at(room, orbit, t.bandwidth / t.bandwidth.max())
    load: Any = coo_array(
        (
            np.concatenate([many[own].astype(np.float64), -room]),
            (
                np.concatenate([orbit[link], np.arange(len(room))]),
                np.concatenate([flow, np.full(len(room), len(flow))]),
            ),
        ),
        shape=(len(room), width),
    )
    cost = np.zeros(width)
    cost[-1] = 1.0
    found = linprog(
        cost, load.tocsr(), np.zeros(len(room)), balance, need.reshape(-1)[kept], method="highs-ds", bounds=(0, None)
    )
    return np.maximum(-np.asarray(found.ineqlin.marginals), 0.0) if found.status == 0 else None


def _whole(price: F64) -> I64:
    """Whole numbers in the ratio of the prices, exactly so if they have a common measure."""
    most = float(price.max())
    if most <= 0:
        return np.zeros(len(price), dtype=np.int64)
    kinds, index = np.unique(np.round(price / most, 12), return_inverse=True)
    parts = [Fraction(kind).limit_denominator(_SIMPLE) for kind in kinds.tolist()]
    scale = lcm(*(part.denominator for part in parts))
    simple = all(abs(float(part) - kind) < 1e-9 for part, kind in zip(parts, kinds.tolist(), strict=True))
    if not simple or scale > MAX_LENGTH:
        return np.round(price / most * MAX_LENGTH).astype(np.int64)
    return np.array([int(part * scale) for part in parts], dtype=np.int64)[index.reshape(-1)]
