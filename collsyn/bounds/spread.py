"""Spread: what enters a vertex set only once must go on from there to all who need it, or else it enters twice."""

from typing import Any

import numpy as np

from collsyn.bounds.argument import Certificate, Proof, best_distinct
from collsyn.bounds.case import Case
from collsyn.bounds.cut import entered, latency_at_ends, promising_sets, rough_s
from collsyn.bounds.ways import Ways, through_switches, within
from collsyn.model.arrays import F64, I32, I64, Bools

# On larger machines the bytes outweigh the way on, and searches from every border would be felt.
MAX_RANKS = 256
# Sets of each family that are tried: a search from the vertices behind their borders each.
_PER_FAMILY = 2


class Spread:
    """T such that the links into a vertex set S can have carried all that must cross into S, where what crosses once
    must also have the time to get from that link to the farthest receiver.

    Proof. Take a byte position that must cross into S, as for a cut. Fix, for each receiver q in S, a chain of messages
    that brought it from a contributor p outside S (with reduction: one chain for each contributor outside S, along
    which p's part went into what q ends with). Count the transfers over links into S that lie on these chains; there is
    one at least. Each of them lies between such a p and such a q, so on its link e it begins and ends as for a cut, in
    T - a_e of time. If it is the only one, over e, then no chain enters S elsewhere: all of them come to e without a
    link into S and, behind e, never leave S again, since they would have to come back. So it ends by T less the latency
    of e and the least time inside S from the target of e to the farthest receiver; and it begins no earlier than the
    least time outside S to the source of e from the nearest contributor, with reduction from the farthest of those
    outside. That is T - A_e of time, A_e >= a_e, infinite where S falls apart behind e; where chunks differ in
    contributors or receivers, each end has the least of its times. With x_e bytes that cross once, over e, and z_e
    transfers of bytes that cross oftener: x_e <= b_e max(0, T - A_e), x_e + z_e <= b_e max(0, T - a_e), and all bytes
    are at most sum of x_e + z_e / 2. Twice that is 2 * bytes <= sum of b_e * (max(0, T - A_e) + max(0, T - a_e)): a cut
    of twice the bytes over each link twice, never weaker than the cut itself and with the same throughput.

    The first message behind e goes through switches to one rank, from which the others have it; only if a switch in S
    multicasts may it go to several, and each receiver has it from the nearest. A message that comes to e through
    switches comes from one rank, unless a switch outside S reduces. Partial sums that are joined are one transfer from
    there on, later than all their parts; another copy of a byte that nobody needs is on no chain and only takes time.

    Whole chunks: the same with messages, whose numbers on a link in T - A_e and in T - a_e are whole. A rank passes a
    chunk on when it has all of it: from the first rank behind e and to the last before it, times inside and outside S
    count its bytes over the slowest link of every hop. On e's own message they are not charged, since they are what
    occupies e. Chunks that share a message travel with more bytes, so are no quicker.
    """

    kind = "cut"
    keys = ("vertices",)
    counts_chunks = True

    def propose(self, case: Case) -> list[dict[str, Any]]:
        """The best sets of cuts, boxes, ranks and all but a rank; none on machines too large for that."""
        t = case.topology
        if t.num_ranks > MAX_RANKS:
            return []
        ranks = np.eye(t.num_ranks, t.num_vertices, dtype=np.bool_)
        boxes = np.zeros((len(t.boxes), t.num_vertices), dtype=np.bool_)
        for row, members in zip(boxes, t.boxes, strict=True):
            row[list(members)] = True
        cuts = np.array(promising_sets(case)).reshape(-1, t.num_vertices)
        # Behind a single rank nothing spreads; what comes together at one is the matter of reductions.
        families = [cuts, boxes, ~boxes, ~ranks, *([ranks] if case.collective.reduces else [])]
        found: dict[bytes, Bools] = {}
        for family in families:
            for index in _best(case, family):
                found.setdefault(family[index].tobytes(), family[index])
        return [{"kind": self.kind, "vertices": np.flatnonzero(mask).tolist()} for mask in found.values()]

    def prove(self, case: Case, certificate: Certificate) -> Proof:
        """Time from the amount into `vertices`, the links there and the ways beyond their ends."""
        inside, links, crossing, amount = entered(case, certificate)
        alpha_s = case.topology.alpha_s[links]
        often_s = alpha_s + latency_at_ends(case, inside, links, crossing)
        once_s = np.maximum(often_s, alpha_s + _time_at_ends(case, inside, links, crossing))
        both = np.concatenate([links, links]), np.concatenate([once_s, often_s])
        time_s = case.finish_s(*both, 2 * amount)
        alone = int(np.isfinite(once_s).sum())
        if case.length is not None:
            return Proof(time_s, facts={"chunks": amount, "alone": alone})
        capacity, share = case.exact_gb_s(links), case.share(amount)
        facts = {"crossing": str(share), "capacity_gb_s": str(capacity), "alone": alone}
        return Proof(time_s, capacity / share, facts)


def _best(case: Case, family: Bools) -> list[int]:
    """The sets of a family (rows) that bytes and latency make slowest, and those that bytes alone do."""
    if not len(family):
        return []
    amount, bytes_s, delay_s = rough_s(case, family)
    by_time = best_distinct(np.where(amount > 0, bytes_s + delay_s, 0), _PER_FAMILY)
    return list(dict.fromkeys([*by_time, *best_distinct(bytes_s, _PER_FAMILY)]))


def _time_at_ends(case: Case, inside: Bools, links: I64, crossing: I64) -> F64:
    """For each link the least time outside the set to it, and inside from it to all receivers, if nothing else enters.

    Before it is the nearest contributor or, with reduction, the farthest of those outside.
    """
    pre, post, _ = case.pairs
    t, givers, takers = case.topology, np.unique(pre[crossing]), np.unique(post[crossing])
    before, source = np.unique(t.src[links], return_inverse=True)
    behind, target = np.unique(t.dst[links], return_inverse=True)
    onward_s = _farthest(case, inside, behind, takers, False)
    if case.collective.reduces:
        return np.asarray(_farthest(case, ~inside, before, givers, True)[source] + onward_s[target])
    wanted = np.zeros(t.num_ranks, dtype=np.bool_)
    for number in givers.tolist():
        wanted[case.collective.sets[number]] = True
    first, away = _legs(case, ~inside, before, True)
    coming_s = (first + away[:, wanted].min(axis=1)).min(axis=1, initial=np.inf)
    return np.asarray(coming_s[source] + onward_s[target])


def _farthest(case: Case, side: Bools, vertices: I32, numbers: I32, backwards: bool) -> F64:
    """Least time within `side` from each vertex to all members there of a rank set (from them, if `backwards`), of some
    set among `numbers`."""
    first, away = _legs(case, side, vertices, backwards)
    away[:, ~side[: case.topology.num_ranks]] = 0.0
    able = case.topology.reduction if backwards else case.topology.multicast
    if (able & side).any():
        each = np.array([(one[:, None] + away).min(axis=0, initial=np.inf) for one in first])
        each[:, ~side[: case.topology.num_ranks]] = 0.0
        return np.asarray(case.per_set(each, np.maximum)[:, numbers].min(axis=1))
    last = case.per_set(away, np.maximum)[:, numbers].min(axis=1)
    return np.asarray((first + last).min(axis=1, initial=np.inf))


def _legs(case: Case, side: Bools, vertices: I32, backwards: bool) -> tuple[F64, F64]:
    """Ways within `side`: latencies from each vertex through switches to the ranks next behind it, and this case's
    times from these to every rank; shapes [vertices, next ranks] and [next ranks, ranks]."""
    part = within(case.topology, side)
    first = through_switches(part, vertices, backwards)
    near = np.flatnonzero(np.isfinite(first).any(axis=0))
    return first[:, near], Ways(part, case.chunk_bytes, 0).between(near, backwards)


ARGUMENT = Spread()
