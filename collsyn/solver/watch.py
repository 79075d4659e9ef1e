"""What goes on during a run: better solutions are reported, and it stops where it is asked to."""

from collections.abc import Callable
from typing import Any

import numpy as np

from collsyn.keyboard import Keyboard


class Watch:
    """Callbacks of one run. HiGHS forgets its solution where one raises, so errors are kept until the run is over."""

    def __init__(
        self,
        keyboard: Keyboard,
        progress: Callable[[float, float], None] | None,
        interrupted: Callable[[], bool] | None,
    ) -> None:
        self.keyboard, self.progress, self.interrupted = keyboard, progress, interrupted
        self.stopped = False
        self.error: Exception | None = None
        self._shown = np.inf, -np.inf

    def subscribe(self, highs: Any) -> None:
        """Be called by the next runs of a `highspy.Highs`."""
        from highspy import cb

        Kind = cb.HighsCallbackType
        self._polls = Kind.kCallbackMipInterrupt, Kind.kCallbackSimplexInterrupt, Kind.kCallbackIpmInterrupt
        self._mixed = Kind.kCallbackMipInterrupt, Kind.kCallbackMipImprovingSolution
        highs.setCallback(self._called, None)
        for kind in {*self._polls, *self._mixed}:
            highs.startCallback(kind)

    def _called(self, kind: Any, message: str, seen: Any, answer: Any, data: Any) -> None:
        try:
            if self.progress is not None and kind in self._mixed:
                now = float(seen.mip_primal_bound), float(seen.mip_dual_bound)
                if now != self._shown:
                    self._shown = now
                    self.progress(*now)
            if kind in self._polls and self._must_stop():
                answer.user_interrupt = True
        except Exception as error:
            self.error, self.stopped = error, True

    def _must_stop(self) -> bool:
        asked = self.interrupted is not None and self.interrupted()
        self.stopped = self.stopped or self.keyboard.pressed or asked
        return self.stopped
