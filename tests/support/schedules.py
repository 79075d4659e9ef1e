"""Schedules for tests: tiny ones written by hand, one idea each, and random ones; all built straight from columns.

@pytest.mark.parametrize("name", SCHEDULES)
def test_something(name):
    schedule = by_hand(name)

@given(random_schedules())
def test_property(schedule): ...
"""

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
from hypothesis import strategies as st

from collsyn.model.arrays import Rows
from collsyn.model.collective import Collective, make_collective
from collsyn.model.schedule import COPY, OWN, REDUCE, VALUE, Schedule
from collsyn.model.topology import Topology
from collsyn.topology.hops import Hops, hops
from tests.support.topologies import build, random_topologies, ring_edges

SIZE = 1 << 20
KINDS = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce", "gather", "scatter", "alltoall", "sendrecv")
NAMES = ("chunk", "src", "dst", "route", "start_s", "rate", "op", "batch", "src_slot", "dst_slot")
DEFAULTS = {"rate": 0.0, "op": COPY, "batch": -1, "src_slot": VALUE, "dst_slot": VALUE}


def from_rows(
    collective: Collective,
    topology: Topology,
    rows: Iterable[dict[str, float]],
    size_bytes: int = SIZE,
    routes: Sequence[Sequence[int]] | None = None,
) -> Schedule:
    """A schedule from one dict a send; routes are the single links unless given."""
    rows = list(rows)
    columns = {name: np.array([row.get(name, DEFAULTS.get(name)) for row in rows]) for name in NAMES}
    return Schedule.build(
        collective, topology, size_bytes, routes or singles(topology), {"method": "by hand"}, **columns
    )


def singles(topology: Topology) -> list[list[int]]:
    """Every link as a route."""
    return [[link] for link in range(topology.num_links)]


def link_of(topology: Topology, src: int, dst: int) -> int:
    """The link from vertex to vertex."""
    return int(np.flatnonzero((topology.src == src) & (topology.dst == dst))[0])


def hop_s(topology: Topology, link: int, num_bytes: float) -> float:
    """Alpha and transfer of one link."""
    return float(topology.alpha_s[link] + num_bytes * topology.beta_s_per_byte[link])


def full(n: int) -> Topology:
    """A link from every rank to every other."""
    return build(n, [(a, b) for a in range(n) for b in range(n) if a != b], name=f"full {n}")


def star(n: int) -> Topology:
    """All ranks on one switch, links with some overhead."""
    return build(n, [(r, n, 100, 0.35, 0.3) for r in range(n)], switches=1, name=f"star {n}", both=True)


def ring(n: int, *costs: float) -> Topology:
    """A ring in both directions."""
    return build(n, [(a, b, *costs) for a, b in ring_edges(n)], name=f"ring {n}", both=True)


def ring_allgather(n: int = 5, chunks: int = 2) -> Schedule:
    """Everyone passes on to the right what it got before; each of a rank's chunks in its own round."""
    topology, collective = ring(n), make_collective("allgather", n, chunks)
    step = hop_s(topology, 0, SIZE / n / chunks)
    rows = [
        {
            "chunk": ((rank - hop) % n) * chunks + piece,
            "src": rank,
            "dst": (rank + 1) % n,
            "route": link_of(topology, rank, (rank + 1) % n),
            "start_s": (hop * chunks + piece) * step,
        }
        for hop in range(n - 1)
        for piece in range(chunks)
        for rank in range(n)
    ]
    return from_rows(collective, topology, rows)


def star_broadcast(n: int = 5, chunks: int = 2) -> Schedule:
    """The root sends everything to everyone through the switch, all of a receiver's chunks in one message."""
    topology, collective = star(n), make_collective("broadcast", n, chunks)
    up = link_of(topology, 0, n)
    routes = [[up, link_of(topology, n, rank)] for rank in range(1, n)]
    busy = float(topology.overhead_s[up] + SIZE * topology.beta_s_per_byte[up])
    rows = [
        {"chunk": c, "src": 0, "dst": rank, "route": rank - 1, "start_s": (rank - 1) * busy, "batch": rank}
        for rank in range(1, n)
        for c in range(chunks)
    ]
    return from_rows(collective, topology, rows, routes=routes)


def shared_gather(n: int = 5) -> Schedule:
    """Everyone sends to rank 0 at once, each with an equal part of the bandwidth of its link."""
    topology, collective = star(n), make_collective("gather", n)
    down = link_of(topology, n, 0)
    routes = [[link_of(topology, rank, n), down] for rank in range(1, n)]
    rate = float(topology.bandwidth[down]) / (n - 1)
    rows = [
        {"chunk": rank, "src": rank, "dst": 0, "route": rank - 1, "start_s": 0.0, "rate": rate} for rank in range(1, n)
    ]
    return from_rows(collective, topology, rows, routes=routes)


def tapered_gather(n: int = 5) -> Schedule:
    """Everyone sends to rank 0 at the full rate of its own slow link; together they just fill the fast last one."""
    edges = [(n, 0, 100, 0.5), *((rank, n, 100 / (n - 1), 0.5) for rank in range(1, n))]
    topology, collective = build(n, edges, switches=1, name=f"tapered {n}"), make_collective("gather", n, 2)
    routes = [[rank, 0] for rank in range(1, n)]
    transfer = SIZE / n / 2 * float(topology.beta_s_per_byte[1])
    rows = [
        {"chunk": 2 * rank + piece, "src": rank, "dst": 0, "route": rank - 1, "start_s": piece * transfer}
        for rank in range(1, n)
        for piece in (0, 1)
    ]
    return from_rows(collective, topology, rows, routes=routes)


def tree_reduce(levels: int = 2) -> Schedule:
    """A binary in-tree: children join their parent's value, the deepest first; rank 0 is the root."""
    n = 2 ** (levels + 1) - 1
    edges = [edge for child in range(1, n) for edge in ((child, (child - 1) // 2), ((child - 1) // 2, child))]
    topology, collective = build(n, edges, name=f"tree {n}"), make_collective("reduce", n)
    step = hop_s(topology, 0, SIZE)
    rows = [
        {
            "chunk": 0,
            "src": child,
            "dst": (child - 1) // 2,
            "route": link_of(topology, child, (child - 1) // 2),
            "start_s": (levels - (child + 1).bit_length() + 1) * step,
            "op": REDUCE,
        }
        for child in range(1, n)
    ]
    return from_rows(collective, topology, rows)


def doubling_allreduce(bits: int = 2) -> Schedule:
    """Partners at distance 1, 2, 4, ... swap and join all they have; a chunk a rank."""
    n = 2**bits
    topology, collective = full(n), make_collective("allreduce", n)
    step, each = hop_s(topology, 0, SIZE), SIZE / n * float(topology.beta_s_per_byte[0])
    rows = [
        {
            "chunk": c,
            "src": rank,
            "dst": rank ^ (1 << bit),
            "route": link_of(topology, rank, rank ^ (1 << bit)),
            "start_s": bit * step + c * each,
            "op": REDUCE,
        }
        for bit in range(bits)
        for rank in range(n)
        for c in range(n)
    ]
    return from_rows(collective, topology, rows)


def one_shot_allreduce(n: int = 3) -> Schedule:
    """Everyone sends its own contribution to everyone; receivers collect in slots and merge at their rank."""
    topology, collective = full(n), make_collective("allreduce", n)
    each = SIZE / n * float(topology.beta_s_per_byte[0])
    rows: list[dict[str, float]] = []
    for c in range(n):
        for a in range(n):
            for b in range(n):
                if a != b:
                    link = link_of(topology, a, b)
                    send = {"chunk": c, "src": a, "dst": b, "route": link, "start_s": c * each, "src_slot": OWN}
                    rows.append({**send, "dst_slot": 1, "op": REDUCE})
        done = c * each + float(topology.alpha_s[0]) + each
        local = {"chunk": c, "route": topology.num_links, "start_s": done, "src_slot": 1, "op": REDUCE}
        rows += [{**local, "src": rank, "dst": rank} for rank in range(n)]
    return from_rows(collective, topology, rows, routes=[*singles(topology), []])


def direct_alltoall(n: int = 4) -> Schedule:
    """Every pair's bytes over the link that joins them."""
    topology, collective = full(n), make_collective("alltoall", n)
    rows = [
        {"chunk": a * n + b, "src": a, "dst": b, "route": link_of(topology, a, b), "start_s": 0.0}
        for a in range(n)
        for b in range(n)
        if a != b
    ]
    return from_rows(collective, topology, rows)


def ring_reducescatter(n: int = 4) -> Schedule:
    """Shards travel once round a ring whose links are busy for all of alpha, and every rank joins its part."""
    topology, collective = ring(n, 25, 0.7, 0.7), make_collective("reducescatter", n)
    step = hop_s(topology, 0, SIZE / n)
    rows = [
        {
            "chunk": (rank - hop - 1) % n,
            "src": rank,
            "dst": (rank + 1) % n,
            "route": link_of(topology, rank, (rank + 1) % n),
            "start_s": hop * step,
            "op": REDUCE,
        }
        for hop in range(n - 1)
        for rank in range(n)
    ]
    return from_rows(collective, topology, rows)


def chain_reduce(n: int = 4) -> Schedule:
    """Down a line: what arrives waits in a slot, is merged at once, and the value goes on in the same instant."""
    topology, collective = (
        build(n, [(r, r + 1) for r in range(n - 1)], name=f"line {n}", both=True),
        make_collective("reduce", n),
    )
    step = hop_s(topology, 0, SIZE)
    rows: list[dict[str, float]] = []
    for hop, rank in enumerate(range(n - 1, 0, -1)):
        link = link_of(topology, rank, rank - 1)
        rows.append({"chunk": 0, "src": rank, "dst": rank - 1, "route": link, "start_s": hop * step, "dst_slot": 1})
        local = {"chunk": 0, "src": rank - 1, "dst": rank - 1, "route": topology.num_links, "start_s": (hop + 1) * step}
        rows.append({**local, "src_slot": 1, "op": REDUCE})
    return from_rows(collective, topology, rows, routes=[*singles(topology), []])


def collected_reduce(n: int = 4) -> Schedule:
    """The first contribution opens a slot of the root by a copy, the others join it there one by one."""
    topology, collective = full(n), make_collective("reduce", n, 2)
    each = SIZE / 2 * float(topology.beta_s_per_byte[0])
    rows: list[dict[str, float]] = []
    for c in range(2):
        for rank in range(1, n):
            start = c * each + (rank > 1) * 0.1e-6
            send = {"chunk": c, "src": rank, "dst": 0, "route": link_of(topology, rank, 0), "start_s": start}
            rows.append({**send, "src_slot": OWN, "dst_slot": 2, "op": REDUCE if rank > 1 else COPY})
        done = (c + 1) * each + 0.6e-6
        rows.append(
            {"chunk": c, "src": 0, "dst": 0, "route": topology.num_links, "start_s": done, "src_slot": 2, "op": REDUCE}
        )
    return from_rows(collective, topology, rows, routes=[*singles(topology), []])


_MAKERS = {
    maker.__name__.replace("_", " "): maker
    for maker in (
        ring_allgather,
        star_broadcast,
        shared_gather,
        tapered_gather,
        tree_reduce,
        doubling_allreduce,
        one_shot_allreduce,
        chain_reduce,
        collected_reduce,
        direct_alltoall,
        ring_reducescatter,
    )
}

SCHEDULES: tuple[str, ...] = tuple(_MAKERS)


@cache
def by_hand(name: str) -> Schedule:
    """The schedule of that name."""
    return _MAKERS[name]()


def random_schedule(topology: Topology, kind: str, seed: int, size_bytes: int = SIZE) -> Schedule:
    """A right schedule of random moves, one message or a pair of slow ones after the other, over any topology.

    Copies reach every rank at most once; reductions follow a random in-tree, and an allreduce comes back from its root.
    Messages go alone or in batches, at full rate or slower. Nothing is clever, and all times are late.
    """
    rng = np.random.default_rng(seed)
    collective = make_collective(kind, topology.num_ranks, int(rng.integers(1, 3)))
    moves = _random_moves(collective, hops(topology), rng)
    return _spread(collective, topology, moves, size_bytes, rng)


def random_schedules(
    kinds: Sequence[str] = KINDS, topologies: st.SearchStrategy[Topology] | None = None
) -> st.SearchStrategy[Schedule]:
    """Random schedules over random topologies."""
    topologies = random_topologies() if topologies is None else topologies
    return st.builds(random_schedule, topologies, st.sampled_from(kinds), st.integers(0, 2**32 - 1))


def _random_moves(collective: Collective, ways: Hops, rng: np.random.Generator) -> list[tuple[list[int], int, int]]:
    """Moves (chunks, way, op) in an order that is right one after the other."""
    moves: list[tuple[list[int], int, int]] = []
    holders = [set(collective.contributors(c).tolist()) for c in range(collective.num_chunks)]
    if collective.reduces:
        for c in range(collective.num_chunks):
            root = int(rng.choice(collective.receivers(c)))
            for way in reversed(_random_tree(ways.into, ways.src, root, rng)):
                moves.append(([c], way, REDUCE))
            holders[c] = {root}
    missing = [set(collective.receivers(c).tolist()) - holders[c] for c in range(collective.num_chunks)]
    while any(missing):
        way = int(rng.integers(len(ways)))
        src, dst = int(ways.src[way]), int(ways.dst[way])
        useful = [c for c, lacking in enumerate(missing) if lacking and src in holders[c] and dst not in holders[c]]
        chosen = [int(c) for c in rng.permutation(useful)[: int(rng.integers(1, 4))]]
        for c in chosen:
            holders[c].add(dst)
            missing[c].discard(dst)
        if chosen:
            moves.append((chosen, way, COPY))
    return moves


def _random_tree(into: Rows, src: np.ndarray, root: int, rng: np.random.Generator) -> list[int]:
    """Ways that join every rank to the root, nearer ones first."""
    reached, tree = {root}, []
    while len(reached) < len(into):
        frontier = [w for rank in sorted(reached) for w in into[rank].tolist() if int(src[w]) not in reached]
        way = int(rng.choice(frontier))
        tree.append(way)
        reached.add(int(src[way]))
    return tree


def _spread(
    collective: Collective,
    topology: Topology,
    moves: list[tuple[list[int], int, int]],
    size_bytes: int,
    rng: np.random.Generator,
) -> Schedule:
    """Give moves their times: each begins when all before it are done, or beside one other at half the rate."""
    ways, lengths = hops(topology), collective.chunk_bytes(size_bytes)
    rows: list[dict[str, float]] = []
    now = done = 0.0
    waiting: tuple[set[tuple[int, int]], float] | None = None
    for number, (chunks, way, op) in enumerate(moves):
        src, dst, limit = int(ways.src[way]), int(ways.dst[way]), 1 / float(ways.beta_s_per_byte[way])
        fixed = float(
            ways.alpha_s[way] + ways.overhead_s[way]
        )  # what overhead adds on the last link ends after arrival
        reads, writes = {(c, src) for c in chunks}, {(c, dst) for c in chunks}
        beside = waiting is not None and not (waiting[0] & (reads | writes))
        start = now if beside else done
        part = float(rng.choice([1.0, 0.5, 0.25])) if not beside else 0.5
        now, waiting = start, (writes | reads, part) if not beside and part <= 0.5 else None
        num_bytes = float(lengths[chunks].sum())
        spent = float(topology.reduce_s_per_byte[dst]) * num_bytes if op == REDUCE else 0.0
        done = max(done, start + fixed + num_bytes / (part * limit) + spent)
        for c in chunks:
            row = {"chunk": c, "src": src, "dst": dst, "route": way, "start_s": start, "op": op, "batch": number}
            rows.append({**row, "rate": 0.0 if part == 1 else part * limit})
    return from_rows(collective, topology, rows, size_bytes, ways.routes.tuples())
