"""Presets that are products of lines, rings and full meshes: ring, mesh, torus, hypercube, hamming, ...

The first dimension counts fastest: in `mesh:4x3` rank r stands at (r mod 4, r div 4).

    8--9--10-11        mesh:4x3. A torus joins the ends of every row and column as well
    |  |  |  |         (only of those longer than 2: a dimension of size 2 has one link).
    4--5--6--7
    |  |  |  |
    0--1--2--3
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from collsyn.errors import InputError
from collsyn.model.arrays import I64
from collsyn.model.topology import Cut
from collsyn.topology.wiring import Wiring, check_size, from_edges, permutation

LINE, RING, FULL = "line", "ring", "full"
MAX_HYPERCUBE = 20


def ring(sizes: Sequence[int]) -> Wiring:
    """Ranks in a circle, each joined to the next and the previous one.

    0--1--2--3
    |        |
    7--6--5--4
    """
    return _grid(sizes, [RING])


def full(sizes: Sequence[int]) -> Wiring:
    """A link from every rank to every other one."""
    return _grid(sizes, [FULL])


def mesh(sizes: Sequence[int]) -> Wiring:
    """A grid of any number of dimensions whose lines have two ends."""
    return _grid(sizes, [LINE] * len(sizes))


def torus(sizes: Sequence[int]) -> Wiring:
    """A grid of any number of dimensions whose lines are closed to rings."""
    return _grid(sizes, [RING] * len(sizes))


def hypercube(sizes: Sequence[int]) -> Wiring:
    """2^D ranks; links join those whose numbers differ in one bit, which is their dimension.

      6----7
     /|   /|
    2----3 |
    | 4--|-5
    |/   |/
    0----1
    """
    if sizes[0] > MAX_HYPERCUBE:
        raise InputError(f"has {sizes[0]} dimensions; expected at most {MAX_HYPERCUBE}")
    return _grid([2] * sizes[0], [LINE] * sizes[0])


def hamming(sizes: Sequence[int]) -> Wiring:
    """H(D, Q): a rank for every word of D letters out of Q, linked where two words differ in one letter."""
    dimensions, letters = sizes
    if dimensions > MAX_HYPERCUBE:
        raise InputError(f"has {dimensions} dimensions; expected at most {MAX_HYPERCUBE}")
    return _grid([letters] * dimensions, [FULL] * dimensions)


def hetero3d(sizes: Sequence[int]) -> Wiring:
    """Ring x full mesh x full mesh; a rank's bandwidth in a dimension is split evenly over its links there.

    The topology of TACOS (arXiv 2304.05301).
    """
    shapes = [RING, FULL, FULL]
    share = tuple(max(_links_of_a_rank(size, shape), 1) for size, shape in zip(sizes, shapes, strict=True))
    return _grid(sizes, shapes, share)


def _grid(sizes: Sequence[int], shapes: Sequence[str], share: tuple[int, ...] | None = None) -> Wiring:
    num_ranks = prod(sizes)
    check_size(num_ranks, num_ranks * sum(_links_of_a_rank(*pair) for pair in zip(sizes, shapes, strict=True)))
    ranks, stride = np.arange(num_ranks), 1
    edges: list[I64] = []
    symmetries, cuts = [], []
    for dimension, (size, shape) in enumerate(zip(sizes, shapes, strict=True)):
        place = ranks // stride % size
        edges.append(_edges(ranks, place, size, stride, shape))
        if size > 1:
            # A line is the same when turned round, rings and full meshes when moved along.
            image = size - 1 - place if shape == LINE else (place + 1) % size
            symmetries.append(permutation(ranks + (image - place) * stride))
            half = np.flatnonzero(place < size // 2)
            cuts.append(Cut(f"half of dimension {dimension}", permutation(half)))
        stride *= size
    numbers = np.repeat(np.arange(len(sizes)), [len(part) for part in edges])
    return from_edges(
        num_ranks,
        np.concatenate(edges),
        numbers,
        share=share or (1,) * len(sizes),
        symmetries=tuple(symmetries),
        cuts=tuple(cuts),
    )


def _edges(ranks: I64, place: I64, size: int, stride: int, shape: str) -> I64:
    """Undirected edges inside all lines of one dimension, shape [edges, 2]."""
    steps = range(1, size) if shape == FULL else range(1, min(size, 2))
    parts = [np.stack([ranks, ranks + step * stride], axis=1)[place < size - step] for step in steps]
    if shape == RING and size > 2:
        last = ranks[place == size - 1]
        parts.append(np.stack([last, last - (size - 1) * stride], axis=1))
    return np.concatenate(parts) if parts else np.empty((0, 2), dtype=np.int64)


def _links_of_a_rank(size: int, shape: str) -> int:
    """Links of a rank in a dimension, of the best-connected one in a line."""
    return size - 1 if shape == FULL else min(size - 1, 2)
