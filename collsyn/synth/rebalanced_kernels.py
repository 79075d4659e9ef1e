"""Compiled loops of the alltoall of boxes: choice of rails, order on the rails, and times of all legs."""

import numpy as np
from numba import njit

from collsyn.synth._kernels import RATE_SLACK, _link_free_s, _reserve
from collsyn.synth.event_kernels import F64, I32, I64, pop, push


@njit(cache=True)
def choose_rails(
    box_from: I64, box_to: I64, place_from: I64, place_to: I64, num_bytes: F64, order: I64, boxes: int, rails: int
) -> I64:
    """The rail of every piece that leaves its box, such that no end of a rail carries much more than the busiest must.

    Pieces are taken in `order`. One goes over the rail of its source or of its receiver, which saves a leg, while that
    keeps both ends below the mean of the busiest box's rails; else over the rail whose busier end carries least.
    """
    out, into = np.zeros((boxes, rails)), np.zeros((boxes, rails))
    for p in range(len(num_bytes)):
        out[box_from[p], 0] += num_bytes[p]
        into[box_to[p], 0] += num_bytes[p]
    limit = max(out[:, 0].max(), into[:, 0].max()) / rails
    out[:, 0] = 0.0
    into[:, 0] = 0.0
    rail = np.zeros(len(num_bytes), np.int64)
    for p in order:
        a, b, size = box_from[p], box_to[p], num_bytes[p]
        best, best_load, fits = 0, np.inf, False
        for k in range(rails):
            load = max(out[a, k], into[b, k]) + size
            saves = (k == place_from[p] or k == place_to[p]) and load <= limit
            if (saves and not fits) or (saves == fits and load < best_load):
                best, best_load, fits = k, load, saves
        rail[p] = best
        out[a, best] += size
        into[b, best] += size
    return rail


@njit(cache=True)
def open_shop(cell_ptr: I64, pieces: I64, seconds: F64, boxes: int) -> F64:
    """Starts of the pieces of one rail: a box sends to one box and receives from one box at a time.

    Cell a * boxes + b has the pieces from box a to box b, pieces[cell_ptr[cell] : cell_ptr[cell + 1]], which are sent
    in that order. Whenever boxes are free, the free pair whose two ends have most left to do is served (list
    scheduling of an open shop). O(pieces x boxes). Returns the start of every piece of `seconds` in it, NaN elsewhere.
    """
    start_s = np.full(len(seconds), np.nan)
    next_of = cell_ptr[:-1].copy()
    out_s, in_s = np.zeros(boxes), np.zeros(boxes)
    for cell in range(boxes * boxes):
        for at in range(cell_ptr[cell], cell_ptr[cell + 1]):
            out_s[cell // boxes] += seconds[pieces[at]]
            in_s[cell % boxes] += seconds[pieces[at]]
    sends, receives = np.zeros(boxes, np.bool_), np.zeros(boxes, np.bool_)
    times, serials, codes = np.empty(boxes + 1), np.empty(boxes + 1, np.int64), np.empty(boxes + 1, np.int64)
    size, serial, now_s = 0, 0, 0.0
    fresh, many = np.arange(2 * boxes), 2 * boxes
    while True:
        # Only pairs with an end that has just become free can be new; the busiest end chooses first.
        while many > 0:
            at, most_s = 0, -1.0
            for i in range(many):
                left_s = out_s[fresh[i]] if fresh[i] < boxes else in_s[fresh[i] - boxes]
                if left_s > most_s:
                    at, most_s = i, left_s
            chosen = fresh[at]
            many -= 1
            fresh[at] = fresh[many]
            gives, box = chosen < boxes, chosen % boxes
            if (sends[box] if gives else receives[box]) or most_s <= 0.0:
                continue
            best, best_s = -1, -1.0
            for other in range(boxes):
                cell = box * boxes + other if gives else other * boxes + box
                if next_of[cell] < cell_ptr[cell + 1] and not (receives[other] if gives else sends[other]):
                    left_s = in_s[other] if gives else out_s[other]
                    if left_s > best_s:
                        best, best_s = cell, left_s
            if best < 0:
                continue
            p = pieces[next_of[best]]
            next_of[best] += 1
            start_s[p] = now_s
            sends[best // boxes] = receives[best % boxes] = True
            size = push(times, serials, codes, size, now_s + seconds[p], serial, best)
            serial += 1
            out_s[best // boxes] -= seconds[p]
            in_s[best % boxes] -= seconds[p]
        if size == 0:
            return start_s
        now_s = times[0]
        while size > 0 and times[0] <= now_s * (1 + 1e-12):
            cell = codes[0]
            size = pop(times, serials, codes, size)
            sends[cell // boxes] = receives[cell % boxes] = False
            fresh[many], fresh[many + 1] = cell // boxes, boxes + cell % boxes
            many += 2


@njit(cache=True)
def in_turn(
    piece: I64,
    route: I64,
    num_bytes: F64,
    num_pieces: int,
    route_ptr: I64,
    route_links: I32,
    before_s: F64,
    alpha_s: F64,
    overhead_s: F64,
    rate: F64,
    bandwidth: F64,
    flows: int,
) -> tuple[F64, float]:
    """Start of every leg, taken in order, and the last arrival: a leg waits for its piece and for its links.

    Leg i moves piece[i], num_bytes[i] long, over route[i]; alpha_s, overhead_s and rate are those of the routes.
    O(legs x links per route).
    """
    start_s, ready_s = np.zeros(len(piece)), np.zeros(num_pieces)
    ends, rates = np.zeros((len(bandwidth), flows)), np.zeros((len(bandwidth), flows))
    used, finish_s = np.zeros(len(bandwidth), np.int64), 0.0
    for i in range(len(piece)):
        r = route[i]
        at = ready_s[piece[i]]
        for entry in range(route_ptr[r], route_ptr[r + 1]):
            link = route_links[entry]
            room = bandwidth[link] * RATE_SLACK - rate[r]
            at = max(at, _link_free_s(ends[link], rates[link], used[link], room) - before_s[entry])
        transfer_s = num_bytes[i] / rate[r]
        for entry in range(route_ptr[r], route_ptr[r + 1]):
            link = route_links[entry]
            end = at + before_s[entry] + overhead_s[r] + transfer_s
            used[link] = _reserve(ends[link], rates[link], used[link], bandwidth[link], end, rate[r])
        start_s[i] = at
        ready_s[piece[i]] = at + alpha_s[r] + transfer_s
        finish_s = max(finish_s, ready_s[piece[i]])
    return start_s, finish_s
