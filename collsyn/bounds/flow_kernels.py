"""Compiled loops of maximum flow: Dinic's algorithm on plain arrays, levels counted from the sink.

Arc 2i and arc 2i + 1 are the two directions of one arc: `head[a]` is where a leads, `head[a ^ 1]` where it begins, and
`residual[a]` what can still be pushed along it. `adj[ptr[v]:ptr[v + 1]]` are the arcs that leave v.
"""

import numpy as np
from numba import njit

from collsyn.model.arrays import I64, Bools


@njit(cache=True)
def _levels(ptr: I64, adj: I64, head: I64, residual: I64, source: int, sink: int, level: I64, queue: I64) -> bool:
    """Arcs from every vertex to the sink, -1 where none is needed; whether the source reaches it."""
    level[:] = -1
    level[sink] = 0
    queue[0] = sink
    first, last = 0, 1
    while first < last:
        v = queue[first]
        first += 1
        if level[source] >= 0 and level[v] >= level[source]:
            break
        for place in range(ptr[v], ptr[v + 1]):
            a = adj[place]
            u = head[a]
            if level[u] < 0 and residual[a ^ 1] > 0:
                level[u] = level[v] + 1
                queue[last] = u
                last += 1
    return bool(level[source] >= 0)


@njit(cache=True)
def augment(ptr: I64, adj: I64, head: I64, residual: I64, source: int, sink: int, limit: int) -> int:
    """Push as much as possible from source to sink, `limit` at most; returns how much it was.

    `residual` is changed in place, so that a later call goes on from the flow that is there.
    O(V^2 E), O(E sqrt(V)) where capacities are equal.
    """
    n = len(ptr) - 1
    level, cursor = np.empty(n, np.int64), np.empty(n, np.int64)
    queue, path = np.empty(n, np.int64), np.empty(n, np.int64)
    total = 0
    if source == sink:
        return limit
    while total < limit and _levels(ptr, adj, head, residual, source, sink, level, queue):
        cursor[:] = ptr[:-1]
        v, depth = source, 0
        while True:
            if v == sink:
                pushed = limit - total
                for i in range(depth):
                    pushed = min(pushed, int(residual[path[i]]))
                total += pushed
                back = depth
                for i in range(depth - 1, -1, -1):
                    residual[path[i]] -= pushed
                    residual[path[i] ^ 1] += pushed
                    if residual[path[i]] == 0:
                        back = i
                if total == limit:
                    return total
                depth = back
                v = head[path[depth] ^ 1]
            moved = False
            while cursor[v] < ptr[v + 1]:
                a = adj[cursor[v]]
                u = head[a]
                if residual[a] > 0 and level[u] >= 0 and level[u] == level[v] - 1:
                    path[depth] = a
                    depth += 1
                    v = u
                    moved = True
                    break
                cursor[v] += 1
            if moved:
                continue
            if v == source:
                break
            level[v] = -1
            depth -= 1
            v = head[path[depth] ^ 1]
            cursor[v] += 1
    return total


@njit(cache=True)
def reaching(ptr: I64, adj: I64, head: I64, residual: I64, sink: int) -> Bools:
    """Which vertices can still push something to the sink."""
    n = len(ptr) - 1
    seen, queue = np.zeros(n, np.bool_), np.empty(n, np.int64)
    seen[sink] = True
    queue[0] = sink
    first, last = 0, 1
    while first < last:
        v = queue[first]
        first += 1
        for place in range(ptr[v], ptr[v + 1]):
            a = adj[place]
            u = head[a]
            if not seen[u] and residual[a ^ 1] > 0:
                seen[u] = True
                queue[last] = u
                last += 1
    return seen


@njit(cache=True)
def reached(ptr: I64, adj: I64, head: I64, residual: I64, source: int) -> Bools:
    """Which vertices something can still be pushed to from the source."""
    n = len(ptr) - 1
    seen, queue = np.zeros(n, np.bool_), np.empty(n, np.int64)
    seen[source] = True
    queue[0] = source
    first, last = 0, 1
    while first < last:
        v = queue[first]
        first += 1
        for place in range(ptr[v], ptr[v + 1]):
            a = adj[place]
            u = head[a]
            if not seen[u] and residual[a] > 0:
                seen[u] = True
                queue[last] = u
                last += 1
    return seen
