"""Whole numbers in the place of parts: k trees a root, counted with multiplicity, at little more congestion."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np

from collsyn.model.arrays import F64, I64
from collsyn.synth.trees_pool import WORK, Mix, Pool, Pricing, Program, Tree, best_mix

# Exchanges of trees that are made for one k; trees of one demand that are looked at in each.
MAX_EXCHANGES, MAX_OTHERS = 200, 400
# Loads that are looked at for all exchanges of one k.
MAX_ENTRIES = 20_000_000
# Largest k for which new trees are looked for, and the congestion of mixes that are worth it.
MAX_DIVE, DIVE_FROM = 12, 1.05
# Denominators of parts that are looked for, and the largest k that is considered.
_SIMPLE, MAX_K = 720, 4096


@dataclass(frozen=True, eq=False)
class Rounded:
    """Trees and how many of the k parts of its demand's data each carries, and the congestion."""

    k: int
    trees: list[Tree]
    counts: I64
    congestion: float


def exact_k(mix: Mix) -> int | None:
    """The k at which the mix needs no rounding; None where it is above MAX_K."""
    parts = [Fraction(part).limit_denominator(_SIMPLE) for part in mix.parts.tolist()]
    if any(abs(float(near) - part) > 1e-9 for near, part in zip(parts, mix.parts.tolist(), strict=True)):
        return None
    k = lcm(*(part.denominator for part in parts))
    return k if k <= MAX_K else None


def in_parts(pool: Pool, mix: Mix, k: int, search: Pricing) -> Rounded:
    """The mix in k parts: rounded with the trees that are there, or dived for others where that loses something."""
    plain = rounded(pool, mix, k)
    good = plain.congestion <= max(1.0, mix.congestion) * (1 + 1e-3)
    if good or k > MAX_DIVE or mix.congestion > DIVE_FROM or search.work > WORK // 4 or search.is_over:
        return plain
    deeper = dived(pool, mix, k, search)
    return min(plain, deeper, key=lambda found: (round(found.congestion, 4), len(found.trees)))


def rounded(pool: Pool, mix: Mix, k: int, others: int = MAX_OTHERS) -> Rounded:
    """Parts are rounded down, and what is missing goes one by one to the tree that leaves the least congestion.

    Then one part at a time goes to another tree of the mix, or to one of the last `others` of the pool that are no
    higher than the mix, as long as that helps. Complexity: O(MAX_EXCHANGES x trees of the mix x `others` x orbits of
    links).
    """
    return _completed(pool, mix.height, mix.trees, np.floor(mix.parts * k + 1e-6).astype(np.int64), k, others)


def _completed(
    pool: Pool, height: int, own: Sequence[Tree], counts: I64, k: int, most_others: int = MAX_OTHERS
) -> Rounded:
    trees = list(own)
    known = set(map(id, trees))
    for number in range(len(pool.demands) if most_others else 0):
        others = [t for t in pool.trees if t.number == number and id(t) not in known and t.height <= height]
        trees += others[-most_others:]
    state = _Counts(pool, trees, k)
    state.count[: len(own)] = counts
    for number in range(len(pool.demands)):
        for _ in range(k - int(state.count[state.number == number].sum())):
            state.count[state.best_addition(number)] += 1
    state.exchange()
    used = np.flatnonzero(state.count)
    return Rounded(k, [trees[i] for i in used], state.count[used], state.congestion())


def dived(pool: Pool, mix: Mix, k: int, search: Pricing) -> Rounded:
    """By diving: parts are fixed one after the other, and the program is solved anew for the rest.

    New trees are added where the prices that are left ask for them, so that packings are found that the pool lacks: the
    k trees of Edmonds' theorem, say. Complexity: as many programs as there are parts of k.
    """
    program, kept = Program(pool), np.zeros(0)
    while True:
        found = best_mix(search, program, mix.height, False, patience=2)
        place = {id(tree): i for i, tree in enumerate(pool.trees)}
        parts = np.zeros(len(pool.trees))
        parts[[place[id(tree)] for tree in found.trees]] = found.parts * k
        kept = np.maximum(np.pad(kept, (0, len(parts) - len(kept))), np.floor(parts + 1e-6))
        left = parts - kept
        if left.max() < 1e-6:
            used = np.flatnonzero(kept)
            return _completed(pool, mix.height, [pool.trees[i] for i in used], kept[used].astype(np.int64), k)
        kept[int(left.argmax())] += 1
        for i in np.flatnonzero(kept).tolist():
            program.keep(i, kept[i] / k)


class _Counts:
    """How many of k parts of its demand's data every tree carries."""

    def __init__(self, pool: Pool, trees: Sequence[Tree], k: int) -> None:
        self.number = np.array([tree.number for tree in trees])
        self.load: F64 = np.array([tree.load for tree in trees]) / (pool.room * k)
        self.count = np.zeros(len(trees), dtype=np.int64)

    def busy(self) -> F64:
        """Congestion of every orbit of links."""
        return np.asarray(self.count @ self.load)

    def congestion(self) -> float:
        """Congestion of the busiest."""
        return float(self.busy().max())

    def best_addition(self, number: int) -> int:
        """The tree of a demand that makes least of the congestion with one more part."""
        mine = np.flatnonzero(self.number == number)
        return int(mine[_rank(self.busy() + self.load[mine]).argmin()])

    def exchange(self) -> None:
        """Move parts from tree to tree while the congestion, or that of many busy links, gets less."""
        entries = len(self.number) * self.load.shape[1] * max(1, np.count_nonzero(self.count))
        for _ in range(min(MAX_EXCHANGES, max(1, MAX_ENTRIES // entries))):
            busy = self.busy()
            now, best = float(_rank(busy[None, :])[0]), None
            for giver in np.flatnonzero(self.count).tolist():
                mine = np.flatnonzero(self.number == self.number[giver])
                ranks = _rank(busy - self.load[giver] + self.load[mine])
                at = int(ranks.argmin())
                if ranks[at] < now * (1 - 1e-9):
                    now, best = float(ranks[at]), (giver, int(mine[at]))
            if best is None:
                return
            self.count[best[0]] -= 1
            self.count[best[1]] += 1


def _rank(busy: F64) -> F64:
    """Of several loads (rows) the largest entry; those that come near it make a small difference."""
    most = busy.max(axis=1)
    return np.asarray(most * (1 + 1e-6 * ((busy / most[:, None]) ** 64).sum(axis=1)))
