"""Spanning trees with shares: which part of a root's data goes down which tree, hop by hop over which links."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from collsyn.model.arrays import I32, I64, Rows
from collsyn.model.topology import Topology


@dataclass(frozen=True, eq=False)
class Trees:
    """Trees away from their roots; tree i carries `weight[i]` / `k` of the data of `root[i]`.

    Weights of a root's trees add up to k. `share[r]` is root r's part of the size. Hops of tree i are the rows
    `ptr[i]:ptr[i + 1]` of `src`, `dst` and `routes` (links from source to target), parents before children.
    """

    topology: Topology
    share: Mapping[int, Fraction]
    k: int
    root: I32
    weight: I64
    ptr: I64
    src: I32
    dst: I32
    routes: Rows

    def __len__(self) -> int:
        return len(self.root)

    @cached_property
    def tree_of_hop(self) -> I64:
        """The tree of every hop."""
        return np.repeat(np.arange(len(self)), np.diff(self.ptr))

    @cached_property
    def before(self) -> I64:
        """For every hop the hop of the same tree that enters its source; -1 where that is the root."""
        n = self.topology.num_ranks
        entering = np.full(len(self) * n, -1, dtype=np.int64)
        entering[self.tree_of_hop * n + self.dst] = np.arange(len(self.dst))
        return np.asarray(entering[self.tree_of_hop * n + self.src])

    @cached_property
    def children(self) -> Rows:
        """Row h: the hops behind hop h; one more row for those at roots."""
        hops = len(self.dst)
        return Rows.grouped(np.where(self.before >= 0, self.before, hops), hops + 1)

    @cached_property
    def link_ptr(self) -> I64:
        """Where the hops over link e begin, in a table of hops by link, and its end."""
        many = np.bincount(self.routes.data, minlength=self.topology.num_links)
        return np.concatenate([[0], np.cumsum(many)]).astype(np.int64)

    @cached_property
    def depth(self) -> I64:
        """Hops from the root to the target of every hop."""
        depth = np.ones(len(self.dst), dtype=np.int64)
        at = self.before
        while (at >= 0).any():
            depth += at >= 0
            at = np.where(at >= 0, self.before[at], -1)
        return depth

    @cached_property
    def below(self) -> I64:
        """Hops from the target of every hop down to the farthest rank below it."""
        below = np.zeros(len(self.dst), dtype=np.int64)
        at, steps = self.before, 0
        while (at >= 0).any():
            steps += 1
            np.maximum.at(below, at[at >= 0], steps)
            at = np.where(at >= 0, self.before[at], -1)
        return below

    @property
    def height(self) -> int:
        """Hops of the deepest tree."""
        return int(self.depth.max(initial=0))

    @cached_property
    def loads(self) -> dict[int, Fraction]:
        """Parts of the size that go over every link that is used."""
        roots, index = np.unique(self.root, return_inverse=True)
        shares = [self.share[root] / self.k for root in roots.tolist()]
        common = np.lcm.reduce([s.denominator for s in shares]) if shares else 1
        parts = np.array([int(s * int(common)) for s in shares], dtype=np.int64)
        amount = (self.weight * parts[index.reshape(-1)])[self.tree_of_hop]
        total = np.zeros(self.topology.num_links, dtype=np.int64)
        np.add.at(total, self.routes.data, np.repeat(amount, self.routes.lengths()))
        used = np.flatnonzero(total).tolist()
        return {link: Fraction(int(total[link]), int(common)) for link in used}

    @cached_property
    def algbw_gb_s(self) -> Fraction:
        """The exact rate of these trees: GB/s of the size at which the busiest link is full."""
        bandwidth = self.topology.exact_bandwidth_gb_s
        return min(bandwidth[link] / load for link, load in self.loads.items())
