"""What the thread blocks of a MSCCL++ program do, pipelines unrolled: moves of data, and what they tell and wait for.

A thread block is a lane. So is every port channel that it uses: the proxy on the host executes what is put into its
queue on its own. Buffers that in place are one memory are laid into scratch, filled before and read out after.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from math import lcm

from collsyn.export.mscclpp import (
    PACKET_READS_FROM,
    PACKET_WRITES_FROM,
    PORT_PUTS,
    REDUCES,
    SHARED_SCRATCH_BYTES,
    SIGNALS,
    WAITS,
    Block,
    Operation,
    Program,
    Ref,
    pair_of,
    where,
)
from collsyn.export.mscclpp_form import buffer_of, ranks_of
from collsyn.model.collective import Collective, make_collective
from collsyn.model.plan import Buffer, Op

# A place in the memory of a rank, and what has a flag or a counter there: the rank, and a name.
Place = tuple[int, int]
Key = tuple[int | str, ...]
Origin = tuple[int, int, str]
# Iterations of a pipeline that are judged: all that differ. Beyond these nothing new happens.
_ITERATIONS, MAX_ITERATIONS = 3, 64


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that a lane does.

    `move`: `op` on `length` units, `peer` being the other rank. `give` and `take`: a counter `key` up, or down as soon
    as it is above 0 (`relaxed`: without a fence). `set` and `need`: flag `key` becomes `value`, wait for that. `fetch`:
    wait for the packets at `dst`. `sync`: all threads of the block meet. `queue`: like a read of `src` that is yet to
    come. `threads` are those of the block that tell or wait.
    """

    kind: str
    origin: Origin
    op: Op = Op.NOP
    peer: int = -1
    dst: Place = (0, 0)
    src: Place = (0, 0)
    src2: Place = (0, 0)
    length: int = 0
    key: Key = ()
    value: int = 0
    relaxed: bool = False
    threads: int = 1
    packets: bool = False


@dataclass
class Lane:
    """A thread block (or a proxy, or what surrounds a rank in place) and what it does."""

    rank: int
    is_block: bool
    entries: list[Entry] = field(default_factory=list)


@dataclass
class Lanes:
    """All lanes of a program.

    `packets[rank]` are (begin, end, flag) of what is written as packets, in units of scratch, of which a rank has
    `scratch[rank]`. `chunk_units` units are a chunk, `factor` of them a unit of the collective.
    """

    program: Program
    collective: Collective
    factor: int
    chunk_units: int
    lanes: list[Lane]
    packets: dict[int, list[tuple[int, int, Key]]]
    scratch: list[int]


def collective_of(program: Program) -> Collective:
    """What a program is for."""
    kind, n = program.collective, program.num_gpus
    return make_collective(kind, n, 1 if kind == "allreduce" else program.num_chunks // n)


def iterations_of(program: Program) -> int:
    """Iterations of pipelines that show all that can happen: one more than fit into scratch that is reused."""
    units = [op.unit_bytes for _, _, _, op in program.operations() if op.name == "pipeline"]
    if not units:
        return 1
    depth = _wrap(program, min(units))
    return min(depth + 2, MAX_ITERATIONS) if depth else _ITERATIONS


def _wrap(program: Program, unit_bytes: int) -> int:
    """Units after which the offsets into a chunk of scratch begin anew; 0: never."""
    chunks = max(gpu.scratch_chunks for gpu in program.gpus)
    return max(1, SHARED_SCRATCH_BYTES // chunks // unit_bytes) if program.reuse_resources and chunks else 0


def make_lanes(program: Program, iterations: int | None = None) -> Lanes:
    """The lanes of a program whose form and bounds are sound. O(operations x iterations)."""
    return _Writer(program, iterations_of(program) if iterations is None else iterations).written()


class _Writer:
    def __init__(self, program: Program, iterations: int) -> None:
        self.program, self.iterations = program, iterations
        self.collective = collective_of(program)
        shares = [op.share[1] for _, _, _, op in program.operations()]
        total, parts = self.collective.total_units, lcm(*shares, 1) * iterations
        self.factor = lcm(total, program.num_chunks * parts) // total
        self.unit = total * self.factor // program.num_chunks
        self.lanes: list[Lane] = []
        self.packets: dict[int, list[tuple[int, int, Key]]] = defaultdict(list)
        self.proxies: dict[tuple[int, int, int], tuple[Lane, list[int]]] = {}
        self.rounds: dict[tuple[int, int, int], int] = defaultdict(int)
        self.scratch_stride = self._scratch_stride()
        self.scratch = [gpu.scratch_chunks * self.scratch_stride for gpu in program.gpus]
        self.base = [self._place_buffers(g) for g in range(program.num_gpus)]
        self.lane = Lane(0, True)
        self.block = Block(())
        self.origin: Origin = (0, -1, "")
        self.iteration = (0, 0)

    def _scratch_stride(self) -> int:
        pipelines = [op for _, _, _, op in self.program.operations() if op.name == "pipeline"]
        self.wrap = _wrap(self.program, min((op.unit_bytes for op in pipelines), default=1)) if pipelines else 0
        if not self.wrap:
            return self.unit
        self.wrap = min(self.wrap, MAX_ITERATIONS)
        longest = max(op.num_chunks for op in pipelines) * self.unit // self.iterations
        return max(self.unit, self.wrap * longest)

    def _place_buffers(self, g: int) -> dict[str, Place]:
        base: dict[str, Place] = {"i": (Buffer.INPUT, 0), "o": (Buffer.OUTPUT, 0), "s": (Buffer.SCRATCH, 0)}
        if self.program.in_place:
            gpu, at, unit = self.program.gpus[g], self.scratch[g], self.unit
            inputs, outputs = gpu.input_chunks, gpu.output_chunks
            base["i"] = (Buffer.SCRATCH, at + (g * inputs * unit if inputs < outputs else 0))
            base["o"] = (Buffer.SCRATCH, at + (g * outputs * unit if outputs < inputs else 0))
            self.scratch[g] += max(inputs, outputs) * unit
        return base

    def written(self) -> Lanes:
        """All lanes."""
        for g, gpu in enumerate(self.program.gpus):
            ends: list[Key] = []
            first = len(self.lanes)
            for b, block in enumerate(gpu.blocks):
                self.lane, self.block = Lane(g, True), block
                self.lanes.append(self.lane)
                self.origin = (g, b, "")
                if self.program.in_place:
                    self._add("need", key=(g, "begun"), value=1)
                for k, op in enumerate(block.ops):
                    self._top(g, b, str(k), op)
                ends.append((g, "end", len(ends)))
            for (rank, _, _), (proxy, _) in self.proxies.items():
                if rank == g:
                    self.lanes.append(proxy)
                    ends.append((g, "end", len(ends)))
            if self.program.in_place:
                self._around(g, first, ends)
        packets = dict(self.packets)
        return Lanes(self.program, self.collective, self.factor, self.unit, self.lanes, packets, self.scratch)

    def _around(self, g: int, first: int, ends: list[Key]) -> None:
        """The memory of a rank in place, filled before all lanes and read out after them."""
        for lane, key in zip(self.lanes[first:], ends, strict=True):
            lane.entries.append(Entry("set", (g, -1, ""), key=key, value=1))
        self.lane, self.origin = Lane(g, False), (g, -1, "")
        gpu = self.program.gpus[g]
        given, wanted = gpu.input_chunks * self.unit, gpu.output_chunks * self.unit
        self._add("move", op=Op.COPY, dst=self.base[g]["i"], src=(Buffer.INPUT, 0), length=given)
        self._add("set", key=(g, "begun"), value=1)
        for key in ends:
            self._add("need", key=key, value=1)
        self._add("move", op=Op.COPY, dst=(Buffer.OUTPUT, 0), src=self.base[g]["o"], length=wanted)
        self.lanes.append(self.lane)

    def _top(self, g: int, b: int, k: str, op: Operation) -> None:
        if op.name != "pipeline":
            self.origin, self.iteration = (g, b, f"{k} {op.name}"), (0, 0)
            self._operation(g, b, op)
            return
        step = op.num_chunks * self.unit // self.iterations
        for iteration in range(self.iterations):
            self.iteration = (iteration, step)
            for j, inner in enumerate(op.inner):
                self.origin = (g, b, f"{k}.{j} {inner.name}")
                self._operation(g, b, inner)

    def _operation(self, g: int, b: int, op: Operation) -> None:
        name = op.name
        if name == "nop":
            self._add("sync")
        elif name == "barrier":
            self._barrier(g, b, op)
        elif name in SIGNALS | WAITS:
            for channel in op.channels:
                self._counter(g, b, op, channel)
        elif name in ("sem_acquire", "sem_release"):
            for semaphore in op.semaphores:
                kind = "take" if name == "sem_acquire" else "give"
                self._add(kind, key=(g, "semaphore", semaphore), threads=len(op.semaphores))
        elif name in PORT_PUTS and op.channel_type == "port":
            self._port_puts(g, b, op)
        elif name in REDUCES:
            self._reduce(g, op)
        elif name in ("glres", "gstore", "gstorepkt"):
            self._switch(g, op)
        elif name != "flush":
            # A flush of its own does nothing in the executor.
            self._pairs(g, op)

    def _barrier(self, g: int, b: int, op: Operation) -> None:
        """All thread blocks that have this barrier meet."""
        self._add("sync")
        self.rounds[g, b, op.barrier] += 1
        value = self.rounds[g, b, op.barrier]
        self._add("set", key=(g, "barrier", op.barrier, b), value=value)
        for other, block in enumerate(self.program.gpus[g].blocks):
            ops = (each for outer in block.ops for each in (outer, *outer.inner))
            if other != b and any(each.name == "barrier" and each.barrier == op.barrier for each in ops):
                self._add("need", key=(g, "barrier", op.barrier, other), value=value)
        self._add("sync")

    def _counter(self, g: int, b: int, op: Operation, channel: int) -> None:
        gpu = self.program.gpus[g]
        number = self.block.channels[op.channel_type][channel]
        peer, pair = pair_of(gpu, op.channel_type, number)
        if op.name in WAITS:
            self._add("take", key=(g, op.channel_type, peer, pair), threads=len(op.channels))
            return
        key: Key = (peer, op.channel_type, g, pair)
        if op.channel_type == "port":
            self._queue(g, b, number, [Entry("give", self.origin, peer=peer, key=key)])
        else:
            relaxed = op.name.startswith("rlx")
            self._add("give", peer=peer, key=key, relaxed=relaxed, threads=len(op.channels))

    def _queue(self, g: int, b: int, channel: int, entries: list[Entry], flushed: bool = False) -> None:
        """Put work into the queue of a port channel; wait until it is done if it is flushed."""
        proxy, count = self.proxies.setdefault((g, b, channel), (Lane(g, False), [0, 0]))
        count[0] += 1
        queue: Key = (g, "queue", b, channel)
        self._add("set", key=queue, value=count[0])
        proxy.entries.append(Entry("need", self.origin, key=queue, value=count[0]))
        proxy.entries += entries
        if flushed:
            count[1] += 1
            done: Key = (g, "flushed", b, channel)
            proxy.entries.append(Entry("set", self.origin, key=done, value=count[1]))
            self._add("need", key=done, value=count[1])

    def _port_puts(self, g: int, b: int, op: Operation) -> None:
        for channel, source, target in zip(op.channels, op.sources, op.destinations, strict=True):
            number = self.block.channels["port"][channel]
            to, pair = pair_of(self.program.gpus[g], "port", number)
            [rank] = self._ranks(g, op, target)
            (src, length), (dst, _) = self._span(g, op, source), self._span(rank, op, target)
            self._add("queue", src=src, length=length)
            work = [Entry("move", self.origin, Op.PUT, rank, dst, src, length=length)]
            if op.name != "put":
                work.append(Entry("give", self.origin, peer=to, key=(to, "port", g, pair)))
            self._queue(g, b, number, work, op.name == "pwsf")

    def _pairs(self, g: int, op: Operation) -> None:
        """Copies within the GPU, to others, and from others, plain or as packets."""
        packets = op.name in PACKET_READS_FROM or op.name in PACKET_WRITES_FROM
        for source, target in zip(op.sources, op.destinations, strict=True):
            [here], [there] = self._ranks(g, op, source), self._ranks(g, op, target)
            (src, length), (dst, _) = self._span(here, op, source), self._span(there, op, target)
            if op.name in PACKET_READS_FROM:
                self._add("fetch", dst=src, length=length)
            kind, peer = (Op.COPY, -1) if here == there == g else (Op.PUT, there) if there != g else (Op.GET, here)
            self._add("move", op=kind, peer=peer, dst=dst, src=src, length=length, packets=packets)
            if op.name in PACKET_WRITES_FROM:
                self._packets(there, dst, length)

    def _reduce(self, g: int, op: Operation) -> None:
        """The sum of all sources into the first destination, and from there into the others."""
        target, length = self._span(g, op, op.destinations[0])
        read_from, write_from = PACKET_READS_FROM.get(op.name, 99), PACKET_WRITES_FROM.get(op.name, 99)
        packets = read_from < 99
        sources = []
        for number, ref in enumerate(op.sources):
            [rank] = self._ranks(g, op, ref)
            place, _ = self._span(rank, op, ref)
            if number >= read_from:
                self._add("fetch", dst=place, length=length)
            sources.append((rank, place))
        # What stands in the destination is added first, before it is overwritten; a local source must lead.
        sources.sort(key=lambda source: (source != (g, target), source[0] != g))
        second = sources[0][1]
        for rank, place in sources[1:]:
            kind, peer = (Op.REDUCE, -1) if rank == g else (Op.GET_REDUCE, rank)
            self._add("move", op=kind, peer=peer, dst=target, src=place, src2=second, length=length, packets=packets)
            second = target
        for number, ref in enumerate(op.destinations[1:], 1):
            [rank] = self._ranks(g, op, ref)
            place, _ = self._span(rank, op, ref)
            kind, peer = (Op.COPY, -1) if rank == g else (Op.PUT, rank)
            self._add("move", op=kind, peer=peer, dst=place, src=target, length=length, packets=packets)
            if number >= write_from:
                self._packets(rank, place, length)

    def _switch(self, g: int, op: Operation) -> None:
        """What the switch does, as moves of this GPU: add up the memory of all, and write to all."""
        for source, target in zip(op.sources, op.destinations, strict=True):
            value, length = self._span(g, op, source)
            if op.name == "glres":
                own, value = value, (int(Buffer.SCRATCH), self.scratch[g])
                self.scratch[g] += length
                self._add("move", op=Op.COPY, dst=value, src=own, length=length)
                for rank in self._ranks(g, op, source):
                    if rank != g:
                        place, _ = self._span(rank, op, source)
                        self._add("move", op=Op.GET_REDUCE, peer=rank, dst=value, src=place, src2=value, length=length)
            for rank in self._ranks(g, op, target):
                place, _ = self._span(rank, op, target)
                kind, peer = (Op.COPY, -1) if rank == g else (Op.PUT, rank)
                packets = op.name == "gstorepkt"
                self._add("move", op=kind, peer=peer, dst=place, src=value, length=length, packets=packets)
                if packets:
                    self._packets(rank, place, length)

    def _packets(self, rank: int, place: Place, length: int) -> None:
        key: Key = (rank, "packets", len(self.packets[rank]))
        self.packets[rank].append((place[1], place[1] + length, key))
        self._add("set", peer=rank, key=key, value=1)

    def _ranks(self, g: int, op: Operation, ref: Ref) -> tuple[int, ...]:
        return ranks_of(g, self.program.gpus[g], self.block, op, ref)

    def _span(self, rank: int, op: Operation, ref: Ref) -> tuple[Place, int]:
        """Where a reference begins in the memory of a rank, in this iteration and share, and its length in units."""
        g = self.origin[0]
        buffer = buffer_of(self.program.gpus[g], self.block, op, ref)
        iteration, step = self.iteration
        chunk = self.scratch_stride if buffer == "s" else self.unit
        begin, length = ref.index * chunk, ref.size * self.unit
        if step:
            length = max(0, min(step, length - iteration * step))
            begin += (iteration % self.wrap if buffer == "s" and self.wrap else iteration) * step
        k, n = op.share
        at, base = self.base[rank][buffer]
        first = length * k // n
        return (at, base + begin + first), length * (k + 1) // n - first

    def _add(self, kind: str, **values: object) -> None:
        self.lane.entries.append(Entry(kind, self.origin, **values))  # type: ignore[arg-type]


def place_name(origin: Origin) -> str:
    """How messages name what an entry belongs to."""
    gpu, block, op = origin
    return where(gpu, None if block < 0 else block, op or None)
