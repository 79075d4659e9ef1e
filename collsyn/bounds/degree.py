"""Distance and degree together: what comes to one rank from afar has little time to pass the rank's own links."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from collsyn.bounds.argument import Certificate, Proof, best_distinct, rank_of, refuse, side_of
from collsyn.bounds.case import Case
from collsyn.model.arrays import F64, I64, Bools

SIDES = ("in", "out")
_THRESHOLDS = 16


class Degree:
    """T such that rank v's links can have carried all that comes to v (goes from v) over at least some distance D.

    Proof, side `in`. A chunk that v must receive is at distance d from v: the least time (latency alone, or for whole
    chunks of length b with b over the slowest link of every hop) from its nearest contributor, with reduction from its
    farthest one. Each byte position of it that comes from there enters v over an in-link e at least once, by a message
    over a route with slowest link r that began no earlier than d less the time of that last hop. So on e it begins no
    earlier than d - alpha_e (whole: d - alpha_e - b / r, r at least the slowest link of any route over e), and it ends
    by T - alpha_e. Of chunks with d >= D every link has at most T - max(alpha_e, D) (whole: D - b / r for D) for all of
    them, and they are counted as for a cut. It is the same time for all of them because they end at one vertex; for a
    larger set it need not be. Side `out` is the same argument backwards, for chunks that v alone contributes (with
    reduction: takes part in) and their farthest receiver.
    """

    kind = "cut"
    keys = ("side", "rank", "distance_s")
    counts_chunks = True

    def propose(self, case: Case) -> list[dict[str, Any]]:
        """The best ranks, sides and distances by the fluid count."""
        found: list[tuple[int, str, float]] = []
        rough: list[F64] = []
        for around in _surroundings(case):
            distances = _thresholds(around.distance)
            if not len(distances):
                continue
            amount = np.array([around.amount_from(case, d) for d in distances.tolist()])
            links = around.links
            rough.append(case.rough_finish_s(links, _ready(case, links, distances[:, None]), amount))
            found += [(around.rank, around.side, d) for d in distances.tolist()]
        if not found:
            return []
        chosen = [found[i] for i in best_distinct(np.concatenate(rough))]
        return [self._certificate(case, *choice) for choice in chosen]

    def _certificate(self, case: Case, rank: int, side: str, distance_s: float) -> dict[str, Any]:
        return {"kind": self.kind, "side": side, "rank": rank, "distance_s": distance_s}

    def prove(self, case: Case, certificate: Certificate) -> Proof:
        """Time from the amount that crosses between `rank` and the rest over at least `distance_s`."""
        rank, side = rank_of(case, certificate, "rank"), side_of(certificate, SIDES)
        distance_s = certificate.get("distance_s")
        if isinstance(distance_s, bool) or not isinstance(distance_s, int | float) or not 0 <= distance_s < np.inf:
            refuse(f"distance_s is {distance_s!r}, not a time")
        around = _surrounding(case, rank, side)
        amount = around.amount_from(case, distance_s)
        if not amount:
            refuse(f"nothing has to come that far {side} at rank {rank}")
        time_s = case.finish_s(around.links, _ready(case, around.links, np.float64(distance_s)), amount)
        vertices = [v for v in range(case.topology.num_vertices) if (v == rank) == (side == "in")]
        if case.length is not None:
            return Proof(time_s, facts={"vertices": vertices, "chunks": amount})
        capacity, share = case.exact_gb_s(around.links), case.share(amount)
        facts = {"vertices": vertices, "crossing": str(share), "capacity_gb_s": str(capacity)}
        return Proof(time_s, capacity / share, facts)


@dataclass(frozen=True, eq=False)
class _Surrounding:
    """A rank's links on one side, the pairs (positions in `case.pairs`) that must pass them, and their distances."""

    rank: int
    side: str
    links: I64
    pairs: I64
    distance: F64

    def amount_from(self, case: Case, distance_s: float) -> int:
        """Amount that comes over at least that distance."""
        return int(case.pairs[2][self.pairs[self.distance >= distance_s]].sum())


def _surroundings(case: Case) -> Iterator[_Surrounding]:
    for side in SIDES:
        away = case.distances(side)
        for row, rank in enumerate(case.ranks.tolist()):
            yield _around(case, rank, side, away[row])


def _surrounding(case: Case, rank: int, side: str) -> _Surrounding:
    return _around(case, rank, side, case.ways.between(np.array([rank]), side == "in")[0])


def _around(case: Case, rank: int, side: str, away: F64) -> _Surrounding:
    """`away[r]` is the least time from rank r to `rank` (side in) or back (out)."""
    only = np.zeros(case.topology.num_ranks, dtype=np.bool_)
    only[rank] = True
    if side == "in":
        pairs = case.crossing(only)
        distance = case.to_receiver(away)[case.pairs[0][pairs]]
        return _Surrounding(rank, side, _links(case, rank, side), pairs, distance)
    pairs = case.crossing(~only)
    distance = case.per_set(away, np.maximum)[case.pairs[1][pairs]]
    return _Surrounding(rank, side, _links(case, rank, side), pairs, distance)


def _links(case: Case, rank: int, side: str) -> I64:
    rows = case.topology.in_links if side == "in" else case.topology.out_links
    return rows[rank].astype(np.int64)


def _ready(case: Case, links: I64, distance_s: Any) -> F64:
    """Time of T that every link lacks for what comes from that distance."""
    early_s = case.chunk_bytes / case.narrowest[links] if case.length is not None else 0.0
    return np.asarray(np.maximum(case.topology.alpha_s[links], distance_s - early_s), dtype=np.float64)


def _thresholds(distance: F64) -> F64:
    """Up to 16 distances worth a try, spread evenly over those that differ by more than rounding."""
    values = np.unique(distance)
    if not len(values):
        return values
    apart: Bools = np.ones(len(values), dtype=np.bool_)
    apart[1:] = np.diff(values) > 1e-9 * values[-1]
    values = values[apart]
    picks = np.unique(np.linspace(0, len(values) - 1, _THRESHOLDS).astype(np.int64))
    return values[picks]


ARGUMENT = Degree()
