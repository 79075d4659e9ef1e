"""Groups of symmetries that commute and keep no vertex in place: translations of tori, turns of circulants, boxes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import I64, column


@dataclass(frozen=True, eq=False)
class Translations:
    """All products of some generators, numbered in mixed radix: element e applies generator i digit i of e times.

    `orbit[v]` is the number of the orbit of vertex v, `place[v]` the element that takes the orbit's first vertex to v,
    `vertex[o, e]` the vertex of an orbit at a place. Every element but the identity moves every vertex.
    """

    orders: tuple[int, ...]
    orbit: I64
    place: I64
    vertex: I64

    @classmethod
    def of(cls, generators: Sequence[npt.ArrayLike], num_vertices: int) -> "Translations | None":
        """The group of some vertex permutations, or None if they do not commute, depend on each other or keep a vertex.

        O(generators^2 x vertices).
        """
        images = [np.asarray(image, dtype=np.int64) for image in generators]
        alone = np.arange(num_vertices)
        if not all(np.array_equal(np.sort(image), alone) for image in images):
            return None
        if not all(np.array_equal(a[b], b[a]) for i, a in enumerate(images) for b in images[:i]):
            return None
        orders = tuple(_cycle(image) for image in images)
        size = prod(orders)
        if not images or size > num_vertices or num_vertices % size:
            return None
        points = _first_of_orbits(images)[:, None]
        if len(points) * size != num_vertices:
            return None
        for image, order in zip(images, orders, strict=True):
            powers = [points]
            for _ in range(order - 1):
                powers.append(image[powers[-1]])
            points = np.stack(powers, axis=2).reshape(len(points), -1)
        if not np.array_equal(np.sort(points, axis=None), alone):
            return None
        orbit, place = np.empty(num_vertices, dtype=np.int64), np.empty(num_vertices, dtype=np.int64)
        orbit[points], place[points] = np.arange(len(points))[:, None], np.arange(size)
        # Turning a full circle must end where it began everywhere, not at the first vertex alone.
        group = cls(orders, orbit, place, points)
        return group if all(group._is_step(image, i) for i, image in enumerate(images)) else None

    def _is_step(self, image: I64, generator: int) -> bool:
        step = prod(self.orders[generator + 1 :])
        return np.array_equal(self.moved(np.arange(len(image)), np.int64(step)), image)

    @property
    def size(self) -> int:
        """Elements of the group."""
        return prod(self.orders)

    def moved(self, vertices: npt.ArrayLike, elements: npt.ArrayLike) -> I64:
        """Where elements take vertices (shapes are broadcast)."""
        at = np.asarray(vertices)
        result: I64 = self.vertex[self.orbit[at], self._sum(self.place[at], np.asarray(elements), 1)]
        return result

    def element(self, start: npt.ArrayLike, end: npt.ArrayLike) -> I64:
        """The element that takes one vertex to another of its orbit (shapes are broadcast)."""
        return self._sum(self.place[np.asarray(end)], self.place[np.asarray(start)], -1)

    def _sum(self, first: npt.NDArray[np.integer], second: npt.NDArray[np.integer], sign: int) -> I64:
        result, stride = np.zeros(np.broadcast(first, second).shape, dtype=np.int64), 1
        for order in reversed(self.orders):
            result += (first // stride % order + sign * (second // stride % order)) % order * stride
            stride *= order
        return result

    def link_orbits(self, src: npt.NDArray[np.integer], dst: npt.NDArray[np.integer]) -> I64:
        """The orbit of every link, counted from 0; links are told by their ends."""
        home = self.element(src, self.vertex[self.orbit[src], 0])
        keys = self.orbit[src] * len(self.orbit) + self.moved(dst, home)
        return np.unique(keys, return_inverse=True)[1].reshape(-1).astype(np.int64)


def independent(candidates: Sequence[Sequence[int]], num_vertices: int) -> tuple[tuple[int, ...], ...]:
    """The first of some permutations that together are generators of `Translations`; empty where none is."""
    chosen: list[Sequence[int]] = []
    for candidate in candidates:
        if Translations.of([*chosen, candidate], num_vertices) is not None:
            chosen.append(candidate)
    return tuple(tuple(column(image, np.int64).tolist()) for image in chosen)


def _first_of_orbits(images: Sequence[I64]) -> I64:
    """The smallest vertex of every orbit under some permutations, ascending."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    vertices = len(images[0])
    sources, ends = np.tile(np.arange(vertices), len(images)), np.concatenate(images)
    graph = coo_array((np.ones(len(ends), dtype=np.int8), (sources, ends)), shape=(vertices, vertices))
    _, labels = connected_components(graph, directed=False)
    return np.asarray(np.unique(labels, return_index=True)[1], dtype=np.int64)


def _cycle(image: I64) -> int:
    """Length of the cycle of vertex 0."""
    order, at = 1, int(image[0])
    while at != 0:
        order, at = order + 1, int(image[at])
    return order
