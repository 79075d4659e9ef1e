"""Symmetries: vertex permutations that map every link to an equal one, their orbits and the group they generate."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import I64
from collsyn.model.topology import Topology


def link_images(topology: Topology, permutation: npt.ArrayLike) -> I64 | None:
    """The link that a vertex permutation (shape [vertices]) maps each link to, or None if some link has no equal.

    Equal means between the mapped ends, with the same alpha, beta, overhead and count. Of several links that are alike
    each is taken once. O(E log E).
    """
    image = np.asarray(permutation, dtype=np.int64)
    costs: list[npt.NDArray[Any]] = [topology.count, topology.overhead_s, topology.beta_s_per_byte, topology.alpha_s]
    here = np.lexsort([*costs, topology.dst, topology.src])
    there = np.lexsort([*costs, image[topology.dst], image[topology.src]])
    same = (topology.src[here] == image[topology.src[there]]) & (topology.dst[here] == image[topology.dst[there]])
    for cost in costs:
        same &= cost[here] == cost[there]
    if not same.all():
        return None
    images = np.empty(topology.num_links, dtype=np.int64)
    images[there] = here
    return images


def is_symmetry(topology: Topology, permutation: npt.ArrayLike) -> bool:
    """Whether a vertex permutation keeps ranks ranks, what vertices can do, and all links."""
    image = np.asarray(permutation, dtype=np.int64)
    if not np.array_equal(np.sort(image), np.arange(topology.num_vertices)):
        return False
    ranks = np.arange(topology.num_ranks)
    return bool(
        (image[ranks] < topology.num_ranks).all()
        and np.array_equal(topology.multicast[image], topology.multicast)
        and np.array_equal(topology.reduction[image], topology.reduction)
        and np.array_equal(topology.reduce_s_per_byte[image[ranks]], topology.reduce_s_per_byte)
        and link_images(topology, image) is not None
    )


def extended_to_switches(topology: Topology, ranks: Sequence[int]) -> tuple[int, ...] | None:
    """The symmetry that a permutation of the ranks becomes once switches follow their neighbours, or None.

    Switches are placed in the order of their distance from the ranks, each where the links of its placed neighbours
    lead. Among switches that are alike in this the first free one is taken, so a permutation that needs a cleverer
    choice is refused although it may be one. O(E) for bounded switch degrees.
    """
    joined = _joins(topology)
    image = {rank: int(target) for rank, target in enumerate(ranks)}
    taken: set[int] = set()
    layer = list(image)
    while layer:
        layer = sorted({switch for vertex in layer for switch, _ in joined[vertex] if switch not in image})
        spots = {}
        for switch in layer:
            near = [(image[vertex], (-way, *costs)) for vertex, (way, *costs) in joined[switch] if vertex in image]
            ways = min(([spot for spot, kind in joined[at] if kind == wanted] for at, wanted in near), key=len)
            mirrored = [(at, (-way, *costs)) for at, (way, *costs) in near]
            fits = (spot for spot in sorted(ways) if spot not in taken and joined[spot].issuperset(mirrored))
            spot = next(fits, None)
            if spot is None:
                return None
            spots[switch] = spot
            taken.add(spot)
        image |= spots
    if len(image) < topology.num_vertices:
        return None
    permutation = tuple(image[vertex] for vertex in range(topology.num_vertices))
    return permutation if is_symmetry(topology, permutation) else None


def orbits(topology: Topology) -> I64:
    """For every vertex the smallest one that the recorded symmetries map to or from it. O(symmetries x vertices)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = topology.num_vertices
    images = np.array(topology.symmetries, dtype=np.int64).reshape(-1, n)
    sources = np.tile(np.arange(n), len(images))
    graph = coo_array((np.ones(images.size, dtype=np.int8), (sources, images.reshape(-1))), shape=(n, n))
    _, labels = connected_components(graph, directed=False)
    _, first = np.unique(labels, return_index=True)
    return np.asarray(first[labels], dtype=np.int64)


def group_elements(topology: Topology, limit: int = 1 << 22) -> list[tuple[int, ...]] | None:
    """All permutations that the symmetries generate, the identity first; None beyond `limit` numbers in all."""
    identity = tuple(range(topology.num_vertices))
    elements = {identity: None}
    fresh = [identity]
    while fresh:
        found = []
        for element in fresh:
            for generator in topology.symmetries:
                product = tuple(generator[v] for v in element)
                if product not in elements:
                    elements[product] = None
                    found.append(product)
            if len(elements) * len(identity) > limit:
                return None
        fresh = found
    return list(elements)


def _joins(topology: Topology) -> list[set[tuple[int, tuple[float, ...]]]]:
    """For every vertex its neighbours, each with the way (1 to it, -1 from it) and the costs of the link."""
    joined: list[set[tuple[int, tuple[float, ...]]]] = [set() for _ in range(topology.num_vertices)]
    columns = (topology.src, topology.dst, topology.alpha_s, topology.beta_s_per_byte, topology.overhead_s)
    for src, dst, *costs in zip(*(column.tolist() for column in columns), strict=True):
        joined[dst].add((src, (-1.0, *costs)))
        joined[src].add((dst, (1.0, *costs)))
    return joined
