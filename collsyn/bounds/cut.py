"""Cuts: what must enter a vertex set has to pass the links into it."""

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from collsyn.bounds.argument import Certificate, Proof, best_distinct, refuse, vertex_mask
from collsyn.bounds.case import Case
from collsyn.bounds.tightest import tightest_sets
from collsyn.bounds.ways import steps_from_ranks
from collsyn.model.arrays import F64, I64, Bools

# Up to this many sets are all proposed, else the most promising.
MAX_TRIED = 64
# Balls around every rank, of every radius, are candidates on machines of up to this many ranks.
MAX_BALLS_RANKS = 256
_BLOCK_CELLS = 1 << 26
_PROMISING: WeakKeyDictionary[Case, list[Bools]] = WeakKeyDictionary()


class Cut:
    """T such that the links into a vertex set S can have carried, each in its own time, all that must cross into S.

    Proof. Let a chunk have a receiver in S and, without reduction, no contributor in S; with reduction, some
    contributor outside S. Each of its bytes that a receiver q in S ends with came (with reduction: the outside
    contribution to it came) to q over a chain of messages from a contributor p outside, and that chain has a link e
    into S. So each byte position of each such chunk is carried by some link into S at least once: partial sums may be
    joined before, and a switch may multiply or reduce on either side of e or at its ends, but on e itself it is one
    transfer. The transfer of the byte over e begins no earlier than the latency from the nearest such p to the source
    of e, and ends no later than T less the latency of e and from its target to the nearest such q. A link carries at
    most its bandwidth, so sum over e of b_e * max(0, T - a_e) >= bytes, a_e being those three latencies together. With
    all a_e = 0 it gives T >= bytes / capacity, hence an algorithm bandwidth that no size exceeds.

    Whole chunks: each such chunk crosses in a message over some e whose bytes lie in that time on e. Messages of equal
    length b that occupy e for their overhead too (at rate r, the slowest link of the route, or more) use
    b + r * overhead of the bandwidth of that time and an overhead more, and their number is whole.
    """

    kind = "cut"
    keys = ("vertices",)
    counts_chunks = True

    def propose(self, case: Case) -> list[dict[str, Any]]:
        """Those of `promising_sets`."""
        return [{"kind": self.kind, "vertices": np.flatnonzero(mask).tolist()} for mask in promising_sets(case)]

    def prove(self, case: Case, certificate: Certificate) -> Proof:
        """Time from the amount into `vertices` and the links there."""
        inside, links, crossing, amount = entered(case, certificate)
        ready = case.topology.alpha_s[links] + latency_at_ends(case, inside, links, crossing)
        time_s = case.finish_s(links, ready, amount)
        if case.length is not None:
            return Proof(time_s, facts={"chunks": amount})
        capacity, share = case.exact_gb_s(links), case.share(amount)
        return Proof(time_s, capacity / share, {"crossing": str(share), "capacity_gb_s": str(capacity)})


def entered(case: Case, certificate: Certificate) -> tuple[Bools, I64, I64, int]:
    """Of a certificate's `vertices`: their mask, the links into them, the pairs that cross, and how much does."""
    inside = vertex_mask(case, certificate.get("vertices"), "vertices")
    crossing = case.crossing(inside[: case.topology.num_ranks])
    amount = int(case.pairs[2][crossing].sum())
    if not amount:
        refuse("nothing has to cross into the vertices")
    return inside, case.links_into(inside), crossing, amount


def promising_sets(case: Case) -> list[Bools]:
    """The tightest sets that maximum flows find; then of ranks, balls around them, boxes, the topology's cuts, switches
    with their ranks, and complements. A case is asked once: other arguments start from the same sets."""
    known = _PROMISING.get(case)
    if known is None:
        known = _PROMISING[case] = _find_promising(case)
    return known


def _find_promising(case: Case) -> list[Bools]:
    inside = candidate_sets(case)
    amount, unit_s, delay_s = rough_s(case, inside)
    # By throughput alone, and with the mean latency of the links that enter, as where all are used to the end.
    by_rate = best_distinct(unit_s)
    chosen = np.flatnonzero(amount > 0).tolist()
    if len(chosen) > MAX_TRIED:
        chosen = list(dict.fromkeys([*by_rate, *best_distinct(np.where(amount > 0, unit_s + delay_s, 0))]))
    tightest = tightest_sets(case, inside[by_rate])
    return [*tightest, *(inside[i] for i in chosen if not any(np.array_equal(inside[i], t) for t in tightest))]


def rough_s(case: Case, inside: Bools) -> tuple[F64, F64, F64]:
    """For screening of sets, shape [sets, vertices]: the amount into each, the time of its bytes over all links that
    enter, and the mean latency of these."""
    amount = case.amounts_into(inside[:, : case.topology.num_ranks])
    rate, delay_s = _capacity(case, inside)
    return amount, amount * ((case.chunk_bytes or case.size_bytes / case.collective.total_units) / rate), delay_s


def candidate_sets(case: Case) -> Bools:
    """Vertex sets as rows of a mask, each with its complement, without doubles: shape [sets, vertices]."""
    t = case.topology
    rows: list[Bools] = []

    def add(vertices: Any) -> None:
        mask = np.zeros(t.num_vertices, dtype=np.bool_)
        mask[vertices] = True
        rows.extend((mask, ~mask))

    for rank in case.ranks.tolist():
        add([rank])
    for members in (*t.boxes, *(cut.vertices for cut in t.cuts)):
        add(list(members))
    for switch in range(t.num_ranks, t.num_vertices):
        near = np.concatenate([t.dst[t.out_links[switch]], t.src[t.in_links[switch]]])
        add(np.append(near[near < t.num_ranks], switch))
    if t.num_ranks <= MAX_BALLS_RANKS:
        for away in steps_from_ranks(t):
            for radius in range(1, int(away[np.isfinite(away)].max(initial=0))):
                add(away <= radius)
    table = np.array(rows)
    _, first = np.unique(np.packbits(table, axis=1), axis=0, return_index=True)
    return table[np.sort(first)]


def _capacity(case: Case, inside: Bools) -> tuple[F64, F64]:
    """Bandwidth of the links into each set, and the mean of their latencies, weighted with it."""
    t = case.topology
    rows = max(1, _BLOCK_CELLS // max(t.num_links, 1))
    weights = np.stack([t.bandwidth, t.bandwidth * t.alpha_s], axis=1)
    blocks = [inside[start : start + rows] for start in range(0, len(inside), rows)]
    rate, delay = np.concatenate([(block[:, t.dst] & ~block[:, t.src]) @ weights for block in blocks]).T
    rate = np.where(rate > 0, rate, 1.0)  # where no link enters, nothing has to
    return rate, delay / rate


def latency_at_ends(case: Case, inside: Bools, links: I64, crossing: I64) -> F64:
    """For each link the latency from the nearest contributor outside to it and on to the nearest receiver inside."""
    ranks_inside, sets = inside[: case.topology.num_ranks], case.collective.sets
    pre, post, _ = case.pairs
    ends = []
    for numbers, wanted, vertex, backwards in (
        (pre, ~ranks_inside, case.topology.src[links], False),
        (post, ranks_inside, case.topology.dst[links], True),
    ):
        members = np.zeros_like(ranks_inside)
        for number in np.unique(numbers[crossing]).tolist():
            members[sets[number]] = True
        near = np.flatnonzero(members & wanted)
        if np.isin(vertex, near).all():
            ends.append(np.zeros(len(links)))
        else:
            ends.append(case.latency.nearest(near, backwards)[vertex])
    return ends[0] + ends[1]


ARGUMENT = Cut()
