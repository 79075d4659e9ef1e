"""Dual: what an allreduce costs that sums up trees to roots and copies down trees, whichever trees it takes."""

from fractions import Fraction
from typing import Any

import numpy as np

from collsyn.bounds.argument import Certificate, Proof, refuse, vertex_mask
from collsyn.bounds.case import Case
from collsyn.bounds.filling import earliest_bytes
from collsyn.model.arrays import I64, Bools

PARTS = ("down", "up")
# Sums of weights up to this stay in 64 bits.
MAX_WEIGHT = 1 << 60


class Dual:
    """T of an allreduce in which each byte goes up a tree to some root, and its sum down another to all ranks.

    Proof (the dual of the joint linear program). Let x_r be the bytes whose root is r, d_e and u_e what link e carries
    down and up, so that d_e + u_e <= b_e * max(0, T - alpha_e). For a vertex set S that does not hold all ranks, what
    has its root in S must leave it on its way down: x(S) <= d(links leaving S); and what has its root in S must enter
    it on its way up: x(S) <= u(links entering S). A switch that cannot multiply passes on down as much as it gets, and
    one that cannot reduce passes on up as much as it gets (less is of no use): in - out = 0, a number that may be added
    with any factor, its `level`. Give each set and part a weight w >= 0, and each link the larger of what its two
    parts cost: the weights of the sets that it leaves down less the level gained, those of the sets that it enters up
    less the level gained, at least 0. Summed up, x_r times the weights of the sets with r adds up to at most
    sum of cost_e * b_e * max(0, T - alpha_e); and the x_r are all the bytes, each counted at least with the least sum
    of weights over a rank.

    This is no bound on other schedules: partial sums that several roots share, say, are not trees.
    """

    kind = "dual"
    keys = ("sets", "levels")
    counts_chunks = False

    def propose(self, case: Case) -> list[dict[str, Any]]:
        """The dual solution of the joint linear program; none where the collective is no allreduce among all ranks."""
        from collsyn.bounds.joint import joint_split

        if not serves(case):
            return []
        return [dict(joint_split(case.topology).certificate)]

    def prove(self, case: Case, certificate: Certificate) -> Proof:
        """Time from weighted `sets` and the `levels` of switches, by additions."""
        if not serves(case):
            refuse("it serves an allreduce among all ranks of the topology only")
        t = case.topology
        levels = _levels(case, certificate.get("levels"))
        cost = {part: _gained(case, levels[part]) for part in PARTS}
        cover = np.zeros(t.num_ranks, dtype=np.int64)
        sets = certificate.get("sets")
        if not isinstance(sets, list):
            refuse("sets is not a list")
        budget = MAX_WEIGHT
        for entry in sets:
            part, weight, inside = _weighted_set(case, entry)
            budget -= weight
            if budget < 0:
                refuse(f"weights add up to more than {MAX_WEIGHT}")
            tail, head = inside[t.src], inside[t.dst]
            cost[part][(tail & ~head) if part == "down" else (head & ~tail)] += weight
            cover[inside[: t.num_ranks]] += weight
        least = int(cover.min())
        if not least:
            refuse("some rank is in no set")
        price = np.maximum(np.maximum(cost["down"], cost["up"]), 0)
        used = np.flatnonzero(price)
        amount = least * (case.size_bytes * case.pairs[2].sum() / case.collective.total_units)
        scaled = price[used] / price.max(initial=1)
        time_s = float(earliest_bytes(amount / price.max(initial=1), t.bandwidth[used] * scaled, t.alpha_s[used]))
        bandwidth = t.exact_bandwidth_gb_s
        capacity = sum((bandwidth[link] * int(price[link]) for link in used.tolist()), Fraction(0)) / least
        return Proof(time_s, capacity / case.share(int(case.pairs[2].sum())), {"capacity_gb_s": str(capacity)})


def serves(case: Case) -> bool:
    """Whether the collective is a reduction from all ranks of the topology to all of them (at least two)."""
    everyone = case.topology.num_ranks
    pre, post, _ = case.pairs
    whole = len(pre) and (case.set_sizes[pre] == everyone).all() and (case.set_sizes[post] == everyone).all()
    return case.collective.reduces and everyone > 1 and bool(whole)


def _weighted_set(case: Case, entry: object) -> tuple[str, int, Bools]:
    if not isinstance(entry, dict) or not set(entry) <= {"part", "weight", "vertices", "all_but"} or len(entry) != 3:
        refuse("an entry of sets does not have a part, a weight, and vertices or all_but")
    part, weight = entry.get("part"), entry.get("weight")
    if part not in PARTS:
        refuse(f"part is {part!r}, not down or up")
    if type(weight) is not int or not 0 < weight <= MAX_WEIGHT:
        refuse(f"weight is {weight!r}, not a whole number from 1")
    key = "vertices" if "vertices" in entry else "all_but"
    mask = vertex_mask(case, entry.get(key), key)
    inside = mask if key == "vertices" else ~mask
    if inside[: case.topology.num_ranks].all():
        refuse("a set holds all ranks")
    return str(part), weight, inside


def _levels(case: Case, value: object) -> dict[str, I64]:
    """Level of every vertex for each part: 0 but at switches that pass on what they get."""
    t = case.topology
    if not isinstance(value, dict) or set(value) != set(PARTS):
        refuse("levels are not given for down and up")
    found = {}
    for part, able in (("down", t.multicast), ("up", t.reduction)):
        given = value[part]
        if not isinstance(given, list) or len(given) != len(t.switch_names):
            refuse(f"levels of {part} is not a list of {len(t.switch_names)} numbers, one a switch")
        if not all(type(level) is int and abs(level) <= MAX_WEIGHT for level in given):
            refuse(f"levels of {part} are not all whole numbers")
        found[part] = np.array([0] * t.num_ranks + given, dtype=np.int64)
        if found[part][able].any():
            refuse(f"a switch that needs not pass on all {part} has a level")
    return found


def _gained(case: Case, level: I64) -> I64:
    t = case.topology
    return np.asarray(level[t.src] - level[t.dst], dtype=np.int64)


ARGUMENT = Dual()
