"""How ranks find each other before they share memory: rank, size, and exchanges of small messages with a time limit."""

import contextlib
import os
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from collsyn.errors import DeviceError
from collsyn.runtime.mpi_library import Post

DEFAULT_LIMIT_S = 60.0

# Variables that launchers set for each rank to the number of ranks they started, the most specific first.
_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


class PeerFailed(DeviceError):
    """Another rank failed and took this one along; the other one's error is the one to report."""


class Bootstrap(ABC):
    """One rank's view of the job: who it is, and `allgather` and `barrier` among all ranks.

    Every call ends within `limit_s` seconds or raises DeviceError. Whoever starts the rank calls `end` when its work is
    over, which tells those who registered with `at_end` (a host context, say) whether it failed. `post` is how ranks in
    other boxes are reached, where MPI is.
    """

    rank: int
    size: int
    local_rank: int

    def __init__(self, limit_s: float = DEFAULT_LIMIT_S) -> None:
        self.limit_s = limit_s
        self.post: Post | None = None
        self._at_end: list[Callable[[str | None], None]] = []

    @abstractmethod
    def allgather(self, data: bytes) -> list[bytes]:
        """The `data` of every rank, in rank order; every rank must call it."""

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self.allgather(b"")

    @abstractmethod
    def kill(self, code: int) -> None:
        """Let no other rank wait for this one any more: MPI ends all ranks at once with the exit code."""

    def at_end(self, callback: Callable[[str | None], None]) -> None:
        """Have `callback(error)` called at the end of the rank's work; error is None where all went well."""
        self._at_end.append(callback)

    def end(self, error: str | None) -> None:
        """Call what was registered, the last one first; each is called once."""
        while self._at_end:
            self._at_end.pop()(error)


class SocketBootstrap(Bootstrap):
    """Ranks of one machine joined by socket pairs that were made before they were forked; rank 0 is the hub."""

    def __init__(self, rank: int, size: int, ends: Sequence[socket.socket], limit_s: float = DEFAULT_LIMIT_S) -> None:
        """`ends`: rank 0 has one socket to each of ranks 1, 2, ...; every other rank its socket to rank 0."""
        super().__init__(limit_s)
        self.rank = self.local_rank = rank
        self.size = size
        self._ends = list(ends)

    def allgather(self, data: bytes) -> list[bytes]:
        deadline = time.monotonic() + self.limit_s
        if self.rank:
            self._send(0, data, deadline)
            return _unpacked(self._receive(0, deadline))
        parts = [data, *(self._receive(index, deadline) for index in range(len(self._ends)))]
        packed = _packed(parts)
        for index in range(len(self._ends)):
            self._send(index, packed, deadline)
        return parts

    def kill(self, code: int) -> None:
        for end in self._ends:
            end.close()

    def _peer(self, index: int) -> int:
        return index + 1 if self.rank == 0 else 0

    def _send(self, index: int, data: bytes, deadline: float) -> None:
        message = struct.pack("<Q", len(data)) + data
        with self._limit(index, deadline) as end:
            end.sendall(message)

    def _receive(self, index: int, deadline: float) -> bytes:
        (length,) = struct.unpack("<Q", self._exactly(index, 8, deadline))
        return self._exactly(index, length, deadline)

    def _exactly(self, index: int, length: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < length:
            with self._limit(index, deadline) as end:
                part = end.recv(length - len(data))
            if not part:
                raise PeerFailed(f"rank {self._peer(index)} ended while rank {self.rank} waited for it")
            data += part
        return bytes(data)

    @contextlib.contextmanager
    def _limit(self, index: int, deadline: float) -> Iterator[socket.socket]:
        end = self._ends[index]
        try:
            end.settimeout(max(deadline - time.monotonic(), 1e-3))
            yield end
        except TimeoutError:
            message = f"rank {self.rank} waited {self.limit_s:g} s for rank {self._peer(index)} to join an exchange"
            raise DeviceError(message) from None
        except OSError:
            raise PeerFailed(f"rank {self._peer(index)} ended while rank {self.rank} waited for it") from None


def socket_pairs(num_ranks: int) -> list[list[socket.socket]]:
    """For every rank the sockets its `SocketBootstrap` needs; a forked rank closes those of the others."""
    pairs = [socket.socketpair() for _ in range(num_ranks - 1)]
    return [[hub for hub, _ in pairs], *([leaf] for _, leaf in pairs)]


class MpiBootstrap(Bootstrap):
    """Ranks that an MPI launcher started (mpi4py); MPI carries these small messages only, never a collective's data."""

    def __init__(self, limit_s: float = DEFAULT_LIMIT_S, expected_size: int | None = None) -> None:
        """Initialise MPI; DeviceError where it cannot, or where its world is not as large as the launcher's."""
        super().__init__(limit_s)
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise DeviceError(f"mpi4py cannot be loaded: {' '.join(str(error).split())}") from None
        self._mpi = MPI
        self._check_world(MPI.COMM_WORLD.Get_size(), expected_size)
        self.comm = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.post = Post(MPI.COMM_WORLD.Dup(), tuple(range(self.size)))
        self.comm.Barrier()
        _unlink_shared_memory()
        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank = node.Get_rank()
        node.Free()

    def _check_world(self, size: int, expected: int | None) -> None:
        expected = expected or launched_size()
        if expected is not None and expected != size:
            library = self._mpi.Get_library_version().split(",")[0].split("\n")[0].strip()
            raise DeviceError(
                f"the launcher started {expected} ranks but MPI sees {size}: mpi4py loaded {library}, which does not "
                "belong to this mpirun or srun; take the mpirun of that MPI (--mpirun)"
            )

    def allgather(self, data: bytes) -> list[bytes]:
        lengths = bytearray(8 * self.size)
        self._finish(self.comm.Iallgather(struct.pack("<q", len(data)), lengths))
        counts = [length for (length,) in struct.iter_unpack("<q", lengths)]
        starts = [sum(counts[:rank]) for rank in range(self.size)]
        gathered = bytearray(max(sum(counts), 1))
        self._finish(self.comm.Iallgatherv(data, [gathered, counts, starts, self._mpi.BYTE]))
        return [bytes(gathered[start : start + count]) for start, count in zip(starts, counts, strict=True)]

    def barrier(self) -> None:
        self._finish(self.comm.Ibarrier())

    def kill(self, code: int) -> None:
        self._mpi.COMM_WORLD.Abort(code)

    def _finish(self, request: Any) -> None:
        """Wait with a limit, and yield the core meanwhile: ranks may outnumber cores."""
        deadline, pause_s = time.monotonic() + self.limit_s, 2e-5
        while not request.Test():
            if time.monotonic() > deadline:
                raise DeviceError(f"rank {self.rank} waited {self.limit_s:g} s for all ranks to join an exchange")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 2e-3)


def _unlink_shared_memory() -> None:
    """Take the names off MPICH's shared memory, which all ranks have mapped by now: killed ranks would leave it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        _, found, name = line.partition("/dev/shm/mpich_shm_")
        if found and not name.endswith("(deleted)"):
            # Another rank was quicker.
            with contextlib.suppress(OSError):
                os.unlink(found + name)


def launched_size() -> int | None:
    """Number of ranks that a launcher (mpirun, srun) says it started this process among; None outside of one."""
    for name in _SIZE_VARIABLES:
        # A batch script under Slurm has SLURM_NTASKS too, but is not a task of a step.
        if name == "SLURM_NTASKS" and not _is_slurm_task():
            continue
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return None


def inside_mpi() -> bool:
    """Whether this process was itself started as one of several ranks, as by `mpirun -n 4 collsyn ...`."""
    return (launched_size() or 1) > 1


def _is_slurm_task() -> bool:
    step = os.environ.get("SLURM_STEP_ID", os.environ.get("SLURM_STEPID", ""))
    # Steps from 2^32 - 16 on are Slurm's own (batch, interactive, ...).
    return step.isdecimal() and int(step) < 2**32 - 16


def _packed(parts: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def _unpacked(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        parts.append(data[at + 8 : at + 8 + length])
        at += 8 + length
    return parts
