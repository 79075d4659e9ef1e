"""Compiled choice of shortest ways for pieces that each go to one rank, balanced over links and steps."""

import numpy as np
from numba import njit

from collsyn.model.arrays import F64, I32, I64

# How steeply the price of a link rises with its load, against the busiest of its step and of all.
_DOUBLINGS = 4


@njit(cache=True)
def along_flow(ptr: I64, src: I32, hops: I64, source: I64, target: I64, amount: F64, flow: F64, path: I64) -> None:
    """A shortest way for every piece p, from its target back over the arc that has most of its source's flow left.

    `hops[s, r]` are the hops from source s to rank r; `flow[s, arc]` is used up. `path[p, t]` becomes the arc of step
    t + 1.
    """
    for p in range(len(source)):
        s, at = source[p], target[p]
        while hops[s, at] > 0:
            best = -1
            for arc in range(ptr[at], ptr[at + 1]):
                if hops[s, src[arc]] == hops[s, at] - 1 and (best < 0 or flow[s, arc] > flow[s, best]):
                    best = arc
            flow[s, best] -= amount[p]
            path[p, hops[s, at] - 1] = best
            at = src[best]


@njit(cache=True)
def loads_of(path: I64, amount: F64, orbit: I64, weight: F64, steps: int) -> F64:
    """What every step puts on links of every orbit: shape [steps, orbits]."""
    busy = np.zeros((steps, len(weight)))
    for p in range(len(path)):
        for t in range(path.shape[1]):
            if path[p, t] >= 0:
                busy[t, orbit[path[p, t]]] += amount[p] * weight[orbit[path[p, t]]]
    return busy


@njit(cache=True)
def time_of(busy: F64) -> float:
    """The busiest link of every step, added up, and the busiest of all steps together."""
    total = float(busy.sum(axis=0).max())
    for t in range(len(busy)):
        total += busy[t].max()
    return total


@njit(cache=True)
def steep(part: float) -> float:
    """A high power."""
    for _ in range(_DOUBLINGS):
        part *= part
    return part


@njit(cache=True)
def improve(
    ptr: I64,
    src: I32,
    hops: I64,
    order: I64,
    source: I64,
    target: I64,
    amount: F64,
    orbit: I64,
    weight: F64,
    path: I64,
    passes: int,
) -> float:
    """Choose every piece's way anew at prices that rise with loads, as long as it helps; returns `time_of` in the end.

    `order[s]` are the ranks by distance from source s. O(passes * pieces * links).
    """
    steps = path.shape[1]
    busy = loads_of(path, amount, orbit, weight, steps)
    best, best_path = time_of(busy), path.copy()
    n = len(ptr) - 1
    cost, came = np.zeros(n), np.zeros(n, dtype=np.int64)
    for _ in range(passes):
        for p in range(len(source)):
            s, far = source[p], hops[source[p], target[p]]
            for t in range(far):
                o = orbit[path[p, t]]
                busy[t, o] -= amount[p] * weight[o]
            whole = busy.sum(axis=0)
            # Nothing is nearly empty, so that prices stay numbers.
            least = amount[p] * weight.max()
            top = whole.max() + least
            for rank in order[s]:
                away = hops[s, rank]
                if away > far:
                    break
                if away == 0:
                    cost[rank] = 0.0
                    continue
                cost[rank], most = np.inf, busy[away - 1].max() + least
                for arc in range(ptr[rank], ptr[rank + 1]):
                    if hops[s, src[arc]] != away - 1:
                        continue
                    o = orbit[arc]
                    more = amount[p] * weight[o]
                    price = steep((busy[away - 1, o] + more) / most) + steep((whole[o] + more) / top)
                    if cost[src[arc]] + price < cost[rank]:
                        cost[rank], came[rank] = cost[src[arc]] + price, arc
            at = target[p]
            while hops[s, at] > 0:
                path[p, hops[s, at] - 1] = came[at]
                at = src[came[at]]
            for t in range(far):
                o = orbit[path[p, t]]
                busy[t, o] += amount[p] * weight[o]
        now = time_of(busy)
        if now >= best * (1 - 1e-9):
            break
        best = now
        best_path[:] = path
    path[:] = best_path
    return best
