"""Binding a plan to a size and element width: units become bytes, so that executors see only byte ranges."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.errors import InputError
from collsyn.model.arrays import I64
from collsyn.model.collective import Collective
from collsyn.model.plan import MOVES, READS_PEER, Buffer, Op, Plan


@dataclass(frozen=True, eq=False)
class BoundPlan:
    """A plan at one size: `columns` as in the plan but with offsets and lengths in bytes.

    `buffer_bytes[r]` are the lengths of input, output and scratch of rank r (shape [num_ranks, 3]). In place,
    `alias[r] = (inner, outer, offset)` says that buffer `inner` of rank r begins at byte `offset` of buffer `outer`
    (None: apart); out of place it is None for all ranks. With `is_lent`, input and output are memory that callers lend
    for each run, which peers cannot reach.
    """

    plan: Plan
    num_elements: int
    element_bytes: int
    columns: Mapping[str, npt.NDArray[Any]]
    buffer_bytes: I64
    alias: tuple[tuple[Buffer, Buffer, int] | None, ...]
    is_lent: bool = False


@dataclass(frozen=True, eq=False)
class Layout:
    """Where every chunk stands, in whole elements: lengths per chunk, and per rank the chunks of both buffers in order.

    `input[r]`, `output[r]` = (chunks, first elements, buffer length in elements), chunks sorted by their offset.
    """

    lengths: I64
    input: tuple[tuple[I64, I64, int], ...]
    output: tuple[tuple[I64, I64, int], ...]


def fingerprint(bound: BoundPlan) -> str:
    """12 hex digits that are equal for two ranks exactly if they run the same thing. Linear in the plan."""
    plan, sums = bound.plan, hashlib.sha256()
    for array in (plan.channel_rank, plan.channel_ptr, plan.num_flags, bound.buffer_bytes, *bound.columns.values()):
        sums.update(np.ascontiguousarray(array).tobytes())
    sums.update(repr((bound.alias, bound.is_lent, plan.runs_ahead)).encode())
    return sums.hexdigest()[:12]


def layout(collective: Collective, num_elements: int) -> Layout:
    """Place chunks of whole elements in all buffers; where the size does not divide, lengths differ by at most one.

    Chunks keep their order in a buffer and follow each other; space that no chunk covers keeps its rounded length.
    """
    lengths = collective.element_lengths(num_elements)

    def place(chunks: I64, offsets: I64) -> tuple[I64, I64, int]:
        order = np.argsort(offsets[chunks], kind="stable")
        chunks = chunks[order]
        begin = offsets[chunks]
        end = begin + collective.units[chunks]
        previous_end = np.concatenate([[0], np.maximum.accumulate(end)[:-1]]) if len(chunks) else begin
        if (begin < previous_end).any():
            if num_elements % collective.total_units:
                raise InputError(
                    f"size: {num_elements} elements do not divide into {collective.total_units} parts (chunks overlap)"
                )
            return (
                chunks,
                begin * num_elements // collective.total_units,
                int(end.max()) * num_elements // collective.total_units,
            )
        holes = (begin - previous_end) * num_elements // collective.total_units
        first = np.cumsum(holes + np.concatenate([[0], lengths[chunks][:-1]])) if len(chunks) else begin
        return chunks, first, int(first[-1] + lengths[chunks[-1]]) if len(chunks) else 0

    ranks = range(collective.num_ranks)
    return Layout(
        lengths=lengths,
        input=tuple(place(collective.held_by(rank), collective.in_offset) for rank in ranks),
        output=tuple(place(collective.wanted_by(rank), collective.out_offset) for rank in ranks),
    )


def bind(plan: Plan, num_elements: int, element_bytes: int, in_place: bool = False) -> BoundPlan:
    """Byte ranges of a plan for `num_elements` elements of the user's size; raises InputError where that cannot be."""
    collective = plan.collective
    if num_elements < 1:
        raise InputError(f"size: is {num_elements} elements; expected at least 1")
    if in_place and not collective.has_in_place:
        raise InputError(f"{collective.kind} cannot run in place")
    places = layout(collective, num_elements)
    maps = [_buffer_maps(plan, places, rank, num_elements) for rank in range(plan.num_ranks)]
    columns = _byte_columns(plan, maps, num_elements, element_bytes)
    buffer_bytes = np.array([[m.size for m in rank_maps] for rank_maps in maps], dtype=np.int64) * element_bytes
    alias = tuple(
        _alias(collective, places, rank, element_bytes) if in_place else None for rank in range(plan.num_ranks)
    )
    return BoundPlan(plan, num_elements, element_bytes, columns, buffer_bytes, alias)


def divisions(bound: BoundPlan, rank: int) -> list[tuple[int, int, int]]:
    """What an average still has to do at the end: (first byte of the output, bytes, contributors), neighbours with one
    divisor joined; empty where nothing is reduced."""
    collective = bound.plan.collective
    if not collective.reduces:
        return []
    places = layout(collective, bound.num_elements)
    chunks, first, _ = places.output[rank]
    contributors = collective.sets.lengths()[collective.pre]
    parts: list[tuple[int, int, int]] = []
    for chunk, start in zip(chunks.tolist(), (first * bound.element_bytes).tolist(), strict=True):
        length, count = int(places.lengths[chunk]) * bound.element_bytes, int(contributors[chunk])
        if parts and parts[-1][2] == count and parts[-1][0] + parts[-1][1] == start:
            parts[-1] = (parts[-1][0], parts[-1][1] + length, count)
        else:
            parts.append((start, length, count))
    return [part for part in parts if part[1] and part[2] > 1]


@dataclass(frozen=True, eq=False)
class _Map:
    """Piecewise map of unit offsets to elements.

    Segment i begins at unit `unit[i]` and element `first[i]`, `inside[i]` units behind the start of its chunk, which
    has `whole_units[i]` units and `whole_elements[i]` elements; `size` is the buffer's length in elements.
    """

    unit: I64
    first: I64
    whole_units: I64
    whole_elements: I64
    inside: I64
    size: int

    def elements(self, offsets: I64) -> I64:
        """Element of every unit offset; an offset on a border belongs to the segment that begins there."""
        if not len(self.unit):
            return offsets * 0
        i = np.clip(np.searchsorted(self.unit, offsets, side="right") - 1, 0, None)
        inside = self.inside[i]
        local = np.minimum(offsets - self.unit[i] + inside, self.whole_units[i])
        scale = self.whole_elements[i]
        found: I64 = self.first[i] + local * scale // self.whole_units[i] - inside * scale // self.whole_units[i]
        return found


def _buffer_maps(plan: Plan, places: Layout, rank: int, num_elements: int) -> list[_Map]:
    collective, factor = plan.collective, plan.units_per_chunk_unit
    maps = []
    for (chunks, first, size), offsets in (
        (places.input[rank], collective.in_offset),
        (places.output[rank], collective.out_offset),
    ):
        whole = collective.units[chunks] * factor
        maps.append(_Map(offsets[chunks] * factor, first, whole, places.lengths[chunks], np.zeros_like(first), size))
    maps.append(_scratch_map(plan, places, rank, num_elements))
    return maps


def _scratch_map(plan: Plan, places: Layout, rank: int, num_elements: int) -> _Map:
    part = slice(plan.scratch_ptr[rank], plan.scratch_ptr[rank + 1])
    chunk, inside, units = plan.scratch_chunk[part], plan.scratch_first[part], plan.scratch_units[part]
    uniform = chunk < 0
    if uniform.any() and num_elements % plan.total_units:
        raise InputError(f"size: {num_elements} elements do not divide into the {plan.total_units} chunks of this plan")
    whole_units = np.where(uniform, plan.total_units, plan.collective.units[chunk] * plan.units_per_chunk_unit)
    whole_elements = np.where(uniform, num_elements, places.lengths[chunk])
    end = (inside + units) * whole_elements // whole_units
    length = end - inside * whole_elements // whole_units
    unit = np.cumsum(units) - units
    first = np.cumsum(length) - length
    return _Map(unit, first, whole_units, whole_elements, inside, int(length.sum()))


def _byte_columns(
    plan: Plan, maps: list[list[_Map]], num_elements: int, element_bytes: int
) -> dict[str, npt.NDArray[Any]]:
    """Offsets and lengths in bytes; raises InputError where the ranges of an instruction differ in length at this size.

    What is outside its buffer is left for executors to find.
    """
    columns = {key: np.array(values) for key, values in plan.columns.items()}
    op = columns["op"]
    owner = np.repeat(plan.channel_rank, np.diff(plan.channel_ptr)).astype(np.int64)
    moves = np.isin(op, list(MOVES))
    extents = plan.buffer_units()
    length, inside = np.zeros(len(op), dtype=np.int64), np.ones(len(op), dtype=np.bool_)
    for which, used, remote in (
        ("src", moves, np.isin(op, list(READS_PEER))),
        ("src2", np.isin(op, [Op.REDUCE, Op.GET_REDUCE]), np.zeros(len(op), dtype=np.bool_)),
        ("dst", moves, op == Op.PUT),
    ):
        rank, buffer = np.where(remote, columns["peer"], owner), columns[f"{which}_buffer"]
        used &= (rank >= 0) & (rank < plan.num_ranks) & (buffer >= 0) & (buffer < len(Buffer))
        offset, group = columns[f"{which}_offset"], rank * len(Buffer) + buffer
        begin, end = np.zeros(len(op), dtype=np.int64), np.zeros(len(op), dtype=np.int64)
        rows_of = np.flatnonzero(used)
        for key in np.unique(group[rows_of]):
            rows = rows_of[group[rows_of] == key]
            table = maps[int(key) // len(Buffer)][int(key) % len(Buffer)]
            begin[rows] = table.elements(offset[rows])
            last = offset[rows] + plan.columns["length"][rows]
            end[rows] = _end_elements(table, last)
            inside[rows] &= (offset[rows] >= 0) & (last <= extents[int(key) // len(Buffer), int(key) % len(Buffer)])
        if which == "src":
            length = end - begin
        elif (used & inside & (end - begin != length)).any():
            row = int(np.flatnonzero(used & inside & (end - begin != length))[0])
            raise InputError(
                f"plan {plan.name}: instruction {row} ({plan.describe(row)}) has ranges of unequal length at "
                f"{num_elements} elements"
            )
        columns[f"{which}_offset"] = begin * element_bytes
    columns["length"] = length * element_bytes
    return columns


def _end_elements(table: _Map, ends: I64) -> I64:
    """Element behind the last unit of a range: that of the segment which the range ends in, not of the next one."""
    if not len(table.unit):
        return ends * 0
    i = np.clip(np.searchsorted(table.unit, ends, side="left") - 1, 0, None)
    inside, scale, whole = table.inside[i], table.whole_elements[i], table.whole_units[i]
    local = ends - table.unit[i] + inside
    found: I64 = table.first[i] + local * scale // whole - inside * scale // whole
    return found


def _alias(collective: Collective, places: Layout, rank: int, element_bytes: int) -> tuple[Buffer, Buffer, int] | None:
    inside, chunk = collective.in_place_chunk(rank)
    if inside == "apart" or not len(places.input[rank][0]) or not len(places.output[rank][0]):
        return None
    if chunk is None:
        return Buffer.INPUT, Buffer.OUTPUT, 0
    inner, outer = (Buffer.INPUT, Buffer.OUTPUT) if inside == "input" else (Buffer.OUTPUT, Buffer.INPUT)
    chunks, first, _ = (places.output if outer == Buffer.OUTPUT else places.input)[rank]
    return inner, outer, int(first[np.flatnonzero(chunks == chunk)[0]]) * element_bytes
