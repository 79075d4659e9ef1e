"""Calls in order: a queue that one thread at a time works off, and the handle of a call in it."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from collsyn.errors import DeviceError


class Work:
    """A call that has been issued. Its arrays must not be touched before it is over."""

    def __init__(self, task: Callable[[], Any], what: str) -> None:
        """Made by a communicator; `what` names the call in messages."""
        self._task: Callable[[], Any] | None = task
        self._what = what
        self._over = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def test(self) -> bool:
        """Whether the call is over, rightly or with an error."""
        return self._over.is_set()

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when the call is over, or raise its error.

        Raises DeviceError if it is not over after `timeout_s` seconds, and the call goes on; None waits as long as the
        communicator's own time limit lets the call take.
        """
        error = self.exception(timeout_s)
        if error is not None:
            raise error

    def result(self, timeout_s: float | None = None) -> Any:
        """What the blocking call would have returned; waits as `wait` does."""
        self.wait(timeout_s)
        return self._result

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """The error of the call, None if it went well; waits as `wait` does."""
        if not self._over.wait(timeout_s):
            raise DeviceError(f"{self._what} is not over after {timeout_s:g} s")
        return self._error

    def execute(self) -> None:
        """Do the call and keep what comes of it."""
        assert self._task is not None
        try:
            self._result = self._task()
        except BaseException as error:
            self._error = error
        # What the task holds, the user's arrays above all, need not outlive it.
        self._task = None
        self._over.set()


class Lane:
    """Does calls one after the other in the order in which they were issued.

    A thread is started for the first call that nobody waits for; others run in the thread that issues them when the
    lane is free, which saves two changes of thread.
    """

    def __init__(self, name: str) -> None:
        """`name` is that of the thread."""
        self._name = name
        self._changed = threading.Condition()
        self._queue: deque[Work] = deque()
        self._is_busy = False
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def run(self, task: Callable[[], Any], what: str) -> Any:
        """Do a call behind all that was issued before, and return its result."""
        with self._changed:
            self._check()
            is_free = not self._is_busy and not self._queue
            self._is_busy |= is_free
        if not is_free:
            return self.submit(task, what).result()
        try:
            return task()
        finally:
            self._release()

    def submit(self, task: Callable[[], Any], what: str) -> Work:
        """Have a call done behind all that was issued before."""
        work = Work(task, what)
        with self._changed:
            self._check()
            self._queue.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return work

    def close(self, limit_s: float) -> bool:
        """Take no more calls; whether all that were issued are over within `limit_s` seconds."""
        deadline = time.monotonic() + limit_s
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            while (self._queue or self._is_busy) and time.monotonic() < deadline:
                self._changed.wait(max(deadline - time.monotonic(), 0))
            return not (self._queue or self._is_busy)

    def _check(self) -> None:
        if self._is_closed:
            raise DeviceError("this communicator is closed")

    def _release(self) -> None:
        with self._changed:
            self._is_busy = False
            if self._queue or self._is_closed:
                self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while self._is_busy or not self._queue:
                    if self._is_closed and not self._queue:
                        return
                    self._changed.wait()
                work = self._queue.popleft()
                self._is_busy = True
            work.execute()
            del work
            self._release()
