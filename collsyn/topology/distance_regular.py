"""Presets that are distance-regular graphs: Johnson, Kneser, Paley, Hoffman-Singleton, incidence graphs of geometries.

From every rank of such a graph there are equally many ranks at each distance, all with equally many ways towards it, so
that breadth-first broadcast loads every link alike.
"""

from collections.abc import Sequence
from itertools import combinations, product
from math import comb, isqrt

import numpy as np

from collsyn.errors import InputError
from collsyn.model.arrays import I64
from collsyn.topology.wiring import Wiring, check_size, from_edges, permutation

MAX_SUBSETS = 1 << 12
MAX_ORDER = 31


def johnson(sizes: Sequence[int]) -> Wiring:
    """J(N, K): a rank for every set of K out of N things, linked where two sets differ in one thing."""
    total, chosen = sizes
    return _subsets(total, chosen, chosen - 1, chosen * (total - chosen))


def kneser(sizes: Sequence[int]) -> Wiring:
    """Sets of K out of N things, linked where they have nothing in common; N = 2K+1 gives the odd graphs.

    kneser:5x2 is the Petersen graph.
    """
    total, chosen = sizes
    return _subsets(total, chosen, 0, comb(max(total - chosen, 0), chosen))


def paley(sizes: Sequence[int]) -> Wiring:
    """Numbers of a field of Q (a prime, or the square of one), u linked to v where v - u is a square of it.

    Links go both ways where Q is 1 more than a multiple of 4, else one way. Degree (Q-1)/2, two hops.
    """
    (order,) = sizes
    prime = _field(order)
    check_size(order, order * (order - 1) // 2)
    numbers = np.arange(order)
    if prime == order:
        squares, moves = {int(x * x % order) for x in numbers[1:]}, [(numbers + 1) % order]
        heads = [(numbers + s) % order for s in sorted(squares)]
    else:
        # a + b r with r^2 a number that is no square; its number is a + b Q.
        low, high = numbers % prime, numbers // prime
        root = next(r for r in range(2, prime) if pow(r, (prime - 1) // 2, prime) != 1)
        square = (low * low + root * high * high) % prime + 2 * low * high % prime * prime
        squares = set(square[1:].tolist())
        heads = [(low + s % prime) % prime + (high + s // prime) % prime * prime for s in sorted(squares)]
        moves = [(low + 1) % prime + high * prime, low + (high + 1) % prime * prime]
    symmetries = tuple(permutation(move) for move in moves)
    src, dst = np.tile(numbers, len(heads)), np.concatenate(heads)
    if order % 4 == 1:
        once = src < dst
        return from_edges(order, np.stack([src[once], dst[once]], axis=1), symmetries=symmetries)
    return Wiring(order, src, dst, np.zeros(len(src), dtype=np.int64), symmetries=symmetries)


def projective(sizes: Sequence[int]) -> Wiring:
    """Points and lines of the projective plane over the field of Q (a prime), linked where a line has the point.

    2 (Q^2 + Q + 1) ranks of degree Q+1, three hops: as many as such a bipartite graph can have. projective:2 is the
    Heawood graph.
    """
    order = _prime(sizes[0])
    points = _points(order, 3)
    ends = np.argwhere(points @ points.T % order == 0)
    n = len(points)
    check_size(2 * n, 2 * len(ends))
    turn = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    shear, opposite = np.array([[1, 1, 0], [0, 1, 0], [0, 0, 1]]), np.array([[1, 0, 0], [-1, 1, 0], [0, 0, 1]])
    symmetries = [permutation([*range(n, 2 * n), *range(n)])]
    for on_points, on_lines in ((turn, turn), (shear, opposite)):
        images = [_number(points, points @ matrix.T % order, order) for matrix in (on_points, on_lines)]
        symmetries.append(permutation([*images[0], *(images[1] + n)]))
    return from_edges(2 * n, ends + np.array([0, n]), symmetries=tuple(symmetries))


def quadrangle(sizes: Sequence[int]) -> Wiring:
    """Points of projective 3-space over the field of Q (a prime) and the lines that a symplectic form vanishes on.

    The incidence graph of the generalised quadrangle W(Q): 2 (Q + 1) (Q^2 + 1) ranks of degree Q+1, four hops.
    quadrangle:2 is the Tutte-Coxeter graph.
    """
    order = _prime(sizes[0])
    points = _points(order, 4)
    form = np.array([[0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 1], [0, 0, -1, 0]])
    meet = points @ form @ points.T % order == 0
    lines: dict[tuple[int, ...], int] = {}
    for a, b in np.argwhere(np.triu(meet, 1)).tolist():
        spanned = [points[a]] + [points[b] + factor * points[a] for factor in range(order)]
        members = tuple(sorted(_number(points, np.array(spanned) % order, order).tolist()))
        lines.setdefault(members, len(lines))
    n = len(points)
    check_size(n + len(lines), 2 * n * (order + 1))
    ends = [(point, n + line) for members, line in lines.items() for point in members]
    symmetries = []
    for centre in [*np.eye(4, dtype=np.int64), np.array([1, 0, 1, 0])]:
        image = _number(points, (points + (points @ form @ centre)[:, None] * centre) % order, order)
        moved = [lines[tuple(sorted(image[list(members)].tolist()))] + n for members in lines]
        symmetries.append(permutation([*image, *moved]))
    return from_edges(n + len(lines), sorted(ends), symmetries=tuple(symmetries))


def hoffman_singleton(sizes: Sequence[int]) -> Wiring:
    """The Hoffman-Singleton graph: 50 ranks of degree 7, two hops: as many as can be.

    Five pentagons (ranks 5 h + j) and five pentagrams (25 + 5 i + k); j of pentagon h is linked to k = h i + j mod 5.
    """
    five = np.arange(5)
    h, i, j = (part.reshape(-1) for part in np.meshgrid(five, five, five, indexing="ij"))
    circles, steps = np.repeat(five, 5), np.tile(five, 5)
    edges = [
        np.stack([5 * circles + steps, 5 * circles + (steps + 1) % 5], axis=1),
        np.stack([25 + 5 * circles + steps, 25 + 5 * circles + (steps + 2) % 5], axis=1),
        np.stack([5 * h + j, 25 + 5 * i + (h * i + j) % 5], axis=1),
    ]
    symmetries = (
        permutation([*(5 * circles + (steps + 1) % 5), *(25 + 5 * circles + (steps + 1) % 5)]),
        permutation([*(5 * ((circles + 1) % 5) + steps), *(25 + 5 * circles + (steps + circles) % 5)]),
        permutation([*(25 + 5 * circles + 2 * steps % 5), *(5 * (3 * circles % 5) + 2 * steps % 5)]),
    )
    return from_edges(50, np.concatenate(edges), symmetries=symmetries)


def _subsets(total: int, chosen: int, common: int, degree: int) -> Wiring:
    if not 1 <= chosen < total:
        raise InputError(f"takes {chosen} of {total} things; expected 1 .. {total - 1}")
    if degree == 0:
        raise InputError(f"has no two sets of {chosen} of {total} things apart; expected at least {2 * chosen} things")
    if comb(total, chosen) > MAX_SUBSETS:
        raise InputError(f"has {comb(total, chosen)} ranks; expected at most {MAX_SUBSETS}")
    if common == 0 and total == 2 * chosen > 2:
        raise InputError("has a single link a rank and is not connected; expected more things")
    sets = list(combinations(range(total), chosen))
    check_size(len(sets), len(sets) * degree)
    members = np.zeros((len(sets), total), dtype=np.int64)
    members[np.repeat(np.arange(len(sets)), chosen), np.array(sets).reshape(-1)] = 1
    ends = np.argwhere(np.triu(members @ members.T == common, 1))
    place = {one: number for number, one in enumerate(sets)}
    symmetries = []
    for image in ([*range(1, total), 0], [1, 0, *range(2, total)]):
        symmetries.append(permutation([place[tuple(sorted(image[x] for x in one))] for one in sets]))
    return from_edges(len(sets), ends, symmetries=tuple(symmetries))


def _points(order: int, dimensions: int) -> I64:
    """Points of projective space: vectors whose first number that is not 0 is 1."""
    vectors = [v for v in product(range(order), repeat=dimensions) if next((x for x in v if x), 0) == 1]
    return np.array(vectors, dtype=np.int64)


def _number(points: I64, vectors: I64, order: int) -> I64:
    """The numbers of the points that some vectors are multiples of."""
    inverse = np.array([0, *(pow(x, -1, order) for x in range(1, order))])
    lead = vectors[np.arange(len(vectors)), (vectors != 0).argmax(axis=1)]
    scaled = vectors * inverse[lead][:, None] % order
    weights = order ** np.arange(vectors.shape[1])
    found: I64 = np.argsort(points @ weights)[np.searchsorted(np.sort(points @ weights), scaled @ weights)]
    return found


def _prime(order: int) -> int:
    if not _is_prime(order) or order > MAX_ORDER:
        raise InputError(f"has order {order}; expected a prime up to {MAX_ORDER}")
    return order


def _field(order: int) -> int:
    """The prime that the order is, or the square of."""
    if order > 2 and _is_prime(order):
        return order
    root = isqrt(order)
    if root * root == order and root > 2 and _is_prime(root):
        return root
    raise InputError(f"has order {order}; expected an odd prime or the square of one")


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, isqrt(number) + 1))
