"""What a fixed order cannot reach: large-neighbourhood search with integer programs on windows, and finer chunks."""

from collections.abc import Iterator

import numpy as np

from collsyn.model.arrays import I64
from collsyn.synth.milp_budget import NODES, Budget
from collsyn.synth.milp_case import Case
from collsyn.synth.milp_order import Sends
from collsyn.synth.milp_sharing import Sharing
from collsyn.synth.milp_timing import Timed
from collsyn.synth.milp_window import Window

# Messages in a window whose order is free, and rows in one whose messages are.
WINDOW, SHARED_ROWS = 12, 120
# Messages up to which all are in one window, and its branches.
WHOLE, WHOLE_NODES = 20, 300
# Gains below this are rounding.
RELATIVE = 1e-9


def improved(timed: Timed, budget: Budget, enough_s: float, lasting: bool = False) -> Timed:
    """The best that windows lead to, from some sends; those of `enough_s` or less are not improved.

    Windows lie over what the finish waits for, from the end backwards, until a round over them all gains nothing; with
    `lasting` orders as quick are tried then, until the budget is spent.
    """
    shares = bool(timed.case.table.overhead_s.any())
    while not budget.is_spent and timed.finish_s > enough_s:
        before_s, rows = timed.finish_s, budget.rows
        # Rows that share a message keep to its way: few messages are better put in order first.
        steps = [_reordered, _shared] if len(timed.hop) <= WHOLE else [_shared, _reordered]
        for step in steps if shares else [_reordered]:
            timed = step(timed, budget, enough_s)
        if timed.finish_s >= before_s * (1 - RELATIVE):
            if not lasting or budget.rows == rows:
                break
            timed = _disturbed(timed, budget)
    return timed


def _shared(timed: Timed, budget: Budget, enough_s: float) -> Timed:
    """Which rows share messages, window by window from the end."""
    end = len(timed.hop)
    while end > 0 and not budget.is_spent and timed.finish_s > enough_s:
        begin = end
        while begin > 0 and timed.first[end] - timed.first[begin - 1] <= SHARED_ROWS:
            begin -= 1
        begin = min(begin, end - 1)
        found = Sharing(timed, begin, end).solved(budget)
        behind = len(timed.hop) - end
        timed = better(timed, found)
        end = min(len(timed.hop) - behind, len(timed.hop))
        rows = timed.first[end] - timed.first[begin] if begin < end else 0
        while end > begin and timed.first[end] - timed.first[begin] > rows // 2:
            end -= 1
        if begin == 0:
            break
        end = max(min(end, len(timed.hop)), begin)
    return timed


def _reordered(timed: Timed, budget: Budget, enough_s: float) -> Timed:
    """Orders and ways, window by window over what the finish waits for; all at once where there are few messages."""
    if len(timed.hop) <= WHOLE:
        return better(timed, Window(timed, 0, len(timed.hop)).solved(budget, WHOLE_NODES))
    size = WINDOW + int(budget.random.integers(-2, 3))
    for end in _ends(timed, size, budget):
        if budget.is_spent or timed.finish_s <= enough_s:
            break
        end = min(end, len(timed.hop))
        timed = better(timed, Window(timed, max(end - size, 0), end).solved(budget, NODES))
    return timed


def _ends(timed: Timed, size: int, budget: Budget) -> Iterator[int]:
    """Ends of windows, half a window apart, the last first, that hold some message the finish waits for."""
    critical = timed.begin_s + timed.ahead_s >= timed.finish_s * (1 - RELATIVE)
    at = len(timed.hop) - int(budget.random.integers(0, 2)) * (size // 4)
    while at > 0:
        if critical[max(at - size, 0) : at].any():
            yield at
        at -= max(size // 2, 1)


def _disturbed(timed: Timed, budget: Budget) -> Timed:
    """Another order that is as quick, or nearly: messages that can wait change places."""
    slack = timed.finish_s - timed.begin_s - timed.ahead_s
    keys = timed.begin_s + budget.random.random(len(slack)) * 0.5 * np.maximum(slack, 0.0)
    other = Timed.of(timed.case, in_places(timed, np.argsort(keys, kind="stable")))
    return better(timed, other.sends)


def in_places(timed: Timed, order: I64) -> Sends:
    """The messages in another order; one that needs another still stands behind it."""
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    for row, parent in enumerate(timed.parent.tolist()):
        if parent >= 0:
            mine, theirs = timed.message[row], timed.message[parent]
            rank[mine] = max(rank[mine], rank[theirs] + 1)
    place = np.lexsort((np.arange(len(rank)), rank))
    rows = np.concatenate([np.arange(timed.first[m], timed.first[m + 1]) for m in place.tolist()])
    message = np.repeat(np.arange(len(place)), np.diff(timed.first)[place])
    return Sends(timed.sends.chunk[rows], timed.sends.hop[rows], message)


def better(timed: Timed, found: Sends | None) -> Timed:
    """The sends that were found, in the order of their earliest starts, if they are no later than those at hand."""
    if found is None:
        return timed
    other = Timed.of(timed.case, found)
    return other.sorted() if other.finish_s <= timed.finish_s * (1 + RELATIVE) else timed


def split(timed: Timed, case: Case) -> Timed:
    """The same sends with every chunk cut in two, as the chunks of another case with twice as many; none is later."""
    pieces = _pieces(timed.case, case)
    sends = timed.sends
    chunk, hop = pieces[sends.chunk].reshape(-1), np.repeat(sends.hop, 2)
    return Timed.of(case, Sends.of(case, chunk, hop, np.repeat(timed.message, 2)))


def _pieces(case: Case, other: Case) -> I64:
    """The two chunks of a finer case that make up every chunk: shape [chunks, 2]."""
    key = case.collective.in_offset, other.collective.in_offset
    scale = other.collective.total_units // case.collective.total_units
    place = {
        (tuple(other.collective.contributors(c).tolist()), tuple(other.collective.receivers(c).tolist()), int(at)): c
        for c, at in enumerate(key[1].tolist())
    }
    pieces = []
    for chunk, at in enumerate(key[0].tolist()):
        ends = tuple(case.collective.contributors(chunk).tolist()), tuple(case.collective.receivers(chunk).tolist())
        first = place[*ends, int(at) * scale]
        pieces.append((first, place[*ends, int(at) * scale + int(other.collective.units[first])]))
    return np.array(pieces, dtype=np.int64)
