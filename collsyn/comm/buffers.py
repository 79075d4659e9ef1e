"""Users' buffers as NumPy arrays on their own memory, and what their elements are called."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from collsyn.errors import InputError
from collsyn.model.dtypes import DTYPES
from collsyn.runtime.host import PreparedPlan
from collsyn.runtime.native_loader import native_library

Array = npt.NDArray[Any]

_CPU = 1
# Longer arrays are written past the caches: an ordinary store fetches the line that it overwrites.
_PAST_CACHES = 1 << 21
_CARRIERS = {1: "uint8", 2: "float16", 4: "int32", 8: "int64"}


@runtime_checkable
class ArrayMemory(Protocol):
    """A buffer by NumPy's own protocol."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Where the memory is and what it holds."""


@runtime_checkable
class DlpackMemory(Protocol):
    """A buffer by the protocol of DLPack, as tensors of most libraries are."""

    def __dlpack__(self) -> object:
        """A capsule with the memory."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Kind and number of the device that holds the memory."""


Buffer = Array | ArrayMemory | DlpackMemory


def as_array(buffer: object, name: str, writable: bool = False) -> Array:
    """A view of a buffer without a copy; raises InputError where there is none, or none to write to."""
    try:
        array = _view(buffer)
    except (TypeError, ValueError, RuntimeError, BufferError, AttributeError) as error:
        raise InputError(f"{name}: cannot be taken as an array ({' '.join(str(error).split())})") from None
    if array is None:
        raise InputError(
            f"{name}: is a {type(buffer).__name__}; expected an array in the memory of this machine's CPUs"
        )
    if array.dtype.hasobject:
        raise InputError(f"{name}: holds Python objects; expected numbers")
    if not array.dtype.isnative:
        raise InputError(f"{name}: has bytes in foreign order ({array.dtype.str}); expected the machine's own")
    if writable and not array.flags.writeable:
        raise InputError(f"{name}: is read-only; results go there")
    return array


def _view(buffer: object) -> Array | None:
    if isinstance(buffer, np.ndarray):
        return buffer
    if isinstance(buffer, ArrayMemory):
        return np.asarray(buffer)
    if isinstance(buffer, DlpackMemory) and int(buffer.__dlpack_device__()[0]) == _CPU:
        return np.from_dlpack(buffer)  # type: ignore[arg-type]
    return None


def reduced_name(dtype: np.dtype[Any], given: str | None) -> str:
    """Name of elements that are reduced; `given` tells bfloat16 from the uint16 that stores it. Raises InputError."""
    name = dtype.name if given is None else given
    if name not in DTYPES:
        raise InputError(f"dtype: {name} cannot be reduced; expected one of {', '.join(DTYPES)}")
    if DTYPES[name].storage != dtype and dtype.name != name:
        raise InputError(f"dtype: {name} is stored as {DTYPES[name].storage.name}; the array has {dtype.name}")
    return name


def carrier(dtype: np.dtype[Any]) -> tuple[str, int]:
    """Elements that carry bytes which nobody reduces: their name, and how many of them make up one of `dtype`."""
    width = dtype.itemsize
    if width in _CARRIERS:
        return _CARRIERS[width], 1
    return ("int64", width // 8) if width % 8 == 0 else ("uint8", width)


def fill(staged: Array, array: Array) -> None:
    """Copy an array into registered memory of as many bytes."""
    _copy(staged.view(array.dtype).reshape(array.shape), array)


def drain(array: Array, staged: Array) -> None:
    """Copy registered memory of as many bytes into an array."""
    _copy(array, staged.view(array.dtype).reshape(array.shape))


def run_lent(plan: PreparedPlan, send: Array, recv: Array, rank: int, size: int, timeout_s: float) -> None:
    """Run a plan that works on arrays where they are; copies are made only of what has gaps or overlaps oddly."""
    source, to = np.ascontiguousarray(send), recv if recv.flags.c_contiguous else np.empty_like(recv, order="C")
    if np.may_share_memory(source, to) and not _is_in_place(source, to, rank, size):
        source = source.copy()
    plan.run(timeout_s, (source.ctypes.data, to.ctypes.data))
    if to is not recv:
        recv[...] = to


def _is_in_place(source: Array, to: Array, rank: int, size: int) -> bool:
    """Whether one array lies in the other where plans that run in place have it."""
    inner, outer = sorted((source, to), key=lambda array: array.nbytes)
    count = outer.size
    first = 0 if inner.nbytes == outer.nbytes else rank * count // size
    return bool(inner.ctypes.data == outer.ctypes.data + first * outer.itemsize)


def _copy(to: Array, source: Array) -> None:
    if to.nbytes >= _PAST_CACHES and to.flags.c_contiguous and source.flags.c_contiguous:
        library = native_library()
        if library is not None:
            library.collsyn_copy(to.ctypes.data, source.ctypes.data, to.nbytes, 1)
            return
    np.copyto(to, source)
