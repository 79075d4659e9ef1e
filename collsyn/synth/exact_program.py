"""Step programs: the fewest rounds for any number of chunks by a linear program, one instance by an integer program."""

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from collsyn.errors import SolverFailed
from collsyn.model.arrays import F64, I64
from collsyn.solver import Limits, Status, solve
from collsyn.synth.exact_expanded import FREE, Block, Program, decided, found
from collsyn.synth.exact_steps import StepCase

# Starts (chunks x steps x hops) that programs may have: linear ones, and integer ones.
MAX_CELLS, MAX_BINARIES = 60_000, 40_000
# Denominators in which duals are tried, small ones first.
_DENOMINATORS = (*range(1, 11), 12, 14, 15, 16, 18, 20, 24, 30, 36, 48, 60, 72, 84, 120, 360, 2520, 360360)
_MAX_RATIO_DENOMINATOR = 1000


@dataclass(frozen=True, eq=False)
class StepProgram(Program):
    """Periods are steps; the extra columns are the rounds of every step. All coefficients are whole.

    Proof that its linear program bounds the rounds a chunk of every schedule: take the average of the schedule's
    columns over all chunks of a flow and all symmetries, with the rounds divided by the number of chunks.
    """

    @property
    def extra(self) -> int:
        """The rounds of every step."""
        return self.horizon

    @property
    def travel(self) -> I64:
        """A step, over every hop."""
        return self.case.each_step

    def causes(self) -> Block:
        """What has crossed a hop by a step had arrived at its start before it."""
        k, s, h = self.starts
        begin = self.case.table.src[h]
        relayed = begin != self.source[k]
        k, s, h, begin = k[relayed], s[relayed], h[relayed], begin[relayed]
        rows, columns, values = [np.arange(len(k))], [self.arrived[k, s, begin]], [-np.ones(len(k))]
        for back in range(self.horizon):
            column = np.where(s >= back, self.crosses[k, s - back, h], -1)
            rows.append(np.flatnonzero(column >= 0))
            columns.append(column[column >= 0])
            values.append(np.ones(len(rows[-1])))
        return Block(np.concatenate(rows), np.concatenate(columns), np.concatenate(values), len(k), FREE, 0.0)

    def loads(self) -> Block:
        """Chunks over a link in a step fit into its rounds."""
        start, link, often = self.link_entries()
        orbit = self.case.group.orbit[link]
        _, stands = np.unique(self.case.group.orbit, return_index=True)
        lanes = [self.case.lanes[link] for link in stands.tolist()]
        scale = np.array([share.denominator for share in lanes], dtype=np.int64)
        room = np.array([share.numerator for share in lanes], dtype=np.int64)
        k, s, h = self.starts
        every = np.arange(len(stands) * self.horizon)
        return Block(
            np.concatenate([orbit * self.horizon + s[start], every]),
            np.concatenate([self.crosses[k, s, h][start], np.tile(np.arange(self.horizon), len(stands))]),
            np.concatenate([(often * scale[orbit]).astype(np.float64), -np.repeat(room, self.horizon).astype(float)]),
            len(every),
            FREE,
            0.0,
        )


def least_ratio(case: StepCase, steps: int) -> Fraction | None:
    """Rounds a chunk that no schedule of so many steps can do without, whatever the number of chunks.

    The dual of the linear program, rounded to fractions and evaluated in whole numbers, so that the bound is exact; it
    is mostly the optimum itself. None where the program is too large. Raises SolverFailed.
    """
    program = StepProgram(case, steps, 1)
    if not program.num_starts:
        return Fraction(0)
    if program.num_starts > MAX_CELLS:
        return None
    cost = np.zeros(program.num_columns)
    cost[:steps] = 1.0
    answer = solve(program.model("exact-rounds", cost, whole=0))
    if answer.status is not Status.OPTIMAL:
        raise SolverFailed(f"exact: the linear program of {steps} steps ended as {answer.status.value}")
    most = Fraction(answer.objective).limit_denominator(_MAX_RATIO_DENOMINATOR) + 1
    dual = answer.row_dual
    return max(proven_ratio(program, dual, denominator, most) for denominator in _DENOMINATORS)


def proven_ratio(program: StepProgram, dual: F64, denominator: int, most: Fraction) -> Fraction:
    """What any multipliers of the rows, rounded to a denominator, prove of the rounds a chunk; exact.

    All rows hold with 0 on the side that counts, so the rounds are at least the least value, within the bounds of the
    columns, of rounds - multipliers x rows. Rounds of a step count as at most `most`: either all steps keep to that, or
    there are more in all.
    """
    matrix, low, _ = program.rows
    price = np.round(dual * denominator).astype(np.int64)
    price[(low == FREE) & (price > 0)] = 0
    reduced = -np.asarray(matrix.astype(np.int64).T @ price, dtype=np.int64)
    reduced[: program.horizon] += denominator
    low_limit, high_limit = program.limits
    rounds, rest = reduced[: program.horizon], reduced[program.horizon :]
    begin, end = (limit[program.horizon :].astype(np.int64) for limit in (low_limit, high_limit))
    least = int(np.where(rest > 0, rest * begin, rest * end).sum())
    shortfall = int(np.minimum(rounds, 0).sum())
    return min(most, Fraction(least, denominator) + Fraction(shortfall, denominator) * most)


def solve_instance(
    case: StepCase, chunks: int, steps: int, rounds: int, time_limit_s: float | None, max_nodes: int
) -> list[tuple[int, int, int, int]] | bool | None:
    """Sends (flow, number of chunk, hop, step) of an instance; False: there are none; None: not decided."""
    program = StepProgram(case, steps, chunks)
    if program.num_starts > MAX_BINARIES:
        return None
    model = program.model("exact-instance", np.zeros(program.num_columns), steps + program.num_starts)
    low, high = model.low.copy(), model.high.copy()
    low[:steps], high[:steps] = 1.0, rounds - steps + 1
    model = model.with_row((np.arange(program.num_columns) < steps).astype(np.float64), rounds, rounds)
    columns = found(replace(model, low=low, high=high), Limits(time_limit_s, max_nodes))
    return decided(program, columns) if isinstance(columns, np.ndarray) else columns
