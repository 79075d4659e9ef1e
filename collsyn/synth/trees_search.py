"""Which of the mixes of trees, how many parts, chunks and messages: tried out one after the other at the size asked."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from collsyn.synth.trees_model import Trees
from collsyn.synth.trees_partners import Partners
from collsyn.synth.trees_pool import WORK, Mix, Pool, Pricing, mixes
from collsyn.synth.trees_rounding import Rounded, exact_k, in_parts, rounded
from collsyn.synth.trees_schedule import Flow, Pace
from collsyn.synth.trees_thinning import thinned

# Messages put in order in all.
MESSAGES = 8_000_000
# A finish this close to the time of the busiest link of the best trees is good enough.
GOOD_ENOUGH = 1.01
# Rows of a schedule (chunks moved), unless the least number of chunks needs more.
MAX_ROWS = 200_000
# Solutions of the linear program that are tried, each from random numbers of its own, while none is good enough.
VARIANTS = 4
# Parts of a root's data, besides those that need no rounding; roundings of one mix that are kept, and trees of one
# variant that are tried at more than a few paces.
PARTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48)
KEPT, LOOKED_AT = 8, 3
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# Changes of the best choice in vain after which no better one is expected.
PATIENCE = 400
# Congestion of trees that keep to partners up to which they are tried.
WORTH_PARTNERS = 1.01
# Parts into which mixes with few trees are put, and the congestion that this may add.
FINE, ROUGH = (12, 16, 24, 32, 48, 64, 96, 128), 2e-3
_GLANCE = (Pace(), Pace(1, 1, 1, 3, 0.2), Pace(32, 8, 1, 1, 0.05, 0.95), Pace(24, 4, 8, 1, 1.0, 0.95))
_FIRST = (
    Pace(1, 1, 8, 4, 0.1),
    Pace(1, 1, 1, 2),
    Pace(1, 4, 1, 4, 0.1),
    Pace(8, 2, 1, 1, 0.1, 0.9),
    Pace(128, 128, 1, 1, 0.01, 0.95),
    Pace(512, 512, 1, 1, 0.01, 1.0),
    Pace(1, 64, 8, 4, 0.1),
    Pace(24, 4, 8, 4, 0.03),
    Pace(24, 64, 8, 1, 0.1),
    Pace(24, 1, 256, 8, 1.0, 0.8),
)
_DIMENSIONS: dict[str, tuple[Any, ...]] = {
    "pieces": (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512),
    "leaf_pieces": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "relay_pieces": (1, 8, 32, 64, 128, 256),
    "taper": (1, 2, 3, 4, 8),
    "lead": (0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 1.0),
    "horizon": (0.0, 0.8, 0.9, 0.95, 1.0),
}


@dataclass(frozen=True, eq=False)
class Choice:
    """Trees, chunks and pace, and about when the schedule is done."""

    flow: Flow
    pace: Pace
    finish_s: float


def best_choice(
    pool_of: Callable[[], Pool],
    size_bytes: int,
    chunks: int | None,
    least_piece: int,
    most_messages: int,
    seed: int,
    late: Callable[[], bool],
) -> Choice:
    """The best choice that the work allows; `chunks` is their number for every root, if that is given.

    Chunks are not shorter than `least_piece` bytes, nor messages more than `most_messages`, unless the trees need it.
    Of every variant of the linear program all roundings are tried at very few paces, the most promising at a few more,
    then the best is changed at random. In the first, trees take any way; in the others they keep to partners across
    switches where ranks can have them at hardly any loss.
    """
    search = _Search(size_bytes, chunks, least_piece, most_messages, seed, late)
    partnerships: list[Partners] = []
    for variant in range(VARIANTS):
        pool = pool_of()
        if variant == 1:
            partnerships = pool.partnerships()
        if partnerships:
            pool.partners = partnerships[(variant - 1) % len(partnerships)]
        pricing = Pricing(pool, seed + variant, late)
        found = mixes(pricing)
        if pool.partners is not None and found[-1].congestion > WORTH_PARTNERS:
            partnerships = []
            pricing = Pricing(pool_of(), seed + variant, late)
            found = mixes(pricing)
        for trees in _roundings(pricing, found, chunks):
            search.look_at(trees)
        # Where one solution takes long, the others are left out.
        is_last = pricing.work > WORK // 2
        search.improve(VARIANTS if is_last else variant + 1)
        if is_last or search.is_over:
            break
    assert search.best is not None
    return search.best


def _roundings(search: Pricing, found: list[Mix], chunks: int | None) -> Iterator[Trees]:
    """Trees for several k from the mixes of every height, promising ones first: late mixes, little congestion."""
    parts = PARTS if chunks is None else tuple(k for k in range(1, min(chunks, 64) + 1) if chunks % k == 0)
    if chunks is not None and chunks > 64:
        parts = (*parts, chunks)
    pool = search.pool
    for mix in reversed(found):
        exact = exact_k(mix)
        asked = [*parts, *([exact] if exact and chunks is None and exact not in parts else [])]
        known = [in_parts(pool, mix, k, search) for k in asked]
        if chunks is None:
            known += _few(search, mix)
        # More trees than another rounding with no more congestion are not worth a try.
        front, least = [], inf
        for each in sorted(known, key=lambda each: (len(each.trees), each.k)):
            if each.congestion < least * (1 - 1e-3):
                front.append(each)
                least = each.congestion
        for each in sorted(front, key=lambda each: (each.congestion, each.k))[:KEPT]:
            yield pool.unfolded(each.trees, each.counts, each.k)


def _few(search: Pricing, mix: Mix) -> list[Rounded]:
    """Mixes with fewer trees, each in the fewest parts that leave about as little congestion as it has."""
    pool, found = search.pool, []
    hops = sum(len(members) - 1 for members in pool.members) * len(pool.moves)
    for few in thinned(search, mix):
        best: Rounded | None = None
        for k in FINE:
            if k * hops <= MAX_ROWS and (best is None or best.congestion > few.congestion * (1 + ROUGH)):
                fine = rounded(pool, few, k, others=0)
                best = fine if best is None or fine.congestion < best.congestion else best
        found += [best] if best is not None else []
    return found


class _Search:
    """The best choice so far, and what is left of the work."""

    def __init__(
        self,
        size_bytes: int,
        chunks: int | None,
        least_piece: int,
        most_messages: int,
        seed: int,
        late: Callable[[], bool],
    ) -> None:
        self.most_messages = most_messages
        self.size_bytes, self.chunks, self.least_piece, self.late = size_bytes, chunks, least_piece, late
        self.random = np.random.default_rng(seed)
        self.best: Choice | None = None
        self.local: Choice | None = None
        self.least_s, self.work = inf, 0
        self.flows: dict[tuple[int, int], Flow] = {}
        self.looked: list[tuple[float, Trees]] = []

    @property
    def is_over(self) -> bool:
        """Whether there is a choice, and it is good enough or nothing is left to find a better one with."""
        if self.best is None:
            return False
        return self.best.finish_s <= GOOD_ENOUGH * self.least_s or self.work > MESSAGES or self.late()

    def splits(self, trees: Trees) -> list[int]:
        """Chunks for every part that are allowed."""
        if self.chunks is not None:
            return [self.chunks // trees.k]
        rows = int(trees.weight[trees.tree_of_hop].sum())
        shortest = min(map(float, trees.share.values())) * self.size_bytes / trees.k
        return [s for s in SPLITS if s == 1 or (rows * s <= MAX_ROWS and shortest / s >= self.least_piece)]

    def look_at(self, trees: Trees) -> None:
        """Try trees at very few paces, with few chunks and with many."""
        splits, finish_s = self.splits(trees), inf
        self.least_s = min(self.least_s, self.size_bytes / float(trees.algbw_gb_s) * 1e-9)
        for split in dict.fromkeys((splits[0], splits[len(splits) // 2])):
            for pace in _GLANCE if trees.height > 1 else _GLANCE[:1]:
                if not self.is_over:
                    finish_s = min(finish_s, self.attempt(trees, split, pace))
        self.looked.append((finish_s, trees))

    def attempt(self, trees: Trees, split: int, pace: Pace) -> float:
        """The finish of one choice, which is kept if it is the best (infinite where it cannot be)."""
        flow = self.flows.setdefault((id(trees), split), Flow(trees, split, self.size_bytes))
        if self.best is not None and flow.least_s >= self.best.finish_s:
            return inf
        limit = max(self.most_messages, 2 * len(trees.dst))
        hop, _, _, finish_s = flow.order(pace, limit)
        self.work += len(hop) if finish_s < inf else limit
        choice = Choice(flow, pace, finish_s)
        if self.local is None or finish_s < self.local.finish_s * (1 - 1e-9):
            self.local = choice
        if self.best is None or finish_s < self.best.finish_s * (1 - 1e-9):
            self.best = choice
        return finish_s

    def improve(self, share: int) -> None:
        """Change the best of this variant at random until it is good enough or `share` / VARIANTS of the work is done.

        The next variant starts with a best of its own.
        """
        promising = [trees for _, trees in sorted(self.looked, key=lambda each: each[0])[:KEPT]]
        for trees in promising[:LOOKED_AT]:
            splits = self.splits(trees)
            for split in dict.fromkeys((splits[len(splits) // 2], splits[-1])):
                for pace in _FIRST:
                    if not self.is_over:
                        self.attempt(trees, split, pace)
        tried: set[tuple[int, int, Pace]] = set()
        in_vain = 0
        while promising and not self.is_over and self.work < MESSAGES * share / VARIANTS and in_vain < PATIENCE:
            best, in_vain = self.local or self.best, in_vain + 1
            assert best is not None
            trees, split, pace = self._changed(best, promising)
            if (id(trees), split, pace) in tried:
                continue
            tried.add((id(trees), split, pace))
            self.attempt(trees, split, pace)
            if self.local is not best:
                in_vain = 0
        self.local = None
        self.looked.clear()

    def _changed(self, choice: Choice, promising: list[Trees]) -> tuple[Trees, int, Pace]:
        """A choice with one or two things changed."""
        trees, split, pace = choice.flow.trees, choice.flow.split, choice.pace
        for _ in range(int(self.random.integers(1, 3))):
            at = int(self.random.integers(len(_DIMENSIONS) + 2))
            if at < len(_DIMENSIONS):
                name = list(_DIMENSIONS)[at]
                value = _DIMENSIONS[name][int(self.random.integers(len(_DIMENSIONS[name])))]
                pace = replace(pace, **{name: value})
            elif at == len(_DIMENSIONS):
                trees = promising[int(self.random.integers(len(promising)))]
            splits = self.splits(trees)
            if at > len(_DIMENSIONS) or split not in splits:
                split = splits[int(self.random.integers(len(splits)))]
        return trees, split, pace
