"""Distance: what a receiver needs from far away takes the time of the way."""

from typing import Any

import numpy as np

from collsyn.bounds.argument import Certificate, Proof, rank_of, refuse
from collsyn.bounds.case import Case


class Distance:
    """T is at least the least time from a contributor to a receiver that needs its data.

    Proof. The receiver ends with bytes of the nearest contributor at best (with reduction: with a part of each
    contributor), brought by a chain of messages each of which arrives no earlier than its start plus the latencies of
    its route, and starts no earlier than the one before it arrived. A whole chunk of length b also takes b over the
    slowest link of each route, because a message carries all of it.
    """

    kind = "path"
    keys = ("from", "to")
    counts_chunks = True

    def propose(self, case: Case) -> list[dict[str, Any]]:
        """The farthest pair."""
        best: tuple[float, int, int] = (-1.0, 0, 0)
        away = case.distances("in")
        pre, post, _ = case.pairs
        for row, rank in enumerate(case.ranks.tolist()):
            wanted = np.unique(pre[case.per_set(np.arange(case.topology.num_ranks) == rank, np.logical_or)[post]])
            if not len(wanted):
                continue
            times = case.to_receiver(away[row])[wanted]
            if times.max() > best[0]:
                members = case.collective.sets[int(wanted[times.argmax()])]
                best = (float(times.max()), int(members[(away[row][members] == times.max()).argmax()]), rank)
        return [{"kind": self.kind, "from": best[1], "to": best[2]}] if best[0] >= 0 else []

    def prove(self, case: Case, certificate: Certificate) -> Proof:
        """Time of the shortest way `from` a contributor `to` a receiver."""
        source, target = rank_of(case, certificate, "from"), rank_of(case, certificate, "to")
        ranks = np.arange(case.topology.num_ranks)
        pre, post, _ = case.pairs
        here = case.per_set(ranks == target, np.logical_or)[post] & case.per_set(ranks == source, np.logical_or)[pre]
        if not here.any():
            refuse(f"rank {target} needs nothing of rank {source}")
        away = case.ways.between(np.array([target]), backwards=True)[0]
        # Without reduction another contributor of the same chunk may be nearer.
        times = case.to_receiver(away)[pre[here]]
        time_s = float(away[source] if case.collective.reduces else times.max())
        return Proof(time_s, facts={"distance_s": time_s})


ARGUMENT = Distance()
