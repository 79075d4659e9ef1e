"""Chooses into how many pieces chunks are cut, so that chains of hops and reductions overlap."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collsyn.errors import InputError
from collsyn.lower.runs import Run, RunTimes
from collsyn.model.arrays import F64, I64
from collsyn.model.schedule import Schedule

# Smaller pieces cost more in instructions than they gain by overlapping.
SMALLEST_BYTES = 16 << 10
# Pieces of this length are still in a processor's cache when the next operand is added to them.
CACHED_BYTES = 256 << 10
# Messages are halved at most this many times.
MAX_HALVINGS = 10
# Moves that pieces may lead to; a plan without any pieces may have more.
MAX_MOVES = 100_000
# A coarser cut is good enough if it is estimated to lose at most this share of the time.
GOOD_ENOUGH = 1.03


@dataclass(frozen=True, eq=False)
class Cut:
    """Pieces of every chunk (of each of its lanes), powers of two, and up to which length whole chunks are joined."""

    pieces: I64
    joined_bytes: float


def choose_cut(
    schedule: Schedule,
    runs: Sequence[Run],
    needs: Sequence[Sequence[int]],
    times: RunTimes,
    lanes: int,
    piece_bytes: int | None,
) -> Cut:
    """How to cut what `runs`, messages as whole as they can be, move.

    Given `piece_bytes`, into pieces of at most that length. Else into the longest that come within GOOD_ENOUGH of the
    best time, estimated as the larger of the busiest link's load and the longest chain of runs that overlap in pieces;
    and into pieces that stay in the cache where reducing takes time and a rank adds several values up, if they cost
    little. No piece gets shorter than SMALLEST_BYTES and the topology's limit, and there are no more than MAX_MOVES.
    O(runs MAX_HALVINGS).
    """
    lane_bytes = schedule.collective.chunk_bytes(schedule.size_bytes) / lanes
    if piece_bytes is not None:
        if piece_bytes < 1:
            raise InputError(f"piece_bytes: is {piece_bytes}; expected at least 1")
        return Cut(_power_above(lane_bytes / piece_bytes), float(piece_bytes))
    shortest = max(SMALLEST_BYTES, schedule.topology.min_piece_bytes)
    allowed = 2 ** np.floor(np.log2(np.maximum(lane_bytes / shortest, 1.0))).astype(np.int64)
    chunk = [run.first.chunk for run in runs]
    parts = np.array([len(run.parts) for run in runs], dtype=np.int64)
    whole = parts * lane_bytes[chunk] if lanes == 1 else lane_bytes[chunk]
    lengths = [np.inf, *(float(whole.max(initial=1.0)) / 2**i for i in range(1, MAX_HALVINGS + 1))]
    cuts: list[Cut] = []
    counts: list[I64] = []
    for length in lengths:
        cut = Cut(np.minimum(allowed, _power_above(lane_bytes / length)), length)
        alone = (lanes > 1) | (lane_bytes[chunk] * 2 > length)
        count = np.where(alone, parts * cut.pieces[chunk], np.ceil(whole / max(length, shortest)).astype(np.int64))
        count = np.maximum(count, 1)
        if not cuts or (length >= shortest and count.sum() * lanes <= MAX_MOVES):
            cuts.append(cut)
            counts.append(count)
    if len(cuts) == 1:
        return cuts[0]
    time_s = _estimates(schedule, needs, times, np.stack(counts, axis=1))
    chosen = int(np.flatnonzero(time_s <= GOOD_ENOUGH * time_s.min())[0])
    if schedule.topology.reduce_s_per_byte.any() and _adds_up(runs, needs):
        cheap = np.flatnonzero(time_s <= GOOD_ENOUGH**2 * time_s.min()).tolist()
        chosen = max(chosen, next((i for i in cheap if cuts[i].joined_bytes <= CACHED_BYTES), cheap[-1]))
    return cuts[chosen]


def _power_above(ratio: F64) -> I64:
    """The smallest powers of two that are at least the ratios (and at least 1)."""
    powers: I64 = 2 ** np.ceil(np.log2(np.maximum(ratio, 1.0))).astype(np.int64)
    return powers


def _estimates(schedule: Schedule, needs: Sequence[Sequence[int]], times: RunTimes, pieces: I64) -> F64:
    """Estimated seconds of every cut (a column of `pieces`, which has a row a run)."""
    busy_s = times.transfer_s[:, None] + times.overhead_s[:, None] * pieces
    load_s = np.zeros((schedule.topology.num_links, pieces.shape[1]))
    for run in np.flatnonzero(times.route >= 0).tolist():
        load_s[schedule.routes[int(times.route[run])]] += busy_s[run]
    piece_s = busy_s / pieces
    first_s, last_s = piece_s + times.alpha_s[:, None], np.zeros_like(busy_s)
    for run, earlier in enumerate(needs):
        if earlier:
            before = list(earlier)
            last_s[run] = last_s[before].max(axis=0) + first_s[run]
            first_s[run] += first_s[before].max(axis=0)
        np.maximum(last_s[run], first_s[run] + busy_s[run] - piece_s[run], out=last_s[run])
    time_s: F64 = np.maximum(last_s.max(axis=0, initial=0.0), load_s.max(axis=0, initial=0.0))
    return time_s


def _adds_up(runs: Sequence[Run], needs: Sequence[Sequence[int]]) -> bool:
    """Whether some rank adds to what it has added up itself before."""
    return any(
        runs[before].first.src2 is not None and runs[before].first.rank == run.first.rank
        for run, earlier in zip(runs, needs, strict=True)
        if run.first.src2 is not None
        for before in earlier
        if runs[before].first.dst.memory == run.first.src2.memory
    )
