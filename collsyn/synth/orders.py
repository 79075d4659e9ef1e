"""Orders of ranks in a ring: cycles of quick hops through all ranks of a group, known to the topology or searched."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from collsyn.model.topology import Topology
from collsyn.synth.baseline import hops_of, pair_table

# Search steps per attempt: grids and tori of a thousand ranks need one a rank.
MAX_STEPS = 20_000


@lru_cache(maxsize=256)
def ring_order(
    topology: Topology, members: tuple[int, ...], num_bytes: float, both_ways: bool = False
) -> tuple[int, ...] | None:
    """The members in the order of a ring whose slowest hop, for messages of that size, is as quick as can be; or None.

    With `both_ways` every neighbouring pair is joined in both directions. A symmetry of the topology that moves every
    rank along a hop gives the ring at once; else the slowest hop to allow is found by bisection, with a search of at
    most MAX_STEPS steps each.
    """
    if len(members) < 3:
        pairs = pair_table(hops_of(topology), num_bytes)
        return members if all((a, b) in pairs for a in members for b in members if a != b) else None
    inside = set(members)
    pairs = {
        pair: seconds for pair, seconds in pair_table(hops_of(topology), num_bytes).items() if inside.issuperset(pair)
    }
    if both_ways:
        pairs = {(a, b): max(s, pairs[b, a]) for (a, b), s in pairs.items() if (b, a) in pairs}
    levels = sorted({float(f"{seconds:.9g}") for seconds in pairs.values()})

    def order_within(level: float) -> tuple[int, ...] | None:
        allowed = {pair: seconds for pair, seconds in pairs.items() if seconds <= level * (1 + 1e-8)}
        return _orbit(topology, members, allowed) or _search(members, allowed)

    best = order_within(levels[-1]) if levels else None
    low, high = 0, len(levels) - 1
    while best is not None and low < high:
        middle = (low + high) // 2
        found = order_within(levels[middle])
        if found is None:
            low = middle + 1
        else:
            best, high = found, middle
    return best


def _orbit(
    topology: Topology, members: Sequence[int], pairs: Mapping[tuple[int, int], float]
) -> tuple[int, ...] | None:
    """The ring along which a symmetry moves the members."""
    for symmetry in topology.symmetries:
        order = [members[0]]
        while len(order) <= len(members) and (order[-1], symmetry[order[-1]]) in pairs:
            order.append(symmetry[order[-1]])
            if order[-1] == order[0]:
                break
        if len(order) == len(members) + 1 and order[-1] == order[0] and set(order) == set(members):
            return tuple(order[:-1])
    return None


def _search(members: Sequence[int], pairs: Mapping[tuple[int, int], float]) -> tuple[int, ...] | None:
    """A Hamiltonian cycle over the allowed pairs, by depth-first search.

    Among the ranks not yet visited the quickest hop is tried first, then the rank with fewest ways on (Warnsdorff's
    rule), then the next in order; a branch ends once some rank can no longer be reached or the ring not be closed.
    """
    n = len(members)
    place = {rank: i for i, rank in enumerate(members)}
    out_of: list[list[tuple[float, int]]] = [[] for _ in range(n)]
    into: list[list[int]] = [[] for _ in range(n)]
    for (a, b), seconds in pairs.items():
        out_of[place[a]].append((float(f"{seconds:.9g}"), place[b]))
        into[place[b]].append(place[a])
    if min(map(len, out_of)) == 0 or min(map(len, into)) == 0:
        return None
    # Dense graphs cannot fall apart before the very end.
    sparse = min(map(len, out_of)) < n / 2
    free = [True] * n
    ways_on = [len(ways) for ways in out_of]

    def visit(v: int) -> None:
        free[v] = False
        for w in into[v]:
            ways_on[w] -= 1

    def leave(v: int) -> None:
        free[v] = True
        for w in into[v]:
            ways_on[w] += 1

    def following(v: int) -> list[int]:
        ways = [(seconds, ways_on[w], (w - v) % n, w) for seconds, w in out_of[v] if free[w]]
        return [way[-1] for way in sorted(ways, reverse=True)]

    def hopeless(last: int, left: int) -> bool:
        if left == 0:
            return 0 not in (w for _, w in out_of[last])
        if not any(free[w] for w in into[0]):
            return True
        return sparse and _reachable(last, out_of, free) < left

    visit(0)
    path, pending = [0], [following(0)]
    for _ in range(MAX_STEPS):
        while not pending[-1]:
            pending.pop()
            leave(path.pop())
            if not path:
                return None
        step = pending[-1].pop()
        visit(step)
        path.append(step)
        if hopeless(step, n - len(path)):
            leave(path.pop())
        elif len(path) == n:
            return tuple(members[v] for v in path)
        else:
            pending.append(following(step))
    return None


def _reachable(start: int, out_of: Sequence[Sequence[tuple[float, int]]], free: Sequence[bool]) -> int:
    """How many free ranks can be reached over free ranks."""
    seen, stack = {start}, [start]
    while stack:
        for _, w in out_of[stack.pop()]:
            if free[w] and w not in seen:
                seen.add(w)
                stack.append(w)
    return len(seen) - 1
