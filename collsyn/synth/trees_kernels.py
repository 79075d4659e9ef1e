"""Compiled loops for spanning trees: costs of hops by link prices, arborescences of least cost, shallow ones.

A tree over n ranks is an array of parents; its root's parent is -1.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from collsyn.model.arrays import F64, I32, I64
from collsyn.synth.event_kernels import draw

Matrix = npt.NDArray[np.float64]
IntMatrix = npt.NDArray[np.int32]
U64 = npt.NDArray[np.uint64]

# Rounds of changes after which a shallow tree is left as it is; it is usually final after three or four.
ROUNDS = 20


@njit(cache=True)
def hop_costs(num_ranks: int, ptr: I64, links: I32, dst: I32, price: F64, cost: Matrix, last: IntMatrix) -> None:
    """Least price of a way from every rank straight to every vertex, and the last link of that way.

    `links[ptr[v]:ptr[v + 1]]` leave vertex v; ranks are from 0 on. Ways lead through switches only. Fills `cost`
    (infinite: no way) and `last` (-1), both [ranks, vertices]. O(ranks x links at switches) for a few switches.
    """
    n = len(ptr) - 1
    queue, waiting = np.empty(n + 1, np.int64), np.zeros(n, np.bool_)
    for source in range(num_ranks):
        cost[source, :] = np.inf
        last[source, :] = -1
        queue[0] = source
        first, end, many = 0, 1, 1
        while many > 0:
            v = queue[first]
            first = (first + 1) % (n + 1)
            many -= 1
            waiting[v] = False
            base = 0.0 if v == source else cost[source, v]
            for place in range(ptr[v], ptr[v + 1]):
                link = links[place]
                u = dst[link]
                if u != source and base + price[link] < cost[source, u]:
                    cost[source, u] = base + price[link]
                    last[source, u] = link
                    if u >= num_ranks and not waiting[u]:
                        waiting[u] = True
                        queue[end] = u
                        end = (end + 1) % (n + 1)
                        many += 1


@njit(cache=True)
def cheapest_tree(cost: Matrix, root: int) -> I32:
    """The spanning tree of least total cost away from the root (Edmonds 1967); all -1 where some vertex has no way.

    `cost[u, v]` of every hop, infinite where none is. Cycles of cheapest hops are contracted, all of a round at once.
    O(n^2 rounds); rounds are few but for contrived costs.
    """
    n = cost.shape[0]
    none = np.full(n, -1, np.int32)
    at = np.zeros((n + 1, n), np.int32)  # at[r, v]: vertex of round r that holds v
    into = np.zeros((n + 1, n), np.int32)  # tail and head of the cheapest hop into a vertex of round r
    into_head = np.zeros((n + 1, n), np.int32)
    ring = np.zeros((n + 1, n), np.bool_)
    joined = np.zeros((n + 1, n), np.int32)  # the vertex of round r + 1 that holds a vertex of round r
    at[0] = np.arange(n)
    c = cost.copy()
    tail, head = np.empty((n, n), np.int32), np.empty((n, n), np.int32)
    for u in range(n):
        for v in range(n):
            tail[u, v], head[u, v] = u, v
    m, top, r = n, root, 0
    best = np.empty(n, np.int64)
    while True:
        for v in range(m):
            best[v] = -1
            if v == top:
                continue
            least = np.inf
            for u in range(m):
                if u != v and c[u, v] < least:
                    least = c[u, v]
                    best[v] = u
            if best[v] < 0:
                return none
            into[r, v], into_head[r, v] = tail[best[v], v], head[best[v], v]
        # Walk backwards from every vertex; a walk that meets itself closes a cycle.
        seen = np.full(m, -1, np.int64)
        number = np.full(m, -1, np.int64)
        count = 0
        for start in range(m):
            v = start
            while v != top and seen[v] < 0:
                seen[v] = start
                v = best[v]
            if v != top and seen[v] == start and number[v] < 0:
                w = v
                while number[w] < 0:
                    number[w] = count
                    ring[r, w] = True
                    w = best[w]
                count += 1
        if count == 0:
            break
        for v in range(m):
            if number[v] < 0:
                number[v] = count
                count += 1
            joined[r, v] = number[v]
        for v in range(n):
            at[r + 1, v] = number[at[r, v]]
        nc = np.full((count, count), np.inf)
        nt, nh = np.zeros((count, count), np.int32), np.zeros((count, count), np.int32)
        for v in range(m):
            saved = c[best[v], v] if ring[r, v] else 0.0
            for u in range(m):
                a, b = number[u], number[v]
                if a != b and c[u, v] - saved < nc[a, b]:
                    nc[a, b] = c[u, v] - saved
                    nt[a, b], nh[a, b] = tail[u, v], head[u, v]
        c, tail, head = nc, nt, nh
        top, m = number[top], count
        r += 1
    # Unfold: the hop into a contracted cycle replaces the cycle's own hop into the vertex where it enters.
    chosen, chosen_head = into[r].copy(), into_head[r].copy()
    for level in range(r - 1, -1, -1):
        lower, lower_head = np.zeros(n, np.int32), np.zeros(n, np.int32)
        for v in range(n):
            vertex = at[level, v]
            group = joined[level, vertex]
            entered = group != at[level + 1, root] and at[level, chosen_head[group]] == vertex
            if not ring[level, vertex] or entered:
                lower[vertex], lower_head[vertex] = chosen[group], chosen_head[group]
            else:
                lower[vertex], lower_head[vertex] = into[level, vertex], into_head[level, vertex]
        chosen, chosen_head = lower, lower_head
    none[:] = chosen
    none[root] = -1
    return none


@njit(cache=True)
def nearest_tree(cost: Matrix, root: int) -> I32:
    """The breadth-first tree in which every rank has its cheapest parent among those one hop nearer to the root."""
    n = cost.shape[0]
    depth, parent = np.full(n, -1, np.int64), np.full(n, -1, np.int32)
    depth[root] = 0
    layer, found = 0, True
    while found:
        found = False
        for v in range(n):
            if depth[v] >= 0:
                continue
            least = np.inf
            for u in range(n):
                if depth[u] == layer and cost[u, v] < least:
                    least = cost[u, v]
                    parent[v] = u
            if parent[v] >= 0:
                found = True
        layer += 1
        for v in range(n):
            if depth[v] < 0 and parent[v] >= 0:
                depth[v] = layer
    return parent


@njit(cache=True)
def measure(parent: I32, depth: I64, height: I64) -> None:
    """Fill in the hops from the root to every rank, and those from it down to the farthest below. O(n x height)."""
    height[:] = 0
    for v in range(len(parent)):
        w, steps = v, 0
        while parent[w] >= 0:
            w = parent[w]
            steps += 1
            if steps > height[w]:
                height[w] = steps
        depth[v] = steps


@njit(cache=True)
def _is_under(parent: I32, v: int, top: int) -> bool:
    w = v
    while w >= 0 and w != top:
        w = parent[w]
    return bool(w == top)


@njit(cache=True)
def shallow_tree(cost: Matrix, root: int, limit: int, start: I32) -> I32:
    """A cheap tree of height at most `limit`, by giving ranks of a tree cheaper parents one after the other.

    A rank moves with all that is below it, never under itself and never beyond the limit, which the start must keep.
    O(n^2) a round, at most ROUNDS.
    """
    n = cost.shape[0]
    parent = start.copy()
    depth, height = np.empty(n, np.int64), np.empty(n, np.int64)
    measure(parent, depth, height)
    for _ in range(ROUNDS):
        changed = False
        for v in range(n):
            if v == root:
                continue
            least, new = cost[parent[v], v] * (1 - 1e-12), -1
            for u in range(n):
                if cost[u, v] < least and depth[u] + 1 + height[v] <= limit and not _is_under(parent, u, v):
                    least, new = cost[u, v], u
            if new >= 0:
                parent[v] = new
                measure(parent, depth, height)
                changed = True
        if not changed:
            break
    return parent


@njit(cache=True)
def annealed_tree(cost: Matrix, root: int, limit: int, start: I32, steps: int, random: U64) -> I32:
    """A cheaper tree of height at most `limit`, by simulated annealing over the moves of `shallow_tree`.

    The temperature falls from the mean cost of a hop of the start to a thousandth of it. O(steps x height), and O(n x
    height) for every move that is made.
    """
    n = cost.shape[0]
    parent, best = start.copy(), start.copy()
    depth, height = np.empty(n, np.int64), np.empty(n, np.int64)
    measure(parent, depth, height)
    now = tree_cost(cost, parent)
    least = now
    heat = now / max(n - 1, 1)
    cooling = 1e-3 ** (1.0 / max(steps, 1))
    for _ in range(steps):
        heat *= cooling
        u, v = int(draw(random) * n), int(draw(random) * n)
        if v == root or u == v or parent[v] == u or not cost[u, v] < np.inf:
            continue
        if depth[u] + 1 + height[v] > limit:
            continue
        more = cost[u, v] - cost[parent[v], v]
        if more > 0 and draw(random) >= np.exp(-more / heat):
            continue
        if _is_under(parent, u, v):
            continue
        parent[v] = u
        now += more
        measure(parent, depth, height)
        if now < least * (1 - 1e-12):
            least = now
            best[:] = parent
    return best


@njit(cache=True)
def tree_cost(cost: Matrix, parent: I32) -> float:
    """Sum of the costs of a tree's hops."""
    total = 0.0
    for v in range(len(parent)):
        if parent[v] >= 0:
            total += cost[parent[v], v]
    return total


@njit(cache=True)
def add_uses(parent: I32, members: I64, last: IntMatrix, src: I32, uses: I64) -> None:
    """Count on every link how many hops of a tree over `members` use it, each by the way that `last` describes."""
    for v in range(len(parent)):
        if parent[v] >= 0:
            source, at = members[parent[v]], members[v]
            while at != source:
                link = last[source, at]
                uses[link] += 1
                at = src[link]
