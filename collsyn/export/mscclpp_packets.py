"""Schedules as MSCCL++ programs of packets alone: every message brings its own flags, so that nobody signals or waits.

Each message has a place of its own in the scratch of its destination. What a rank sends on or keeps is the sum of its
own contribution and of what came, added up when it is needed. Thread blocks take the chunks in turn.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import reduce
from math import gcd

import numpy as np

from collsyn.errors import InputError
from collsyn.export.mscclpp import MAX_OPS, MAX_REFERENCES, MAX_REMOTE_BUFFERS, Block, Gpu, Operation, Ref, RemoteBuffer
from collsyn.export.mscclpp_form import COLLECTIVES
from collsyn.lower.flow import Flow, Version, data_flow
from collsyn.model.schedule import Schedule

_NOP = Operation("nop")
# A value: whether the own contribution is part of it, and the sends whose packets are.
_Terms = tuple[bool, tuple[int, ...]]


@dataclass
class _Rank:
    """Scratch in use (chunks), and the operations of every chunk of the collective, with their place in time."""

    scratch: int = 0
    ops: dict[int, list[tuple[int, Operation]]] = field(default_factory=lambda: defaultdict(list))
    spare: dict[int, int] = field(default_factory=dict)


def packet_gpus(schedule: Schedule, in_place: bool, num_blocks: int) -> tuple[Gpu, ...] | None:
    """The GPUs of a program of packets with at most so many thread blocks each, or None where these are too few.

    Raises InputError for what the format cannot say. O(sends log sends).
    """
    collective = schedule.collective
    if collective.kind not in COLLECTIVES:
        raise InputError(f"collective: MSCCL++ JSON knows no {collective.kind}; it knows {', '.join(COLLECTIVES)}")
    if len(collective.groups) > 1 or collective.spec.get("counts") is not None:
        raise InputError(
            "collective: MSCCL++ JSON has one group of ranks with equal buffers; expected no groups, no counts"
        )
    return _Packets(schedule, in_place).gpus(num_blocks)


class _Packets:
    def __init__(self, schedule: Schedule, in_place: bool) -> None:
        self.flow: Flow = data_flow(schedule, by_arrival=True)
        self.schedule, c = schedule, schedule.collective
        values = np.concatenate([c.units, c.in_offset, c.out_offset])
        self.grain = reduce(gcd, np.unique(values).tolist(), 0)
        self.units, self.input, self.output = (
            (column // self.grain).tolist() for column in (c.units, c.in_offset, c.out_offset)
        )
        self.ranks = [_Rank() for _ in range(c.num_ranks)]
        self.slot: dict[int, int] = {}
        self.known: dict[int, _Terms] = {}
        self.dst = schedule.dst.tolist()
        self.in_place = in_place
        # In place a result may take the place of a contribution once that has been sent for the last time.
        self.last_read: dict[tuple[int, int], int] = defaultdict(int)
        for row in self._needed():
            if self.dst[row] != int(schedule.src[row]):
                self.slot[row] = self._take(self.dst[row], int(schedule.chunk[row]))
        self._write()

    def _needed(self) -> list[int]:
        """Sends that some result depends on: packets that nobody reads would come when the call is over."""
        pending = [version for version in (*self.flow.own.values(), *self.flow.versions) if version.final]
        needed: set[int] = set()
        while pending:
            version = pending.pop()
            if version.base is not None:
                pending.append(version.base)
            if version.row >= 0 and version.row not in needed:
                needed.add(version.row)
                pending.append(self.flow.source[version.row])
        return sorted(needed)

    def _take(self, rank: int, chunk: int) -> int:
        """A place in scratch as long as a chunk."""
        at = self.ranks[rank].scratch
        self.ranks[rank].scratch += self.units[chunk]
        return at

    def _terms(self, version: Version) -> _Terms:
        """What a version is the sum of."""
        if id(version) not in self.known:
            found: _Terms = (True, ())
            if version.row in self.slot:
                found = (False, (version.row,))
            elif version.row >= 0:
                found = self._terms(self.flow.source[version.row])
            if version.base is not None:
                own, packets = self._terms(version.base)
                found = (found[0] or own, (*found[1], *packets))
            self.known[id(version)] = found
        return self.known[id(version)]

    def _write(self) -> None:
        """All operations: what is sent when the first who needs it is sent to, and results at the end."""
        last = 2 * self.schedule.num_sends + 1
        versions = [*self.flow.own.values(), *self.flow.versions]
        for version in versions:
            for row in (row for row in version.readers if row in self.slot):
                here = (version.rank, version.chunk)
                self.last_read[here] = max(self.last_read[here], int(self.flow.read_at[row]))
        for version in versions:
            far = [row for row in version.readers if row in self.slot]
            kept = False
            for at in range(0, len(far), MAX_REFERENCES - 1):
                rows = far[at : at + MAX_REFERENCES - 1]
                kept |= self._send(version, rows, int(self.flow.read_at[rows].min()))
            if version.final and not kept:
                self._keep(version, last)

    def _ref(self, rank: int, buffer: str, chunk: int, at: int | None = None) -> Ref:
        offset = {"i": self.input, "o": self.output}.get(buffer)
        return Ref(at if offset is None else offset[chunk], self.units[chunk], buffer=buffer)  # type: ignore[arg-type]

    def _add(self, rank: int, chunk: int, when: int, op: Operation) -> None:
        self.ranks[rank].ops[chunk].append((when, op))

    def _send(self, version: Version, rows: list[int], when: int) -> bool:
        """Send a version as packets; returns whether it is the result and was put into the output with that."""
        rank, chunk = version.rank, version.chunk
        # The number of a remote buffer stands for the rank here; `gpus` gives it the number of the thread block.
        far = tuple(Ref(self.slot[row], self.units[chunk], remote=self.dst[row]) for row in rows)
        own, packets = self._terms(version)
        if not packets:
            source = self._ref(rank, "i", chunk)
            self._add(rank, chunk, when, Operation("ppkt", (source,) * len(far), far, "memory"))
            return False
        slots = [self._ref(rank, "s", chunk, self.slot[row]) for row in packets]
        if not own and len(slots) == 1:
            self._add(rank, chunk, when, Operation("rppkt", (slots[0],) * len(far), far, "memory"))
            return False
        first, rest = self._summed(version, when, MAX_REFERENCES - 1)
        keeps = version.final and (not self.in_place or when == self.last_read[rank, chunk])
        target = self._ref(rank, "o", chunk) if keeps else self._spare(rank, chunk)
        self._add(rank, chunk, when, Operation("respkt", (first, *rest), (target, *far), "memory"))
        return keeps

    def _summed(self, version: Version, when: int, most: int) -> tuple[Ref, list[Ref]]:
        """What is to be added up: a plain value, and packets, at most so many; others are added into it before."""
        rank, chunk = version.rank, version.chunk
        own, packets = self._terms(version)
        slots = [self._ref(rank, "s", chunk, self.slot[row]) for row in packets]
        first = self._ref(rank, "i", chunk)
        if not own:
            first = self._spare(rank, chunk)
            self._add(rank, chunk, when, Operation("upkt", (slots.pop(0),), (first,)))
        while len(slots) > most:
            part, slots = slots[:most], slots[most:]
            target = self._spare(rank, chunk)
            self._add(rank, chunk, when, Operation("repkt", (first, *part), (target,)))
            first = target
        return first, slots

    def _keep(self, version: Version, when: int) -> None:
        """Put a result into the output."""
        rank, chunk = version.rank, version.chunk
        own, packets = self._terms(version)
        target = self._ref(rank, "o", chunk)
        if not packets and self.in_place:
            # It is there already.
            return
        if not packets:
            self._add(rank, chunk, when, Operation("copy", (self._ref(rank, "i", chunk),), (target,)))
        elif not own and len(packets) == 1:
            slot = self._ref(rank, "s", chunk, self.slot[packets[0]])
            self._add(rank, chunk, when, Operation("upkt", (slot,), (target,)))
        else:
            first, rest = self._summed(version, when, MAX_REFERENCES - 1)
            self._add(rank, chunk, when, Operation("repkt", (first, *rest), (target,)))

    def _spare(self, rank: int, chunk: int) -> Ref:
        """A place for sums that are not results."""
        spare = self.ranks[rank].spare
        if chunk not in spare:
            spare[chunk] = self._take(rank, chunk)
        return self._ref(rank, "s", chunk, spare[chunk])

    def gpus(self, num_blocks: int) -> tuple[Gpu, ...] | None:
        """The GPUs, chunks dealt out to so many thread blocks, or None where one does not fit."""
        c = self.schedule.collective
        made: list[Gpu] = []
        peers = [
            sorted(
                {ref.remote for ops in rank.ops.values() for _, op in ops for ref in op.destinations if ref.remote >= 0}
            )
            for rank in self.ranks
        ]
        joined = [sorted({*peers[r], *(p for p, known in enumerate(peers) if r in known)}) for r in range(c.num_ranks)]
        for r, rank in enumerate(self.ranks):
            groups: list[list[tuple[int, Operation]]] = [[] for _ in range(num_blocks)]
            for number, chunk in enumerate(sorted(rank.ops)):
                groups[number % num_blocks] += rank.ops[chunk]
            blocks = [self._block(len(made), ops, peers[r], joined[r]) for ops in groups if ops]
            if any(
                len(block.ops) > MAX_OPS or len(block.remote.get("memory", ())) > MAX_REMOTE_BUFFERS for block in blocks
            ):
                return None
            made.append(
                Gpu(
                    input_chunks=max(self.input[k] + self.units[k] for k in c.held_by(r).tolist()),
                    output_chunks=max(self.output[k] + self.units[k] for k in c.wanted_by(r).tolist()),
                    scratch_chunks=rank.scratch,
                    blocks=tuple(Block(block.ops, block.channels, block.remote, b) for b, block in enumerate(blocks)),
                    channels={"memory": tuple(joined[r])} if joined[r] else {},
                    remote=tuple(RemoteBuffer(peer, "s", ("memory",)) for peer in peers[r]),
                    number=r,
                )
            )
        return tuple(made)

    def _block(self, rank: int, timed: list[tuple[int, Operation]], peers: list[int], joined: list[int]) -> Block:
        """A thread block: its operations in the order of the schedule, and the peers that it sends to."""
        used: list[int] = []
        ops: list[Operation] = []
        for _, op in sorted(timed, key=lambda pair: pair[0]):
            targets = []
            for ref in op.destinations:
                if ref.remote >= 0 and ref.remote not in used:
                    used.append(ref.remote)
                targets.append(Ref(ref.index, ref.size, ref.buffer, used.index(ref.remote) if ref.remote >= 0 else -1))
            ops.append(Operation(op.name, op.sources, tuple(targets), op.channel_type))
        if not used:
            return Block(tuple(ops))
        channels = {"memory": tuple(joined.index(peer) for peer in used)}
        return Block(tuple(ops), channels, {"memory": tuple(peers.index(peer) for peer in used)})
