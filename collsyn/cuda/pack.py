"""A bound plan as the program of a launch: the records of its ranks' channels, and where their threads must meet."""

from collections.abc import Sequence

import numpy as np

from collsyn.check.execute import check_ranges
from collsyn.cuda.far import Beyond, Crossing, crossing
from collsyn.cuda.layout import CHANNEL, DIVISION, SLOTS, DeviceProgram, rank_records
from collsyn.cuda.order import barriers
from collsyn.errors import InputError
from collsyn.model.arrays import I64
from collsyn.model.bind import BoundPlan, divisions
from collsyn.model.dtypes import checked_op, dtype_of
from collsyn.model.plan import Buffer, Op


def pack(
    bound: BoundPlan,
    dtype_name: str,
    op_name: str,
    ranks: Sequence[int] | None = None,
    blocks_per_channel: int = 1,
    beyond: Beyond | None = None,
) -> DeviceProgram:
    """The arrays for a launch that runs these ranks (None: all, as on one GPU). Raises InputError for elements of
    another width, VerificationError for places outside their buffers. Linear in the instructions.

    With `beyond` it is one rank, which reaches others than those of its box by its proxy.
    """
    dtype, _ = dtype_of(dtype_name), checked_op(op_name)
    if dtype.num_bytes != bound.element_bytes:
        raise InputError(f"dtype {dtype_name} has {dtype.num_bytes} bytes; the plan is bound to {bound.element_bytes}")
    if blocks_per_channel < 1:
        raise InputError(f"blocks_per_channel: is {blocks_per_channel}; expected at least 1")
    if beyond is not None and blocks_per_channel > 1:
        raise InputError(f"blocks_per_channel: is {blocks_per_channel}; expected 1 where ranks are in several boxes")
    check_ranges(bound)
    plan = bound.plan
    chosen = tuple(range(plan.num_ranks)) if ranks is None else tuple(ranks)
    parts = [_of_rank(bound, rank, dtype.num_bytes, beyond) for rank in chosen]
    begins = np.cumsum([0, *(len(part.rows) for part in parts)])
    channels = np.array(
        [
            (begin + first, begin + end, rank, number, asks, 0)
            for begin, rank, part in zip(begins.tolist(), chosen, parts, strict=False)
            for number, (first, end, asks) in enumerate(
                zip([0, *part.ends.tolist()], part.ends.tolist(), part.asks.tolist(), strict=False)
            )
        ],
        dtype=CHANNEL,
    )
    rows = np.concatenate([np.empty(0, np.int64), *(part.rows for part in parts)])
    asked = np.concatenate([np.empty(0, np.bool_), *(part.is_asked for part in parts)])
    records = np.concatenate([part.records for part in parts])
    ends = np.concatenate([[0], channels["end"]]).astype(np.int64)
    firsts = np.concatenate([plan.channel_ptr[plan.channels_of(rank)] for rank in chosen])
    records["row"] = rows - np.repeat(firsts, np.diff(ends))
    records["barrier"] = barriers(bound, rows, ends, blocks_per_channel > 1, asked)
    averages = [
        (SLOTS * rank + Buffer.OUTPUT, divisor, start, length // dtype.num_bytes)
        for rank in chosen
        for start, length, divisor in (divisions(bound, rank) if op_name == "avg" else [])
    ]
    return DeviceProgram(
        bound=bound,
        dtype_name=dtype_name,
        op_name=op_name,
        ranks=chosen,
        instructions=records,
        channels=channels,
        divisions=np.array(averages, dtype=DIVISION),
        rows=rows,
        rise=_highest_value(bound),
        blocks_per_channel=blocks_per_channel,
        room=max((part.room for part in parts), default=0),
    )


def _of_rank(bound: BoundPlan, rank: int, width: int, beyond: Beyond | None) -> Crossing:
    """A rank's records; where all memory can be reached, one for each instruction."""
    pointers, channels = bound.plan.channel_ptr, bound.plan.channels_of(rank)
    begin, end = pointers[channels].tolist(), pointers[channels + 1].tolist()
    rows: I64 = np.concatenate(
        [np.empty(0, np.int64), *(np.arange(a, b, dtype=np.int64) for a, b in zip(begin, end, strict=True))]
    )
    ends: I64 = np.cumsum(pointers[channels + 1] - pointers[channels])
    if beyond is not None:
        return crossing(bound, rank, rows, ends, width, beyond)
    nothing = np.zeros(len(ends), dtype=np.int64)
    return Crossing(rank_records(bound, rows, width), rows, ends, nothing, np.zeros(len(rows), dtype=np.bool_), 0)


def _highest_value(bound: BoundPlan) -> int:
    valued = np.isin(bound.columns["op"], [Op.SIGNAL, Op.WAIT])
    return int(bound.columns["value"][valued].max(initial=0))
