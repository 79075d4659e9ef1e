"""Starts ranks on this machine, by fork or by mpirun, and collects what a function returns on each of them."""

import json
import os
import select
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from collsyn.errors import CollsynError, DeviceError, InputError
from collsyn.runtime.bootstrap import MpiBootstrap, PeerFailed, inside_mpi
from collsyn.runtime.forked import ForkedJob
from collsyn.runtime.mpi_job import MpiJob
from collsyn.runtime.mpirun import find_mpirun, given_mpirun, has_mpi
from collsyn.runtime.native_loader import native_library
from collsyn.runtime.worker import describe_error, messages_in, resolve

DEFAULT_RANKS = 4
DEFAULT_LIMIT_S = 600.0
# After the first failure the other ranks may say what they know; then all are killed.
_LAST_WORDS_S = 2.0
_POLL_S = 0.05
# How long processes whose results are there may take to leave.
_EXIT_LIMIT_S = 10.0
_EXIT_POLL_S = 1e-3


class RankJob(Protocol):
    """Processes of a job, and a descriptor to read from for every rank."""

    fds: list[int]

    def note(self, rank: int, message: Mapping[str, Any]) -> None:
        """Take what a rank tells about its process."""

    def how_ended(self, rank: int | None) -> str:
        """In words how a rank ended that has, or (None) the job as a whole."""

    def is_running(self) -> bool:
        """Whether any process of the job is left."""

    def kill(self) -> None:
        """End all processes by force and wait for them."""

    def close(self) -> None:
        """Give back descriptors and files."""


def launch(
    target: str,
    arguments: Mapping[str, Any] | None = None,
    num_ranks: int | None = None,
    launcher: str = "auto",
    timeout_s: float = DEFAULT_LIMIT_S,
    on_report: Callable[[int, Any], None] | None = None,
) -> list[Any]:
    """Call `function(bootstrap, **arguments)` on every rank of a new job; its results, in rank order.

    `target` is "package.module:function"; arguments and results are JSON-able. `launcher` is `fork`, `mpirun` (the one
    of this environment, else of the PATH), a command such as `srun --mpi=pmix`, or `auto`: mpirun where mpi4py and an
    mpirun are, else fork. Inside a job that the user's own mpirun started, `auto` makes this process one of its ranks,
    and every rank gets all results. `num_ranks`: 4 if not given, inside such a job its size. `on_report(rank, value)`
    receives what ranks `report` (see worker). The first error of a rank is raised here, with its exit code; DeviceError
    where a rank is lost or all is not over after `timeout_s` seconds. No process outlives the call.
    """
    if num_ranks is not None and num_ranks < 1:
        raise InputError(f"ranks: is {num_ranks}; expected at least 1")
    # Ranks get the same from all launchers.
    function, words = resolve(target), json.loads(json.dumps(arguments or {}))
    if launcher == "auto" and inside_mpi():
        return _run_here(function, words, num_ranks)
    # Compiled once, before ranks ask for it at the same time.
    native_library()
    job = _start(target, words, num_ranks or DEFAULT_RANKS, launcher, timeout_s)
    try:
        return _Collector(job, timeout_s, on_report).results()
    finally:
        job.kill()
        job.close()


def _start(target: str, arguments: dict[str, Any], num_ranks: int, launcher: str, limit_s: float) -> RankJob:
    if launcher == "auto":
        mpirun = find_mpirun() if has_mpi() else None
    else:
        mpirun = None if launcher == "fork" else given_mpirun(launcher)
    if mpirun is None:
        return ForkedJob(target, arguments, num_ranks, limit_s)
    return MpiJob(mpirun, target, arguments, num_ranks, limit_s)


class _Collector:
    """Reads what ranks send until all have a result, one has failed, or the time is over."""

    def __init__(self, job: RankJob, timeout_s: float, on_report: Callable[[int, Any], None] | None) -> None:
        self._job, self._timeout_s, self._on_report = job, timeout_s, on_report
        self._received = [bytearray() for _ in job.fds]
        self._results: dict[int, Any] = {}
        self._errors: list[tuple[int, Mapping[str, Any]]] = []
        # Ranks that fell silent first, without a result.
        self._gone: list[int] = []
        self._poll = select.poll()
        self._rank_of = {fd: rank for rank, fd in enumerate(job.fds)}
        for fd in job.fds:
            self._poll.register(fd, select.POLLIN)

    def results(self) -> list[Any]:
        """The results in rank order, or the first error raised."""
        end = time.monotonic() + self._timeout_s
        failed_at: float | None = None
        while True:
            # The job's state first: what its processes sent before they ended is read after that.
            running = self._job.is_running()
            self._receive()
            now = time.monotonic()
            if len(self._results) == len(self._received):
                break
            if self._errors or self._gone or not running:
                failed_at = failed_at or now
                if not running or now - failed_at > _LAST_WORDS_S:
                    raise self._error()
            elif now > end:
                raise DeviceError(self._late())
        while self._job.is_running() and time.monotonic() < now + _EXIT_LIMIT_S:
            time.sleep(_EXIT_POLL_S)
        return [self._results[rank] for rank in range(len(self._received))]

    def _receive(self) -> None:
        closed = []
        for fd, _ in self._poll.poll(_POLL_S * 1e3):
            rank = self._rank_of[fd]
            if not _read_all(fd, self._received[rank]):
                self._poll.unregister(fd)
                closed.append(rank)
            for message in messages_in(self._received[rank]):
                self._take(rank, message)
        self._gone = self._gone or [rank for rank in closed if rank not in self._results]

    def _take(self, rank: int, message: Mapping[str, Any]) -> None:
        if "result" in message:
            self._results[rank] = message["result"]
        elif "error" in message:
            self._errors.append((rank, message))
        elif "report" in message:
            if self._on_report is not None:
                self._on_report(rank, message["report"])
        else:
            self._job.note(rank, message)

    def _error(self) -> CollsynError:
        """What to raise: a rank's own error before a lost rank before what others say about it."""
        own = [(rank, message) for rank, message in self._errors if not message["by_peer"]]
        if own:
            return _as_error(*own[0])
        heard = dict(self._errors)
        silent = [rank for rank in self._gone if rank not in heard]
        if len(silent) == 1:
            return DeviceError(f"rank {silent[0]} {self._job.how_ended(silent[0])}")
        if self._errors:
            return _as_error(*self._errors[0])
        names = f"ranks {', '.join(map(str, silent))} were lost: " if silent else ""
        return DeviceError(names + self._job.how_ended(None))

    def _late(self) -> str:
        missing = [str(rank) for rank in range(len(self._received)) if rank not in self._results]
        some = ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else "")
        return f"not over after {self._timeout_s:g} s: no result of rank{'s' if len(missing) > 1 else ''} {some}"


def _read_all(fd: int, into: bytearray) -> bool:
    """Add what there is to read from a non-blocking descriptor; whether more may come."""
    try:
        while data := os.read(fd, 1 << 16):
            into += data
    except BlockingIOError:
        return True
    return False


def _as_error(rank: int, message: Mapping[str, Any]) -> CollsynError:
    """The error of a rank as one of this process, of the kind that has its exit code."""
    kinds = {kind.exit_code: kind for kind in CollsynError.__subclasses__()}
    kind = kinds.get(message["code"], DeviceError)
    text = message["error"]
    # Messages about files begin with the file, whichever rank found it.
    named = kind is InputError or text.startswith(f"rank {rank}")
    error = kind(text if named else f"rank {rank}: {text}")
    error.exit_code = message["code"]
    return error


def _run_here(function: Callable[..., Any], arguments: dict[str, Any], num_ranks: int | None) -> list[Any]:
    """This process is a rank already. An error ends the whole world."""
    bootstrap = MpiBootstrap()
    try:
        if num_ranks not in (None, bootstrap.size):
            raise InputError(f"ranks: is {num_ranks}, but {bootstrap.size} were started; leave it out or start as many")
        result = function(bootstrap, **arguments)
        bootstrap.end(None)
        return [json.loads(text) for text in bootstrap.allgather(json.dumps(result).encode())]
    except BaseException as error:
        text, code = describe_error(error)
        if bootstrap.rank or isinstance(error, PeerFailed):
            # The rank that failed first, or rank 0 for all of them, should be the one that is heard.
            time.sleep(_LAST_WORDS_S / 2)
        # One write: ranks of one mpirun share the stream, and print() may write the line break apart.
        sys.stderr.write(f"collsyn: error: {text}\n")
        sys.stderr.flush()
        bootstrap.end(text)
        bootstrap.kill(code)
        raise
