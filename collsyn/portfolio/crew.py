"""Who does the portfolio's work: this process, processes beside it, or ranks of an MPI job.

A crew is given tasks as long as it has somebody `free`, and hands back what became of them in any order. Tasks are
(TASK, name or candidate, limit in seconds or None); which they are of comes first, through `begin`.
"""

import contextlib
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

from collsyn.errors import DeviceError
from collsyn.keyboard import Keyboard
from collsyn.portfolio.candidates import INTERRUPTED, Candidate
from collsyn.portfolio.trial import Trial

MAKE, PLAN = "make", "plan"
# So long methods have to return what they have at hand.
WIND_UP_S = 1.5
Task = tuple[str, str | Candidate, float | None]

# Environment of MPI's own processes, which those beside them are not.
_MPI_WORDS = ("PMI", "OMPI_", "PMIX_", "MPI_", "HYDI_", "HYDRA_")


def perform(trial: Trial, task: Task) -> Candidate:
    """Do a task, here and now."""
    kind, what, limit_s = task
    if kind == MAKE:
        assert isinstance(what, str)
        return trial.candidate(what, limit_s)
    assert isinstance(what, Candidate)
    return trial.with_plan(what)


def lost(task: Task, reason: str) -> Candidate:
    """What becomes of a task whose process ended, or did something that it should not."""
    _, what, _ = task
    if isinstance(what, str):
        return Candidate(what, refused=reason, lost=True)
    return replace(what, lost=True, cut=f"not simulated: {reason}")


class Crew(Protocol):
    """See above."""

    def begin(self, trial: Trial) -> None:
        """Work on this problem from now on."""

    @property
    def free(self) -> int:
        """How many more tasks can be started."""

    @property
    def tasks(self) -> Mapping[int, Task]:
        """What is under way, by number."""

    def start(self, number: int, task: Task) -> None:
        """Begin a task, under a number of the caller's."""

    def finished(self, wait_s: float) -> Sequence[tuple[int, Candidate]]:
        """Tasks that are done, after at most about `wait_s` seconds where none is (in this process: when it is)."""

    def stop(self, numbers: Sequence[int]) -> None:
        """Give up tasks that are under way."""

    def wind_up(self) -> Sequence[tuple[int, Candidate]]:
        """Give up all tasks, with what the methods have at hand that keep the best so far."""

    def close(self) -> None:
        """End all processes of the crew."""


class Alone:
    """This process, one task at a time."""

    def __init__(self) -> None:
        self.tasks: dict[int, Task] = {}
        self._trial: Trial | None = None

    def begin(self, trial: Trial) -> None:
        """See Crew."""
        self._trial, self.tasks = trial, {}

    @property
    def free(self) -> int:
        """See Crew."""
        return 0 if self.tasks else 1

    def start(self, number: int, task: Task) -> None:
        """See Crew."""
        self.tasks[number] = task

    def finished(self, wait_s: float) -> Sequence[tuple[int, Candidate]]:
        """See Crew."""
        assert self._trial is not None
        ((number, task),) = self.tasks.items()
        found = perform(self._trial, task)
        del self.tasks[number]
        return [(number, found)]

    def stop(self, numbers: Sequence[int]) -> None:
        """See Crew."""
        for number in numbers:
            self.tasks.pop(number, None)

    def wind_up(self) -> Sequence[tuple[int, Candidate]]:
        """See Crew; a method that was at work here has returned or was ended."""
        self.tasks = {}
        return []

    def close(self) -> None:
        """See Crew."""


@dataclass
class Hand:
    """A worker process: the way to it, what it is at, and the problem it knows."""

    process: "subprocess.Popen[bytes]"
    connection: Connection
    number: int | None = None
    knows: int = -1

    def end(self) -> None:
        """Kill it and wait for its end, which a killed process comes to."""
        with contextlib.suppress(OSError):
            self.connection.close()
        self.process.kill()
        self.process.wait()


class Beside:
    """Processes beside this one, up to `size` of them, begun when there is work for them.

    They end with this process however it ends, and Ctrl-C at the terminal does not reach them.
    """

    def __init__(self, size: int) -> None:
        self.tasks: dict[int, Task] = {}
        self._size = size
        self._hands: list[Hand] = []
        self._problem = b""
        self._problem_number = -1

    def begin(self, trial: Trial) -> None:
        """See Crew."""
        self.stop(list(self.tasks))
        self._problem = bytes(ForkingPickler.dumps(trial))
        self._problem_number += 1

    @property
    def free(self) -> int:
        """See Crew."""
        return max(self._size - len(self.tasks), 0)

    def start(self, number: int, task: Task) -> None:
        """See Crew."""
        hand = next((hand for hand in self._hands if hand.number is None), None)
        if hand is None:
            hand = spawn()
            self._hands.append(hand)
        hand.number, self.tasks[number] = number, task
        # One that is down already is found so by `finished`.
        with contextlib.suppress(OSError):
            if hand.knows != self._problem_number:
                hand.connection.send_bytes(self._problem)
                hand.knows = self._problem_number
            hand.connection.send(task)

    def finished(self, wait_s: float) -> Sequence[tuple[int, Candidate]]:
        """See Crew."""
        busy = {hand.connection: hand for hand in self._hands if hand.number is not None}
        found = []
        for connection in multiprocessing.connection.wait(list(busy), wait_s):
            hand = busy[connection]  # type: ignore[index]
            assert hand.number is not None
            number, hand.number = hand.number, None
            task = self.tasks.pop(number)
            try:
                found.append((number, hand.connection.recv()))
            except Exception:
                # The end of the stream, in the middle of a message or not: whatever the reader made of it.
                self._hands.remove(hand)
                hand.end()
                found.append((number, lost(task, f"its process {_how(hand.process.returncode)}")))
        return found

    def stop(self, numbers: Sequence[int]) -> None:
        """See Crew."""
        for hand in [hand for hand in self._hands if hand.number in numbers]:
            hand.end()
            self._hands.remove(hand)
        for number in numbers:
            self.tasks.pop(number, None)

    def wind_up(self) -> Sequence[tuple[int, Candidate]]:
        """See Crew; takes WIND_UP_S at most."""
        for hand in self._hands:
            if hand.number is not None:
                hand.process.send_signal(signal.SIGINT)
        until_s, found = time.monotonic() + WIND_UP_S, []
        while self.tasks and (left_s := until_s - time.monotonic()) > 0:
            found += [(number, candidate) for number, candidate in self.finished(left_s) if candidate.served]
        self.stop(list(self.tasks))
        return found

    def close(self) -> None:
        """See Crew."""
        for hand in self._hands:
            hand.end()
        self._hands, self.tasks = [], {}


def spawn() -> Hand:
    """Start a worker process, in a process group of its own so that keys at the terminal do not reach it.

    Raises DeviceError where the system lets none start.
    """
    ours, theirs = multiprocessing.connection.Pipe()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_MPI_WORDS)}
    # Where this process found the package, the worker finds it, too.
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    # Workers hear Ctrl-C, which `wind_up` passes on, once they can answer it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "collsyn.portfolio.worker", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
                process_group=0,
            )
    except OSError as error:
        raise DeviceError(f"cannot start a process: {error.strerror}") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return Hand(process, ours)


def _how(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def serve(connection: Any) -> None:
    """Do the tasks that come through a connection until it ends; Ctrl-C ends the one that is under way."""
    trial: Trial | None = None
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return
        if isinstance(message, Trial):
            trial = message
            continue
        assert trial is not None
        try:
            with Keyboard() as keyboard, keyboard.listening():
                found = perform(trial, message)
        except KeyboardInterrupt:
            found = replace(lost(message, INTERRUPTED), lost=False)
        except Exception as error:
            # A defect of one method must not take the others along.
            found = lost(message, f"internal error: {type(error).__name__}: {error}")
        connection.send(found)
