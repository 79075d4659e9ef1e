"""Texts of base graphs for a number of ranks and a degree: all families that have one, and the best of many tries."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import comb, isqrt

import numpy as np

from collsyn.model.arrays import I64

# Circulants: sets of steps that are looked at, and kept by how far apart ranks are.
_TRIED, _KEPT = 600, 3
_FEWEST_TRIED, _MOST_TRIED = 200, 20_000
# Random graphs are far from the least bytes, the more so the more ranks; each of their ranks is one to solve.
_RANDOM_SEEDS, _MOST_RANDOM = (1, 2, 3), 1024
# Subsets of things: beyond these, as many ranks are not worth a search.
_MOST_THINGS = 24
_MOST_ORDER = 31


@dataclass(frozen=True)
class Effort:
    """How many Cayley digraphs are looked at: groups, groups of one shape, links of all sets of a group, sets kept."""

    groups: int
    alike: int
    links: int
    kept: int


LIGHT, THOROUGH = Effort(8, 2, 1 << 20, 2), Effort(24, 4, 1 << 25, 2)


def base_texts(num_ranks: int, degree: int, two_way: bool, seed: int = 0, effort: Effort = LIGHT) -> Iterator[str]:
    """Texts of graphs of that many ranks and that degree, well-known ones first, each once.

    Links may be parallel where the degree is not below the number of ranks. Sets of steps and generators are looked at
    only when the texts before them have been taken.
    """
    seen = set()
    for text in _texts(num_ranks, degree, two_way, seed, effort):
        if text not in seen:
            seen.add(text)
            yield text


def divisors(number: int) -> list[int]:
    """All divisors in ascending order."""
    low = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return low + [number // d for d in reversed(low) if d * d != number]


def _texts(n: int, d: int, two_way: bool, seed: int, effort: Effort) -> Iterator[str]:
    yield from _named(n, d)
    if d >= n:
        yield from _crowded(n, d, two_way)
        return
    yield from _circulants(n, d, seed)
    yield from _cayley(n, d, seed, effort, two_way=True) if two_way else _one_way(n, d, seed, effort)
    if n * d % 2 == 0 and d > 2 and n * d <= _MOST_RANDOM:
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


def _one_way(n: int, d: int, seed: int, effort: Effort) -> Iterator[str]:
    yield f"genkautz:{d}x{n}"
    if n % (d + 1):
        yield f"closed-genkautz:{d}x{n}"
    if d > 1:
        yield f"closed-gendebruijn:{d}x{n}"
    if n > 2 and n % 4 == 3 and 2 * d == n - 1 and _is_prime(n):
        yield f"paley:{n}"
    yield from (f"circulant1:{n}x{'x'.join(map(str, steps))}" for steps in _best_steps(n, d, n - 1, False, seed))
    yield from _cayley(n, d, seed, effort, two_way=False)
    if d > 1 and n * d <= _MOST_RANDOM:
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
        drawn = _samples(np.random.default_rng([seed, n, count]), most, count, _TRIED)
        sets = list(dict.fromkeys([*_consecutive(n, count, most), *map(tuple, drawn.tolist())]))
    steps = np.array([[*one, *more] for one in sets], dtype=np.int64)
    if both:
        steps = np.concatenate([steps, n - steps], axis=1)
    return [sets[i] for i in _nearest(n, np.ones(1, dtype=np.int64), steps, _KEPT)]


def _nearest(across: int, powers: I64, sets: I64, most: int) -> list[int]:
    """Rows of the connected Cayley digraphs with the least diameter, and of these with the fewest ranks that far."""
    from collsyn.finder.reach_kernels import reaches

    found = reaches(across, powers, sets)
    order = np.lexsort((np.arange(len(sets)), found[:, 1], found[:, 0]))
    return [row for row in order.tolist() if found[row, 0] >= 0][:most]


def _samples(random: np.random.Generator, most: int, count: int, tries: int) -> I64:
    """Rows of different numbers 1 .. most in ascending order, up to so many rows."""
    if most <= 4 * count * count:
        rows = np.argsort(random.random((tries, most)), axis=1)[:, :count] + 1
    else:
        rows = random.integers(1, most + 1, size=(2 * tries, count))
    rows = np.sort(rows, axis=1)
    found: I64 = rows[(np.diff(rows, axis=1) > 0).all(axis=1)][:tries]
    return found


def _consecutive(n: int, count: int, most: int) -> Iterator[tuple[int, ...]]:
    """Steps m, m + 1, ...: for two steps both ways some m gives the least diameter there is."""
    if count == 2:
        middle = isqrt(n // 2)
        yield from ((m, m + 1) for m in range(max(middle - 3, 1), min(middle + 4, most)))
    yield from (tuple(base**power for power in range(count)) for base in range(2, 9) if base ** (count - 1) <= most)


def _cayley(n: int, d: int, seed: int, effort: Effort, two_way: bool) -> Iterator[str]:
    """Cayley digraphs of semidirect products: of random generators of each group those of the least diameter.

    Generators come with their inverses where links shall go both ways.
    """
    if d < 2:
        return
    random = np.random.default_rng([seed, n, d, 1 + two_way])
    found: list[str] = []
    tries = min(max(effort.links // (n * d), _FEWEST_TRIED), _MOST_TRIED)
    for across, up, root in _groups(n, effort.groups, effort.alike):
        sets = _samples(random, n - 1, d, tries)
        if two_way:
            sets = _with_inverses(sets, _inverses(across, up, root))
        powers = np.array([pow(root, k, across) for k in range(up)], dtype=np.int64)
        if len(sets):
            chosen = sets[_nearest(across, powers, sets, effort.kept)].tolist()
            found += (f"cayley:{'x'.join(map(str, [across, up, root, *row]))}" for row in chosen)
    yield from found


def _with_inverses(sets: I64, inverse: I64) -> I64:
    """Rows of generators and their inverses, as many in each, from as many of its own as there is room for."""
    kept = []
    for row in sets.tolist():
        chosen: set[int] = set()
        for first in row:
            both = {first, int(inverse[first])}
            if len(chosen | both) <= len(row):
                chosen |= both
        if len(chosen) == len(row):
            kept.append(sorted(chosen))
    return np.array(kept, dtype=np.int64)


def _inverses(across: int, up: int, root: int) -> I64:
    """The inverse of every rank in the semidirect product."""
    ranks = np.arange(across * up)
    x, y = ranks % across, -(ranks // across) % up
    powers = np.array([pow(root, k, across) for k in range(up)])
    found: I64 = -powers[y] * x % across + across * y
    return found


@cache
def _groups(n: int, most: int, alike: int) -> tuple[tuple[int, int, int], ...]:
    """(A, B, R) of semidirect products of order n that are not commutative, the more even first."""
    found = []
    for across in divisors(n):
        up = n // across
        if across < 3 or up < 2:
            continue
        roots = [root for root in range(2, across) if pow(root, up, across) == 1]
        # The last root is -1 or its like, which gives a group unlike the others.
        found += [(across, up, root) for root in dict.fromkeys([*roots[: alike - 1], *roots[-1:]])]
    found.sort(key=lambda group: (abs(group[0] - group[1]), group))
    return tuple(found[:most])


def _limited(seed: int) -> int:
    """A seed that the text of a graph can hold."""
    return seed % (10**9 - 1) or 1


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, isqrt(number) + 1))
