"""What is solved, within which limits, and what came of it."""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from collsyn.model.arrays import F64, Bools


@dataclass(frozen=True, eq=False)
class ArrayModel:
    """Minimize `cost` x columns with `row_low <= matrix x columns <= row_high` and `low <= columns <= high`.

    `matrix` is a SciPy array in compressed columns, shape [rows, columns]; infinite sides are free. `integer` says
    which columns are whole numbers (empty: none, a linear program). Tolerances are absolute, so callers choose units
    that bring the numbers near 1. `name` is what messages and files call it.
    """

    name: str
    matrix: Any
    row_low: F64
    row_high: F64
    low: F64
    high: F64
    cost: F64
    integer: Bools = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))

    def __post_init__(self) -> None:
        rows, columns = self.matrix.shape
        shapes = (rows,), (rows,), (columns,), (columns,), (columns,)
        given = self.row_low, self.row_high, self.low, self.high, self.cost
        if tuple(each.shape for each in given) != shapes or self.integer.shape not in ((0,), (columns,)):
            raise ValueError(f"{self.name}: the vectors do not fit the matrix of {rows} rows and {columns} columns")

    @property
    def is_mixed(self) -> bool:
        """Whether some columns have to be whole numbers."""
        return bool(self.integer.any())

    def with_row(self, values: F64, low: float, high: float) -> "ArrayModel":
        """The model with one more row `low <= values x columns <= high`, the last."""
        from scipy.sparse import csc_array, vstack

        matrix = vstack([self.matrix, csc_array(values[None, :])], format="csc")
        return replace(
            self, matrix=matrix, row_low=np.append(self.row_low, low), row_high=np.append(self.row_high, high)
        )


@dataclass(frozen=True)
class Limits:
    """When a run may stop: seconds, nodes of the search tree, and the gap (relative to the objective) that is enough.

    Without a time limit a run is the same every time, for the same seed. The solution of a linear program is a corner
    of what its rows leave, or (`inside`) one from the middle, which is found sooner where there are many columns.
    """

    time_limit_s: float | None = None
    max_nodes: int | None = None
    gap: float = 0.0
    seed: int = 0
    threads: int = 1
    inside: bool = False


NO_LIMITS = Limits()


class Status(Enum):
    """How a run ended."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    """Stopped, with a solution."""
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    UNDECIDED = "undecided"
    """Stopped, without a solution."""


@dataclass(frozen=True, eq=False)
class Answer:
    """How a run ended, with the best solution (`values` is None where there is none) and the bound on all others.

    Whole columns are exactly whole. `row_dual` has the multipliers of the rows, of linear programs that were solved to
    the end (else empty). `interrupted` says that the caller or Ctrl-C asked to stop: take the solution, and begin
    nothing new.
    """

    status: Status
    values: F64 | None = None
    objective: float = np.inf
    bound: float = -np.inf
    nodes: int = 0
    row_dual: F64 = field(default_factory=lambda: np.zeros(0))
    interrupted: bool = False

    @property
    def gap(self) -> float:
        """What lies between objective and bound, relative to the objective; infinite where one is missing."""
        if self.values is None or self.objective == self.bound:
            return np.inf if self.values is None else 0.0
        return abs(self.objective - self.bound) / abs(self.objective) if self.objective else np.inf
