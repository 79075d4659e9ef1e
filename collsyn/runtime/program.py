"""One rank's share of a bound plan with every place resolved to an address of this process: what executors run."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collsyn.check.execute import operands
from collsyn.errors import InputError
from collsyn.model.arrays import I64
from collsyn.model.bind import BoundPlan
from collsyn.model.plan import Buffer, Op
from collsyn.runtime.arena import BARRIER_FLAGS, LINE, PAGE, Elsewhere, Segment
from collsyn.runtime.crossing import AWAIT, FETCH, RAISE, SEND, Route, Steps, cross
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
    """Where a rank's flags (at 0) and buffers stand in its segment of `size` bytes; in every other call scratch is
    `turn_bytes` further."""

    offsets: tuple[int, int, int]
    size: int
    turn_bytes: int = 0


@dataclass(frozen=True, eq=False)
class Program:
    """Records of all channels of a rank, one channel behind the other.

    Channel k of the rank holds records `end[k - 1] : end[k]` (from 0 for the first one); `rows[i]` is the plan's
    instruction that record i stands for, and `inward[i]` says that it waits for another channel of the same rank.
    Flags rise by at most `highest_value` in a call. Where input and output are lent, `lent` holds (field, buffer,
    records, offsets) of the places in them, which `lend` makes addresses. With a `route`, some records are for ranks in
    other boxes; `fetched` is where reductions of their bytes find these.
    """

    records: npt.NDArray[np.void]
    end: I64
    rows: I64
    highest_value: int
    inward: npt.NDArray[np.bool_]
    lent: tuple[tuple[str, Buffer, I64, npt.NDArray[np.uint64]], ...] = ()
    route: Route | None = None
    fetched: npt.NDArray[np.uint8] | None = None

    def lend(self, addresses: Mapping[Buffer, int]) -> None:
        """Let the next runs work on buffers at these addresses."""
        for field, buffer, records, offsets in self.lent:
            self.records[field][records] = offsets + np.uint64(addresses[buffer])

    def place_of(self, record: int) -> tuple[int, int]:
        """Channel within the rank, and instruction within the channel."""
        channel = int(np.searchsorted(self.end, record, side="right"))
        return channel, int(self.rows[record] - self.rows[self.end[channel - 1] if channel else 0])

    def peer_of(self, record: int, bound: BoundPlan) -> int:
        """The rank that a record waits for or deals with, or -1."""
        one = self.records[record]
        return int(one["src2"]) if one["kind"] >= SEND else int(bound.plan.columns["peer"][self.rows[record]])


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
    turn_bytes = _pages(sizes[Buffer.SCRATCH]) if bound.plan.runs_ahead else 0
    at += turn_bytes
    if alias is not None:
        offsets[alias[0]] = offsets[alias[1]] + alias[2]
    return RankLayout((offsets[0], offsets[1], offsets[2]), at, turn_bytes)


def peers_of(bound: BoundPlan, rank: int) -> list[int]:
    """Ranks whose segments the rank's instructions touch, itself included."""
    rows = _rows_of(bound, rank)[0]
    op, peer = bound.columns["op"][rows], bound.columns["peer"][rows]
    touched = np.isin(op, [Op.PUT, Op.GET, Op.GET_REDUCE, Op.SIGNAL])
    return sorted({rank, *np.unique(peer[touched]).tolist()})


def make_program(
    bound: BoundPlan,
    rank: int,
    segments: Sequence[Segment | Elsewhere],
    bells: Sequence[int],
    width: int,
    near: Collection[int] | None = None,
    route: Route | None = None,
    turn: int = 0,
) -> Program:
    """Resolve the rank's instructions, all of whose places must be in range.

    `segments` are those of all ranks, `bells` the addresses of their control blocks, `width` the bytes of an element.
    With a `route`, ranks that are not `near` are reached by it. `turn` is 1 for every other call of a plan that runs
    ahead. Linear in the instructions.
    """
    rows, end = _rows_of(bound, rank)
    steps = None
    if route is not None and near is not None:
        steps = cross(bound, rows, end, near, route.proxy.direct_from)
        rows, end = steps.rows, steps.end
    c = {key: values[rows] for key, values in bound.columns.items()}
    if steps is not None:
        c["length"] = steps.length
    base = np.zeros((bound.plan.num_ranks, len(Buffer)), dtype=np.uint64)
    flags = np.zeros(bound.plan.num_ranks, dtype=np.uint64)
    for owner, segment in enumerate(segments):
        layout = rank_layout(bound, owner)
        base[owner] = [segment.address + offset for offset in layout.offsets]
        base[owner, Buffer.SCRATCH] += np.uint64(turn * layout.turn_bytes)
        flags[owner] = segment.address
    op = c["op"]
    records = np.zeros(len(rows), dtype=RECORD)
    records["kind"] = KIND_OF_OP[op]
    lent = []
    for which, used, owners in operands(bound):
        is_here = used[rows] if steps is None else used[rows] & _holds(steps, op, which)
        buffer = np.where(used, bound.columns[f"{which}_buffer"], 0)[rows]
        offset = (c[f"{which}_offset"] + (0 if steps is None else steps.skip)).astype(np.uint64)
        for lendable in (Buffer.INPUT, Buffer.OUTPUT) if bound.is_lent else ():
            at = np.flatnonzero(is_here & (buffer == lendable))
            if (owners[rows][at] != rank).any():
                raise InputError(f"plan {bound.plan.name}: touches a peer's {lendable.name.lower()}, which is lent")
            lent.append((which, lendable, at, offset[at]))
        records[which] = np.where(is_here, base[owners[rows], buffer] + offset, 0)
    reduces = records["kind"] == REDUCE
    records["kind"][(records["kind"] == MOVE) & past_the_caches(bound)[rows]] = STREAM
    records["count"] = np.where(reduces, c["length"] // width, c["length"])
    signals, waits = op == Op.SIGNAL, op == Op.WAIT
    line = c["flag"].astype(np.uint64) * np.uint64(LINE)
    records["dst"][signals] = flags[c["peer"][signals]] + line[signals]
    records["dst"][waits] = flags[rank] + line[waits]
    records["src"][signals] = np.asarray(bells, dtype=np.uint64)[c["peer"][signals]]
    records["value"] = np.where(signals | waits, c["value"], 0)
    fetched = None if steps is None else _cross(records, steps, op)
    valued = np.isin(bound.columns["op"], [Op.SIGNAL, Op.WAIT])
    highest = int(bound.columns["value"][valued].max(initial=0))
    return Program(records, end, rows, highest, waits & (c["peer"] == rank), tuple(lent), route, fetched)


def _holds(steps: Steps, op: I64, which: str) -> npt.NDArray[np.bool_]:
    """Records that have an operand at its own place."""
    if which == "src2":
        return steps.kind < 0
    direct: npt.NDArray[np.bool_] = ~np.isin(steps.kind, [FETCH, AWAIT])
    fetches: npt.NDArray[np.bool_] = (steps.kind == FETCH) & (steps.length > 0)
    fetches &= (which == "src") | (op != Op.GET_REDUCE)
    found: npt.NDArray[np.bool_] = fetches | (direct & ((which == "dst") | ~_sums_fetched(steps, op)))
    return found


def _sums_fetched(steps: Steps, op: I64) -> npt.NDArray[np.bool_]:
    """Records that reduce what the record before the last one fetched."""
    found: npt.NDArray[np.bool_] = np.zeros(len(op), dtype=np.bool_)
    found[2:] = (steps.kind[2:] < 0) & (op[2:] == Op.GET_REDUCE) & (steps.kind[:-2] == FETCH)
    found[2:] &= (steps.rows[2:] == steps.rows[:-2]) & (steps.kind[1:-1] == AWAIT)
    return found


def _cross(records: npt.NDArray[np.void], steps: Steps, op: I64) -> npt.NDArray[np.uint8] | None:
    """Make records ones for far ranks where they are; the memory that they fetch to before they reduce."""
    far = steps.kind >= 0
    records["kind"][far] = steps.kind[far]
    records["count"][far] = steps.length[far]
    records["src2"][far] = steps.peer[far].astype(np.uint64)
    records["src"][steps.kind == RAISE] = 0
    if not steps.longest:
        return None
    # A channel fetches one piece at a time.
    room = _pages(steps.longest)
    fetched = np.empty(room * len(steps.end), dtype=np.uint8)
    channel = np.searchsorted(steps.end, np.arange(len(op)), side="right").astype(np.uint64)
    place = np.uint64(fetched.ctypes.data) + channel * np.uint64(room)
    sums = _sums_fetched(steps, op)
    fetches = np.flatnonzero(sums) - 2
    records["src"][sums] = place[sums]
    records["dst"][fetches] = place[fetches]
    return fetched


def barrier_program(rank: int, controls: Sequence[int], route: Route | None = None) -> Program:
    """A dissemination barrier on flags in the control blocks at these addresses: log2(ranks) rounds.

    Blocks of ranks in other boxes have none (0), and are reached by the route.
    """
    size, records = len(controls), []
    for turn in range((size - 1).bit_length()):
        whom = (rank + (1 << turn)) % size
        peer, at = controls[whom], BARRIER_FLAGS + turn * LINE
        records.append((SIGNAL, peer + at, peer, 0, 0, 1) if peer else (RAISE, at, 0, whom, 0, 1))
        records.append((WAIT, controls[rank] + at, 0, 0, 0, 1))
    table = np.array(records, dtype=RECORD)
    end = np.array([len(table)], dtype=np.int64)
    return Program(table, end, np.arange(len(table)), 1, np.zeros(len(table), dtype=np.bool_), route=route)


def _rows_of(bound: BoundPlan, rank: int) -> tuple[I64, I64]:
    """Instructions of all channels of the rank in order, and the end of each channel among them."""
    channels = bound.plan.channels_of(rank)
    begin, stop = bound.plan.channel_ptr[channels], bound.plan.channel_ptr[channels + 1]
    parts = [np.arange(a, b, dtype=np.int64) for a, b in zip(begin.tolist(), stop.tolist(), strict=True)]
    return np.concatenate([np.empty(0, dtype=np.int64), *parts]), np.cumsum(stop - begin)


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
