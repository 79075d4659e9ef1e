"""Keeps the schedule's order on links that several ranks share, by making messages wait for others' ends."""

from collections.abc import Sequence

import numpy as np

from collsyn.lower.flow import Flow
from collsyn.lower.runs import Run
from collsyn.model.schedule import RouteCosts

# Messages that may be under way on a link at once where the schedule has one. With two the link would stay busy while
# the end of one is being reported; but where they meet early, both take twice as long, and all that follows is late.
WINDOW = 1


def paces(flow: Flow, runs: Sequence[Run]) -> list[list[int]]:
    """Per run the earlier runs that must be over before it begins, so that no link has more messages than WINDOW times
    those of the schedule.

    For every link of its route, a message waits for the last (but WINDOW - 1) of those that have left the link by the
    schedule when it gets there. O(n log n) for n messages on links.
    """
    schedule, messages = flow.schedule, flow.schedule.messages
    found: list[list[int]] = [[] for _ in runs]
    if not len(messages):
        return found
    first_run, last_run = _ends(flow, runs)
    costs = RouteCosts.of(schedule.topology, schedule.routes)
    lengths = schedule.routes.lengths()[messages.route]
    message = np.repeat(np.arange(len(messages)), lengths)
    inside = np.arange(len(message)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    entry = schedule.routes.ptr[messages.route[message]] + inside
    link = schedule.routes.data[entry]
    begin_s = messages.start_s[message] + costs.before_s[entry]
    end_s = begin_s + messages.busy_s[message]
    waits: dict[int, set[int]] = {}
    for users in np.split(np.argsort(link, kind="stable"), np.cumsum(np.bincount(link))[:-1]):
        by_end = users[np.argsort(end_s[users], kind="stable")]
        over = np.searchsorted(end_s[by_end], begin_s[users] + flow.tolerance_s, side="right")
        for user, count in zip(users.tolist(), over.tolist(), strict=True):
            if count >= WINDOW:
                waits.setdefault(int(message[user]), set()).add(int(message[by_end[count - WINDOW]]))
    for later, earlier in waits.items():
        for other in earlier:
            if 0 <= last_run.get(other, -1) < first_run.get(later, -1):
                found[first_run[later]].append(last_run[other])
    return found


def _ends(flow: Flow, runs: Sequence[Run]) -> tuple[dict[int, int], dict[int, int]]:
    """First and last run of every message that goes over links."""
    rows = flow.schedule.messages.rows
    message_of = np.empty(flow.schedule.num_sends, dtype=np.int64)
    message_of[rows.data] = np.repeat(np.arange(len(rows)), rows.lengths())
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, run in enumerate(runs):
        if run.first.peer >= 0:
            message = int(message_of[run.first.row])
            first.setdefault(message, number)
            last[message] = number
    return first, last
