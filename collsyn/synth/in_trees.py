"""Trees of quickest ways into every rank, chosen so that few different partial sums cross each hop."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collsyn.model.arrays import F64
from collsyn.topology.hops import Hops

# Ways whose times differ by less, relatively, are equally quick.
_TIE = 1e-9
# Parents that are tried in place of others, per rank and tree.
_MOVES = 6

# A partial sum: bit r says that it holds the contribution of rank r.
Part = int
# `trees[root][rank]`: the hop that the rank's partial sum takes towards the root; ranks that have nothing to send
# are missing.
Trees = dict[int, dict[int, int]]
# What a rank goes by when it chooses where to send: the least of (ranks in all, its number, that of the next rank).
Rule = Callable[[int, int, int], int]


@dataclass(frozen=True, eq=False)
class InTrees:
    """Seconds of every hop and of the quickest way between every two ranks, for messages of one size."""

    table: Hops
    cost_s: F64
    seconds: F64

    @classmethod
    def quickest(cls, table: Hops, num_bytes: float) -> "InTrees":
        """By Dijkstra from every rank: O(ranks hops log ranks)."""
        cost = np.maximum(table.seconds(num_bytes), np.finfo(np.float64).tiny)
        seconds = _distances(table, cost)
        # Every hop must come nearer by more than a tie, or equally quick hops could lead round in a circle.
        least = 4 * _TIE * seconds.max(initial=0.0, where=np.isfinite(seconds))
        if (cost < least).any():
            cost = np.maximum(cost, least)
            seconds = _distances(table, cost)
        return cls(table, cost, seconds)

    def towards(self, rank: int, root: int) -> list[int]:
        """Hops with which a quickest way from the rank to the root begins."""
        left = self.seconds[:, root]
        return [
            hop
            for hop in self.table.out_of[rank].tolist()
            if self.cost_s[hop] + left[self.table.dst[hop]] <= left[rank] * (1 + _TIE)
        ]


def _distances(table: Hops, cost_s: F64) -> F64:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    n = table.num_ranks
    best = np.full((n, n), np.inf)
    np.minimum.at(best, (table.src, table.dst), cost_s)
    src, dst = np.nonzero(np.isfinite(best))
    return np.asarray(dijkstra(csr_array((best[src, dst], (src, dst)), shape=(n, n))))


def grown(ways: InTrees, group: Sequence[int]) -> Trees:
    """A tree of quickest ways into every rank of a group, holding all of the group.

    Of several rules by which ranks choose among equally quick hops, the one with the fewest messages, improved by
    moving single ranks to other parents. Deterministic.
    """
    choices = {(rank, root): ways.towards(rank, root) for root in group for rank in range(ways.table.num_ranks)}
    candidates = [_Forest(ways, group, choices, rule) for rule in (_nearest_number, _first, _farthest_number)]
    best = min(candidates, key=lambda forest: forest.load)
    best.improve()
    return best.trees


def _nearest_number(n: int, rank: int, following: int) -> int:
    apart = abs(rank - following)
    return min(apart, n - apart)


def _farthest_number(n: int, rank: int, following: int) -> int:
    return -_nearest_number(n, rank, following)


def _first(n: int, rank: int, following: int) -> int:
    return following


class _Forest:
    """Trees into all ranks of a group with the number of different partial sums on every hop.

    `load` is the sum over hops of the square of that number.
    """

    def __init__(
        self, ways: InTrees, group: Sequence[int], choices: Mapping[tuple[int, int], list[int]], rule: Rule
    ) -> None:
        self._dst: list[int] = ways.table.dst.tolist()
        self._choices, self._n, self._rule = choices, ways.table.num_ranks, rule
        self.trees: Trees = {}
        self.load = 0
        self._below: dict[tuple[int, int], Part] = {}
        self._users: Counter[tuple[int, Part]] = Counter()
        self._on_hop: Counter[int] = Counter()
        for root in group:
            self.trees[root] = {}
            for rank in group:
                self._change(root, rank, 1 << rank, True)

    def improve(self) -> None:
        """Move ranks to other parents as long as that lowers the load, or keeps it, within a number of tries."""
        free = [
            (rank, root) for (rank, root), hops in self._choices.items() if len(hops) > 1 and rank in self.trees[root]
        ]
        for _ in range(_MOVES):
            before = self.load
            for rank, root in free:
                # A rank outside the group that others no longer go through has nothing to send.
                here = self.trees[root].get(rank)
                if here is None:
                    continue
                for hop in self._choices[rank, root]:
                    if hop != here and self._below[root, rank]:
                        old = self.load
                        self._move(root, rank, hop)
                        if self.load < old:
                            here = hop
                        else:
                            self._move(root, rank, here)
            if self.load == before:
                break

    def _move(self, root: int, rank: int, hop: int) -> None:
        tree, part = self.trees[root], self._below[root, rank]
        self._change(root, self._dst[tree[rank]], part, False)
        self._drop(tree[rank], part)
        tree[rank] = hop
        self._add(hop, part)
        self._change(root, self._dst[hop], part, True)

    def _change(self, root: int, rank: int, part: Part, more: bool) -> None:
        """Add a part to what a rank and all behind it send, or take it away."""
        tree = self.trees[root]
        while rank != root:
            old = self._below.get((root, rank), 0)
            new = old | part if more else old & ~part
            if rank not in tree:
                tree[rank] = self._chosen(rank, root)
            if old:
                self._drop(tree[rank], old)
            if new:
                self._add(tree[rank], new)
            self._below[root, rank] = new
            following = self._dst[tree[rank]]
            if not new:
                del tree[rank]
            rank = following

    def _chosen(self, rank: int, root: int) -> int:
        return min(self._choices[rank, root], key=lambda hop: (self._rule(self._n, rank, self._dst[hop]), hop))

    def _add(self, hop: int, part: Part) -> None:
        self._users[hop, part] += 1
        if self._users[hop, part] == 1:
            self._count(hop, 1)

    def _drop(self, hop: int, part: Part) -> None:
        self._users[hop, part] -= 1
        if self._users[hop, part] == 0:
            self._count(hop, -1)

    def _count(self, hop: int, by: int) -> None:
        old = self._on_hop[hop]
        self._on_hop[hop] = old + by
        self.load += (old + by) ** 2 - old**2
