"""A bound plan as the arrays that the kernel reads: instructions, channels, divisions, and a table of buffers.

The records are those of `device/launch.cuh`, field by field. Instructions name places as (slot, offset): slot
`SLOTS * rank + buffer` of the table of buffers, which has the addresses that this process knows. So one table of
instructions serves every run, whatever memory it works on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.check.execute import operands
from collsyn.model.arrays import I64
from collsyn.model.bind import BoundPlan
from collsyn.model.plan import Buffer
from collsyn.runtime.arena import LINE, PAGE
from collsyn.runtime.native_loader import DTYPE_CODES, OP_CODES
from collsyn.runtime.program import KIND_OF_OP, MOVE, REDUCE, SIGNAL, WAIT, rank_layout

ENTRY, DIVIDE_ENTRY = "collsyn_execute", "collsyn_divide"
DEFAULT_THREADS = 512
MAX_THREADS = 1024

# Buffers of a rank in the table; the fourth is its control memory: the abort word, and flags from FLAGS_AT on.
SLOTS = 4
CONTROL = 3
FLAG_BYTES = LINE
FLAGS_AT = PAGE

INSTRUCTION = np.dtype(
    [
        ("kind", "u4"),
        ("barrier", "u4"),  # whether the channel's threads meet before it
        ("dst_slot", "u4"),
        ("src_slot", "u4"),
        ("src2_slot", "u4"),
        ("row", "u4"),  # within the channel, for reports
        ("dst", "u8"),
        ("src", "u8"),
        ("src2", "u8"),
        ("count", "u8"),  # bytes of a move, elements of a reduction
        ("value", "u8"),
    ]
)
CHANNEL = np.dtype(
    [("begin", "u4"), ("end", "u4"), ("rank", "i4"), ("number", "i4"), ("asks", "u4"), ("reserved", "u4")]
)
DIVISION = np.dtype([("slot", "u4"), ("divisor", "u4"), ("start", "u8"), ("count", "u8")])
STATE = np.dtype([("base", "u8"), ("finished", "u4"), ("calls", "u4")])
GROUP = np.dtype([("arrived", "u4"), ("generation", "u4")])
REPORT = np.dtype(
    [
        ("code", "u4"),
        ("claimed", "u4"),
        ("rank", "i4"),
        ("channel", "i4"),
        ("instruction", "i4"),
        ("by", "i4"),
        ("seen", "u8"),
        ("wanted", "u8"),
    ]
)
LAUNCH = np.dtype(
    [
        ("instructions", "u8"),
        ("channels", "u8"),
        ("buffers", "u8"),
        ("divisions", "u8"),
        ("state", "u8"),
        ("groups", "u8"),
        ("arrivals", "u8"),
        ("report", "u8"),
        ("lanes", "u8"),
        ("rise", "u8"),
        ("limit_ns", "u8"),
        ("num_channels", "u4"),
        ("num_ranks", "u4"),
        ("num_divisions", "u4"),
        ("blocks_per_channel", "u4"),
        ("dtype", "u4"),
        ("op", "u4"),
        ("turn_slots", "u4"),
        ("reserved", "u4"),
    ]
)


class Outcome(IntEnum):
    """`code` of a report: all went well, a wait took too long, or another rank ended the job."""

    DONE = 0
    TIMED_OUT = 1
    ABORTED = 2


@dataclass(frozen=True, eq=False)
class DeviceProgram:
    """What one launch reads: the channels of its ranks, one behind the other.

    Record i of `instructions` stands for the plan's instruction `rows[i]`. Flags rise by `rise` in a call. What is
    fetched from other boxes needs `room` bytes behind its rank's memory.
    """

    bound: BoundPlan
    dtype_name: str
    op_name: str
    ranks: tuple[int, ...]
    instructions: npt.NDArray[np.void]
    channels: npt.NDArray[np.void]
    divisions: npt.NDArray[np.void]
    rows: I64
    rise: int
    blocks_per_channel: int
    room: int = 0

    @property
    def grid(self) -> int:
        """Blocks of a launch: all must be resident at once, for they wait for each other."""
        return len(self.channels) * self.blocks_per_channel

    def work_sizes(self) -> dict[str, int]:
        """Bytes of the memory that a launch writes, by its field in LAUNCH; all of it begins as zeros."""
        return {
            "state": STATE.itemsize,
            "groups": len(self.channels) * GROUP.itemsize,
            "arrivals": max(1, len(self.instructions)) * 4 if self.blocks_per_channel > 1 else 4,
            "report": REPORT.itemsize,
        }

    def launch(self, addresses: Mapping[str, int], limit_s: float) -> npt.NDArray[np.void]:
        """The kernel's argument, shape []; `addresses` has device addresses of `instructions`, `channels`, `divisions`,
        `buffers`, of everything in `work_sizes`, and of `lanes` where there are other boxes. A wait gives up after
        `limit_s` seconds."""
        made = np.zeros((), dtype=LAUNCH)
        for name, address in addresses.items():
            made[name] = address
        made["rise"], made["limit_ns"] = self.rise, int(limit_s * 1e9)
        made["num_channels"], made["num_ranks"] = len(self.channels), self.bound.plan.num_ranks
        made["num_divisions"], made["blocks_per_channel"] = len(self.divisions), self.blocks_per_channel
        made["turn_slots"] = SLOTS * self.bound.plan.num_ranks if self.bound.plan.runs_ahead else 0
        made["dtype"], made["op"] = DTYPE_CODES[self.dtype_name], OP_CODES[self.op_name]
        return made

    def failure(self, report: npt.NDArray[np.void]) -> str | None:
        """What a report says in words, None where all went well: rank, channel, instruction."""
        code = int(report["code"])
        if code == Outcome.DONE:
            return None
        rank, channel, instruction = (int(report[key]) for key in ("rank", "channel", "instruction"))
        if code == Outcome.ABORTED:
            return f"{self._place(rank, channel, instruction)}: given up, for rank {int(report['by'])} failed"
        return self._late(rank, channel, instruction, int(report["seen"]))

    def late(self, channel: int, instruction: int, seen: int) -> str:
        """The same for a wait in a channel of `channels` whose flag was `seen` when time was up."""
        one = self.channels[channel]
        return self._late(int(one["rank"]), int(one["number"]), instruction, seen)

    def _late(self, rank: int, channel: int, instruction: int, seen: int) -> str:
        return f"{self._place(rank, channel, instruction)}: not within the time limit; the flag was {seen}"

    def _place(self, rank: int, channel: int, instruction: int) -> str:
        plan = self.bound.plan
        row = int(plan.channel_ptr[plan.channels_of(rank)[channel]]) + instruction
        return f"rank {rank}, channel {channel}, instruction {instruction}: {plan.describe(row)}"


@dataclass(frozen=True)
class RankMemory:
    """One allocation of a rank: addresses of input, output, scratch and control memory from its begin, and its bytes.

    The first `control_bytes` (abort word and flags) begin as zeros. Of every other call scratch is `turn_bytes` on.
    """

    offsets: tuple[int, int, int, int]
    control_bytes: int
    size: int
    turn_bytes: int


def rank_memory(bound: BoundPlan, rank: int) -> RankMemory:
    """Where everything of a rank stands in one allocation; what is lent (`bound.is_lent`) takes no room."""
    layout = rank_layout(bound, rank)
    first, second, third = (FLAGS_AT + offset for offset in layout.offsets)
    control = FLAGS_AT + int(bound.plan.num_flags[rank]) * FLAG_BYTES
    return RankMemory((first, second, third, 0), control, FLAGS_AT + layout.size, layout.turn_bytes)


def buffer_table(
    bound: BoundPlan, bases: Sequence[int], elsewhere: Mapping[tuple[int, Buffer], int] | None = None
) -> npt.NDArray[np.uint64]:
    """Addresses of all slots, shape [num_ranks * SLOTS], of a plan that runs ahead those of every other call behind
    them; `bases[r]` is where rank r's allocation begins here, 0 where this process cannot reach it. `elsewhere` has the
    addresses of buffers that are not in it (lent ones)."""
    table = np.zeros((2 if bound.plan.runs_ahead else 1, bound.plan.num_ranks, SLOTS), dtype=np.uint64)
    for rank, base in enumerate(bases):
        if base:
            memory = rank_memory(bound, rank)
            table[:, rank] = [base + offset for offset in memory.offsets]
            table[1:, rank, Buffer.SCRATCH] += np.uint64(memory.turn_bytes)
    for (rank, buffer), address in (elsewhere or {}).items():
        table[:, rank, buffer] = address
    return table.reshape(-1)


def rank_records(bound: BoundPlan, rows: I64, width: int) -> npt.NDArray[np.void]:
    """The records of instructions, whose places must be in range, for elements of `width` bytes; without `row` and
    `barrier`. Linear in the instructions."""
    c = {key: values[rows] for key, values in bound.columns.items()}
    records: npt.NDArray[Any] = np.zeros(len(rows), dtype=INSTRUCTION)
    records["kind"] = kind = KIND_OF_OP[c["op"]]
    for which, used, owners in operands(bound):
        slot = SLOTS * owners[rows] + c[f"{which}_buffer"]
        records[f"{which}_slot"] = np.where(used[rows], slot, 0)
        records[which] = np.where(used[rows], c[f"{which}_offset"], 0)
    records["count"] = np.where(kind == REDUCE, c["length"] // width, np.where(kind == MOVE, c["length"], 0))
    owner = np.repeat(bound.plan.channel_rank, np.diff(bound.plan.channel_ptr))[rows]
    flagged = (kind == SIGNAL) | (kind == WAIT)
    raised = np.where(kind == SIGNAL, c["peer"], owner)
    records["dst_slot"][flagged] = SLOTS * raised[flagged] + CONTROL
    records["dst"][flagged] = FLAGS_AT + c["flag"][flagged].astype(np.uint64) * np.uint64(FLAG_BYTES)
    records["value"] = np.where(flagged, c["value"], 0)
    return records
