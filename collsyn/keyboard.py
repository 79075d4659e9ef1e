"""Ctrl-C that ends a search but not what keeps its result."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from collsyn.errors import can_raise, interrupt, interrupts


class Keyboard:
    """While its `with` block runs, Ctrl-C raises KeyboardInterrupt inside `listening()` only, and is `pressed` later.

    Outside of the main thread, and where a program handles the signal itself, everything stays as it is.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._listening = False
        self._before: Any = None

    def __enter__(self) -> "Keyboard":
        in_main = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGINT) if in_main else None
        owner = getattr(handler, "__self__", None)
        if isinstance(owner, Keyboard):
            self.pressed = owner.pressed
        if handler in (signal.default_int_handler, interrupt) or isinstance(owner, Keyboard):
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            outer = getattr(self._before, "__self__", None)
            if self.pressed and isinstance(outer, Keyboard):
                outer.pressed = True
            signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Raises KeyboardInterrupt at once where Ctrl-C was pressed before, else when it is."""
        if self.pressed:
            raise KeyboardInterrupt
        self._listening = True
        try:
            with interrupts():
                yield
        finally:
            self._listening = False

    def _press(self, number: int, frame: FrameType | None) -> None:
        self.pressed = True
        if self._listening and can_raise(frame):
            self._listening = False
            raise KeyboardInterrupt
