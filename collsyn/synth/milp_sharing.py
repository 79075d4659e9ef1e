"""Stage three: which sends share a message, and when all leave, with routes and order fixed: an exact program.

Source: TACCL (NSDI 2023), section 5.3; docs/milp.md says what differs.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from collsyn.model.arrays import F64, I64
from collsyn.solver import ArrayModel
from collsyn.synth.milp_budget import Budget
from collsyn.synth.milp_order import Sends
from collsyn.synth.milp_rows import RowBlocks
from collsyn.synth.milp_timing import Timed

# What early arrivals weigh beside the finish: among orders that end alike they leave more room for what comes next.
_EARLY_WEIGHT = 1e-3


@dataclass(frozen=True, eq=False)
class Sharing:
    """The messages `begin` .. `end - 1` of some sends, whose rows may join the row before them on their hop, or part.

    Columns: the finish, then for every row the start of its message, the end of its own bytes on the links, the arrival
    of its message, then one a row that may join. All times are in units of the present finish, which bounds them.
    """

    timed: Timed
    begin: int
    end: int

    @cached_property
    def rows(self) -> I64:
        """Rows of the window: those of a message by the arrival of what they wait for, the longest way ahead first."""
        timed = self.timed
        rows = np.arange(timed.first[self.begin], timed.first[self.end])
        parent = timed.parent[rows]
        ready = np.where(parent >= 0, timed.arrival_s[timed.message[parent]], 0.0)
        ahead = np.zeros(len(timed.sends))
        for row in range(len(timed.sends) - 1, -1, -1):
            if timed.parent[row] >= 0:
                seconds = timed.case.seconds[timed.sends.chunk[row], timed.sends.hop[row]]
                ahead[timed.parent[row]] = max(ahead[timed.parent[row]], seconds + ahead[row])
        return rows[np.lexsort((rows, -ahead[rows], ready, timed.message[rows]))]

    @cached_property
    def joins(self) -> list[tuple[int, int]]:
        """Places (in `rows`) of rows that follow each other on all links of one hop."""
        case, hop = self.timed.case, self.timed.sends.hop[self.rows]
        last: dict[int, int] = {}
        found = []
        for place, h in enumerate(hop.tolist()):
            links = [link for link in case.routes[h].tolist() if case.lanes[link] == 1]
            before = {last.get(link, -1) for link in links}
            if len(before) == 1 and links:
                previous = before.pop()
                if previous >= 0 and hop[previous] == h:
                    found.append((previous, place))
            last.update((link, place) for link in links)
        return found

    @property
    def num_columns(self) -> int:
        """Columns in all."""
        return 1 + 3 * len(self.rows) + len(self.joins)

    def model(self) -> ArrayModel:
        """The program in arrays."""
        timed, case, unit_s = self.timed, self.timed.case, self.timed.finish_s
        n, sends = len(self.rows), timed.sends
        hop = sends.hop[self.rows]
        alone = case.chunk_bytes[sends.chunk[self.rows]] * case.table.beta_s_per_byte[hop] / unit_s
        overhead, alpha = case.table.overhead_s[hop] / unit_s, case.table.alpha_s[hop] / unit_s
        start, end, there = (1 + np.arange(n) + k * n for k in range(3))
        join = {pair: 1 + 3 * n + number for number, pair in enumerate(self.joins)}
        rows = RowBlocks()
        every, infinite = np.arange(n), np.full(n, np.inf)
        rows.add(*_difference(every, end, start), overhead + alone, infinite)
        rows.add(*_difference(every, there, end), alpha - overhead, infinite)
        horizon = 1.0 - float(timed.begin_s[self.begin : self.end].min()) / unit_s
        for (a, b), column in join.items():
            rows.one([start[b], start[a]], [1.0, -1.0], 0.0, np.inf)
            rows.one([start[b], start[a], column], [1.0, -1.0, horizon], -np.inf, horizon)
            rows.one([end[b], end[a]], [1.0, -1.0], alone[b], np.inf)
            rows.one([start[b], end[a], column], [1.0, -1.0, horizon], 0.0, np.inf)
            rows.one([there[a], there[b], column], [1.0, -1.0, -horizon], -horizon, np.inf)
        self._links(rows, start, end, join)
        self._limit(rows, join)
        low, high = np.zeros(self.num_columns), np.ones(self.num_columns)
        low[start] = self._data(rows, start, there)
        self._finish(rows, end, there)
        cost = np.zeros(self.num_columns)
        cost[0], cost[there] = 1.0, _EARLY_WEIGHT / max(n, 1)
        integer = np.zeros(self.num_columns, dtype=np.bool_)
        integer[1 + 3 * n :] = True
        matrix, row_low, row_high = rows.stacked(self.num_columns)
        return ArrayModel("milp-sharing", matrix, row_low, row_high, low, high, cost, integer)

    def _data(self, rows: RowBlocks, start: I64, there: I64) -> F64:
        """What a row sends has come; returns the least starts, which what lies before the window leaves."""
        timed, unit_s = self.timed, self.timed.finish_s
        place = {row: k for k, row in enumerate(self.rows.tolist())}
        least = np.zeros(len(self.rows))
        for k, row in enumerate(self.rows.tolist()):
            parent = int(timed.parent[row])
            if parent in place:
                rows.one([start[k], there[place[parent]]], [1.0, -1.0], 0.0, np.inf)
            elif parent >= 0:
                least[k] = timed.arrival_s[timed.message[parent]] / unit_s
        for a, b, gap_s in timed.neighbours:
            if a < self.begin <= b < self.end:
                mine = np.flatnonzero(timed.message[self.rows] == b)
                least[mine] = np.maximum(least[mine], (timed.begin_s[a] + gap_s) / unit_s)
        return np.minimum(least, 1.0)

    def _links(self, rows: RowBlocks, start: I64, end: I64, join: dict[tuple[int, int], int]) -> None:
        """A message takes a link when the one before it is through, if both are not one."""
        timed, case, unit_s = self.timed, self.timed.case, self.timed.finish_s
        last: dict[int, tuple[int, int]] = {}
        for place, h in enumerate(timed.sends.hop[self.rows].tolist()):
            for entry in range(int(case.routes.ptr[h]), int(case.routes.ptr[h + 1])):
                link = int(case.routes.data[entry])
                if case.lanes[link] > 1:
                    continue
                if link in last:
                    before, there = last[link]
                    if (before, place) not in join:
                        gap = float(case.before_s[there] - case.before_s[entry]) / unit_s
                        rows.one([start[place], end[before]], [1.0, -1.0], gap, np.inf)
                last[link] = place, entry

    def _limit(self, rows: RowBlocks, join: dict[tuple[int, int], int]) -> None:
        """No more rows in a message than the sketch lets share one."""
        sketch = self.timed.case.sketch
        most = None if sketch is None else sketch.message_chunks
        if most is None:
            return
        after = dict(self.joins)
        for first in after:
            run: list[int] = []
            at = first
            while at in after and len(run) < most:
                run.append(join[at, after[at]])
                at = after[at]
            if len(run) == most:
                rows.one(run, np.ones(most), -np.inf, most - 1.0)

    def _finish(self, rows: RowBlocks, end: I64, there: I64) -> None:
        """The finish is behind all arrivals, and behind what follows the window as it is."""
        timed, unit_s = self.timed, self.timed.finish_s
        outside = {
            int(message): float(timed.ahead_s[message]) / unit_s for message in range(self.end, len(timed.first) - 1)
        }
        place = {row: k for k, row in enumerate(self.rows.tolist())}
        ahead = np.zeros(len(self.rows))
        for row, parent in enumerate(timed.parent.tolist()):
            if parent in place and int(timed.message[row]) in outside:
                k = place[parent]
                ahead[k] = max(ahead[k], outside[int(timed.message[row])])
        every = np.arange(len(self.rows))
        finish = np.zeros(len(self.rows), dtype=np.int64)
        rows.add(*_difference(every, finish, there), ahead, np.full(len(every), np.inf))
        last = {int(m): k for k, m in enumerate(timed.message[self.rows].tolist())}
        for a, b, gap_s in timed.neighbours:
            if self.begin <= a < self.end <= b:
                behind = float(timed.ahead_s[b] + gap_s - timed.busy_s[a]) / unit_s
                rows.one([0, end[last[a]]], [1.0, -1.0], behind, np.inf)

    def start(self) -> F64:
        """The columns as they are."""
        values = np.full(self.num_columns, np.nan)
        message = self.timed.message[self.rows]
        values[1 + 3 * len(self.rows) :] = [float(message[a] == message[b]) for a, b in self.joins]
        return values

    def solved(self, budget: Budget) -> Sends | None:
        """The sends with other messages inside the window, ordered by their new starts; None where none were found."""
        if not self.joins:
            return None
        values = budget.solve(self.model(), self.start())
        if values is None:
            return None
        timed, n = self.timed, len(self.rows)
        starts, joined = values[1 : 1 + n], values[1 + 3 * n :] > 0.5
        number = np.arange(n)
        for (a, b), together in zip(self.joins, joined.tolist(), strict=True):
            if together:
                number[b] = number[a]
        first = starts[number]
        order = np.lexsort((np.arange(n), number, first))
        low, high = int(timed.first[self.begin]), int(timed.first[self.end])
        message = np.cumsum(np.append(True, number[order][1:] != number[order][:-1])) if n else number
        base = int(timed.message[low - 1]) + 1 if low else 0
        after = timed.message[high:] - (timed.message[high] if high < len(timed.message) else 0)
        middle = message - 1 + base
        count = int(middle[-1]) + 1 if n else base
        return Sends(
            np.concatenate([timed.sends.chunk[:low], timed.sends.chunk[self.rows[order]], timed.sends.chunk[high:]]),
            np.concatenate([timed.sends.hop[:low], timed.sends.hop[self.rows[order]], timed.sends.hop[high:]]),
            np.concatenate([timed.message[:low], middle, after + count]),
        )


def _difference(number: I64, plus: I64, minus: I64) -> tuple[I64, I64, F64]:
    """Entries of rows `plus - minus`."""
    ones = np.ones(len(number))
    return np.concatenate([number, number]), np.concatenate([plus, minus]), np.concatenate([ones, -ones])
