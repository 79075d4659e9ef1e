"""One root's data along all shortest ways at once, in a pipeline."""

from collections.abc import Iterator

import numpy as np

from collsyn.errors import Infeasible
from collsyn.model.arrays import I64, Rows
from collsyn.model.schedule import Schedule
from collsyn.synth.baseline import affordable, quickest
from collsyn.synth.bfb_cost import Arcs, arcs_of
from collsyn.synth.problem import Problem
from collsyn.synth.timing import in_order

CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def broadcast(problem: Problem) -> Schedule:
    """The broadcast with the chunks that pay; raises Infeasible where a rank cannot be reached.

    A rank at distance t from the root gets every chunk over one of its links from ranks at distance t - 1, each link a
    part in proportion to its bandwidth; the steps of one chunk are as many as the root's farthest rank is away.
    """
    arcs, n = arcs_of(problem.topology), problem.topology.num_ranks
    (root,) = problem.roots()
    into = list(_into(problem, arcs, root))
    most = max(1, problem.size_bytes // max(problem.topology.min_piece_bytes, 1))
    ladder = [chunks for chunks in affordable(CHUNKS, max(n - 1, 1)) if chunks <= most]
    return quickest(problem, ladder, lambda asked: _build(asked, arcs, into))


def _into(problem: Problem, arcs: Arcs, root: int) -> Iterator[tuple[int, I64]]:
    """(distance from the root, arcs that bring its data) of every other rank."""
    from collsyn.synth import bfb_kernels as kernels

    # Distances from the root are distances to it with all arcs turned round.
    order = np.argsort(arcs.src, kind="stable")
    ptr = np.concatenate([[0], np.cumsum(np.bincount(arcs.src, minlength=arcs.num_ranks))]).astype(np.int64)
    hops = kernels.distances_to(ptr, arcs.dst[order], np.array([root]))[0]
    if hops.min() < 0:
        rank = int(hops.argmin())
        raise Infeasible(f"topology {problem.topology.name}: no way leads from rank {root} to rank {rank}")
    for rank in range(arcs.num_ranks):
        entering = np.arange(arcs.ptr[rank], arcs.ptr[rank + 1])
        if rank != root:
            yield int(hops[rank]), entering[hops[arcs.src[entering]] == hops[rank] - 1]


def _build(problem: Problem, arcs: Arcs, into: list[tuple[int, I64]]) -> Schedule:
    """The schedule with the problem's chunks: of what a rank waits for, early chunks go first."""
    collective = problem.collective()
    num_chunks, t = collective.num_chunks, problem.topology
    chosen = [brought[_turns(arcs.capacity[brought], num_chunks)] for _, brought in into]
    arc = np.concatenate([np.zeros(0, dtype=np.int64), *chosen])
    chunk = np.tile(np.arange(num_chunks), len(into))
    step = np.repeat([distance for distance, _ in into], num_chunks)
    order = np.lexsort((chunk, chunk + step))
    routes = Rows(np.arange(t.num_links + 1), np.arange(t.num_links))
    columns = {"chunk": chunk, "src": arcs.src[arc], "dst": arcs.dst[arc], "route": arcs.link[arc]}
    return in_order(
        collective, t, problem.size_bytes, routes, {name: values[order] for name, values in columns.items()}
    )


def _turns(capacity: I64, num_chunks: int) -> I64:
    """Which of several links takes each chunk, so that they carry parts in proportion to capacity all the time."""
    turn = np.arange(1, num_chunks + 1)
    when = (turn[None, :] / capacity[:, None]).reshape(-1)
    first = np.argsort(when, kind="stable")[:num_chunks]
    return np.asarray(first // num_chunks, dtype=np.int64)
