"""What carries a rank's traffic to other boxes: the thread of native/proxy.h, from Python."""

import atexit
import ctypes
import threading
from typing import Any

import numpy as np

from collsyn.errors import DeviceError
from collsyn.runtime.arena import Control
from collsyn.runtime.boxes import Boxes
from collsyn.runtime.mpi_library import MpiLibrary, Post, address_of
from collsyn.runtime.native_loader import native_library

# As in native/proxy.h: bytes that go with a letter, of last words, and MPI polls before a nap.
BLOCK = 1 << 16
_WORDS = 832
_POLLS, _POLLS_CROWDED = 200, 2
# Data of that many bytes goes by itself, without copies: from here on they cost more than the second message.
DIRECT_FROM = 32 << 10
NEVER = 1 << 62
# A rank whose proxy was not heard for so long is lost; it says something every second, however busy its program is.
SILENCE_S = 20.0
_LEAVE_S, _ABORT_S = 5.0, 0.5
# What fails beside MPI, as in native/proxy.h.
_FAILURES = {-1: "memory is named that is not there", -2: "the GPU's driver did not copy"}


class _Setup(ctypes.Structure):
    """The `setup` of native/proxy.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("isend", "irecv", "test", "cancel", "copy", "copy_with")),
        *((name, ctypes.c_uint64) for name in ("byte", "comm")),
        *((name, ctypes.c_int64) for name in ("any_source", "tag", "rank", "size")),
        *((name, ctypes.c_void_p) for name in ("mpi_rank", "is_far", "own")),
        *((name, ctypes.c_int64) for name in ("direct_from", "polls", "beats_to", "beats_from")),
    )


class Proxy:
    """One rank's proxy in one context; it runs from the start to `close`.

    Programs name memory of far ranks by the number of a region, of which `offer` makes one here.
    """

    def __init__(
        self,
        rank: int,
        boxes: Boxes,
        control: Control,
        post: Post,
        number: int,
        is_crowded: bool,
        direct_from: int = DIRECT_FROM,
        library: MpiLibrary | None = None,
        device_calls: int = 0,
    ) -> None:
        """`number` is that of the context, equal on all of its ranks and different from their other ones'.

        Data of `direct_from` bytes and more goes straight from and to where it is, the rest is staged. Where memory is
        a GPU's, `device_calls` is the address of what native/device.h calls so, and must stay there.
        DeviceError where there is no compiler, or no MPI that threads may call.
        """
        native = native_library()
        if native is None:
            raise DeviceError("ranks in several boxes need a C compiler (cc, gcc or clang) and COLLSYN_NATIVE not 0")
        self._native, self._mpi, self._boxes, self.rank = native, library or MpiLibrary(), boxes, rank
        self.direct_from, self._is_closed, self._words, self._lock = direct_from, False, "", threading.Lock()
        near = boxes.near(rank)
        ranks = np.array(post.ranks, dtype=np.int64)
        far = np.array([other not in near for other in range(len(ranks))], dtype=np.uint8)
        self._keep = (ranks, far, control, post)
        self._beats_to, self._beats_from = boxes.neighbours(rank)
        isend, irecv, test, cancel = self._mpi.calls
        setup = _Setup(
            isend=isend,
            irecv=irecv,
            test=test,
            cancel=cancel,
            copy=address_of(native.collsyn_device_copy) if device_calls else 0,
            copy_with=device_calls,
            byte=self._mpi.byte,
            comm=self._mpi.comm(post.comm),
            any_source=self._mpi.any_source,
            tag=self._mpi.tag(post.comm, number),
            rank=rank,
            size=len(ranks),
            mpi_rank=ranks.ctypes.data,
            is_far=far.ctypes.data,
            own=control.address,
            direct_from=direct_from,
            polls=_POLLS_CROWDED if is_crowded else _POLLS,
            beats_to=self._beats_to,
            beats_from=self._beats_from,
        )
        self.address: int | None = native.collsyn_proxy_new(ctypes.byref(setup))
        if self.address is None:
            raise DeviceError("memory is short for the traffic between boxes")
        self._thread = threading.Thread(
            target=native.collsyn_proxy_run, args=(self.address,), name="collsyn-proxy", daemon=True
        )

    def start(self) -> None:
        """Begin; every rank of the context must have made its proxy before any rank sends."""
        self._thread.start()
        atexit.register(self.close)

    def offer(self, region: int, generation: int, address: int, size: int) -> None:
        """Let far ranks name this memory by the number of a region; letters for an older generation come too late."""
        with self._lock:
            if self.address is not None and not self._native.collsyn_proxy_region(
                self.address, region, generation, address, size
            ):
                raise DeviceError("memory is short for the traffic between boxes")

    def let_ask(self, region: int, lanes: int, num_lanes: int) -> None:
        """Carry what a kernel asks for in `lanes` (see native/device.h) until its region is withdrawn."""
        with self._lock:
            if self.address is not None:
                self._native.collsyn_proxy_lanes(self.address, region, lanes, num_lanes)

    def withdraw(self, region: int) -> None:
        """Let nobody name a region any more."""
        self.offer(region, 0, 0, 0)

    def abort(self, rank: int, text: str) -> None:
        """Tell all far ranks that `rank` failed."""
        words = text.encode()[: _WORDS - 1]
        with self._lock:
            if self.address is not None:
                self._native.collsyn_proxy_abort(self.address, rank, words + bytes(_WORDS - len(words)))

    @property
    def last_words(self) -> str:
        """What a far rank said that ended the job."""
        with self._lock:
            if self.address is not None:
                self._words = self._native.collsyn_proxy_words(self.address).decode(errors="replace")
            return self._words

    def problem(self) -> str | None:
        """Why nothing can be carried any more, or None."""
        state = self._state()
        if state is None:
            return None
        own, (failed, peer, silence_ns, _) = self._boxes.words(self.rank), state
        if failed:
            whom = f" with {self._boxes.words(peer)}" if peer >= 0 else ""
            why = self._mpi.error_text(failed) if failed > 0 else _FAILURES[failed]
            return f"{own} cannot exchange messages{whom}: {why}"
        if self._beats_from >= 0 and silence_ns > SILENCE_S * 1e9 and self._thread.is_alive():
            lost = self._boxes.words(self._beats_from)
            return f"{lost} was lost: {own} has heard nothing of it for {silence_ns / 1e9:.0f} s"
        return None

    def close(self, in_order: bool = True) -> None:
        """Leave when all far ranks do, or after some seconds (`in_order` False: after half a second)."""
        if self._is_closed or self.address is None:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        limit_s = _LEAVE_S if in_order else _ABORT_S
        self._native.collsyn_proxy_leave(self.address, int(limit_s * 1e9))
        if self._thread.is_alive():
            self._thread.join(limit_s + 2)
        state = self._state()
        self._words = self.last_words
        # Where MPI may still look at the memory, it stays.
        if not self._thread.is_alive() and state is not None and state[3]:
            with self._lock:
                address, self.address = self.address, None
            self._native.collsyn_proxy_free(address)

    def _state(self) -> list[int] | None:
        state = (ctypes.c_int64 * 4)()
        with self._lock:
            if self.address is None:
                return None
            self._native.collsyn_proxy_state(self.address, state)
        return list(state)


class FarControl:
    """What stands for the control block of a rank in another box."""

    address = 0
    aborted_by: Any = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.proxy: Proxy | None = None

    @property
    def text(self) -> str:
        """What the rank said went wrong."""
        return self.proxy.last_words if self.proxy is not None else ""

    def is_lost(self) -> bool:
        """Not known by itself: those in its box tell."""
        return False
