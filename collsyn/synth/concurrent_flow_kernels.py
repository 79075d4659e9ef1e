"""Compiled loops of flows: taking paths out of a flow, and dealing out equal pieces to paths."""

import numpy as np
from numba import njit

from collsyn.synth.event_kernels import F64, I32, I64, draw, generator, shuffle

# A path carries at least this share of what its receiver needs, or 1 / THINNEST of what is left of it.
DUST, THINNEST = 1e-3, 32.0


@njit(cache=True)
def search(
    left: F64, least: float, source: int, dst: I64, out_ptr: I64, out_links: I64, came_by: I64, queue: I64, target: int
) -> bool:
    """Whether links with at least so much left lead to the target; the links of a way with fewest are in `came_by`."""
    came_by[:] = -1
    queue[0], head, tail = source, 0, 1
    while head < tail:
        vertex = queue[head]
        head += 1
        for q in range(out_ptr[vertex], out_ptr[vertex + 1]):
            link = out_links[q]
            other = dst[link]
            if left[link] >= least and came_by[other] < 0 and other != source:
                came_by[other] = link
                if other == target:
                    return True
                queue[tail] = other
                tail += 1
    return False


@njit(cache=True)
def paths_of(
    flow: F64, need: F64, source: int, src: I64, dst: I64, out_ptr: I64, out_links: I64
) -> tuple[I64, F64, I64, I32]:
    """Paths of a flow from a source that brings `need[v]` to every vertex v, and perhaps runs in circles.

    Each receiver in turn is given paths of few links that carry as much as they can, all it needs if possible, until
    less than DUST of that is left. Taking a path that ends where something is needed leaves a flow for what is then
    still needed, so the order does not matter. Returns target, amount, and rows (ptr, links) of every path; of a
    receiver they are in turn. O(paths x links).
    """
    left, vertices = flow.copy(), len(out_ptr) - 1
    came_by, queue = np.zeros(vertices, np.int64), np.zeros(vertices, np.int64)
    target, amount, ptr = [np.int64(0) for _ in range(0)], [0.0 for _ in range(0)], [np.int64(0)]
    links = [np.int32(0) for _ in range(0)]
    for receiver in range(vertices):
        if need[receiver] <= 0.0:
            continue
        missing, least = need[receiver], need[receiver] * (1 - 1e-9)
        while missing > DUST * need[receiver]:
            found = search(left, least, source, dst, out_ptr, out_links, came_by, queue, receiver)
            if not found:
                least /= 2
                if least >= max(DUST * need[receiver], missing / THINNEST):
                    continue
                # What is left is rounding: it goes the ways that were found, or where there are none any way.
                if missing < need[receiver]:
                    break
                search(left, -np.inf, source, dst, out_ptr, out_links, came_by, queue, receiver)
            brought, at, length = missing, receiver, 0
            while at != source:
                if found:
                    brought = min(brought, left[came_by[at]])
                at = src[came_by[at]]
                length += 1
            begin, at = len(links), receiver
            for _ in range(length):
                links.append(np.int32(0))
            for i in range(length - 1, -1, -1):
                link = came_by[at]
                links[begin + i] = np.int32(link)
                left[link] -= brought
                at = src[link]
            ptr.append(np.int64(len(links)))
            target.append(np.int64(receiver))
            amount.append(brought)
            missing -= brought
            least = min(least, missing * (1 - 1e-9))
    return np.array(target), np.array(amount), np.array(ptr), np.array(links, dtype=np.int32)


@njit(cache=True)
def dear(load_s: F64, links: I32, unit_s: F64, top_s: float, power: float) -> float:
    """How much one more piece on a path costs: the sum of its links' loads to a power, each with the piece."""
    cost = 0.0
    for link in links:
        cost += ((load_s[link] + unit_s[link]) / top_s) ** power * unit_s[link]
    return cost


@njit(cache=True)
def dealt_out(
    pair_ptr: I64,
    share: F64,
    path_ptr: I64,
    links: I32,
    piece_bytes: F64,
    beta: F64,
    pieces: I64,
    least_s: float,
    powers: F64,
    seed: int,
) -> tuple[I64, float]:
    """How many of the `pieces[i]` of every pair i go each of its paths, so that the busiest link has little to carry.

    Paths pair_ptr[i] : pair_ptr[i + 1] of pair i get the whole part of their share, and the rest goes where it costs
    least. Then pieces change paths, in a pass for each power of the load that prices rise with, until no link carries
    more than `least_s` seconds. Returns the numbers and the load of the busiest link, the best that was seen.
    O(powers x paths x links of a path).
    """
    random, many = generator(seed), np.zeros(len(share), np.int64)
    load_s, order = np.zeros(len(beta)), np.arange(len(pair_ptr) - 1)
    unit_s = np.zeros(len(beta))
    for i in order:
        for p in range(pair_ptr[i], pair_ptr[i + 1]):
            many[p] = int(share[p] * pieces[i] + 1e-6)
            for link in links[path_ptr[p] : path_ptr[p + 1]]:
                load_s[link] += many[p] * piece_bytes[i] * beta[link]
    best_s, best = np.inf, many.copy()
    for turn in range(-1, len(powers)):
        power = powers[max(turn, 0)]
        shuffle(order, len(order), random)
        top_s = max(least_s, load_s.max())
        for i in order:
            begin, end = pair_ptr[i], pair_ptr[i + 1]
            missing = pieces[i] - many[begin:end].sum()
            if turn < 0 and missing == 0:
                continue
            unit_s[:] = piece_bytes[i] * beta
            for p in range(begin, end):
                # One piece of this path is taken off (in the first pass: one that has none yet is taken), and put on
                # the path where it costs least.
                taken = 1
                if turn < 0:
                    taken = missing if p == begin else 0
                elif many[p] == 0 or end - begin == 1:
                    continue
                for _ in range(taken):
                    if turn >= 0:
                        many[p] -= 1
                        for link in links[path_ptr[p] : path_ptr[p + 1]]:
                            load_s[link] -= unit_s[link]
                    cheapest, cost = -1, np.inf
                    for q in range(begin, end):
                        price = dear(load_s, links[path_ptr[q] : path_ptr[q + 1]], unit_s, top_s, power)
                        price *= 1 + 1e-3 * draw(random)
                        if price < cost:
                            cheapest, cost = q, price
                    many[cheapest] += 1
                    for link in links[path_ptr[cheapest] : path_ptr[cheapest + 1]]:
                        load_s[link] += unit_s[link]
        if load_s.max() < best_s:
            best_s = load_s.max()
            best[:] = many
        if best_s <= least_s:
            break
    return best, best_s
