"""How much the integer programs may cost together."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from collsyn.model.arrays import F64
from collsyn.solver import ArrayModel, Limits, solve

# Branches a program, and the gap that is enough: what is not proven then is seldom found later.
NODES, GAP = 15, 1e-4


@dataclass
class Budget:
    """How much may be spent: programs of `rows` rows together, which is the same every time, until a deadline."""

    deadline_s: float | None
    rows: float
    seed: int = 0
    stopped: bool = False
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left, or the search was interrupted."""
        left_s = self._left_s()
        return self.stopped or self.rows <= 0 or (left_s is not None and left_s <= 0)

    def solve(self, model: ArrayModel, start: F64 | None, nodes: int = NODES) -> F64 | None:
        """The columns of the best solution within the limits; None where there is none."""
        self.rows -= len(model.row_low)
        left_s = self._left_s()
        limits = Limits(None if left_s is None else max(left_s, 1e-2), nodes, GAP, self.seed)
        answer = solve(model, limits, start=start)
        self.stopped |= answer.interrupted
        return answer.values

    @contextmanager
    def part(self, rows: float) -> Iterator["Budget"]:
        """So many rows of it, with the same random numbers."""
        part = replace(self, rows=min(rows, self.rows))
        part.random = self.random
        yield part
        self.rows -= min(rows, self.rows) - part.rows
        self.stopped |= part.stopped

    def _left_s(self) -> float | None:
        return None if self.deadline_s is None else self.deadline_s - time.monotonic()
