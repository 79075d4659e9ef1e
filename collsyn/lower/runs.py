"""Joins the actions of a message into runs of neighbouring chunks, and finds which runs must wait for which."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from collsyn.lower.flow import Flow
from collsyn.lower.places import Action, Place
from collsyn.model.arrays import F64, I64, Bools
from collsyn.model.collective import Collective
from collsyn.model.plan import Buffer

# Segments of a rank's scratch: (chunk, first unit, units) in units of the collective.
Scratch = list[list[tuple[int, int, int]]]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Neighbouring places moved at once: the actions of one message that are contiguous in all buffers.

    `dst`, `src` and `src2` are offsets in units of the collective in the buffers of the first part; `skipped` units of
    the message come before it.
    """

    parts: tuple[Action, ...]
    dst: int
    src: int
    src2: int
    units: int
    skipped: int

    @property
    def first(self) -> Action:
        """The first part, which stands for all of them except in length."""
        return self.parts[0]


class Offsets:
    """Where places begin in their buffers, in units of the collective, and the scratch that they need.

    Scratch is filled in the order of first use, so that chunks which arrive together lie together, or `by_layer`, so
    that chunks which are neighbours elsewhere are neighbours in each layer of it, too.
    """

    def __init__(self, collective: Collective, actions: Sequence[Action], by_layer: bool = False) -> None:
        self._in: list[int] = collective.in_offset.tolist()
        self._out: list[int] = collective.out_offset.tolist()
        self.units: list[int] = collective.units.tolist()
        self.scratch: Scratch = [[] for _ in range(collective.num_ranks)]
        self._scratch_at: dict[int, int] = {}
        filled = [0] * collective.num_ranks
        places = [action.dst for action in actions if action.dst.buffer == Buffer.SCRATCH]
        if by_layer:
            places.sort(key=lambda place: (place.layer, place.chunk))
        for place in places:
            if place.memory not in self._scratch_at:
                self._scratch_at[place.memory] = filled[place.rank]
                filled[place.rank] += self.units[place.chunk]
                self.scratch[place.rank].append((place.chunk, 0, self.units[place.chunk]))

    def of(self, place: Place) -> int:
        """First unit of a place."""
        if place.buffer == Buffer.SCRATCH:
            return self._scratch_at[place.memory]
        return (self._in if place.buffer == Buffer.INPUT else self._out)[place.chunk]


def make_runs(
    flow: Flow, actions: Sequence[Action], offsets: Offsets, whole: Bools, joined_bytes: float = inf
) -> list[Run]:
    """Runs by position; only chunks that are `whole` (not cut into pieces) are joined, up to a length. O(n log n).

    The positions of a message follow each other; an action that was put off to another one stays alone.
    """
    schedule, write_at = flow.schedule, flow.write_at.tolist()
    batch, chunk = schedule.batch.tolist(), schedule.chunk.tolist()
    skipped: dict[int, int] = {}
    behind: dict[int, int] = defaultdict(int)
    for row in np.flatnonzero(schedule.batch >= 0).tolist():
        skipped[row] = behind[batch[row]]
        behind[batch[row]] += offsets.units[chunk[row]]
    groups: dict[tuple[int, ...], list[Action]] = {}
    for number, action in enumerate(actions):
        together = action.row >= 0 and batch[action.row] >= 0 and whole[action.chunk]
        together &= not action.arrives or action.position[0] == write_at[action.row]
        key = (batch[action.row], action.op, action.rank, action.arrives) if together else (-1 - number,)
        groups.setdefault(key, []).append(action)
    longest = joined_bytes * schedule.collective.total_units / schedule.size_bytes
    runs = [run for group in groups.values() for run in _joined(group, offsets, skipped, longest)]
    return sorted(runs, key=lambda run: run.first.position)


def _joined(group: list[Action], offsets: Offsets, skipped: dict[int, int], longest: float) -> list[Run]:
    """Runs of one group of actions, of at most `longest` units unless a chunk is longer."""

    def at(action: Action) -> tuple[int, int, int]:
        second = 0 if action.src2 is None else offsets.of(action.src2)
        return offsets.of(action.dst), offsets.of(action.src), second

    def buffers(action: Action) -> tuple[Buffer, Buffer, Buffer | None]:
        return action.dst.buffer, action.src.buffer, None if action.src2 is None else action.src2.buffer

    if len(group) == 1:
        return [Run((group[0],), *at(group[0]), offsets.units[group[0].chunk], skipped.get(group[0].row, 0))]
    group = sorted(group, key=lambda action: (action.dst.buffer, offsets.of(action.dst)))
    open_runs: list[list[Action]] = []
    end: tuple[int, int, int] | None = None
    total = 0
    for action in group:
        here, units = at(action), offsets.units[action.chunk]
        joins = (
            end is not None
            and here[:2] == end[:2]
            and (action.src2 is None or here[2] == end[2])
            and buffers(action) == buffers(open_runs[-1][-1])
            and total + units <= longest
        )
        total = total + units if joins else units
        if joins:
            open_runs[-1].append(action)
        else:
            open_runs.append([action])
        end = (here[0] + units, here[1] + units, here[2] + units)
    runs = []
    for parts in open_runs:
        units = sum(offsets.units[action.chunk] for action in parts)
        begin = min(skipped.get(action.row, 0) for action in parts)
        runs.append(Run(tuple(parts), *at(parts[0]), units, begin))
    return runs


def dependencies(runs: Sequence[Run]) -> list[list[int]]:
    """Per run the earlier ones that it must wait for: who wrote what it reads or overwrites, and who read what it
    overwrites. Numbers ascend. O(parts)."""
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = defaultdict(list)
    found: list[list[int]] = []
    for number, run in enumerate(runs):
        needs: set[int] = set()
        for action in run.parts:
            for place in (action.src, action.src2):
                if place is not None:
                    if place.memory in writer:
                        needs.add(writer[place.memory])
                    readers[place.memory].append(number)
        for action in run.parts:
            memory = action.dst.memory
            if memory in writer:
                needs.add(writer[memory])
            needs.update(readers.pop(memory, ()))
            writer[memory] = number
        needs.discard(number)
        found.append(sorted(needs))
    return found


@dataclass(frozen=True, eq=False)
class RunTimes:
    """What the schedule says of the times of runs, in seconds.

    A run's bytes leave (or, of one that waits for what lands, arrive) evenly in `start_s .. start_s + span_s`; runs
    that belong to no message come last (infinity). `transfer_s`, `alpha_s` and `overhead_s` are what it costs over its
    route (-1: in no time but that of reducing).
    """

    start_s: F64
    span_s: F64
    transfer_s: F64
    alpha_s: F64
    overhead_s: F64
    route: I64

    @classmethod
    def of(cls, flow: Flow, runs: Sequence[Run]) -> "RunTimes":
        """Times of runs; a part of a message has its share of the message's time."""
        schedule, messages = flow.schedule, flow.schedule.messages
        rows = np.array([run.first.row for run in runs], dtype=np.int64)
        if not schedule.num_sends:
            nothing = np.zeros(len(runs))
            return cls(np.full(len(runs), np.inf), nothing, nothing, nothing, nothing, np.full(len(runs), -1))
        units = np.array([run.units for run in runs], dtype=np.float64)
        skipped = np.array([run.skipped for run in runs], dtype=np.float64)
        arrives = np.array([run.first.arrives for run in runs], dtype=np.bool_)
        remote = np.array([run.first.peer >= 0 for run in runs], dtype=np.bool_)
        reduces = np.array([run.first.src2 is not None for run in runs], dtype=np.bool_)
        message_of = np.empty(schedule.num_sends, dtype=np.int64)
        message_of[messages.rows.data] = np.repeat(np.arange(len(messages)), messages.rows.lengths())
        message = message_of[rows]
        whole_s = np.where(np.isinf(messages.rate), 0.0, messages.num_bytes / messages.rate)[message]
        alpha_s = messages.arrival_s[message] - messages.start_s[message] - whole_s
        unit_bytes = schedule.size_bytes / schedule.collective.total_units
        share, before = (part * unit_bytes / messages.num_bytes[message] for part in (units, skipped))
        start_s = flow.start_s[rows] + before * whole_s + np.where(arrives, alpha_s, 0.0)
        reduce_s = schedule.topology.reduce_s_per_byte[[run.first.rank for run in runs]] * units * unit_bytes
        return cls(
            start_s=np.where(rows >= 0, start_s, np.inf),
            span_s=np.where(rows >= 0, share * whole_s, 0.0),
            transfer_s=np.where(remote, share * whole_s, np.where(reduces, reduce_s, 0.0)),
            alpha_s=np.where(remote, alpha_s, 0.0),
            overhead_s=np.where(remote, messages.busy_s[message] - whole_s, 0.0),
            route=np.where(remote, messages.route[message], -1),
        )
