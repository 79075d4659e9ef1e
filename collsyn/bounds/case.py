"""What every argument asks of a problem: who needs how much from whom, how far apart they are, what links bear."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.bounds.filling import earliest_bytes, earliest_count
from collsyn.bounds.ways import Ways, least_overhead, narrowest, unreachable_pair
from collsyn.errors import Infeasible, InputError
from collsyn.model.arrays import F64, I32, I64, Bools, Rows
from collsyn.model.collective import Collective
from collsyn.model.topology import Topology

# Ranks looked at one by one, a shortest-path search each; on larger machines an even sample of givers and takers.
ALL_RANKS, SAMPLED_RANKS = 2048, 256
_BLOCK_CELLS = 1 << 24


@dataclass(frozen=True, eq=False)
class Case:
    """A collective on a topology at one size, as the arguments see it.

    `length` None: any splitting of the data is allowed and amounts count units. Else chunks of at least that part of
    the size travel whole, amounts count them (shorter ones are left out), and each is held to be that long; a message
    then carries one chunk and occupies links for its overhead too, unless `shared` says that messages may carry several
    chunks or run at less than full rate beside each other, which makes overhead avoidable.
    """

    collective: Collective
    topology: Topology
    size_bytes: int
    length: Fraction | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        if self.collective.num_ranks != self.topology.num_ranks:
            raise InputError(
                f"topology {self.topology.name} has {self.topology.num_ranks} ranks; "
                f"the collective needs {self.collective.num_ranks}"
            )
        if self.size_bytes < 1:
            raise InputError(f"size: is {self.size_bytes} bytes; expected at least 1")

    @property
    def chunk_bytes(self) -> float:
        """Length of a whole chunk in bytes; 0 where any splitting is allowed."""
        return 0.0 if self.length is None else float(self.length * self.size_bytes)

    @cached_property
    def pairs(self) -> tuple[I32, I32, I64]:
        """Distinct (contributors, receivers) as set numbers of the collective, with their amount of units or chunks."""
        c = self.collective
        amount = c.units.astype(np.int64)
        if self.length is not None:
            amount = (amount >= ceil(self.length * c.total_units)).astype(np.int64)
        key = c.pre.astype(np.int64) * len(c.sets) + c.post
        distinct, inverse = np.unique(key, return_inverse=True)
        total = np.zeros(len(distinct), dtype=np.int64)
        np.add.at(total, inverse.reshape(-1), amount)
        kept = total > 0
        pre, post = np.divmod(distinct[kept], len(c.sets))
        return pre.astype(np.int32), post.astype(np.int32), total[kept]

    def per_set(self, values: npt.NDArray[Any], combine: np.ufunc) -> npt.NDArray[Any]:
        """Values of ranks (last axis) combined over the members of every rank set of the collective."""
        sets = self.collective.sets
        result: npt.NDArray[Any] = combine.reduceat(values[..., sets.data], sets.ptr[:-1], axis=-1)
        return result

    @cached_property
    def set_sizes(self) -> I64:
        """Members of every rank set."""
        return self.collective.sets.lengths()

    def gives(self, inside: Bools) -> Bools:
        """For every rank set whether chunks that it contributes to must cross into the ranks `inside` if needed there.

        Without reduction they must if no contributor is inside, with it if some contributor is outside: its part has to
        come in, be it joined with others. Shape [..., ranks] to [..., sets].
        """
        members = self.per_set(inside.astype(np.int32), np.add)
        return np.asarray(members < self.set_sizes if self.collective.reduces else members == 0)

    def crossing(self, inside: Bools) -> I64:
        """Positions in `pairs` whose chunks must cross into the ranks `inside` (shape [ranks])."""
        pre, post, _ = self.pairs
        gives, needs = self.gives(inside), self.per_set(inside, np.logical_or)
        # Of a single rank's surroundings few pairs are on one of the sides; only those are looked at.
        by_pre, by_post = self._pairs_by_set
        if by_pre.lengths()[gives].sum() < by_post.lengths()[needs].sum():
            found = _gathered(by_pre, np.flatnonzero(gives))
            return np.sort(found[needs[post[found]]])
        found = _gathered(by_post, np.flatnonzero(needs))
        return np.sort(found[gives[pre[found]]])

    @cached_property
    def _pairs_by_set(self) -> tuple[Rows, Rows]:
        pre, post, _ = self.pairs
        return Rows.grouped(pre, len(self.set_sizes)), Rows.grouped(post, len(self.set_sizes))

    def amounts_into(self, inside: Bools) -> F64:
        """Amount that must cross into each of many rank sets, shape [sets, ranks]; O(sets x pairs), for screening."""
        from scipy.sparse import csr_matrix

        pre, post, amount = self.pairs
        between = csr_matrix((amount.astype(np.float64), (post, pre)), shape=(len(self.set_sizes),) * 2)
        rows = max(1, _BLOCK_CELLS // (len(self.collective.sets.data) + len(self.set_sizes)))
        result = np.zeros(len(inside))
        for start in range(0, len(inside), rows):
            block = inside[start : start + rows]
            needed = self.per_set(block, np.logical_or)
            result[start : start + rows] = ((between @ self.gives(block).T.astype(np.float64)).T * needed).sum(axis=1)
        return result

    @cached_property
    def ways(self) -> Ways:
        """Shortest ways of this case's messages."""
        return Ways(self.topology, self.chunk_bytes)

    @cached_property
    def latency(self) -> Ways:
        """Shortest ways by latency alone."""
        return self.ways if self.length is None else Ways(self.topology, 0.0)

    @cached_property
    def ranks(self) -> I64:
        """The ranks that are looked at one by one."""
        if self.topology.num_ranks <= ALL_RANKS:
            return np.arange(self.topology.num_ranks)
        picked = []
        for numbers in self.pairs[:2]:
            used = np.zeros(len(self.set_sizes), dtype=np.bool_)
            used[numbers] = True
            ranks = np.unique(self.collective.sets.data[np.repeat(used, self.set_sizes)])
            picked.append(ranks[np.linspace(0, len(ranks) - 1, SAMPLED_RANKS).astype(np.int64)])
        return np.unique(np.concatenate(picked)).astype(np.int64)

    def distances(self, side: str) -> F64:
        """Least time from every rank to each of `ranks` (side in) or from it (out): shape [len(ranks), num_ranks]."""
        return self._distances[side]

    @cached_property
    def _distances(self) -> dict[str, F64]:
        return {side: self.ways.between(self.ranks, backwards=side == "in") for side in ("in", "out")}

    def to_receiver(self, away: F64) -> F64:
        """Time from every rank set's data, given that from each rank (last axis): of the nearest member, with reduction
        of the farthest."""
        return self.per_set(away, np.maximum if self.collective.reduces else np.minimum)

    @cached_property
    def narrowest(self) -> F64:
        """Bytes/s of the slowest link of any route over each link."""
        return narrowest(self.topology)

    @cached_property
    def overhead_s(self) -> F64:
        """Time that a message on each link occupies it for at least, besides its bytes; 0 where messages may share."""
        if self.shared:
            return np.zeros(self.topology.num_links)
        # Where routes may be slower than the link, more overhead is also more time behind the last message's bytes.
        whole = self.narrowest >= self.topology.bandwidth * (1 - 1e-12)
        return np.where(whole, least_overhead(self.topology), self.topology.overhead_s)

    def links_into(self, inside: Bools) -> I64:
        """Links that enter a vertex set (shape [vertices])."""
        return np.flatnonzero(inside[self.topology.dst] & ~inside[self.topology.src])

    def finish_s(self, links: npt.NDArray[Any], ready_s: F64, amount: int) -> float:
        """Earliest end T if the whole amount must pass over some of the links, link i in T - ready_s[i] of time.

        For whole chunks that is the time of their bytes; overhead, where it counts, is occupied in it and once behind.
        A link may be listed twice, and one that is never ready carries nothing.
        """
        ever = np.isfinite(ready_s)
        links, ready_s = links[ever], ready_s[ever]
        if self.length is None:
            return float(self.rough_finish_s(links, ready_s, amount))
        return earliest_count(amount, *self._first_and_step(links, ready_s))

    def rough_finish_s(self, links: npt.NDArray[Any], ready_s: F64, amount: npt.ArrayLike) -> F64:
        """As `finish_s`, but parts of chunks count: the same where any splitting is allowed, else less and quicker.

        Links are the last axis of `ready_s`, to whose other axes the amounts belong.
        """
        if self.length is None:
            num_bytes = np.asarray(amount, np.float64) * (self.size_bytes / self.collective.total_units)
            return earliest_bytes(num_bytes, self.topology.bandwidth[links], ready_s)
        first, step = self._first_and_step(links, ready_s)
        return earliest_bytes(amount, 1.0 / step, first)

    def _first_and_step(self, links: npt.NDArray[Any], ready_s: F64) -> tuple[F64, F64]:
        """Link i has carried its k-th message at first + k * step at the earliest."""
        overhead = self.overhead_s[links]
        step = (self.chunk_bytes + self.narrowest[links] * overhead) / self.topology.bandwidth[links]
        return ready_s - overhead, step

    def exact_gb_s(self, links: npt.NDArray[Any]) -> Fraction:
        """Bandwidth of some links together."""
        bandwidth = self.topology.exact_bandwidth_gb_s
        return sum((bandwidth[link] for link in links.tolist()), Fraction(0))

    def share(self, amount: int) -> Fraction:
        """Units as a part of the size that users give."""
        return Fraction(int(amount), self.collective.total_units)

    def check_reachable(self) -> None:
        """Raise Infeasible naming a receiver that a contributor it needs cannot reach."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import connected_components

        t, sets = self.topology, self.collective.sets
        graph = csr_matrix((np.ones(t.num_links), (t.src, t.dst)), shape=(t.num_vertices,) * 2)
        labels = connected_components(graph, directed=True, connection="strong")[1][: t.num_ranks]
        if (labels == labels[0]).all():
            return
        pre, post, _ = self.pairs
        for number in np.unique(pre).tolist():
            targets = np.zeros(t.num_ranks, dtype=np.bool_)
            for target in np.unique(post[pre == number]).tolist():
                targets[sets[target]] = True
            members = sets[number]
            for group in members[:, None] if self.collective.reduces else [members]:
                sources = np.zeros(t.num_ranks, dtype=np.bool_)
                sources[group] = True
                pair = unreachable_pair(t, sources, targets)
                if pair is not None:
                    raise Infeasible(
                        f"rank {pair[0]} cannot reach rank {pair[1]}: no links of topology {t.name} lead there"
                    )


def _gathered(rows: Rows, chosen: I64) -> I64:
    """The entries of some rows, one behind the other."""
    lengths = rows.lengths()[chosen]
    ends = np.cumsum(lengths)
    inside = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    entries: I64 = rows.data[np.repeat(rows.ptr[chosen], lengths) + inside].astype(np.int64)
    return entries
