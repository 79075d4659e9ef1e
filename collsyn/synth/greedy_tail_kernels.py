"""Compiled repair of the end of a run in lockstep: what would need another step finds a place in the last ones."""

from typing import NamedTuple

import numpy as np
from numba import njit

from collsyn.synth.greedy_step_kernels import I32, I64, NOTHING, U16

# Steps whose sends may be put elsewhere.
TAIL = 12

# Stands for a chunk that does not come.
NEVER = np.int32(1 << 30)


class Tail(NamedTuple):
    """Links of every rank, what they carry, and from which step on every rank can send every chunk (`usable`)."""

    into: I64
    src: I64
    out_ptr: I64
    out_links: I64
    sent: U16
    usable: I32
    lag: int


@njit(cache=True, nogil=True)
def repair_tail(into: I64, src: I64, out_ptr: I64, out_links: I64, owner: I64, lag: int, sent: U16) -> bool:
    """Find places in the last steps of `sent[step, link]` for all chunks that ranks still lack; whether it could.

    Sends into one rank change places with each other along augmenting paths: link and step may be others as long as the
    source holds the chunk by then, and the rank sends it on only afterwards. `sent` is changed in any case.
    O(ranks x chunks), and for each missing chunk O((places of the rank)^2 x links).
    """
    ranks, chunks = len(into) - 1, len(owner)
    usable = np.full((ranks, chunks), NEVER, np.int32)
    for chunk in range(chunks):
        usable[owner[chunk], chunk] = 0
    for step in range(len(sent)):
        for rank in range(ranks):
            for link in range(into[rank], into[rank + 1]):
                if sent[step, link] != NOTHING:
                    usable[rank, sent[step, link]] = step + lag
    tail = Tail(into, src, out_ptr, out_links, sent, usable, lag)
    widest = 0
    for rank in range(ranks):
        widest = max(widest, into[rank + 1] - into[rank])
    seen, queue = np.empty(widest * TAIL, np.int64), np.empty(widest * TAIL, np.int64)
    for rank in range(ranks):
        for chunk in range(chunks):
            if usable[rank, chunk] == NEVER and not bring(tail, rank, chunk, len(sent), seen, queue):
                return False
    return True


@njit(cache=True, nogil=True)
def bring(tail: Tail, rank: int, chunk: int, stop: int, seen: I64, queue: I64) -> bool:
    """Let a rank have a chunk sent to it before step `stop`; its neighbours, or theirs, may have to get it sooner."""
    if place(tail, rank, chunk, stop, seen, queue):
        return True
    for link in range(tail.into[rank], tail.into[rank + 1]):
        near = tail.src[link]
        if tail.usable[near, chunk] < stop:
            continue
        sooner = place(tail, near, chunk, stop - tail.lag, seen, queue)
        for entry in range(tail.into[near], tail.into[near + 1]):
            far = tail.src[entry]
            late = not sooner and tail.usable[far, chunk] >= stop - tail.lag
            if late and place(tail, far, chunk, stop - 2 * tail.lag, seen, queue):
                sooner = place(tail, near, chunk, stop - tail.lag, seen, queue)
        if sooner and place(tail, rank, chunk, stop, seen, queue):
            return True
    return False


@njit(cache=True, nogil=True)
def place(tail: Tail, rank: int, chunk: int, stop: int, came_from: I64, queue: I64) -> bool:
    """Put a chunk into a place (link, step before `stop`) of a rank, those that stand there into others in turn.

    The last one gets a free place, or the one that the chunk had.
    """
    low, width = tail.into[rank], tail.into[rank + 1] - tail.into[rank]
    first = max(0, len(tail.sent) - TAIL)
    came_from[:] = -2
    size = spread_from(tail, rank, chunk, -1, stop, came_from, queue, 0)
    at = 0
    while at < size:
        found = queue[at]
        at += 1
        there = int(np.int64(tail.sent[first + found // width, low + found % width]))
        if there != NOTHING and there != chunk:
            latest = sent_on(tail, rank, there, first) - tail.lag + 1
            size = spread_from(tail, rank, there, found, latest, came_from, queue, size)
            continue
        if there == NOTHING and tail.usable[rank, chunk] != NEVER:
            clear(tail, rank, chunk, first)
        while found >= 0:
            step, link, before = first + found // width, low + found % width, came_from[found]
            moved = chunk if before < 0 else int(np.int64(tail.sent[first + before // width, low + before % width]))
            tail.sent[step, link] = moved
            tail.usable[rank, moved] = step + tail.lag
            found = before
        return True
    return False


@njit(cache=True, nogil=True)
def clear(tail: Tail, rank: int, chunk: int, first: int) -> None:
    """Empty the place that a chunk has among the last steps of a rank."""
    step = tail.usable[rank, chunk] - tail.lag
    for link in range(tail.into[rank], tail.into[rank + 1]):
        if step >= first and tail.sent[step, link] == chunk:
            tail.sent[step, link] = NOTHING


@njit(cache=True, nogil=True)
def spread_from(tail: Tail, rank: int, chunk: int, found: int, stop: int, came_from: I64, queue: I64, size: int) -> int:
    """Add to the queue all places before step `stop` where a chunk could come to a rank, not seen yet; its new size."""
    low, high = tail.into[rank], tail.into[rank + 1]
    first = max(0, len(tail.sent) - TAIL)
    for link in range(low, high):
        for step in range(max(first, tail.usable[tail.src[link], chunk]), min(stop, len(tail.sent))):
            number = (step - first) * (high - low) + link - low
            if came_from[number] == -2:
                came_from[number] = found
                queue[size] = number
                size += 1
    return size


@njit(cache=True, nogil=True)
def sent_on(tail: Tail, rank: int, chunk: int, first: int) -> int:
    """The first step from `first` on in which a rank sends a chunk (NEVER if it does not)."""
    for step in range(first, len(tail.sent)):
        for entry in range(tail.out_ptr[rank], tail.out_ptr[rank + 1]):
            if tail.sent[step, tail.out_links[entry]] == chunk:
                return step
    return int(NEVER)
