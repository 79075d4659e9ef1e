"""Every error that collsyn raises on purpose, each with the exit code that the command line returns for it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def can_raise(frame: FrameType | None) -> bool:
    """Whether Ctrl-C's handler may raise in this frame; if not, the signal comes once more a millisecond later."""
    if not any(_loses_exceptions(at) for at in _stack(frame)):
        return True
    # Not from here: it would be handled inside this very frame.
    again = threading.Timer(1e-3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    again.daemon = True
    again.start()
    return False


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _loses_exceptions(frame: FrameType) -> bool:
    """Whether what this frame raises is printed and dropped, or worse.

    Compiled kernels make the named tuples that they return by calls that are not looked after: an exception there ends
    the process (Numba). Finalizers and callbacks of LLVM cannot hand an exception on.
    """
    return frame.f_code.co_name in ("__del__", "_raw_object_cache_notify") or str(
        frame.f_globals.get("__name__")
    ).startswith("namedtuple_")


class _Heard:
    interrupt = False


def interrupt(number: int, frame: FrameType | None) -> None:
    """As Python's own handler of Ctrl-C, but where an exception is safe, and remembered by `was_interrupted`."""
    if can_raise(frame):
        _Heard.interrupt = True
        raise KeyboardInterrupt


def was_interrupted() -> bool:
    """Whether `interrupt` raised: a failure after that is its doing, whatever it was turned into on its way.

    Modules being loaded make other errors of it: an import that is cut off is `ModuleNotFoundError` to some.
    """
    return _Heard.interrupt


def forget_interrupt() -> None:
    """For a program that begins something new after one: `was_interrupted` is False again."""
    _Heard.interrupt = False


@contextmanager
def interrupts() -> Iterator[None]:
    """Raises KeyboardInterrupt also where Ctrl-C fell into a compiled kernel, which makes a SystemError of it."""
    try:
        yield
    except SystemError as error:
        cause = error.__cause__
        while isinstance(cause, SystemError):
            cause = cause.__cause__
        if isinstance(cause, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


class CollsynError(Exception):
    """Root of all expected failures; `exit_code` is what the command line exits with."""

    exit_code = 1


class InputError(CollsynError):
    """A file, option or value that cannot be used; the message starts with `file:key:` where one is known."""

    exit_code = 2


class Infeasible(CollsynError):
    """A well-formed problem without a solution; the message names the pair and the rule that block it."""

    exit_code = 3


class SolverFailed(CollsynError):
    """A solver ended without an answer although the problem may have one."""

    exit_code = 4


class VerificationError(CollsynError):
    """A schedule, plan, certificate or foreign file that is wrong; the message says where, what was had and wanted."""

    exit_code = 5


class DeviceError(CollsynError):
    """A rank, device or launcher failed while running, or a watchdog ended a stuck run."""

    exit_code = 6


class Regression(CollsynError):
    """A measurement that is worse than its baseline beyond noise."""

    exit_code = 7
