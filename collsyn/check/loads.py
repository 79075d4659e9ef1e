"""What every link carries when, and where that is more than it can."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collsyn.check import words
from collsyn.check.in_network import joined_entries
from collsyn.check.report import SHOWN, Problem
from collsyn.check.structure import RELATIVE
from collsyn.model.arrays import F64, I32, I64, Bools
from collsyn.model.schedule import RouteCosts, Schedule
from collsyn.model.size_rates import link_rates


@dataclass(frozen=True, eq=False)
class Occupancy:
    """One entry a message and link of its route: the link is loaded with `share` of its bandwidth from begin to end.

    `ahead_s` are the alphas before that link: begin less start of the message. Entries are in the order of messages.
    """

    message: I64
    link: I32
    ahead_s: F64
    begin_s: F64
    end_s: F64
    share: F64

    @classmethod
    def of(cls, schedule: Schedule, like: Schedule | None = None) -> "Occupancy":
        """Occupied times of all links by the time model of Topology; O(messages x links of a route).

        Where switches copy or reduce, messages that are one there (in `like`, the same messages at other times, if
        given) have one entry, that of the first of them.
        """
        occupancy, entry = cls._of_all(schedule)
        told = occupancy if like is None else cls._of_all(like)[0]
        others, _ = joined_entries(like or schedule, told.message, entry, told.begin_s)
        return occupancy.only(np.delete(np.arange(len(entry)), others)) if len(others) else occupancy

    @classmethod
    def in_step(cls, schedule: Schedule) -> tuple[I64, I64, F64]:
        """Pairs of messages that are one message somewhere, and how much later the second one starts."""
        every, entry = cls._of_all(schedule)
        others, firsts = joined_entries(schedule, every.message, entry, every.begin_s)
        return every.message[firsts], every.message[others], every.ahead_s[firsts] - every.ahead_s[others]

    @classmethod
    def _of_all(cls, schedule: Schedule) -> tuple["Occupancy", I64]:
        messages, routes = schedule.messages, schedule.routes
        lengths = routes.lengths()[messages.route]
        message = np.repeat(np.arange(len(messages)), lengths)
        inside = np.arange(len(message)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        entry = routes.ptr[messages.route[message]] + inside
        link = routes.data[entry]
        ahead = RouteCosts.of(schedule.topology, routes).before_s[entry]
        begin = messages.start_s[message] + ahead
        share = messages.rate[message] / link_rates(schedule.topology, link, messages.num_bytes[message])
        return cls(message, link, ahead, begin, begin + messages.busy_s[message], share), entry

    def only(self, entries: npt.NDArray[np.generic]) -> "Occupancy":
        """Some of the entries."""
        columns = (self.message, self.link, self.ahead_s, self.begin_s, self.end_s, self.share)
        return Occupancy(*(values[entries] for values in columns))

    def shared_links(self, num_links: int, tolerance_s: float) -> Bools:
        """Which links ever carry two messages at once (one mask entry a link)."""
        order = np.lexsort((self.begin_s, self.link))
        link, begin, end = self.link[order], self.begin_s[order], self.end_s[order]
        # If each message ends before the next one begins, in the order of beginnings, then no two overlap.
        overlap = (link[1:] == link[:-1]) & (begin[1:] < end[:-1] - tolerance_s)
        shared = np.zeros(num_links, dtype=np.bool_)
        shared[link[1:][overlap]] = True
        return shared


@dataclass(frozen=True, eq=False)
class Sweep:
    """Events in the order of (link, time), two an entry of an occupancy: when, and the share in use from then on.

    `position` finds events: the first half of it where each entry begins, the second where each ends.
    """

    link: I32
    when_s: F64
    load: F64
    position: I64

    @classmethod
    def of(cls, occupancy: Occupancy, tolerance_s: float) -> "Sweep":
        """Loads of all links, occupied times shortened by the tolerance; what ends leaves before others come."""
        link = np.concatenate([occupancy.link, occupancy.link])
        when = np.concatenate([occupancy.begin_s, occupancy.end_s - tolerance_s])
        change = np.concatenate([occupancy.share, -occupancy.share])
        order = np.lexsort((change, when, link))
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        link = link[order]
        load = np.cumsum(change[order])
        # What all links before this one left over is rounding; each begins at 0.
        starts = np.flatnonzero(np.diff(link, prepend=-1))
        before = np.concatenate([[0.0], load])[starts]
        load = load - np.repeat(before, np.diff(np.append(starts, len(link))))
        return cls(link, when[order], load, position)

    def highest(self) -> F64:
        """The largest load of its link while an entry lasts, one value an entry."""
        begin, end = np.split(self.position, 2)
        if not len(begin):
            return np.zeros(0)
        return np.maximum.reduceat(self.load, np.stack([begin, end], axis=1).reshape(-1))[::2]


def load_problems(schedule: Schedule, tolerance_s: float) -> tuple[list[Problem], int]:
    """Links whose messages in flight ask for more than the bandwidth, and how many there are.

    Times may be off by the tolerance. Links that are never shared are left to the check of rates; the others are swept
    over the ends of the occupied times, O(n log n) for n messages on links.
    """
    topology = schedule.topology
    occupancy = Occupancy.of(schedule)
    occupancy = occupancy.only(occupancy.shared_links(topology.num_links, tolerance_s)[occupancy.link])
    sweep = Sweep.of(occupancy, tolerance_s)
    over = np.flatnonzero(sweep.load > 1 + RELATIVE)
    links, first = np.unique(sweep.link[over], return_index=True)
    events = over[first[:SHOWN]]
    problems = [_overload(schedule, occupancy, sweep, event, tolerance_s) for event in events.tolist()]
    return problems, len(links)


def _overload(schedule: Schedule, occupancy: Occupancy, sweep: Sweep, event: int, tolerance_s: float) -> Problem:
    link, at = int(sweep.link[event]), float(sweep.when_s[event])
    here = occupancy.only((occupancy.link == link) & (occupancy.begin_s <= at) & (occupancy.end_s - tolerance_s > at))
    names = [words.send(schedule, int(schedule.messages.rows[m][0])) for m in here.message[:3].tolist()]
    more = f" and {len(here.message) - 3} more" if len(here.message) > 3 else ""
    capacity = schedule.topology.bandwidth[link] / 1e9
    return Problem(
        f"link {schedule.topology.link_name(link)} at {words.us(at)}",
        f"carries more than its bandwidth ({'; '.join(names)}{more})",
        f"at most {capacity:.9g} GB/s",
        f"{sweep.load[event] * capacity:.9g} GB/s",
    )
