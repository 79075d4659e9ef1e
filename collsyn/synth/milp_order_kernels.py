"""Compiled list scheduling along given trees: whenever links are free, the chunk with the longest way ahead goes."""

import numpy as np
import numpy.typing as npt
from numba import njit

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


@njit(cache=True)
def dispatched(
    hop: _Ints,
    parent: _Ints,
    length: _Floats,
    priority: _Floats,
    child_ptr: _Ints,
    children: _Ints,
    alpha_s: _Floats,
    overhead_s: _Floats,
    beta_s: _Floats,
    route_ptr: _Ints,
    route_links: _Ints,
    before_s: _Floats,
    lanes: _Ints,
    most: int,
) -> tuple[_Ints, _Ints, float]:
    """Rows in the order in which they leave, the message of each, and when the last one has arrived.

    Row i takes chunk bytes `length[i]` over `hop[i]` once row `parent[i]` (-1: at once) has arrived. Up to `most` rows
    that wait for one hop share a message, those of highest priority first. A link carries `lanes` messages at a time.
    O(messages x hops + rows log rows).
    """
    rows, hops = len(hop), len(alpha_s)
    order, message = np.empty(rows, np.int64), np.empty(rows, np.int64)
    free = np.zeros((len(lanes), lanes.max() if len(lanes) else 1))
    waiting = np.empty(rows, np.int64)  # next row that waits for the same hop, by falling priority
    head = np.full(hops, -1, np.int64)
    arrival = np.empty(rows)  # of rows that wait for their parents' arrivals: a heap
    comes = np.empty(rows, np.int64)
    used = 0
    for row in range(rows):
        if parent[row] < 0:
            used = _push(arrival, comes, used, 0.0, row)
    now, sent, count, finish = 0.0, 0, 0, 0.0
    while sent < rows:
        while used and arrival[0] <= now * (1 + 1e-12):
            row = comes[0]
            used = _pop(arrival, comes, used)
            _wait(head, waiting, priority, hop[row], row)
        best, soonest = -1, np.inf
        for h in range(hops):
            if head[h] < 0:
                continue
            at = _free_at(h, route_ptr, route_links, before_s, free, lanes)
            if at <= now * (1 + 1e-12):
                if best < 0 or priority[head[h]] > priority[head[best]]:
                    best = h
            else:
                soonest = min(soonest, at)
        if best < 0:
            now = min(soonest, arrival[0]) if used else soonest
            continue
        begin, num_bytes, taken = sent, 0.0, 0
        while head[best] >= 0 and taken < most:
            row = head[best]
            head[best] = waiting[row]
            order[sent], message[sent] = row, count
            num_bytes += length[row]
            sent += 1
            taken += 1
        count += 1
        transfer = num_bytes * beta_s[best]
        _occupy(best, now + overhead_s[best] + transfer, route_ptr, route_links, before_s, free, lanes)
        done = now + alpha_s[best] + transfer
        finish = max(finish, done)
        for place in range(begin, sent):
            for entry in range(child_ptr[order[place]], child_ptr[order[place] + 1]):
                used = _push(arrival, comes, used, done, children[entry])
    return order, message, finish


@njit(cache=True)
def earliest(
    hop: _Ints,
    message: _Ints,
    parent: _Ints,
    length: _Floats,
    alpha_s: _Floats,
    overhead_s: _Floats,
    beta_s: _Floats,
    route_ptr: _Ints,
    route_links: _Ints,
    before_s: _Floats,
    lanes: _Ints,
) -> _Floats:
    """Start of every row when messages (rows side by side) take their links in this order; as `dispatched` has them."""
    rows = len(hop)
    start, arrival = np.zeros(rows), np.zeros(rows)
    free = np.zeros((len(lanes), lanes.max() if len(lanes) else 1))
    first = 0
    while first < rows:
        end, num_bytes, h = first, 0.0, hop[first]
        at = _free_at(h, route_ptr, route_links, before_s, free, lanes)
        while end < rows and message[end] == message[first]:
            if parent[end] >= 0:
                at = max(at, arrival[parent[end]])
            num_bytes += length[end]
            end += 1
        transfer = num_bytes * beta_s[h]
        _occupy(h, at + overhead_s[h] + transfer, route_ptr, route_links, before_s, free, lanes)
        for row in range(first, end):
            start[row], arrival[row] = at, at + alpha_s[h] + transfer
        first = end
    return start


@njit(cache=True)
def _occupy(
    h: int, until: float, route_ptr: _Ints, route_links: _Ints, before_s: _Floats, free: _Floats, lanes: _Ints
) -> None:
    for entry in range(route_ptr[h], route_ptr[h + 1]):
        link = route_links[entry]
        lane = 0
        for other in range(1, lanes[link]):
            if free[link, other] < free[link, lane]:
                lane = other
        free[link, lane] = until + before_s[entry]


@njit(cache=True)
def _free_at(h: int, route_ptr: _Ints, route_links: _Ints, before_s: _Floats, free: _Floats, lanes: _Ints) -> float:
    at = 0.0
    for entry in range(route_ptr[h], route_ptr[h + 1]):
        link = route_links[entry]
        least = free[link, 0]
        for other in range(1, lanes[link]):
            least = min(least, free[link, other])
        at = max(at, least - before_s[entry])
    return at


@njit(cache=True)
def _wait(head: _Ints, waiting: _Ints, priority: _Floats, h: int, row: int) -> None:
    previous, at = -1, head[h]
    while at >= 0 and (priority[at] > priority[row] or (priority[at] == priority[row] and at < row)):
        previous, at = at, waiting[at]
    waiting[row] = at
    if previous < 0:
        head[h] = row
    else:
        waiting[previous] = row


@njit(cache=True)
def _push(keys: _Floats, values: _Ints, used: int, key: float, value: int) -> int:
    at = used
    while at > 0:
        up = (at - 1) // 2
        if keys[up] < key or (keys[up] == key and values[up] < value):
            break
        keys[at], values[at] = keys[up], values[up]
        at = up
    keys[at], values[at] = key, value
    return used + 1


@njit(cache=True)
def _pop(keys: _Floats, values: _Ints, used: int) -> int:
    used -= 1
    key, value = keys[used], values[used]
    at = 0
    while True:
        down = 2 * at + 1
        if down >= used:
            break
        other = down + 1
        if other < used and (keys[other] < keys[down] or (keys[other] == keys[down] and values[other] < values[down])):
            down = other
        if key < keys[down] or (key == keys[down] and value < values[down]):
            break
        keys[at], values[at] = keys[down], values[down]
        at = down
    keys[at], values[at] = key, value
    return used
