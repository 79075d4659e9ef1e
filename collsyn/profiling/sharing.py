"""From rates of messages that ran together to the links that they share; no clock, no ranks, only arrays."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collsyn.model.arrays import F64, Bools
from collsyn.profiling.fit import CONFIDENCE

Pair = tuple[int, int]

# A pair that has less than this part of the rate that it has alone is slowed by others.
SLOWED = 0.85
# A link is full where it carries at least this part of the most that it was ever seen to carry.
_FULL = 0.88
# Its bandwidth is the middle of what is this close to the most.
_BRIM = 0.95
# As many times a pair must have been slowed to count as one that shares, and a link must explain what is slow.
_FEWEST = 2
# And in which part of its runs a pair must have been slowed, if that is few times: it happens for other reasons, too.
_OFTEN = 0.2
# All sets of that many ranks are tried; of more ranks only those that latencies suggest.
MOST_RANKS_TRIED = 16
_CHUNK = 1 << 13
# Sets whose worth is known exactly in each round, and how close to the best they must come.
_LOOKED_AT, _NEARLY = 256, 0.95
# The part of a full link's traffic that is slowed, at least.
_MOSTLY = 0.6


@dataclass(frozen=True)
class Run:
    """Pairs that ran together: bytes per second of each while all were under way, and those that others slowed."""

    rates: Mapping[Pair, float]
    slowed: frozenset[Pair]


@dataclass(frozen=True)
class Shared:
    """A link that all listed pairs use: those from `ranks` to the others (`out`), or to `ranks` from the others.

    `bandwidth` are bytes per second, `low` and `high` the interval of it; `times` is how often it was seen full.
    """

    ranks: tuple[int, ...]
    out: bool
    bandwidth: float
    low: float
    high: float
    times: int

    def carries(self, pair: Pair) -> bool:
        """Whether a pair's messages cross the border of the ranks in this direction."""
        inner, outer = pair if self.out else (pair[1], pair[0])
        return inner in self.ranks and outer not in self.ranks


@dataclass(frozen=True)
class Sharing:
    """Links shared, the pairs that share (others have links of their own), and how often one was slow for no reason
    found."""

    links: tuple[Shared, ...]
    pairs: frozenset[Pair]
    unexplained: int


def find_shared(num_ranks: int, runs: Sequence[Run], suggested: Iterable[Sequence[int]] = ()) -> Sharing:
    """The fewest nested sets of ranks whose borders explain which pairs were slowed, and what each lets through.

    Whoever is slowed crosses a full link: that is all that is assumed of how links are shared. In a tree a
    link is the border of a set of ranks in one direction. Of each set its traffic in every run is known; the most of it
    is the least that the link must carry, and a set that is no link seldom comes near that. So sets are taken, best
    first, that are full in most runs in which their pairs are slowed and no set before explains it; those that others
    make superfluous are dropped. Complexity: O(2^ranks * runs * ranks^2) up to MOST_RANKS_TRIED ranks; of more, single
    ranks and the `suggested` sets are tried.
    """
    slowed = np.array([_matrix(num_ranks, dict.fromkeys(run.slowed, 1.0)) for run in runs])
    if not len(slowed):
        return Sharing((), frozenset(), 0)
    ran = np.array([_matrix(num_ranks, dict.fromkeys(run.rates, 1.0)) for run in runs]).sum(axis=0)
    sharing = slowed.sum(axis=0) >= np.clip(_OFTEN * ran, _FEWEST, 2 * _FEWEST)
    slowed = slowed * sharing
    rates = np.array([_matrix(num_ranks, run.rates) for run in runs]) * sharing
    pairs = frozenset(zip(*(ends.tolist() for ends in np.nonzero(sharing)), strict=True))
    # Ranks first: their ports explain most, and what remains is little.
    single = np.eye(num_ranks, dtype=np.bool_)
    chosen, left = _cover(np.concatenate([single, ~single]), rates, slowed, slowed)
    more, left = _cover(_candidates(num_ranks, suggested), rates, slowed, left)
    chosen = _needed([*chosen, *more], rates, slowed)
    links = [_link(members, rates, slowed) for members in chosen]
    return Sharing(
        tuple(sorted(links, key=lambda link: (len(link.ranks), link.ranks, not link.out))), pairs, int(left.sum())
    )


def most_across(ranks: Iterable[int], out: bool, pairs: Iterable[Pair], runs: Sequence[Run]) -> float:
    """The most bytes per second that pairs had in a run across the border of a set of ranks, in one direction."""
    border = Shared(tuple(ranks), out, 0.0, 0.0, 0.0, 0)
    crossing = {pair for pair in pairs if border.carries(pair)}
    return max((sum(rate for pair, rate in run.rates.items() if pair in crossing) for run in runs), default=0.0)


def _matrix(num_ranks: int, values: Mapping[Pair, float]) -> F64:
    matrix = np.zeros((num_ranks, num_ranks))
    for pair, value in values.items():
        matrix[pair] = value
    return matrix


def _candidates(num_ranks: int, suggested: Iterable[Sequence[int]]) -> Bools:
    """Sets to try, one a row: those whose border is crossed outwards."""
    if num_ranks <= MOST_RANKS_TRIED:
        numbers = np.arange(1, (1 << num_ranks) - 1)
        return (numbers[:, np.newaxis] >> np.arange(num_ranks) & 1).astype(np.bool_)
    sets = np.array([np.isin(np.arange(num_ranks), members) for members in suggested], dtype=np.bool_)
    sets = sets.reshape(-1, num_ranks)
    return np.concatenate([sets, ~sets])


def _across(sets: Bools, matrices: F64) -> F64:
    """Sum of each matrix over pairs from each set to its complement; shape [sets, matrices]."""
    values = matrices.reshape(len(matrices), -1).T.astype(np.float32)
    used = np.flatnonzero(values.any(axis=1))
    src, dst = np.divmod(used, sets.shape[1])
    parts = [np.empty((0, len(matrices)))]
    for begin in range(0, len(sets), _CHUNK):
        part = sets[begin : begin + _CHUNK]
        parts.append(((part[:, src] & ~part[:, dst]).astype(np.float32) @ values[used]).astype(np.float64))
    return np.concatenate(parts)


def _full(across: F64) -> Bools:
    """Where sets let through nearly the most that they ever do."""
    most = across.max(axis=1, keepdims=True)
    return np.asarray((across >= _FULL * most) & (most > 0))


def _full_runs(sets: Bools, rates: F64, slow: F64) -> Bools:
    across = _across(sets, rates)
    return _full(across) & (_across(sets, rates * (slow > 0)) >= _MOSTLY * across)


def _cover(sets: Bools, rates: F64, slow: F64, left: F64) -> tuple[list[Bools], F64]:
    """Greedy cover of what is `left` of all that is slow, and what is left then.

    A set is worth what it explains of the rest, which only falls, so few are looked at again in each round; of those
    that are worth nearly as much as the best, the one that explains most of all is taken.
    """
    chosen: list[Bools] = []
    if not len(sets) or not left.any():
        return chosen, left
    full, live = _full_runs(sets, rates, slow), left.any(axis=(1, 2))
    worth = (full[:, live] * _across(sets, left[live])).sum(axis=1)
    size = np.minimum(sets.sum(axis=1), (~sets).sum(axis=1))
    while (worth >= _FEWEST).any():
        order = np.lexsort((size, -worth))[:_LOOKED_AT]
        worth[order] = np.minimum(worth[order], (full[order] * _across(sets[order], left)).sum(axis=1))
        best = float(worth[order].max())
        if best < max(_FEWEST, np.delete(worth, order).max(initial=0.0)):
            continue
        near = order[worth[order] >= _NEARLY * best]
        in_all = (full[near] * _across(sets[near], slow)).sum(axis=1)
        taken = int(near[np.lexsort((size[near], -worth[near], -in_all))[0]])
        members = sets[taken]
        chosen.append(members)
        left = _without(left, members, full[taken])
        worth[taken] = 0.0
        worth[~_nested(sets, members)] = 0.0
    return chosen, left


def _nested(sets: Bools, members: Bools) -> Bools:
    """Which sets, or their complements, contain another one, are contained in it, or are apart from it."""
    both, neither = (sets & members).any(axis=1), (~sets & ~members).any(axis=1)
    one, other = (sets & ~members).any(axis=1), (~sets & members).any(axis=1)
    return np.asarray(~(both & neither & one & other))


def _without(slow: F64, members: Bools, full: Bools) -> F64:
    """What is slow for other reasons than a set's border, which is full in some runs."""
    border = members[:, np.newaxis] & ~members
    return np.where(full[:, np.newaxis, np.newaxis] & border, 0.0, slow)


def _needed(chosen: list[Bools], rates: F64, slow: F64) -> list[Bools]:
    """The sets without which something is unexplained."""
    if not chosen:
        return chosen
    full, kept = _full_runs(np.array(chosen), rates, slow), list(range(len(chosen)))
    for i in range(len(chosen)):
        left = slow
        for j in kept:
            left = left if j == i else _without(left, chosen[j], full[j])
        if (full[i] * _across(chosen[i][np.newaxis], left)[0]).sum() < _FEWEST:
            kept.remove(i)
    return [chosen[i] for i in kept]


def _link(members: Bools, rates: F64, slow: F64) -> Shared:
    """Bandwidth of a set's border from the runs in which it was full and slowed somebody."""
    across = _across(members[np.newaxis], rates)[0]
    full = _full(across[np.newaxis])[0] & (_across(members[np.newaxis], slow)[0] > 0)
    # Where another link was the limit, this one was not quite full.
    seen = across[full]
    seen = seen[seen >= _BRIM * seen.max()]
    low, high = np.quantile(seen, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    inside, outside = (tuple(np.flatnonzero(side).tolist()) for side in (members, ~members))
    out = (len(inside), 0 in inside) < (len(outside), 0 in outside)
    ranks = inside if out else outside
    return Shared(ranks, out, float(np.median(seen)), float(low), float(high), int(full.sum()))
