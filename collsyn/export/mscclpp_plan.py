"""The plan that does what a MSCCL++ program does, so that everything that judges and times plans does it for these.

Counters of signals become flags, one for each lane that signals: a wait waits for as much as is sure to have happened,
whoever else signalled or waited first.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from collsyn.export.mscclpp import Program
from collsyn.export.mscclpp_lanes import Entry, Key, Lanes, Origin, make_lanes, place_name
from collsyn.model.arrays import F64, Bools, Rows
from collsyn.model.plan import COLUMNS, Op, Plan

_NAMES = tuple(COLUMNS)


@dataclass(frozen=True, eq=False)
class BlockPlan(Plan):
    """A plan that knows which operation of which thread block its instructions belong to, and which move packets."""

    origin: tuple[Origin, ...] = ()
    packets: Bools = field(default_factory=lambda: np.empty(0, dtype=np.bool_))

    @property
    def bytes_on_links(self) -> F64:
        """Packets bring a flag with every word."""
        return np.where(self.packets, 2.0, 1.0)

    def place(self, instruction: int) -> str:
        """The operation that an instruction belongs to, in the words of the file."""
        return place_name(self.origin[instruction])


def block_plan(program: Program) -> BlockPlan:
    """The plan of a program whose form and bounds are sound."""
    return plan_of(make_lanes(program))


def plan_of(lanes: Lanes) -> BlockPlan:
    """The plan of some lanes. O(entries x lanes that signal one counter)."""
    flags = _Flags(lanes)
    rows: list[list[int]] = []
    origin: list[Origin] = []
    packets: list[bool] = []
    ptr = [0]
    for number, lane in enumerate(lanes.lanes):
        raised: dict[Key, int] = defaultdict(int)
        taken: dict[Key, int] = defaultdict(int)
        for entry in lane.entries:
            made = _rows(flags, number, lane.rank, entry, raised, taken)
            rows += made
            origin += [entry.origin] * len(made)
            packets += [entry.packets and entry.op == Op.PUT] * len(made)
        ptr.append(len(rows))
    table = np.array(rows, dtype=np.int64).reshape(-1, len(_NAMES))
    # A segment is at most as long as the user's size.
    longest = lanes.collective.total_units * lanes.factor
    segments = [[min(longest, units - at) for at in range(0, units, longest)] for units in lanes.scratch]
    units = np.array([part for parts in segments for part in parts], dtype=np.int64)
    return BlockPlan(
        collective=lanes.collective,
        num_ranks=lanes.program.num_gpus,
        units_per_chunk_unit=lanes.factor,
        channel_rank=np.array([lane.rank for lane in lanes.lanes], dtype=np.int32),
        channel_ptr=np.array(ptr, dtype=np.int64),
        columns=dict(zip(_NAMES, table.T, strict=True)),
        scratch_ptr=np.cumsum([0, *map(len, segments)]),
        scratch_chunk=np.full(len(units), -1, dtype=np.int32),
        scratch_first=np.zeros(len(units), dtype=np.int64),
        scratch_units=units,
        num_flags=np.array(flags.count, dtype=np.int32),
        routes=Rows.of([]),
        name=lanes.program.name or f"{lanes.program.collective} mscclpp",
        origin=tuple(origin),
        packets=np.array(packets, dtype=np.bool_),
    )


class _Flags:
    """Numbers of flags, which counters they stand for, and how often each lane raises them in all."""

    def __init__(self, lanes: Lanes) -> None:
        self.count = [0] * lanes.program.num_gpus
        self._numbers: dict[tuple[Key, int], int] = {}
        self.given: dict[Key, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.packets = lanes.packets
        self.initial: dict[Key, int] = {}
        for g, gpu in enumerate(lanes.program.gpus):
            for number, value in enumerate(gpu.semaphores):
                self.initial[g, "semaphore", number] = value
        for number, lane in enumerate(lanes.lanes):
            for entry in lane.entries:
                if entry.kind == "give":
                    self.given[entry.key][number] += 1

    def number(self, key: Key, lane: int = -1) -> int:
        """The number of a flag at the rank that its key begins with."""
        if (key, lane) not in self._numbers:
            home = int(key[0])
            self._numbers[key, lane] = self.count[home]
            self.count[home] += 1
        return self._numbers[key, lane]


def _rows(
    flags: _Flags, lane: int, rank: int, entry: Entry, raised: dict[Key, int], taken: dict[Key, int]
) -> list[list[int]]:
    """The instructions of an entry."""
    if entry.kind == "move":
        if not entry.length:
            return []
        return [[entry.op, entry.peer, *entry.dst, *entry.src, *entry.src2, entry.length, 0, 0, -1]]
    if entry.kind == "give":
        raised[entry.key] += 1
        return [_signal(int(entry.key[0]), flags.number(entry.key, lane), raised[entry.key])]
    if entry.kind == "set":
        return [_signal(int(entry.key[0]), flags.number(entry.key), entry.value)]
    if entry.kind == "need":
        return [_wait(rank, flags.number(entry.key), entry.value)]
    if entry.kind == "fetch":
        begin, end = entry.dst[1], entry.dst[1] + entry.length
        written = [key for a, b, key in flags.packets.get(rank, ()) if a < end and begin < b]
        return [_wait(rank, flags.number(key), 1) for key in written]
    if entry.kind == "take":
        taken[entry.key] += 1
        given = flags.given.get(entry.key, {})
        total = sum(given.values())
        made = []
        for signaller, often in given.items():
            sure = taken[entry.key] - flags.initial.get(entry.key, 0) - (total - often)
            if 0 < sure <= often:
                made.append(_wait(_peer(entry, rank), flags.number(entry.key, signaller), sure))
        return made
    return []


def _peer(entry: Entry, rank: int) -> int:
    """The rank that signals what is waited for."""
    return int(entry.key[2]) if entry.key[1] in ("memory", "port") else rank


def _signal(rank: int, flag: int, value: int) -> list[int]:
    return [Op.SIGNAL, rank, 0, 0, 0, 0, 0, 0, 0, flag, value, -1]


def _wait(rank: int, flag: int, value: int) -> list[int]:
    return [Op.WAIT, rank, 0, 0, 0, 0, 0, 0, 0, flag, value, -1]
