"""Replays a schedule with the contributions of every chunk: who holds what when, and what is there at the end."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from collsyn.check import words
from collsyn.check.report import SHOWN, Problem
from collsyn.model.arrays import F64, I64, Bools
from collsyn.model.schedule import COPY, OWN, REDUCE, VALUE, Messages, Schedule

# Places for every write up to which a table of all places is quicker than sorting the writes.
TABLE_PER_WRITE = 16


def time_tolerance(schedule: Schedule) -> float:
    """Seconds within which two times of a schedule count as one instant; see `tolerance_of`."""
    return tolerance_of(schedule.messages, schedule.finish_s)


def tolerance_of(messages: Messages, finish_s: float) -> float:
    """1e-9 of the finish, but at most a quarter of the shortest transfer, so that no message arrives as it is sent."""
    travels = messages.src != messages.dst
    shortest = (messages.num_bytes[travels] / messages.rate[travels]).min(initial=np.inf)
    return float(min(1e-9 * finish_s, shortest / 4))


def done_times(schedule: Schedule) -> F64:
    """When every send has arrived and been reduced: that of the message it travels in."""
    rows = schedule.messages.rows
    done = np.empty(schedule.num_sends)
    done[rows.data] = np.repeat(schedule.messages.done_s, rows.lengths())
    return done


def event_order(schedule: Schedule, tolerance_s: float) -> I64:
    """The order in which slots are read and written: 2 i where send i reads its source, 2 i + 1 where it writes.

    A send sees what is done by its start (tolerance included). At one instant messages arrive first, then sends that
    stay at their rank merge slots in the order of the schedule's rows, and then messages leave.
    """
    done, local = done_times(schedule), schedule.src == schedule.dst
    read = schedule.start_s + tolerance_s
    at_once = local & (done <= read)
    when, phase = np.empty(2 * len(read)), np.empty(2 * len(read), dtype=np.int8)
    when[0::2], when[1::2] = read, np.where(at_once, read, done)
    phase[0::2], phase[1::2] = np.where(local, 1, 2), np.where(at_once, 1, 0)
    return np.lexsort((phase, when))


@dataclass(frozen=True, eq=False)
class Slots:
    """Numbers for the places that sends read and write: one a (rank, chunk, slot), negative for untouched inputs."""

    source: I64
    target: I64
    per_chunk: int
    num_chunks: int

    @classmethod
    def of(cls, schedule: Schedule) -> "Slots":
        """Places of all sends."""
        per_chunk = int(max(schedule.src_slot.max(initial=0), schedule.dst_slot.max(initial=0))) + 1
        num_chunks, chunk = schedule.collective.num_chunks, schedule.chunk.astype(np.int64)
        here, there = (ends.astype(np.int64) * num_chunks + chunk for ends in (schedule.src, schedule.dst))
        source = np.where(schedule.src_slot == OWN, -1 - here, here * per_chunk + schedule.src_slot)
        return cls(source, there * per_chunk + schedule.dst_slot, per_chunk, num_chunks)

    def value(self, rank: int, chunk: int) -> int:
        """The place of a rank's VALUE of a chunk."""
        return (rank * self.num_chunks + chunk) * self.per_chunk + VALUE

    def own(self, rank: int, chunk: int) -> int:
        """The place of a rank's own contribution as given."""
        return -1 - (rank * self.num_chunks + chunk)


@dataclass(frozen=True)
class DataFlow:
    """Problems with what senders hold, with reductions, and with the result; each list with its full length."""

    held: tuple[list[Problem], int]
    reductions: tuple[list[Problem], int]
    result: tuple[list[Problem], int]

    @property
    def ok(self) -> bool:
        """Whether there are none."""
        return not (self.held[1] or self.reductions[1] or self.result[1])


def replay(schedule: Schedule, tolerance_s: float) -> DataFlow:
    """All problems of a schedule's data flow.

    Copies alone into VALUE need only the first arrival of every chunk (sorting, O(n log n) for n sends); otherwise
    every read and write is replayed with sets of contributors as bit masks, O(n ranks / 64) after sorting.
    """
    plain = not schedule.collective.reduces and (schedule.op == COPY).all() and (schedule.src != schedule.dst).all()
    if plain and not schedule.dst_slot.any() and (schedule.src_slot <= VALUE).all():
        return _replay_copies(schedule, tolerance_s)
    return _replay_slots(schedule, tolerance_s)


def _replay_copies(schedule: Schedule, tolerance_s: float) -> DataFlow:
    collective = schedule.collective
    num_chunks, slots = collective.num_chunks, Slots.of(schedule)
    rank, at = members(schedule, collective.pre)
    given = rank * num_chunks + at
    held = _held_from(given, slots.target, done_times(schedule), schedule.topology.num_ranks * num_chunks)
    since = held(slots.source)
    if (schedule.src_slot == OWN).any():
        own = np.where(np.isin(-1 - slots.source, given), -np.inf, np.inf)
        since = np.where(schedule.src_slot == OWN, own, since)
    early = np.flatnonzero(since > schedule.start_s + tolerance_s)
    rank, at = members(schedule, collective.post)
    missing = np.flatnonzero(held(rank * num_chunks + at) == np.inf)
    return DataFlow(
        held=([_not_held(schedule, row, float(since[row])) for row in early[:SHOWN].tolist()], len(early)),
        reductions=([], 0),
        result=([_wrong_result(int(rank[i]), int(at[i]), 1, 0, False) for i in missing[:SHOWN].tolist()], len(missing)),
    )


def _held_from(given: I64, written: I64, done_s: F64, num_places: int) -> Callable[[I64], F64]:
    """A lookup of when places first hold their chunk: -inf where it is given, inf for never (and negative places).

    A table of all places where these are not many more than the writes, else a sorted list of those that count.
    """
    if num_places <= TABLE_PER_WRITE * (len(given) + len(written)):
        table = np.full(num_places, np.inf)
        np.minimum.at(table, written, done_s)
        table[given] = -np.inf
        return lambda wanted: np.where(wanted < 0, np.inf, table[np.maximum(wanted, 0)])
    keys = np.concatenate([given, written])
    times = np.concatenate([np.full(len(given), -np.inf), done_s])
    order = np.lexsort((times, keys))
    keys, first = np.unique(keys[order], return_index=True)
    since = times[order][first]

    def held(wanted: I64) -> F64:
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[place] == wanted, since[place], np.inf)

    return held


def members(schedule: Schedule, which: np.ndarray[tuple[int], np.dtype[np.int32]]) -> tuple[I64, I64]:
    """All pairs (rank, chunk) of a column of rank sets, `pre` or `post`."""
    sets = schedule.collective.sets
    lengths = sets.lengths()[which]
    chunk = np.repeat(np.arange(len(which)), lengths)
    inside = np.arange(len(chunk)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return sets.data[sets.ptr[which[chunk]] + inside].astype(np.int64), chunk


def _replay_slots(schedule: Schedule, tolerance_s: float) -> DataFlow:
    slots, reduces = Slots.of(schedule), schedule.collective.reduces
    state: dict[int, int] = {}
    for rank, chunk in zip(*(values.tolist() for values in members(schedule, schedule.collective.pre)), strict=True):
        # Where nothing is reduced, all that hold a chunk hold the same bytes.
        state[slots.value(rank, chunk)] = state[slots.own(rank, chunk)] = 1 << rank if reduces else 1
    source, target, joins = slots.source.tolist(), slots.target.tolist(), (schedule.op == REDUCE).tolist()
    carried = [0] * schedule.num_sends
    missing: list[int] = []
    twice: list[tuple[int, int]] = []
    for event in event_order(schedule, tolerance_s).tolist():
        row = event >> 1
        if not event & 1:
            carried[row] = state.get(source[row], 0)
            if not carried[row]:
                missing.append(row)
        elif arriving := carried[row]:
            present = state.get(target[row], 0) if joins[row] else 0
            if present & arriving:
                twice.append((row, present & arriving))
            state[target[row]] = present | arriving
    reductions = [_added_twice(schedule, row, overlap) for row, overlap in twice[:SHOWN]]
    races = [
        (a, b)
        for a, b in _simultaneous(schedule, slots, tolerance_s)
        if joins[a] or joins[b] or carried[a] != carried[b]
    ]
    reductions += [_race(schedule, a, b) for a, b in races[:SHOWN]]
    wrong = _wrong_values(schedule, slots, state)
    return DataFlow(
        held=(
            [_not_held(schedule, row, _first_written(schedule, slots, row)) for row in missing[:SHOWN]],
            len(missing),
        ),
        reductions=(reductions, len(twice) + len(races)),
        result=([_wrong_result(*case, reduces) for case in wrong[:SHOWN]], len(wrong)),
    )


def _wrong_values(schedule: Schedule, slots: Slots, state: dict[int, int]) -> list[tuple[int, int, int, int]]:
    """Rank, chunk, wanted and present mask wherever a receiver ends with something else than the result."""
    collective = schedule.collective
    masks = [sum(1 << rank for rank in row) if collective.reduces else 1 for row in collective.sets.tuples()]
    want = [masks[i] for i in collective.pre.tolist()]
    wrong = []
    for rank, chunk in zip(*(values.tolist() for values in members(schedule, collective.post)), strict=True):
        have = state.get(slots.value(rank, chunk), 0)
        if have != want[chunk]:
            wrong.append((rank, chunk, want[chunk], have))
    return wrong


def _simultaneous(schedule: Schedule, slots: Slots, tolerance_s: float) -> list[tuple[int, int]]:
    """Pairs of messages that reach one slot in one instant, at least one of them replacing what is there."""
    rows = np.flatnonzero(schedule.src != schedule.dst)
    done = done_times(schedule)[rows]
    order = np.lexsort((done, slots.target[rows]))
    rows, done = rows[order], done[order]
    target, copies = slots.target[rows], schedule.op[rows] == COPY
    close: Bools = (target[1:] == target[:-1]) & (np.diff(done) <= tolerance_s) & (copies[1:] | copies[:-1])
    return list(zip(rows[:-1][close].tolist(), rows[1:][close].tolist(), strict=True))


def _first_written(schedule: Schedule, slots: Slots, row: int) -> float:
    writers = slots.target == slots.source[row]
    return float(done_times(schedule)[writers].min(initial=np.inf))


def _not_held(schedule: Schedule, row: int, since_s: float) -> Problem:
    slot = int(schedule.src_slot[row])
    place = "" if slot == VALUE else " as its own contribution" if slot == OWN else f" in slot {slot}"
    found = f"there from {words.us(since_s)} on" if since_s < np.inf else "never there"
    what = f"rank {int(schedule.src[row])} sends what it does not hold{place}"
    return Problem(words.send(schedule, row), what, f"there at {words.us(float(schedule.start_s[row]))}", found)


def _added_twice(schedule: Schedule, row: int, overlap: int) -> Problem:
    members = words.ranks(words.bits(overlap)) if schedule.collective.reduces else "the same bytes"
    what = f"adds to rank {int(schedule.dst[row])} what is already there"
    return Problem(words.send(schedule, row), what, "every contribution once", f"{members} twice")


def _race(schedule: Schedule, first: int, second: int) -> Problem:
    what = f"reaches its slot at rank {int(schedule.dst[second])} in the same instant as {words.send(schedule, first)}"
    return Problem(words.send(schedule, second), what, "an order between a copy and another write", "none")


def _wrong_result(rank: int, chunk: int, want: int, have: int, reduces: bool) -> Problem:
    if not reduces:
        return Problem(f"chunk {chunk} at rank {rank} at the end", "is missing", "the chunk", "nothing")
    present = f"contributions of {words.ranks(words.bits(have))}" if have else "nothing"
    expected = f"contributions of {words.ranks(words.bits(want))}"
    return Problem(f"chunk {chunk} at rank {rank} at the end", "is not the result", expected, present)
