"""Bine trees and butterflies: binomial trees whose distances are sums of powers of -2, on any numbering of ranks."""

from collections.abc import Sequence
from functools import partial

from collsyn.model.schedule import Schedule
from collsyn.synth.baseline import Baseline, affordable, from_rounds, quickest, without_hop
from collsyn.synth.problem import Problem
from collsyn.synth.shortcuts import Grid, Port, spread
from collsyn.synth.swing import gathered, torus_of


class Bine(Baseline):
    """Broadcast and scatter along a tree, allgather along a butterfly, reductions by reversal.

    Partners are at distances 1, 1, 3, 5, 11, ... (De Sensi et al., SC 2025), a third less far than those of a binomial
    tree, which keeps traffic among ranks that stand close: along each dimension of a torus, or in the order of the
    ranks elsewhere. A broadcast is a tree, or a scatter and an allgather, whichever ends first. With a power of two of
    N ranks log2 N rounds each; other even numbers take one more round than the power below.
    """

    name = "bine"
    builds = frozenset({"allgather", "broadcast", "scatter"})
    phases = ("reducescatter", "allgather")

    def obstacle(self, problem: Problem) -> str | None:
        """Needs even sizes, and hops between partners where the ranks are no torus."""
        for grid in map(partial(_grid, problem), problem.members):
            odd = next((size for size in grid.sizes if size % 2), None)
            if odd is not None:
                along = "along every dimension of the torus" if grid.stepwise else "in every process group"
                return f"needs an even number of ranks {along}, not {odd}"
            reason = _without_hop(problem, grid)
            if reason is not None:
                return reason
        return None

    def build(self, problem: Problem) -> Schedule:
        """The quickest of some chunk counts and, for a broadcast, forms."""
        grids = [_grid(problem, group) for group in problem.members]
        n = max(map(len, problem.members))
        if problem.kind == "allgather":
            rows = sum(len(group) ** 2 for group in problem.members)
            one_port = partial(gathered, grids=grids, ports=_one_port)
            return quickest(problem, affordable((1, 2, 4, 8), rows), one_port)
        if problem.kind == "scatter":
            return quickest(problem, (1,), partial(_scattered, grids=grids))
        found = []
        for ports in sorted({1, len(grids[0].ports())}):
            ladder = affordable([ports, 2 * ports, 4 * ports, 8 * ports, 16 * ports], n)
            found.append(quickest(problem, ladder, partial(_broadcast, grids=grids, ports=ports, shards=1)))
            ladder = affordable([n * ports, 2 * n * ports, 4 * n * ports], n)
            found.append(quickest(problem, ladder, partial(_broadcast, grids=grids, ports=ports, shards=n)))
        return min(found, key=lambda schedule: schedule.finish_s)


def _grid(problem: Problem, group: tuple[int, ...]) -> Grid:
    """The torus of a group; else its ranks in their order, or with every second box reversed if that lacks no hop.

    Partners are an odd number of places apart: where cards of even and of odd ranks are on switches of their own,
    reversed boxes bring equal kinds together.
    """
    torus = torus_of(problem, group)
    if torus is not None:
        return torus
    boxes = problem.topology.boxes
    box_of = {vertex: number for number, box in enumerate(boxes) for vertex in box}
    parts = [[rank for rank in group if box_of.get(rank, -1) == number] for number in range(-1, len(boxes))]
    snake = [rank for number, part in enumerate(filter(None, parts)) for rank in (part[::-1] if number % 2 else part)]
    sizes = (len(group),) if len(group) > 1 else ()
    grids = [Grid(order, sizes, stepwise=False) for order in (group, tuple(snake))]
    return next((grid for grid in grids if _without_hop(problem, grid) is None), grids[0])


def _without_hop(problem: Problem, grid: Grid) -> str | None:
    if grid.stepwise:
        return None
    pairs = [(way[0], way[-1]) for ways in grid.partners(Port(0, False)) for way in ways]
    return without_hop(problem.topology, pairs)


def _one_port(grid: Grid) -> list[Port]:
    return grid.ports()[:1]


def _scattered(problem: Problem, grids: Sequence[Grid]) -> Schedule:
    """The nearest partner first, which is sent half of all; chunks that a rank and those behind it do not want stay."""
    collective, sequences = problem.collective(), []
    for grid, root in zip(grids, problem.roots(), strict=True):
        chunks = _held(problem, root)
        wanted = {c: frozenset(collective.receivers(c).tolist()) for c in chunks}
        sequences.append(spread(grid.partners(Port(0, False)), {root: chunks}, wanted)[0])
    return from_rounds(problem, collective, sequences)


def _broadcast(problem: Problem, grids: Sequence[Grid], ports: int, shards: int) -> Schedule:
    """Along a tree, the furthest partner first; with several `shards` they are scattered and gathered by all."""
    collective, sequences = problem.collective(), []
    for grid, root in zip(grids, problem.roots(), strict=True):
        chunks, everyone = _held(problem, root), frozenset(grid.members)
        for number, port in enumerate(grid.ports()[:ports]):
            mine = [c for i, c in enumerate(chunks) if i // shards % ports == number]
            lanes = max(1, len(mine) // shards)
            wanted, far_first = dict.fromkeys(mine, everyone), list(grid.partners(port))[::-1]
            if shards == 1:
                sequences.append(spread(far_first, {root: mine}, wanted, lanes)[0])
                continue
            n = len(grid.members)
            shard = {rank: mine[i::n] for i, rank in enumerate(grid.members)}
            owner = {c: (rank,) for rank, own in shard.items() for c in own}
            scattered, after = spread(grid.partners(port), {root: mine}, owner, lanes)
            sequences.append(scattered + spread(far_first, shard, wanted, lanes, spared=after)[0])
    return from_rounds(problem, collective, sequences)


def _held(problem: Problem, root: int) -> list[int]:
    """The chunks that a root begins with, ascending."""
    held: list[int] = problem.collective().held_by(root).tolist()
    return held


BINE = Bine()
