"""Calls of a program, one after the other, and the watch over them."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from collsyn.errors import DeviceError
from collsyn.runtime.arena import Control
from collsyn.runtime.executors import Executor, make_executor
from collsyn.runtime.native_loader import DONE, STALLED
from collsyn.runtime.program import Program

# How often a rank that waits looks whether its peers are alive.
_SLICE_S = 0.1


class Job(Protocol):
    """What a call needs to know about the job of its rank."""

    rank: int
    is_crowded: bool
    """Whether ranks outnumber the cores that they may use."""

    @property
    def own_control(self) -> Control:
        """This rank's control block."""

    def check(self) -> None:
        """Raise where the job has ended."""

    def look_after_peers(self) -> None:
        """Raise, and end the job, where a peer is lost."""

    def abort(self, message: str) -> None:
        """End the job."""


class Calls:
    """A program that is run again and again; flags count from a base that rises with every call."""

    def __init__(
        self,
        job: Job,
        program: Program,
        describe: Callable[[int], str],
        executors: Sequence[Executor] = (),
    ) -> None:
        """`describe(record)` says in words where a rank is stuck; `executors` are needed where elements are reduced:
        those of programs that take turns differ from this one in places alone."""
        self._job, self._program, self._describe = job, program, describe
        self._executors = list(executors) or [make_executor(program, job.own_control, "uint8", "sum", job.is_crowded)]
        self._turn = -1
        self._begin = np.concatenate([[0], program.end])[:-1]
        self._base = 0

    @property
    def executor(self) -> Executor:
        """What runs, or ran last."""
        return self._executors[self._turn]

    def call(self, timeout_s: float) -> None:
        """Run all channels to their end; raises DeviceError when none could go on for `timeout_s` seconds."""
        self._turn = (self._turn + 1) % len(self._executors)
        executor, base = self.executor, self._base
        self._base += self._program.highest_value
        executor.next[:] = self._begin
        slice_s = min(_SLICE_S, timeout_s)
        if executor.run(base, slice_s) != DONE:
            self._watch(base, timeout_s, time.monotonic() - slice_s)

    def _watch(self, base: int, timeout_s: float, stuck_since: float) -> None:
        """Go on with a call that stalled or was aborted."""
        executor, job = self.executor, self._job
        code = STALLED
        while code != DONE:
            job.check()
            job.look_after_peers()
            stuck_s = time.monotonic() - stuck_since
            if stuck_s >= timeout_s:
                message = f"rank {job.rank}, {self._describe(self._stuck_record())} for {stuck_s:.1f} s"
                job.abort(message)
                raise DeviceError(message)
            before, slice_s = executor.next.copy(), min(_SLICE_S, timeout_s - stuck_s)
            code = executor.run(base, slice_s)
            if (executor.next != before).any():
                stuck_since = time.monotonic() - slice_s

    def _stuck_record(self) -> int:
        """A record that waits for another rank, where one does: channels that wait for each other only follow it."""
        at = self.executor.next[self.executor.next < self._program.end]
        return int(at[np.argmin(self._program.inward[at])])
