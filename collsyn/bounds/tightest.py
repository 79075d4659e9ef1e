"""The tightest cuts of a collective, found by maximum flows: for many collectives they are exact bounds."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import lcm

import numpy as np

from collsyn.bounds.case import Case
from collsyn.bounds.maxflow import MAX_TOTAL, FlowNetwork
from collsyn.model.arrays import I32, I64, Bools
from collsyn.model.collective import Collective
from collsyn.model.topology import Topology

# Receivers are looked at one after the other up to this many receivers x links.
MAX_WORK = 1 << 26
# Where exact numbers do not fit, capacities are rounded to this many steps; what is found is a cut all the same.
_STEPS = 1 << 40


def tightest_sets(case: Case, seeds: Iterable[Bools] = ()) -> list[Bools]:
    """Vertex sets (masks) with the largest amount that must enter over the bandwidth that enters, as far as known.

    Without reduction a cut is asked for that holds a given receiver: source, then (amount x rate) to the contributors
    of every chunk, then the links. If some receiver's flow falls short of the whole amount at some rate, the minimum
    cut is a tighter set, whose own rate is tried next (Newton's method on cuts, as in ForestColl, arXiv 2402.06787).
    Receivers that get their flow join the source: sets that hold them need not be looked at again. So one pass over the
    receivers proves that no set is tighter, in whole numbers, wherever all chunks have the same receivers: allgather,
    broadcast, gather, with any counts. Scatter, reduce-scatter and reduce are those on the links turned round, seen
    from the other side of the cut; an allreduce is a minimum cut between ranks. With several sets of receivers
    (process groups) each is looked at alone, and all together for sets that hold all ranks of one of `seeds`.
    Complexity: a flow a receiver, most of them over few links, and a few repeated.
    """
    found: list[Bools] = []
    for entry in _questions(case, seeds):
        mask = entry.tightest()
        if mask is not None and not any(np.array_equal(mask, known) for known in found):
            found.append(mask)
    return found


def tightest_rate(collective: Collective, topology: Topology) -> Fraction | None:
    """The algorithm bandwidth (GB/s) that the tightest of `tightest_sets` allows; None where nothing has to be sent."""
    case = Case(collective, topology, 1)
    rates = []
    for inside in tightest_sets(case):
        crossing = case.crossing(inside[: topology.num_ranks])
        amount = int(case.pairs[2][crossing].sum())
        rates.append(case.exact_gb_s(case.links_into(inside)) / case.share(amount))
    return min(rates, default=None)


@dataclass(frozen=True, eq=False)
class _Question:
    """Which set that holds all of some `forced` ranks (each of them in turn) has the tightest cut?

    Chunks are (contributors, amount); a set without any contributor must take in the amount. `turned`: links are turned
    round, and the answer is the complement.
    """

    case: Case
    contributors: list[I64]
    amounts: list[int]
    forced: list[I64]
    turned: bool = False

    @cached_property
    def network(self) -> FlowNetwork:
        """Links, then arcs from the source to a vertex for each chunk and on to its contributors, then sinks."""
        t, n = self.case.topology, self.case.topology.num_vertices
        tail, head = (t.dst, t.src) if self.turned else (t.src, t.dst)
        tails, heads = [tail.astype(np.int64)], [head.astype(np.int64)]
        chunk = n + 2 + np.arange(len(self.amounts))
        lengths = [len(ranks) for ranks in self.contributors]
        tails += [np.full(len(chunk), n), np.repeat(chunk, lengths), np.arange(n), np.full(n, n)]
        heads += [chunk, np.concatenate(self.contributors), np.full(n, n + 1), np.arange(n)]
        return FlowNetwork(n + 2 + len(chunk), np.concatenate(tails), np.concatenate(heads))

    def tightest(self) -> Bools | None:
        """The set, None where nothing has to enter any."""
        n = self.case.topology.num_vertices
        sinks = self.case.topology.num_links + len(self.amounts) + sum(map(len, self.contributors))
        network, joined = self.network, np.zeros(n, dtype=np.bool_)
        best, rate, need = np.zeros(n, dtype=np.bool_), None, 0
        for ranks in self.forced:
            if rate is None:
                best[:] = False
                best[ranks] = True
                rate = self._rate(best)
                if rate is None:
                    continue
                need = self._set_capacities(rate, joined)
            while True:
                network.change(sinks + ranks, MAX_TOTAL)
                short = need - network.push(n, n + 1, need)
                side = network.sink_side(n + 1)[:n]
                network.change(sinks + ranks, 0)
                tighter = self._rate(side) if short else None
                if tighter is None or tighter >= rate:  # it is never more but by rounding of capacities
                    break
                best, rate = side, tighter
                need = self._set_capacities(rate, joined)
            if len(ranks) == 1:
                joined[ranks] = True
                network.change(sinks + n + ranks, MAX_TOTAL)
        return None if rate is None else ~best if self.turned else best

    def _rate(self, inside: Bools) -> Fraction | None:
        """GB/s that enter a set for each unit that must; None where none must."""
        amount = sum(
            amount for ranks, amount in zip(self.contributors, self.amounts, strict=True) if not inside[ranks].any()
        )
        t = self.case.topology
        tail, head = (t.dst, t.src) if self.turned else (t.src, t.dst)
        links = np.flatnonzero(inside[head] & ~inside[tail])
        return self.case.exact_gb_s(links) / amount if amount else None

    def _set_capacities(self, rate: Fraction, joined: Bools) -> int:
        """Capacities at that rate, as whole numbers; returns what every receiver must get."""
        bandwidth = self.case.topology.exact_bandwidth_gb_s
        scale = lcm(rate.denominator, *{b.denominator for b in bandwidth})
        total = sum(self.amounts)
        most = sum(bandwidth, Fraction(0)) + 2 * total * rate
        if most * scale >= MAX_TOTAL:
            scale = max(1, int(_STEPS * 2**20 / most))
        links = [int(b * scale) for b in bandwidth]
        chunks = [int(amount * rate * scale) for amount in self.amounts]
        members = sum(len(ranks) for ranks in self.contributors)
        ends = [0] * len(joined) + [MAX_TOTAL if j else 0 for j in joined.tolist()]
        self.network.set_capacities(np.array([*links, *chunks, *[MAX_TOTAL] * members, *ends], dtype=np.int64))
        return sum(chunks)


def _questions(case: Case, seeds: Iterable[Bools]) -> Iterator[_Question]:
    pre, post, amount = case.pairs
    sets, sizes = case.collective.sets, case.set_sizes
    reduces = case.collective.reduces
    if reduces and (sizes[post] > 1).any():
        yield from _between_ranks(case)
        return
    turned = reduces or (sizes[post].max(initial=0) == 1 and len(np.unique(pre)) == 1 and len(np.unique(post)) > 1)
    # Turned round, givers and takers change places.
    giver, taker = (post, pre) if turned else (pre, post)
    classes = np.unique(taker).tolist()
    if len(classes) * case.topology.num_links * 4 > MAX_WORK:
        return
    for number in classes:
        mine = taker == number
        members = sets[number].astype(np.int64)
        if len(members) * case.topology.num_links <= MAX_WORK and len(classes) <= len(members):
            yield _asked(case, giver[mine], amount[mine], [members[i : i + 1] for i in range(len(members))], turned)
    if len(classes) > 1:
        for seed in seeds:
            ranks = np.flatnonzero((~seed if turned else seed)[: case.topology.num_ranks])
            touched = np.isin(taker, np.flatnonzero(case.per_set(_mask(case, ranks), np.logical_or)))
            if len(ranks) and touched.any():
                yield _asked(case, giver[touched], amount[touched], [ranks], turned)


def _asked(case: Case, giver: I32, amount: I64, forced: list[I64], turned: bool) -> _Question:
    number, inverse = np.unique(giver, return_inverse=True)
    total = np.bincount(inverse.reshape(-1), weights=amount.astype(np.float64)).astype(np.int64)
    givers = [case.collective.sets[int(i)].astype(np.int64) for i in number]
    return _Question(case, givers, total.tolist(), forced, turned)


def _between_ranks(case: Case) -> Iterator[_Question]:
    """Reductions that several ranks must end with: cuts between one of the ranks and the others, both ways.

    What crosses then does not depend on the set, so a minimum cut between two ranks is the tightest.
    """
    pre, post, amount = case.pairs
    sets = case.collective.sets
    for a, b in {(int(a), int(b)) for a, b in zip(pre, post, strict=True)}:
        givers, takers = sets[a].astype(np.int64), sets[b].astype(np.int64)
        common = np.intersect1d(givers, takers)
        if not len(common) or len(takers) * case.topology.num_links > MAX_WORK:
            continue
        hub, size = common[:1], [int(amount[(pre == a) & (post == b)].sum())]
        for others, turned in ((takers, False), (givers, True)):
            forced = [others[i : i + 1] for i in range(len(others)) if others[i] != hub[0]]
            if forced:
                yield _Question(case, [hub], size, forced, turned)


def _mask(case: Case, ranks: I64) -> Bools:
    mask = np.zeros(case.topology.num_ranks, dtype=np.bool_)
    mask[ranks] = True
    return mask
