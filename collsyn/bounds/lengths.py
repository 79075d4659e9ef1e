"""Lengths: what every byte costs along its way, for any lengths of the links, against what all links bear."""

from fractions import Fraction
from typing import Any

import numpy as np

from collsyn.bounds.argument import Certificate, Proof, refuse
from collsyn.bounds.case import ALL_RANKS, Case
from collsyn.bounds.concurrent import MAX_LENGTH, concurrent_lengths
from collsyn.bounds.filling import earliest_bytes
from collsyn.bounds.ways import shortest
from collsyn.model.arrays import F64, I64


class Lengths:
    """T such that all links, each weighted with a length l_e >= 0 chosen at will, can have carried all bytes.

    Proof (the dual of maximum concurrent flow). A byte that a receiver needs from a contributor comes to it over a
    chain of links and loads each, so it costs sum of l_e at least the shortest distance by l: from the nearest
    contributor, with reduction from the farthest, and of several receivers to the farthest. All bytes together cost no
    more than sum of l_e * b_e * max(0, T - alpha_e). Holds whatever switches can do, since a chain stays a chain.
    """

    kind = "lengths"
    keys = ("lengths",)
    counts_chunks = False

    def propose(self, case: Case) -> list[dict[str, Any]]:
        """All links of length 1, lengths proportional to inverse bandwidth, and those of a linear program; none on
        machines too large for that."""
        t = case.topology
        if t.num_ranks > ALL_RANKS:
            return []
        inverse = np.round(t.bandwidth.max(initial=0.0) / t.bandwidth).astype(np.int64)
        found = [np.ones(t.num_links, dtype=np.int64)]
        if inverse.max(initial=1) > 1:
            found.append(np.minimum(inverse, MAX_LENGTH))
        best = concurrent_lengths(case)
        if best is not None:
            found.append(best)
        return [{"kind": self.kind, "lengths": lengths.tolist()} for lengths in found]

    def prove(self, case: Case, certificate: Certificate) -> Proof:
        """Time from whole-number `lengths`, one a link."""
        t = case.topology
        given = certificate.get("lengths")
        if not isinstance(given, list) or len(given) != t.num_links:
            refuse(f"lengths is not a list of {t.num_links} numbers, one a link")
        if not all(type(length) is int and 0 <= length <= MAX_LENGTH for length in given):
            refuse(f"lengths are not all whole numbers 0 .. {MAX_LENGTH}")
        lengths = np.array(given, dtype=np.int64)
        cost = _costs(case, shortest(t, lengths))
        amount = sum(a * w for a, w in zip(case.pairs[2].tolist(), cost.tolist(), strict=True))
        if not amount:
            refuse("no byte has to go any length")
        used = np.flatnonzero(lengths)
        num_bytes = amount * (case.size_bytes / case.collective.total_units)
        ready = t.alpha_s[used]
        time_s = float(earliest_bytes(num_bytes, t.bandwidth[used] * lengths[used], ready))
        bandwidth = t.exact_bandwidth_gb_s
        capacity = sum((bandwidth[link] * given[link] for link in used.tolist()), Fraction(0))
        share = Fraction(amount, case.collective.total_units)
        return Proof(time_s, capacity / share, {"load": str(share), "capacity_gb_s": str(capacity)})


def _costs(case: Case, away: F64) -> I64:
    """Least length that every byte of each pair must go; `away[a, b]` is the distance from rank a to b."""
    pre, post, _ = case.pairs
    sets = case.collective.sets
    from_sets = np.ascontiguousarray(case.to_receiver(away.T).T)
    cost = np.zeros(len(pre), dtype=np.int64)
    order = np.argsort(post, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(post[order])) + 1):
        members = sets[int(post[rows[0]])]
        cost[rows] = np.round(from_sets[pre[rows]][:, members].max(axis=1)).astype(np.int64)
    return cost


ARGUMENT = Lengths()
