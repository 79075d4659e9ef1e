"""What runs in a rank: calls the target function and sends its result, error and reports to the launcher.

`python -m mpi4py -m collsyn.runtime.worker FOLDER NUM_RANKS` is one rank of an MPI job; FOLDER holds the job and a pipe
for every rank. Messages are JSON documents, each after its length.
"""

import ctypes
import importlib
import json
import os
import select
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from collsyn.errors import CollsynError, DeviceError, InputError
from collsyn.runtime.bootstrap import Bootstrap, MpiBootstrap, PeerFailed
from collsyn.runtime.native_loader import debugging

JOB_FILE = "job.json"
_HEAD = struct.Struct("<Q")
INTERRUPTED = 130
_LAST_WORDS_S = 1.0
_PR_SET_PDEATHSIG = 1

# Where messages of this rank go.
_OUTBOX: ContextVar[int | None] = ContextVar("outbox", default=None)


def report(value: object) -> None:
    """Send a JSON-able value to whoever launched this rank (its `on_report`); without a launcher it is dropped."""
    fd = _OUTBOX.get()
    if fd is not None:
        _write_message(fd, {"report": value})


def resolve(target: str) -> Callable[..., Any]:
    """The function that `package.module:function` names; raises InputError."""
    module, _, name = target.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"target {target!r} cannot be loaded: {error}") from None
    if not callable(function):
        raise InputError(f"target {target!r} is not a function")
    return function  # type: ignore[no-any-return]


def pipe_name(rank: int) -> str:
    """File name of a rank's pipe in the job's folder."""
    return f"rank-{rank}"


def messages_in(data: bytearray) -> list[dict[str, Any]]:
    """Take all whole messages off the front of what was received."""
    found = []
    while len(data) >= _HEAD.size:
        (length,) = _HEAD.unpack_from(data)
        if len(data) < _HEAD.size + length:
            break
        found.append(json.loads(data[_HEAD.size : _HEAD.size + length]))
        del data[: _HEAD.size + length]
    return found


def serve(target: str, arguments: Mapping[str, Any], bootstrap: Bootstrap, fd: int) -> tuple[int, bool]:
    """Call `target(bootstrap, **arguments)` and send the outcome to the descriptor.

    Returns the exit code, and whether it was another rank that failed.
    """
    token = _OUTBOX.set(fd)
    try:
        result = resolve(target)(bootstrap, **arguments)
        bootstrap.end(None)
        _write_message(fd, {"result": result})
        return 0, False
    except BaseException as error:
        text, code = describe_error(error)
        by_peer = isinstance(error, PeerFailed)
        if debugging():
            traceback.print_exc()
        _write_message(fd, {"error": text, "code": code, "by_peer": by_peer})
        bootstrap.end(text)
        return code, by_peer
    finally:
        _OUTBOX.reset(token)


def describe_error(error: BaseException) -> tuple[str, int]:
    """One line about an exception, and the exit code it stands for."""
    text = " ".join(str(error).split())
    if isinstance(error, CollsynError):
        return text, error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", INTERRUPTED
    return f"{type(error).__name__}: {text}", DeviceError.exit_code


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(DeviceError.exit_code)


def main(argv: list[str]) -> int:
    """One rank of an MPI job."""
    end_with_parent(os.getppid())
    folder, num_ranks = Path(argv[0]), int(argv[1])
    job = json.loads((folder / JOB_FILE).read_text())
    try:
        bootstrap = MpiBootstrap(job["limit_s"], num_ranks)
    except DeviceError as error:
        # Without MPI this process does not know its rank; the launcher reads all pipes.
        _write_message(_open_pipe(folder, 0), {"error": str(error), "code": error.exit_code, "by_peer": False})
        return error.exit_code
    fd = _open_pipe(folder, bootstrap.rank)
    threading.Thread(target=_end_without_reader, args=(fd,), daemon=True).start()
    _write_message(fd, {"pid": os.getpid()})
    code, by_peer = serve(job["target"], job["arguments"], bootstrap, fd)
    if code:
        sys.stdout.flush()
        sys.stderr.flush()
        if by_peer:
            # The rank that failed should be heard before all are ended.
            time.sleep(_LAST_WORDS_S)
        bootstrap.kill(code)
    return code


def _end_without_reader(fd: int) -> None:
    """End this rank, and with it the job, when the process that launched it is gone."""
    poll = select.poll()
    poll.register(fd, 0)
    if poll.poll():
        os.kill(os.getpid(), signal.SIGKILL)


def _open_pipe(folder: Path, rank: int) -> int:
    return os.open(folder / pipe_name(rank), os.O_WRONLY | os.O_CLOEXEC)


def _write_message(fd: int, message: dict[str, Any]) -> None:
    text = json.dumps(message).encode()
    data = memoryview(_HEAD.pack(len(text)) + text)
    while data:
        data = data[os.write(fd, data) :]


if __name__ == "__main__":
    # Not this copy of the module: `report` of the one that targets import must know where to send.
    sys.exit(importlib.import_module("collsyn.runtime.worker").main(sys.argv[1:]))
