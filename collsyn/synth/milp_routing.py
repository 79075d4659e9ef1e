"""Stage one: along which hops every chunk travels, by an integer program in which links only bear work.

Source: TACCL (NSDI 2023), section 5.1; docs/milp.md says what differs.
"""

import numpy as np

from collsyn.errors import SolverFailed
from collsyn.model.arrays import F64
from collsyn.solver import ArrayModel
from collsyn.synth.milp_budget import Budget
from collsyn.synth.milp_case import Case
from collsyn.synth.milp_grow import Trees, in_depth_order, link_entries, relaxed_finish_s
from collsyn.synth.milp_rows import RowBlocks

# What all bytes moved together weigh beside the finish, and what a pair of ranks does that a sketch speaks of.
_WORK_WEIGHT, _PEER_WEIGHT = 1e-2, 1e-3


def trees_of(case: Case, known: Trees, budget: Budget, nodes: int) -> Trees:
    """Trees of the least relaxed finish that was found: no chunk is early, no link is done, before it can be.

    Of the chunks that stand for their orbits; `known` are trees to start from.
    """
    if not len(known):
        return known
    program = Program(case, relaxed_finish_s(case, known))
    values = budget.solve(program.model(), program.start(known), nodes)
    return known if values is None else program.trees(values)


class Program:
    """Columns: the finish, then one a choice (chunk, hop), then arrivals of chunks at ranks, then depths and peers.

    Times are in units of a known finish, which bounds them. An arrival lies between the least time from a holder and
    that finish less the least time on to a rank that wants the chunk; so a row of a choice that is not taken is only as
    loose as it has to be (a tight big-M).
    """

    def __init__(self, case: Case, known_s: float) -> None:
        self.case, self.unit_s = case, known_s
        chunks, table = case.moving, case.table
        first = case.away_s[chunks] / known_s
        last = 1.0 + 1e-9 - case.ahead_s[chunks] / known_s
        cost = case.seconds[chunks] / known_s
        with np.errstate(invalid="ignore"):
            useful = case.allowed[chunks] & (first[:, table.src] + cost <= last[:, table.dst])
        self.row, self.hop = np.nonzero(useful)
        self.first, self.last, self.cost = first, last, cost
        self.at = np.full(first.shape, -1, dtype=np.int64)
        reached = np.zeros(first.shape, dtype=np.bool_)
        reached[self.row, table.dst[self.hop]] = True
        begin = 1 + len(self.row)
        self.at[reached] = begin + np.arange(int(reached.sum()))
        self.num_columns = begin + int(reached.sum())
        self.choice = {(int(k), int(h)): 1 + i for i, (k, h) in enumerate(zip(self.row, self.hop, strict=True))}
        sketch = case.sketch
        self.depths = sketch is not None and sketch.extra_hops is not None and sketch.extra_hops > 0
        self.depth_of = np.where(self.at >= 0, self.at + (self.num_columns - begin), -1)
        if self.depths:
            self.num_columns += int(reached.sum())
        self.peers = self._peers()
        self.num_columns += len(self.peers)

    def _peers(self) -> dict[int, tuple[int, str]]:
        """Column and wish of every hop through a switch that the sketch speaks of."""
        sketch, topology = self.case.sketch, self.case.problem.topology
        if sketch is None or not sketch.peers:
            return {}
        wishes = {topology.num_ranks + i: sketch.peers.get(name) for i, name in enumerate(topology.switch_names)}
        found: dict[int, tuple[int, str]] = {}
        for hop in np.unique(self.hop).tolist():
            passed = (wishes.get(int(topology.dst[link])) for link in self.case.table.routes[hop].tolist())
            wish = next((wish for wish in passed if wish is not None), None)
            if wish is not None:
                found[hop] = (self.num_columns + len(found), wish)
        return found

    def model(self) -> ArrayModel:
        """The program in arrays."""
        rows = RowBlocks()
        self._arrive(rows)
        self._cause(rows)
        self._time(rows)
        self._load(rows)
        self._wish(rows)
        low, high = np.zeros(self.num_columns), np.ones(self.num_columns)
        reached = self.at >= 0
        low[self.at[reached]], high[self.at[reached]] = self.first[reached], self.last[reached]
        high[0] = 1.0 + 1e-9
        if self.depths:
            assert self.case.sketch is not None and self.case.sketch.extra_hops is not None
            most = self.case.fewest_hops[self.case.moving] + self.case.sketch.extra_hops
            high[self.depth_of[reached]] = most[reached]
        cost = np.zeros(self.num_columns)
        cost[0] = 1.0
        work = self.case.work_s[self.case.moving[self.row], self.hop]
        cost[1 : 1 + len(self.row)] = _WORK_WEIGHT * work / max(float(work.sum()), 1e-300)
        for column, wish in self.peers.values():
            cost[column] = _PEER_WEIGHT / len(self.peers) * (1 if wish == "few" else -1)
        integer = np.zeros(self.num_columns, dtype=np.bool_)
        integer[1 : 1 + len(self.row)] = True
        matrix, row_low, row_high = rows.stacked(self.num_columns)
        return ArrayModel("milp-routing", matrix, row_low, row_high, low, high, cost, integer)

    def _arrive(self, rows: RowBlocks) -> None:
        """Who wants a chunk gets it once, nobody gets it twice."""
        dst = self.case.table.dst[self.hop]
        target = self.row * self.case.table.num_ranks + dst
        known, number = np.unique(target, return_inverse=True)
        wanted = self.case.wanted[self.case.moving].reshape(-1)[known]
        rows.add(
            number, 1 + np.arange(len(self.row)), np.ones(len(self.row)), wanted.astype(float), np.ones(len(known))
        )

    def _cause(self, rows: RowBlocks) -> None:
        """A chunk leaves only where it has come."""
        case, src = self.case, self.case.table.src[self.hop]
        relayed = ~case.holds[case.moving[self.row], src] & ~case.wanted[case.moving[self.row], src]
        for i in np.flatnonzero(relayed).tolist():
            into = np.flatnonzero((self.row == self.row[i]) & (case.table.dst[self.hop] == src[i]))
            columns = np.concatenate([[1 + i], 1 + into])
            rows.one(columns, np.concatenate([[1.0], -np.ones(len(into))]), -np.inf, 0.0)

    def _time(self, rows: RowBlocks) -> None:
        """A chunk arrives when the hop that brings it is done; the finish is behind all arrivals."""
        case, number = self.case, np.arange(len(self.row))
        src, dst = case.table.src[self.hop], case.table.dst[self.hop]
        held = case.holds[case.moving[self.row], src]
        to, cost = self.at[self.row, dst], self.cost[self.row, self.hop]
        latest = np.where(held, 0.0, self.last[self.row, src])
        slack = np.maximum(latest + cost - self.first[self.row, dst], 0.0)
        away = ~held
        rows.add(
            np.concatenate([number, number[away], number]),
            np.concatenate([to, self.at[self.row, src][away], 1 + number]),
            np.concatenate([np.ones(len(number)), -np.ones(int(away.sum())), -slack]),
            cost - slack,
            np.full(len(number), np.inf),
        )
        ends = self.at[self.at >= 0]
        every = np.arange(len(ends))
        ahead = (case.ahead_s[case.moving] / self.unit_s)[self.at >= 0]
        rows.add(
            np.concatenate([every, every]),
            np.concatenate([ends, np.zeros(len(ends), dtype=np.int64)]),
            np.concatenate([-np.ones(len(ends)), np.ones(len(ends))]),
            np.where(np.isfinite(ahead), ahead, 0.0),
            np.full(len(ends), np.inf),
        )
        if self.depths:
            most = float(case.table.num_ranks)
            rows.add(
                np.concatenate([number, number[away], number]),
                np.concatenate([self.depth_of[self.row, dst], self.depth_of[self.row, src][away], 1 + number]),
                np.concatenate([np.ones(len(number)), -np.ones(int(away.sum())), -np.full(len(number), most)]),
                np.full(len(number), 1.0 - most),
                np.full(len(number), np.inf),
            )

    def _load(self, rows: RowBlocks) -> None:
        """The finish is behind the work of every link, with what has to be before and behind all of it."""
        case = self.case
        choice, link, share = link_entries(case, self.hop)
        chunk = case.moving[self.row[choice]]
        load = case.work_s[chunk, self.hop[choice]] * share / self.unit_s
        around = self.first[self.row[choice], case.table.src[self.hop[choice]]]
        around = around + case.ahead_s[chunk, case.table.dst[self.hop[choice]]] / self.unit_s
        around += (case.table.alpha_s - case.table.overhead_s)[self.hop[choice]] / self.unit_s
        known, number = np.unique(link, return_inverse=True)
        least = np.full(len(known), np.inf)
        np.minimum.at(least, number, around)
        every = np.arange(len(known))
        rows.add(
            np.concatenate([number, every]),
            np.concatenate([1 + choice, np.zeros(len(known), dtype=np.int64)]),
            np.concatenate([-load, np.ones(len(known))]),
            np.where(np.isfinite(least), np.maximum(least, 0.0), 0.0),
            np.full(len(known), np.inf),
        )

    def _wish(self, rows: RowBlocks) -> None:
        """A pair that is used counts where few are wished, a pair that is not does not count where many are."""
        for hop, (column, wish) in self.peers.items():
            users = 1 + np.flatnonzero(self.hop == hop)
            if wish == "few":
                for user in users.tolist():
                    rows.one(np.array([column, user]), np.array([1.0, -1.0]), 0.0, np.inf)
            else:
                rows.one(np.append(users, column), np.append(np.ones(len(users)), -1.0), 0.0, np.inf)

    def start(self, trees: Trees) -> F64 | None:
        """The columns of some trees; None where they take what the program leaves out."""
        values = np.full(self.num_columns, np.nan)
        values[1 : 1 + len(self.row)] = 0.0
        place = {chunk: k for k, chunk in enumerate(self.case.moving.tolist())}
        for chunk, hop in zip(trees.chunk.tolist(), trees.hop.tolist(), strict=True):
            column = self.choice.get((place[chunk], hop))
            if column is None:
                return None
            values[column] = 1.0
        return values

    def trees(self, values: F64) -> Trees:
        """The trees that a solution takes, less what leads nowhere."""
        taken = values[1 : 1 + len(self.row)] > 0.5
        rows = list(zip(self.case.moving[self.row[taken]].tolist(), self.hop[taken].tolist(), strict=True))
        found = in_depth_order(self.case, rows)
        useful = np.zeros(len(found), dtype=np.bool_)
        ends = self.case.table.dst[found.hop]
        for row in reversed(range(len(found))):
            if useful[row] or self.case.wanted[found.chunk[row], ends[row]]:
                useful[row] = True
                if found.parent[row] >= 0:
                    useful[found.parent[row]] = True
        kept = np.flatnonzero(useful)
        got = {(int(c), int(e)) for c, e in zip(found.chunk[kept], ends[kept], strict=True)}
        missing = [
            (chunk, rank)
            for chunk in self.case.moving.tolist()
            for rank in np.flatnonzero(self.case.wanted[chunk]).tolist()
            if (chunk, rank) not in got
        ]
        if missing:
            raise SolverFailed(
                f"milp: chunk {missing[0][0]} does not reach rank {missing[0][1]} in the solver's answer"
            )
        return in_depth_order(self.case, [(int(found.chunk[i]), int(found.hop[i])) for i in kept.tolist()])
