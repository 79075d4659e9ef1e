"""Compiled growth of trees on links of which each stands for all its images under a symmetry."""

import heapq

import numpy as np
import numpy.typing as npt
from numba import njit

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

_ARRIVES, _FREE = 0, 1


@njit(cache=True)
def grow(
    num_ranks: int,
    roots: I64,
    out_ptr: I64,
    out_link: I64,
    dst: I64,
    orbit: I64,
    ready_s: F64,
    busy_s: F64,
    deadline_s: float,
) -> tuple[int, I64, I64, F64]:
    """Trees from their roots to all ranks, each orbit of links in use once at a time: rows (tree, link, start).

    `out_link[out_ptr[v]:out_ptr[v + 1]]` are the links that leave rank v; `orbit`, and `dst` have an entry a link;
    `ready_s` (until data has arrived) and `busy_s` (until the next may start) an entry an orbit. An orbit takes what
    came first and is not on its way to the same rank yet, unless it came later than the deadline. Returns how many rows
    there are, fewer than trees x (ranks - 1) if the deadline is too early. O(trees x links x log).
    """
    num_trees, num_orbits = len(roots), len(ready_s)
    most = np.zeros(num_orbits + 1, dtype=np.int64)
    for link in out_link:
        most[orbit[link] + 1] += num_trees
    begin = np.cumsum(most)
    # Queues of the orbits lie behind each other: a tree and a link that leaves a rank which has the chunk.
    queue = np.empty(begin[-1], dtype=np.int64)
    head, tail = begin[:-1].copy(), begin[:-1].copy()
    asleep = np.ones(num_orbits, dtype=np.bool_)
    taken = np.zeros((num_trees, num_ranks), dtype=np.bool_)
    tree_of = np.empty(num_trees * num_ranks, dtype=np.int64)
    link_of = np.empty(num_trees * num_ranks, dtype=np.int64)
    start_of = np.empty(num_trees * num_ranks, dtype=np.float64)
    rows = 0
    free_s = np.zeros(num_orbits)
    events = [(0.0, _ARRIVES, np.int64(0))]
    events.pop()
    for each in range(num_trees):
        taken[each, roots[each]] = True
        heapq.heappush(events, (0.0, _ARRIVES, each * num_ranks + roots[each]))
    while events:
        now, kind, number = heapq.heappop(events)
        if kind == _ARRIVES:
            tree, rank = number // num_ranks, number % num_ranks
            degree = out_ptr[rank + 1] - out_ptr[rank]
            for i in range(degree):
                # Each tree begins with another link.
                link = np.int64(out_link[out_ptr[rank] + (i + tree) % degree])
                if taken[tree, dst[link]]:
                    continue
                at = orbit[link]
                queue[tail[at]] = tree * len(orbit) + link
                tail[at] += 1
                if asleep[at]:
                    asleep[at] = False
                    heapq.heappush(events, (max(now, free_s[at]), _FREE, np.int64(at)))
            continue
        asleep[number] = True
        if now + ready_s[number] > deadline_s:
            continue
        while head[number] < tail[number]:
            entry = queue[head[number]]
            head[number] += 1
            tree, link = entry // len(orbit), np.int64(entry % len(orbit))
            if taken[tree, dst[link]]:
                continue
            taken[tree, dst[link]] = True
            tree_of[rows], link_of[rows], start_of[rows] = tree, link, now
            rows += 1
            free_s[number] = now + busy_s[number]
            heapq.heappush(events, (now + ready_s[number], _ARRIVES, tree * num_ranks + dst[link]))
            asleep[number] = False
            heapq.heappush(events, (free_s[number], _FREE, number))
            break
    return rows, tree_of[:rows], link_of[:rows], start_of[:rows]
