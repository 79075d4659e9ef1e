"""Plans by copy engines: a plan's channels as streams of copies, waits for flags and writes of flags; no kernel spins.

For large messages copy engines are faster than stores of kernels, and leave the multiprocessors to others. What remains
for a kernel are reductions, each a launch of its own.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from collsyn.cuda.layout import CHANNEL, STATE
from collsyn.runtime.program import MOVE, REDUCE, SIGNAL, WAIT

if TYPE_CHECKING:
    from collsyn.cuda.driver import Driver
    from collsyn.cuda.prepared import Placed

# Blocks and threads of a reduction.
REDUCE_BLOCKS, REDUCE_THREADS = 32, 512
# Above every value that a flag is waited for: what lets all streams end after a failure.
RELEASED = (1 << 62) - 1


class Engine:
    """The ranks of one device; `base` is what flags of the next call count from."""

    def __init__(self, driver: "Driver", placed: "Placed", allocate: Callable[[int], int]) -> None:
        """Streams of all channels; `allocate(bytes)` gives what reductions need of the device's memory."""
        self._driver, self._placed = driver, placed
        program = placed.program
        self._streams = [driver.stream(placed.device) for _ in program.channels]
        self.base = 0
        # Which of the two sets of slots, where calls have them in turn.
        self._turn, self._turn_slots = 0, int(program.launch({}, 1.0)["turn_slots"])
        self._begins = [int(begin) for begin in program.channels["begin"]]
        ends = program.channels["end"].tolist()
        self._rows = [program.instructions[a:b].tolist() for a, b in zip(self._begins, ends, strict=True)]
        fields = program.instructions.dtype.names
        assert fields is not None
        self._at = {name: number for number, name in enumerate(fields)}
        self._reductions = self._reduction_arguments(allocate)

    def enqueue(self) -> None:
        """Give one call to the streams; the plan's own stream is before it and behind it."""
        driver, device, main = self._driver, self._placed.device, self._placed.stream
        begun = driver.mark(device, main)
        longest = max(map(len, self._rows), default=0)
        for stream in self._streams:
            driver.follow(device, stream, begun)
        # Instruction by instruction over all channels: a queue of the device that fills up holds nothing back for long.
        for step in range(longest):
            for number, rows in enumerate(self._rows):
                if step < len(rows):
                    self._give(number, step, rows[step])
        for stream in self._streams:
            driver.follow(device, main, driver.mark(device, stream))
        self.base += self._placed.program.rise
        self._turn = 1 - self._turn

    def stuck(self) -> str | None:
        """The first wait, in words, whose flag has not come; None where all have."""
        program, flag = self._placed.program, np.zeros(1, dtype=np.uint64)
        base = self.base - program.rise
        for number, rows in enumerate(self._rows):
            for step, row in enumerate(rows):
                if row[self._at["kind"]] != WAIT:
                    continue
                self._driver.read(self._placed.device, self._address(row, "dst"), flag)
                if int(flag[0]) < base + row[self._at["value"]]:
                    return program.late(number, step, max(int(flag[0]) - base, 0))
        return None

    def release(self) -> None:
        """Let all streams end, whatever they wait for; flags are of no use then."""
        value = np.array([RELEASED], dtype=np.uint64)
        for rows in self._rows:
            for row in rows:
                if row[self._at["kind"]] == WAIT:
                    self._driver.write_aside(self._placed.device, self._address(row, "dst"), value)

    def _address(self, row: tuple[int, ...], which: str) -> int:
        slot = row[self._at[f"{which}_slot"]] + self._turn * self._turn_slots
        return int(self._placed.table[slot]) + row[self._at[which]]

    def _reduction_arguments(self, allocate: Callable[[int], int]) -> dict[int, npt.NDArray[np.void]]:
        """Of every instruction that reduces, by its number, a launch of it alone.

        It has a channel and a state of its own, for several can be under way.
        """
        driver, placed = self._driver, self._placed
        rows = np.flatnonzero(placed.program.instructions["kind"] == REDUCE).tolist()
        if not rows:
            return {}
        channels = np.array([(row, row + 1, placed.program.ranks[0], 0, 0, 0) for row in rows], dtype=CHANNEL)
        at, states = allocate(channels.nbytes), allocate(len(rows) * STATE.itemsize)
        driver.write(placed.device, at, channels)
        found = {}
        for number, row in enumerate(rows):
            argument = placed.program.launch(placed.addresses, 1.0)
            argument["channels"], argument["state"] = at + number * CHANNEL.itemsize, states + number * STATE.itemsize
            argument["num_channels"], argument["blocks_per_channel"], argument["rise"] = 1, REDUCE_BLOCKS, 0
            found[row] = argument
        return found

    def _give(self, number: int, step: int, row: tuple[int, ...]) -> None:
        driver, device, stream, kind = self._driver, self._placed.device, self._streams[number], row[self._at["kind"]]
        if kind == MOVE:
            if row[self._at["count"]]:
                ends = self._address(row, "dst"), self._address(row, "src")
                driver.copy(device, *ends, row[self._at["count"]], stream)
        elif kind == REDUCE:
            argument = self._reductions[self._begins[number] + step][()]
            driver.launch(device, self._placed.kernel, stream, REDUCE_BLOCKS, REDUCE_THREADS, argument, False)
        elif kind == SIGNAL:
            driver.write_value(device, stream, self._address(row, "dst"), self.base + row[self._at["value"]])
        elif kind == WAIT:
            driver.wait_value(device, stream, self._address(row, "dst"), self.base + row[self._at["value"]])
