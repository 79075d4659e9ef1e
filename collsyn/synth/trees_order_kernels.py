"""Compiled event loop that puts the messages of trees in order: what goes next over each link as it becomes free."""

import heapq

import numpy as np
from numba import njit

from collsyn.model.arrays import F64, I32, I64, Bools

_FULL = 1.0 - 1e-9
RELEASE, ARRIVAL, ISSUE = 0, 1, 2


@njit(cache=True)
def order_messages(
    chunks: I64,
    before: I64,
    child_ptr: I64,
    child: I32,
    route_ptr: I64,
    route_links: I32,
    link_ptr: I64,
    rate: F64,
    chunk_bytes: F64,
    alpha_s: F64,
    overhead_s: F64,
    rank: F64,
    most: I64,
    part: F64,
    horizon_s: float,
    bandwidth: F64,
    limit: int,
) -> tuple[I64, I64, I64, float]:
    """Messages in the order of their starts: hop, first chunk, number of chunks; and when the last one arrives.

    Per hop: `chunks` that go over it, the hop `before` it (-1 at roots), the hops behind it, its links, the `rate` that
    a message takes of each, costs, and its `rank`: among messages that can start over a link, the least of rank + (part
    of the hop's chunks sent) goes first. A message takes what is there, but at most `most` chunks, and at most `part`
    of what has not been sent. Roots have `most` chunks at once and get the next ones evenly until `horizon_s`, so that
    they do not run ahead of what others have to pass on. The queue of link e has room from link_ptr[e] on. Alphas
    within a route are left out of account. No messages and infinite time where there are more than `limit`.
    O(messages x hops that wait for a link).
    """
    hops, num_links = len(chunks), len(bandwidth)
    ready, sent = np.zeros(hops, np.int64), np.zeros(hops, np.int64)
    free, listed = bandwidth.copy(), np.zeros(hops, np.bool_)
    queue, queued = np.empty(link_ptr[-1], np.int64), np.zeros(num_links, np.int64)
    # Links to look at; entry num_links holds their number.
    dirty, is_dirty = np.zeros(num_links + 1, np.int64), np.zeros(num_links, np.bool_)
    message_hop, first, count = np.empty(limit, np.int64), np.empty(limit, np.int64), np.empty(limit, np.int64)
    messages, finish_s = 0, 0.0
    events = [(0.0, ISSUE, h) for h in range(hops) if before[h] < 0]
    heapq.heapify(events)
    while len(events) > 0:
        now_s = events[0][0]
        while len(events) > 0 and events[0][0] <= now_s * (1 + 1e-12):
            _, kind, number = heapq.heappop(events)
            if kind == RELEASE:
                h = message_hop[number]
                for p in range(route_ptr[h], route_ptr[h + 1]):
                    free[route_links[p]] += rate[h]
                    mark(route_links[p], dirty, is_dirty)
            elif kind == ISSUE:
                issued = min(chunks[number], ready[number] + most[number]) if horizon_s > 0 else chunks[number]
                if issued < chunks[number]:
                    heapq.heappush(events, (horizon_s * issued / chunks[number], ISSUE, number))
                ready[number] = issued
                offer(number, route_ptr, route_links, link_ptr, queue, queued, listed, dirty, is_dirty)
            else:
                finish_s = max(finish_s, now_s)
                h = message_hop[number]
                for c in range(child_ptr[h], child_ptr[h + 1]):
                    ready[child[c]] += count[number]
                    offer(child[c], route_ptr, route_links, link_ptr, queue, queued, listed, dirty, is_dirty)
        for i in range(dirty[num_links]):
            link = dirty[i]
            is_dirty[link] = False
            while True:
                h = next_hop(
                    link, queue, queued, link_ptr, ready, sent, chunks, rank, rate, free, route_ptr, route_links, listed
                )
                if h < 0:
                    break
                if messages == limit:
                    return message_hop[:0], first[:0], count[:0], np.inf
                left = chunks[h] - sent[h]
                n = min(ready[h] - sent[h], most[h], max(1, int(np.ceil(left * part[h]))))
                message_hop[messages], first[messages], count[messages] = h, sent[h], n
                sent[h] += n
                for p in range(route_ptr[h], route_ptr[h + 1]):
                    free[route_links[p]] -= rate[h]
                transfer_s = n * chunk_bytes[h] / rate[h]
                heapq.heappush(events, (now_s + overhead_s[h] + transfer_s, RELEASE, messages))
                heapq.heappush(events, (now_s + alpha_s[h] + transfer_s, ARRIVAL, messages))
                messages += 1
        dirty[num_links] = 0
    return message_hop[:messages], first[:messages], count[:messages], finish_s


@njit(cache=True)
def mark(link: int, dirty: I64, is_dirty: Bools) -> None:
    """Note that a link is to be looked at, once."""
    if not is_dirty[link]:
        is_dirty[link] = True
        dirty[dirty[-1]] = link
        dirty[-1] += 1


@njit(cache=True)
def offer(
    hop: int,
    route_ptr: I64,
    route_links: I32,
    link_ptr: I64,
    queue: I64,
    queued: I64,
    listed: Bools,
    dirty: I64,
    is_dirty: Bools,
) -> None:
    """Put a hop into the queues of its links, unless it is there still."""
    for p in range(route_ptr[hop], route_ptr[hop + 1]):
        link = route_links[p]
        mark(link, dirty, is_dirty)
        there = listed[hop]
        if not there:
            for place in range(link_ptr[link], link_ptr[link] + queued[link]):
                there |= queue[place] == hop
        if not there:
            queue[link_ptr[link] + queued[link]] = hop
            queued[link] += 1
    listed[hop] = True


@njit(cache=True)
def next_hop(
    link: int,
    queue: I64,
    queued: I64,
    link_ptr: I64,
    ready: I64,
    sent: I64,
    chunks: I64,
    rank: F64,
    rate: F64,
    free: F64,
    route_ptr: I64,
    route_links: I32,
    listed: Bools,
) -> int:
    """The hop that goes next over a link, -1 if none can."""
    best, least = -1, np.inf
    place = link_ptr[link]
    while place < link_ptr[link] + queued[link]:
        h = queue[place]
        if ready[h] == sent[h]:
            # Nothing to send for now: it leaves the queue, and comes again with its next chunks.
            queued[link] -= 1
            queue[place] = queue[link_ptr[link] + queued[link]]
            listed[h] = False
            continue
        key = rank[h] + sent[h] / chunks[h]
        if key < least:
            fits = True
            for p in range(route_ptr[h], route_ptr[h + 1]):
                fits &= free[route_links[p]] >= rate[h] * _FULL
            if fits:
                best, least = h, key
        place += 1
    return best
