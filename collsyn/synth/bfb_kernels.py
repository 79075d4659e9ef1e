"""Compiled loops of breadth-first broadcast: distances, and the balanced transport into one rank at one step."""

import numpy as np
import numpy.typing as npt
from numba import njit

from collsyn.model.arrays import I32, I64, Bools

I16 = npt.NDArray[np.int16]

# Sources are grouped by the set of in-neighbours that can bring them, as bits of a word; of more in-neighbours each
# source is a group of its own.
MOST_BITS = 62


@njit(cache=True)
def distances_to(ptr: I64, near: I32, targets: I64) -> I32:
    """Hops from every rank to each target (shape [targets, ranks], -1: no way).

    Row u of (`ptr`, `near`) lists the ranks that have a link to u.
    """
    n = len(ptr) - 1
    found = np.full((len(targets), n), np.int32(-1), dtype=np.int32)
    queue = np.empty(n, dtype=np.int64)
    for row in range(len(targets)):
        queue[0], filled, taken = targets[row], 1, 0
        found[row, targets[row]] = 0
        while taken < filled:
            at = queue[taken]
            taken += 1
            for i in range(ptr[at], ptr[at + 1]):
                if found[row, near[i]] < 0:
                    found[row, near[i]] = found[row, at] + 1
                    queue[filled] = near[i]
                    filled += 1
    return found


@njit(cache=True)
def grouped_sources(to_rank: I32, to_near: I32) -> tuple[I64, I64]:
    """Sources of one rank by distance and by who can bring them, and where each such class begins (with the end).

    `to_rank` has the distances to the rank, `to_near` (shape [in-neighbours, ranks]) those to its in-neighbours. The
    rank itself is left out; ranks without a way must not be there.
    """
    d, n = to_near.shape
    key = np.zeros(n, dtype=np.int64)
    for source in range(n):
        if d > MOST_BITS:
            key[source] = source
            continue
        for j in range(d):
            if to_near[j, source] == to_rank[source] - 1:
                key[source] |= 1 << j
    by_key = np.argsort(key, kind="mergesort")
    order = by_key[np.argsort(to_rank[by_key], kind="mergesort")][1:]
    begins = np.empty(n, dtype=np.int64)
    classes = 0
    for i in range(n - 1):
        a, b = order[i - 1], order[i]
        if i == 0 or to_rank[a] != to_rank[b] or key[a] != key[b]:
            begins[classes] = i
            classes += 1
    begins[classes] = n - 1
    return order, begins[: classes + 1].copy()


@njit(cache=True)
def transport(supply: I64, allowed: Bools, room: I64, flow: I64, reached: Bools) -> bool:
    """Send every class's supply over allowed in-neighbours within their room; flow is [classes, in-neighbours].

    Returns whether all of it fits; if not, `reached` marks classes that are too much for all that can bring them.
    Augmenting paths, O((classes + in-neighbours)^2 * paths).
    """
    k, d = allowed.shape
    flow[:, :] = 0
    left = room.copy()
    before_class, before_near = np.empty(k, dtype=np.int64), np.empty(d, dtype=np.int64)
    queue = np.empty(k, dtype=np.int64)
    for c in range(k):
        rest = supply[c]
        for j in range(d):
            if allowed[c, j] and left[j] > 0 and rest > 0:
                put = min(left[j], rest)
                flow[c, j] += put
                left[j] -= put
                rest -= put
        while rest > 0:
            reached[:] = False
            before_near[:] = -1
            reached[c], queue[0], filled, taken, end = True, c, 1, 0, -1
            while taken < filled and end < 0:
                at = queue[taken]
                taken += 1
                for j in range(d):
                    if not allowed[at, j] or before_near[j] >= 0:
                        continue
                    before_near[j] = at
                    if left[j] > 0:
                        end = j
                        break
                    for other in range(k):
                        if flow[other, j] > 0 and not reached[other]:
                            reached[other], before_class[other] = True, j
                            queue[filled] = other
                            filled += 1
            if end < 0:
                return False
            put, j = min(rest, left[end]), end
            while before_near[j] != c:
                put = min(put, flow[before_near[j], before_class[before_near[j]]])
                j = before_class[before_near[j]]
            rest -= put
            left[end] -= put
            j = end
            while True:
                at = before_near[j]
                flow[at, j] += put
                if at == c:
                    break
                j = before_class[at]
                flow[at, j] -= put
    return True


@njit(cache=True)
def balance(count: I64, allowed: Bools, capacity: I64, flow: I64) -> tuple[int, int]:
    """The least p / q such that every source fits at load p / q times the capacity of each in-neighbour's link.

    `flow` becomes the sources of every class that each in-neighbour brings, in parts of 1 / q of a source. Newton's
    method on sets of classes: where p / q is too little, some classes and all that can bring them say how much more.
    """
    reached = np.zeros(len(count), dtype=np.bool_)
    above, below = count.sum(), capacity.sum()
    while True:
        common = gcd(above, below)
        above, below = above // common, below // common
        if transport(count * below, allowed, capacity * above, flow, reached):
            return above, below
        above, below = 0, 0
        for j in range(len(capacity)):
            for c in range(len(count)):
                if reached[c] and allowed[c, j]:
                    below += capacity[j]
                    break
        for c in range(len(count)):
            if reached[c]:
                above += count[c]


@njit(cache=True)
def gcd(a: int, b: int) -> int:
    """The greatest common divisor."""
    while b:
        a, b = b, a % b
    return a


@njit(cache=True)
def whole_balance(count: I64, allowed: Bools, capacity: I64, chunks: int, flow: I64) -> None:
    """Like `balance` with every source in that many chunks, which stay whole; `flow` becomes chunks.

    The load rises from what parts of chunks would need, link by link to the next whole chunk, until all fits.
    """
    above, below = balance(count, allowed, capacity, flow)
    above *= chunks
    reached = np.zeros(len(count), dtype=np.bool_)
    room = capacity * above // below
    while not transport(count * chunks, allowed, room, flow, reached):
        least = 0
        for j in range(1, len(capacity)):
            if (room[j] + 1) * capacity[least] < (room[least] + 1) * capacity[j]:
                least = j
        above, below = room[least] + 1, capacity[least]
        room = capacity * above // below


@njit(cache=True)
def shares_of_rank(to_rank: I32, to_near: I32, capacity: I64, chunks: int, via: I16) -> I64:
    """Which in-neighbour brings each chunk: `via[source * chunks + c]` (the rank's own: -1).

    Returns the chunks that each brings at every step (shape [steps, in-neighbours]).
    """
    order, begins = grouped_sources(to_rank, to_near)
    d = len(capacity)
    loads = np.zeros((to_rank.max(), d), dtype=np.int64)
    via[:] = -1
    first = 0
    for step in range(len(loads)):
        count, allowed, last = classes_of_step(order, begins, first, to_rank, to_near, step + 1)
        flow = np.empty(allowed.shape, dtype=np.int64)
        whole_balance(count, allowed, capacity, chunks, flow)
        for c in range(len(count)):
            j = 0
            for i in range(begins[first + c], begins[first + c + 1]):
                for k in range(chunks):
                    while flow[c, j] == 0:
                        j += 1
                    flow[c, j] -= 1
                    via[order[i] * chunks + k] = j
                    loads[step, j] += 1
        first = last
    return loads


@njit(cache=True)
def classes_of_step(
    order: I64, begins: I64, first: int, to_rank: I32, to_near: I32, step: int
) -> tuple[I64, Bools, int]:
    """Sources of every class at that distance from class `first` on, who can bring them, and the next class."""
    d, last = len(to_near), first
    while last < len(begins) - 1 and to_rank[order[begins[last]]] == step:
        last += 1
    count, allowed = begins[first + 1 : last + 1] - begins[first:last], np.zeros((last - first, d), dtype=np.bool_)
    for c in range(last - first):
        source = order[begins[first + c]]
        for j in range(d):
            allowed[c, j] = to_near[j, source] == step - 1
    return count, allowed, last


@njit(cache=True)
def loads_of_rank(to_rank: I32, to_near: I32, capacity: I64) -> I64:
    """For each step 1, 2, ... the load p / q that it needs, as rows (p, q)."""
    order, begins = grouped_sources(to_rank, to_near)
    loads = np.empty((to_rank.max(), 2), dtype=np.int64)
    first = 0
    for step in range(len(loads)):
        count, allowed, first = classes_of_step(order, begins, first, to_rank, to_near, step + 1)
        loads[step] = balance(count, allowed, capacity, np.empty(allowed.shape, dtype=np.int64))
    return loads


@njit(cache=True)
def rows_by_step(hops: I16, via: I16, chunks: int, links: I32, src: I32, step_ptr: I64, columns: I32) -> int:
    """All sends by step, chunk and receiver: columns are chunk, sender, receiver, link and message (-1: alone).

    `hops[u, v]` is the distance from v to u, `via[u, v * chunks + c]` which of the links `links[u]` brings a chunk of
    it. The sends of step t + 1 are rows `step_ptr[t]:step_ptr[t + 1]`. A message is what one link carries in one step;
    returns how many have more than one chunk.
    """
    n, num_links = len(hops), len(src)
    place = step_ptr[:-1].copy()
    count = np.zeros((len(place), num_links), dtype=np.int32)
    number = np.full((len(place), num_links), -1, dtype=np.int32)
    for u in range(n):
        for v in range(n):
            for c in range(chunks):
                if via[u, v * chunks + c] >= 0:
                    count[hops[u, v] - 1, links[u, via[u, v * chunks + c]]] += 1
    for v in range(n):
        for c in range(chunks):
            for u in range(n):
                j = via[u, v * chunks + c]
                if j < 0:
                    continue
                step, link = hops[u, v] - 1, links[u, j]
                row = place[step]
                place[step] += 1
                columns[0, row], columns[1, row], columns[2, row] = v * chunks + c, src[link], u
                columns[3, row] = link
    messages = 0
    for step in range(len(place)):
        for row in range(step_ptr[step], step_ptr[step + 1]):
            link = columns[3, row]
            if count[step, link] == 1:
                columns[4, row] = -1
                continue
            if number[step, link] < 0:
                number[step, link] = messages
                messages += 1
            columns[4, row] = number[step, link]
    return messages
