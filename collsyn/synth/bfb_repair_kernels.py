"""Compiled loops for trees whose ranks are reached at given steps: cheap ones by annealing, and whole parts of them."""

import numpy as np
from numba import njit

from collsyn.model.arrays import F64, I32, I64
from collsyn.synth.event_kernels import U64, draw

# Random moves begin at this part of the cost of a mean hop, and end at that part of it.
_HOT, _COLD = 0.5, 0.005


@njit(cache=True)
def cost_of_rank(rank: int, step: int, ptr: I64, src: I32, price: F64, when: I64) -> float:
    """The least price at which an in-neighbour that has the data before a step brings it in that step."""
    least = np.inf
    for arc in range(ptr[rank], ptr[rank + 1]):
        if when[src[arc]] < step and price[arc, step - 1] < least:
            least = price[arc, step - 1]
    return least


@njit(cache=True)
def anneal(
    root: int, ptr: I64, src: I32, out_ptr: I64, out_rank: I32, price: F64, when: I64, moves: int, state: U64
) -> float:
    """Change when ranks are reached, one at a time, so that the tree gets cheaper; returns its cost.

    `when` (0 for the root, else 1 .. steps) must be feasible and is left at the best that was found. `price[arc, t]`
    is what arc `arc` costs in step t + 1. O(moves * degree^2).
    """
    n, steps = len(when), price.shape[1]
    cost = np.zeros(n)
    for rank in range(n):
        if rank != root:
            cost[rank] = cost_of_rank(rank, when[rank], ptr, src, price, when)
    total = float(cost.sum())
    best, best_when = total, when.copy()
    scale = total / n + 1e-300
    for move in range(moves):
        heat = scale * _HOT * (_COLD / _HOT) ** (move / moves)
        rank = int(draw(state) * n)
        step = 1 + int(draw(state) * steps)
        before = when[rank]
        if rank == root or step == before:
            continue
        own = cost_of_rank(rank, step, ptr, src, price, when)
        if own == np.inf:
            continue
        change = own - cost[rank]
        when[rank] = step
        for i in range(out_ptr[rank], out_ptr[rank + 1]):
            other = out_rank[i]
            # Only who is reached between both steps can gain or lose this in-neighbour.
            if other != root and min(before, step) < when[other] <= max(before, step):
                change += cost_of_rank(other, when[other], ptr, src, price, when) - cost[other]
        if change > 0 and draw(state) >= np.exp(-change / heat):
            when[rank] = before
            continue
        cost[rank] = own
        for i in range(out_ptr[rank], out_ptr[rank + 1]):
            other = out_rank[i]
            if other != root and min(before, step) < when[other] <= max(before, step):
                cost[other] = cost_of_rank(other, when[other], ptr, src, price, when)
        total += change
        if total < best - 1e-12 * scale:
            best = total
            best_when[:] = when
    when[:] = best_when
    return best


@njit(cache=True)
def arcs_of_tree(root: int, ptr: I64, src: I32, price: F64, when: I64) -> I64:
    """The cheapest arc into every rank (-1 for the root) of a tree whose ranks are reached at given steps."""
    chosen = np.full(len(when), -1, dtype=np.int64)
    for rank in range(len(when)):
        least = np.inf
        for arc in range(ptr[rank], ptr[rank + 1]):
            if rank != root and when[src[arc]] < when[rank] and price[arc, when[rank] - 1] < least:
                least = price[arc, when[rank] - 1]
                chosen[rank] = arc
    return chosen


@njit(cache=True)
def time_of_steps(load: F64, near: float) -> float:
    """The sum over steps of their busiest link's load, shape [steps, links].

    A link that carries nearly as much adds up to the part `near` of it, the nearer the more.
    """
    total = 0.0
    for step in range(len(load)):
        most, others = load[step].max(), 0.0
        if most > 0:
            for link in range(load.shape[1]):
                part = load[step, link] / most
                part *= part
                part *= part
                part *= part
                others += part * part
        total += most * (1 + near * others)
    return total


@njit(cache=True)
def whole_parts(load: F64, first: I64, count: I64, chunks: int, near: F64) -> float:
    """Give every source exactly `chunks` chunks over its trees, from counts rounded down; returns the steps' time.

    Trees `first[s]:first[s + 1]` are those of source s, `load[tree]` what a chunk over it loads: shape [steps, links].
    What is missing goes to the tree that harms least; then single chunks move to other trees while that helps, for
    falling parts `near` that links beside the busiest count. O(passes * trees used * trees of a source * loads).
    """
    busy = np.zeros(load.shape[1:])
    for tree in range(len(load)):
        busy += load[tree] * count[tree]
    for source in range(len(first) - 1):
        for _ in range(chunks - count[first[source] : first[source + 1]].sum()):
            best, at = np.inf, first[source]
            for tree in range(first[source], first[source + 1]):
                value = time_of_steps(busy + load[tree], near[0])
                if value < best:
                    best, at = value, tree
            count[at] += 1
            busy += load[at]
    best_time, best_count = time_of_steps(busy, 0.0), count.copy()
    for part in near:
        while improve(load, first, count, busy, part):
            pass
        value = time_of_steps(busy, 0.0)
        if value < best_time:
            best_time = value
            best_count[:] = count
    count[:] = best_count
    return best_time


@njit(cache=True)
def improve(load: F64, first: I64, count: I64, busy: F64, near: float) -> bool:
    """Move a chunk of every tree that has one to the best other tree of its source; returns whether anything helped."""
    now = time_of_steps(busy, near)
    begin = now
    without, other = np.empty_like(busy), np.empty_like(busy)
    for source in range(len(first) - 1):
        for giver in range(first[source], first[source + 1]):
            if count[giver] == 0:
                continue
            best, at = now * (1 - 1e-9), -1
            without[:] = busy
            without -= load[giver]
            for tree in range(first[source], first[source + 1]):
                if tree != giver:
                    other[:] = without
                    other += load[tree]
                    value = time_of_steps(other, near)
                    if value < best:
                        best, at = value, tree
            if at >= 0:
                count[giver] -= 1
                count[at] += 1
                busy[:] = without
                busy += load[at]
                now = best
    return bool(now < begin * (1 - 1e-6))
