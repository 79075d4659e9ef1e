"""A plan: what each rank's thread blocks do, in order, without times; what runs, and what foreign runtimes read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64, I32, I64, Rows, column
from collsyn.model.collective import Collective
from collsyn.model.topology import Topology


class Op(IntEnum):
    """Instructions; `dst`, `src`, `src2` are (buffer, offset) pairs, all `length` units long.

    COPY        dst = src                       both here
    REDUCE      dst = src (+) src2              all here
    PUT         dst = src                       dst at the peer, src here
    GET         dst = src                       dst here, src at the peer
    GET_REDUCE  dst = src (+) src2              src at the peer, the others here
    SIGNAL      flag `flag` of the peer becomes `value` (release: all earlier instructions of this channel are visible)
    WAIT        until the own flag `flag` is at least `value` (acquire)
    NOP         nothing
    """

    NOP = 0
    COPY = 1
    REDUCE = 2
    PUT = 3
    GET = 4
    GET_REDUCE = 5
    SIGNAL = 6
    WAIT = 7


class Buffer(IntEnum):
    """The buffers that instructions name."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2


MOVES = frozenset({Op.COPY, Op.REDUCE, Op.PUT, Op.GET, Op.GET_REDUCE})
READS_PEER = frozenset({Op.GET, Op.GET_REDUCE})

COLUMNS: dict[str, npt.DTypeLike] = {
    "op": np.int32,
    "peer": np.int32,
    "dst_buffer": np.int32,
    "dst_offset": np.int64,
    "src_buffer": np.int32,
    "src_offset": np.int64,
    "src2_buffer": np.int32,
    "src2_offset": np.int64,
    "length": np.int64,
    "flag": np.int32,
    "value": np.int64,
    "route": np.int32,
}
_DEFAULTS = {"peer": -1, "route": -1}


@dataclass(frozen=True, eq=False)
class Plan:
    """Per rank and channel (thread block) a list of instructions on ranges of input, output and scratch.

    Channel k belongs to rank `channel_rank[k]` and holds instructions `channel_ptr[k] : channel_ptr[k + 1]` of the
    columns (`COLUMNS`). Lengths and offsets count units, `units_per_chunk_unit` of them to one unit of the collective,
    so that chunks can be cut into pieces; a chunk of u units and e elements has its unit i at element floor(i * e / u).
    Scratch of rank r consists of segments `scratch_ptr[r] : scratch_ptr[r + 1]`, one behind the other: each is as long
    as units `scratch_first : scratch_first + scratch_units` of chunk `scratch_chunk` (-1: of no chunk; such plans run
    only at sizes that the units divide). Flags are per rank, `num_flags[r]` of them, begin at 0 in each call and only
    rise. A plan is correct out of place and, where the collective knows it, in place. `routes` give the simulator the
    links of PUT and GET (a column value of -1: none, that is the cheapest route of the topology).

    Of a plan that `runs_ahead` scratch exists twice, and calls use the two in turn: then ranks may put into scratch of
    one that has not begun the call, if none ends a call that such a one has not begun.
    """

    collective: Collective
    num_ranks: int
    units_per_chunk_unit: int
    channel_rank: I32
    channel_ptr: I64
    columns: Mapping[str, npt.NDArray[Any]]
    scratch_ptr: I64
    scratch_chunk: I32
    scratch_first: I64
    scratch_units: I64
    num_flags: I32
    routes: Rows
    topology: Topology | None = None
    name: str = "plan"
    provenance: Mapping[str, Any] = field(default_factory=dict)
    runs_ahead: bool = False

    @classmethod
    def build(
        cls,
        collective: Collective,
        channels: Sequence[tuple[int, Sequence[Mapping[str, int]]]],
        scratch: Sequence[Sequence[tuple[int, int, int]]],
        num_flags: Sequence[int],
        units_per_chunk_unit: int = 1,
        routes: Rows | None = None,
        topology: Topology | None = None,
        name: str = "plan",
        provenance: Mapping[str, Any] | None = None,
        runs_ahead: bool = False,
    ) -> "Plan":
        """A plan from lists: channels (rank, instructions as mappings of column to value) and scratch segments per rank
        (chunk, first unit, units)."""
        instructions = [instruction for _, body in channels for instruction in body]
        columns = {
            key: np.array([row.get(key, _DEFAULTS.get(key, 0)) for row in instructions], dtype=dtype)
            for key, dtype in COLUMNS.items()
        }
        segments = np.array([segment for rank in scratch for segment in rank], dtype=np.int64).reshape(-1, 3)
        return cls(
            collective=collective,
            num_ranks=collective.num_ranks,
            units_per_chunk_unit=units_per_chunk_unit,
            channel_rank=np.array([rank for rank, _ in channels], dtype=np.int32),
            channel_ptr=np.cumsum([0, *(len(body) for _, body in channels)]),
            columns=columns,
            scratch_ptr=np.cumsum([0, *(len(rank) for rank in scratch)]),
            scratch_chunk=segments[:, 0].astype(np.int32),
            scratch_first=segments[:, 1],
            scratch_units=segments[:, 2],
            num_flags=np.array(num_flags, dtype=np.int32),
            routes=routes if routes is not None else Rows.of([]),
            topology=topology,
            name=name,
            provenance=provenance or {},
            runs_ahead=runs_ahead,
        )

    def __post_init__(self) -> None:
        types: dict[str, npt.DTypeLike] = {"channel_rank": np.int32, "scratch_chunk": np.int32, "num_flags": np.int32}
        types |= dict.fromkeys(("channel_ptr", "scratch_ptr", "scratch_first", "scratch_units"), np.int64)
        for name, dtype in types.items():
            object.__setattr__(self, name, column(getattr(self, name), dtype))
        typed = {key: column(self.columns[key], dtype) for key, dtype in COLUMNS.items()}
        object.__setattr__(self, "columns", typed)

    @property
    def num_channels(self) -> int:
        """Thread blocks of all ranks together."""
        return len(self.channel_rank)

    @property
    def num_instructions(self) -> int:
        """Instructions of all channels together."""
        return len(self.columns["op"])

    @property
    def total_units(self) -> int:
        """Units of this plan that make up the size that users give."""
        return self.collective.total_units * self.units_per_chunk_unit

    @property
    def bytes_on_links(self) -> F64:
        """What links carry for every byte that an instruction moves, 1 unless a runtime sends more than the data."""
        return np.ones(self.num_instructions)

    def channels_of(self, rank: int) -> I64:
        """Channel numbers of a rank, ascending."""
        return np.flatnonzero(self.channel_rank == rank)

    def max_channels(self) -> int:
        """Thread blocks of the rank that has most."""
        return int(np.bincount(self.channel_rank, minlength=self.num_ranks).max(initial=0))

    def buffer_units(self) -> I64:
        """Length in units of input, output and scratch of every rank, shape [num_ranks, 3]."""
        collective, factor = self.collective, self.units_per_chunk_unit
        extents = np.zeros((self.num_ranks, len(Buffer)), dtype=np.int64)
        for rank in range(self.num_ranks):
            for buffer, chunks, offset in (
                (Buffer.INPUT, collective.held_by(rank), collective.in_offset),
                (Buffer.OUTPUT, collective.wanted_by(rank), collective.out_offset),
            ):
                extents[rank, buffer] = ((offset + collective.units)[chunks].max(initial=0)) * factor
            segments = slice(self.scratch_ptr[rank], self.scratch_ptr[rank + 1])
            extents[rank, Buffer.SCRATCH] = self.scratch_units[segments].sum()
        return extents

    def place(self, instruction: int) -> str:
        """Rank, channel of the rank, number within the channel, and the instruction in words."""
        channel = int(np.searchsorted(self.channel_ptr, instruction, side="right")) - 1
        rank = int(self.channel_rank[channel])
        within = int((self.channel_rank[:channel] == rank).sum())
        at = instruction - int(self.channel_ptr[channel])
        return f"rank {rank} channel {within} instruction {at} ({self.describe(instruction)})"

    def describe(self, instruction: int) -> str:
        """One instruction in words, for messages and listings."""
        row = {key: int(values[instruction]) for key, values in self.columns.items()}
        op, names = row["op"], {int(buffer): buffer.name.lower() for buffer in Buffer}
        if not 0 <= op < len(Op):
            return f"unknown instruction {op}"

        def place(which: str, at: str) -> str:
            buffer = row[f"{which}_buffer"]
            return f"{at}{names.get(buffer, f'buffer {buffer}')}[{row[f'{which}_offset']}+{row['length']}]"

        peer = f"{row['peer']}:"
        if op == Op.SIGNAL:
            return f"signal rank {row['peer']} flag {row['flag']} = {row['value']}"
        if op == Op.WAIT:
            return f"wait flag {row['flag']} >= {row['value']}" + (
                f" (of rank {row['peer']})" if row["peer"] >= 0 else ""
            )
        if op == Op.NOP:
            return "nop"
        dst = place("dst", peer if op == Op.PUT else "")
        src = place("src", peer if op in READS_PEER else "")
        second = f" (+) {place('src2', '')}" if op in (Op.REDUCE, Op.GET_REDUCE) else ""
        return f"{Op(op).name.lower()} {dst} = {src}{second}"
