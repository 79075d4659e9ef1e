"""Compiled loops of repair: what is left of an old schedule, timed anew, and deliveries that fill the gaps."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from collsyn.synth._kernels import RATE_SLACK, _link_free_s, _reserve
from collsyn.synth.event_kernels import F64, I32, I64, draw, generator, pop, push

U8 = npt.NDArray[np.uint8]


class Ways(NamedTuple):
    """Routes and the links they share: of each route its ends, costs and links (with the alphas before each)."""

    src: I64
    dst: I64
    alpha_s: F64
    overhead_s: F64
    rate: F64
    ptr: I64
    links: I32
    before_s: F64
    bandwidth: F64


class Flows(NamedTuple):
    """What links carry: ends and rates of their flows, in descending order of the ends."""

    ends: F64
    rates: F64
    used: I64


@njit(cache=True)
def free_s(ways: Ways, flows: Flows, route: int) -> float:
    """From when on all links of a route have room."""
    at_s = 0.0
    for entry in range(ways.ptr[route], ways.ptr[route + 1]):
        link = ways.links[entry]
        room = ways.bandwidth[link] * RATE_SLACK - ways.rate[route]
        since_s = _link_free_s(flows.ends[link], flows.rates[link], flows.used[link], room)
        at_s = max(at_s, since_s - ways.before_s[entry])
    return at_s


@njit(cache=True)
def book(ways: Ways, flows: Flows, route: int, at_s: float, num_bytes: float) -> float:
    """Book a message that leaves at `at_s`; returns when it arrives."""
    transfer_s = num_bytes / ways.rate[route]
    for entry in range(ways.ptr[route], ways.ptr[route + 1]):
        link = ways.links[entry]
        end_s = at_s + ways.before_s[entry] + ways.overhead_s[route] + transfer_s
        flows.used[link] = _reserve(
            flows.ends[link], flows.rates[link], flows.used[link], ways.bandwidth[link], end_s, ways.rate[route]
        )
    return float(at_s + ways.alpha_s[route] + transfer_s)


@njit(cache=True)
def keep(
    ways: Ways,
    flows: Flows,
    route: I64,
    row_ptr: I64,
    chunk: I64,
    chunk_bytes: F64,
    limit_s: F64,
    held_s: F64,
    start_s: F64,
    kept: U8,
) -> None:
    """Time messages in their old order, each as early as it can be; those that arrive after their limit fall away.

    Message m takes route[m] (-1: it is gone) with the rows row_ptr[m] : row_ptr[m + 1] of `chunk`. `held_s[r, c]` is
    since when rank r has chunk c (infinite: never), and grows with what arrives. Rows whose chunk the sender never
    gets, or the receiver has, fall away too; `kept` says which stay, `start_s` when. O(rows + messages x links).
    """
    for m in range(len(route)):
        r = route[m]
        if r < 0:
            continue
        at_s, total = 0.0, 0.0
        for row in range(row_ptr[m], row_ptr[m + 1]):
            c = chunk[row]
            if held_s[ways.src[r], c] < np.inf and held_s[ways.dst[r], c] == np.inf:
                kept[row] = 1
                total += chunk_bytes[c]
                at_s = max(at_s, held_s[ways.src[r], c])
        if total == 0.0:
            continue
        at_s = max(at_s, free_s(ways, flows, r))
        late = at_s + ways.alpha_s[r] + total / ways.rate[r] > limit_s[m]
        arrival_s = np.inf if late else book(ways, flows, r, at_s, total)
        for row in range(row_ptr[m], row_ptr[m + 1]):
            start_s[row] = at_s
            if kept[row] == 1:
                kept[row] = 0 if late else 1
                held_s[ways.dst[r], chunk[row]] = min(arrival_s, held_s[ways.dst[r], chunk[row]])


@njit(cache=True)
def fill(
    ways: Ways,
    flows: Flows,
    out_ptr: I64,
    out_hops: I64,
    chunk_bytes: F64,
    want: U8,
    in_rate: F64,
    held_s: F64,
    seed: int,
) -> tuple[I64, I64, F64, int]:
    """Bring every chunk to the ranks that want it and have not got it; hops are the first routes, those of `out_hops`.

    Whenever a hop is free it takes, of what its source holds and its end misses, the chunk that most ranks miss (any
    of several); it declines what the other hops into its end could bring sooner, unless nothing else is left. Returns
    chunk, hop and start of every message, and how much is missing because no holder is next to it. O(deliveries x
    missing chunks of a rank x hops of a rank).
    """
    num_ranks, num_chunks = held_s.shape
    missing, place = np.zeros((num_ranks, num_chunks), np.int64), np.zeros((num_ranks, num_chunks), np.int64)
    count, missed_by, left_bytes = np.zeros(num_ranks, np.int64), np.zeros(num_chunks, np.int64), np.zeros(num_ranks)
    total = 0
    for rank in range(num_ranks):
        for c in range(num_chunks):
            if want[rank, c] and held_s[rank, c] == np.inf:
                missing[rank, count[rank]] = c
                place[rank, c] = count[rank]
                count[rank] += 1
                missed_by[c] += 1
                left_bytes[rank] += chunk_bytes[c]
                total += 1
    chunk, hop, start_s = np.zeros(total, np.int64), np.zeros(total, np.int64), np.zeros(total)
    random = generator(seed)
    num_hops, done, patient = len(out_hops), 0, True
    room = 4 * num_hops + 4 * total + 16
    times, serials, codes = np.empty(room), np.empty(room, np.int64), np.empty(room, np.int64)
    waits = np.zeros(num_hops, np.bool_)  # in the heap
    size, serial = 0, 0
    for h in out_hops:
        if count[ways.dst[h]] > 0:
            size = push(times, serials, codes, size, free_s(ways, flows, h), serial, h)
            serial += 1
            waits[h] = True
    while done < total:
        if size == 0:
            if not patient:
                break
            patient = False
            for h in out_hops:
                if count[ways.dst[h]] > 0:
                    size = push(times, serials, codes, size, free_s(ways, flows, h), serial, h)
                    serial += 1
                    waits[h] = True
            continue
        now_s, h = times[0], codes[0]
        size = pop(times, serials, codes, size)
        waits[h] = False
        src, dst = ways.src[h], ways.dst[h]
        if count[dst] == 0:
            continue
        at_s = free_s(ways, flows, h)
        if at_s > now_s:
            size = push(times, serials, codes, size, at_s, serial, h)
            serial += 1
            waits[h] = True
            continue
        best, most, soonest_s = -1, -1, np.inf
        first = int(draw(random) * count[dst])
        for i in range(count[dst]):
            c = missing[dst, (first + i) % count[dst]]
            if held_s[src, c] <= now_s:
                if missed_by[c] > most:
                    best, most = c, missed_by[c]
            else:
                soonest_s = min(soonest_s, held_s[src, c])
        if best < 0:
            if soonest_s < np.inf:
                size = push(times, serials, codes, size, soonest_s, serial, h)
                serial += 1
                waits[h] = True
            continue
        transfer_s = chunk_bytes[best] / ways.rate[h]
        others = in_rate[dst] - ways.rate[h]
        if patient and others > 0.0 and transfer_s > left_bytes[dst] / others + ways.alpha_s[h]:
            continue
        arrival_s = book(ways, flows, h, now_s, chunk_bytes[best])
        chunk[done], hop[done], start_s[done] = best, h, now_s
        done += 1
        held_s[dst, best] = arrival_s
        count[dst] -= 1
        last = missing[dst, count[dst]]
        missing[dst, place[dst, best]] = last
        place[dst, last] = place[dst, best]
        missed_by[best] -= 1
        left_bytes[dst] -= chunk_bytes[best]
        size = push(times, serials, codes, size, free_s(ways, flows, h), serial, h)
        serial += 1
        waits[h] = True
        for q in range(out_ptr[dst], out_ptr[dst + 1]):
            other = out_hops[q]
            if not waits[other] and want[ways.dst[other], best] and held_s[ways.dst[other], best] == np.inf:
                size = push(times, serials, codes, size, max(arrival_s, free_s(ways, flows, other)), serial, other)
                serial += 1
                waits[other] = True
    return chunk[:done], hop[:done], start_s[:done], total - done
