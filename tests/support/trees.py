"""Right schedules of any collective along random trees of any graph: relays, reductions, slots, batches, local rows."""

from collections import defaultdict
from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np

from collsyn.model.collective import Collective, make_collective
from collsyn.model.kinds import KINDS
from collsyn.model.schedule import COPY, OWN, REDUCE, VALUE, Schedule
from collsyn.model.topology import Topology
from tests.support.schedules import full

_NAMES = ("chunk", "src", "dst", "route", "start_s", "op", "src_slot", "dst_slot", "batch")
NAMED = tuple(kind for kind in KINDS if kind != "custom")


def any_collective(kind: str, n: int = 4, chunks: int = 1) -> Collective:
    """One of every kind, alltoallv with unequal counts and zeros among them."""
    counts = [[(2 * a + 3 * b + 1) % 4 for b in range(n)] for a in range(n)] if kind == "alltoallv" else None
    return make_collective(kind, n, chunks, counts=counts)


def tree_schedule(collective: Collective, topology: Topology, seed: int, size_bytes: int = 1 << 16) -> Schedule:
    """Chunks travel along random trees over links between ranks; every send leaves as soon as it can.

    What is reduced is added up along an in-tree to one of the receivers and spread from there. Some ranks collect in
    slot 1 and merge it later, some leaves send OWN. Chunks of equal senders and receivers often share tree and message.
    """
    maker = _Maker(collective, topology, Random(seed), size_bytes)
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for chunk in range(collective.num_chunks):
        alike[int(collective.pre[chunk]), int(collective.post[chunk])].append(chunk)
    messages = []
    for chunks in alike.values():
        while chunks:
            together = maker.random.randint(1, len(chunks))
            messages.append(chunks[:together])
            chunks = chunks[together:]
    maker.random.shuffle(messages)
    for chunks in messages:
        maker.add(chunks)
    return maker.schedule()


class _Maker:
    def __init__(self, collective: Collective, topology: Topology, random: Random, size_bytes: int) -> None:
        self.collective, self.topology, self.random, self.size_bytes = collective, topology, random, size_bytes
        self.bytes = collective.chunk_bytes(size_bytes)
        self.links = {ends: i for i, ends in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))}
        self.free_s = [0.0] * topology.num_links
        self.rows: list[dict[str, Any]] = []
        self.batches = 0

    def add(self, chunks: list[int]) -> None:
        """All sends of some chunks with the same senders and receivers."""
        holders = self.collective.contributors(chunks[0]).tolist()
        wanted = self.collective.receivers(chunks[0]).tolist()
        ready = dict.fromkeys(holders, 0.0)
        if self.collective.reduces and len(holders) > 1:
            root = self.random.choice(wanted)
            ready = {root: self._gather(chunks, root, holders)}
        start = self.random.choice(sorted(ready))
        tree = self._tree(start, [rank for rank in wanted if rank not in ready], self._neighbours(forwards=True))
        known = {start: ready[start]}
        for parent, child in _downwards(tree, start):
            known[child] = self.send(chunks, parent, child, known[parent], COPY)

    def _gather(self, chunks: list[int], root: int, holders: list[int]) -> float:
        """Add up along an in-tree; when the root has it all."""
        tree = self._tree(root, [rank for rank in holders if rank != root], self._neighbours(forwards=False))
        edges = _downwards(tree, root)
        inner = [parent for parent, _ in edges]
        ready = dict.fromkeys([root, *tree], 0.0)
        side: set[int] = set()
        for parent, child in reversed(edges):
            if child in side:
                ready[child] = self._merge(chunks, child, ready[child])
            own = child not in inner and self.random.random() < 0.5
            slot = int(self.random.random() < 0.3)
            side |= {parent} if slot else set()
            alone = inner.count(parent) == 1 and (slot or parent not in holders)
            op = COPY if alone and self.random.random() < 0.5 else REDUCE
            done_s = self.send(chunks, child, parent, ready[child], op, OWN if own else VALUE, slot)
            ready[parent] = max(ready[parent], done_s)
        return self._merge(chunks, root, ready[root]) if root in side else ready[root]

    def _neighbours(self, forwards: bool) -> Mapping[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for a, b in self.links:
            found[a if forwards else b].append(b if forwards else a)
        return found

    def _tree(self, root: int, leaves: list[int], out: Mapping[int, list[int]]) -> dict[int, int]:
        """Parents of a random tree from a root that reaches the leaves; other ends are cut off."""
        parents: dict[int, int] = {}
        seen, frontier = {root}, [root]
        while frontier:
            at = frontier.pop(self.random.randrange(len(frontier)))
            for to in self.random.sample(out[at], len(out[at])):
                if to not in seen:
                    seen.add(to)
                    parents[to] = at
                    frontier.append(to)
        kept: dict[int, int] = {}
        for at in leaves:
            while at != root and at not in kept:
                kept[at] = parents[at]
                at = parents[at]
        return kept

    def send(
        self, chunks: list[int], a: int, b: int, ready_s: float, op: int, src_slot: int = VALUE, dst_slot: int = VALUE
    ) -> float:
        """One message as early as the link allows; when it is done."""
        link, num_bytes = self.links[a, b], float(self.bytes[chunks].sum())
        transfer_s = num_bytes * float(self.topology.beta_s_per_byte[link])
        start_s = max(ready_s, self.free_s[link])
        self.free_s[link] = start_s + float(self.topology.overhead_s[link]) + transfer_s
        self._add_rows(chunks, a, b, link, start_s, op, src_slot, dst_slot)
        reduce_s = num_bytes * float(self.topology.reduce_s_per_byte[b]) if op == REDUCE else 0.0
        return start_s + float(self.topology.alpha_s[link]) + transfer_s + reduce_s

    def _merge(self, chunks: list[int], rank: int, start_s: float) -> float:
        """Join slot 1 to the rank's value; when that is done."""
        self._add_rows(chunks, rank, rank, self.topology.num_links, start_s, REDUCE, 1, VALUE)
        return start_s + float(self.bytes[chunks].sum() * self.topology.reduce_s_per_byte[rank])

    def _add_rows(
        self, chunks: list[int], a: int, b: int, route: int, start_s: float, op: int, src_slot: int, dst_slot: int
    ) -> None:
        self.rows += [
            dict(zip(_NAMES, (chunk, a, b, route, start_s, op, src_slot, dst_slot, self.batches), strict=True))
            for chunk in chunks
        ]
        self.batches += 1

    def schedule(self) -> Schedule:
        """All rows as a schedule."""
        columns = {name: np.array([row[name] for row in self.rows]) for name in _NAMES}
        routes = [*([link] for link in range(self.topology.num_links)), []]
        return Schedule.build(self.collective, self.topology, self.size_bytes, routes, {"method": "trees"}, **columns)


def _downwards(tree: Mapping[int, int], root: int) -> list[tuple[int, int]]:
    """Edges (parent, child) of a tree, parents first."""
    children: dict[int, list[int]] = defaultdict(list)
    for child, parent in tree.items():
        children[parent].append(child)
    edges, queue = [], [root]
    while queue:
        at = queue.pop()
        for child in children[at]:
            edges.append((at, child))
            queue.append(child)
    return edges


def exchanges(bits: int, seed: int, chunks: int = 1, size_bytes: int = 1 << 16) -> Schedule:
    """An allreduce by recursive doubling with dimensions in random order, the second of two partners a little late."""
    n = 2**bits
    collective, topology, random = make_collective("allreduce", n, chunks), full(n), Random(seed)
    maker = _Maker(collective, topology, random, size_bytes)
    everything = list(range(collective.num_chunks))
    transfer_s = size_bytes * float(topology.beta_s_per_byte[0])
    ready = [0.0] * n
    for bit in random.sample(range(bits), bits):
        before = list(ready)
        for a in range(n):
            b = a | 1 << bit
            if a != b:
                both_s = max(before[a], before[b])
                ready[b] = maker.send(everything, a, b, both_s, REDUCE)
                late_s = random.choice((0.0, random.random() * transfer_s))
                ready[a] = maker.send(everything, b, a, both_s + late_s, REDUCE)
    return maker.schedule()


def late_contributions(n: int, seed: int, size_bytes: int = 1 << 16) -> Schedule:
    """An allreduce in which everyone sends its own contribution to everyone, some long after they have their result."""
    collective, topology, random = make_collective("allreduce", n), full(n), Random(seed)
    maker = _Maker(collective, topology, random, size_bytes)
    for chunk in range(collective.num_chunks):
        for a in range(n):
            for b in range(n):
                if a != b:
                    maker.send([chunk], a, b, random.random() * 1e-4, REDUCE, OWN)
    return maker.schedule()
