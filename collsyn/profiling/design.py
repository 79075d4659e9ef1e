"""Which messages to send at once, so that every shared link of a tree is full in some run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from collsyn.profiling.sharing import Pair

# Part of the runs that also take pairs which nobody was seen to slow.
_ANY = 0.15
# Costs this close are equal.
_SAME = 1.1


class Costs(Protocol):
    """What a pair's messages cost alone."""

    @property
    def alpha_s(self) -> float: ...

    @property
    def beta_s_per_byte(self) -> float: ...


def relay_ways(costs: Mapping[Pair, Costs]) -> list[tuple[int, int, int]]:
    """(src, via, dst) of pairs whose costs are those of a way over another rank, for each such rank.

    Latencies of the legs add up, and the slower one sets the rate. O(ranks^3).
    """
    found = []
    for (src, dst), whole in sorted(costs.items()):
        for via in sorted({first for first, _ in costs} - {src, dst}):
            legs = costs.get((src, via)), costs.get((via, dst))
            if legs[0] is None or legs[1] is None or not min(legs[0].alpha_s, legs[1].alpha_s) > 0:
                continue
            beta = max(legs[0].beta_s_per_byte, legs[1].beta_s_per_byte)
            if _alike(whole.alpha_s, legs[0].alpha_s + legs[1].alpha_s) and _alike(whole.beta_s_per_byte, beta):
                found.append((src, via, dst))
    return found


def _alike(one: float, other: float) -> bool:
    return one <= other * _SAME and other <= one * _SAME


def near_sets(alpha_s: Mapping[Pair, float]) -> list[tuple[int, ...]]:
    """Sets of ranks that are joined by latencies up to a limit, for every limit: what boxes and sockets look like."""
    ranks = sorted({rank for pair in alpha_s for rank in pair})
    group = {rank: rank for rank in ranks}
    found: dict[tuple[int, ...], None] = {}
    before = 0.0
    for src, dst in sorted(alpha_s, key=lambda pair: (alpha_s[pair], pair)):
        if alpha_s[src, dst] > _SAME * before:
            found |= dict.fromkeys(_groups(group))
        before = alpha_s[src, dst]
        joined = {group[src], group[dst]}
        group = {rank: min(joined) if number in joined else number for rank, number in group.items()}
    return [ranks for ranks in found if 1 < len(ranks) < len(group)]


def _groups(group: Mapping[int, int]) -> list[tuple[int, ...]]:
    return [tuple(rank for rank in group if group[rank] == number) for number in sorted(set(group.values()))]


def kinds(costs: Mapping[Pair, Costs]) -> dict[Pair, int]:
    """Numbers pairs by latency: those of one number are alike, lower ones are nearer."""
    found: dict[Pair, int] = {}
    number, before = 0, 0.0
    for pair in sorted(costs, key=lambda pair: (costs[pair].alpha_s, pair)):
        if found and costs[pair].alpha_s > _SAME * before:
            number += 1
        found[pair], before = number, costs[pair].alpha_s
    return found


def fans(num_ranks: int, pairs: Sequence[Pair], rng: np.random.Generator) -> list[tuple[Pair, ...]]:
    """For each rank: all its pairs at once, out and in, and both halves of them; all of them twice where they are few.

    `pairs` are those to consider. Halves must still be able to fill a link, though what leaves one rank is fetched by
    others, with pauses between.
    """
    found: list[tuple[Pair, ...]] = []
    for rank in range(num_ranks):
        for end, fewest in ((0, 4), (1, 2)):
            mine = [pair for pair in pairs if pair[end] == rank]
            order = rng.permutation(len(mine)).tolist()
            halves = [half for half in (order[::2], order[1::2]) if len(half) >= fewest]
            parts = [order, *halves] if len(halves) == 2 else [order, order, *halves]
            found += [tuple(mine[i] for i in part) for part in parts if len(part) > 1]
    return found


def crossings(
    num_ranks: int,
    pairs: Sequence[Pair],
    others: Sequence[Pair],
    kind: Mapping[Pair, int],
    rng: np.random.Generator,
    runs: int,
) -> Iterator[tuple[Pair, ...]]:
    """Runs of some pairs, each rank in at most one of them as sender and as receiver.

    Ports cannot be what is full then. `kind` says which pairs are alike (near or far, say): runs draw them at changing
    odds, so that links deep in the tree are loaded with and without the traffic of those above. `others` are pairs
    thought to have links of their own, which some runs take, too.
    """
    numbers = sorted(set(kind.values()))
    for _ in range(runs):
        usable = [*pairs, *others] if rng.random() < _ANY or not pairs else list(pairs)
        odds = dict(zip(numbers, rng.dirichlet(np.full(len(numbers), 0.5)), strict=True))
        idle = rng.choice([0.0, 0.0, 0.25, 0.5])
        free = {rank for rank in range(num_ranks) if rng.random() >= idle}
        chosen: list[Pair] = []
        for src in rng.permutation(num_ranks).tolist():
            open_pairs = [pair for pair in usable if pair[0] == src and pair[1] in free]
            if not open_pairs or rng.random() < idle:
                continue
            weights = np.array([odds[kind[pair]] + 1e-9 for pair in open_pairs])
            pair = open_pairs[int(rng.choice(len(open_pairs), p=weights / weights.sum()))]
            chosen.append(pair)
            free.discard(pair[1])
        if len(chosen) > 1:
            yield tuple(chosen)
