"""All-to-all with a count for every pair of ranks, of which a rank knows only its own at first."""

import numpy as np
import numpy.typing as npt

from collsyn.comm.buffers import Array, carrier, drain, fill
from collsyn.comm.plans import Call, Plans
from collsyn.errors import InputError

# Counts that change with every call would each need a plan of their own: equal slots are taken instead where these are
# so small, or their sum at most this multiple of what is sent.
_SLOT_BYTES = 4096
_MOST_PADDING = 4
_ANY_SIZE = -1


def exchange_v(
    plans: Plans,
    rank: int,
    size: int,
    send: Array,
    counts: tuple[int, ...],
    out: Array | None,
    arriving: tuple[int, ...] | None,
    timeout_s: float,
) -> Array:
    """Send `counts[d]` elements, one part behind the other, to every rank d; what all ranks sent here, in rank order.

    The result is `out`, or a new flat array. Raises InputError, on all ranks alike, where an `out`, a type or what a
    rank expects to arrive does not fit.
    """
    room = _ANY_SIZE if out is None else out.size
    expected = (_ANY_SIZE,) * size if arriving is None else arriving
    table = _table(plans, rank, size, [*counts, room, send.dtype.itemsize, *expected], timeout_s)
    matrix = table[:, :size]
    _check_expected(matrix, table[:, size + 2 :])
    _check(matrix, table[:, size], table[:, size + 1])
    total = int(matrix[:, rank].sum())
    result = np.empty(total, dtype=send.dtype) if out is None else out
    if matrix.any():
        received = result if result.flags.c_contiguous else np.empty(total, dtype=send.dtype)
        flat = np.ascontiguousarray(send).reshape(-1)
        _move(plans, rank, matrix, flat, received.reshape(-1), timeout_s)
        if received is not result:
            result[...] = received.reshape(result.shape)
    return result


def _table(plans: Plans, rank: int, size: int, row: list[int], timeout_s: float) -> npt.NDArray[np.int64]:
    prepared = plans.get(Call("allgather", size * len(row), "int64"))
    prepared.input[...] = row
    prepared.run(timeout_s)
    return prepared.output.reshape(size, len(row)).copy()


def _check_expected(matrix: npt.NDArray[np.int64], expected: npt.NDArray[np.int64]) -> None:
    wrong = np.argwhere((expected != _ANY_SIZE) & (expected != matrix.T))
    if len(wrong):
        rank, sender = wrong[0].tolist()
        sent = int(matrix[sender, rank])
        raise InputError(
            f"counts: rank {rank} expects {int(expected[rank, sender])} elements of rank {sender}, which sends {sent}"
        )


def _check(matrix: npt.NDArray[np.int64], outs: npt.NDArray[np.int64], widths: npt.NDArray[np.int64]) -> None:
    for rank, (arrives, room) in enumerate(zip(matrix.sum(axis=0).tolist(), outs.tolist(), strict=True)):
        if room not in (_ANY_SIZE, arrives):
            raise InputError(f"out: of rank {rank} has {room} elements; {arrives} arrive there")
    if (widths != widths[0]).any():
        other = int(np.flatnonzero(widths != widths[0])[0])
        both = f"rank 0 have {widths[0]} bytes, those of rank {other} {widths[other]}"
        raise InputError(f"array: elements of {both}; expected one type")


def _move(
    plans: Plans, rank: int, matrix: npt.NDArray[np.int64], send: Array, received: Array, timeout_s: float
) -> None:
    size = len(matrix)
    name, factor = carrier(send.dtype)
    slot = 1 << (int(matrix.max()) - 1).bit_length()
    if slot * send.dtype.itemsize > _SLOT_BYTES and size * size * slot > _MOST_PADDING * int(matrix.sum()):
        counts = tuple(map(tuple, (matrix * factor).tolist()))
        prepared = plans.get(Call("alltoallv", max(map(sum, counts)), name, counts=counts))
        fill(prepared.input, send)
        prepared.run(timeout_s)
        drain(received, prepared.output)
        return
    prepared = plans.get(Call("alltoall", size * slot * factor, name))
    _copy_parts(prepared.input.view(send.dtype), slot, send, matrix[rank].tolist(), into_slots=True)
    prepared.run(timeout_s)
    _copy_parts(prepared.output.view(send.dtype), slot, received, matrix[:, rank].tolist(), into_slots=False)


def _copy_parts(slots: Array, slot: int, parts: Array, counts: list[int], into_slots: bool) -> None:
    """Copy parts that follow each other into the beginnings of equal slots, or back."""
    begin = 0
    for number, count in enumerate(counts):
        here, there = slots[number * slot : number * slot + count], parts[begin : begin + count]
        if into_slots:
            here[...] = there
        else:
            there[...] = here
        begin += count
