"""Ranks as forked children: no MPI needed, and no interpreter to start."""

import contextlib
import os
import signal
import socket
import sys
import warnings
from collections.abc import Mapping
from typing import Any, NoReturn

from collsyn.errors import DeviceError
from collsyn.runtime.bootstrap import SocketBootstrap, socket_pairs
from collsyn.runtime.worker import end_with_parent, serve


class ForkedJob:
    """Ranks that are children of this process and end with it."""

    def __init__(self, target: str, arguments: Mapping[str, Any], num_ranks: int, limit_s: float) -> None:
        self.fds: list[int] = []
        self._pids: list[int | None] = []
        self._ended: dict[int, str] = {}
        ends, pipes = _connections(num_ranks)
        # What is buffered here must not be printed once more by every child.
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self.fds = [read for read, _ in pipes]
        try:
            for rank in range(num_ranks):
                pid = _fork()
                if pid == 0:
                    _be_rank(rank, target, arguments, ends, pipes, limit_s, parent)
                self._pids.append(pid)
        except DeviceError:
            self.kill()
            self.close()
            raise
        finally:
            for _, write in pipes:
                os.close(write)
            for sockets in ends:
                for end in sockets:
                    end.close()

    def how_ended(self, rank: int | None) -> str:
        """How a child ended."""
        ways = sorted(self._ended.items()) if rank is None else [(rank, self._ended.get(rank, "was lost"))]
        return "; ".join(way if rank is not None else f"rank {other} {way}" for other, way in ways)

    def note(self, rank: int, message: Mapping[str, Any]) -> None:
        """Forked ranks tell nothing that this process does not know."""

    def is_running(self) -> bool:
        """Whether a child is left."""
        for rank, pid in enumerate(self._pids):
            if pid is not None:
                self._reap(rank, pid, os.WNOHANG)
        return any(pid is not None for pid in self._pids)

    def kill(self) -> None:
        """End all children by force."""
        for pid in self._pids:
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for rank, pid in enumerate(self._pids):
            if pid is not None:
                self._reap(rank, pid, 0)

    def close(self) -> None:
        """Close the pipes."""
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def _reap(self, rank: int, pid: int, options: int) -> None:
        try:
            ended, status = os.waitpid(pid, options)
        except ChildProcessError:
            ended, status = pid, 0
        if not ended:
            return
        self._pids[rank] = None
        self._ended[rank] = exit_text(os.waitstatus_to_exitcode(status))


def exit_text(code: int) -> str:
    """How a process ended, by its exit code or (negative) signal."""
    if code >= 0:
        return f"ended with exit code {code}" if code else "ended without a result"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _connections(num_ranks: int) -> tuple[list[list[socket.socket]], list[tuple[int, int]]]:
    """Sockets between ranks, and for each rank a pipe to this process, which reads it without blocking."""
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(num_ranks):
            pipes.append(os.pipe())
            os.set_blocking(pipes[-1][0], False)
        return socket_pairs(num_ranks), pipes
    except OSError as error:
        for fd in (fd for pipe in pipes for fd in pipe):
            os.close(fd)
        raise DeviceError(f"cannot start {num_ranks} ranks: {error.strerror} (see ulimit -n)") from None


def _fork() -> int:
    try:
        with warnings.catch_warnings():
            # Threads of libraries that idle here do not matter to a child that leaves by _exit.
            warnings.simplefilter("ignore", DeprecationWarning)
            return os.fork()
    except OSError as error:
        raise DeviceError(f"cannot start a process: {error.strerror}") from None


def _be_rank(
    rank: int,
    target: str,
    arguments: Mapping[str, Any],
    ends: list[list[socket.socket]],
    pipes: list[tuple[int, int]],
    limit_s: float,
    parent: int,
) -> NoReturn:
    """The child: never returns, and runs none of the parent's exit handlers."""
    code = DeviceError.exit_code
    try:
        end_with_parent(parent)
        # Ctrl-C reaches the whole group; the parent decides what becomes of it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for other, (read, write) in enumerate(pipes):
            os.close(read)
            if other != rank:
                os.close(write)
                for end in ends[other]:
                    end.close()
        # Standard output is the parent's alone: what it prints there may be one JSON document.
        os.dup2(2, 1)
        bootstrap = SocketBootstrap(rank, len(pipes), ends[rank], limit_s)
        code, _ = serve(target, arguments, bootstrap, pipes[rank][1])
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
