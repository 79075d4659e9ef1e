"""What a rank's instructions become where they concern ranks in other boxes: pieces that the proxy carries.

A put leaves in pieces, a get asks for pieces and waits for each, a signal goes behind the puts to the same rank. A
signal to anybody else first makes sure that the puts of its channel have arrived: who sees it may count on them, and
tell others.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import I64
from collsyn.model.bind import BoundPlan
from collsyn.model.plan import READS_PEER, Op
from collsyn.runtime.proxy import BLOCK, Proxy

# Kinds of records for far ranks, as in native/job.h.
SEND, SEND_DIRECT, RAISE, FETCH, AWAIT = range(6, 11)
_DIRECT_PIECE = 1 << 20


@dataclass(frozen=True)
class Route:
    """Where far ranks find what near ones map: a region of every rank's memory, and the generation that counts."""

    proxy: Proxy
    region: int
    generation: int


@dataclass(frozen=True, eq=False)
class Steps:
    """Records to be made of instructions: record i is of `rows[i]`, of `length[i]` bytes from byte `skip[i]` of it on.

    `kind` is -1 for what stays as it is, `peer` the far rank otherwise (-1 where a sum is of fetched bytes). `end` are
    the ends of channels. `longest` is the largest piece of a reduction that is fetched.
    """

    rows: I64
    end: I64
    kind: I64
    skip: I64
    length: I64
    peer: I64
    longest: int


def cross(
    bound: BoundPlan, rows: I64, end: I64, near: Collection[int], direct_from: int, all_await: bool = False
) -> Steps:
    """Steps of a rank whose channels end at `end` of `rows`. Linear in the instructions and their pieces.

    What a put names may change behind it if it was copied at once, as those of less than `direct_from` bytes are unless
    `all_await`; behind others stands a wait for all their pieces.
    """
    c = {key: bound.columns[key][rows] for key in ("op", "peer", "length")}
    op, peer, length = c["op"].astype(np.int64), c["peer"].astype(np.int64), c["length"].astype(np.int64)
    names_peer = np.isin(op, [Op.PUT, Op.SIGNAL, *READS_PEER])
    far = names_peer & ~np.isin(peer, list(near))
    moves = far & (op != Op.SIGNAL)
    direct = moves & (op == Op.PUT) & (length >= direct_from)
    largest = _DIRECT_PIECE if direct_from <= BLOCK else BLOCK
    limit = np.where((op == Op.PUT) & ~direct, BLOCK, largest)
    pieces: I64 = np.where(moves, -(-length // limit), 1)
    # Records that a piece becomes, and that stand behind all; moves of nothing stay one that does nothing.
    parts: I64 = np.ones(len(op), dtype=np.int64)
    parts[moves & (op == Op.GET)] = 2
    parts[moves & (op == Op.GET_REDUCE)] = 3
    tail: I64 = np.where(moves & (op == Op.PUT) & (direct | all_await), 1, 0)
    is_empty = moves & (length == 0)
    pieces[is_empty] = parts[is_empty] = 1
    tail[is_empty] = 0
    flushed = _flushes(op, peer, far, end)
    flushes: I64 = np.array([len(peers) for peers in flushed], dtype=np.int64)

    records: I64 = 2 * flushes + pieces * parts + tail
    stop = np.cumsum(records)
    of = np.repeat(np.arange(len(op)), records)
    inside = np.arange(len(of)) - (stop - records)[of] - 2 * flushes[of]
    part, piece = inside % parts[of], inside // parts[of]
    is_flush, is_tail = inside < 0, inside >= (pieces * parts)[of]
    kind = np.full(len(of), -1, dtype=np.int64)
    first = far[of] & ~is_flush & ~is_tail & (part == 0) & ~is_empty[of]
    kind[first] = np.select(
        [op[of] == Op.SIGNAL, direct[of], op[of] == Op.PUT], [RAISE, SEND_DIRECT, SEND], default=FETCH
    )[first]
    kind[(moves[of] & ~is_flush & (part == 1)) | is_tail | (is_flush & (inside % 2 == 1))] = AWAIT
    kind[is_flush & (inside % 2 == 0)] = FETCH
    to = np.where(far, peer, -1)[of]
    to[is_flush] = np.repeat(np.array([p for peers in flushed for p in peers], dtype=np.int64), 2)
    skip = np.where(is_flush | is_tail, 0, piece * limit[of])
    size = np.where(is_flush | is_tail, 0, np.minimum(length[of] - skip, np.where(moves[of], limit[of], length[of])))
    stays = kind == -1
    reduces = moves & (op == Op.GET_REDUCE)
    return Steps(
        rows=rows[of],
        end=np.concatenate([[0], stop])[end],
        kind=kind,
        skip=skip,
        length=size,
        peer=np.where(stays, -1, to),
        longest=int(np.minimum(length, limit)[reduces].max(initial=0)),
    )


def _flushes(op: I64, peer: I64, far: npt.NDArray[np.bool_], end: I64) -> list[tuple[int, ...]]:
    """For every instruction the far ranks whose puts must have arrived before it."""
    before: list[tuple[int, ...]] = [()] * len(op)
    rows = np.flatnonzero((far & (op == Op.PUT)) | (op == Op.SIGNAL))
    channel = np.searchsorted(end, rows, side="right")
    pending: set[int] = set()
    current = -1
    for row, own, what, whom in zip(
        rows.tolist(), channel.tolist(), op[rows].tolist(), peer[rows].tolist(), strict=True
    ):
        if own != current:
            pending, current = set(), own
        if what == Op.PUT:
            pending.add(whom)
        elif others := pending - {whom}:
            before[row] = tuple(sorted(others))
            pending -= others
    return before
