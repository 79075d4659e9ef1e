"""Element types and reductions, defined to the bit so that every executor can be compared with every other.

float16 and bfloat16 are computed in float32 and rounded to nearest even after each operation; integers wrap; min and
max take the bits of one operand, `a < b or a is a NaN ? a : b` and its mirror image; avg is a sum followed by one
division by the number of contributors, in which integers truncate toward zero. Only the payload of a computed NaN is
left open.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.errors import InputError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class DType:
    """An element type: NumPy type that stores it (bfloat16: uint16), and the spacing of numbers at 1 (integers: 0)."""

    name: str
    storage: np.dtype[Any]
    epsilon: float

    @property
    def num_bytes(self) -> int:
        """Bytes of one element."""
        return self.storage.itemsize

    @property
    def is_float(self) -> bool:
        """Whether numbers of this type are rounded."""
        return self.epsilon > 0


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType("float32", np.dtype(np.float32), 2.0**-23),
        DType("float64", np.dtype(np.float64), 2.0**-52),
        DType("float16", np.dtype(np.float16), 2.0**-10),
        DType("bfloat16", np.dtype(np.uint16), 2.0**-7),
        DType("int32", np.dtype(np.int32), 0.0),
        DType("int64", np.dtype(np.int64), 0.0),
        DType("uint8", np.dtype(np.uint8), 0.0),
    )
}
OPS = ("sum", "prod", "min", "max", "avg")


def dtype_of(name: str) -> DType:
    """The element type of a name; raises InputError."""
    if name not in DTYPES:
        raise InputError(f"dtype {name!r} is not known; expected one of {', '.join(DTYPES)}")
    return DTYPES[name]


def checked_op(name: str) -> str:
    """The name of a reduction; raises InputError."""
    if name not in OPS:
        raise InputError(f"op {name!r} is not known; expected one of {', '.join(OPS)}")
    return name


def bfloat16_to_float32(bits: Array) -> npt.NDArray[np.float32]:
    """Exact float32 values of bfloat16 bit patterns (uint16)."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(values: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """Bit patterns (uint16) of float32 values rounded to nearest even; a NaN stays a (quiet) NaN."""
    array = np.ascontiguousarray(values, dtype=np.float32)
    bits = array.view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    return np.where(np.isnan(array), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def to_numbers(dtype_name: str, stored: Array) -> Array:
    """Stored elements as numbers to look at or compare: bfloat16 as float32, all others unchanged."""
    return bfloat16_to_float32(stored) if dtype_name == "bfloat16" else stored


def to_stored(dtype_name: str, numbers: npt.ArrayLike) -> Array:
    """Numbers as stored elements: rounded to nearest even in float types, wrapped in integer types."""
    dtype = dtype_of(dtype_name)
    if dtype_name == "bfloat16":
        return float32_to_bfloat16(numbers)
    return np.asarray(numbers).astype(dtype.storage)


def reducer(op_name: str, dtype_name: str) -> Callable[[Array, Array, Array], None]:
    """The function `f(dst, src, src2)` that stores src (op) src2 into dst; dst may be src or src2.

    All three are arrays of the type's storage of equal length. Raises InputError for an unknown name.
    """
    dtype, op = dtype_of(dtype_name), checked_op(op_name)
    if op in ("min", "max"):
        return _chooser(op == "min", dtype)
    function: np.ufunc = np.multiply if op == "prod" else np.add
    if dtype.name == "bfloat16":

        def in_float32(dst: Array, src: Array, src2: Array) -> None:
            with np.errstate(all="ignore"):
                dst[...] = float32_to_bfloat16(function(bfloat16_to_float32(src), bfloat16_to_float32(src2)))

        return in_float32
    if dtype.is_float:

        def rounding(dst: Array, src: Array, src2: Array) -> None:
            with np.errstate(all="ignore"):  # NumPy, too, computes float16 in float32 and rounds each result
                function(src, src2, out=dst)

        return rounding

    def wrapping(dst: Array, src: Array, src2: Array) -> None:
        function(src, src2, out=dst)

    return wrapping


def _chooser(least: bool, dtype: DType) -> Callable[[Array, Array, Array], None]:
    """min or max; of floats the first wins if it is strictly better or a NaN, so that signs of zeros are fixed."""
    if not dtype.is_float:
        function: np.ufunc = np.minimum if least else np.maximum

        def choose_integers(dst: Array, src: Array, src2: Array) -> None:
            function(src, src2, out=dst)

        return choose_integers

    def choose(dst: Array, src: Array, src2: Array) -> None:
        a, b = to_numbers(dtype.name, src), to_numbers(dtype.name, src2)
        with np.errstate(invalid="ignore"):
            first = ((a < b) if least else (a > b)) | np.isnan(a)
        dst[...] = np.where(first, src, src2)

    return choose


def reduce_into(op_name: str, dtype_name: str, dst: Array, src: Array, src2: Array) -> None:
    """dst = src (op) src2 on stored elements, see `reducer`; avg adds (`divide` finishes it)."""
    reducer(op_name, dtype_name)(dst, src, src2)


def divide(dtype_name: str, stored: Array, count: int) -> None:
    """Divide stored elements in place by a whole number, what ends an avg; integers truncate toward zero."""
    dtype = dtype_of(dtype_name)
    if dtype_name == "bfloat16":
        stored[...] = float32_to_bfloat16(bfloat16_to_float32(stored) / np.float32(count))
    elif dtype_name == "float16":
        stored[...] = (stored.astype(np.float32) / np.float32(count)).astype(np.float16)
    elif dtype.is_float:
        stored /= dtype.storage.type(count)
    else:
        wide = stored.astype(np.int64)
        quotient, rest = np.divmod(wide, count)
        stored[...] = quotient + ((rest != 0) & (wide < 0))


def random_data(dtype_name: str, op_name: str, length: int, rng: np.random.Generator, general: bool = False) -> Array:
    """Stored elements for tests of a reduction.

    By default results are the same in any order of operands (integers of any size wrap; floats are small whole numbers,
    for prod mostly 1 and -1 with some 2). With `general`, floats lie in [0.5, 1.5), where nothing cancels, so that
    `tolerance` bounds what another order can change.
    """
    dtype = dtype_of(dtype_name)
    if not dtype.is_float:
        info = np.iinfo(dtype.storage)
        return rng.integers(info.min, info.max, size=length, dtype=dtype.storage, endpoint=True)
    if general:
        return to_stored(dtype_name, rng.random(length) + 0.5)
    if op_name == "prod":
        return to_stored(dtype_name, np.array([1, -1, 1, -1, 1, -1, 1, 2], np.float32)[rng.integers(0, 8, size=length)])
    return to_stored(dtype_name, rng.integers(-4, 5, size=length).astype(np.float32))


def tolerance(dtype_name: str, op_name: str, num_contributors: int) -> float:
    """Largest relative difference between two orders of reducing `general` data (0: must be equal)."""
    dtype = dtype_of(dtype_name)
    if op_name in ("min", "max"):
        return 0.0
    # Each of the n - 1 operations errs by half an epsilon on either side, a division once more.
    return dtype.epsilon * (num_contributors + 1)


def first_difference(dtype_name: str, got: Array, want: Array, relative: float = 0.0) -> int | None:
    """Index of the first element that differs by more than the relative tolerance (NaN equals NaN), or None."""
    if len(got) != len(want):
        return min(len(got), len(want))
    a, b = to_numbers(dtype_name, got), to_numbers(dtype_name, want)
    same = a == b
    if dtype_of(dtype_name).is_float:
        same |= np.isnan(a) & np.isnan(b)
        if relative > 0:
            with np.errstate(all="ignore"):
                same |= np.abs(a.astype(np.float64) - b) <= relative * np.abs(b.astype(np.float64))
    wrong = np.flatnonzero(~same)
    return int(wrong[0]) if len(wrong) else None
