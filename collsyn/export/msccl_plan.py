"""The plan that does what an MSCCL program does, its first-in-first-out channels written out as slots and flags.

A message goes into one of the slots of its channel at the receiver, which are as many as the runtime's buffer holds
pieces; the sender waits until the slot is free, the receiver until it is full. So everything that judges plans judges
the program as its runtime runs it.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import lcm

import numpy as np

from collsyn.export.msccl import (
    PROTOCOLS,
    RECEIVES,
    SENDS,
    Program,
    Step,
    shard_chunks,
    where,
)
from collsyn.model.arrays import F64, I64, Rows
from collsyn.model.collective import Collective, make_collective
from collsyn.model.kinds import ROOTED
from collsyn.model.plan import COLUMNS, Buffer, Op, Plan

# (channel, source, destination)
Connection = tuple[int, int, int]
# A place in a rank's memory.
_At = tuple[int, int]

# More iterations than these overlap no better.
_MAX_ITERATIONS = 8
_NAMES = tuple(COLUMNS)
_SETUP = "before the first step"


@dataclass(frozen=True, eq=False)
class FifoPlan(Plan):
    """A plan that knows which step of which program its instructions belong to.

    Row i of `origin` is (gpu, thread block, step) of instruction i, -1 where it belongs to none; `chunk_units` are the
    units of one chunk of the program; `base[g]` says where the buffers `i`, `o` and `s` of GPU g begin.
    """

    program: Program | None = None
    origin: I64 = field(default_factory=lambda: np.empty((0, 3), dtype=np.int64))
    chunk_units: int = 1
    base: tuple[Mapping[str, _At], ...] = ()

    @property
    def bytes_on_links(self) -> F64:
        """The flags that a protocol sends with the data."""
        wire = 1.0 if self.program is None else PROTOCOLS[self.program.protocol].bytes_on_links
        return np.where(self.columns["op"] == Op.PUT, wire, 1.0)

    def place(self, instruction: int) -> str:
        """The step that an instruction belongs to, in the words of the file."""
        gpu, block, step = self.origin[instruction].tolist()
        if self.program is None or block < 0:
            return where(gpu)
        if step < 0:
            return f"{where(gpu, block)} {_SETUP}"
        which = self.program.gpus[gpu].blocks[block].steps[step]
        return f"{where(gpu, block, step, which.line)} {which.op}"


def slices_at(program: Program, size_bytes: int) -> int:
    """Slices of a chunk at a size: so often the runtime goes through the steps."""
    return max(1, -(-(size_bytes // program.num_chunks) // PROTOCOLS[program.protocol].slice_bytes))


def iterations_at(program: Program, size_bytes: int) -> int:
    """How often the plan of a program goes through the steps at a size: once for every slice, at most 8 times."""
    return min(_MAX_ITERATIONS, slices_at(program, size_bytes))


def collective_of(program: Program, root: int = 0) -> Collective:
    """What a program is for; `root` is what the file does not say."""
    kind, num_gpus = program.collective, program.num_gpus
    if kind in ROOTED:
        per_rank = program.num_chunks // (1 if kind in ("broadcast", "reduce") else num_gpus)
        return make_collective(kind, num_gpus, per_rank, root)
    return make_collective(kind, num_gpus, 1 if kind == "allreduce" else program.num_chunks // num_gpus)


def fifo_plan(
    program: Program, in_place: bool, root: int = 0, longest: int = 1, iterations: int = 1, depth: int | None = None
) -> FifoPlan:
    """The plan of a program whose channels and dependencies are sound (see `msccl_check`).

    `longest` are the chunks that travel as one piece at most; the runtime takes as many as fit into its slices. A
    channel holds `depth` pieces (by default what the protocol holds). `in_place` lays input and output into one memory,
    a part of scratch that is filled from the input before and read out after, so that the plan can run out of place.
    O(steps).
    """
    return _Writer(program, in_place, root, longest, iterations, depth or PROTOCOLS[program.protocol].depth).plan()


class _Writer:
    """Rows of the plan, channel after channel."""

    def __init__(self, program: Program, in_place: bool, root: int, longest: int, iterations: int, depth: int) -> None:
        self.program, self.in_place, self.depth = program, in_place, depth
        self.longest = 1 if iterations > 1 else longest
        self.iterations = iterations
        self.collective = collective_of(program, root)
        total = self.collective.total_units
        self.factor = lcm(total, program.num_chunks * iterations) // total
        self.unit = total * self.factor // program.num_chunks
        self.rows: list[list[int]] = []
        self.origin: list[tuple[int, int, int]] = []
        self.here = (0, -1, -1)
        self.waited = {
            (g, step.dep_block) for g, _, _, step in program.steps() if step.dep_block >= 0 and step.dep_step >= 0
        }
        self._count_messages()
        self._place_memory()

    def _pieces(self, step: Step) -> list[tuple[int, int]]:
        """(chunks before it, chunks) of the pieces that a step moves."""
        return [(at, min(self.longest, step.count - at)) for at in range(0, step.count, self.longest)]

    def _count_messages(self) -> None:
        """Messages of every connection, and the flags and slots that they need."""
        self.messages: Counter[Connection] = Counter()
        self.slot_chunks: dict[Connection, int] = defaultdict(int)
        program = self.program
        for g, b, _, step in program.steps():
            if step.op in SENDS:
                block = program.gpus[g].blocks[b]
                line = (block.channel, g, block.send)
                self.messages[line] += len(self._pieces(step)) * self.iterations
                self.slot_chunks[line] = max(self.slot_chunks[line], min(step.count, self.longest))
        # Flags of a rank: one a thread block, the setup, one a thread block at its end, then those of connections.
        self.num_flags = [2 * len(gpu.blocks) + 1 for gpu in program.gpus]
        self.full_flag: dict[Connection, int] = {}
        self.free_flag: dict[Connection, int] = {}
        for line in sorted(self.messages):
            _, src, dst = line
            for flags, rank in ((self.full_flag, dst), (self.free_flag, src)):
                flags[line] = self.num_flags[rank]
                self.num_flags[rank] += 1

    def _place_memory(self) -> None:
        """Where the buffers of the program begin, and the lengths of scratch."""
        program, unit = self.program, self.unit
        inputs, outputs = shard_chunks(program.num_chunks, program.collective, program.num_gpus)
        self.base: list[dict[str, _At]] = []
        self.scratch = [gpu.scratch_chunks * unit for gpu in program.gpus]
        # (scratch offset, buffer, units) of what is copied in before and out after.
        self.copies: list[list[tuple[int, Buffer, int]]] = []
        extents = _user_units(self.collective, self.factor)
        for g in range(program.num_gpus):
            base: dict[str, _At] = {"i": (Buffer.INPUT, 0), "o": (Buffer.OUTPUT, 0), "s": (Buffer.SCRATCH, 0)}
            copies: list[tuple[int, Buffer, int]] = []
            if self.in_place:
                at = self.scratch[g]
                base["i"] = (Buffer.SCRATCH, at + (g * inputs * unit if inputs < outputs else 0))
                base["o"] = (Buffer.SCRATCH, at + (g * outputs * unit if outputs < inputs else 0))
                self.scratch[g] += max(inputs, outputs) * unit
                for name, buffer in (("i", Buffer.INPUT), ("o", Buffer.OUTPUT)):
                    if extents[g][buffer]:
                        copies.append((base[name][1], buffer, extents[g][buffer]))
            self.base.append(base)
            self.copies.append(copies)
        self.slots: dict[Connection, int] = {}
        for line in sorted(self.messages):
            self.slots[line] = self.scratch[line[2]]
            self.scratch[line[2]] += self.depth * self.slot_chunks[line] * unit

    def plan(self) -> FifoPlan:
        """All channels."""
        program = self.program
        ranks, ptr = [], [0]
        for g, gpu in enumerate(program.gpus):
            for b in range(len(gpu.blocks)):
                self._block(g, b)
                ranks.append(g)
                ptr.append(len(self.rows))
            if self.in_place:
                self._around(g)
                ranks.append(g)
                ptr.append(len(self.rows))
        table = np.array(self.rows, dtype=np.int64).reshape(-1, len(_NAMES))
        # A segment is at most as long as the user's size.
        longest = self.collective.total_units * self.factor
        segments = [[min(longest, units - at) for at in range(0, units, longest)] for units in self.scratch]
        units = np.array([part for parts in segments for part in parts], dtype=np.int64)
        return FifoPlan(
            collective=self.collective,
            num_ranks=program.num_gpus,
            units_per_chunk_unit=self.factor,
            channel_rank=np.array(ranks, dtype=np.int32),
            channel_ptr=np.array(ptr, dtype=np.int64),
            columns=dict(zip(_NAMES, table.T, strict=True)),
            scratch_ptr=np.cumsum([0, *map(len, segments)]),
            scratch_chunk=np.full(len(units), -1, dtype=np.int32),
            scratch_first=np.zeros(len(units), dtype=np.int64),
            scratch_units=units,
            num_flags=np.array(self.num_flags, dtype=np.int32),
            routes=Rows.of([]),
            name=program.name or f"{program.collective} msccl",
            program=program,
            origin=np.array(self.origin, dtype=np.int64).reshape(-1, 3),
            chunk_units=self.unit,
            base=tuple(self.base),
        )

    def _block(self, g: int, b: int) -> None:
        """A thread block: every iteration of its steps."""
        block = self.program.gpus[g].blocks[b]
        self.here = (g, b, -1)
        into: Connection = (block.channel, block.recv, g)
        out: Connection = (block.channel, g, block.send)
        if self.messages[into] and any(step.op in RECEIVES for step in block.steps):
            self._signal(block.recv, self.free_flag[into], 1)
        if self.in_place:
            self._wait(g, 2 * len(self.program.gpus[g].blocks), 1)
        sent = received = 0
        for iteration in range(self.iterations):
            for s, step in enumerate(block.steps):
                self.here = (g, b, s)
                if step.dep_block >= 0 and step.dep_step >= 0:
                    behind = iteration * len(self.program.gpus[g].blocks[step.dep_block].steps)
                    self._wait(g, step.dep_block, behind + step.dep_step + 1)
                if step.op != "nop":
                    for piece in self._pieces(step):
                        self._move(g, step, piece, iteration, into, out, received, sent)
                        received += step.op in RECEIVES
                        sent += step.op in SENDS
                if step.has_dep and (g, b) in self.waited:
                    self._signal(g, b, iteration * len(block.steps) + s + 1)
        if self.in_place:
            self.here = (g, b, -1)
            self._signal(g, len(self.program.gpus[g].blocks) + b, 1)

    def _around(self, g: int) -> None:
        """What surrounds a rank in place: the shared memory filled before, and read out after all thread blocks."""
        self.here = (g, -1, -1)
        blocks = len(self.program.gpus[g].blocks)
        for at, buffer, units in self.copies[g]:
            if buffer == Buffer.INPUT:
                self._add(Op.COPY, dst=(Buffer.SCRATCH, at), src=(buffer, 0), length=units)
        self._signal(g, 2 * blocks, 1)
        for b in range(blocks):
            self._wait(g, blocks + b, 1)
        for at, buffer, units in self.copies[g]:
            if buffer == Buffer.OUTPUT:
                self._add(Op.COPY, dst=(buffer, 0), src=(Buffer.SCRATCH, at), length=units)

    def _move(
        self,
        g: int,
        step: Step,
        piece: tuple[int, int],
        iteration: int,
        into: Connection,
        out: Connection,
        received: int,
        sent: int,
    ) -> None:
        """One piece of a step."""
        part = self.unit // self.iterations
        length = piece[1] * part
        src = self._at(g, step.src_buffer, step.src_offset + piece[0], iteration)
        dst = self._at(g, step.dst_buffer, step.dst_offset + piece[0], iteration)
        op = step.op
        if op == "cpy":
            self._add(Op.COPY, dst=dst, src=src, length=length)
        elif op == "re":
            self._add(Op.REDUCE, dst=dst, src=src, src2=dst, length=length)
        slot = self._slot(into, received) if op in RECEIVES else src
        if op in RECEIVES:
            self._wait(into[1], self.full_flag[into], received + 1)
        if op in SENDS:
            self._wait_for_slot(out, sent)
        if op in ("r", "rcs"):
            self._add(Op.COPY, dst=dst, src=slot, length=length)
        elif op == "rrs":
            self._add(Op.REDUCE, dst=slot, src=slot, src2=src, length=length)
        elif op in ("rrc", "rrcs"):
            self._add(Op.REDUCE, dst=dst, src=slot, src2=src, length=length)
        if op in SENDS:
            bring = dst if op == "rrcs" else slot
            self._add(Op.PUT, peer=out[2], dst=self._slot(out, sent), src=bring, length=length)
            self._signal(out[2], self.full_flag[out], sent + 1)
        if op in RECEIVES and received + self.depth < self.messages[into]:
            self._signal(into[1], self.free_flag[into], received + 2)

    def _wait_for_slot(self, out: Connection, sent: int) -> None:
        if sent == 0:
            self._wait(out[2], self.free_flag[out], 1)
        elif sent >= self.depth:
            self._wait(out[2], self.free_flag[out], sent - self.depth + 2)

    def _slot(self, line: Connection, message: int) -> _At:
        return Buffer.SCRATCH, self.slots[line] + message % self.depth * self.slot_chunks[line] * self.unit

    def _at(self, g: int, buffer: str, chunk: int, iteration: int) -> _At:
        where_, base = self.base[g][buffer]
        return where_, base + chunk * self.unit + iteration * (self.unit // self.iterations)

    def _signal(self, rank: int, flag: int, value: int) -> None:
        self._add(Op.SIGNAL, peer=rank, flag=flag, value=value)

    def _wait(self, rank: int, flag: int, value: int) -> None:
        self._add(Op.WAIT, peer=rank, flag=flag, value=value)

    def _add(
        self,
        op: Op,
        peer: int = -1,
        dst: _At = (0, 0),
        src: _At = (0, 0),
        src2: _At = (0, 0),
        length: int = 0,
        flag: int = 0,
        value: int = 0,
    ) -> None:
        self.rows.append([op, peer, *dst, *src, *src2, length, flag, value, -1])
        self.origin.append(self.here)


def _user_units(collective: Collective, factor: int) -> list[list[int]]:
    """Units of input and output of every rank."""
    found = []
    for rank in range(collective.num_ranks):
        held, wanted = collective.held_by(rank), collective.wanted_by(rank)
        ends = [
            (offset + collective.units)[chunks].max(initial=0)
            for chunks, offset in ((held, collective.in_offset), (wanted, collective.out_offset))
        ]
        found.append([int(end) * factor for end in ends])
    return found
