"""Epoch programs: which chunk starts over which hop in which epoch, decided by an integer program.

Source: TE-CCL (SIGCOMM 2024), whose program this is, up to the symmetries of collective and topology.
"""

from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from collsyn.model.arrays import I64
from collsyn.solver import Limits, Status, solve
from collsyn.synth.exact_expanded import FREE, Block, Program, decided
from collsyn.synth.exact_grid import Grid
from collsyn.synth.exact_steps import StepCase


@dataclass(frozen=True, eq=False)
class EpochProgram(Program):
    """Periods are epochs; there are no extra columns. Solutions are the schedules of whole epochs."""

    grid: Grid

    @property
    def extra(self) -> int:
        """None."""
        return 0

    @property
    def travel(self) -> I64:
        """From start to arrival over every hop."""
        return self.grid.travel

    @property
    def is_complete(self) -> bool:
        """Whether every receiver is near enough to its source to be a column at all."""
        return bool((self.arrived[:, -1, :][np.repeat(self.case.wanted, self.copies, axis=0)] >= 0).all())

    def causes(self) -> Block:
        """What starts over a hop has arrived at its begin before.

        A row for all hops of the same first link, which bears one start of full rate an epoch: few rows, and tight.
        """
        k, t, h = self.starts
        table = self.case.table
        first = table.routes.data[table.routes.ptr[h]].astype(np.int64)
        alone = self.grid.share[table.routes.ptr[h]] < 1
        # Starts that leave room on the first link for others have a row each.
        way = np.where(alone, self.case.problem.topology.num_links + h, first)
        relayed = np.flatnonzero(table.src[h] != self.source[k])
        width = self.case.problem.topology.num_links + len(table)
        _, place, row = np.unique(
            ((k * self.horizon + t) * width + way)[relayed], return_index=True, return_inverse=True
        )
        stands = relayed[place]
        return Block(
            np.concatenate([row, np.arange(len(stands))]),
            np.concatenate([self.crosses[k, t, h][relayed], self.arrived[k[stands], t[stands], table.src[h[stands]]]]),
            np.concatenate([np.ones(len(relayed)), -np.ones(len(stands))]),
            len(stands),
            FREE,
            0.0,
        )

    def loads(self) -> Block:
        """Shares of a link that chunks take in an epoch add up to the link at most."""
        start, link, often = self.link_entries()
        k, t, h = (each[start] for each in self.starts)
        begin = t + self._of_entry(self.grid.shift)
        share = often * self._of_entry(self.grid.share)
        column = self.crosses[k, t, h]
        rows, columns, values = [], [], []
        for later in range(int(self.grid.busy.max(initial=0))):
            loads = (self.grid.busy[h] > later) & (begin + later < self.horizon)
            rows.append((self.case.group.orbit[link] * self.horizon + begin + later)[loads])
            columns.append(column[loads])
            values.append(share[loads])
        size = len(self.case.group.orbit_size) * self.horizon
        return Block(np.concatenate(rows), np.concatenate(columns), np.concatenate(values), size, FREE, 1.0)

    def _of_entry(self, values: Any) -> Any:
        """What the links of routes have, for the entries of `link_entries`."""
        routes = self.case.table.routes
        hop = self.starts[2]
        lengths = routes.lengths()[hop]
        inside = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return values[np.repeat(routes.ptr[hop], lengths) + inside]


def solve_epochs(
    case: StepCase, grid: Grid, chunks: int, epochs: int, limits: Limits, max_polls: int | None
) -> list[tuple[int, int, int, int]] | bool | None:
    """Sends (flow, number of chunk, hop, epoch) of a schedule; False: there is none; None: not decided.

    HiGHS asks now and then whether to go on; it does so up to `max_polls` times, which is the same work every time.
    """
    program = EpochProgram(case, epochs, chunks, grid)
    if not program.is_complete:
        return False
    polls = count()
    model = program.model("exact-epochs", np.zeros(program.num_columns), program.num_starts)
    answer = solve(model, limits, interrupted=lambda: max_polls is not None and next(polls) >= max_polls)
    if answer.values is not None:
        return decided(program, answer.values)
    return False if answer.status is Status.INFEASIBLE else None


def ruled_out(case: StepCase, grid: Grid, chunks: int, epochs: int, limits: Limits) -> bool:
    """Whether the linear program has no solution, which no schedule then has, symmetric or not.

    Averages of a schedule over the symmetries, and over the chunks of a flow, are a solution of it.
    """
    program = EpochProgram(case, epochs, chunks, grid)
    if not program.is_complete:
        return True
    model = program.model("exact-epochs-linear", np.zeros(program.num_columns), 0)
    return solve(model, limits).status is Status.INFEASIBLE
