"""Several calls of a plan as one plan, so that what a call leaves to the next one can be looked through for races."""

from typing import Any

import numpy as np

from collsyn.model.plan import COLUMNS, Buffer, Op, Plan


def unrolled(plan: Plan, calls: int, sets: int) -> Plan:
    """The calls one after the other, scratch being one of `sets` by turns.

    Between two calls of a rank its channels meet, and its user reads all of the output and writes all of the input.
    Flags go on counting, as executors have it.
    """
    rise = int(plan.columns["value"].max(initial=0))
    scratch_units, scratch, channels, num_flags = plan.buffer_units()[:, Buffer.SCRATCH], [], [], []
    for rank in range(plan.num_ranks):
        own = plan.channels_of(rank).tolist()
        segments = [
            tuple(int(column[i]) for column in (plan.scratch_chunk, plan.scratch_first, plan.scratch_units))
            for i in range(int(plan.scratch_ptr[rank]), int(plan.scratch_ptr[rank + 1]))
        ]
        user = max(plan.buffer_units()[rank, :2].tolist())
        scratch.append([*segments * sets, (0, 0, user)])
        ended, begun = int(plan.num_flags[rank]), int(plan.num_flags[rank]) + len(own)
        num_flags.append(begun + 1)
        for number, channel in enumerate(own):
            rows: list[dict[str, int]] = []
            for call in range(calls):
                if number == 0:
                    rows += [_wait(rank, ended + other, call) for other in range(1, len(own))] if call else []
                    rows += _use(plan, rank, int(scratch_units[rank]) * sets)
                    rows.append({"op": Op.SIGNAL, "peer": rank, "flag": begun, "value": call + 1})
                else:
                    rows.append(_wait(rank, begun, call + 1))
                for row in range(int(plan.channel_ptr[channel]), int(plan.channel_ptr[channel + 1])):
                    rows.append(_of_call(plan, rank, row, call * rise, call % sets, scratch_units))
                rows.append({"op": Op.SIGNAL, "peer": rank, "flag": ended + number, "value": call + 1})
            channels.append((rank, rows))
    return Plan.build(plan.collective, channels, scratch, num_flags, plan.units_per_chunk_unit)


def _wait(rank: int, flag: int, value: int) -> dict[str, int]:
    return {"op": Op.WAIT, "peer": rank, "flag": flag, "value": value}


def _use(plan: Plan, rank: int, at: int) -> list[dict[str, int]]:
    """The user's accesses, from and to memory of its own that stands behind scratch."""
    sizes = plan.buffer_units()[rank].tolist()
    read = {"op": Op.COPY, "dst_buffer": Buffer.SCRATCH, "dst_offset": at, "src_buffer": Buffer.OUTPUT}
    write = {"op": Op.COPY, "dst_buffer": Buffer.INPUT, "src_buffer": Buffer.SCRATCH, "src_offset": at}
    return [{**read, "length": sizes[Buffer.OUTPUT]}, {**write, "length": sizes[Buffer.INPUT]}]


def _of_call(plan: Plan, rank: int, row: int, rise: int, turn: int, scratch_units: np.ndarray) -> dict[str, int]:
    """An instruction with its flags and its places in scratch as they are in a later call."""
    made: dict[str, Any] = {key: int(plan.columns[key][row]) for key in COLUMNS}
    if made["op"] in (Op.SIGNAL, Op.WAIT):
        return {**made, "value": made["value"] + rise}
    dst_owner = made["peer"] if made["op"] == Op.PUT else rank
    src_owner = made["peer"] if made["op"] in (Op.GET, Op.GET_REDUCE) else rank
    for which, owner in (("dst", dst_owner), ("src", src_owner), ("src2", rank)):
        if made[f"{which}_buffer"] == Buffer.SCRATCH:
            made[f"{which}_offset"] += turn * int(scratch_units[owner])
    return made
