"""The messages and merges that carry partial sums along trees into every rank, and their order."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from collsyn.errors import Infeasible
from collsyn.model.arrays import F64
from collsyn.model.schedule import COPY, OWN, REDUCE, VALUE
from collsyn.synth.in_trees import Part, Trees
from collsyn.topology.hops import Hops

# Slots are numbered in a signed byte.
_MAX_SLOT = 127


class Move(NamedTuple):
    """A message over a hop, or (hop -1) a merge of two slots of a rank; moves are made by ascending `position`."""

    position: tuple[float, int, int]
    src: int
    dst: int
    hop: int
    op: int
    src_slot: int
    dst_slot: int


class _Sum(NamedTuple):
    """A partial sum at a rank."""

    rank: int
    part: Part


class PartialSums:
    """All partial sums that some trees need, each made once and sent once over every hop that needs it."""

    def __init__(self, table: Hops, group: Sequence[int], trees: Trees, cost_s: F64) -> None:
        self._src: list[int] = table.src.tolist()
        self._dst: list[int] = table.dst.tolist()
        self._cost_s: list[float] = cost_s.tolist()
        self._group = frozenset(group)
        # What every sum is added up from: messages (hop, part); and which sums every message is for.
        self._inputs: dict[_Sum, list[tuple[int, Part]]] = {}
        self._users: dict[tuple[int, Part], list[_Sum]] = defaultdict(list)
        for root, tree in trees.items():
            self._read(root, tree)
        self._everything = sum(1 << rank for rank in group)
        self._slots = self._numbered()

    def _read(self, root: int, tree: dict[int, int]) -> None:
        below: dict[int, list[int]] = defaultdict(list)
        for rank, hop in tree.items():
            below[self._dst[hop]].append(rank)
        parts: dict[int, Part] = {}
        for rank in _leaves_first(root, below):
            inputs = [(tree[child], parts[child]) for child in sorted(below[rank])]
            parts[rank] = sum(part for _, part in inputs) | (1 << rank if rank in self._group else 0)
            found = _Sum(rank, parts[rank])
            if found not in self._inputs:
                self._inputs[found] = inputs
                for message in inputs:
                    self._users[message].append(found)

    def _numbered(self) -> dict[tuple[int, object], int]:
        """Slots of sums, and of messages that are for several sums."""
        slots: dict[tuple[int, object], int] = {}
        last: dict[int, int] = defaultdict(int)
        for found, inputs in self._inputs.items():
            if found.part == self._everything and found.rank in self._group:
                slots[found.rank, found] = VALUE
            elif not inputs:
                slots[found.rank, found] = OWN
            else:
                last[found.rank] += 1
                slots[found.rank, found] = last[found.rank]
        for message, users in self._users.items():
            if len(users) > 1:
                rank = self._dst[message[0]]
                last[rank] += 1
                slots[rank, message] = last[rank]
        most = max(last.values(), default=0)
        if most > _MAX_SLOT:
            raise Infeasible(f"one-phase: a rank would keep {most} partial sums at once; {_MAX_SLOT} is the limit")
        return slots

    def moves(self, urgent: bool) -> Iterator[Move]:
        """All messages and merges: by how late they may start for the end not to suffer, or by how soon they can."""
        ready, left = self._times()
        for found, inputs in self._inputs.items():
            slot = self._slots[found.rank, found]
            when = -left[found] if urgent else ready[found]
            # A sum begins with the rank's own contribution, if it has one, else with whatever comes first: its slot
            # holds nothing then, so that all may add to it, in any order.
            op = REDUCE if found.rank in self._group or len(inputs) > 1 else COPY
            if slot > VALUE and found.rank in self._group:
                yield Move((-float("inf"), 0, 0), found.rank, found.rank, -1, COPY, OWN, slot)
            for message in inputs:
                if len(self._users[message]) > 1:
                    size = found.part.bit_count()
                    yield Move((when, size, 0), found.rank, found.rank, -1, op, self._slots[found.rank, message], slot)
        for (hop, part), users in self._users.items():
            source = _Sum(self._src[hop], part)
            when = -(self._cost_s[hop] + max(left[user] for user in users)) if urgent else ready[source]
            rank, position = self._dst[hop], (when, part.bit_count(), 1)
            if len(users) > 1:
                op, slot = COPY, self._slots[rank, (hop, part)]
            else:
                slot = self._slots[rank, users[0]]
                alone = rank not in self._group and len(self._inputs[users[0]]) == 1
                op = COPY if alone else REDUCE
            yield Move(position, source.rank, rank, hop, op, self._slots[source.rank, source], slot)

    def _times(self) -> tuple[dict[_Sum, float], dict[_Sum, float]]:
        """When every sum can be there at the earliest, and how long what hangs on it takes from then on."""
        ascending = sorted(self._inputs, key=lambda found: found.part.bit_count())
        ready: dict[_Sum, float] = {}
        left: dict[_Sum, float] = dict.fromkeys(ascending, 0.0)
        for found in ascending:
            arrivals = [ready[_Sum(self._src[hop], part)] + self._cost_s[hop] for hop, part in self._inputs[found]]
            ready[found] = max(arrivals, default=0.0)
        for found in reversed(ascending):
            for hop, part in self._inputs[found]:
                source = _Sum(self._src[hop], part)
                left[source] = max(left[source], left[found] + self._cost_s[hop])
        return ready, left


def _leaves_first(root: int, below: dict[int, list[int]]) -> list[int]:
    order = [root]
    for rank in order:
        order += below[rank]
    return order[::-1]
