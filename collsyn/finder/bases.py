"""Texts of base graphs for a number of ranks and a degree: all families that have one, and the best of many tries."""

from collections.abc import Iterator
from functools import cache
from itertools import combinations
from math import comb, gcd, isqrt

import numpy as np

from collsyn.model.arrays import I64

# Circulants: sets of steps that are looked at, and kept by how far apart ranks are.
_TRIED, _KEPT = 600, 3
# Cayley digraphs: groups, sets of generators of each, and how many are kept.
_CAYLEY_GROUPS, _CAYLEY_TRIED, _CAYLEY_KEPT = 12, 400, 12
_RANDOM_SEEDS = (1, 2, 3)
# Subsets of things: beyond these, as many ranks are not worth a search.
_MOST_THINGS = 24
_MOST_ORDER = 31


def base_texts(num_ranks: int, degree: int, two_way: bool, seed: int = 0) -> Iterator[str]:
    """Texts of graphs of that many ranks and that degree, well-known ones first, each once.

    Links may be parallel where the degree is not below the number of ranks. Sets of steps and generators are looked at
    only when the texts before them have been taken.
    """
    seen = set()
    for text in _texts(num_ranks, degree, two_way, seed):
        if text not in seen:
            seen.add(text)
            yield text


def divisors(number: int) -> list[int]:
    """All divisors in ascending order."""
    low = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return low + [number // d for d in reversed(low) if d * d != number]


def _texts(n: int, d: int, two_way: bool, seed: int) -> Iterator[str]:
    yield from _named(n, d)
    if d >= n:
        yield from _crowded(n, d, two_way)
        return
    yield from _circulants(n, d, seed)
    yield from _cayley(n, d, seed, two_way=True) if two_way else _one_way(n, d, seed)
    if n * d % 2 == 0 and d > 2:
        yield from (f"random:{n}x{d}x{_limited(seed + number)}" for number in _RANDOM_SEEDS)


def _named(n: int, d: int) -> Iterator[str]:
    """Graphs with links both ways: complete, bipartite, grids, and distance-regular ones."""
    if d == n - 1:
        yield f"full:{n}"
    if n == 2 * d:
        yield f"bipartite:{d}x{d}"
    if d == 2 and n > 2:
        yield f"ring:{n}"
    if 1 << d == n and d > 1:
        yield f"hypercube:{d}"
    yield from _grids(n, d)
    if (n, d) == (10, 3):
        yield "petersen"
    if (n, d) == (50, 7):
        yield "hoffman-singleton"
    if n == 2 * (d + 1):
        yield f"double:(full:{d + 1})"
    yield from _subsets(n, d)
    q = d - 1
    if _is_prime(q) and q <= _MOST_ORDER:
        if n == 2 * (q * q + q + 1):
            yield f"projective:{q}"
        if n == 2 * (q + 1) * (q * q + 1):
            yield f"quadrangle:{q}"
    root = isqrt(n)
    field = (n > 2 and _is_prime(n)) or (root > 2 and root * root == n and _is_prime(root))
    if field and 2 * d == n - 1 and n % 4 == 1:
        yield f"paley:{n}"
    # Flags of the same geometries: graphs of edges of graphs of degree q + 1 have degree 2 q.
    q = d // 2
    if d % 2 == 0 and _is_prime(q) and q <= _MOST_ORDER:
        if n == (q + 1) * (q * q + q + 1):
            yield f"edges:(projective:{q})"
        if n == (q + 1) ** 2 * (q * q + 1):
            yield f"edges:(quadrangle:{q})"
    if (n, d) == (15, 4):
        yield "edges:(petersen)"


def _grids(n: int, d: int) -> Iterator[str]:
    if d % 2 == 0 and d > 2:
        sizes = _nearly_equal(n, d // 2)
        if sizes:
            yield f"torus:{'x'.join(map(str, sizes))}"
    if d == 4:
        for across in divisors(n):
            up = n // across
            if 3 <= up <= across:
                yield from (
                    f"twisted-torus:{across}x{up}x{twist}"
                    for twist in sorted({across // 2, across // 3, up} - {0, across})
                )
    for dimensions in range(2, d + 1):
        letters, rest = divmod(d, dimensions)
        if rest == 0 and letters > 1 and (letters + 1) ** dimensions == n:
            yield f"hamming:{dimensions}x{letters + 1}"


def _nearly_equal(n: int, parts: int) -> tuple[int, ...] | None:
    """Factors of n, each at least 3, with the smallest sum of halves (the diameter of their torus)."""
    best: tuple[int, ...] | None = None
    stack: list[tuple[tuple[int, ...], int]] = [((), n)]
    while stack:
        chosen, left = stack.pop()
        if len(chosen) == parts - 1:
            whole = (*chosen, left)
            if left >= (chosen[-1] if chosen else 3) and (best is None or _reach(whole) < _reach(best)):
                best = whole
            continue
        low = chosen[-1] if chosen else 3
        stack += [((*chosen, size), left // size) for size in divisors(left) if low <= size <= left // size]
    return best


def _reach(sizes: tuple[int, ...]) -> int:
    return sum(size // 2 for size in sizes)


def _subsets(n: int, d: int) -> Iterator[str]:
    for things in range(4, _MOST_THINGS):
        for chosen in range(2, things // 2 + 1):
            count = comb(things, chosen)
            if count == n and chosen * (things - chosen) == d:
                yield f"johnson:{things}x{chosen}"
            if things > 2 * chosen and comb(things - chosen, chosen) == d:
                if count == n and (n, d) != (10, 3):
                    yield f"kneser:{things}x{chosen}"
                if 2 * count == n:
                    yield f"double:(kneser:{things}x{chosen})"


def _crowded(n: int, d: int, two_way: bool) -> Iterator[str]:
    """Graphs of so few ranks that some links must be parallel; they are there to be expanded."""
    if n == 1:
        return
    if d % (n - 1) == 0:
        yield f"trunk:(full:{n})x{d // (n - 1)}" if d > n - 1 else f"full:{n}"
    elif not two_way:
        steps = [1 + place % (n - 1) for place in range(d)]
        yield f"circulant1:{n}x{'x'.join(map(str, steps))}"


def _one_way(n: int, d: int, seed: int) -> Iterator[str]:
    yield f"genkautz:{d}x{n}"
    if n % (d + 1):
        yield f"closed-genkautz:{d}x{n}"
    if d > 1:
        yield f"closed-gendebruijn:{d}x{n}"
    if n > 2 and n % 4 == 3 and 2 * d == n - 1 and _is_prime(n):
        yield f"paley:{n}"
    yield from (f"circulant1:{n}x{'x'.join(map(str, steps))}" for steps in _best_steps(n, d, n - 1, False, seed))
    yield from _cayley(n, d, seed, two_way=False)
    if d > 1:
        yield from (f"random1:{n}x{d}x{_limited(seed + number)}" for number in _RANDOM_SEEDS)


def _circulants(n: int, d: int, seed: int) -> Iterator[str]:
    """Circulants both ways: an odd degree takes the opposite rank, too."""
    if d < 3 or (d % 2 and n % 2):
        return
    opposite = [n // 2] if d % 2 else []
    for steps in _best_steps(n, d // 2, (n - 1) // 2, True, seed, tuple(opposite)):
        yield f"circulant:{n}x{'x'.join(map(str, [*steps, *opposite]))}"


def _best_steps(
    n: int, count: int, most: int, both: bool, seed: int, more: tuple[int, ...] = ()
) -> list[tuple[int, ...]]:
    """Sets of steps whose circulants have the least diameter; all are tried where they are few, else a sample."""
    if count > most:
        return []
    if comb(most, count) <= _TRIED:
        sets = list(combinations(range(1, most + 1), count))
    else:
        random = np.random.default_rng([seed, n, count])
        drawn = (tuple(sorted(random.choice(most, count, replace=False) + 1)) for _ in range(_TRIED))
        sets = list(dict.fromkeys([*_consecutive(n, count, most), *(tuple(map(int, steps)) for steps in drawn)]))
    ranked = []
    for steps in sets:
        if gcd(n, *steps, *more) == 1:
            all_steps = [*steps, *more]
            ranked.append((_circulant_reach(n, all_steps + [-s for s in all_steps] if both else all_steps), steps))
    ranked.sort()
    return [steps for _, steps in ranked[:_KEPT]]


def _consecutive(n: int, count: int, most: int) -> Iterator[tuple[int, ...]]:
    """Steps m, m + 1, ...: for two steps both ways some m gives the least diameter there is."""
    if count == 2:
        middle = isqrt(n // 2)
        yield from ((m, m + 1) for m in range(max(middle - 3, 1), min(middle + 4, most)))
    yield from (tuple(base**power for power in range(count)) for base in range(2, 9) if base ** (count - 1) <= most)


def _circulant_reach(n: int, steps: list[int]) -> tuple[int, int]:
    """Diameter, and how many ranks are at that distance."""
    seen = np.zeros(n, dtype=np.bool_)
    seen[0] = True
    fresh = np.array([0])
    moves = np.array(steps)
    distance, last = 0, 1
    while not seen.all():
        reached = (fresh[:, None] + moves).reshape(-1) % n
        mark = np.zeros(n, dtype=np.bool_)
        mark[reached] = True
        fresh = np.flatnonzero(mark & ~seen)
        seen[fresh] = True
        distance, last = distance + 1, len(fresh)
    return distance, last


def _cayley(n: int, d: int, seed: int, two_way: bool) -> Iterator[str]:
    """Cayley digraphs of semidirect products: of random generators of each group those of the least diameter.

    Generators come with their inverses where links shall go both ways.
    """
    if d < 2:
        return
    random = np.random.default_rng([seed, n, d, 1 + two_way])
    ranked = []
    for across, up, root in _groups(n):
        inverse = _inverses(across, up, root) if two_way else None
        for _ in range(_CAYLEY_TRIED):
            generators = _drawn(random, n, d, inverse)
            reach = _cayley_reach(_moves(across, up, root, generators)) if len(generators) == d else None
            if reach is not None:
                ranked.append((reach, (across, up, root, *generators)))
    ranked.sort()
    chosen = dict.fromkeys(numbers for _, numbers in ranked)
    yield from (f"cayley:{'x'.join(map(str, numbers))}" for numbers in list(chosen)[:_CAYLEY_KEPT])


def _drawn(random: np.random.Generator, n: int, d: int, inverse: I64 | None) -> list[int]:
    """Generators in ascending order, with their inverses if these are given (then perhaps fewer than d)."""
    if inverse is None:
        return sorted((random.choice(n - 1, d, replace=False) + 1).tolist())
    found: set[int] = set()
    for first in (random.permutation(n - 1) + 1).tolist():
        both = {first, int(inverse[first])}
        if len(found | both) <= d:
            found |= both
        if len(found) == d:
            break
    return sorted(found)


def _inverses(across: int, up: int, root: int) -> I64:
    """The inverse of every rank in the semidirect product."""
    ranks = np.arange(across * up)
    x, y = ranks % across, -(ranks // across) % up
    powers = np.array([pow(root, k, across) for k in range(up)])
    found: I64 = -powers[y] * x % across + across * y
    return found


@cache
def _groups(n: int) -> tuple[tuple[int, int, int], ...]:
    """(A, B, R) of semidirect products of order n that are not commutative, the more even first, and one direct one."""
    found = []
    for across in divisors(n):
        up = n // across
        if across < 3 or up < 2:
            continue
        roots = [root for root in range(2, across) if pow(root, up, across) == 1]
        found += [(across, up, root) for root in sorted({roots[0], roots[-1]})] if roots else []
    found.sort(key=lambda group: (abs(group[0] - group[1]), group))
    return tuple(found[:_CAYLEY_GROUPS])


def _moves(across: int, up: int, root: int, generators: list[int]) -> I64:
    """Row i: the product of every rank with generator i."""
    ranks, by = np.arange(across * up), np.array(generators)[:, None]
    x, y = ranks % across, ranks // across
    powers = np.array([pow(root, k, across) for k in range(up)])
    moved: I64 = (x + powers[y] * (by % across)) % across + across * ((y + by // across) % up)
    return moved


def _cayley_reach(moves: I64) -> tuple[int, int] | None:
    """Diameter and ranks at that distance; None where products do not reach all."""
    seen = np.zeros(moves.shape[1], dtype=np.bool_)
    seen[0] = True
    fresh = np.array([0])
    distance, last = 0, 1
    while len(fresh):
        mark = np.zeros(moves.shape[1], dtype=np.bool_)
        mark[moves[:, fresh]] = True
        fresh = np.flatnonzero(mark & ~seen)
        seen[fresh] = True
        if len(fresh):
            distance, last = distance + 1, len(fresh)
    return (distance, last) if seen.all() else None


def _limited(seed: int) -> int:
    """A seed that the text of a graph can hold."""
    return seed % (10**9 - 1) or 1


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, isqrt(number) + 1))
