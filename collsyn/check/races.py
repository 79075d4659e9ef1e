"""Finds accesses of a plan to the same bytes that no flag puts in order, whatever order a run happens to take."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collsyn.check.execute import check_ranges, operands
from collsyn.check.interleave import flag_ids, interleaving, place
from collsyn.model.arrays import I64
from collsyn.model.bind import BoundPlan, bind
from collsyn.model.plan import Buffer, Op, Plan

# (rank, first interval, last interval + 1, whether it writes, whether it may before the rank has begun the call)
_Access = tuple[int, int, int, bool, bool]


def races(plan: Plan, in_place: bool = False, limit: int = 10) -> list[str]:
    """Pairs of instructions of a plan that race, in words, at most `limit`; see `races_of`.

    The plan is bound to the size at which every unit is one element.
    """
    return races_of(bind(plan, plan.total_units, 1, in_place), limit)


def races_of(bound: BoundPlan, limit: int = 10, order: Sequence[int] | None = None) -> list[str]:
    """Instructions that touch the same bytes, one of them writing, in an order that nothing enforces.

    Vector clocks over channels: a channel orders its own instructions, and a wait comes behind the signal that raises
    its flag far enough (a flag that several channels signal orders nothing). A rank's buffers may be touched by others
    only after one of its channels has begun, and before its last one ends: both show as races with the call itself.
    Where a plan runs ahead, puts into scratch need no beginning, but whoever made one must know of it before its end:
    the call before the next one, which comes to the same place, is then over wherever it was read.
    `order` is any in which the instructions may run, if one is known. Raises VerificationError for deadlocks and ranges
    outside buffers. O(instructions x channels) in the worst case.
    """
    check_ranges(bound)
    order = interleaving(bound.plan) if order is None else order
    accesses = _accesses(bound)
    clocks = _Clocks(bound.plan)
    memory = _Memory(bound.plan, clocks, limit)
    op = bound.plan.columns["op"].tolist()
    signal, wait = int(Op.SIGNAL), int(Op.WAIT)
    for instruction in order:
        if op[instruction] == wait:
            clocks.wait(instruction)
        elif op[instruction] == signal:
            clocks.signal(instruction)
        else:
            for access in accesses[instruction]:
                memory.touch(instruction, access)
        if len(memory.found) >= limit:
            return memory.found
    memory.leave()
    return memory.found[:limit]


class _Clocks:
    """What every channel knows: the instructions of channel q before number `known[c][q]` are done.

    It is -1 where even the beginning of q's call is unknown. Arrays are replaced, never changed: signals keep them.
    """

    def __init__(self, plan: Plan) -> None:
        self.first = plan.channel_ptr[:-1]
        self.rank_of = plan.channel_rank.tolist()
        self.channel_of = np.repeat(np.arange(plan.num_channels), np.diff(plan.channel_ptr)).tolist()
        begun = {
            rank: np.where(plan.channel_rank == rank, self.first, -1) for rank in np.unique(plan.channel_rank).tolist()
        }
        self.known: list[I64] = [begun[rank] for rank in self.rank_of]
        self._flag = flag_ids(plan)
        self._value = plan.columns["value"].tolist()
        self._raised: dict[int, list[tuple[int, int, I64]]] = defaultdict(list)
        signals = np.flatnonzero(plan.columns["op"] == Op.SIGNAL).tolist()
        signallers: dict[int, set[int]] = defaultdict(set)
        for instruction in signals:
            signallers[self._flag[instruction]].add(self.channel_of[instruction])
        self._shared = {flag for flag, channels in signallers.items() if len(channels) > 1}

    def signal(self, instruction: int) -> None:
        """Remember what the channel knows when it raises the flag."""
        known = self.known[self.channel_of[instruction]]
        self._raised[self._flag[instruction]].append((self._value[instruction], instruction, known))

    def wait(self, instruction: int) -> None:
        """Learn what the signaller knew."""
        flag, value = self._flag[instruction], self._value[instruction]
        if flag in self._shared or value < 1:
            return
        raised = self._raised[flag]
        _, signal, theirs = raised[bisect_left(raised, value, key=lambda entry: entry[0])]
        channel = self.channel_of[instruction]
        known = np.maximum(self.known[channel], theirs)
        signaller = self.channel_of[signal]
        known[signaller] = max(known[signaller], signal + 1)
        self.known[channel] = known

    def ordered(self, earlier: int, later: int) -> bool:
        """Whether the instruction that ran earlier is known to the channel of the later one."""
        before, after = self.channel_of[earlier], self.channel_of[later]
        return before == after or bool(self.known[after][before] > earlier)


@dataclass(slots=True, eq=False)
class _Touches:
    """Who last wrote an interval (-1: nobody), and who has read it since: channel to instruction."""

    writer: int
    readers: dict[int, int]


class _Memory:
    """Last accesses of every interval of every rank's memory, and the races found."""

    def __init__(self, plan: Plan, clocks: _Clocks, limit: int) -> None:
        self._plan, self._clocks, self._limit = plan, clocks, limit
        self._touches: dict[tuple[int, int], _Touches] = {}
        self._visits: dict[tuple[int, int], int] = {}
        self._a_channel = {rank: channel for channel, rank in reversed(list(enumerate(clocks.rank_of)))}
        self._early: dict[tuple[int, int], int] = {}
        self._seen: set[tuple[int, int]] = set()
        self.found: list[str] = []

    def touch(self, instruction: int, access: _Access) -> None:
        """One access; compared with those before it that conflict."""
        rank, first, last, writes, may_be_early = access
        clocks, channel = self._clocks, self._clocks.channel_of[instruction]
        if clocks.rank_of[channel] != rank:
            self._visits[rank, channel] = instruction
            host = self._a_channel.get(rank)
            if may_be_early:
                self._early[clocks.rank_of[channel], rank] = instruction
            elif host is None or clocks.known[channel][host] < 0:
                self._report(instruction, -1, f"touches rank {rank}, which may not have begun the call")
        for interval in range(first, last):
            touches = self._touches.get((rank, interval))
            if touches is None:
                touches = self._touches[rank, interval] = _Touches(-1, {})
            self._compare(touches.writer, instruction)
            if writes:
                for reader in touches.readers.values():
                    self._compare(reader, instruction)
                touches.writer, touches.readers = instruction, {}
            else:
                touches.readers[channel] = instruction

    def leave(self) -> None:
        """The end of the call: all visitors of a rank must be known to have gone."""
        known: dict[int, I64] = {}
        for channel, rank in enumerate(self._clocks.rank_of):
            mine = self._clocks.known[channel]
            known[rank] = np.maximum(known[rank], mine) if rank in known else mine
        for (rank, channel), instruction in self._visits.items():
            if rank not in known or known[rank][channel] <= instruction:
                self._report(instruction, -2, f"touches rank {rank}, which may have ended the call")
        for (visitor, rank), instruction in self._early.items():
            host = self._a_channel.get(rank)
            if host is None or known[visitor][host] < 0:
                what = f"touches rank {rank}, which may not have begun the call when rank {visitor} ends it"
                self._report(instruction, -3, what)

    def _compare(self, earlier: int, later: int) -> None:
        if earlier >= 0 and earlier != later and not self._clocks.ordered(earlier, later):
            self._report(later, earlier, f"races with {place(self._plan, earlier)}")

    def _report(self, instruction: int, other: int, what: str) -> None:
        if (instruction, other) not in self._seen and len(self.found) < self._limit:
            self._seen.add((instruction, other))
            self.found.append(f"{place(self._plan, instruction)} {what}")


def _accesses(bound: BoundPlan) -> list[list[_Access]]:
    """What every instruction touches, as intervals of a rank's memory between the ends of all ranges there."""
    c = bound.columns
    base = np.zeros((bound.plan.num_ranks, len(Buffer)), dtype=np.int64)
    for rank, alias in enumerate(bound.alias):
        base[rank] = np.cumsum(bound.buffer_bytes[rank]) - bound.buffer_bytes[rank]
        if alias is not None:
            base[rank, alias[0]] = base[rank, alias[1]] + alias[2]
    # A copy onto itself, as of a rank's own shard in place, is left out by executors.
    still = np.isin(c["op"], [Op.COPY, Op.PUT, Op.GET])
    address = {
        which: (rank, base[rank, c[f"{which}_buffer"] * used] + c[f"{which}_offset"])
        for which, used, rank in operands(bound)
    }
    still &= (address["dst"][0] == address["src"][0]) & (address["dst"][1] == address["src"][1])
    parts = []
    early = bound.plan.runs_ahead & (c["op"] == Op.PUT) & (c["dst_buffer"] == Buffer.SCRATCH)
    for which, used, _ in operands(bound):
        rows = np.flatnonzero(used & (c["length"] > 0) & ~still)
        where, begin = (values[rows] for values in address[which])
        is_write = np.full(len(rows), which == "dst")
        parts.append((rows, where, begin, begin + c["length"][rows], is_write, is_write & early[rows]))
    row, owner, begin, end, writes, is_early = (np.concatenate(column) for column in zip(*parts, strict=True))
    for each in np.unique(owner).tolist():
        here = owner == each
        ends = np.unique(np.concatenate([begin[here], end[here]]))
        begin[here], end[here] = np.searchsorted(ends, begin[here]), np.searchsorted(ends, end[here])
    accesses: list[list[_Access]] = [[] for _ in range(bound.plan.num_instructions)]
    # Reads before writes: an instruction may overwrite what it reads.
    order = np.lexsort((writes, row))
    columns = [column[order].tolist() for column in (row, owner, begin, end, writes, is_early)]
    for instruction, *access in zip(*columns, strict=True):
        accesses[instruction].append(tuple(access))
    return accesses
