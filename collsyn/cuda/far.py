"""What a rank's instructions become where they concern ranks in other boxes: requests to its proxy.

The steps are those of host ranks (`runtime/crossing.py`); only where things are differs. A kernel cannot copy into the
proxy's letters, so every put is awaited before what it sends may change.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collsyn.check.execute import operands
from collsyn.cuda.layout import CONTROL, FLAG_BYTES, FLAGS_AT, SLOTS, rank_memory, rank_records
from collsyn.errors import InputError
from collsyn.model.arrays import I64
from collsyn.model.bind import BoundPlan
from collsyn.model.plan import Buffer, Op
from collsyn.runtime.arena import PAGE
from collsyn.runtime.crossing import AWAIT, FETCH, RAISE, SEND, SEND_DIRECT, Steps, cross

# As `lane` in device/launch.cuh and runtime/native/device.h.
LANE_BYTES = 128 + 8 * 64


@dataclass(frozen=True)
class Beyond:
    """The ranks of a rank's own box, and from how many bytes on data is sent from where it is."""

    near: frozenset[int]
    direct_from: int


@dataclass(frozen=True, eq=False)
class Crossing:
    """A rank's records, of the plan's instructions `rows`.

    Channel k ends at `ends[k]` and awaits `asks[k]` answers in a call; `is_asked` are the records for the proxy. Behind
    the rank's own memory `room` bytes are for what it fetches.
    """

    records: npt.NDArray[np.void]
    rows: I64
    ends: I64
    asks: I64
    is_asked: npt.NDArray[np.bool_]
    room: int


def crossing(bound: BoundPlan, rank: int, rows: I64, ends: I64, width: int, beyond: Beyond) -> Crossing:
    """The records of a rank whose channels end at `ends` of `rows`, for elements of `width` bytes.

    Raises InputError where a far rank's lent buffer is touched. Linear in the instructions and their pieces.
    """
    steps = cross(bound, rows, ends, beyond.near, beyond.direct_from, all_await=True)
    kind = np.where(steps.kind == SEND_DIRECT, SEND, steps.kind)
    asked = kind >= 0
    records = rank_records(bound, steps.rows, width)
    # Instructions in pieces: the places of this one.
    for field in ("dst", "src", "src2"):
        records[field] += steps.skip.astype(np.uint64)
    op, peer = bound.columns["op"][steps.rows], steps.peer
    pieces = (kind < 0) & (op == Op.GET_REDUCE)
    records["count"] = np.where(asked, steps.length, np.where(pieces, steps.length // width, records["count"]))
    records["kind"][asked] = kind[asked]
    records["src2_slot"][asked] = peer[asked]
    _name_places(bound, records, steps, kind)
    channel = np.searchsorted(steps.end, np.arange(len(kind)), side="right")
    counted = np.isin(kind, [SEND, FETCH])
    so_far = np.cumsum(counted)
    before = np.concatenate([[0], so_far])[np.concatenate([[0], steps.end[:-1]])] if len(steps.end) else so_far[:0]
    awaits = kind == AWAIT
    records["value"][awaits] = (so_far - before[channel])[awaits]
    room = _fetched(bound, rank, records, steps, kind, channel)
    asks = np.bincount(channel[counted], minlength=len(steps.end)) if len(kind) else np.zeros(len(steps.end), np.int64)
    return Crossing(records, steps.rows, steps.end, asks.astype(np.int64), asked, room)


def _name_places(bound: BoundPlan, records: npt.NDArray[np.void], steps: Steps, kind: I64) -> None:
    """Places in far ranks' memory, from its begin, in place of slots that this process cannot reach."""
    begins = np.array(
        [rank_memory(bound, rank).offsets for rank in range(bound.plan.num_ranks)], dtype=np.uint64
    ).reshape(-1)
    columns = bound.columns
    raised = kind == RAISE
    flags = columns["flag"][steps.rows[raised]].astype(np.uint64)
    records["dst"][raised] = FLAGS_AT + flags * np.uint64(FLAG_BYTES)
    for which, used, _ in operands(bound):
        far = (kind == SEND) if which == "dst" else (kind == FETCH) & (steps.length > 0)
        if which == "src2":
            continue
        far = far & used[steps.rows]
        slots = records[f"{which}_slot"][far]
        turns = np.array([rank_memory(bound, int(rank)).turn_bytes for rank in slots // SLOTS], dtype=np.uint64)
        records["value"][far] = np.where(slots % SLOTS == Buffer.SCRATCH, turns, 0)
        if bound.is_lent and (slots % SLOTS < 2).any():
            raise InputError(f"plan {bound.plan.name}: touches a peer's buffer, which is lent")
        records[which][far] += begins[slots]
        records[f"{which}_slot"][far] = 0


def _fetched(bound: BoundPlan, rank: int, records: npt.NDArray[np.void], steps: Steps, kind: I64, channel: I64) -> int:
    """Let reductions of a far rank's bytes find them behind the rank's own memory, a piece a channel at a time."""
    flushes = (kind == FETCH) & (steps.length == 0)
    records["dst_slot"][flushes] = SLOTS * rank + CONTROL
    records["dst"][flushes] = records["value"][flushes] = 0
    if not steps.longest:
        return 0
    op = bound.columns["op"][steps.rows]
    room = -(-steps.longest // PAGE) * PAGE
    place = (rank_memory(bound, rank).size + channel * room).astype(np.uint64)
    fetches = (kind == FETCH) & (steps.length > 0) & (op == Op.GET_REDUCE)
    sums = np.flatnonzero(fetches) + 2
    records["dst_slot"][fetches] = records["src_slot"][sums] = SLOTS * rank + CONTROL
    records["dst"][fetches], records["src"][sums] = place[fetches], place[sums]
    return room * len(steps.end)
