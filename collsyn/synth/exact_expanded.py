"""Time-expanded programs: what crosses which hop when, as columns and rows of linear and integer programs."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from collsyn.model.arrays import F64, I64, Bools
from collsyn.solver import ArrayModel, Limits, Status, solve
from collsyn.synth.exact_steps import StepCase

FREE = -np.inf


class Block(NamedTuple):
    """Rows `low <= values x columns <= high` as entries (row from 0, column, value)."""

    row: I64
    column: I64
    value: F64
    size: int
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Program(ABC):
    """Which chunk crosses which hop when, over `horizon` periods, with `copies` chunks a flow.

    Columns: `extra` of the kind of program, then one for every usable (chunk, period, hop), then one for every (chunk,
    period, rank) where the chunk can have arrived by the period's begin. `travel[h]` periods lie between a chunk's
    start on a hop and its arrival.
    """

    case: StepCase
    horizon: int
    copies: int

    @property
    @abstractmethod
    def extra(self) -> int:
        """Columns before those of the chunks."""

    @property
    @abstractmethod
    def travel(self) -> I64:
        """Periods that a chunk takes over every hop."""

    @abstractmethod
    def causes(self) -> Block:
        """What crosses a hop has arrived at its start before."""

    @abstractmethod
    def loads(self) -> Block:
        """What links can bear."""

    @cached_property
    def usable(self) -> Bools:
        """Whether a chunk may start over a hop in a period: shape [chunks, periods, hops]."""
        return np.repeat(self.case.usable(self.horizon, self.travel), self.copies, axis=0)

    @cached_property
    def starts(self) -> tuple[I64, I64, I64]:
        """Chunk, period and hop of every usable start, in the order of its columns."""
        chunk, period, hop = np.nonzero(self.usable)
        return chunk, period, hop

    @property
    def num_starts(self) -> int:
        """Columns of starts."""
        return len(self.starts[0])

    @cached_property
    def crosses(self) -> I64:
        """Number of the column of every usable (chunk, period, hop), else -1."""
        return _numbered(self.usable, self.extra)

    @cached_property
    def source(self) -> I64:
        """The rank where each chunk begins."""
        return np.repeat(self.case.source[self.case.representatives], self.copies)

    @cached_property
    def arrived(self) -> I64:
        """Number of the column of every (chunk, period 0 .. horizon, rank) where the chunk can be, else -1."""
        away = self.case.away(self.travel)[self.source][:, None, :]
        period = np.arange(self.horizon + 1)[None, :, None]
        return _numbered((away > 0) & (away <= period), self.extra + self.num_starts)

    @cached_property
    def num_columns(self) -> int:
        """Columns in all."""
        return self.extra + self.num_starts + int((self.arrived >= 0).sum())

    @cached_property
    def rows(self) -> tuple[Any, F64, F64]:
        """The matrix in compressed columns, and the bounds of its rows."""
        from scipy.sparse import coo_array

        blocks = [self._arrivals(), self.causes(), self.loads()]
        first = np.cumsum([0, *(block.size for block in blocks)])
        row = np.concatenate([block.row + begin for block, begin in zip(blocks, first[:-1], strict=True)])
        column = np.concatenate([block.column for block in blocks])
        value = np.concatenate([block.value for block in blocks])
        matrix: Any = coo_array((value, (row, column)), shape=(int(first[-1]), self.num_columns)).tocsc()
        low, high = (np.concatenate([np.full(b.size, getattr(b, side)) for b in blocks]) for side in ("low", "high"))
        return matrix, low, high

    def _arrivals(self) -> Block:
        """What has arrived is what had arrived before and what comes."""
        chunk, period, rank = np.nonzero(self.arrived >= 0)
        row = np.arange(len(chunk))
        before = np.where(period > 0, self.arrived[chunk, period - 1, rank], -1)
        k, t, h = self.starts
        row_of = np.full(self.arrived.shape, -1, dtype=np.int64)
        row_of[chunk, period, rank] = row
        brings = row_of[k, t + self.travel[h], self.case.table.dst[h]]
        return Block(
            np.concatenate([row, row[before >= 0], brings]),
            np.concatenate([self.arrived[chunk, period, rank], before[before >= 0], self.crosses[k, t, h]]),
            np.concatenate([np.ones(len(row)), -np.ones(int((before >= 0).sum()) + len(k))]),
            len(row),
            0.0,
            0.0,
        )

    @cached_property
    def limits(self) -> tuple[F64, F64]:
        """Bounds of the columns; extra ones are free above 0."""
        low, high = np.zeros(self.num_columns), np.ones(self.num_columns)
        high[: self.extra] = np.inf
        wanted = np.repeat(self.case.wanted, self.copies, axis=0)
        low[self.arrived[:, -1, :][wanted]] = 1.0
        return low, high

    def model(self, name: str, cost: F64, whole: int) -> ArrayModel:
        """The program to be minimized; the first `whole` columns are whole numbers (0: linear)."""
        matrix, row_low, row_high = self.rows
        low, high = self.limits
        return ArrayModel(name, matrix, row_low, row_high, low, high, cost, np.arange(self.num_columns) < whole)

    def link_entries(self) -> tuple[I64, I64, I64]:
        """Start (place in `starts`), link, and how many of its images load the link that stands for its orbit.

        A row a link. Of the group as many elements move any link of an orbit there.
        """
        case = self.case
        hop = self.starts[2]
        lengths = case.table.routes.lengths()[hop]
        start = np.repeat(np.arange(len(hop)), lengths)
        place = np.arange(len(start)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        link = case.table.routes.data[case.table.routes.ptr[hop][start] + place].astype(np.int64)
        return start, link, (len(case.group) // case.group.orbit_size)[case.group.orbit[link]]


def found(model: ArrayModel, limits: Limits) -> F64 | bool | None:
    """The columns of a solution; False: there is none; None: not decided within the limits."""
    answer = solve(model, limits)
    if answer.interrupted:
        # One solution more is no result; who listens has what there was before.
        raise KeyboardInterrupt
    return False if answer.status is Status.INFEASIBLE else answer.values


def decided(program: Program, taken: F64) -> list[tuple[int, int, int, int]]:
    """The sends (flow, number of chunk, hop, period) of a solution's columns."""
    k, t, h = program.starts
    used = taken[program.extra : program.extra + program.num_starts] > 0.5
    flow = program.case.representatives[k[used] // program.copies]
    rows = zip(flow.tolist(), (k[used] % program.copies).tolist(), h[used].tolist(), t[used].tolist(), strict=True)
    return list(rows)


def _numbered(kept: Bools, first: int) -> I64:
    numbers = np.full(kept.shape, -1, dtype=np.int64)
    numbers[kept] = first + np.arange(int(kept.sum()))
    return numbers
