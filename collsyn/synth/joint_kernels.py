"""Compiled event loop for trees up and down: a hop may wait for several others, whose data it adds up."""

import heapq

import numpy as np
from numba import njit

from collsyn.model.arrays import F64, I32, I64
from collsyn.synth.trees_order_kernels import ARRIVAL, ISSUE, RELEASE, mark, next_hop, offer


@njit(cache=True)
def order_messages(
    chunks: I64,
    need_ptr: I64,
    need: I32,
    next_ptr: I64,
    following: I32,
    route_ptr: I64,
    route_links: I32,
    link_ptr: I64,
    rate: F64,
    chunk_bytes: float,
    alpha_s: F64,
    overhead_s: F64,
    rank: F64,
    most: I64,
    horizon_s: float,
    bandwidth: F64,
    limit: int,
) -> tuple[I64, I64, I64, float]:
    """Messages in the order of their starts: hop, first chunk, number of chunks; and when the last one arrives.

    As the loop for trees down alone, but hop h goes on with what all hops `need[need_ptr[h]:need_ptr[h + 1]]` have
    brought; those that need none get their `most` chunks at once and the next ones evenly until `horizon_s`. Among
    messages that can start over a link, the least of rank + (part of the hop's chunks sent) goes first.
    O(messages x (hops that wait for a link + hops needed by the next ones)).
    """
    hops, num_links = len(chunks), len(bandwidth)
    ready, sent, got = np.zeros(hops, np.int64), np.zeros(hops, np.int64), np.zeros(hops, np.int64)
    free, listed = bandwidth.copy(), np.zeros(hops, np.bool_)
    queue, queued = np.empty(link_ptr[-1], np.int64), np.zeros(num_links, np.int64)
    # Links to look at; entry num_links holds their number.
    dirty, is_dirty = np.zeros(num_links + 1, np.int64), np.zeros(num_links, np.bool_)
    message_hop, first, count = np.empty(limit, np.int64), np.empty(limit, np.int64), np.empty(limit, np.int64)
    messages, finish_s = 0, 0.0
    events = [(0.0, ISSUE, h) for h in range(hops) if need_ptr[h] == need_ptr[h + 1]]
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
                got[h] += count[number]
                for c in range(next_ptr[h], next_ptr[h + 1]):
                    k = following[c]
                    there = chunks[k]
                    for p in range(need_ptr[k], need_ptr[k + 1]):
                        there = min(there, got[need[p]])
                    if there > ready[k]:
                        ready[k] = there
                        offer(k, route_ptr, route_links, link_ptr, queue, queued, listed, dirty, is_dirty)
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
                n = min(ready[h] - sent[h], most[h])
                message_hop[messages], first[messages], count[messages] = h, sent[h], n
                sent[h] += n
                for p in range(route_ptr[h], route_ptr[h + 1]):
                    free[route_links[p]] -= rate[h]
                transfer_s = n * chunk_bytes / rate[h]
                heapq.heappush(events, (now_s + overhead_s[h] + transfer_s, RELEASE, messages))
                heapq.heappush(events, (now_s + alpha_s[h] + transfer_s, ARRIVAL, messages))
                messages += 1
        dirty[num_links] = 0
    return message_hop[:messages], first[:messages], count[:messages], finish_s
