"""What of an old schedule is still there on another topology: its ranks, links, routes and chunks under new numbers."""

import textwrap
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collsyn.model.arrays import F64, I64, Rows
from collsyn.model.collective import Collective
from collsyn.model.schedule import REDUCE, Schedule
from collsyn.model.topology import Topology
from collsyn.synth.problem import Problem
from collsyn.topology.degrade import kept_ranks

Route = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Map:
    """New numbers of the old ranks and chunks (-1: gone), and the hub of every new chunk that is summed up.

    `routes[i]` are the new links of the old route `old_routes[i]` (None: a link is gone) and `rates[i]` the rate asked
    for on it; `way_of_row` is the place in them of every old row.
    """

    rank: I64
    chunk: I64
    hub: I64
    routes: list[Route | None]
    old_routes: list[int]
    rates: list[float]
    way_of_row: I64

    def ways(self, hops: Rows, backwards: bool) -> tuple[int, Rows, F64, I64]:
        """A table of routes that begins with those of `hops` at full rate, and goes on with old ones that are others.

        Returns the number of hops, the table, the rates asked for, and for each of `routes` (turned round if
        `backwards`) its place in the table, -1 where it is gone.
        """
        table: list[tuple[Route, float]] = [(route, 0.0) for route in hops.tuples()]
        number = {way: place for place, way in enumerate(table)}
        place = np.full(len(self.routes), -1)
        for i, (route, rate) in enumerate(zip(self.routes, self.rates, strict=True)):
            if route:
                way = (route[::-1] if backwards else route), rate
                if way not in number:
                    number[way] = len(table)
                    table.append(way)
                place[i] = number[way]
        return len(hops), Rows.of([route for route, _ in table]), np.array([rate for _, rate in table]), place


def why_not(old: Schedule, problem: Problem) -> str | None:
    """Why a schedule cannot be repaired for a problem, or None."""
    collective = old.collective
    if problem.kind != collective.kind or problem.kind == "custom":
        return f"is a schedule of {collective.kind}, not of {problem.kind}"
    if problem.chunks_per_rank not in (None, collective.chunks_per_rank):
        return f"has {collective.chunks_per_rank} chunks a rank, not {problem.chunks_per_rank}"
    rank = _rank_map(old.topology, problem.topology)
    if rank is None:
        return (
            f"is for {old.topology.num_ranks} ranks of {old.topology.name}; topology {problem.topology.name} has "
            f"{problem.topology.num_ranks} and does not say which of them they are (collsyn topology degrade does)"
        )
    groups = [[int(rank[member]) for member in group if rank[member] >= 0] for group in collective.groups]
    if sorted(sorted(group) for group in groups if group) != sorted(map(sorted, problem.members)):
        whole = len(collective.groups) == 1 and len(collective.groups[0]) == collective.num_ranks
        return f"is for {'all ranks' if whole else _words(collective.groups)}, not for the process groups asked for"
    if old.src_slot.any() or old.dst_slot.any():
        return "keeps several partial results of a chunk at a rank, which is not repaired"
    if problem.reduces and _hubs(old) is None:
        return "does not sum up along trees, which is not repaired"
    return None


def map_onto(old: Schedule, problem: Problem) -> Map:
    """What is left of a schedule that `why_not` has nothing against."""
    topology = problem.topology
    rank = _rank_map(old.topology, topology)
    assert rank is not None
    collective = problem.collective(old.collective.chunks_per_rank)
    hubs = _hubs(old) if problem.reduces else None
    lost = np.zeros(old.collective.num_chunks, np.bool_) if hubs is None else rank[hubs] < 0
    chunk = _chunk_map(old.collective, collective, rank, lost)
    hub = np.zeros(collective.num_chunks, dtype=np.int64)
    if hubs is not None:
        # What has lost its hub, or is new, gets one of its receivers, in turn.
        hub = np.array(
            [members[i % len(members)] for i, members in enumerate(map(collective.receivers, range(len(hub))))]
        )
        stays = (chunk >= 0) & ~lost
        hub[chunk[stays]] = rank[hubs[stays]]
    links = _link_map(old.topology, topology, rank)
    rate, kind = np.unique(old.rate, return_inverse=True) if old.rate.any() else (np.zeros(1), np.zeros(1, np.int64))
    way, way_of_row = np.arange(len(old.routes)), old.route.astype(np.int64)
    if len(rate) > 1:
        way, way_of_row = np.unique(way_of_row * len(rate) + kind, return_inverse=True)
    old_routes: list[int] = (way // len(rate) if len(rate) > 1 else way).tolist()
    routes: list[Route | None] = []
    for number in old_routes:
        route = tuple(links[old.routes[number]].tolist())
        routes.append(None if -1 in route else route)
    asked: list[float] = (rate[way % len(rate)] if len(rate) > 1 else np.full(len(way), rate[0])).tolist()
    return Map(rank, chunk, hub, routes, old_routes, asked, way_of_row.reshape(-1))


def _words(groups: Sequence[Sequence[int]]) -> str:
    return "the groups " + textwrap.shorten(" / ".join(",".join(map(str, group)) for group in groups), 80)


def _rank_map(old: Topology, new: Topology) -> I64 | None:
    kept = list(range(old.num_ranks)) if old.num_ranks == new.num_ranks else kept_ranks(new, old.num_ranks)
    if kept is None:
        return None
    found = np.full(old.num_ranks, -1)
    found[kept] = np.arange(len(kept))
    return found


def _link_map(old: Topology, new: Topology, rank: I64) -> I64:
    """The new number of every old link between the same vertices (switches by name), parallel ones in their order."""
    switches = {name: new.num_ranks + i for i, name in enumerate(new.switch_names)}
    vertex = np.append(rank, [switches.get(name, -1) for name in old.switch_names]).astype(np.int64)
    places: dict[tuple[int, int], list[int]] = defaultdict(list)
    for link, ends in enumerate(zip(new.src.tolist(), new.dst.tolist(), strict=True)):
        places[ends].append(link)
    taken: dict[tuple[int, int], int] = defaultdict(int)
    found = np.full(old.num_links, -1)
    for link, ends in enumerate(zip(vertex[old.src].tolist(), vertex[old.dst].tolist(), strict=True)):
        if taken[ends] < len(places.get(ends, ())):
            found[link] = places[ends][taken[ends]]
            taken[ends] += 1
    return found


def _chunk_map(old: Collective, new: Collective, rank: I64, lost: np.ndarray) -> I64:
    """The new number of every old chunk: of those with the same holders and receivers left the next one.

    Chunks that are lost anyway come last, where fewer are needed.
    """
    ids: dict[tuple[int, ...], int] = {}

    def named(members: list[tuple[int, ...]]) -> I64:
        return np.array([ids.setdefault(row, len(ids)) for row in members])

    left = [
        tuple(sorted(int(r) for r in rank[row] if r >= 0)) for row in map(old.sets.__getitem__, range(len(old.sets)))
    ]
    old_set, new_set = named(left), named([tuple(sorted(row)) for row in new.sets.tuples()])
    keys = [sets[c.pre] * (len(ids) + 1) + sets[c.post] for sets, c in ((old_set, old), (new_set, new))]
    orders = [np.lexsort((lost, keys[0])), np.argsort(keys[1], kind="stable")]
    found = np.full(old.num_chunks, -1)
    ranked = [_places(key[order]) for key, order in zip(keys, orders, strict=True)]
    number = dict(zip(ranked[1], orders[1].tolist(), strict=True))
    for pair, chunk in zip(ranked[0], orders[0].tolist(), strict=True):
        found[chunk] = number.get(pair, -1)
    return found


def _places(keys: I64) -> list[tuple[int, int]]:
    """(key, how many equal ones stand before it) of sorted keys."""
    begins = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))
    inside = np.arange(len(keys)) - np.repeat(begins, np.diff(np.append(begins, len(keys))))
    return list(zip(keys.tolist(), inside.tolist(), strict=True))


def _hubs(old: Schedule) -> I64 | None:
    """The rank at which every chunk is summed up; None unless all other contributors send their sum once."""
    collective, sums = old.collective, np.flatnonzero(old.op == REDUCE)
    n = collective.num_ranks
    sent = old.chunk[sums].astype(np.int64) * n + old.src[sums]
    sizes = collective.sets.lengths()[collective.pre]
    if len(np.unique(sent)) != len(sent) or (np.bincount(old.chunk[sums], minlength=len(sizes)) != sizes - 1).any():
        return None
    members = np.zeros((len(collective.sets), n), dtype=np.bool_)
    members[np.repeat(np.arange(len(collective.sets)), collective.sets.lengths()), collective.sets.data] = True
    stay = members[collective.pre]
    if not stay[old.chunk[sums], old.src[sums]].all():
        return None
    stay[old.chunk[sums], old.src[sums]] = False
    hubs: I64 = stay.argmax(axis=1).astype(np.int64)
    return hubs
