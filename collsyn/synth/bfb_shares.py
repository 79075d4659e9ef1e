"""Who brings whom which chunks at which step: the transport problems of breadth-first broadcast, put together."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64, I32, I64, Rows
from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology
from collsyn.synth.bfb_cost import arcs_of, entering
from collsyn.synth.problem import Problem
from collsyn.synth.timing import in_order
from collsyn.topology.symmetry import link_images, orbits

I16 = npt.NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class Shares:
    """Of every rank's data, `chunks` chunks each, which link brings what to whom.

    `hops[u, v]` is the distance from v to u; chunk c of v comes to u over `links[u, via[u, v * chunks + c]]` in step
    `hops[u, v]`. `loads[i]` has the chunks over each link into the i-th of the ranks that were solved: shape [steps,
    links], for the links `solved[i]`.
    """

    topology: Topology
    chunks: int
    hops: I16
    via: I16
    links: I32
    solved: Sequence[I64]
    loads: Sequence[I64]

    @cached_property
    def steps(self) -> int:
        """The diameter."""
        return int(self.hops.max(initial=0))

    def step_seconds(self, chunk_bytes: float) -> F64:
        """Time of every step, if all begin it together: that of its longest message, until its link is free."""
        seconds = np.zeros(self.steps)
        for links, loads in zip(self.solved, self.loads, strict=True):
            t = self.topology
            fixed = np.maximum(t.alpha_s, t.overhead_s)[links]
            each = np.where(loads > 0, fixed + loads * chunk_bytes * t.beta_s_per_byte[links], 0.0)
            np.maximum(seconds[: len(each)], each.max(axis=1, initial=0.0), out=seconds[: len(each)])
        return seconds

    def rows(self) -> tuple[I64, I32]:
        """All sends, step after step: where steps begin (with the end), and columns chunk, src, dst, link, message."""
        from collsyn.synth import bfb_kernels as kernels

        counts = np.bincount(self.hops.reshape(-1), minlength=self.steps + 1)[1:] * self.chunks
        ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        columns = np.empty((5, int(ptr[-1])), dtype=np.int32)
        kernels.rows_by_step(self.hops, self.via, self.chunks, self.links, self.topology.src, ptr, columns)
        return ptr, columns


def shares(topology: Topology, chunks: int) -> Shares:
    """Balanced shares of all ranks, from one rank of every orbit of the topology's symmetries.

    Raises InputError for switches, Infeasible where a rank cannot be reached. O(ranks^2 * chunks).
    """
    from collsyn.synth import bfb_kernels as kernels

    arcs, n = arcs_of(topology), topology.num_ranks
    first = orbits(topology)[:n]
    most = int(np.diff(arcs.ptr).max(initial=0))
    hops, via = np.zeros((n, n), dtype=np.int16), np.full((n, n * chunks), -1, dtype=np.int16)
    links = np.full((n, max(most, 1)), -1, dtype=np.int32)
    solved, loads = [], []
    moves = [np.array(image[:n]) for image in topology.symmetries]
    link_moves = [link_images(topology, image) for image in topology.symmetries]
    for rank, to_rank, to_near, capacity in entering(arcs, np.unique(first)):
        hops[rank] = to_rank
        loads.append(kernels.shares_of_rank(to_rank, to_near, capacity, chunks, via[rank]))
        solved.append(arcs.link[arcs.ptr[rank] : arcs.ptr[rank + 1]])
        links[rank, : len(solved[-1])] = solved[-1]
        _spread(rank, moves, link_moves, hops, via.reshape(n, n, chunks), links)
    return Shares(topology, chunks, hops, via, links, solved, loads)


def in_step(problem: Problem, found: Shares) -> Schedule:
    """The allgather whose steps all ranks begin together: for millions of sends, which need no sorting."""
    collective, t = problem.collective(found.chunks), problem.topology
    seconds = found.step_seconds(problem.size_bytes / collective.num_chunks)
    ptr, columns = found.rows()
    start_s = np.repeat(np.cumsum(seconds) - seconds, np.diff(ptr))
    routes = Rows(np.arange(t.num_links + 1), np.arange(t.num_links))
    named = dict(zip(("chunk", "src", "dst", "route", "batch"), columns, strict=True))
    return Schedule.build(collective, t, problem.size_bytes, routes, start_s=start_s, **named)


def in_order_of_steps(problem: Problem, found: Shares, whole: bool) -> Schedule:
    """The allgather in which every message leaves as soon as its data is there and its link is free.

    Messages are what a link carries in one step, or (not `whole`) single chunks.
    """
    ptr, columns = found.rows()
    step = np.repeat(np.arange(found.steps), np.diff(ptr))
    order = np.lexsort((columns[0], columns[3], step))
    chunk, src, dst, link, batch = columns[:, order]
    collective, t = problem.collective(found.chunks), problem.topology
    routes = Rows(np.arange(t.num_links + 1), np.arange(t.num_links))
    named = {"chunk": chunk, "src": src, "dst": dst, "route": link}
    if whole:
        named["batch"] = batch
    return in_order(collective, t, problem.size_bytes, routes, named)


def _spread(
    rank: int, moves: Sequence[I64], link_moves: Sequence[I64 | None], hops: I16, via: npt.NDArray[np.int16], links: I32
) -> None:
    """Give every rank of an orbit the image of what its first rank gets."""
    reached, queue = {rank}, [rank]
    for at in queue:
        for move, link_move in zip(moves, link_moves, strict=True):
            image = int(move[at])
            if image in reached:
                continue
            assert link_move is not None
            reached.add(image)
            queue.append(image)
            hops[image, move], via[image, move] = hops[at], via[at]
            links[image] = np.where(links[at] >= 0, link_move[links[at]], -1)
