"""Orders in which the channels of a plan can run: flags decide them alone, so no data is needed."""

import heapq
import random
from collections.abc import Sequence

import numpy as np

from collsyn.errors import VerificationError
from collsyn.model.arrays import I64
from collsyn.model.plan import Op, Plan

_SHOWN = 4


def interleaving(plan: Plan, seed: int | None = None) -> list[int]:
    """All instructions of a plan in an order that its channels and flags allow.

    Without a seed, channels take turns and each goes on until it must wait. Even seeds choose a random channel for
    every instruction; odd seeds give channels random priorities that change now and then, which lets some run far ahead
    of others. Raises VerificationError that names who waits for whom if the plan gets stuck, and for a flag that is not
    there or falls. O(instructions log channels).
    """
    target = flag_ids(plan)
    op, value = plan.columns["op"].tolist(), plan.columns["value"].tolist()
    ends = plan.channel_ptr[1:].tolist()
    position = plan.channel_ptr[:-1].tolist()
    level = [0] * (int(plan.num_flags.sum()))
    waiting: dict[int, list[int]] = {}
    turns = _Turns(len(ends), seed)
    order: list[int] = []
    signal, wait = int(Op.SIGNAL), int(Op.WAIT)
    while turns.queue:
        channel, burst = turns.take()
        at, end = position[channel], ends[channel]
        stop = min(end, at + burst)
        while at < stop:
            if op[at] == wait:
                if level[target[at]] < value[at]:
                    waiting.setdefault(target[at], []).append(channel)
                    break
            elif op[at] == signal:
                flag = target[at]
                if value[at] < level[flag]:
                    raise VerificationError(f"{place(plan, at)}: the flag falls from {level[flag]}")
                level[flag] = value[at]
                for woken in waiting.pop(flag, ()):
                    turns.give(woken)
            order.append(at)
            at += 1
        else:
            if at < end:
                turns.give(channel)
        position[channel] = at
    if len(order) < plan.num_instructions:
        raise VerificationError(_stuck(plan, position, level, target))
    return order


class _Turns:
    """Channels that can go on, and how far the next one may go."""

    def __init__(self, num_channels: int, seed: int | None) -> None:
        self._random = None if seed is None else random.Random(seed)
        self._fair = seed is None or seed % 2 == 0
        self._turn = 0
        self._priority = [self._draw() for _ in range(num_channels)]
        self.queue = [(priority, channel) for channel, priority in enumerate(self._priority)]
        heapq.heapify(self.queue)

    def _draw(self) -> float:
        self._turn += 1
        return self._turn if self._random is None else self._random.random()

    def take(self) -> tuple[int, int]:
        """The next channel, and the number of instructions that it may execute at most."""
        channel = heapq.heappop(self.queue)[1]
        if self._random is None:
            return channel, 1 << 62
        return channel, 1 if self._fair else self._random.choice((1, 2, 8, 64))

    def give(self, channel: int) -> None:
        """Put a channel back that can go on."""
        if self._fair or (self._random is not None and self._random.random() < 0.1):
            self._priority[channel] = self._draw()
        heapq.heappush(self.queue, (self._priority[channel], channel))


def flag_ids(plan: Plan) -> list[int]:
    """Number of the flag that every SIGNAL and WAIT names among all flags of all ranks (-1 elsewhere).

    Raises VerificationError where there is no such rank or flag.
    """
    c = plan.columns
    op, flag = c["op"], c["flag"]
    signals, uses = op == Op.SIGNAL, np.isin(op, [Op.SIGNAL, Op.WAIT])
    owner = np.where(signals, c["peer"], owners(plan))
    bad = uses & ((owner < 0) | (owner >= plan.num_ranks))
    inside = np.clip(owner, 0, plan.num_ranks - 1)
    bad |= uses & ((flag < 0) | (flag >= plan.num_flags[inside]))
    if bad.any():
        raise VerificationError(f"{place(plan, int(np.flatnonzero(bad)[0]))}: there is no such flag")
    first = np.cumsum(plan.num_flags.astype(np.int64)) - plan.num_flags
    ids: list[int] = np.where(uses, first[inside] + flag, -1).tolist()
    return ids


def owners(plan: Plan) -> I64:
    """Rank that executes each instruction."""
    return np.repeat(plan.channel_rank, np.diff(plan.channel_ptr)).astype(np.int64)


def place(plan: Plan, instruction: int) -> str:
    """How messages name an instruction."""
    return plan.place(instruction)


def _stuck(plan: Plan, position: Sequence[int], level: Sequence[int], target: Sequence[int]) -> str:
    """Who waits for whom: every channel that is not at its end stands at a wait."""
    op, value = plan.columns["op"], plan.columns["value"]
    at, end = np.array(position), plan.channel_ptr[1:]
    stuck = np.flatnonzero(at < end)
    flags = np.array(target)
    lines = []
    for channel in stuck[:_SHOWN].tolist():
        wait = position[channel]
        raises = np.flatnonzero((op == Op.SIGNAL) & (flags == target[wait]) & (value >= value[wait]))
        reason = f"the flag is {level[target[wait]]}"
        if len(raises):
            signaller = int(np.searchsorted(plan.channel_ptr, raises[0], side="right")) - 1
            reason += f" and waits for {place(plan, int(raises[0]))}, which comes behind "
            reason += place(plan, position[signaller])
        else:
            reason += " and nobody raises it that far"
        lines.append(f"{place(plan, wait)}: {reason}")
    more = f"; and {len(stuck) - _SHOWN} more" if len(stuck) > _SHOWN else ""
    return f"deadlock, {len(stuck)} channels wait: {'; '.join(lines)}{more}"
