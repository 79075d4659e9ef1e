"""Runs a plan on real data in one process, in any order that its flags allow: the oracle for all backends."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.check.interleave import interleaving, owners, place
from collsyn.check.reference import reference
from collsyn.errors import InputError, VerificationError
from collsyn.model.arrays import I64, Bools
from collsyn.model.bind import BoundPlan, divisions, layout
from collsyn.model.dtypes import divide, dtype_of, reducer
from collsyn.model.plan import MOVES, READS_PEER, Buffer, Op

__all__ = ["Execution", "check_ranges", "execute", "operands", "reference", "run"]

Array = npt.NDArray[Any]

_POISON = 0xA5


@dataclass(frozen=True, eq=False)
class Execution:
    """What a run left: per rank the arrays of output and input (in place they share memory), and instructions done."""

    outputs: list[Array]
    inputs: list[Array]
    num_executed: int


def execute(
    bound: BoundPlan, dtype_name: str, op_name: str, inputs: Sequence[Array], seed: int | None = None
) -> list[Array]:
    """Outputs of all ranks after a run of a bound plan; see `run`."""
    return run(bound, dtype_name, op_name, inputs, seed).outputs


def run(bound: BoundPlan, dtype_name: str, op_name: str, inputs: Sequence[Array], seed: int | None = None) -> Execution:
    """Run a bound plan on stored elements (see dtypes), one input array a rank, which stays as it is.

    `seed` chooses the order of the channels (see `interleaving`). Buffers begin as garbage where no input is, and as 0
    where a custom collective leaves holes in an output. Raises VerificationError for a deadlock or a range outside its
    buffer, InputError for inputs that do not fit the plan.
    O(instructions log channels + bytes moved).
    """
    dtype = dtype_of(dtype_name)
    if dtype.num_bytes != bound.element_bytes:
        raise InputError(f"dtype {dtype_name} has {dtype.num_bytes} bytes; the plan is bound to {bound.element_bytes}")
    check_ranges(bound)
    buffers = _buffers(bound, dtype.storage, inputs)
    order = interleaving(bound.plan, seed)
    moves = _moves(bound, buffers)
    combine = reducer(op_name, dtype_name)
    for instruction in order:
        move = moves[instruction]
        if move is not None:
            dst, src, src2 = move
            if src2 is None:
                dst[...] = src
            else:
                combine(dst, src, src2)
    if op_name == "avg":
        for rank in range(bound.plan.num_ranks):
            for first, length, count in divisions(bound, rank):
                begin, end = first // dtype.num_bytes, (first + length) // dtype.num_bytes
                divide(dtype_name, buffers[rank][Buffer.OUTPUT][begin:end], count)
    outputs = [rank_buffers[Buffer.OUTPUT] for rank_buffers in buffers]
    return Execution(outputs, [rank_buffers[Buffer.INPUT] for rank_buffers in buffers], len(order))


def check_ranges(bound: BoundPlan) -> None:
    """Raise VerificationError for the first instruction that names no rank or buffer, or leaves a buffer."""
    c, num_ranks = bound.columns, bound.plan.num_ranks
    op = c["op"]
    _refuse(bound, ~np.isin(op, [int(known) for known in Op]), "is no instruction")
    peers = np.isin(op, [Op.PUT, Op.SIGNAL, *READS_PEER])
    _refuse(bound, peers & ((c["peer"] < 0) | (c["peer"] >= num_ranks)), "there is no such rank")
    units = bound.plan.buffer_units()
    for which, used, rank in operands(bound):
        buffer, offset = c[f"{which}_buffer"], c[f"{which}_offset"]
        _refuse(bound, used & ((buffer < 0) | (buffer >= len(Buffer))), f"{which} is no buffer")
        for columns, extents in ((bound.plan.columns, units), (c, bound.buffer_bytes)):
            first, length = columns[f"{which}_offset"], columns["length"]
            extent = extents[rank, np.clip(buffer, 0, len(Buffer) - 1)]
            outside = (first < 0) | (length < 0) | (first + length > extent)
            _refuse(bound, used & outside, f"{which} is outside its buffer")
        width = bound.element_bytes
        _refuse(bound, used & ((offset % width != 0) | (c["length"] % width != 0)), f"{which} cuts an element")


def operands(bound: BoundPlan) -> list[tuple[str, Bools, I64]]:
    """Per operand `dst`, `src`, `src2`: the instructions that have it, and the ranks in whose memory it is."""
    op, peer, owner = bound.columns["op"], bound.columns["peer"].astype(np.int64), owners(bound.plan)
    moves = np.isin(op, list(MOVES))
    return [
        ("dst", moves, np.where(op == Op.PUT, peer, owner)),
        ("src", moves, np.where(np.isin(op, list(READS_PEER)), peer, owner)),
        ("src2", np.isin(op, [Op.REDUCE, Op.GET_REDUCE]), owner),
    ]


def _refuse(bound: BoundPlan, bad: Bools, what: str) -> None:
    if bad.any():
        raise VerificationError(f"{place(bound.plan, int(np.flatnonzero(bad)[0]))}: {what}")


def _buffers(bound: BoundPlan, storage: np.dtype[Any], inputs: Sequence[Array]) -> list[list[Array]]:
    """Input, output and scratch of every rank, inputs filled in, all else garbage, but 0 where no chunk will be."""
    num_ranks = bound.plan.num_ranks
    places = layout(bound.plan.collective, bound.num_elements)
    if len(inputs) != num_ranks:
        raise InputError(f"inputs: are {len(inputs)}; expected one for each of {num_ranks} ranks")
    buffers = []
    for rank, sizes in enumerate((bound.buffer_bytes // storage.itemsize).tolist()):
        given, alias = inputs[rank], bound.alias[rank]
        if given.dtype != storage or given.shape != (sizes[Buffer.INPUT],):
            shape = f"{given.dtype}{list(given.shape)}"
            raise InputError(f"inputs: that of rank {rank} is {shape}; expected {storage}[{sizes[Buffer.INPUT]}]")
        if alias is None:
            parts = [_garbage(size, storage) for size in sizes]
        else:
            inner, outer, offset = alias[0], alias[1], alias[2] // storage.itemsize
            whole = _garbage(max(sizes[outer], offset + sizes[inner]), storage)
            parts = [whole, whole, _garbage(sizes[Buffer.SCRATCH], storage)]
            parts[inner] = whole[offset : offset + sizes[inner]]
            parts[outer] = whole[: sizes[outer]]
        parts[Buffer.INPUT][...] = given
        chunks, first, size = places.output[rank]
        if places.lengths[chunks].sum() < size:
            ends = [0, *(first + places.lengths[chunks]).tolist()]
            for end, begin in zip(ends, [*first.tolist(), size], strict=True):
                parts[Buffer.OUTPUT][end:begin] = 0
        buffers.append(parts)
    return buffers


def _garbage(size: int, storage: np.dtype[Any]) -> Array:
    return np.full(size * storage.itemsize, _POISON, dtype=np.uint8).view(storage)


def _moves(bound: BoundPlan, buffers: list[list[Array]]) -> list[tuple[Array, Array, Array | None] | None]:
    """Slices that every instruction moves: (dst, src, src2 or None), None where nothing moves."""
    length = bound.columns["length"] // bound.element_bytes
    columns: list[list[Array | None]] = []
    for which, used, rank in operands(bound):
        begin = bound.columns[f"{which}_offset"] // bound.element_bytes
        rows = zip(
            (used & (length > 0)).tolist(),
            rank.tolist(),
            bound.columns[f"{which}_buffer"].tolist(),
            begin.tolist(),
            (begin + length).tolist(),
            strict=True,
        )
        columns.append([buffers[r][b][first:last] if here else None for here, r, b, first, last in rows])
    return [None if dst is None or src is None else (dst, src, src2) for dst, src, src2 in zip(*columns, strict=True)]
