"""Partners across a switch: where every rank sends to one other rank only, messages never wait for two ports at once.

A message through a switch takes a port on either side. Ports that all are full need messages that fit like the rounds
of a tournament, which no order finds that takes them as they come: a tenth of the time is lost. With one partner each
the two ports are one link.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from collsyn.model.arrays import F64, I32, I64
from collsyn.model.topology import Topology
from collsyn.synth.trees_symmetry import Moves

# Keeps trees off a way; prices of all ways that trees take add up to about one.
_OFF = 1e4


@dataclass(frozen=True, eq=False)
class Partners:
    """Over the switches in `through`, rank u sends to rank `of[u]` only."""

    topology: Topology
    through: I64
    of: I64

    @cached_property
    def closed(self) -> I64:
        """Links from these switches to ranks."""
        t = self.topology
        return np.flatnonzero(np.isin(t.src, self.through) & (t.dst < t.num_ranks))

    @cached_property
    def _open(self) -> tuple[I64, I64]:
        """The links of `closed` by which partners are reached, and from which rank."""
        from_rank = np.argsort(self.of)
        return self.closed, from_rank[self.topology.dst[self.closed]]

    def price_off(self, price: F64) -> F64:
        """Prices of links that keep all ways off these switches."""
        shown = price.copy()
        shown[self.closed] += _OFF
        return shown

    def admit(self, price: F64, cost: F64, last: I32) -> None:
        """Let the ways to partners through these switches in again, given costs at the prices of `price_off`."""
        t = self.topology
        for link, source in zip(*(part.tolist() for part in self._open), strict=True):
            at, target = int(t.src[link]), int(t.dst[link])
            through = cost[source, at] + price[link]
            if through < cost[source, target]:
                cost[source, target], last[source, target] = through, link


def partners(topology: Topology, moves: Moves, last: I32) -> Iterator[Partners]:
    """Ways of giving every rank a partner by one of its moves; `last[u, v]` is the last link of the nearest way.

    Each move counts that takes all ranks to where the nearest way leads through a switch, if ranks reach each other
    without these switches, too. O(moves x ranks).
    """
    n = topology.num_ranks
    ranks = np.arange(n)
    for image in moves.vertices[1:, :n]:
        before = topology.src[last[ranks, image]]
        if (before < n).any():
            continue
        through = np.unique(before).astype(np.int64)
        without = (topology.src < n) & ~np.isin(topology.dst, through)
        if np.isin(ranks, topology.src[without]).all():
            # Ranks have other links, over which they reach those that are no partners.
            yield Partners(topology, through, image.astype(np.int64))
