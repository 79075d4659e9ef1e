"""The two executors of a rank's program: compiled C, and NumPy with the same results where no compiler is."""

import ctypes
import platform
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from collsyn.errors import DeviceError
from collsyn.model.arrays import I64
from collsyn.model.dtypes import divide, dtype_of, reducer
from collsyn.runtime.arena import Control
from collsyn.runtime.native_loader import ABORTED, DONE, DTYPE_CODES, OP_CODES, STALLED, Job, native_library
from collsyn.runtime.program import MOVE, NOP, REDUCE, SIGNAL, STREAM, WAIT, Program

# Polls before a rank sleeps: a handful where ranks outnumber cores, for then the awaited rank may need this very core;
# otherwise about as long as going to sleep and waking up take.
_POLLS_SHARED_CORES, _POLLS_OWN_CORE = 64, 4000
_PAUSES_S = (2e-5, 1e-3)
_Step = tuple[int, list[npt.NDArray[Any]], int]
# System call numbers of futex, for processors that may reorder stores.
_FUTEX_WAKE = 1
_FUTEX = {"aarch64": 98, "riscv64": 98, "loongarch64": 98, "ppc64le": 221, "s390x": 238}


class Executor(Protocol):
    """Runs a program; `next[k]` is the record that channel k stands at."""

    next: I64

    def run(self, base: int, slice_s: float) -> int:
        """Go on with a call whose flags count from `base`: DONE, or ABORTED, or STALLED where no channel of the rank
        could go on for `slice_s` seconds (the caller then calls again)."""

    def divide(self, address: int, count: int, divisor: int) -> None:
        """Divide elements at an address in place, as an average needs at its end."""


def make_executor(program: Program, control: Control, dtype_name: str, op_name: str, is_crowded: bool) -> Executor:
    """The compiled executor where there is one, else that of NumPy; `is_crowded`: ranks outnumber cores."""
    library = native_library()
    if library is None:
        return NumpyExecutor(program, control, dtype_name, op_name)
    polls = _POLLS_SHARED_CORES if is_crowded else _POLLS_OWN_CORE
    return NativeExecutor(library, program, control, dtype_name, op_name, polls)


class NativeExecutor:
    """Runs a program in compiled code; the interpreter's lock is free meanwhile."""

    def __init__(
        self,
        library: ctypes.CDLL,
        program: Program,
        control: Control,
        dtype_name: str,
        op_name: str,
        polls: int,
    ) -> None:
        """`polls` of all waiting channels come before sleep."""
        self._library, self._keep = library, (program, control)
        self.next: I64 = np.zeros(len(program.end), dtype=np.int64)
        self._asked = np.zeros((2, len(program.end)), dtype=np.int64)
        route = program.route
        self._job = Job(
            instructions=program.records.ctypes.data,
            end=program.end.ctypes.data,
            next=self.next.ctypes.data,
            num_channels=len(program.end),
            own=control.address,
            polls=polls,
            dtype=DTYPE_CODES[dtype_name],
            op=OP_CODES[op_name],
            proxy=None if route is None else route.proxy.address,
            region=0 if route is None else route.region,
            generation=0 if route is None else route.generation,
            asked=self._asked[0].ctypes.data,
            answered=self._asked[1].ctypes.data,
        )
        self._pointer = ctypes.byref(self._job)

    def run(self, base: int, slice_s: float) -> int:
        return int(self._library.collsyn_run(self._pointer, base, int(slice_s * 1e9)))

    def divide(self, address: int, count: int, divisor: int) -> None:
        self._library.collsyn_divide(self._job.dtype, address, count, divisor)


class NumpyExecutor:
    """Runs a program with NumPy on the same memory; waits by polling with short sleeps, so it rings no doorbell."""

    def __init__(self, program: Program, control: Control, dtype_name: str, op_name: str) -> None:
        self._keep, self._control = program, control
        self.next: I64 = np.zeros(len(program.end), dtype=np.int64)
        self._end: list[int] = program.end.tolist()
        self._dtype = dtype_of(dtype_name)
        self._reduce = reducer(op_name, dtype_name)
        self._fence = _store_fence()
        self._steps = [self._step(*record.tolist()) for record in program.records]

    def _step(self, kind: int, dst: int, src: int, src2: int, count: int, value: int) -> _Step:
        if kind in (SIGNAL, WAIT):
            return kind, [_bytes_at(dst, 8).view(np.uint64)], value
        if count and kind in (MOVE, STREAM) and dst != src:
            return MOVE, [_bytes_at(dst, count), _bytes_at(src, count)], 0
        if count and kind == REDUCE:
            storage = self._dtype.storage
            return REDUCE, [_bytes_at(at, count * storage.itemsize).view(storage) for at in (dst, src, src2)], 0
        return NOP, [], 0

    def _advance(self, at: int, end: int, base: int) -> int:
        """Run a channel as far as it goes; the record it then stands at."""
        while at < end:
            kind, arrays, value = self._steps[at]
            if kind == MOVE:
                arrays[0][...] = arrays[1]
            elif kind == REDUCE:
                self._reduce(*arrays)
            elif kind == SIGNAL:
                self._fence()
                arrays[0][0] = base + value
            elif kind == WAIT and int(arrays[0][0]) < base + value:
                return at
            at += 1
        return at

    def run(self, base: int, slice_s: float) -> int:
        deadline, pause_s = time.monotonic() + slice_s, _PAUSES_S[0]
        while True:
            progressed, left = False, False
            for channel, end in enumerate(self._end):
                begin = int(self.next[channel])
                self.next[channel] = at = self._advance(begin, end, base)
                progressed |= at > begin
                left |= at < end
            if not left:
                return DONE
            if self._control.aborted_by is not None:
                return ABORTED
            if progressed:
                deadline, pause_s = time.monotonic() + slice_s, _PAUSES_S[0]
                continue
            if time.monotonic() >= deadline:
                return STALLED
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSES_S[1])

    def divide(self, address: int, count: int, divisor: int) -> None:
        divide(self._dtype.name, _bytes_at(address, count * self._dtype.num_bytes).view(self._dtype.storage), divisor)


def _bytes_at(address: int, count: int) -> npt.NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))


def _store_fence() -> Callable[[], object]:
    """What keeps data before the flag that announces it: nothing on x86, elsewhere a system call that is a barrier."""
    machine = platform.machine()
    if machine in ("x86_64", "i686", "i386"):
        return lambda: None
    if machine not in _FUTEX:
        raise DeviceError(f"no C compiler was found, and {machine} processors need one to run plans")
    libc, word = ctypes.CDLL(None), ctypes.c_uint32(0)
    return lambda: libc.syscall(_FUTEX[machine], ctypes.byref(word), _FUTEX_WAKE, 1, None, None, 0)
