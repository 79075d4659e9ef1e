"""One rank's share of a bound plan with every place resolved to an address of this process: what executors run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.errors import InputError
from collsyn.model.arrays import I64, Bools
from collsyn.model.bind import BoundPlan, layout
from collsyn.model.plan import MOVES, READS_PEER, Buffer, Op
from collsyn.runtime.arena import BARRIER_FLAGS, LINE, PAGE, Segment

# Kinds of instructions that are left once places are resolved, and their record, as in native/executor.c.
NOP, MOVE, REDUCE, SIGNAL, WAIT = range(5)
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
_KIND_OF_OP = np.array([_KINDS[op] for op in Op])


@dataclass(frozen=True)
class RankLayout:
    """Where a rank's flags (at 0) and buffers stand in its segment of `size` bytes."""

    offsets: tuple[int, int, int]
    size: int


@dataclass(frozen=True, eq=False)
class Program:
    """Records of all channels of a rank, one channel behind the other.

    Channel k of the rank holds records `end[k - 1] : end[k]` (from 0 for the first one); `rows[i]` is the plan's
    instruction that record i stands for. Flags rise by at most `highest_value` in a call.
    """

    records: npt.NDArray[np.void]
    end: I64
    rows: I64
    highest_value: int

    def place_of(self, record: int) -> tuple[int, int]:
        """Channel within the rank, and instruction within the channel."""
        channel = int(np.searchsorted(self.end, record, side="right"))
        return channel, record - (int(self.end[channel - 1]) if channel else 0)


def rank_layout(bound: BoundPlan, rank: int) -> RankLayout:
    """Flags, then input, output and scratch on pages of their own; in place, input and output share one."""
    sizes = [int(size) for size in bound.buffer_bytes[rank]]
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


def check_bounds(bound: BoundPlan, rank: int) -> None:
    """Raise InputError where an instruction of the rank leaves its buffers: executors follow addresses blindly."""
    rows, _ = _rows_of(bound, rank)
    c = {key: values[rows] for key, values in bound.columns.items()}
    op, num_ranks = c["op"], bound.plan.num_ranks
    if len(op) and (op.min() < 0 or op.max() >= len(Op)):
        raise InputError(f"plan {bound.plan.name}: has an unknown instruction")
    remote = np.isin(op, [Op.PUT, Op.GET, Op.GET_REDUCE, Op.SIGNAL])
    bad_peer = remote & ((c["peer"] < 0) | (c["peer"] >= num_ranks))
    _refuse(bound, rows, bad_peer, f"names no rank of 0 .. {num_ranks - 1}")
    flag_owner = np.where(op == Op.SIGNAL, c["peer"], rank)
    uses_flag = np.isin(op, [Op.SIGNAL, Op.WAIT])
    bad_flag = uses_flag & ((c["flag"] < 0) | (c["flag"] >= bound.plan.num_flags[flag_owner]) | (c["value"] < 0))
    _refuse(bound, rows, bad_flag, "names no flag, or a negative value")
    for which, used, owners in _places(c, rank):
        buffer, offset = c[f"{which}_buffer"], c[f"{which}_offset"]
        bad = used & ((buffer < 0) | (buffer >= len(Buffer)))
        _refuse(bound, rows, bad, f"names no {which} buffer")
        extent = bound.buffer_bytes[owners, np.where(used, buffer, 0)]
        bad = used & ((offset < 0) | (c["length"] < 0) | (offset + c["length"] > extent))
        _refuse(bound, rows, bad, f"leaves its {which} buffer")


def make_program(
    bound: BoundPlan, rank: int, segments: Mapping[int, Segment], bells: Sequence[int], width: int
) -> Program:
    """Resolve the rank's instructions; `segments` of the peers it touches, `bells` the control blocks of all ranks,
    `width` the bytes of an element. Linear in the instructions."""
    rows, end = _rows_of(bound, rank)
    c = {key: values[rows] for key, values in bound.columns.items()}
    base = np.zeros((bound.plan.num_ranks, len(Buffer)), dtype=np.uint64)
    flags = np.zeros(bound.plan.num_ranks, dtype=np.uint64)
    for owner, segment in segments.items():
        base[owner] = [segment.address + offset for offset in rank_layout(bound, owner).offsets]
        flags[owner] = segment.address
    op = c["op"]
    records = np.zeros(len(rows), dtype=RECORD)
    records["kind"] = _KIND_OF_OP[op]
    for which, used, owners in _places(c, rank):
        address = base[owners, np.where(used, c[f"{which}_buffer"], 0)] + c[f"{which}_offset"].astype(np.uint64)
        records[which] = np.where(used, address, 0)
    reduces = records["kind"] == REDUCE
    records["count"] = np.where(reduces, c["length"] // width, c["length"])
    signals, waits = op == Op.SIGNAL, op == Op.WAIT
    line = c["flag"].astype(np.uint64) * np.uint64(LINE)
    records["dst"][signals] = flags[c["peer"][signals]] + line[signals]
    records["dst"][waits] = flags[rank] + line[waits]
    records["src"][signals] = np.asarray(bells, dtype=np.uint64)[c["peer"][signals]]
    records["value"] = np.where(signals | waits, c["value"], 0)
    valued = np.isin(bound.columns["op"], [Op.SIGNAL, Op.WAIT])
    return Program(records, end, rows, int(bound.columns["value"][valued].max(initial=0)))


def barrier_program(rank: int, controls: Sequence[int]) -> Program:
    """A dissemination barrier on flags in the control blocks at these addresses: log2(ranks) rounds."""
    size, records = len(controls), []
    for turn in range((size - 1).bit_length()):
        peer = controls[(rank + (1 << turn)) % size]
        at = BARRIER_FLAGS + turn * LINE
        records += [(SIGNAL, peer + at, peer, 0, 0, 1), (WAIT, controls[rank] + at, 0, 0, 0, 1)]
    table = np.array(records, dtype=RECORD)
    return Program(table, np.array([len(table)], dtype=np.int64), np.arange(len(table)), 1)


def divisions(bound: BoundPlan, rank: int) -> list[tuple[int, int, int]]:
    """What an average still has to do: (first byte of the output, bytes, contributors), neighbours with one divisor
    joined; empty where nothing is reduced."""
    collective = bound.plan.collective
    if not collective.reduces:
        return []
    places = layout(collective, bound.num_elements)
    chunks, first, _ = places.output[rank]
    contributors = collective.sets.lengths()[collective.pre]
    parts: list[tuple[int, int, int]] = []
    for chunk, start in zip(chunks.tolist(), (first * bound.element_bytes).tolist(), strict=True):
        length, divisor = int(places.lengths[chunk]) * bound.element_bytes, int(contributors[chunk])
        if parts and parts[-1][2] == divisor and parts[-1][0] + parts[-1][1] == start:
            parts[-1] = (parts[-1][0], parts[-1][1] + length, divisor)
        else:
            parts.append((start, length, divisor))
    return [part for part in parts if part[1] and part[2] > 1]


def _rows_of(bound: BoundPlan, rank: int) -> tuple[I64, I64]:
    """Instructions of all channels of the rank in order, and the end of each channel among them."""
    channels = bound.plan.channels_of(rank)
    begin, stop = bound.plan.channel_ptr[channels], bound.plan.channel_ptr[channels + 1]
    parts = [np.arange(a, b, dtype=np.int64) for a, b in zip(begin.tolist(), stop.tolist(), strict=True)]
    return np.concatenate([np.empty(0, dtype=np.int64), *parts]), np.cumsum(stop - begin)


def _places(c: Mapping[str, npt.NDArray[Any]], rank: int) -> list[tuple[str, Bools, npt.NDArray[Any]]]:
    """Per operand: the rows that have it, and the rank in whose memory it is."""
    op = c["op"]
    here = np.full(len(op), rank)
    moves = np.isin(op, list(MOVES))
    return [
        ("dst", moves, np.where(op == Op.PUT, c["peer"], here)),
        ("src", moves, np.where(np.isin(op, list(READS_PEER)), c["peer"], here)),
        ("src2", np.isin(op, [Op.REDUCE, Op.GET_REDUCE]), here),
    ]


def _refuse(bound: BoundPlan, rows: I64, bad: Bools, what: str) -> None:
    if bad.any():
        row = int(rows[np.flatnonzero(bad)[0]])
        raise InputError(f"plan {bound.plan.name}: instruction {row} ({bound.plan.describe(row)}) {what}")


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
