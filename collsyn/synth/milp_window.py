"""Orders and ways that list scheduling does not find: an exact program for the messages of a window in time."""

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from collsyn.model.arrays import F64
from collsyn.solver import ArrayModel
from collsyn.synth.milp_budget import Budget
from collsyn.synth.milp_order import Sends
from collsyn.synth.milp_rows import RowBlocks
from collsyn.synth.milp_timing import Timed, brought

# What early arrivals weigh beside the finish.
_EARLY_WEIGHT = 1e-3
# Ways that a message may choose from: the present one, and those from ranks that have its chunk soonest.
MAX_WAYS = 3


@dataclass(frozen=True, eq=False)
class Window:
    """The messages `begin` .. `end - 1` in any order; those of one chunk may come from other ranks that have it.

    Columns: the finish; start and arrival of every message; one a way (hop) of every message; one a pair of messages
    that some link may bear both of: whether the first goes first. Times are in units of the present finish. What lies
    before the window is over when it is; what lies behind follows each message and each link as it does now.
    """

    timed: Timed
    begin: int
    end: int

    @cached_property
    def ways(self) -> list[list[int]]:
        """Hops that may bring what every message brings, the present one first; only that where hops are limited."""
        timed, case = self.timed, self.timed.case
        limited = case.sketch is not None and case.sketch.extra_hops is not None
        found = []
        for message in range(self.begin, self.end):
            rows = range(int(timed.first[message]), int(timed.first[message + 1]))
            hop = int(timed.hop[message])
            ways = [hop]
            if len(rows) == 1 and not limited:
                chunk = int(timed.sends.chunk[rows[0]])
                others = case.table.into[int(case.table.dst[hop])].tolist()
                able = [way for way in others if way != hop and case.allowed[chunk, way]]
                known = [(self._known_s(chunk, int(case.table.src[way]), message), way) for way in able]
                ways += [way for since_s, way in sorted(known) if since_s < np.inf][: MAX_WAYS - 1]
            found.append(ways)
        return found

    def _known_s(self, chunk: int, rank: int, message: int) -> float:
        """Since when a rank has a chunk: from the start, or by another message up to the window's end (else: never)."""
        if self.timed.case.holds[chunk, rank]:
            return 0.0
        row = self._row(chunk, rank)
        known = row is not None and int(self.timed.message[row]) < self.end and self.timed.message[row] != message
        return float(self.timed.arrival_s[self.timed.message[row]]) if known else np.inf

    def _row(self, chunk: int, rank: int) -> int | None:
        """The row that brings a chunk to a rank."""
        return self._brings.get(self.timed.case.places(np.array([chunk]), np.array([rank]))[0])

    @cached_property
    def _brings(self) -> dict[int, int]:
        return brought(self.timed.case, self.timed.sends)

    @cached_property
    def _way_columns(self) -> list[list[int]]:
        first = 1 + 2 * (self.end - self.begin)
        found = []
        for ways in self.ways:
            found.append(list(range(first, first + len(ways))) if len(ways) > 1 else [-1])
            first += len(ways) if len(ways) > 1 else 0
        return found

    @cached_property
    def _pairs(self) -> list[tuple[int, int]]:
        """Messages (counted from the window's begin) that may meet on a link and whose order is not given."""
        links = [
            {link for way in ways for link in self.timed.case.routes[way].tolist() if self.timed.case.lanes[link] == 1}
            for ways in self.ways
        ]
        return [
            (a, b) for a, b in combinations(range(len(self.ways)), 2) if links[a] & links[b] and not self._settled(a, b)
        ]

    def _settled(self, a: int, b: int) -> bool:
        """Whether one of two messages waits for the other whatever the ways."""
        return self._waits(a, b) or self._waits(b, a)

    def _waits(self, a: int, b: int) -> bool:
        timed = self.timed
        if len(self.ways[b]) > 1:
            return False
        rows = range(int(timed.first[self.begin + b]), int(timed.first[self.begin + b + 1]))
        for row in rows:
            parent = int(timed.parent[row])
            while parent >= 0 and self.begin <= int(timed.message[parent]) < self.end:
                message = int(timed.message[parent]) - self.begin
                if message == a:
                    return True
                if len(self.ways[message]) > 1:
                    break
                parent = int(timed.parent[parent])
        return False

    @cached_property
    def num_columns(self) -> int:
        """Columns in all."""
        ways = sum(len(columns) for columns in self._way_columns if columns[0] >= 0)
        return 1 + 2 * len(self.ways) + ways + len(self._pairs)

    def model(self) -> ArrayModel:
        """The program in arrays."""
        rows, n = RowBlocks(), len(self.ways)
        low, high = np.zeros(self.num_columns), np.ones(self.num_columns)
        self._ways_taken(rows)
        self._orders(rows)
        low[1 : 1 + n] = self._horizon[0]
        self._before(rows)
        self._behind(rows)
        cost = np.zeros(self.num_columns)
        cost[0], cost[1 + n : 1 + 2 * n] = 1.0, _EARLY_WEIGHT / max(n, 1)
        integer = np.zeros(self.num_columns, dtype=np.bool_)
        integer[1 + 2 * n :] = True
        matrix, row_low, row_high = rows.stacked(self.num_columns)
        return ArrayModel("milp-window", matrix, row_low, row_high, low, high, cost, integer)

    @cached_property
    def _horizon(self) -> tuple[F64, F64]:
        """Least and latest starts of all messages: no earlier than the window, no later than the finish leaves."""
        timed, unit_s = self.timed, self.timed.finish_s
        n = len(self.ways)
        free = float(timed.begin_s[self.begin]) / unit_s if self.begin else 0.0
        stays = (timed.case.table.alpha_s[timed.hop] + timed.transfer_s)[self.begin : self.end] / unit_s
        return np.full(n, free), 1.0 - stays

    def _cost(self, message: int, way: int) -> tuple[float, float]:
        """Time that a message is on its way, and that it occupies links."""
        timed, table = self.timed, self.timed.case.table
        rows = slice(int(timed.first[self.begin + message]), int(timed.first[self.begin + message + 1]))
        transfer = float(timed.case.chunk_bytes[timed.sends.chunk[rows]].sum() * table.beta_s_per_byte[way])
        unit_s = timed.finish_s
        return (float(table.alpha_s[way]) + transfer) / unit_s, (float(table.overhead_s[way]) + transfer) / unit_s

    def _ways_taken(self, rows: RowBlocks) -> None:
        """Each message takes one way; it starts once its chunks are there, and arrives when the way is done."""
        timed, case, n = self.timed, self.timed.case, len(self.ways)
        for m, ways in enumerate(self.ways):
            columns = self._way_columns[m]
            if columns[0] >= 0:
                rows.one(columns, np.ones(len(columns)), 1.0, 1.0)
            first, last = int(timed.first[self.begin + m]), int(timed.first[self.begin + m + 1])
            for way, column in zip(ways, columns, strict=True):
                stays = self._cost(m, way)[0]
                self._if(rows, [1 + n + m, 1 + m], [1.0, -1.0], stays, [column])
                for row in range(first, last):
                    source = int(case.table.src[way])
                    chunk = int(timed.sends.chunk[row])
                    if case.holds[chunk, source]:
                        continue
                    parent = self._row(chunk, source)
                    assert parent is not None
                    message = int(timed.message[parent])
                    if message >= self.begin:
                        self._if(rows, [1 + m, 1 + n + message - self.begin], [1.0, -1.0], 0.0, [column])
                    else:
                        self._if(rows, [1 + m], [1.0], float(timed.arrival_s[message]) / timed.finish_s, [column])

    def _if(self, rows: RowBlocks, columns: list[int], values: list[float], low: float, chosen: list[int]) -> None:
        """A row that holds where all `chosen` columns are 1 (-1: always); no row of times is ever short of more than 1
        and the time on its right."""
        given = [column for column in chosen if column >= 0]
        slack = 1.0 + low - (float(self._horizon[0][0]) if len(columns) > 1 else 0.0)
        rows.one(columns + given, values + [-slack] * len(given), low - slack * len(given), np.inf)

    def _orders(self, rows: RowBlocks) -> None:
        """On a link that both may take, one of two messages is through before the other comes."""
        n = len(self.ways)
        column = {pair: self.num_columns - len(self._pairs) + i for i, pair in enumerate(self._pairs)}
        for a, b in combinations(range(n), 2):
            order = column.get((a, b))
            settled = 0 if order is not None else 1 if self._waits(a, b) else -1 if self._waits(b, a) else None
            if settled is None:
                continue
            for way, mine in zip(self.ways[a], self._way_columns[a], strict=True):
                for other, theirs in zip(self.ways[b], self._way_columns[b], strict=True):
                    gaps = self._gaps(a, way, b, other)
                    if gaps is None:
                        continue
                    chosen = [c for c in (mine, theirs) if c >= 0]
                    if settled >= 0:
                        self._ordered(rows, 1 + a, 1 + b, gaps[0], chosen, order, True)
                    if settled <= 0:
                        self._ordered(rows, 1 + b, 1 + a, gaps[1], chosen, order, False)

    def _ordered(
        self, rows: RowBlocks, a: int, b: int, gap: float, chosen: list[int], order: int | None, first: bool
    ) -> None:
        """Start b is `gap` behind start a, where the ways are chosen and `order` is 1 (or, unless `first`, 0)."""
        slack = 1.0 + gap - float(self._horizon[0][0])
        columns, values, low = [b, a, *chosen], [1.0, -1.0, *[-slack] * len(chosen)], gap - slack * len(chosen)
        if order is not None:
            columns.append(order)
            values.append(-slack if first else slack)
            low -= slack if first else 0.0
        rows.one(columns, values, low, np.inf)

    def _gaps(self, a: int, way: int, b: int, other: int) -> tuple[float, float] | None:
        """Least time between the starts of two messages over these ways, for both orders; None if they never meet."""
        case, unit_s = self.timed.case, self.timed.finish_s
        ab = ba = -np.inf
        mine = {link: at for at, link in self._entries(way)}
        for entry, link in self._entries(other):
            if link in mine:
                shift = float(case.before_s[mine[link]] - case.before_s[entry]) / unit_s
                ab = max(ab, self._cost(a, way)[1] + shift)
                ba = max(ba, self._cost(b, other)[1] - shift)
        return None if ab == -np.inf else (ab, ba)

    def _entries(self, way: int) -> list[tuple[int, int]]:
        routes, lanes = self.timed.case.routes, self.timed.case.lanes
        entries = range(int(routes.ptr[way]), int(routes.ptr[way + 1]))
        return [(entry, int(routes.data[entry])) for entry in entries if lanes[routes.data[entry]] == 1]

    def _before(self, rows: RowBlocks) -> None:
        """Links are free when what lies before the window is through."""
        timed, case, unit_s = self.timed, self.timed.case, self.timed.finish_s
        free: dict[int, float] = {}
        for message in range(self.begin):
            for entry, link in self._entries(int(timed.hop[message])):
                until = float(timed.begin_s[message] + timed.busy_s[message] + case.before_s[entry]) / unit_s
                free[link] = max(free.get(link, 0.0), until)
        for m, ways in enumerate(self.ways):
            for way, column in zip(ways, self._way_columns[m], strict=True):
                at = max(
                    (free.get(link, 0.0) - case.before_s[e] / unit_s for e, link in self._entries(way)), default=0.0
                )
                if at > self._horizon[0][m]:
                    self._if(rows, [1 + m], [1.0], float(at), [column])

    def _behind(self, rows: RowBlocks) -> None:
        """The finish is behind all arrivals, and behind what follows them and their links."""
        timed, case, unit_s, n = self.timed, self.timed.case, self.timed.finish_s, len(self.ways)
        ahead = np.zeros(n)
        following: dict[int, tuple[int, int]] = {}
        for message in range(len(timed.hop) - 1, self.end - 1, -1):
            for entry, link in self._entries(int(timed.hop[message])):
                following[link] = message, entry
        for row, parent in enumerate(timed.parent.tolist()):
            if parent >= 0 and int(timed.message[row]) >= self.end:
                message = int(timed.message[parent]) - self.begin
                if 0 <= message < n:
                    ahead[message] = max(ahead[message], timed.ahead_s[timed.message[row]] / unit_s)
        every = np.arange(n)
        rows.add(
            np.concatenate([every, every]),
            np.concatenate([np.zeros(n, dtype=np.int64), 1 + n + every]),
            np.concatenate([np.ones(n), -np.ones(n)]),
            ahead,
            np.full(n, np.inf),
        )
        for m, ways in enumerate(self.ways):
            for way, column in zip(ways, self._way_columns[m], strict=True):
                for entry, link in self._entries(way):
                    if link in following:
                        message, there = following[link]
                        behind = float(timed.ahead_s[message] + case.before_s[entry] - case.before_s[there]) / unit_s
                        self._if(rows, [0, 1 + m], [1.0, -1.0], behind + self._cost(m, way)[1], [column])

    def start(self) -> F64:
        """The columns as they are."""
        values = np.full(self.num_columns, np.nan)
        for columns in self._way_columns:
            if columns[0] >= 0:
                values[columns] = [1.0, *[0.0] * (len(columns) - 1)]
        values[self.num_columns - len(self._pairs) :] = 1.0
        return values

    def solved(self, budget: Budget, nodes: int) -> Sends | None:
        """The sends in the order, and by the ways, of a solution; None where none was found."""
        if self.num_columns == 1 + 2 * len(self.ways):
            return None
        values = budget.solve(self.model(), self.start(), nodes)
        if values is None:
            return None
        timed, n = self.timed, len(self.ways)
        hop = timed.sends.hop.copy()
        for m, (ways, columns) in enumerate(zip(self.ways, self._way_columns, strict=True)):
            if columns[0] >= 0:
                way = ways[int(np.argmax(values[columns]))]
                hop[int(timed.first[self.begin + m]) : int(timed.first[self.begin + m + 1])] = way
        place = np.arange(len(timed.hop))
        order = np.lexsort((np.arange(n), values[1 : 1 + n]))
        place[self.begin : self.end] = self.begin + order
        rows = np.concatenate([np.arange(timed.first[m], timed.first[m + 1]) for m in place.tolist()])
        message = np.repeat(np.arange(len(place)), np.diff(timed.first)[place])
        return Sends.of(timed.case, timed.sends.chunk[rows], hop[rows], message)
