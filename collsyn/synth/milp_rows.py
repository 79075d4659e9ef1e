"""Rows of programs, collected block by block."""

from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64, I64


class RowBlocks:
    """Rows `low <= values x columns <= high`, added in blocks whose rows count from 0, stacked into one matrix."""

    def __init__(self) -> None:
        self._row: list[I64] = []
        self._column: list[I64] = []
        self._value: list[F64] = []
        self._low: list[F64] = []
        self._high: list[F64] = []
        self._size = 0

    def add(
        self, row: npt.ArrayLike, column: npt.ArrayLike, value: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike
    ) -> None:
        """As many rows as `low` and `high` have entries."""
        ends = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
        self._row.append(np.asarray(row, dtype=np.int64) + self._size)
        self._column.append(np.asarray(column, dtype=np.int64))
        self._value.append(np.asarray(value, dtype=np.float64))
        self._low.append(ends[0])
        self._high.append(ends[1])
        self._size += len(ends[0])

    def one(self, columns: npt.ArrayLike, values: npt.ArrayLike, low: float, high: float) -> None:
        """A single row."""
        self.add(np.zeros(len(np.asarray(columns)), dtype=np.int64), columns, values, [low], [high])

    def stacked(self, num_columns: int) -> tuple[Any, F64, F64]:
        """The matrix in compressed columns, and the bounds of its rows."""
        from scipy.sparse import coo_array

        row, column = np.concatenate(self._row), np.concatenate(self._column)
        matrix: Any = coo_array((np.concatenate(self._value), (row, column)), shape=(self._size, num_columns))
        return matrix.tocsc(), np.concatenate(self._low), np.concatenate(self._high)
