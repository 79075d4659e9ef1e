"""Parts: how often every byte must go from part to part of a partition of the machine, and what the borders bear."""

from typing import Any

import numpy as np

from collsyn.bounds.argument import Certificate, Proof, refuse, side_of, vertex_mask
from collsyn.bounds.case import Case
from collsyn.model.arrays import I64

SIDES = ("leaving", "entering")
_MAX_CELLS = 1 << 28


class Parts:
    """T such that the links that leave (enter) the parts of a partition can have carried all crossings of parts.

    Proof. Parts are disjoint vertex sets; a rank in none is a part of its own; what a part knows is what its ranks know
    together. For one byte position of a chunk with contributors in p parts and receivers in q parts, order the messages
    between ranks of different parts by arrival. Without reduction each receiving part without a contributor needs one.
    With reduction (the gossip argument: in one-way messages n people need 2n - 2): let v be the first part that knows
    the parts of all contributors. Up to then each contributing part other than v has sent a message into another part,
    and afterwards each receiving part other than v must receive one: p + q - 2 messages if v can be both, p + q - 1 if
    no part is, whoever relays. Each such message leaves its part over a link that leaves the part and enters
    the other over one that enters it, in T less that link's latency.

    Holds where no switch outside all parts can multiply or reduce, since there one transfer could serve two messages
    (inside a part it serves before leaving or after entering). It yields 2 (N - 1) M / total egress for an allreduce.
    """

    kind = "parts"
    keys = ("parts", "side")
    counts_chunks = True

    def propose(self, case: Case) -> list[dict[str, Any]]:
        """Single ranks and boxes, leaving and entering."""
        partitions: list[list[list[int]]] = [[]]
        if len(case.topology.boxes) > 1:
            partitions.append([list(box) for box in case.topology.boxes])
        return [
            {"kind": self.kind, "parts": parts, "side": side}
            for parts in partitions
            for side in SIDES
            if len(case.collective.sets) * case.topology.num_ranks <= _MAX_CELLS and _serves(case, parts)
        ]

    def prove(self, case: Case, certificate: Certificate) -> Proof:
        """Time from the messages between `parts` and the links on that `side` of them (none named: ranks are parts)."""
        side = side_of(certificate, SIDES)
        parts = certificate.get("parts")
        if not isinstance(parts, list):
            refuse("parts is not a list")
        part = _part_of_vertices(case, parts)
        if not _serves(case, parts):
            refuse("a switch outside all parts can multiply or reduce")
        amount = int((_messages(case, part[: case.topology.num_ranks]) * case.pairs[2]).sum())
        if not amount:
            refuse("nothing has to go from part to part")
        tail, head = part[case.topology.src], part[case.topology.dst]
        near = tail if side == "leaving" else head
        links = np.flatnonzero((near >= 0) & (tail != head))
        time_s = case.finish_s(links, case.topology.alpha_s[links], amount)
        if case.length is not None:
            return Proof(time_s, facts={"messages": amount})
        capacity, share = case.exact_gb_s(links), case.share(amount)
        return Proof(time_s, capacity / share, {"crossing": str(share), "capacity_gb_s": str(capacity)})


def _serves(case: Case, parts: list[list[int]]) -> bool:
    """Whether every switch that multiplies or reduces lies in a part."""
    able = np.flatnonzero(case.topology.multicast | case.topology.reduction)
    listed = {v for members in parts for v in members}
    return all(v < case.topology.num_ranks or v in listed for v in able.tolist())


def _part_of_vertices(case: Case, parts: list[Any]) -> I64:
    """Number of the part of each vertex, -1 for switches in none."""
    part = np.full(case.topology.num_vertices, -1, dtype=np.int64)
    for number, members in enumerate(parts):
        mask = vertex_mask(case, members, f"part {number}")
        if (part[mask] >= 0).any():
            refuse(f"part {number} overlaps another")
        part[mask] = number
    single = np.flatnonzero(part[: case.topology.num_ranks] < 0)
    part[single] = len(parts) + np.arange(len(single))
    return part


def _messages(case: Case, part: I64) -> I64:
    """Messages between parts that each byte (or whole chunk) of every pair needs at least."""
    sets = case.collective.sets
    pre, post, _ = case.pairs
    member = np.zeros((len(sets), int(part.max()) + 1), dtype=np.bool_)
    member[np.repeat(np.arange(len(sets)), sets.lengths()), part[sets.data]] = True
    number = member.sum(axis=1)
    common = np.zeros(len(pre), dtype=np.int64)
    rows = max(1, _MAX_CELLS // member.shape[1] // 8)
    for start in range(0, len(pre), rows):
        block = slice(start, start + rows)
        common[block] = (member[pre[block]] & member[post[block]]).sum(axis=1)
    if not case.collective.reduces:
        return np.asarray(number[post] - common, dtype=np.int64)
    return np.asarray(number[pre] + number[post] - np.where(common > 0, 2, 1), dtype=np.int64)


ARGUMENT = Parts()
