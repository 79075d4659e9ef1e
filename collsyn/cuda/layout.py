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

from collsyn.check.execute import check_ranges, operands
from collsyn.cuda.order import barriers
from collsyn.errors import InputError
from collsyn.model.arrays import I64
from collsyn.model.bind import BoundPlan, divisions
from collsyn.model.dtypes import checked_op, dtype_of
from collsyn.model.plan import Buffer, Op
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
CHANNEL = np.dtype([("begin", "u4"), ("end", "u4"), ("rank", "i4"), ("number", "i4")])
DIVISION = np.dtype([("slot", "u4"), ("divisor", "u4"), ("start", "u8"), ("count", "u8")])
STATE = np.dtype([("base", "u8"), ("finished", "u4"), ("reserved", "u4")])
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
        ("rise", "u8"),
        ("limit_ns", "u8"),
        ("num_channels", "u4"),
        ("num_ranks", "u4"),
        ("num_divisions", "u4"),
        ("blocks_per_channel", "u4"),
        ("dtype", "u4"),
        ("op", "u4"),
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

    Record i of `instructions` stands for the plan's instruction `rows[i]`. Flags rise by `rise` in a call.
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
        `buffers` and of everything in `work_sizes`. A wait gives up after `limit_s` seconds."""
        made = np.zeros((), dtype=LAUNCH)
        for name, address in addresses.items():
            made[name] = address
        made["rise"], made["limit_ns"] = self.rise, int(limit_s * 1e9)
        made["num_channels"], made["num_ranks"] = len(self.channels), self.bound.plan.num_ranks
        made["num_divisions"], made["blocks_per_channel"] = len(self.divisions), self.blocks_per_channel
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

    The first `control_bytes` (abort word and flags) begin as zeros.
    """

    offsets: tuple[int, int, int, int]
    control_bytes: int
    size: int


def rank_memory(bound: BoundPlan, rank: int) -> RankMemory:
    """Where everything of a rank stands in one allocation; what is lent (`bound.is_lent`) takes no room."""
    layout = rank_layout(bound, rank)
    first, second, third = (FLAGS_AT + offset for offset in layout.offsets)
    control = FLAGS_AT + int(bound.plan.num_flags[rank]) * FLAG_BYTES
    return RankMemory((first, second, third, 0), control, FLAGS_AT + layout.size)


def buffer_table(
    bound: BoundPlan, bases: Sequence[int], elsewhere: Mapping[tuple[int, Buffer], int] | None = None
) -> npt.NDArray[np.uint64]:
    """Addresses of all slots, shape [num_ranks * SLOTS]; `bases[r]` is where rank r's allocation begins here, 0 where
    this process cannot reach it. `elsewhere` has the addresses of buffers that are not in it (lent ones)."""
    table = np.zeros((bound.plan.num_ranks, SLOTS), dtype=np.uint64)
    for rank, base in enumerate(bases):
        if base:
            table[rank] = [base + offset for offset in rank_memory(bound, rank).offsets]
    for (rank, buffer), address in (elsewhere or {}).items():
        table[rank, buffer] = address
    return table.reshape(-1)


def pack(
    bound: BoundPlan,
    dtype_name: str,
    op_name: str,
    ranks: Sequence[int] | None = None,
    blocks_per_channel: int = 1,
) -> DeviceProgram:
    """The arrays for a launch that runs these ranks (None: all, as on one GPU). Raises InputError for elements of
    another width, VerificationError for places outside their buffers. Linear in the instructions."""
    dtype, _ = dtype_of(dtype_name), checked_op(op_name)
    if dtype.num_bytes != bound.element_bytes:
        raise InputError(f"dtype {dtype_name} has {dtype.num_bytes} bytes; the plan is bound to {bound.element_bytes}")
    if blocks_per_channel < 1:
        raise InputError(f"blocks_per_channel: is {blocks_per_channel}; expected at least 1")
    check_ranges(bound)
    plan = bound.plan
    chosen = tuple(range(plan.num_ranks)) if ranks is None else tuple(ranks)
    spans = [
        (rank, number, int(plan.channel_ptr[channel]), int(plan.channel_ptr[channel + 1]))
        for rank in chosen
        for number, channel in enumerate(plan.channels_of(rank).tolist())
    ]
    rows = np.concatenate([np.empty(0, np.int64), *(np.arange(begin, end) for _, _, begin, end in spans)])
    ends = np.cumsum([0, *(end - begin for _, _, begin, end in spans)])
    channels = np.array(
        [(ends[i], ends[i + 1], rank, number) for i, (rank, number, _, _) in enumerate(spans)], dtype=CHANNEL
    )
    records = _records(bound, rows, dtype.num_bytes)
    records["row"] = rows - np.repeat([begin for _, _, begin, _ in spans], np.diff(ends))
    records["barrier"] = barriers(bound, rows, ends, blocks_per_channel > 1)
    averages = [
        (SLOTS * rank + Buffer.OUTPUT, divisor, start, length // dtype.num_bytes)
        for rank in chosen
        for start, length, divisor in (divisions(bound, rank) if op_name == "avg" else [])
    ]
    return DeviceProgram(
        bound=bound,
        dtype_name=dtype_name,
        op_name=op_name,
        ranks=chosen,
        instructions=records,
        channels=channels,
        divisions=np.array(averages, dtype=DIVISION),
        rows=rows,
        rise=_highest_value(bound),
        blocks_per_channel=blocks_per_channel,
    )


def _records(bound: BoundPlan, rows: I64, width: int) -> npt.NDArray[np.void]:
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


def _highest_value(bound: BoundPlan) -> int:
    valued = np.isin(bound.columns["op"], [Op.SIGNAL, Op.WAIT])
    return int(bound.columns["value"][valued].max(initial=0))
