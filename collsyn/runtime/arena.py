"""Shared memory between the ranks of one machine: anonymous files (memfd) that peers map through /proc.

Nothing has a name in a file system, so nothing is left behind however a rank ends, and the size of /dev/shm does not
matter. A rank has one control block for its whole life, and a segment for each of its prepared plans.
"""

import ctypes
import mmap
import os
import select
from pathlib import Path

import numpy as np
import numpy.typing as npt

from collsyn.errors import DeviceError

LINE = 64
PAGE = mmap.PAGESIZE
_MADV_POPULATE_WRITE = 23
_FAILED = ctypes.c_void_p(-1).value

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

# Control block: the doorbell and the abort word stand where native/executor.c has them.
_ABORTED = 64
_CLOSED = 128
_TEXT = 192
_TEXT_BYTES = 832
BARRIER_FLAGS = 1024
CONTROL_BYTES = 4096


class _Mapping:
    """Memory of a file that is mapped until no array looks into it any more.

    Python's own mmap keeps a descriptor for every mapping, of which there can be thousands.
    """

    def __init__(self, fd: int, size: int) -> None:
        # Modules may be gone when the last array goes.
        self._unmap = _LIBC.munmap
        address = _LIBC.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        if address == _FAILED:
            raise DeviceError(f"cannot map {size} bytes of shared memory: {os.strerror(ctypes.get_errno())}")
        self.address, self.size = int(address), size
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (size,), "data": (self.address, False)}

    def populate(self) -> None:
        # Kernels before 5.14 do not know the advice.
        _LIBC.madvise(self.address, self.size, _MADV_POPULATE_WRITE)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._unmap(self.address, self.size)


class Segment:
    """Shared memory as bytes; it stays mapped as long as an array looks into it."""

    def __init__(self, fd: int, size: int) -> None:
        self._mapping = _Mapping(fd, size)
        self.size = size
        self._is_populated = False
        self.bytes: npt.NDArray[np.uint8] = np.asarray(self._mapping)
        self.address = self._mapping.address

    def populate(self) -> None:
        """Take page faults now rather than in the first call."""
        if not self._is_populated:
            self._is_populated = True
            self._mapping.populate()

    def words(self, offset: int, count: int = 1) -> npt.NDArray[np.uint64]:
        """64-bit words from a byte offset on."""
        return self.bytes[offset : offset + 8 * count].view(np.uint64)


class Elsewhere:
    """Stands for a segment of a rank in another box: offsets into it are what is known of its addresses."""

    address = 0

    def populate(self) -> None:
        """Its owner does."""


def _free_bytes() -> int | None:
    """Memory of this machine that can be had without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


class OwnSegment(Segment):
    """Shared memory of this rank, which peers can map until `seal`; raises DeviceError where memory is short."""

    def __init__(self, size: int) -> None:
        size = max(-(-size // PAGE) * PAGE, PAGE)
        free = _free_bytes()
        if free is not None and size > free:
            # The kernel would rather end processes than refuse the pages.
            raise DeviceError(f"cannot allocate {size} bytes of shared memory: {free} bytes are free")
        try:
            self.fd = os.memfd_create("collsyn", os.MFD_CLOEXEC)
        except OSError as error:
            raise DeviceError(f"cannot create shared memory: {error.strerror}") from None
        try:
            # Takes the pages now: later, missing memory would be a bus error.
            os.posix_fallocate(self.fd, 0, size)
        except OSError as error:
            self.seal()
            raise DeviceError(f"cannot allocate {size} bytes of shared memory: {error.strerror}") from None
        super().__init__(self.fd, size)

    def seal(self) -> None:
        """Close the descriptor: whoever mapped the memory keeps it, nobody else can."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


def attach(pid: int, fd: int, size: int) -> Segment:
    """Map a peer's open segment of `size` bytes; raises DeviceError where it cannot be reached."""
    try:
        own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise DeviceError(
            f"cannot reach the memory of process {pid} ({error.strerror}); ranks must run as one user in one container"
        ) from None
    try:
        # A segment has a page even where a plan needs nothing of its owner.
        return Segment(own, max(size, PAGE))
    finally:
        os.close(own)


def machine_name() -> str:
    """Equal for two processes exactly if they can reach each other's memory by process number."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError as error:
        raise DeviceError(f"/proc is needed to share memory: {error.filename}: {error.strerror}") from None


class Control:
    """One rank's control block: its doorbell, and how it or its job ended."""

    def __init__(self, segment: Segment, pid: int) -> None:
        self.segment = segment
        self.pid = pid
        self._aborted = segment.words(_ABORTED)
        self._closed = segment.words(_CLOSED)
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            # No such call before Linux 5.3, or the process is gone already.
            self._pidfd = -1

    @property
    def address(self) -> int:
        """Where the block begins, which is where the doorbell is."""
        return self.segment.address

    @property
    def aborted_by(self) -> int | None:
        """Rank that ended the job with an error, as this block's owner was told."""
        return int(self._aborted[0]) - 1 if self._aborted[0] else None

    def abort(self, rank: int) -> None:
        """Tell the owner that `rank` failed; the first such word stays."""
        if not self._aborted[0]:
            self._aborted[0] = rank + 1

    @property
    def text(self) -> str:
        """What went wrong, if it went wrong at the owner."""
        raw = self.segment.bytes[_TEXT : _TEXT + _TEXT_BYTES].tobytes()
        return raw.split(b"\0")[0].decode(errors="replace")

    @text.setter
    def text(self, message: str) -> None:
        raw = message.encode()[: _TEXT_BYTES - 1]
        self.segment.bytes[_TEXT : _TEXT + len(raw)] = np.frombuffer(raw, dtype=np.uint8)

    def close(self) -> None:
        """Mark the owner's end as intended."""
        self._closed[0] = 1

    def is_lost(self) -> bool:
        """Whether the owner's process ended without `close`."""
        return not self._closed[0] and self._has_ended() and not self._closed[0]

    def _has_ended(self) -> bool:
        if self._pidfd >= 0:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            return bool(poll.poll(0))
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        return state in "ZX"

    def forget(self) -> None:
        """Close the handle on the owner's process."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
        self._pidfd = -1
