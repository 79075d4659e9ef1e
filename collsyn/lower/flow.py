"""What a schedule does to the values of chunks: which send makes which version of a slot, and which sends read it."""

from dataclasses import dataclass, field

import numpy as np

from collsyn.check.replay import Slots, done_times, members, time_tolerance
from collsyn.check.words import send
from collsyn.errors import VerificationError
from collsyn.model.arrays import F64, I64, Bools
from collsyn.model.schedule import COPY, Schedule


@dataclass(slots=True, eq=False)
class Version:
    """One value that a slot of (rank, chunk) holds for a while.

    `row` is the send that makes it (-1: the rank's own contribution) by joining what it brings with the version `base`
    (None: nothing to join). `readers` are the sends that carry it on; `after` is the version that joins it.
    """

    rank: int
    chunk: int
    row: int
    base: "Version | None" = None
    readers: list[int] = field(default_factory=list)
    after: "Version | None" = None
    final: bool = False


@dataclass(frozen=True, eq=False)
class Flow:
    """The versions of all slots in an order in which bases come first, and the time of all sends.

    Send i reads `source[i]`. Reads and writes of slots form one sequence: send i reads as number `read_at[i]` and
    writes as number `write_at[i]`. `start_s` has the starts with those alike that differ by rounding only, `done_s`
    when the sends have arrived and been reduced.
    """

    schedule: Schedule
    versions: list[Version]
    source: list[Version]
    own: dict[tuple[int, int], Version]
    read_at: I64
    write_at: I64
    start_s: F64
    done_s: F64
    tolerance_s: float


def data_flow(schedule: Schedule, by_arrival: bool) -> Flow:
    """Versions and readers of all slots; O(sends log sends).

    Reductions into a slot that nobody reads in between commute: they are taken in the order of their starts, or of
    their arrivals if `by_arrival`. Raises VerificationError for a send of what is not there and for a receiver without
    result.
    """
    tolerance_s = time_tolerance(schedule)
    done_s = done_times(schedule)
    events, start_s = _events(schedule, done_s, tolerance_s)
    at = np.empty(len(events), dtype=np.int64)
    at[events] = np.arange(len(events))
    read_at, write_at = at[0::2], at[1::2]
    table = _Table(schedule, (write_at if by_arrival else read_at).tolist())
    for event in events.tolist():
        table.write(event >> 1) if event & 1 else table.read(event >> 1)
    table.finish()
    return Flow(schedule, table.versions, table.source, table.own, read_at, write_at, start_s, done_s, tolerance_s)


def _events(schedule: Schedule, done_s: F64, tolerance_s: float) -> tuple[I64, F64]:
    """The sequence of reads (2 i) and writes (2 i + 1) as the checker has it, and the starts of the sends, snapped.

    Sends that leave in one instant, which nothing orders, are rotated: first those to the next rank, then those to the
    one after it, so that channels with several peers do not all begin with the same one.
    """
    local = schedule.src == schedule.dst
    read = schedule.start_s + tolerance_s
    at_once = local & (done_s <= read)
    when, phase = np.empty(2 * len(read)), np.empty(2 * len(read), dtype=np.int8)
    when[0::2], when[1::2] = read, np.where(at_once, read, done_s)
    phase[0::2], phase[1::2] = np.where(local, 1, 2), np.where(at_once, 1, 0)
    message = np.empty(len(read), dtype=np.int64)
    rows = schedule.messages.rows
    message[rows.data] = np.repeat(np.arange(len(rows)), rows.lengths())
    message = np.repeat(message, 2)
    index = np.arange(len(when))
    order = np.lexsort((index, message, phase, when))
    leaves: Bools = (phase[order] == 2) & (index[order] % 2 == 0)
    goes_on = np.zeros(len(order), dtype=np.bool_)
    goes_on[1:] = leaves[1:] & leaves[:-1] & (np.diff(when[order]) <= tolerance_s)
    instant = np.cumsum(~goes_on) - 1
    turn = np.repeat((schedule.dst.astype(np.int64) - schedule.src) % schedule.collective.num_ranks, 2)
    order = order[np.lexsort((order, message[order], np.where(leaves, turn[order], 0), instant))]
    first = when[order][np.flatnonzero(~goes_on)]
    np.minimum.at(first, instant, when[order])
    start = np.empty(len(when))
    start[order] = first[instant]
    return order, start[0::2] - tolerance_s


class _Slot:
    """The version that a slot holds, and writes to it since that was read."""

    __slots__ = ("current", "pending")

    def __init__(self, current: Version | None) -> None:
        self.current = current
        self.pending: list[int] = []


class _Table:
    """All slots while the events pass by."""

    def __init__(self, schedule: Schedule, turn: list[int]) -> None:
        self.schedule, self._turn = schedule, turn
        self._slots = Slots.of(schedule)
        self._from, self._to = self._slots.source.tolist(), self._slots.target.tolist()
        self._copies = (schedule.op == COPY).tolist()
        self._chunk, self._dst = schedule.chunk.tolist(), schedule.dst.tolist()
        self._state: dict[int, _Slot] = {}
        self.versions: list[Version] = []
        self.source: list[Version] = [None] * schedule.num_sends  # type: ignore[list-item]
        self.own: dict[tuple[int, int], Version] = {}
        for rank, chunk in zip(*(ids.tolist() for ids in members(schedule, schedule.collective.pre)), strict=True):
            given = self.own[rank, chunk] = Version(rank, chunk, -1)
            self._state[self._slots.value(rank, chunk)] = _Slot(given)
            self._state[self._slots.own(rank, chunk)] = _Slot(given)

    def read(self, row: int) -> None:
        """A send leaves."""
        slot = self._state.get(self._from[row])
        version = None if slot is None else self._settled(slot)
        if version is None:
            where = send(self.schedule, row)
            raise VerificationError(f"{where}: rank {int(self.schedule.src[row])} sends what it does not hold")
        version.readers.append(row)
        self.source[row] = version

    def write(self, row: int) -> None:
        """A send arrives."""
        slot = self._state.get(self._to[row])
        if slot is None:
            slot = self._state[self._to[row]] = _Slot(None)
        slot.pending.append(row)

    def finish(self) -> None:
        """The end: results are marked."""
        for slot in self._state.values():
            self._settled(slot)
        receivers = members(self.schedule, self.schedule.collective.post)
        for rank, chunk in zip(*(ids.tolist() for ids in receivers), strict=True):
            result = self._state.get(self._slots.value(rank, chunk))
            if result is None or result.current is None:
                raise VerificationError(f"chunk {chunk} at rank {rank} at the end: is missing")
            result.current.final = True

    def _settled(self, slot: _Slot) -> Version | None:
        """The version after all pending writes; what a copy replaces unread is never made."""
        rows = slot.pending
        if not rows:
            return slot.current
        slot.pending = []
        last_copy = max((i for i, row in enumerate(rows) if self._copies[row]), default=-1)
        if last_copy >= 0:
            slot.current = None
            joins = sorted(rows[last_copy + 1 :], key=self._turn.__getitem__)
            rows = [rows[last_copy], *joins]
        else:
            rows = sorted(rows, key=self._turn.__getitem__)
        for row in rows:
            version = Version(self._dst[row], self._chunk[row], row, slot.current)
            if slot.current is not None:
                slot.current.after = version
            slot.current = version
            self.versions.append(version)
        return slot.current
