"""Chooses into how many pieces chunks are cut, so that chains of hops and reductions overlap."""

from collections.abc import Sequence

import numpy as np

from collsyn.errors import InputError
from collsyn.lower.runs import Run, RunTimes
from collsyn.model.arrays import F64, I64
from collsyn.model.schedule import Schedule

# Smaller pieces cost more in instructions than they gain by overlapping.
SMALLEST_BYTES = 16 << 10
# Pieces of this length are still in a processor's cache when the next operand is added to them.
CACHED_BYTES = 256 << 10
MAX_PIECES = 1 << 10
# Instructions that pieces may lead to; a plan without any pieces may have more.
MAX_MOVES = 100_000
# A coarser cut is good enough if it is estimated to lose at most this share of the time.
GOOD_ENOUGH = 1.03


def choose_pieces(
    schedule: Schedule,
    runs: Sequence[Run],
    needs: Sequence[Sequence[int]],
    times: RunTimes,
    lanes: int,
    piece_bytes: int | None,
) -> I64:
    """Pieces of every chunk (of each of its `lanes` parts), powers of two.

    Given `piece_bytes`, as many as make no piece longer. Else the fewest that come within GOOD_ENOUGH of the best time,
    estimated as the larger of the busiest link's load and the longest chain of runs with pieces; and pieces that stay
    in the cache where a rank adds several values up, if they cost little. No piece gets shorter than SMALLEST_BYTES and
    the topology's limit, and the plan no longer than MAX_MOVES. O(runs x log MAX_PIECES).
    """
    lane_bytes = schedule.collective.chunk_bytes(schedule.size_bytes) / lanes
    if piece_bytes is not None:
        if piece_bytes < 1:
            raise InputError(f"piece_bytes: is {piece_bytes}; expected at least 1")
        return _power_above(lane_bytes / piece_bytes)
    shortest = max(SMALLEST_BYTES, schedule.topology.min_piece_bytes)
    allowed = np.maximum(_power_above(lane_bytes / shortest + 0.5) // 2, 1)
    counts = 2 ** np.arange(MAX_PIECES.bit_length())
    parts = np.array([len(run.parts) for run in runs], dtype=np.int64)
    pieces = np.minimum(counts, allowed[[run.first.chunk for run in runs]][:, None])
    moves = (np.where(pieces > 1, pieces * parts[:, None], 1) * lanes).sum(axis=0)
    counts = counts[(counts == 1) | ((moves <= MAX_MOVES) & (counts <= allowed.max(initial=1)))]
    if len(counts) == 1:
        return np.ones(schedule.collective.num_chunks, dtype=np.int64)
    time_s = _estimates(schedule, needs, times, np.where(pieces > 1, parts[:, None], 1)[:, : len(counts)], pieces)
    chosen = int(counts[np.flatnonzero(time_s <= GOOD_ENOUGH * time_s.min())[0]])
    if _adds_up(runs, needs):
        cached = int(_power_above(lane_bytes.max(keepdims=True) / CACHED_BYTES)[0])
        cheap = counts[time_s <= GOOD_ENOUGH**2 * time_s.min()]
        chosen = max(chosen, min(cached, int(cheap.max())))
    return np.minimum(allowed, chosen)


def _power_above(ratio: F64) -> I64:
    """The smallest powers of two that are at least the ratios (and at least 1)."""
    return 2 ** np.ceil(np.log2(np.maximum(ratio, 1.0))).astype(np.int64)


def _estimates(schedule: Schedule, needs: Sequence[Sequence[int]], times: RunTimes, messages: I64, pieces: I64) -> F64:
    """Estimated seconds for every number of pieces: columns of `messages` (separate parts of runs) and `pieces`."""
    pieces = pieces[:, : messages.shape[1]]
    busy_s = times.transfer_s[:, None] + times.overhead_s[:, None] * messages * pieces
    load_s = np.zeros((schedule.topology.num_links, messages.shape[1]))
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
