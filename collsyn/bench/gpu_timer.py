"""Times blocks of calls on GPUs between events: as graphs where the driver can record them, else launch by launch."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

from collsyn.cuda.job import GpuJob

# As on host ranks: a median needs several blocks, and a block must be long against what begins and ends it.
BLOCKS = 20
_BLOCK_S = 2e-3
_MAX_CALLS = 200


class Timed(Protocol):
    """What can be timed: it gives calls of the ranks of this process to streams."""

    def streams(self) -> dict[int, Any]:
        """The stream of every device."""

    def enqueue(self) -> None:
        """Give one call to all streams."""

    def wait(self) -> None:
        """Until all streams are done."""


class Timer:
    """Blocks of one thing's calls; `seconds[rank]` has a call's seconds in each block."""

    def __init__(self, job: GpuJob, timed: Timed) -> None:
        self._job, self._timed = job, timed
        self._graphs: dict[int, Any] | None = None
        self.calls = 1
        self.seconds: dict[int, list[float]] = {rank: [] for rank in job.devices}

    def warm_up(self, iterations: int, warmup: int) -> None:
        """Run it, and choose how many calls a block has, alike in all processes."""
        blocks = min(BLOCKS, iterations)
        self.calls = max(warmup, 1)
        self._block()
        first = max(self._block().values())
        agreed = max(float(each["seconds"]) for each in self._job.exchange(lambda: {"seconds": first}))
        self.calls = max(math.ceil(iterations / blocks), min(_MAX_CALLS, math.ceil(_BLOCK_S / max(agreed, 1e-9))))
        self._graphs = self._recorded()

    def block(self) -> None:
        """Time one block."""
        by_device = self._block()
        for rank, device in self._job.devices.items():
            self.seconds[rank].append(by_device[device])

    def _recorded(self) -> dict[int, Any] | None:
        """The calls of a block as a graph of each device; None where calls join devices or the driver cannot."""
        each = getattr(self._timed, "enqueue_on", None)
        streams = self._timed.streams()
        if not getattr(self._timed, "can_record", True) or (each is None and len(streams) > 1):
            return None
        graphs: dict[int, Any] = {}
        for device, stream in streams.items():

            def work(device: int = device) -> None:
                if each is not None:
                    each(device, self.calls)
                else:
                    self._give()

            graphs[device] = self._job.driver.record(device, stream, work)
        return None if any(graph is None for graph in graphs.values()) else graphs

    def _give(self) -> None:
        for _ in range(self.calls):
            self._timed.enqueue()

    def _block(self) -> dict[int, float]:
        """Seconds of a call on each device, in a block of calls that follow each other."""
        driver, streams = self._job.driver, self._timed.streams()
        self._job.barrier()
        begin = {device: driver.mark(device, stream) for device, stream in streams.items()}
        if self._graphs is not None:
            for device, stream in streams.items():
                self._graphs[device].launch(stream)
        else:
            self._give()
        end = {device: driver.mark(device, stream) for device, stream in streams.items()}
        self._timed.wait()
        return {device: driver.seconds(begin[device], end[device]) / self.calls for device in streams}


def time_in_turn(timers: Sequence[Timer], iterations: int, warmup: int) -> None:
    """Warm all timers up, then time blocks of each in turn."""
    for timer in timers:
        timer.warm_up(iterations, warmup)
    for _ in range(min(BLOCKS, iterations)):
        for timer in timers:
            timer.block()
