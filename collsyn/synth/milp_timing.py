"""When messages leave in a given order, what each waits for, and how long the rest takes behind it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from collsyn.model.arrays import F64, I64
from collsyn.synth.milp_case import Case
from collsyn.synth.milp_order import Sends


@dataclass(frozen=True, eq=False)
class Timed:
    """Sends with their times, of those chunks that stand for their orbits, on orbits of links.

    `start_s` has an entry a row, `parent` is the row that brings its chunk to where it leaves, or -1.
    """

    case: Case
    sends: Sends
    start_s: F64
    parent: I64

    @classmethod
    def of(cls, case: Case, sends: Sends) -> "Timed":
        """Every message as early as the order allows."""
        from collsyn.synth.milp_order_kernels import earliest

        parent = parents(case, sends)
        table = case.table
        start_s = earliest(
            sends.hop,
            sends.message,
            parent,
            case.chunk_bytes[sends.chunk],
            table.alpha_s,
            table.overhead_s,
            table.beta_s_per_byte,
            case.routes.ptr,
            case.routes.data.astype(np.int64),
            case.before_s,
            case.lanes,
        )
        return cls(case, sends, start_s, parent)

    def sorted(self) -> "Timed":
        """The same with the messages in the order of their starts."""
        order = np.argsort(self.begin_s, kind="stable")
        if (np.diff(order) > 0).all():
            return self
        rows = np.concatenate([np.arange(self.first[m], self.first[m + 1]) for m in order.tolist()])
        message = np.repeat(np.arange(len(order)), np.diff(self.first)[order])
        return Timed.of(self.case, Sends(self.sends.chunk[rows], self.sends.hop[rows], message))

    @cached_property
    def first(self) -> I64:
        """The first row of every message, with the end."""
        begins = np.flatnonzero(np.append(True, self.sends.message[1:] != self.sends.message[:-1]))
        return np.append(begins, len(self.sends))

    @cached_property
    def message(self) -> I64:
        """Messages 0, 1, ... of the rows, in their order."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    @cached_property
    def hop(self) -> I64:
        """The hop of every message."""
        return self.sends.hop[self.first[:-1]]

    @cached_property
    def begin_s(self) -> F64:
        """The start of every message."""
        return self.start_s[self.first[:-1]]

    @cached_property
    def transfer_s(self) -> F64:
        """How long the bytes of every message take."""
        num_bytes = np.add.reduceat(self.case.chunk_bytes[self.sends.chunk], self.first[:-1])
        return np.asarray(num_bytes * self.case.table.beta_s_per_byte[self.hop])

    @cached_property
    def busy_s(self) -> F64:
        """How long every message occupies its links."""
        return self.case.table.overhead_s[self.hop] + self.transfer_s

    @cached_property
    def arrival_s(self) -> F64:
        """When every message is there."""
        return self.begin_s + self.case.table.alpha_s[self.hop] + self.transfer_s

    @cached_property
    def finish_s(self) -> float:
        """When all are."""
        return float(self.arrival_s.max(initial=0.0))

    @cached_property
    def successors(self) -> list[list[tuple[int, float]]]:
        """For every message those that wait for it next, with the least time between their starts."""
        found: list[dict[int, float]] = [{} for _ in range(len(self.hop))]
        stays = self.case.table.alpha_s[self.hop] + self.transfer_s
        for row, parent in enumerate(self.parent.tolist()):
            if parent >= 0:
                found[self.message[parent]][int(self.message[row])] = float(stays[self.message[parent]])
        for a, b, gap_s in self.neighbours:
            found[a][b] = max(found[a].get(b, 0.0), gap_s)
        return [sorted(following.items()) for following in found]

    @cached_property
    def neighbours(self) -> list[tuple[int, int, float]]:
        """Messages that follow each other on some link that has room for one, with the least time between starts."""
        case = self.case
        last: dict[int, tuple[int, int]] = {}
        found: dict[tuple[int, int], float] = {}
        routes, before = case.routes, case.before_s
        for message, hop in enumerate(self.hop.tolist()):
            for entry in range(int(routes.ptr[hop]), int(routes.ptr[hop + 1])):
                link = int(routes.data[entry])
                if case.lanes[link] > 1:
                    continue
                if link in last:
                    other, there = last[link]
                    gap_s = float(self.busy_s[other] + before[there] - before[entry])
                    found[other, message] = max(found.get((other, message), 0.0), gap_s)
                last[link] = message, entry
        return [(a, b, gap_s) for (a, b), gap_s in found.items()]

    @cached_property
    def ahead_s(self) -> F64:
        """Time from the start of every message to the end of all that waits for it, if its order stays."""
        ahead = self.case.table.alpha_s[self.hop] + self.transfer_s
        for message in range(len(self.hop) - 1, -1, -1):
            for following, gap_s in self.successors[message]:
                ahead[message] = max(ahead[message], gap_s + ahead[following])
        return ahead


def parents(case: Case, sends: Sends) -> I64:
    """The row that brings every row's chunk to where it leaves; -1 where it is from the start."""
    brings = brought(case, sends)
    src = case.table.src[sends.hop]
    places = case.places(sends.chunk, src)
    held = case.holds[sends.chunk, src].tolist()
    return np.array([-1 if own else brings[at] for own, at in zip(held, places, strict=True)], dtype=np.int64)


def brought(case: Case, sends: Sends) -> dict[int, int]:
    """The row that brings a chunk to a rank, by the number of the pair in `Case.places`."""
    return {at: row for row, at in enumerate(case.places(sends.chunk, case.table.dst[sends.hop]))}
