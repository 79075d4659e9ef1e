"""Lower bounds of large problems: at the ranks with the least bandwidth only, where others look at every rank."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from collsyn.bounds.argument import Refused
from collsyn.bounds.case import Case
from collsyn.bounds.table import argument
from collsyn.model.bound import Bound
from collsyn.model.collective import Collective
from collsyn.model.topology import Topology

# Distances from a rank beyond which what comes is counted, as parts of the farthest; and the nearest rank.
_FROM = (0.125, 0.25, 0.5)


def large_bounds(collective: Collective, topology: Topology, size_bytes: int) -> tuple[Bound, Bound]:
    """A fluid and a chunk bound by the arguments of degree, distance and parts; certificates as those of `fluid_bound`.

    Weaker than the strongest bound where that is a cut through many ranks. Messages below full rate or of several
    chunks are not thought of. Raises Infeasible naming a pair without a way. O(links log links).
    """
    length = Fraction(int(collective.units.max()), collective.total_units)
    fluid = _best(Case(collective, topology, size_bytes), {})
    whole = _best(Case(collective, topology, size_bytes, length), {"length": str(length), "shared": False})
    return fluid, whole if whole.time_s >= fluid.time_s else replace(fluid, scope="chunk")


def _best(case: Case, extra: dict[str, Any]) -> Bound:
    case.check_reachable()
    topology = case.topology
    found: list[Bound | None] = []
    for side, ends in (("in", topology.dst), ("out", topology.src)):
        width = np.bincount(ends, weights=topology.bandwidth, minlength=topology.num_vertices)[: topology.num_ranks]
        rank = int(np.argmin(width))
        away = case.ways.between(np.array([rank]), backwards=side == "in")[0]
        other = int(np.argmax(np.where(np.isinf(away), -1.0, away)))
        path = {"from": other, "to": rank} if side == "in" else {"from": rank, "to": other}
        asked: list[tuple[str, dict[str, Any]]] = [("distance", {"kind": "path", **path})]
        nearest = float(away[away > 0].min(initial=away[other]))
        for distance_s in (nearest, *(share * float(away[other]) for share in _FROM)):
            cut = {"kind": "cut", "side": side, "rank": rank, "distance_s": distance_s}
            asked.append(("degree", cut))
        found += [_bound(case, name, certificate, extra) for name, certificate in asked]
    found += [_bound(case, "parts", certificate, extra) for certificate in argument("parts").propose(case)]
    return max((bound for bound in found if bound is not None), key=lambda bound: bound.time_s)


def _bound(case: Case, name: str, certificate: dict[str, Any], extra: dict[str, Any]) -> Bound | None:
    try:
        proof = argument(name).prove(case, certificate)
    except Refused:
        return None
    scope = "fluid" if case.length is None else "chunk"
    return Bound(proof.time_s, name, scope, {**certificate, **extra, **proof.facts}, proof.algbw_exact)
