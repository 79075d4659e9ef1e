"""Alltoall by symmetry: the ways of one rank's pieces, and the same moved to every other rank at the same times."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from collsyn.model.arrays import I64, Rows
from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology
from collsyn.synth.alltoall import Paths, Sent, Setting, sendings
from collsyn.synth.alltoall_wide import balanced
from collsyn.synth.baseline import affordable, hops_of
from collsyn.synth.event_kernels import Machine
from collsyn.synth.greedy_machine import MachineModel
from collsyn.synth.problem import Options, Problem, provenance
from collsyn.topology.symmetry import link_images

LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# Times forwards and backwards along one choice of paths; counts in vain after which no more are tried; how near the
# finish may be to that of all links evenly loaded for the search to end.
ROUNDS, PATIENCE, CLOSE_ENOUGH = 3, 2, 1.002
# Searches to relieve the busiest links of one choice of paths.
SEARCHES = 300
# Messages worth so many overheads, where there are any.
OVERHEADS = 50.0


@dataclass(frozen=True, eq=False)
class Orbits:
    """What a group of symmetries that moves every rank to every other one, in one way each, makes of hops and links.

    `hop[h]` and `link[e]` are the numbers of their orbits (-1: a link that no hop uses); `moved[r, k]` is the hop of
    orbit k that leaves rank r. The hops of an orbit share no link, so all of them can be busy at once.
    """

    hop: I64
    link: I64
    moved: I64


@lru_cache(maxsize=32)
def orbits_of(topology: Topology) -> Orbits | None:
    """The orbits of hops and links under the recorded symmetries; None where they are not of that kind.

    If every orbit of hops has exactly one hop leaving each rank, then a symmetry that keeps one rank keeps the hops
    that leave it, hence their ends, hence all ranks: for every pair of ranks one symmetry moves the first to the
    second, and it takes a chain of hops to the chain of hops of the same orbits. O(symmetries x hops).
    """
    table, n = hops_of(topology), topology.num_ranks
    images = [image for perm in topology.symmetries if (image := link_images(topology, perm)) is not None]
    number = {route: hop for hop, route in enumerate(table.routes.tuples())}
    hop_images = []
    for image in images:
        found = [number.get(route, -1) for route in Rows(table.routes.ptr, image[table.routes.data]).tuples()]
        if -1 not in found:
            hop_images.append((image, np.array(found, dtype=np.int64)))
    hop = _components([found for _, found in hop_images], len(table))
    link = _components([image for image, _ in hop_images], topology.num_links)
    num_orbits = int(hop.max(initial=-1)) + 1
    if n < 2 or len(table) != n * num_orbits:
        return None
    place = table.src.astype(np.int64) * num_orbits + hop
    if len(np.unique(place)) != len(table):
        return None
    owner = np.repeat(hop, table.routes.lengths())
    if len(np.unique(owner * topology.num_links + table.routes.data)) != len(owner):
        return None
    moved = np.empty(n * num_orbits, dtype=np.int64)
    moved[place] = np.arange(len(table))
    used, dense = np.unique(link[table.routes.data], return_inverse=True)
    numbers = np.full(topology.num_links, -1)
    numbers[table.routes.data] = dense.reshape(-1)
    assert len(used) == int(numbers.max()) + 1
    return Orbits(hop, numbers, moved.reshape(n, num_orbits))


class Translated:
    """Serves an alltoall among all ranks of a topology whose symmetries move any rank to any other.

    Every rank does at any time what rank 0 does, moved by the symmetry that moves rank 0 to it. So the load of a link
    is that of its orbit by the pieces of one rank, and a link is free whenever its orbit is: routing and timing are
    those of one rank's pieces on one link for every orbit. O(ranks) less work than without symmetry, but for the rows
    of the schedule.
    """

    name = "translated"

    def accepts(self, problem: Problem) -> str | None:
        """None if it serves the problem, else why not."""
        if problem.kind != "alltoall":
            return f"makes no {problem.kind}"
        if problem.groups is not None and len(problem.members[0]) < problem.topology.num_ranks:
            return "needs all ranks in one process group"
        if problem.groups is not None and problem.members[0] != tuple(range(problem.topology.num_ranks)):
            return "needs ranks in their order"
        if orbits_of(problem.topology) is None:
            return "needs recorded symmetries that move every rank to every other one, in one way each"
        if not np.isfinite(MachineModel.of(problem.topology).distance).all():
            return "needs ranks that reach each other"
        return None

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The best schedule of several chunk counts. The same options give the same schedule."""
        orbits = orbits_of(problem.topology)
        assert orbits is not None
        search = _Search(problem, options, orbits)
        best = search.best()
        notes = provenance(problem, options, self.name, chunks_per_rank=best.setting.chunks)
        return replace(search.everywhere(best), provenance=notes)


class _Search:
    """The pieces of rank 0 on the orbits."""

    def __init__(self, problem: Problem, options: Options, orbits: Orbits) -> None:
        self.problem, self.options, self.orbits = problem, options, orbits
        self.model = MachineModel.of(problem.topology)

    def best(self) -> Sent:
        """The earliest finish; a count that the problem fixes is taken."""
        fixed, n = self.problem.chunks_per_rank, self.problem.topology.num_ranks
        pair_bytes = self.problem.size_bytes / n
        ladder = affordable(LADDER, int(self.model.distance.sum())) if fixed is None else [fixed]
        used = self.problem.topology.bandwidth[self.orbits.link >= 0]
        least_s = float(self.model.distance.sum()) * pair_bytes / float(used.sum())
        best, in_vain = None, 0
        for chunks in ladder:
            if best is not None and (in_vain == PATIENCE or chunks > pair_bytes):
                break
            paths = self._paths(chunks)
            in_vain += 1
            for sent in self._sendings(paths, chunks):
                if best is None or sent.times.finish_s < best.times.finish_s * (1 - 1e-6):
                    best, in_vain = sent, 0
                if best.times.finish_s <= CLOSE_ENOUGH * least_s:
                    return best
        assert best is not None
        return best

    def _paths(self, chunks: int) -> Paths:
        """Paths of rank 0's pieces in orbits of hops; chunk number d * chunks + j is the j-th to rank d."""
        n = self.problem.topology.num_ranks
        chunk = np.arange(chunks, n * chunks)
        target, size = chunk // chunks, np.full(len(chunk), self.problem.size_bytes / n / chunks)
        machine = self._on_orbits(self.model.machine(False, 0.0, 1.0))
        found = balanced(
            machine, self.model.distance, np.zeros_like(target), target, size, self.options.seed, searches=SEARCHES
        )
        legs = found.hops[np.arange(found.hops.shape[1]) < found.lengths[:, None]]
        ptr = np.concatenate([[0], np.cumsum(found.lengths)])
        collective = self.problem.collective(chunks)
        return Paths(collective, chunk, size, ptr, self.orbits.hop[legs])

    def _sendings(self, paths: Paths, chunks: int) -> Iterator[Sent]:
        overhead = self.problem.topology.overhead_s.any()
        for fitted in (False, True) if self.model.has_fitted else (False,):
            for overheads in (0.0, OVERHEADS) if overhead else (0.0,):
                machine = self._quotient(self.model.machine(fitted, overheads, float(paths.num_bytes[0])))
                backwards = machine._replace(before_s=_turned_before(machine))
                setting = Setting(chunks, fitted, overheads)
                for times in sendings(machine, backwards, paths, paths.hops, ROUNDS):
                    if times.exact:
                        yield Sent(setting, paths, times)

    def _on_orbits(self, machine: Machine) -> Machine:
        """The machine with one link for every orbit."""
        link = self.orbits.link
        used = np.flatnonzero(link >= 0)
        bandwidth = np.zeros(int(link.max()) + 1)
        bandwidth[link[used]] = machine.bandwidth[used]
        return machine._replace(route_links=link[machine.route_links].astype(np.int32), bandwidth=bandwidth)

    def _quotient(self, machine: Machine) -> Machine:
        """One hop for every orbit of hops, and one link for every orbit of links."""
        first = self.orbits.moved[0]
        entries = [np.arange(machine.route_ptr[hop], machine.route_ptr[hop + 1]) for hop in first.tolist()]
        entry, lengths = np.concatenate(entries), [len(part) for part in entries]
        reduced = self._on_orbits(machine)
        links = reduced.route_links[entry]
        shared = np.zeros(len(reduced.bandwidth), dtype=np.uint8)
        shared[links] = machine.shared[machine.route_links[entry]]
        users = Rows.grouped(links, len(reduced.bandwidth))
        nowhere = np.zeros(len(first), dtype=np.int64)
        per_hop = {name: getattr(machine, name)[first] for name in ("rate", "alpha_s", "overhead_s", "batch")}
        return reduced._replace(
            src=nowhere,
            dst=nowhere,
            **per_hop,
            route_ptr=np.concatenate([[0], np.cumsum(lengths)]),
            route_links=links,
            before_s=machine.before_s[entry],
            shared=shared,
            link_ptr=np.array(users.ptr),
            link_hops=np.repeat(np.arange(len(first)), lengths)[users.data],
        )

    def everywhere(self, sent: Sent) -> Schedule:
        """The schedule of all ranks: rank 0's sends moved to every rank."""
        n, table, paths = self.problem.topology.num_ranks, self.model.table, sent.paths
        collective, setting, times = paths.collective, sent.setting, sent.times
        hop = self._moved_hops(paths)
        last = table.dst[hop[paths.ptr[1:] - 1]]
        here = np.arange(n)
        lane = paths.chunk % setting.chunks
        chunk = (here * n + last) * setting.chunks + lane[:, None]
        piece = np.repeat(np.arange(len(paths.chunk)), paths.lengths)
        columns: dict[str, npt.NDArray[Any]] = {
            "chunk": chunk[piece].reshape(-1).astype(np.int32),
            "src": table.src[hop].reshape(-1),
            "dst": table.dst[hop].reshape(-1),
            "route": hop.reshape(-1),
            "start_s": np.repeat(times.start_s, n),
        }
        if (np.bincount(times.message) > 1).any():
            columns["batch"] = (times.message.astype(np.int64)[:, None] * n + table.src[hop]).reshape(-1)
        rate = self.model.asked_rates(setting.fitted)
        if rate.any():
            columns["rate"] = rate[hop].reshape(-1)
        # The order of Schedule by two keys instead of five: a chunk leaves no two ranks at once.
        order = np.lexsort((columns["chunk"], columns["start_s"]))
        columns = {name: values[order] for name, values in columns.items()}
        topology, size_bytes = self.problem.topology, self.problem.size_bytes
        return Schedule.build(collective, topology, size_bytes, table.routes, {}, **columns)

    def _moved_hops(self, paths: Paths) -> I64:
        """The hop of every leg (row) from every rank (column)."""
        n, dst = self.problem.topology.num_ranks, self.model.table.dst
        hop = np.empty((len(paths.hops), n), dtype=np.int64)
        at = np.tile(np.arange(n), (len(paths.chunk), 1))
        for step in range(int(paths.lengths.max())):
            going = np.flatnonzero(paths.lengths > step)
            leg = paths.ptr[going] + step
            hop[leg] = self.orbits.moved[at[going], paths.hops[leg][:, None]]
            at[going] = dst[hop[leg]]
        return hop


def _turned_before(machine: Machine) -> npt.NDArray[np.float64]:
    """The alphas behind each link of a route."""
    lengths = np.diff(machine.route_ptr)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    last = np.isin(np.arange(len(owner)), machine.route_ptr[1:] - 1)
    following = np.append(machine.before_s[1:], 0.0)
    behind: npt.NDArray[np.float64] = machine.alpha_s[owner] - np.where(last, machine.alpha_s[owner], following)
    return behind


def _components(images: list[I64], count: int) -> I64:
    """Numbers of the orbits of 0 .. count - 1 under permutations."""
    starts = np.tile(np.arange(count), len(images))
    ends = np.concatenate(images) if images else starts
    graph = coo_array((np.ones(len(ends), dtype=np.int8), (starts, ends)), shape=(count, count))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


TRANSLATED = Translated()
