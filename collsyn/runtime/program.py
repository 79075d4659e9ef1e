"""One rank's share of a bound plan with every place resolved to an address of this process: what executors run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collsyn.check.execute import operands
from collsyn.errors import InputError
from collsyn.model.arrays import I64
from collsyn.model.bind import BoundPlan
from collsyn.model.plan import Buffer, Op
from collsyn.runtime.arena import BARRIER_FLAGS, LINE, PAGE, Segment
from collsyn.runtime.streams import past_the_caches

# Kinds of instructions that are left once places are resolved, and their record, as in native/executor.c.
NOP, MOVE, REDUCE, SIGNAL, WAIT, STREAM = range(6)
RECORD = np.dtype(
    [("kind", "i8"), ("dst", "u8"), ("src", "u8"), ("src2", "u8"), ("count", "i8"), ("value", "u8")], align=True
)
_KINDS = {
    Op.NOP: NOP,
    Op.COPY: MOVE,
    Op.PUT: MOVE,
    Op.GET: MOVE,
    Op.REDUCE: REDUCE,
    Op.GET_REDUCE: REDUCE,
    Op.SIGNAL: SIGNAL,
    Op.WAIT: WAIT,
}
KIND_OF_OP = np.array([_KINDS[op] for op in Op])


@dataclass(frozen=True)
class RankLayout:
    """Where a rank's flags (at 0) and buffers stand in its segment of `size` bytes."""

    offsets: tuple[int, int, int]
    size: int


@dataclass(frozen=True, eq=False)
class Program:
    """Records of all channels of a rank, one channel behind the other.

    Channel k of the rank holds records `end[k - 1] : end[k]` (from 0 for the first one); `rows[i]` is the plan's
    instruction that record i stands for, and `inward[i]` says that it waits for another channel of the same rank.
    Flags rise by at most `highest_value` in a call. Where input and output are lent, `lent` holds (field, buffer,
    records, offsets) of the places in them, which `lend` makes addresses.
    """

    records: npt.NDArray[np.void]
    end: I64
    rows: I64
    highest_value: int
    inward: npt.NDArray[np.bool_]
    lent: tuple[tuple[str, Buffer, I64, npt.NDArray[np.uint64]], ...] = ()

    def lend(self, addresses: Mapping[Buffer, int]) -> None:
        """Let the next runs work on buffers at these addresses."""
        for field, buffer, records, offsets in self.lent:
            self.records[field][records] = offsets + np.uint64(addresses[buffer])

    def place_of(self, record: int) -> tuple[int, int]:
        """Channel within the rank, and instruction within the channel."""
        channel = int(np.searchsorted(self.end, record, side="right"))
        return channel, record - (int(self.end[channel - 1]) if channel else 0)


def rank_layout(bound: BoundPlan, rank: int) -> RankLayout:
    """Flags, then input, output and scratch on pages of their own; in place, input and output share one.

    What is lent takes no room.
    """
    sizes = [int(size) for size in bound.buffer_bytes[rank]]
    if bound.is_lent:
        sizes[Buffer.INPUT] = sizes[Buffer.OUTPUT] = 0
    at = _pages(int(bound.plan.num_flags[rank]) * LINE)
    offsets = [0, 0, 0]
    alias = bound.alias[rank]
    for buffer in Buffer:
        if alias is not None and buffer == alias[0]:
            continue
        offsets[buffer] = at
        size = sizes[buffer]
        if alias is not None and buffer == alias[1]:
            size = max(size, alias[2] + sizes[alias[0]])
        at += _pages(size)
    if alias is not None:
        offsets[alias[0]] = offsets[alias[1]] + alias[2]
    return RankLayout((offsets[0], offsets[1], offsets[2]), at)


def peers_of(bound: BoundPlan, rank: int) -> list[int]:
    """Ranks whose segments the rank's instructions touch, itself included."""
    rows = _rows_of(bound, rank)[0]
    op, peer = bound.columns["op"][rows], bound.columns["peer"][rows]
    touched = np.isin(op, [Op.PUT, Op.GET, Op.GET_REDUCE, Op.SIGNAL])
    return sorted({rank, *np.unique(peer[touched]).tolist()})


def make_program(bound: BoundPlan, rank: int, segments: Sequence[Segment], bells: Sequence[int], width: int) -> Program:
    """Resolve the rank's instructions, all of whose places must be in range.

    `segments` are those of all ranks, `bells` the addresses of their control blocks, `width` the bytes of an element.
    Linear in the instructions.
    """
    rows, end = _rows_of(bound, rank)
    c = {key: values[rows] for key, values in bound.columns.items()}
    base = np.zeros((bound.plan.num_ranks, len(Buffer)), dtype=np.uint64)
    flags = np.zeros(bound.plan.num_ranks, dtype=np.uint64)
    for owner, segment in enumerate(segments):
        base[owner] = [segment.address + offset for offset in rank_layout(bound, owner).offsets]
        flags[owner] = segment.address
    op = c["op"]
    records = np.zeros(len(rows), dtype=RECORD)
    records["kind"] = KIND_OF_OP[op]
    lent = []
    for which, used, owners in operands(bound):
        buffer = np.where(used, bound.columns[f"{which}_buffer"], 0)[rows]
        for lendable in (Buffer.INPUT, Buffer.OUTPUT) if bound.is_lent else ():
            at = np.flatnonzero(used[rows] & (buffer == lendable))
            if (owners[rows][at] != rank).any():
                raise InputError(f"plan {bound.plan.name}: touches a peer's {lendable.name.lower()}, which is lent")
            lent.append((which, lendable, at, c[f"{which}_offset"][at].astype(np.uint64)))
        address = base[owners[rows], buffer] + c[f"{which}_offset"].astype(np.uint64)
        records[which] = np.where(used[rows], address, 0)
    reduces = records["kind"] == REDUCE
    records["kind"][(records["kind"] == MOVE) & past_the_caches(bound)[rows]] = STREAM
    records["count"] = np.where(reduces, c["length"] // width, c["length"])
    signals, waits = op == Op.SIGNAL, op == Op.WAIT
    line = c["flag"].astype(np.uint64) * np.uint64(LINE)
    records["dst"][signals] = flags[c["peer"][signals]] + line[signals]
    records["dst"][waits] = flags[rank] + line[waits]
    records["src"][signals] = np.asarray(bells, dtype=np.uint64)[c["peer"][signals]]
    records["value"] = np.where(signals | waits, c["value"], 0)
    valued = np.isin(bound.columns["op"], [Op.SIGNAL, Op.WAIT])
    highest = int(bound.columns["value"][valued].max(initial=0))
    return Program(records, end, rows, highest, waits & (c["peer"] == rank), tuple(lent))


def barrier_program(rank: int, controls: Sequence[int]) -> Program:
    """A dissemination barrier on flags in the control blocks at these addresses: log2(ranks) rounds."""
    size, records = len(controls), []
    for turn in range((size - 1).bit_length()):
        peer = controls[(rank + (1 << turn)) % size]
        at = BARRIER_FLAGS + turn * LINE
        records += [(SIGNAL, peer + at, peer, 0, 0, 1), (WAIT, controls[rank] + at, 0, 0, 0, 1)]
    table = np.array(records, dtype=RECORD)
    end = np.array([len(table)], dtype=np.int64)
    return Program(table, end, np.arange(len(table)), 1, np.zeros(len(table), dtype=np.bool_))


def _rows_of(bound: BoundPlan, rank: int) -> tuple[I64, I64]:
    """Instructions of all channels of the rank in order, and the end of each channel among them."""
    channels = bound.plan.channels_of(rank)
    begin, stop = bound.plan.channel_ptr[channels], bound.plan.channel_ptr[channels + 1]
    parts = [np.arange(a, b, dtype=np.int64) for a, b in zip(begin.tolist(), stop.tolist(), strict=True)]
    return np.concatenate([np.empty(0, dtype=np.int64), *parts]), np.cumsum(stop - begin)


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
