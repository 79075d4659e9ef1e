"""Pieces that each go to one rank (alltoall, scatter, ...) along shortest ways, their loads balanced step by step."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from collsyn.errors import SolverFailed
from collsyn.model.arrays import F64, I64, Rows
from collsyn.model.collective import Collective
from collsyn.model.schedule import Schedule
from collsyn.solver import ArrayModel, Status, solve
from collsyn.synth.baseline import MAX_ROWS
from collsyn.synth.bfb_timed import Ground
from collsyn.synth.problem import Problem
from collsyn.synth.timing import in_order

# Ranks, and variables of the linear program, up to which pieces are balanced.
MAX_RANKS, MAX_VARIABLES = 256, 60_000
# Chunks of a piece that are tried, and passes over all of them that look for better ways.
CHUNKS, PASSES = (1, 2, 3, 4, 6, 8), 8


@dataclass(frozen=True, eq=False)
class Pieces:
    """Piece i goes from the source of number `source[i]` to rank `target[i]`; `amount` adds up to 1 for the longest."""

    source: I64
    target: I64
    amount: F64


def too_many(problem: Problem) -> str | None:
    """Why there are too many pieces to balance, or None."""
    n = problem.topology.num_ranks
    if n > MAX_RANKS:
        return f"balances what goes to one rank each on at most {MAX_RANKS} ranks"
    if problem.kind == "scatter" or problem.topology.symmetries or n * problem.topology.num_links <= MAX_VARIABLES:
        return None
    return f"balances at most {MAX_VARIABLES} sources x links without symmetries"


def pieces_to_one(problem: Problem) -> Schedule:
    """The schedule with the chunks that pay; raises Infeasible where a rank cannot be reached."""
    return min(_schedules(problem), key=lambda schedule: schedule.finish_s)


def _schedules(problem: Problem) -> Iterator[Schedule]:
    ground = _ground(problem)
    pieces = _pieces(problem.collective(1), ground)
    flow = _balanced(ground, pieces)
    images = len(ground.group)
    rows = int(ground.hops_from[pieces.source, pieces.target].sum()) * images
    asked = problem.chunks_per_rank
    for chunks in CHUNKS if asked is None else (asked,):
        if chunks > 1 and asked is None and chunks * rows > MAX_ROWS // 2:
            return
        path = _whole(ground, pieces, flow, chunks)
        for whole in (True, False):
            yield _timed(problem, ground, pieces, path, chunks, whole)


def _ground(problem: Problem) -> Ground:
    """The machine, with its symmetries where all pairs have equal pieces."""
    alike = problem.kind == "alltoall" and problem.groups is None
    topology = problem.topology if alike else replace(problem.topology, symmetries=())
    return Ground(topology, None if alike else np.unique(_ends(problem.collective(1))[0]))


def _ends(collective: Collective) -> tuple[I64, I64]:
    """Source and target of every chunk."""
    first = collective.sets.data[np.minimum(collective.sets.ptr[:-1], len(collective.sets.data) - 1)]
    return first[collective.pre].astype(np.int64), first[collective.post].astype(np.int64)


def _pieces(collective: Collective, ground: Ground) -> Pieces:
    """What the first rank of every orbit sends."""
    source, target = _ends(collective)
    chosen = np.flatnonzero((source != target) & np.isin(source, ground.sources))
    units = collective.units[chosen]
    return Pieces(
        np.searchsorted(ground.sources, source[chosen]), target[chosen], units / max(int(units.max(initial=1)), 1)
    )


def _balanced(ground: Ground, pieces: Pieces) -> F64:
    """How much of every source goes over every arc (shape [sources, arcs]), along shortest ways.

    The linear program: flows as above; the busiest link of every step, and of all steps together, adds up to the least.
    """
    from scipy.sparse import coo_array, vstack

    arcs, hops = ground.arcs, ground.hops_from
    n, orbits, steps = ground.topology.num_ranks, len(ground.weight), int(hops.max())
    source, arc = np.nonzero(hops[:, arcs.src] + 1 == hops[:, arcs.dst])
    flow = np.zeros((len(hops), len(arcs.src)))
    if not len(pieces.source):
        return flow
    number = np.arange(len(source))
    step, orbit = hops[source, arcs.dst[arc]] - 1, ground.orbit[arc]
    demand = np.zeros((len(hops), n))
    np.add.at(demand, (pieces.source, pieces.target), pieces.amount)
    enters, leaves = source * n + arcs.dst[arc], source * n + arcs.src[arc]
    kept = np.flatnonzero((np.arange(n)[None, :] != ground.sources[:, None]).reshape(-1))
    conserved = coo_array(
        (np.repeat([1.0, -1.0], len(source)), (np.concatenate([enters, leaves]), np.tile(number, 2))),
        shape=(len(hops) * n, len(source) + steps + 1),
    ).tocsr()[kept]
    tops = len(source) + np.arange(steps + 1)
    loads = coo_array(
        (
            np.concatenate([np.tile(ground.weight[orbit], 2), np.full((steps + 1) * orbits, -1.0)]),
            (
                np.concatenate([step * orbits + orbit, steps * orbits + orbit, np.arange((steps + 1) * orbits)]),
                np.concatenate([number, number, np.repeat(tops, orbits)]),
            ),
        ),
        shape=((steps + 1) * orbits, len(source) + steps + 1),
    ).tocsr()
    cost = np.zeros(len(source) + steps + 1)
    cost[tops] = 1.0
    need = demand.reshape(-1)[kept]
    model = ArrayModel(
        name="bfb-paths",
        matrix=vstack([loads, conserved], format="csc"),
        row_low=np.concatenate([np.full(loads.shape[0], -np.inf), need]),
        row_high=np.concatenate([np.zeros(loads.shape[0]), need]),
        low=np.zeros(len(cost)),
        high=np.full(len(cost), np.inf),
        cost=cost,
    )
    answer = solve(model)
    if answer.status is not Status.OPTIMAL or answer.values is None:
        raise SolverFailed("bfb: the linear program over shortest ways was not solved")
    flow[source, arc] = answer.values[: len(source)]
    return flow


def _whole(ground: Ground, pieces: Pieces, flow: F64, chunks: int) -> I64:
    """The arcs of every chunk of every piece: rows of arcs by step, -1 after the last."""
    from collsyn.synth import bfb_paths_kernels as kernels

    arcs, hops = ground.arcs, ground.hops_from
    source, target = np.repeat(pieces.source, chunks), np.repeat(pieces.target, chunks)
    amount = np.repeat(pieces.amount / chunks, chunks)
    path = np.full((len(source), int(hops.max(initial=0))), -1, dtype=np.int64)
    if not len(source):
        return path
    kernels.along_flow(arcs.ptr, arcs.src, hops, source, target, amount, flow.copy(), path)
    order = np.argsort(hops, axis=1, kind="stable")
    kernels.improve(arcs.ptr, arcs.src, hops, order, source, target, amount, ground.orbit, ground.weight, path, PASSES)
    return path


def _timed(problem: Problem, ground: Ground, pieces: Pieces, path: I64, chunks: int, whole: bool) -> Schedule:
    """Each message as soon as it can go: what a link carries in one step, or single chunks, far ones first."""
    t, group, n = problem.topology, ground.group, problem.topology.num_ranks
    collective = problem.collective(chunks)
    start, end = _ends(collective)
    first = np.full(n * n, -1, dtype=np.int64)
    first[(start * n + end)[::-1]] = np.arange(collective.num_chunks)[::-1]
    piece, step = np.nonzero(path >= 0)
    link, inside = ground.arcs.link[path[piece, step]], piece % chunks
    root, target = ground.sources[pieces.source[piece // chunks]], pieces.target[piece // chunks]
    vertices, links = group.vertices, group.links
    chunk = (first[vertices[:, root] * n + vertices[:, target]] + inside).reshape(-1)
    route, step = links[:, link].reshape(-1), np.tile(step, len(group))
    left = np.tile((path >= 0).sum(axis=1)[piece], len(group)) - step
    order = np.lexsort((chunk, route, step)) if whole else np.lexsort((chunk, -left, step))
    columns = {"chunk": chunk, "src": t.src[route], "dst": t.dst[route], "route": route}
    if whole:
        columns["batch"] = np.unique(step * t.num_links + route, return_inverse=True)[1]
    named = {name: values[order] for name, values in columns.items()}
    routes = Rows(np.arange(t.num_links + 1), np.arange(t.num_links))
    return in_order(collective, t, problem.size_bytes, routes, named)
