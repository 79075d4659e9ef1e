"""A group of symmetries that moves every rank somewhere else, so that trees of few roots stand for those of all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from collsyn.model.arrays import I64
from collsyn.model.topology import Topology
from collsyn.topology.symmetry import link_images

# Generators, and products of two of them, that are tried in combination.
MAX_CANDIDATES = 10


@dataclass(frozen=True, eq=False)
class Moves:
    """Elements of a group of symmetries no element of which, but the identity, leaves any rank where it is.

    `vertices[g, v]` and `links[g, e]` are images; the identity is first. `first[v]` is the least rank of v's orbit,
    `element[v]` the one element that moves it to v; `orbit[e]` numbers the orbits of links, of `orbit_size` each.
    """

    vertices: I64
    links: I64
    first: I64
    element: I64
    orbit: I64
    orbit_size: I64

    def __len__(self) -> int:
        return len(self.vertices)


def moves(topology: Topology, keeps: Callable[[I64], bool]) -> Moves:
    """The largest such group that some of the topology's symmetries, or products of two, generate.

    Only symmetries with `keeps(image of every vertex)` count. The trivial group where there are none.
    Complexity: O(combinations of candidates x order x (vertices + links)).
    """
    n, identity = topology.num_ranks, np.arange(topology.num_vertices, dtype=np.int64)
    found: list[tuple[I64, I64]] = []
    images = [np.array(perm, dtype=np.int64) for perm in topology.symmetries]
    for image in images:
        links = link_images(topology, image) if keeps(image) else None
        if links is not None:
            found.append((image, links))
    products = [(a[0][b[0]], a[1][b[1]]) for a in found for b in found if a is not b]
    candidates = [(v, e) for v, e in (*found, *products) if not (v[:n] == identity[:n]).any()][:MAX_CANDIDATES]
    trivial = identity[None, :], np.arange(topology.num_links, dtype=np.int64)[None, :]
    best = trivial
    for size in (1, 2, 3):
        for chosen in combinations(candidates, size):
            group = _generated(chosen, trivial, n)
            if group is not None and len(group[0]) > len(best[0]):
                best = group
            if len(best[0]) == n:
                return _moves(topology, *best)
    return _moves(topology, *best)


def _generated(
    generators: Sequence[tuple[I64, I64]], trivial: tuple[I64, I64], num_ranks: int
) -> tuple[I64, I64] | None:
    """Elements of a group; None if it has more than `num_ranks`, or one that leaves a rank in place."""
    vertices, links = [trivial[0][0]], [trivial[1][0]]
    known, ranks = {vertices[0].tobytes()}, np.arange(num_ranks)
    i = 0
    while i < len(vertices):
        for image, link_image in generators:
            product = image[vertices[i]]
            if product.tobytes() in known:
                continue
            if len(vertices) == num_ranks or (product[:num_ranks] == ranks).any():
                return None
            known.add(product.tobytes())
            vertices.append(product)
            links.append(link_image[links[i]])
        i += 1
    return np.array(vertices), np.array(links)


def _moves(topology: Topology, vertices: I64, links: I64) -> Moves:
    first = vertices[:, : topology.num_ranks].min(axis=0)
    element = np.zeros(topology.num_ranks, dtype=np.int64)
    for root in np.unique(first).tolist():
        element[vertices[:, root]] = np.arange(len(vertices))
    _, orbit, size = np.unique(links.min(axis=0), return_inverse=True, return_counts=True)
    return Moves(vertices, links, first, element, orbit.reshape(-1).astype(np.int64), size.astype(np.int64))
