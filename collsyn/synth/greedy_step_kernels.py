"""Compiled matching in lockstep, for links that all take equally long: in each step every link carries one chunk."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

U16 = npt.NDArray[np.uint16]
U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

# What stands in the table of sends for a link that carries nothing; so there are fewer chunks than this.
NOTHING = 65535


class Lockstep(NamedTuple):
    """State of the matching.

    Links stand in the order of their ends: those into rank v are `into[v] : into[v + 1]`, and come from `src`. Per
    rank: `bits[v]` has a bit for each chunk that it holds or that is coming; `lists[v, : got[v]]` are these as they
    were sent to it, of which it can send on the first `known[v]`; the last `late[v]` were sent in the last step. Per
    link: `seen`, how much of its source's list needs no second look.
    """

    into: I64
    src: I64
    bits: U64
    lists: U16
    known: I64
    got: I64
    late: I64
    seen: I64


@njit(cache=True, nogil=True)
def begin(into: I64, src: I64, owner: I64) -> Lockstep:
    """The state in which every chunk is at its owner only."""
    ranks, chunks = len(into) - 1, len(owner)
    state = Lockstep(
        into,
        src,
        np.zeros((ranks, (chunks + 63) // 64), np.uint64),
        np.empty((ranks, chunks), np.uint16),
        np.zeros(ranks, np.int64),
        np.zeros(ranks, np.int64),
        np.zeros(ranks, np.int64),
        np.zeros(len(src), np.int64),
    )
    for chunk in range(chunks):
        rank = owner[chunk]
        state.bits[rank, chunk >> 6] |= np.uint64(1) << np.uint64(chunk & 63)
        state.lists[rank, state.got[rank]] = chunk
        state.got[rank] += 1
    state.known[:] = state.got
    return state


@njit(cache=True, nogil=True)
def take(state: Lockstep, link: int, rank: int) -> int:
    """The first chunk that the source of a link can send and that `rank`, its end, lacks; NOTHING if none.

    Each chunk of the list is looked at once a link: what the end has once, it keeps.
    """
    source = state.src[link]
    known = state.known[source]
    for place in range(state.seen[link], known):
        chunk = int(np.int64(state.lists[source, place]))
        word, bit = state.bits[rank, chunk >> 6], np.uint64(1) << np.uint64(chunk & 63)
        if word & bit == 0:
            state.bits[rank, chunk >> 6] = word | bit
            state.seen[link] = place + 1
            return chunk
    state.seen[link] = known
    return NOTHING


@njit(cache=True, nogil=True)
def can_send(state: Lockstep, rank: int, chunk: int) -> bool:
    """Whether a rank holds a chunk already, which is not just coming."""
    if state.bits[rank, chunk >> 6] >> np.uint64(chunk & 63) & np.uint64(1) == 0:
        return False
    coming = False
    for place in range(state.known[rank], state.got[rank]):
        coming |= state.lists[rank, place] == chunk
    return not coming


@njit(cache=True, nogil=True)
def take_over(state: Lockstep, sent: U16, step: int, link: int, rank: int) -> int:
    """For a link that found nothing: the chunk of another link into the same rank that can carry another one instead.

    Returns the chunk which that other link now carries, or NOTHING (an augmenting path of length two).
    """
    for other in range(state.into[rank], state.into[rank + 1]):
        chunk = int(np.int64(sent[step, other]))
        if chunk != NOTHING and can_send(state, state.src[link], chunk):
            another = take(state, other, rank)
            if another != NOTHING:
                sent[step, link], sent[step, other] = chunk, another
                return another
    return NOTHING


@njit(cache=True, nogil=True)
def run_steps(state: Lockstep, sent: U16, steps: tuple[int, int], ranks: tuple[int, int], seed: int, swap: bool) -> int:
    """Some steps for some ranks, both from .. to before; returns how many links had nothing to carry.

    `sent[step, link]` gets what every link carries. Ranks know nothing of what was sent in these steps, so that ranges
    of them can run on several threads, and the data of a rank stays in the cache for all steps. With `swap` (one step,
    one thread) links that find nothing try to take over from others.
    """
    idle = 0
    chunks = state.lists.shape[1]
    for rank in range(ranks[0], ranks[1]):
        low, high = state.into[rank], state.into[rank + 1]
        got = before = state.got[rank]
        for step in range(steps[0], steps[1]):
            before = got
            if got == chunks:
                break
            link = low + _spread(rank, step, seed) % (high - low) if high > low else low
            for _ in range(low, high):
                chunk = take(state, link, rank)
                sent[step, link] = chunk
                if chunk != NOTHING:
                    state.lists[rank, got] = chunk
                    got += 1
                link = link + 1 if link + 1 < high else low
            if swap and got - before < high - low:
                state.got[rank] = got
                for link in range(low, high):
                    if sent[step, link] == NOTHING and got < chunks:
                        chunk = take_over(state, sent, step, link, rank)
                        if chunk != NOTHING:
                            state.lists[rank, got] = chunk
                            got += 1
            if got < chunks:
                idle += high - low - (got - before)
        state.got[rank] = got
        state.late[rank] = got - before
    return idle


@njit(cache=True, nogil=True)
def steps_left(state: Lockstep) -> int:
    """The most steps that any rank needs for what it lacks, all its links being busy; -1 if one has no links."""
    most, chunks = 0, state.lists.shape[1]
    for rank in range(len(state.got)):
        missing, links = chunks - state.got[rank], state.into[rank + 1] - state.into[rank]
        if missing > 0 and links == 0:
            return -1
        if missing > 0:
            most = max(most, (missing + links - 1) // links)
    return most


@njit(cache=True, nogil=True)
def advance(state: Lockstep, lag: int) -> bool:
    """Make known what has been sent (with lag 2: but for the last step); returns whether anything became known."""
    changed = False
    for rank in range(len(state.got)):
        known = state.got[rank] - (state.late[rank] if lag == 2 else 0)
        changed |= known > state.known[rank]
        state.known[rank] = known
    return changed


@njit(cache=True, nogil=True)
def match_steps(into: I64, src: I64, owner: I64, lag: int, seed: int, sent: U16) -> int:
    """Spread all chunks, step by step; returns the number of steps, -1 if they do not suffice, -2 if a rank is cut off.

    `owner[chunk]` holds a chunk at first, all ranks want all. What is sent in step s can be sent on in step s + lag (1
    or 2). `sent[step, link]`, all NOTHING before, gets the chunks. O(links x chunks).
    """
    state = begin(into, src, owner)
    step = 0
    while True:
        left = steps_left(state)
        if left <= 0:
            return step if left == 0 else -2
        if step + left > len(sent):
            return -1
        before = state.got.sum()
        run_steps(state, sent, (step, step + 1), (0, len(into) - 1), seed, True)
        step += 1
        if not advance(state, lag) and state.got.sum() == before:
            return -2


@njit(cache=True, nogil=True)
def _spread(rank: int, step: int, seed: int) -> int:
    """A number from 0 to 2^16 - 1 that looks random."""
    mixed = np.uint32(rank) * np.uint32(0x9E3779B1) ^ np.uint32(step + seed) * np.uint32(0x85EBCA6B)
    mixed = np.uint32(mixed ^ (mixed >> np.uint32(15))) * np.uint32(0x2C1B3C6D)
    return int(np.int64(np.uint32(mixed) >> np.uint32(16)))


@njit(cache=True, nogil=True)
def sends_in_order(sent: U16, chunks: int) -> tuple[I64, I64, I64]:
    """Step, chunk and link of every send, in the order of (step, chunk, link). O(steps x (links + chunks))."""
    total = 0
    for step in range(len(sent)):
        for link in range(sent.shape[1]):
            total += sent[step, link] != NOTHING
    steps, what, links = np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, np.int64)
    places = np.zeros(chunks + 1, np.int64)
    done = 0
    for step in range(len(sent)):
        places[:] = 0
        for chunk in sent[step]:
            if chunk != NOTHING:
                places[np.int64(chunk) + 1] += 1
        places[0] = done
        for chunk in range(chunks):
            places[chunk + 1] += places[chunk]
        done = places[chunks]
        for link in range(sent.shape[1]):
            chunk = int(np.int64(sent[step, link]))
            if chunk != NOTHING:
                at = places[chunk]
                places[chunk] += 1
                steps[at], what[at], links[at] = step, chunk, link
    return steps, what, links
