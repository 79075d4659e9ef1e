"""A crew across the ranks of an MPI job: rank 0 decides, and every rank has a worker process beside it."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from collsyn.portfolio.candidates import Candidate
from collsyn.portfolio.crew import Beside, Task
from collsyn.portfolio.trial import Trial
from collsyn.runtime.bootstrap import MpiBootstrap

# Between looks for a message, so that waiting takes no core.
_PAUSE_S = 0.005
BEGIN, START, STOP, END = "begin", "start", "stop", "end"


class AcrossRanks:
    """See `crew.Crew`. Ranks other than 0 must call `follow`, which returns at `close`."""

    def __init__(self, bootstrap: MpiBootstrap) -> None:
        self._comm, self._here = bootstrap.comm, Beside(1)
        # What each other rank is at: a number of ours, which is never used again.
        self._at: dict[int, int | None] = dict.fromkeys(range(1, bootstrap.size))
        self._numbers: dict[int, tuple[int, Task]] = {}
        self._count = 0
        self._sent: list[Any] = []

    @property
    def tasks(self) -> Mapping[int, Task]:
        """See Crew."""
        return {**self._here.tasks, **dict(self._numbers.values())}

    @property
    def free(self) -> int:
        """See Crew."""
        return self._here.free + sum(at is None for at in self._at.values())

    def begin(self, trial: Trial) -> None:
        """See Crew."""
        self.stop(list(self.tasks))
        self._here.begin(trial)
        for rank in self._at:
            self._send((BEGIN, trial), rank)

    def start(self, number: int, task: Task) -> None:
        """See Crew."""
        rank = next((rank for rank, at in self._at.items() if at is None), None)
        if rank is None:
            self._here.start(number, task)
            return
        self._count += 1
        self._at[rank], self._numbers[self._count] = self._count, (number, task)
        self._send((START, self._count, task), rank)

    def finished(self, wait_s: float) -> Sequence[tuple[int, Candidate]]:
        """See Crew."""
        until_s = time.monotonic() + wait_s
        while True:
            found = list(self._here.finished(0)) if self._here.tasks else []
            while self._comm.iprobe():
                count, candidate = self._comm.recv()
                # What was given up meanwhile is no longer known.
                if count in self._numbers:
                    found.append((self._numbers.pop(count)[0], candidate))
                self._at = {rank: None if at == count else at for rank, at in self._at.items()}
            self._sent = [request for request in self._sent if not request.Test()]
            if found or time.monotonic() > until_s:
                return found
            time.sleep(_PAUSE_S)

    def stop(self, numbers: Sequence[int]) -> None:
        """See Crew."""
        self._here.stop([number for number in numbers if number in self._here.tasks])
        for count in [count for count, (number, _) in self._numbers.items() if number in numbers]:
            del self._numbers[count]
            for rank in [rank for rank, at in self._at.items() if at == count]:
                self._at[rank] = None
                self._send((STOP,), rank)

    def wind_up(self) -> Sequence[tuple[int, Candidate]]:
        """See Crew; of other ranks nothing is waited for, since Ctrl-C reaches them, too."""
        found = self._here.wind_up()
        self.stop(list(self.tasks))
        return found

    def close(self) -> None:
        """See Crew."""
        self._here.close()
        for rank in self._at:
            self._send((END,), rank)
        for request in self._sent:
            request.Wait()
        self._sent = []

    def _send(self, message: object, rank: int) -> None:
        self._sent.append(self._comm.isend(message, rank))


def follow(bootstrap: MpiBootstrap) -> None:
    """Do what rank 0 gives out, until it closes its crew."""
    comm, crew, sent = bootstrap.comm, Beside(1), []
    try:
        while True:
            while comm.iprobe(source=0):
                kind, *rest = comm.recv(source=0)
                if kind == END:
                    return
                if kind == STOP:
                    crew.stop(list(crew.tasks))
                elif kind == BEGIN:
                    crew.begin(*rest)
                else:
                    crew.start(*rest)
            for found in crew.finished(_PAUSE_S) if crew.tasks else []:
                sent.append(comm.isend(found, 0))
            sent = [request for request in sent if not request.Test()]
            if not crew.tasks:
                time.sleep(_PAUSE_S)
    finally:
        crew.close()
