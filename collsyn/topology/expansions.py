"""Graphs from smaller graphs: line graph, degree expansion, product, trunks, bipartite double, graph of edges.

Source of the first three: Efficient Direct-Connect Topologies, arXiv 2202.03356, section 5. Schedules go along with
them (`collsyn/finder/carried.py`, which relies on the order of ranks and links here).
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np

from collsyn.errors import InputError
from collsyn.model.arrays import I64, Rows
from collsyn.topology.wiring import Wiring, check_size, from_edges, permutation


def line_graph(base: Wiring) -> Wiring:
    """A rank for every link of the base, in their order, and a link from (u, v) to every (v, w).

    N ranks of degree d become d N ranks of degree d, one hop farther apart at most.
    """
    src, dst = line_links(base)
    check_size(len(base.src), len(src))
    symmetries = [permutation(images) for images in _link_images(base)]
    return Wiring(len(base.src), src, dst, np.zeros(len(src), dtype=np.int64), symmetries=tuple(symmetries))


def line_links(base: Wiring) -> tuple[I64, I64]:
    """Ends of the links of a line graph: for every link of the base those that leave its end, in their order."""
    leaving = Rows.grouped(base.src, base.num_ranks)
    follow = leaving.lengths()[base.dst]
    if follow.sum() > 1 << 26:
        raise InputError(f"has {int(follow.sum())} links in its line graph; expected far fewer")
    src = np.repeat(np.arange(len(base.src)), follow)
    place = np.arange(len(src)) - np.repeat(np.cumsum(follow) - follow, follow)
    dst = leaving.data[leaving.ptr[base.dst[src]] + place]
    return src, dst.astype(np.int64)


def degree_expansion(base: Wiring, copies: int) -> Wiring:
    """Copies of every rank, and a link from each copy of u to each copy of v for every link (u, v).

    N ranks of degree d become n N ranks of degree n d. Copy i of rank v has the number i N + v.
    """
    n, links = base.num_ranks, len(base.src)
    check_size(n * copies, links * copies * copies)
    tail, head = (part.reshape(-1) for part in np.divmod(np.arange(copies * copies), copies))
    src = (base.src[:, None] + n * tail).reshape(-1)
    dst = (base.dst[:, None] + n * head).reshape(-1)
    dimension = np.repeat(base.dimension, copies * copies)
    ranks, step = np.arange(n), n * np.arange(copies)
    symmetries = [permutation((np.asarray(p)[ranks] + step[:, None]).reshape(-1)) for p in base.symmetries]
    if copies > 1:
        symmetries.append(permutation((np.arange(n * copies) + n) % (n * copies)))
    return Wiring(n * copies, src, dst, dimension, base.share, symmetries=tuple(symmetries))


def product(factors: Sequence[Wiring]) -> Wiring:
    """The Cartesian product: a rank for every combination; a link of a factor moves one coordinate.

    The first factor counts fastest: (x, y) has the number x + N1 y.
    """
    return reduce(_product, factors)


def trunk(base: Wiring, lanes: int) -> Wiring:
    """Every link so many times, one next to the other."""
    check_size(base.num_ranks, len(base.src) * lanes)
    src, dst, dimension = (np.repeat(column, lanes) for column in (base.src, base.dst, base.dimension))
    return Wiring(base.num_ranks, src, dst, dimension, base.share, symmetries=base.symmetries)


def bipartite_double(base: Wiring) -> Wiring:
    """Two copies of every rank, 0 .. N-1 and N .. 2N-1, and links only from one copy of u to the other one of v."""
    n = base.num_ranks
    check_size(2 * n, 2 * len(base.src))
    swap = permutation([*range(n, 2 * n), *range(n)])
    lifted = [permutation([*p, *(np.asarray(p) + n)]) for p in base.symmetries]
    src, dst = (np.stack(pair, axis=1).reshape(-1) for pair in ((base.src, base.src + n), (base.dst + n, base.dst)))
    dimension = np.repeat(base.dimension, 2)
    return Wiring(2 * n, src, dst, dimension, base.share, symmetries=(*lifted, swap))


def graph_of_edges(base: Wiring) -> Wiring:
    """A rank for every pair of links both ways, and links both ways between pairs that have a rank in common.

    The line graph of undirected graphs, such as the flags of a projective plane from its incidence graph.
    """
    low, high = np.minimum(base.src, base.dst), np.maximum(base.src, base.dst)
    key = low * base.num_ranks + high
    edges, both = np.unique(key, return_counts=True)
    mirrored = np.array_equal(
        np.sort(base.src * base.num_ranks + base.dst), np.sort(base.dst * base.num_ranks + base.src)
    )
    if not mirrored or (both != 2).any():
        raise InputError("has links one way, or several of a pair; expected one link each way between neighbours")
    ends = np.stack(np.divmod(edges, base.num_ranks), axis=1)
    at = [np.flatnonzero((ends == rank).any(axis=1)) for rank in range(base.num_ranks)]
    pairs = [np.stack(np.triu_indices(len(here), 1), axis=1) for here in at]
    joined = np.concatenate([here[pair] for here, pair in zip(at, pairs, strict=True)])
    check_size(len(edges), 2 * len(joined))
    symmetries = []
    for p in base.symmetries:
        image = np.sort(np.asarray(p)[ends], axis=1)
        symmetries.append(permutation(np.searchsorted(edges, image[:, 0] * base.num_ranks + image[:, 1])))
    return from_edges(len(edges), joined, symmetries=tuple(symmetries))


def _product(fast: Wiring, slow: Wiring) -> Wiring:
    a, b = fast.num_ranks, slow.num_ranks
    check_size(a * b, len(fast.src) * b + len(slow.src) * a)
    rows, columns = a * np.arange(b), np.arange(a)
    src, dst = (
        np.concatenate([(x + rows[:, None]).reshape(-1), (a * y + columns[:, None]).reshape(-1)])
        for x, y in ((fast.src, slow.src), (fast.dst, slow.dst))
    )
    dimension = np.concatenate([np.tile(fast.dimension, b), np.tile(slow.dimension + len(fast.share), a)])
    every = np.arange(a * b)
    symmetries = [permutation(np.asarray(p)[every % a] + every // a * a) for p in fast.symmetries]
    symmetries += [permutation(every % a + a * np.asarray(p)[every // a]) for p in slow.symmetries]
    return Wiring(a * b, src, dst, dimension, fast.share + slow.share, symmetries=tuple(symmetries))


def _link_images(base: Wiring) -> list[I64]:
    """Where the links go under the symmetries of their ranks, and under a turn of the lanes of every pair."""
    here = np.lexsort((base.dst, base.src))
    found = []
    for p in base.symmetries:
        image = np.asarray(p)
        there = np.lexsort((image[base.dst], image[base.src]))
        images = np.empty(len(here), dtype=np.int64)
        images[there] = here
        found.append(images)
    key = (base.src * base.num_ranks + base.dst)[here]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    lanes = np.diff(np.append(first, len(key)))
    if (lanes > 1).any():
        place = np.arange(len(key)) - np.repeat(first, lanes)
        turned = np.repeat(first, lanes) + (place + 1) % np.repeat(lanes, lanes)
        images = np.empty(len(here), dtype=np.int64)
        images[here] = here[turned]
        found.append(images)
    return found
