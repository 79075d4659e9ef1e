"""What switches copy and reduce on the way: messages that load common links of their routes only once.

Messages of one instant that carry the same chunks from one place of a rank are one message as far as the last switch
with multicast before they part: there the switch copies it. Mirrored, messages that reduce the same chunks into one
place of a rank are one message behind the first switch with reduction where they have met at one time.
"""

from collections.abc import Sequence

import numpy as np

from collsyn.model.arrays import F64, I64
from collsyn.model.schedule import REDUCE, Schedule


def joined_entries(schedule: Schedule, message: I64, entry: I64, begin_s: F64) -> tuple[I64, I64]:
    """(other, first): entries of messages on links that count as one with an earlier entry, and that one.

    Entries are rows of an Occupancy: a message, a place in the table of routes and a time. Empty where no switch can
    multicast or reduce. O(entries x links of a route).
    """
    topology = schedule.topology
    others: list[int] = []
    firsts: list[int] = []
    if topology.multicast.any() or topology.reduction.any():
        known: dict[tuple[object, ...], int] = {}
        for at, keys in enumerate(_keys(schedule, message, entry, begin_s)):
            found = [known[key] for key in keys if key in known]
            if found:
                others.append(at)
                firsts.append(found[0])
            for key in keys:
                known.setdefault(key, found[0] if found else at)
    return np.array(others, dtype=np.int64), np.array(firsts, dtype=np.int64)


def _keys(schedule: Schedule, message: I64, entry: I64, begin_s: F64) -> list[list[tuple[object, ...]]]:
    """For every entry the names of what it may be a part of: equal names are one message there."""
    topology, messages, routes = schedule.topology, schedule.messages, schedule.routes
    copies, sums = topology.multicast, topology.reduction
    lead = messages.rows.data[messages.rows.ptr[:-1]]
    carried = [
        np.sort(schedule.chunk[rows]).tobytes() for rows in np.split(messages.rows.data, messages.rows.ptr[1:-1])
    ]
    reduces = (schedule.op[lead] == REDUCE).tolist()
    named: list[list[tuple[object, ...]]] = []
    ways = [row.tolist() for row in (routes[i] for i in range(len(routes)))]
    for m, place, when in zip(message.tolist(), entry.tolist(), begin_s.tolist(), strict=True):
        number = int(messages.route[m])
        way, inside = ways[number], place - int(routes.ptr[number])
        keys: list[tuple[object, ...]] = []
        same = (carried[m], way[inside], when, float(messages.busy_s[m]), float(messages.rate[m]))
        ahead = _first(copies[topology.dst[way[inside:-1]]].tolist())
        if ahead is not None:
            place_of = (int(messages.src[m]), int(schedule.src_slot[lead[m]]))
            keys.append(("copy", *place_of, tuple(way[: inside + ahead + 1]), *same))
        behind = _first(sums[topology.src[way[inside:0:-1]]].tolist()) if reduces[m] else None
        if behind is not None:
            place_of = (int(messages.dst[m]), int(schedule.dst_slot[lead[m]]))
            keys.append(("sum", *place_of, tuple(way[inside - behind :]), *same))
        named.append(keys)
    return named


def _first(able: Sequence[bool]) -> int | None:
    """The place of the first that is true."""
    return next((i for i, yes in enumerate(able) if yes), None)
