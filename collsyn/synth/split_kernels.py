"""Compiled spreading of chunks that owners release one after another, over links that each have a rate of their own."""

import numpy as np
import numpy.typing as npt
from numba import njit

from collsyn.model.arrays import F64, I32, I64
from collsyn.synth.event_kernels import draw, generator, pop, push, shuffle

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]

# Kinds of events; the code of one is its number << 2 | kind: a chunk is released, a send arrives, a link is free.
RELEASED, ARRIVED, FREE = 0, 1, 2
# Times this close, relative to themselves, are one instant.
SAME = 1 + 1e-12


@njit(cache=True, nogil=True)
def rarest(known: I32, there: U8, copies: I64, begin: int, end: int, samples: int, random: U64) -> int:
    """The place in `known[begin:end]` of the chunk with the fewest copies of some; `begin` if no other is looked at.

    The chunk at `begin` must be lacking (`there` 0); others are drawn at random, and those that are there count not.
    """
    place, least = -1, 1 << 60
    for _ in range(samples):
        at = begin + int(draw(random) * (end - begin))
        chunk = known[at]
        if there[chunk] == 0 and copies[chunk] < least:
            place, least = at, copies[chunk]
    return begin if place < 0 else place


@njit(cache=True, nogil=True)
def spread(
    src: I64,
    dst: I64,
    busy_s: F64,
    arrival_s: F64,
    out_ptr: I64,
    out_links: I64,
    owner: I64,
    release_s: F64,
    samples: int,
    window: int,
    seed: int,
) -> tuple[float, I64, I32, F64]:
    """When all chunks are at all ranks, and the sends in the order of their starts: link, chunk, start.

    Chunk c is at rank `owner[c]` from `release_s[c]` on. A free link takes the one with the fewest copies of `samples`
    chunks, drawn among the first `window` from the first one on that its end lacks. Fewer sends than (ranks - 1) x
    chunks mean that a rank is cut off. O(sends x (log events + samples + links of a rank)).
    """
    ranks, links, chunks = len(out_ptr) - 1, len(src), len(owner)
    total = (ranks - 1) * chunks
    there, known = np.zeros((ranks, chunks), np.uint8), np.empty((ranks, chunks), np.int32)
    got, seen = np.zeros(ranks, np.int64), np.zeros(links, np.int64)
    copies, idle = np.ones(chunks, np.int64), np.ones(links, np.bool_)
    sent_over, sent, start_s = np.empty(total, np.int64), np.empty(total, np.int32), np.empty(total)
    room, size, events = chunks + 2 * total + 1, 0, 0
    times, serials, codes = np.empty(room), np.empty(room, np.int64), np.empty(room, np.int64)
    for chunk in range(chunks):
        there[owner[chunk], chunk] = 1
        size = push(times, serials, codes, size, release_s[chunk], events, chunk << 2 | RELEASED)
        events += 1
    random, sends, finish_s = generator(seed), 0, 0.0
    ready, marked = np.empty(links, np.int64), np.zeros(links, np.bool_)
    while size > 0:
        now_s, waiting = times[0], 0
        while size > 0 and times[0] <= now_s * SAME:
            kind, number = codes[0] & 3, codes[0] >> 2
            size = pop(times, serials, codes, size)
            if kind == FREE:
                idle[number] = True
                if not marked[number]:
                    marked[number], ready[waiting] = True, number
                    waiting += 1
                continue
            rank = owner[number] if kind == RELEASED else dst[sent_over[number]]
            known[rank, got[rank]] = number if kind == RELEASED else sent[number]
            got[rank] += 1
            for entry in range(out_ptr[rank], out_ptr[rank + 1]):
                link = out_links[entry]
                if idle[link] and not marked[link]:
                    marked[link], ready[waiting] = True, link
                    waiting += 1
        shuffle(ready, waiting, random)
        for i in range(waiting):
            link = ready[i]
            marked[link] = False
            source, rank = src[link], dst[link]
            place = seen[link]
            while place < got[source] and there[rank, known[source, place]]:
                place += 1
            seen[link] = place
            if place == got[source]:
                continue
            end = min(got[source], place + window)
            chunk = known[source, rarest(known[source], there[rank], copies, place, end, samples, random)]
            there[rank, chunk] = 1
            copies[chunk] += 1
            idle[link] = False
            sent_over[sends], sent[sends], start_s[sends] = link, chunk, now_s
            size = push(times, serials, codes, size, now_s + arrival_s[link], events, sends << 2 | ARRIVED)
            size = push(times, serials, codes, size, now_s + busy_s[link], events + 1, link << 2 | FREE)
            events += 2
            finish_s = max(finish_s, now_s + arrival_s[link])
            sends += 1
    return finish_s, sent_over[:sends], sent[:sends], start_s[:sends]
