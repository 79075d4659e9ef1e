"""From a plan to a MSCCL++ program: who signals whom over which channel, thread blocks that fit the executor's tables.

A flag of a plan may be waited for by several channels, as often as they like; a channel of MSCCL++ counts, and every
signal is taken once. So each wait gets a signal of its own (a token), over a channel that joins two thread blocks only.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import gcd

import numpy as np

from collsyn.check.interleave import owners
from collsyn.errors import InputError
from collsyn.export.mscclpp import (
    MAX_CHANNELS,
    MAX_CHANNELS_OF_OP,
    MAX_OPS,
    MAX_REFERENCES,
    MAX_REMOTE_BUFFERS,
    MAX_SEMAPHORES_OF_OP,
    Block,
    Gpu,
    Operation,
    Ref,
    RemoteBuffer,
)
from collsyn.export.mscclpp_form import COLLECTIVES
from collsyn.export.mscclpp_lanes import Entry, Place
from collsyn.export.mscclpp_parts import Part, Token, flush_points, parts_of, tokens_of
from collsyn.export.mscclpp_sync import clash
from collsyn.model.plan import Buffer, Op, Plan

_LETTERS = {Buffer.INPUT: "i", Buffer.OUTPUT: "o", Buffer.SCRATCH: "s"}
# Thread blocks a GPU that surely run at once: waiting ones would hold up others for ever.
MAX_BLOCKS = 108
# Operations of a thread block as they are estimated before, and how many others it talks to, at most; fewer where that
# turns out to be too many.
_BUDGETS = ((58, MAX_CHANNELS), (46, 12), (34, 8), (24, 4), (16, 2), (12, 1))
_NOP = Operation("nop")


@dataclass
class _Tables:
    """Channels and semaphores of a GPU, and the remote buffers that it names, as they are handed out."""

    peers: dict[str, list[int]] = field(default_factory=lambda: {"memory": [], "port": []})
    semaphores: int = 0
    remote: dict[tuple[int, str, str], int] = field(default_factory=dict)


def grain_of(plan: Plan) -> int:
    """Units of a plan that make up one chunk of a program: the largest of which all ranges are multiples."""
    c = plan.columns
    sides = ("dst_offset", "src_offset", "src2_offset", "length")
    values = np.concatenate([*(c[side] for side in sides), plan.buffer_units().reshape(-1)])
    return reduce(gcd, np.unique(values).tolist(), 0) or 1


def make_gpus(
    plan: Plan, in_place: bool, port_pairs: frozenset[tuple[int, int]], flushed: bool = False
) -> tuple[Gpu, ...]:
    """The GPUs of a program that does what a plan does; pairs of ranks in `port_pairs` share no memory.

    `flushed`: thread blocks wait until what they put into a port is gone, which is needed where they overwrite it.
    Raises InputError for what the format or its executor cannot do. O(instructions x thread blocks of a rank).
    """
    _check(plan, port_pairs)
    tokens = tokens_of(plan)
    flushes = flush_points(plan, tokens, port_pairs)
    for ops, talks in _BUDGETS:
        parts = parts_of(plan, tokens, flushes, port_pairs, ops, talks)
        made = _Writer(plan, in_place, port_pairs, flushed, tokens, flushes, parts).gpus()
        if made is not None:
            return made
    raise InputError(f"mscclpp-json: a thread block needs more than {MAX_CHANNELS} channels; try fewer instances")


def _check(plan: Plan, port_pairs: frozenset[tuple[int, int]]) -> None:
    collective = plan.collective
    if collective.kind not in COLLECTIVES:
        raise InputError(f"collective: MSCCL++ JSON knows no {collective.kind}; it knows {', '.join(COLLECTIVES)}")
    if len(collective.groups) > 1 or len(np.unique(plan.buffer_units()[:, :2], axis=0)) > 1:
        raise InputError(
            "collective: MSCCL++ JSON has one group of ranks with equal buffers; expected no groups, no counts"
        )
    c, owner = plan.columns, owners(plan)
    if (c["op"] == Op.GET).any() and (c["src_offset"] != c["dst_offset"])[c["op"] == Op.GET].any():
        raise InputError("plan: has a GET between unequal offsets, which the executor of MSCCL++ exchanges")
    for i in np.flatnonzero(np.isin(c["op"], [Op.GET, Op.GET_REDUCE])).tolist():
        if (int(owner[i]), int(c["peer"][i])) in port_pairs:
            raise InputError(
                f"plan: {plan.describe(i)} reads memory in another box, which port channels cannot; lower it with put"
            )


class _Writer:
    """Thread blocks of all parts, with the tables of their GPUs."""

    def __init__(
        self,
        plan: Plan,
        in_place: bool,
        port_pairs: frozenset[tuple[int, int]],
        flushed: bool,
        tokens: Sequence[Token],
        flushes: dict[int, int],
        parts: Sequence[Part],
    ) -> None:
        self.plan, self.in_place, self.port_pairs, self.parts = plan, in_place, port_pairs, parts
        self.flushed = flushed
        self.grain = grain_of(plan)
        self.units = plan.buffer_units().tolist()
        self.c = {key: values.tolist() for key, values in plan.columns.items()}
        self.tables = [_Tables() for _ in range(plan.num_ranks)]
        part_of = {row: number for number, part in enumerate(parts) for row in range(part.first, part.last)}
        # Of every token the line between two thread blocks, which is a channel of both GPUs or a semaphore of one.
        self.ends: dict[tuple[int, int], tuple[int, int]] = {}
        self.signals: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.waits: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for token in tokens:
            line = (part_of[token.signal], part_of[token.wait])
            self._open(line)
            self.signals[token.signal].append(line)
            self.waits[token.wait].append(line)
        # A flush comes with a signal, and every signal is to be taken: at the end of some thread block over there.
        self.flushes: dict[int, tuple[int, int]] = {}
        self.late_waits: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, (row, rank) in enumerate(flushes.items()):
            last = {part.channel: n for n, part in enumerate(parts) if part.rank == rank}
            if not last:
                raise InputError(f"plan: rank {rank} does nothing, and data comes from another box")
            line = (part_of[row], [*last.values()][number % len(last)])
            self._open(line)
            self.flushes[row] = line
            self.late_waits[line[1]].append(line)
        self.chain: dict[int, int] = {}
        for number, part in enumerate(parts[1:], 1):
            if parts[number - 1].channel == part.channel:
                self.chain[number] = self.tables[part.rank].semaphores
                self.tables[part.rank].semaphores += 1

    def _open(self, line: tuple[int, int]) -> None:
        """Numbers of a channel at both ends (or of a semaphore)."""
        if line in self.ends:
            return
        a, b = self.parts[line[0]].rank, self.parts[line[1]].rank
        if a == b:
            number = self.tables[a].semaphores
            self.tables[a].semaphores += 1
            self.ends[line] = (number, number)
            return
        kind = self._kind(a, b)
        numbers = []
        for rank, peer in ((a, b), (b, a)):
            numbers.append(len(self.tables[rank].peers[kind]))
            self.tables[rank].peers[kind].append(peer)
        self.ends[line] = (numbers[0], numbers[1])

    def _kind(self, a: int, b: int) -> str:
        return "port" if (a, b) in self.port_pairs else "memory"

    def gpus(self) -> tuple[Gpu, ...] | None:
        """The GPUs, or None where a thread block has too many channels or remote buffers."""
        blocks: list[list[Block]] = [[] for _ in self.tables]
        for number, part in enumerate(self.parts):
            made = _BlockWriter(self, number, part).block(len(blocks[part.rank]))
            if made is None:
                return None
            blocks[part.rank].append(made)
        most = max(map(len, blocks))
        if most > MAX_BLOCKS:
            raise InputError(f"mscclpp-json: a GPU needs {most} thread blocks, and {MAX_BLOCKS} surely run at once")
        extents = [[units // self.grain for units in row] for row in self.units]
        return tuple(
            Gpu(
                input_chunks=row[Buffer.INPUT],
                output_chunks=row[Buffer.OUTPUT],
                scratch_chunks=row[Buffer.SCRATCH],
                blocks=tuple(made),
                channels={kind: tuple(peers) for kind, peers in table.peers.items() if peers},
                remote=tuple(RemoteBuffer(rank, buffer, (kind,)) for rank, buffer, kind in table.remote),
                semaphores=(0,) * table.semaphores,
                number=rank,
            )
            for rank, (row, made, table) in enumerate(zip(extents, blocks, self.tables, strict=True))
        )

    def entry(self, row: int, rank: int) -> Entry:
        """A move as the checks of threads see it, input and output in place being one memory."""
        op, peer = Op(self.c["op"][row]), self.c["peer"][row]
        where = {"dst": peer if op == Op.PUT else rank, "src": peer if op in (Op.GET, Op.GET_REDUCE) else rank}
        places: dict[str, Place] = {}
        for which in ("dst", "src", "src2"):
            buffer, at = self.c[f"{which}_buffer"][row], self.c[f"{which}_offset"][row]
            places[which] = self._one_memory(where.get(which, rank), buffer, at)
        length = self.c["length"][row]
        return Entry("move", (rank, 0, f"{row}"), op, peer, places["dst"], places["src"], places["src2"], length)

    def _one_memory(self, rank: int, buffer: int, at: int) -> Place:
        if not self.in_place or buffer == Buffer.SCRATCH:
            return buffer, at
        mine, others = self.units[rank][buffer], max(self.units[rank][:2])
        return Buffer.INPUT, at + (rank * mine if mine < others else 0)


class _BlockWriter:
    """The operations of one thread block, and the numbers under which it knows channels and remote buffers."""

    def __init__(self, writer: _Writer, number: int, part: Part) -> None:
        self.writer, self.number, self.part = writer, number, part
        self.ops: list[Operation] = []
        self.channels: dict[str, list[int]] = {"memory": [], "port": []}
        self.remote: dict[str, list[int]] = {"memory": [], "port": []}
        # Moves since all threads met, what one of them put into a port, and what goes to a peer with the next signal.
        self.moved: list[Entry] = []
        self.put: list[Entry] = []
        self.queued: dict[int, list[tuple[Entry, Ref, Ref]]] = {}

    def block(self, index: int) -> Block | None:
        """The thread block, or None where it does not fit."""
        w, part = self.writer, self.part
        if self.number in w.chain:
            self.ops += [Operation("sem_acquire", semaphores=(w.chain[self.number],)), _NOP]
        row = part.first
        while row < part.last:
            op = w.c["op"][row]
            end = row + 1
            if op in (Op.SIGNAL, Op.WAIT):
                # Signals and waits that follow each other are one operation for each kind of channel.
                while end < part.last and w.c["op"][end] == op:
                    end += 1
                if op == Op.SIGNAL:
                    self._signals(range(row, end))
                else:
                    self._waits(range(row, end))
            elif op != Op.NOP and w.c["length"][row]:
                self._move(row)
            row = end
        late = w.late_waits.get(self.number, ())
        self._tell("wait", [("port", w.ends[line][1]) for line in late])
        if self.number + 1 in w.chain:
            self._meet()
            self.ops.append(Operation("sem_release", semaphores=(w.chain[self.number + 1],)))
        assert not self.queued, "every put by port is followed by a signal or flushed"
        fits = all(len(ids) <= MAX_CHANNELS for ids in self.channels.values())
        fits &= all(len(ids) <= MAX_REMOTE_BUFFERS for ids in self.remote.values()) and len(self.ops) <= MAX_OPS
        channels, remote = ({k: tuple(v) for k, v in table.items() if v} for table in (self.channels, self.remote))
        return Block(tuple(self.ops), channels, remote, index) if fits else None

    def _meet(self) -> None:
        """Let all threads meet if data has been moved since they did."""
        if self.moved:
            self.ops.append(_NOP)
            self.moved, self.put = [], []

    def _signals(self, rows: range) -> None:
        w, rank = self.writer, self.part.rank
        lines = [line for row in rows for line in w.signals.get(row, ())]
        if not lines:
            return
        self._meet()
        for line in list(lines):
            peer = w.parts[line[1]].rank
            if peer in self.queued:
                lines.remove(line)
                # Signals by other channels do not stay behind the data by themselves.
                alone = not any(w.parts[other[1]].rank == peer for other in lines)
                self._send(peer, w.ends[line][0], "pws" if alone and not w.flushed else "pwsf")
        local = [w.ends[line][0] for line in lines if w.parts[line[1]].rank == rank]
        far = [line for line in lines if w.parts[line[1]].rank != rank]
        self._tell("signal", [(w._kind(rank, w.parts[line[1]].rank), w.ends[line][0]) for line in far])
        self._semaphores("sem_release", local)

    def _waits(self, rows: range) -> None:
        w, rank = self.writer, self.part.rank
        lines = [line for row in rows for line in w.waits.get(row, ())]
        if not lines:
            return
        local = [w.ends[line][1] for line in lines if w.parts[line[0]].rank == rank]
        far = [line for line in lines if w.parts[line[0]].rank != rank]
        self._tell("wait", [(w._kind(rank, w.parts[line[0]].rank), w.ends[line][1]) for line in far])
        self._semaphores("sem_acquire", local)
        self.ops.append(_NOP)
        self.moved, self.put = [], []

    def _tell(self, name: str, ends: Sequence[tuple[str, int]]) -> None:
        for kind in ("memory", "port"):
            numbers = [self._channel(kind, number) for which, number in ends if which == kind]
            for group in _groups(numbers, MAX_CHANNELS_OF_OP):
                self.ops.append(Operation(name, channel_type=kind, channels=group))

    def _semaphores(self, name: str, numbers: Sequence[int]) -> None:
        for group in _groups(numbers, MAX_SEMAPHORES_OF_OP):
            self.ops.append(Operation(name, semaphores=group))

    def _move(self, row: int) -> None:
        w, rank = self.writer, self.part.rank
        op, peer = Op(w.c["op"][row]), w.c["peer"][row]
        entry = w.entry(row, rank)
        if any(clash(rank, before, entry) for before in (*self.moved, *self.put)):
            self.moved.append(entry)
            self._meet()
        if op == Op.PUT and peer == rank:
            op = Op.COPY
        if op == Op.PUT and (rank, peer) in w.port_pairs:
            queued = replace(entry, kind="queue")
            work = (queued, self._local(row, "src"), self._far(row, "dst", "port"))
            self.queued.setdefault(peer, []).append(work)
            if row in w.flushes:
                self._send(peer, w.ends[w.flushes[row]][0], "pwsf")
            return
        # A put by port is done with the signal behind it: until then its source must stay as it is.
        if any(clash(rank, before, entry) for work in self.queued.values() for before, _, _ in work):
            raise InputError("plan: overwrites what is on its way to another box before it signals that")
        self.moved.append(entry)
        if op == Op.COPY:
            self.ops.append(Operation("copy", (self._local(row, "src"),), (self._local(row, "dst"),)))
        elif op == Op.REDUCE:
            sources = (self._local(row, "src2"), self._local(row, "src"))
            self.ops.append(Operation("re", sources, (self._local(row, "dst"),)))
        elif op == Op.PUT:
            self._put(self._local(row, "src"), self._far(row, "dst", "memory"))
        elif op == Op.GET:
            source = self._far(row, "src", "memory")
            self.ops.append(Operation("get", (source,), (self._local(row, "dst"),), "memory"))
        else:
            sources = (self._local(row, "src2"), self._far(row, "src", "memory"))
            self.ops.append(Operation("rre", sources, (self._local(row, "dst"),), "memory"))

    def _put(self, source: Ref, target: Ref) -> None:
        """Puts that follow each other are one operation."""
        last = self.ops[-1] if self.ops else _NOP
        if last.name == "put" and last.channel_type == "memory" and len(last.sources) < MAX_REFERENCES:
            sources, targets = (*last.sources, source), (*last.destinations, target)
            self.ops[-1] = Operation("put", sources, targets, "memory")
        else:
            self.ops.append(Operation("put", (source,), (target,), "memory"))

    def _send(self, peer: int, number: int, last: str) -> None:
        """What is queued for a peer goes into the port channel of that number, the last of it with a signal."""
        work, channel = self.queued.pop(peer), self._channel("port", number)
        self.put += [entry for entry, _, _ in work]
        for count, (_, source, target) in enumerate(work, 1):
            self._port(last if count == len(work) else "put", source, target, channel)

    def _port(self, name: str, source: Ref, target: Ref, channel: int) -> None:
        self.ops.append(Operation(name, (source,), (target,), "port", (channel,)))

    def _channel(self, kind: str, number: int) -> int:
        """What this thread block calls a channel of its GPU."""
        return _position(self.channels[kind], number)

    def _local(self, row: int, which: str) -> Ref:
        c, grain = self.writer.c, self.writer.grain
        letter = _LETTERS[Buffer(c[f"{which}_buffer"][row])]
        return Ref(c[f"{which}_offset"][row] // grain, c["length"][row] // grain, buffer=letter)

    def _far(self, row: int, which: str, kind: str) -> Ref:
        c, table = self.writer.c, self.writer.tables[self.part.rank]
        key = (c["peer"][row], _LETTERS[Buffer(c[f"{which}_buffer"][row])], kind)
        number = table.remote.setdefault(key, len(table.remote))
        local, grain = _position(self.remote[kind], number), self.writer.grain
        return Ref(c[f"{which}_offset"][row] // grain, c["length"][row] // grain, remote=local)


def _position(known: list[int], number: int) -> int:
    """Where a number stands in a list; it is added if it is new."""
    if number not in known:
        known.append(number)
    return known.index(number)


def _groups(numbers: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """Numbers in groups of at most so many, none twice in a group."""
    group: list[int] = []
    for number in numbers:
        if number in group or len(group) == most:
            yield tuple(group)
            group = []
        group.append(number)
    if group:
        yield tuple(group)
