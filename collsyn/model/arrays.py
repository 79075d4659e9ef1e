"""Small array idioms shared by the columnar types: typed read-only columns and compressed rows."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def column(values: npt.ArrayLike, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    """A read-only, contiguous, one-dimensional array of the dtype (no copy where none is needed)."""
    array = np.ascontiguousarray(values, dtype=dtype).reshape(-1).view()
    array.flags.writeable = False
    return array


class Rows:
    """Rows of unequal length in two arrays: row i is `data[ptr[i]:ptr[i + 1]]`."""

    __slots__ = ("data", "ptr")

    def __init__(self, ptr: npt.ArrayLike, data: npt.ArrayLike) -> None:
        self.ptr: I64 = column(ptr, np.int64)  # type: ignore[assignment]
        self.data: I32 = column(data, np.int32)  # type: ignore[assignment]

    @classmethod
    def of(cls, rows: Iterable[Sequence[int] | npt.NDArray[np.integer]]) -> "Rows":
        """Rows from sequences of integers."""
        parts = [np.asarray(row, dtype=np.int32) for row in rows]
        ptr = np.zeros(len(parts) + 1, dtype=np.int64)
        np.cumsum([len(part) for part in parts], out=ptr[1:])
        return cls(ptr, np.concatenate(parts) if parts else np.empty(0, dtype=np.int32))

    @classmethod
    def grouped(cls, group: npt.NDArray[np.integer], num_groups: int) -> "Rows":
        """Row g lists the positions i with `group[i] == g`, in ascending order."""
        order = np.argsort(group, kind="stable")
        ptr = np.zeros(num_groups + 1, dtype=np.int64)
        np.cumsum(np.bincount(group, minlength=num_groups), out=ptr[1:])
        return cls(ptr, order)

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __getitem__(self, row: int) -> I32:
        return self.data[self.ptr[row] : self.ptr[row + 1]]

    def lengths(self) -> I64:
        """Number of entries of every row."""
        return np.diff(self.ptr)

    def tuples(self) -> list[tuple[int, ...]]:
        """All rows as tuples of Python integers."""
        data, ptr = self.data.tolist(), self.ptr.tolist()
        return [tuple(data[a:b]) for a, b in pairwise(ptr)]
