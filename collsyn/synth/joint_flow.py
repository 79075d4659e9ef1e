"""Trees up paired with trees down by their roots, and the order in which chunks go through the pairs in a pipeline."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import I32, I64, Rows
from collsyn.model.collective import Collective
from collsyn.model.schedule import COPY, REDUCE, RouteCosts, Schedule
from collsyn.model.topology import Topology
from collsyn.synth.timing import in_order
from collsyn.synth.trees_model import Trees
from collsyn.synth.trees_schedule import distinct

_TURN = 1e-3
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Pace:
    """A message holds at most `batch` chunks; a hop counts as behind by `lead` chunks for every hop that comes
    after it; leaves get their data evenly over `horizon` of the least time (0: at once).
    `phases` is the seed of random beginnings of pairs (0: spread evenly).
    """

    batch: int
    lead: float
    horizon: float
    phases: int = 0


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of a tree up and a tree down with one root, `units[p]` of the data's parts each, cut into a common number.

    Hops of pair p are the rows `ptr[p]:ptr[p + 1]`: those up, far ones first, then those down. Hop h sends from
    `src[h]` to `dst[h]` what the hops `needs[h]` have brought (its own data alone where there are none).
    """

    topology: Topology
    units: I64
    ptr: I64
    src: I32
    dst: I32
    up: npt.NDArray[np.bool_]
    routes: Rows
    needs: Rows
    after: I64

    @property
    def height(self) -> int:
        """Hops of the longest way up and down."""
        return int(self.after.max(initial=-1)) + 1

    @cached_property
    def pair_of_hop(self) -> I64:
        """The pair of every hop."""
        return np.repeat(np.arange(len(self.units)), np.diff(self.ptr))

    @cached_property
    def following(self) -> Rows:
        """Row h: the hops that need hop h."""
        waiting = np.repeat(np.arange(len(self.src)), self.needs.lengths())
        order = np.argsort(self.needs.data, kind="stable")
        many = np.bincount(self.needs.data, minlength=len(self.src))
        return Rows(np.concatenate([[0], np.cumsum(many)]), waiting[order])

    @cached_property
    def least_part_s(self) -> float:
        """Time of the busiest link for all data of one byte."""
        load = np.zeros(self.topology.num_links)
        amount = self.units[self.pair_of_hop] / self.units.sum()
        np.add.at(load, self.routes.data, np.repeat(amount, self.routes.lengths()))
        return float((load / self.topology.bandwidth).max(initial=0.0))


def paired(down: Trees, up: Trees) -> Pairs:
    """Pairs of trees with the same root that cover each other's units; `up` are trees on the topology turned round.

    Low trees down meet high trees up, so that the ways are of one length. O(hops of all pairs).
    """
    found: list[tuple[int, int, int]] = []
    height = [_tree_heights(trees) for trees in (down, up)]
    for root in np.unique(down.root).tolist():
        mine = [np.flatnonzero(trees.root == root) for trees in (down, up)]
        lists = [
            [(int(i), int(trees.weight[i])) for i in order]
            for trees, order in (
                (down, mine[0][np.argsort(height[0][mine[0]], kind="stable")]),
                (up, mine[1][np.argsort(-height[1][mine[1]], kind="stable")]),
            )
        ]
        found += _matched(*lists)
    return _joined(down, up, np.array(found, dtype=np.int64).reshape(-1, 3))


def _tree_heights(trees: Trees) -> I64:
    height = np.zeros(len(trees), dtype=np.int64)
    np.maximum.at(height, trees.tree_of_hop, trees.depth)
    return height


def _matched(down: list[tuple[int, int]], up: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(tree down, tree up, units) such that every tree has its units."""
    found = []
    while down:
        (i, a), (j, b) = down[0], up[0]
        n = min(a, b)
        found.append((i, j, n))
        down = down[1:] if a == n else [(i, a - n), *down[1:]]
        up = up[1:] if b == n else [(j, b - n), *up[1:]]
    return found


def _joined(down: Trees, up: Trees, pairs: I64) -> Pairs:
    """Hops, and what they wait for, of pairs (tree down, tree up, units)."""
    hops_up = up.ptr[pairs[:, 1] + 1] - up.ptr[pairs[:, 1]]
    hops_down = down.ptr[pairs[:, 0] + 1] - down.ptr[pairs[:, 0]]
    ptr = np.concatenate([[0], np.cumsum(hops_up + hops_down)]).astype(np.int64)
    # Trees list parents first; up it is the other way round.
    last = up.ptr[pairs[:, 1] + 1] - 1
    place_up = _ranges(ptr[:-1], hops_up)
    from_up = np.repeat(last, hops_up) - (place_up - np.repeat(ptr[:-1], hops_up))
    middle = ptr[:-1] + hops_up
    place_down = _ranges(middle, hops_down)
    from_down = np.repeat(down.ptr[pairs[:, 0]], hops_down) + place_down - np.repeat(middle, hops_down)
    total = int(ptr[-1])
    src, dst = np.empty(total, np.int32), np.empty(total, np.int32)
    is_up, after = np.zeros(total, np.bool_), np.empty(total, np.int64)
    is_up[place_up] = True
    src[place_up], dst[place_up] = up.dst[from_up], up.src[from_up]
    src[place_down], dst[place_down] = down.src[from_down], down.dst[from_down]
    heights = _tree_heights(down)
    after[place_up] = up.depth[from_up] - 1 + np.repeat(heights[pairs[:, 0]], hops_up)
    after[place_down] = down.below[from_down]
    # Edges (earlier hop, later hop): up to the parent's hop, down from it, and from the hops into roots to those out.
    before_up, before_down = up.before[from_up], down.before[from_down]
    inner_up, inner_down = before_up >= 0, before_down >= 0
    later_up = np.repeat(ptr[:-1] + last, hops_up) - before_up
    earlier_down = np.repeat(middle - down.ptr[pairs[:, 0]], hops_down) + before_down
    earlier = [place_up[inner_up], earlier_down[inner_down]]
    later = [later_up[inner_up], place_down[inner_down]]
    into, out = place_up[~inner_up], place_down[~inner_down]
    pair_into, pair_out = (
        np.repeat(np.arange(len(pairs)), hops_up)[~inner_up],
        np.repeat(np.arange(len(pairs)), hops_down)[~inner_down],
    )
    starts = np.searchsorted(pair_into, pair_out)
    many = np.searchsorted(pair_into, pair_out, side="right") - starts
    earlier.append(into[_ranges(starts, many)])
    later.append(np.repeat(out, many))
    first, second = np.concatenate(earlier), np.concatenate(later)
    order = np.argsort(second, kind="stable")
    needs = Rows(np.concatenate([[0], np.cumsum(np.bincount(second, minlength=total))]), first[order])
    return Pairs(
        down.topology,
        pairs[:, 2],
        ptr,
        src,
        dst,
        is_up,
        _routes(down, up, from_down, from_up, place_down, place_up),
        needs,
        after,
    )


def _ranges(starts: I64, lengths: I64) -> I64:
    """Numbers from every start on, so many, one behind the other."""
    ends = np.cumsum(lengths)
    return np.asarray(np.repeat(starts - ends + lengths, lengths) + np.arange(int(ends[-1]) if len(ends) else 0))


def _routes(down: Trees, up: Trees, from_down: I64, from_up: I64, place_down: I64, place_up: I64) -> Rows:
    """Links of every hop; those of trees up are listed the other way round."""
    total = len(place_down) + len(place_up)
    begin, length, step = (np.empty(total, np.int64) for _ in range(3))
    begin[place_down], length[place_down] = down.routes.ptr[from_down], down.routes.lengths()[from_down]
    offset = len(down.routes.data)
    begin[place_up], length[place_up] = offset + up.routes.ptr[from_up + 1] - 1, up.routes.lengths()[from_up]
    step[place_down], step[place_up] = 1, -1
    inside = _ranges(np.zeros(total, np.int64), length)
    at = np.repeat(begin, length) + inside * np.repeat(step, length)
    data = np.concatenate([down.routes.data, up.routes.data])
    return Rows(np.concatenate([[0], np.cumsum(length)]), data[at])


@dataclass(frozen=True, eq=False)
class JointFlow:
    """Pairs with `split` chunks for every unit, at one size, ready to be put in order."""

    pairs: Pairs
    split: int
    size_bytes: int

    @property
    def num_chunks(self) -> int:
        """All chunks."""
        return int(self.pairs.units.sum()) * self.split

    @cached_property
    def least_s(self) -> float:
        """Time in which the busiest link carries its bytes."""
        return self.pairs.least_part_s * self.size_bytes

    @cached_property
    def _costs(self) -> RouteCosts:
        return RouteCosts.of(self.pairs.topology, self.pairs.routes)

    def order(self, pace: Pace) -> tuple[I64, I64, I64, float]:
        """(hop, first chunk of its pair, chunks) of every message in the order of starts, and about when all is done.

        O(messages x hops that share a link).
        """
        from collsyn.synth.joint_kernels import order_messages

        pairs, costs = self.pairs, self._costs
        chunks = (pairs.units * self.split)[pairs.pair_of_hop]
        used = np.bincount(pairs.routes.data, minlength=pairs.topology.num_links)
        n = pairs.topology.num_ranks
        turn = ((pairs.dst.astype(np.int64) - pairs.src) % n) / n
        # Pairs begin at different times, so that their chunks do not all come to a link at once.
        phase = (np.arange(len(pairs.units)) * _GOLDEN) % 1.0
        if pace.phases:
            phase = np.random.default_rng(pace.phases).random(len(phase))
        rank = (_TURN * turn + phase[pairs.pair_of_hop]) / chunks - pace.lead * pairs.after / chunks.mean()
        found = order_messages(
            chunks,
            pairs.needs.ptr,
            pairs.needs.data,
            pairs.following.ptr,
            pairs.following.data,
            pairs.routes.ptr,
            pairs.routes.data,
            np.concatenate([[0], np.cumsum(used)]),
            costs.rate,
            self.size_bytes / self.num_chunks,
            costs.alpha_s,
            costs.overhead_s,
            rank,
            np.minimum(chunks, pace.batch),
            pace.horizon * self.least_s,
            pairs.topology.bandwidth,
            int(chunks.sum()),
        )
        return found[0], found[1], found[2], float(found[3])

    def schedule(self, collective: Collective, pace: Pace) -> Schedule:
        """The schedule of the messages in that order, each as early as it can be."""
        pairs = self.pairs
        hop, first, count, _ = self.order(pace)
        message = np.repeat(np.arange(len(hop)), count)
        start = np.concatenate([[0], np.cumsum(pairs.units * self.split)])[pairs.pair_of_hop[hop]] + first
        routes, route = distinct(pairs.routes)
        op = np.where(pairs.up, REDUCE, COPY)
        per_hop: dict[str, npt.NDArray[Any]] = {"src": pairs.src, "dst": pairs.dst, "route": route, "op": op}
        columns = {name: values[hop][message] for name, values in per_hop.items()}
        columns |= {"chunk": _ranges(start, count), "batch": message}
        return in_order(collective, pairs.topology, self.size_bytes, routes, columns)
