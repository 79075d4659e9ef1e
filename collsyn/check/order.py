"""What must come before what in a schedule, whatever its times: data that is waited for, and turns on the links."""

from dataclasses import dataclass

import numpy as np

from collsyn.check.loads import Occupancy
from collsyn.check.replay import Slots, done_times, event_order, members, tolerance_of
from collsyn.check.structure import RELATIVE
from collsyn.model.arrays import F64, I64
from collsyn.model.schedule import COPY, REDUCE, VALUE, Messages, Schedule

# Times that must differ are kept this many tolerances apart.
APART = 4
MAX_ROUNDS = 50


@dataclass(frozen=True, eq=False)
class DataOrder:
    """Message `after[e]` waits for message `before[e]`, by the slots that both touch.

    By kind: a reader starts when a writer is done; a writer is done only once a reader has started (`meets`); of two
    writers one is done before the other (both). `apart` marks what must not fall into one instant.
    """

    before: I64
    after: I64
    waits_for_done: I64
    done_waits: I64
    apart: I64

    def lags(self, messages: Messages, apart_s: float) -> F64:
        """Least difference of starts for every entry, at the costs of some messages."""
        takes = messages.done_s - messages.start_s
        return self.waits_for_done * takes[self.before] - self.done_waits * takes[self.after] + self.apart * apart_s


def data_order(schedule: Schedule, tolerance_s: float) -> DataOrder:
    """The order of all reads and writes of slots that a correct schedule depends on.

    Where copies only spread equal bytes, a sender waits for the first arrival alone.
    """
    collective = schedule.collective
    message = np.empty(schedule.num_sends, dtype=np.int64)
    rows = schedule.messages.rows
    message[rows.data] = np.repeat(np.arange(len(rows)), rows.lengths())
    if collective.reduces or schedule.dst_slot.any() or (schedule.op != COPY).any():
        entries = np.array(_slot_order(schedule, tolerance_s), dtype=np.int64)
    else:
        entries = _first_arrivals(schedule)
    columns = entries.reshape(-1, 5).T
    before, after = message[columns[0]], message[columns[1]]
    kept = before != after
    return DataOrder(before[kept], after[kept], *(values[kept] for values in columns[2:]))


def _first_arrivals(schedule: Schedule) -> I64:
    slots = Slots.of(schedule)
    order = np.lexsort((done_times(schedule), slots.target))
    keys, first = np.unique(slots.target[order], return_index=True)
    rank, chunk = members(schedule, schedule.collective.pre)
    given = (rank * slots.num_chunks + chunk) * slots.per_chunk + VALUE
    readers = np.flatnonzero((slots.source >= 0) & ~np.isin(slots.source, given))
    place = np.minimum(np.searchsorted(keys, slots.source[readers]), max(len(keys) - 1, 0))
    readers, place = (values[keys[place] == slots.source[readers]] for values in (readers, place))
    ones, zeros = np.ones_like(readers), np.zeros_like(readers)
    return np.stack([order[first[place]], readers, ones, zeros, zeros], axis=1)


def _slot_order(schedule: Schedule, tolerance_s: float) -> list[tuple[int, int, int, int, int]]:
    slots = Slots.of(schedule)
    source, target, joins = slots.source.tolist(), slots.target.tolist(), (schedule.op == REDUCE).tolist()
    local = (schedule.src == schedule.dst).tolist()
    # Since the last copy into a slot: who wrote to it (that copy first), and who read it.
    writers: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    entries: list[tuple[int, int, int, int, int]] = []
    for event in event_order(schedule, tolerance_s).tolist():
        row = event >> 1
        if not event & 1:
            if source[row] >= 0:
                # Merges at a rank take no time, and those of one instant would go by their row.
                waits = [(w, row, 1, 0, int(local[w] and local[row])) for w in writers.get(source[row], [])]
                entries += waits
                readers.setdefault(source[row], []).append(row)
            continue
        written = writers.setdefault(target[row], [])
        entries += [(r, row, 0, 1, 1) for r in readers.get(target[row], [])]
        if joins[row]:
            entries += [(w, row, 1, 1, 1) for w in written[:1] if not joins[w]]
            written.append(row)
        else:
            entries += [(w, row, 1, 1, 1) for w in written]
            writers[target[row]], readers[target[row]] = [row], []
    return entries


@dataclass(frozen=True, eq=False)
class LinkOrder:
    """Turns on links as pairs of entries of an Occupancy: `after` begins on the link when `before` has left it."""

    before: I64
    after: I64


def link_order(occupancy: Occupancy, num_links: int, tolerance_s: float) -> LinkOrder:
    """For every message on a link, those that had left it when it came, except where another stands between.

    Messages that keep these turns never share a link in a set that did not share it in the schedule: intervals that
    overlap in pairs have a common point. So loads stay within bandwidth at any costs, if the shares do not grow.
    """
    order = np.lexsort((occupancy.begin_s, occupancy.link))
    link = occupancy.link[order]
    shared = occupancy.shared_links(num_links, tolerance_s)
    follows = np.flatnonzero((link[1:] == link[:-1]) & ~shared[link[1:]])
    before, after = [order[follows]], [order[follows + 1]]
    bounds = np.searchsorted(link, np.arange(num_links + 1))
    for number in np.flatnonzero(shared).tolist():
        entries = order[bounds[number] : bounds[number + 1]]
        begin, end = occupancy.begin_s[entries], occupancy.end_s[entries]
        by_end = np.argsort(end, kind="stable")
        ends, left = end[by_end], np.searchsorted(end[by_end], begin + tolerance_s, side="right")
        latest = np.concatenate([[-np.inf], np.maximum.accumulate(begin[by_end])])[left]
        oldest = np.searchsorted(ends, latest + tolerance_s, side="right")
        count = np.maximum(left - oldest, 0)
        inside = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        before.append(entries[by_end[np.repeat(oldest, count) + inside]])
        after.append(np.repeat(entries, count))
    return LinkOrder(np.concatenate(before), np.concatenate(after))


def in_order_of_starts(waiting: Schedule, data: DataOrder) -> F64:
    """Starts of messages placed one by one in the order of the starts they have, each as early as its links allow.

    A message comes to a link no sooner than those placed before it, and when its share of the bandwidth is free. What
    must not be done before a later one has started is held back and all placed again, a few times at most.
    """
    messages = waiting.messages
    takes_s = messages.done_s - messages.start_s
    order = np.lexsort((messages.src != messages.dst, messages.start_s))
    floor_s = np.zeros(len(messages))
    finish_s = 0.0
    for _ in range(MAX_ROUNDS):
        lag_s = data.lags(messages, APART * tolerance_of(messages, finish_s))
        start_s = _placed(waiting, data, lag_s, order, floor_s)
        finish_s = float((start_s + takes_s).max(initial=0.0))
        lag_s = data.lags(messages, APART * tolerance_of(messages, finish_s) / 2)
        needed_s = start_s[data.before] + lag_s
        early = start_s[data.after] < needed_s * (1 - 1e-14)
        if not early.any():
            break
        np.maximum.at(floor_s, data.after[early], needed_s[early])
    return start_s


def _placed(waiting: Schedule, data: DataOrder, lag_s: F64, order: I64, floor_s: F64) -> F64:
    messages, occupancy = waiting.messages, Occupancy.of(waiting)
    entries = np.searchsorted(occupancy.message, np.arange(len(messages) + 1)).tolist()
    by_after = np.argsort(data.after, kind="stable")
    waits = np.searchsorted(data.after[by_after], np.arange(len(messages) + 1)).tolist()
    lags, before = lag_s[by_after].tolist(), data.before[by_after].tolist()
    links = list(zip(occupancy.link.tolist(), occupancy.ahead_s.tolist(), occupancy.share.tolist(), strict=True))
    busy_s, floors, start_s = messages.busy_s.tolist(), floor_s.tolist(), [-np.inf] * len(messages)
    queues = [_Queue() for _ in range(waiting.topology.num_links)]
    for m in order.tolist():
        mine = links[entries[m] : entries[m + 1]]
        start, earlier = max([floors[m], *(start_s[before[e]] + lags[e] for e in range(waits[m], waits[m + 1]))]), -1.0
        while start > earlier:
            earlier = start
            start = max([start, *(queues[link].room(start + ahead, share) - ahead for link, ahead, share in mine)])
        for link, ahead, share in mine:
            queues[link].add(start + ahead, start + ahead + busy_s[m], share)
        start_s[m] = start
    return np.array(start_s)


class _Queue:
    """Messages on a link that have not left it when the latest one came, as (end, share)."""

    def __init__(self) -> None:
        self.latest_s = 0.0
        self.present: list[tuple[float, float]] = []

    def room(self, begin_s: float, share: float) -> float:
        """The first time from `begin_s` on, and not before the latest came, at which a share is free."""
        begin_s = max(begin_s, self.latest_s)
        present = sorted(entry for entry in self.present if entry[0] > begin_s)
        load = sum(entry[1] for entry in present)
        for end_s, freed in present:
            if load + share <= 1 + RELATIVE / 2:
                break
            begin_s, load = end_s, load - freed
        return begin_s

    def add(self, begin_s: float, end_s: float, share: float) -> None:
        """Take a message in."""
        self.latest_s = begin_s
        self.present = [entry for entry in self.present if entry[0] > begin_s]
        self.present.append((end_s, share))
