"""Presets that are families of graphs for any number of ranks: de Bruijn, circulant, twisted torus, random regular."""

from collections.abc import Sequence
from math import gcd

import numpy as np

from collsyn.errors import InputError
from collsyn.model.arrays import I64
from collsyn.topology.graphs import genkautz
from collsyn.topology.wiring import Wiring, check_size, from_edges, permutation

MAX_EXPONENT = 20
# Swaps a link that make a regular graph random.
SWAPS = 10
_TRIES = 50


def debruijn(sizes: Sequence[int]) -> Wiring:
    """The de Bruijn digraph B(D, K): D^K ranks, u linked to D u + a mod D^K, a = 0 .. D-1; at most K hops.

    The links of D ranks to themselves are left out.
    """
    degree, exponent = sizes
    if exponent > MAX_EXPONENT:
        raise InputError(f"has diameter {exponent}; expected at most {MAX_EXPONENT}")
    return gendebruijn((degree, degree**exponent))


def gendebruijn(sizes: Sequence[int]) -> Wiring:
    """The generalised de Bruijn digraph: N ranks, u linked to D u + a mod N for a = 0 .. D-1, without loops."""
    degree, num_ranks = sizes
    if num_ranks < degree:
        raise InputError(f"has {num_ranks} ranks of degree {degree}; expected at least as many ranks as the degree")
    check_size(num_ranks, num_ranks * degree)
    src = np.repeat(np.arange(num_ranks), degree)
    dst = (degree * src + np.tile(np.arange(degree), num_ranks)) % num_ranks
    proper = src != dst
    mirror = permutation(num_ranks - 1 - np.arange(num_ranks))
    zeros = np.zeros(int(proper.sum()), dtype=np.int64)
    return Wiring(num_ranks, src[proper], dst[proper], zeros, symmetries=(mirror,))


def closed_debruijn(sizes: Sequence[int]) -> Wiring:
    """`gendebruijn` with the ranks that lost loops linked in a circle, so that all have the same degree."""
    return _closed(gendebruijn(sizes), sizes[0])


def closed_genkautz(sizes: Sequence[int]) -> Wiring:
    """`genkautz` with the ranks that lost loops linked in a circle, so that all have the same degree."""
    return _closed(genkautz(sizes), sizes[0])


def circulant(sizes: Sequence[int]) -> Wiring:
    """Ranks in a circle; rank u is linked with u + S and u - S mod N for every step S (one link where these meet)."""
    num_ranks, steps = _circle(sizes, limit=sizes[0] // 2)
    if len(set(steps)) < len(steps):
        raise InputError("has a step twice; expected different ones")
    ranks = np.arange(num_ranks)
    edges = [
        np.stack([ranks, (ranks + step) % num_ranks], axis=1)[: num_ranks // 2 if 2 * step == num_ranks else num_ranks]
        for step in steps
    ]
    turn, mirror = permutation((ranks + 1) % num_ranks), permutation(-ranks % num_ranks)
    return from_edges(num_ranks, np.concatenate(edges), symmetries=(turn, mirror))


def one_way_circulant(sizes: Sequence[int]) -> Wiring:
    """Ranks in a circle; rank u has a link to u + S mod N for every step S (several for one that is repeated)."""
    num_ranks, steps = _circle(sizes, limit=sizes[0] - 1)
    src = np.repeat(np.arange(num_ranks), len(steps))
    dst = (src + np.tile(np.array(steps), num_ranks)) % num_ranks
    turn = permutation((np.arange(num_ranks) + 1) % num_ranks)
    return Wiring(num_ranks, src, dst, np.zeros(len(src), dtype=np.int64), symmetries=(turn,))


def cayley(sizes: Sequence[int]) -> Wiring:
    """The Cayley digraph of a semidirect product of two cyclic groups: one-way links, all ranks alike.

    Rank x + A y is the pair (x, y), x below A and y below B; (x, y) times (x', y') is (x + R^y x' mod A, y + y' mod B),
    which needs R^B = 1 mod A; rank u has a link to u times G for every further number G (a rank's).
    """
    if len(sizes) < 4:
        raise InputError(f"has {len(sizes)} numbers; expected A, B, R and at least one rank to multiply by")
    across, up, root, *generators = sizes
    num_ranks = across * up
    check_size(num_ranks, num_ranks * len(generators))
    if pow(root, up, across) != 1 % across:
        raise InputError(f"has {root}^{up} = {pow(root, up, across)} mod {across}; expected 1")
    bad = [g for g in generators if g >= num_ranks]
    if bad:
        raise InputError(f"multiplies by rank {bad[0]}; expected 1 .. {num_ranks - 1}")
    powers = np.array([pow(root, y, across) for y in range(up)])
    ranks = np.arange(num_ranks)
    x, y = ranks % across, ranks // across
    src = np.repeat(ranks, len(generators))
    gx, gy = (np.tile(part, num_ranks) for part in (np.array(generators) % across, np.array(generators) // across))
    dst = (x[src] + powers[y[src]] * gx) % across + across * ((y[src] + gy) % up)
    if not _connected(np.stack([src, dst], axis=1), num_ranks):
        raise InputError("is not connected: products of these ranks do not reach all; expected others")
    # Multiplying from the left by (1, 0) and by (0, 1).
    left = [permutation((x + 1) % across + across * y)] if across > 1 else []
    left += [permutation(root * x % across + across * ((y + 1) % up))] if up > 1 else []
    return Wiring(num_ranks, src, dst, np.zeros(len(src), dtype=np.int64), symmetries=tuple(left))


def twisted_torus(sizes: Sequence[int]) -> Wiring:
    """A torus A x B whose columns close with a shift: the last rank of column x is linked to the first of x + T."""
    across, up, twist = sizes
    check_size(across * up, 4 * across * up)
    ranks = np.arange(across * up)
    x, y = ranks % across, ranks // across
    wraps = y == up - 1
    above = np.where(wraps, (x + twist) % across, x + across * (y + 1))
    ends = np.concatenate([np.stack([ranks, (x + 1) % across + across * y], axis=1), np.stack([ranks, above], axis=1)])
    ends = np.unique(np.sort(ends[ends[:, 0] != ends[:, 1]], axis=1), axis=0)
    turn = permutation((x + 1) % across + across * y)
    return from_edges(across * up, ends, symmetries=(turn, permutation(above)))


def random_regular(sizes: Sequence[int]) -> Wiring:
    """A random regular graph of N ranks of degree D, links both ways; connected, the same for the same seed."""
    num_ranks, degree, seed = sizes
    _check_degree(num_ranks, degree)
    if num_ranks * degree % 2:
        raise InputError(f"has {num_ranks} ranks of degree {degree}, both odd; expected an even number of links' ends")
    steps = range(1, degree // 2 + 1)
    ranks = np.arange(num_ranks)
    edges = [np.stack([ranks, (ranks + step) % num_ranks], axis=1) for step in steps]
    if degree % 2:
        edges.append(np.stack([ranks, (ranks + num_ranks // 2) % num_ranks], axis=1)[: num_ranks // 2])
    return from_edges(num_ranks, _swapped(np.concatenate(edges), num_ranks, seed, both=True))


def one_way_random(sizes: Sequence[int]) -> Wiring:
    """A random digraph of N ranks with D links out of each and into each; connected, the same for the same seed."""
    num_ranks, degree, seed = sizes
    _check_degree(num_ranks, degree)
    ranks = np.arange(num_ranks)
    links = np.concatenate([np.stack([ranks, (ranks + step) % num_ranks], axis=1) for step in range(1, degree + 1)])
    found = _swapped(links, num_ranks, seed, both=False)
    return Wiring(num_ranks, found[:, 0], found[:, 1], np.zeros(len(found), dtype=np.int64))


def _closed(wiring: Wiring, degree: int) -> Wiring:
    """Links from each rank that lacks one to the next such rank."""
    lacking = degree - np.bincount(wiring.src, minlength=wiring.num_ranks)
    short = np.repeat(np.arange(wiring.num_ranks), lacking)
    if len(np.unique(short)) < 2:
        return wiring
    turned = np.roll(short, -int(lacking.max()))
    dimension = np.zeros(len(wiring.src) + len(short), dtype=np.int64)
    src, dst = np.concatenate([wiring.src, short]), np.concatenate([wiring.dst, turned])
    return Wiring(wiring.num_ranks, src, dst, dimension)


def _circle(sizes: Sequence[int], limit: int) -> tuple[int, list[int]]:
    num_ranks, *steps = sizes
    if not steps:
        raise InputError("has no steps; expected the number of ranks and at least one step")
    check_size(num_ranks, 2 * num_ranks * len(steps))
    bad = [step for step in steps if step > limit]
    if bad:
        raise InputError(f"has a step of {bad[0]}; expected 1 .. {limit}")
    common = gcd(num_ranks, *steps)
    if common > 1:
        raise InputError(f"is not connected: {common} divides the ranks and all steps")
    return num_ranks, steps


def _check_degree(num_ranks: int, degree: int) -> None:
    check_size(num_ranks, num_ranks * degree)
    if degree >= num_ranks:
        raise InputError(f"has {num_ranks} ranks of degree {degree}; expected more ranks than the degree")


def _swapped(ends: I64, num_ranks: int, seed: int, both: bool) -> I64:
    """Links whose heads have been exchanged at random as long as no loop and no second link of a pair arises."""
    for attempt in range(_TRIES):
        random = np.random.default_rng([seed, attempt])
        links = [(a, b) for a, b in ends.tolist()]
        known = set(links) | ({(b, a) for a, b in links} if both else set())
        chosen = random.integers(len(links), size=(SWAPS * len(links), 2)).tolist()
        turns = (random.random(len(chosen)) < 0.5).tolist()
        for (i, j), turn in zip(chosen, turns, strict=True):
            (a, b), (c, d) = links[i], links[j]
            if both and turn:
                c, d = d, c
            if a == d or b == c or i == j or (a, d) in known or (c, b) in known:
                continue
            for old, new in (((a, b), (a, d)), ((c, d), (c, b))):
                known.discard(old)
                known.add(new)
                if both:
                    known.discard(old[::-1])
                    known.add(new[::-1])
            links[i], links[j] = (a, d), (c, b)
        found = np.array(sorted(links), dtype=np.int64)
        if _connected(found, num_ranks):
            return found
    raise InputError(f"gives no connected graph in {_TRIES} tries; expected another seed or degree")


def _connected(ends: I64, num_ranks: int) -> bool:
    """Whether all ranks hang together (digraphs of equal degrees in and out are then strongly connected)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(ends), dtype=np.int8), (ends[:, 0], ends[:, 1])), shape=(num_ranks, num_ranks))
    return bool(connected_components(graph, directed=False)[0] == 1)
