"""From trees to a schedule: shares are cut into chunks, and chunks go down the trees in a pipeline."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64, I64, Rows
from collsyn.model.collective import Collective
from collsyn.model.schedule import RouteCosts, Schedule
from collsyn.synth.baseline import chunks_of
from collsyn.synth.timing import in_order
from collsyn.synth.trees_model import Trees

# A link this full is busy all the time, so that its messages must fill it without a rest.
BUSY = 0.9
# What differs from rank to rank among messages that are otherwise alike.
_TURN = 1e-3


@dataclass(frozen=True)
class Pace:
    """How a tree's chunks are grouped into messages, and which message goes first.

    A root's message holds at most 1 / `pieces` of its data, to leaves 1 / `leaf_pieces`, and at most 1 / `taper` of
    what is left of a tree's part, so that the last are short. Others pass on what they have, at most 1 /
    `relay_pieces`. Messages that are behind go first; a hop counts as behind by `lead` of its data for every hop below
    it. Roots issue their messages evenly over `horizon` of the least time (0: all at once).
    """

    pieces: int = 1
    leaf_pieces: int = 1
    relay_pieces: int = 1
    taper: int = 1
    lead: float = 1.0
    horizon: float = 0.0


@dataclass(frozen=True, eq=False)
class Flow:
    """Trees with `split` chunks for every part of k, at one size, ready to be put in order."""

    trees: Trees
    split: int
    size_bytes: int

    @property
    def chunks_per_root(self) -> int:
        """Chunks of every root."""
        return self.trees.k * self.split

    @cached_property
    def chunks(self) -> I64:
        """Chunks that go over every hop; their sum is the number of rows of the schedule."""
        return self.trees.weight[self.trees.tree_of_hop] * self.split

    @cached_property
    def _costs(self) -> RouteCosts:
        return RouteCosts.of(self.trees.topology, self.trees.routes)

    @cached_property
    def _rate(self) -> F64:
        """Bytes/s of the messages of every hop.

        The full rate of its route, or less, so that a whole number of messages fills the busy links of the route: a
        card of 12.5 GB/s behind links of 12 is filled by two messages of 6.25.
        """
        trees, routes = self.trees, self.trees.routes
        bandwidth = trees.topology.bandwidth
        full = np.zeros(trees.topology.num_links)
        full[list(trees.loads)] = [float(load) for load in trees.loads.values()]
        busy = full / bandwidth >= BUSY * (full / bandwidth).max(initial=0.0)
        own = np.repeat(self._costs.rate, routes.lengths())
        fill = bandwidth[routes.data] / np.ceil(bandwidth[routes.data] / own * (1 - 1e-9))
        fill = np.where(busy[routes.data], fill, own)
        return np.asarray(np.minimum.reduceat(fill, routes.ptr[:-1]))

    @cached_property
    def _chunk_bytes(self) -> F64:
        share = {root: float(share) for root, share in self.trees.share.items()}
        per_tree = np.array([share[root] for root in self.trees.root.tolist()]) * self.size_bytes / self.chunks_per_root
        return np.asarray(per_tree[self.trees.tree_of_hop])

    @cached_property
    def _turn(self) -> F64:
        """In [0, 1): how far behind its source the target of every hop is, so that not all go to one rank at once."""
        n = self.trees.topology.num_ranks
        turn = (self.trees.dst.astype(np.int64) - self.trees.src) % n + self.trees.depth * 0.25
        return np.asarray(turn / (n + self.trees.height))

    @cached_property
    def least_s(self) -> float:
        """Time in which the busiest link carries its bytes."""
        return self.size_bytes / float(self.trees.algbw_gb_s) * 1e-9

    def order(self, pace: Pace, limit: int) -> tuple[I64, I64, I64, float]:
        """(hop, first chunk of its tree, chunks) of every message in the order of starts, and about when all is done.

        Infinite where there are more than `limit` messages.
        """
        from collsyn.synth.trees_order_kernels import order_messages

        trees, chunks = self.trees, self.chunks
        at_root, inner = trees.before < 0, trees.below > 0
        pieces = np.where(at_root, np.where(inner, pace.pieces, pace.leaf_pieces), pace.relay_pieces)
        found = order_messages(
            chunks,
            trees.before,
            trees.children.ptr,
            trees.children.data,
            trees.routes.ptr,
            trees.routes.data,
            trees.link_ptr,
            self._rate,
            self._chunk_bytes,
            self._costs.alpha_s,
            self._costs.overhead_s,
            _TURN * self._turn - pace.lead * trees.below,
            -(-self.chunks_per_root // pieces),
            np.where(at_root & inner, 1.0 / pace.taper, 1.0),
            pace.horizon * self.least_s,
            trees.topology.bandwidth,
            min(limit, int(chunks.sum())),
        )
        return found[0], found[1], found[2], float(found[3])

    def schedule(self, collective: Collective, pace: Pace) -> Schedule:
        """The schedule of the messages in that order, each as early as it can be."""
        trees = self.trees
        hop, first, count, _ = self.order(pace, int(self.chunks.sum()))
        message = np.repeat(np.arange(len(hop)), count)
        full = np.isclose(self._rate, self._costs.rate, rtol=1e-9, atol=0)
        routes, route = distinct(trees.routes)
        per_hop: dict[str, npt.NDArray[Any]] = {"src": trees.src, "dst": trees.dst, "route": route}
        per_hop["rate"] = np.where(full, 0.0, self._rate)
        columns = {name: values[hop][message] for name, values in per_hop.items()}
        columns |= {"chunk": self._chunk_numbers(collective, hop, first, count), "batch": message}
        return in_order(collective, trees.topology, self.size_bytes, routes, columns)

    def _chunk_numbers(self, collective: Collective, hop: I64, first: I64, count: I64) -> I64:
        """Chunks of the collective that the messages carry, one message after the other."""
        trees, owned = self.trees, chunks_of(collective)
        start = np.zeros(len(trees), dtype=np.int64)
        numbers = np.zeros((trees.topology.num_ranks, self.chunks_per_root), dtype=np.int64)
        given = dict.fromkeys(trees.share, 0)
        for i, (root, weight) in enumerate(zip(trees.root.tolist(), trees.weight.tolist(), strict=True)):
            start[i] = given[root]
            given[root] += weight * self.split
            numbers[root] = owned[root]
        tree = trees.tree_of_hop[hop]
        inside = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        place = np.repeat(start[tree] + first, count) + inside
        return np.asarray(numbers[np.repeat(trees.root[tree], count), place])


def distinct(routes: Rows) -> tuple[Rows, I64]:
    """The different routes of a table, and the number of each row's."""
    numbers: dict[bytes, int] = {}
    data = routes.data
    index = [numbers.setdefault(data[a:b].tobytes(), len(numbers)) for a, b in pairwise(routes.ptr.tolist())]
    return Rows.of([np.frombuffer(key, dtype=np.int32) for key in numbers]), np.array(index, dtype=np.int64)
