"""Timed trees: which rank is reached over which link in which step, and how much of the data takes which tree."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from collsyn.errors import SolverFailed
from collsyn.model.arrays import F64, I64
from collsyn.model.topology import Topology
from collsyn.solver import model_status, new_highs
from collsyn.synth import bfb_repair_kernels as kernels
from collsyn.synth.bfb_cost import Arcs, arcs_of, entering
from collsyn.synth.trees_symmetry import Moves, moves

# Rounds of prices for one number of steps, rounds in vain after which no better mix is expected, and moves of one
# annealing for every rank and step.
ROUNDS, PATIENCE, MOVES = 80, 6, 40
# Steps beyond the diameter that are tried, and moves of all annealings after which no better mix is looked for.
MORE_STEPS, WORK = 4, 10_000_000
# Where the program is this close to the least factor there is, more steps are not worth a try.
TIGHT = 1e-4
# Trees that are made from disturbed prices in the end; what is free costs this part of the mean price.
VARIANTS, VARIANT_MOVES, NEARBY = 800, 10, 0.1


@dataclass(frozen=True, eq=False)
class Tree:
    """From the root, rank r is reached over arc `arc[r]` in step `when[r]` (the root: -1, 0).

    `load` is what it puts on every link of an orbit in every step (shape [steps, orbits]), if all its images carry all
    data of their roots: shards over units of capacity.
    """

    source: int
    when: I64
    arc: I64
    load: F64


@dataclass(frozen=True, eq=False)
class Mix:
    """Trees, the part of their root's data that each carries, and how long the steps take together.

    `load` counts shards over units of capacity, `known` are all trees that were made, those with parts first.
    """

    steps: int
    trees: list[Tree]
    parts: F64
    load: float
    known: list[Tree]


@dataclass(frozen=True, eq=False)
class Ground:
    """A machine without switches, with a group of symmetries that moves every rank (`trees_symmetry.py`).

    `senders` are the ranks that have something to send (None: all).
    """

    topology: Topology
    senders: I64 | None = None

    @cached_property
    def arcs(self) -> Arcs:
        """Its links."""
        return arcs_of(self.topology)

    @cached_property
    def group(self) -> Moves:
        """The group; that of the identity alone where there is none."""
        return moves(self.topology, lambda _: True)

    @cached_property
    def sources(self) -> I64:
        """The first rank of every orbit that sends."""
        return np.unique(self.group.first) if self.senders is None else self.senders

    @cached_property
    def orbit(self) -> I64:
        """The orbit of every arc."""
        return self.group.orbit[self.arcs.link]

    @cached_property
    def weight(self) -> F64:
        """What one use of any link of an orbit by one tree loads each of them with."""
        capacity = np.zeros(len(self.group.orbit_size))
        capacity[self.orbit] = self.arcs.capacity
        return np.asarray(len(self.group) / (self.group.orbit_size * capacity))

    @cached_property
    def hops_from(self) -> I64:
        """Hops from each source to every rank (shape [sources, ranks]); raises Infeasible."""
        found = np.zeros((len(self.sources), self.topology.num_ranks), dtype=np.int64)
        for rank, to_rank, _, _ in entering(self.arcs, np.arange(self.topology.num_ranks)):
            found[:, rank] = to_rank[self.sources]
        return found

    @cached_property
    def outgoing(self) -> tuple[I64, npt.NDArray[np.int32]]:
        """Where the arcs out of every rank begin, and where they lead."""
        order = np.argsort(self.arcs.src, kind="stable")
        ends = np.cumsum(np.bincount(self.arcs.src, minlength=self.topology.num_ranks))
        return np.concatenate([[0], ends]).astype(np.int64), self.arcs.dst[order]


def mixes(
    ground: Ground,
    least: float,
    pays: Callable[[int, float], bool],
    seed: int,
    late: Callable[[], bool],
    work: float = WORK,
) -> Iterator[Mix]:
    """The best mix that is found for as many steps as the diameter, for one more, and so on.

    Ends where the steps together are as short as `least`, after MORE_STEPS or `work` moves, or once it is late. Those
    for which `pays(steps, load)` get more trees to choose whole chunks from.
    """
    first, random = int(ground.hops_from.max()), np.random.default_rng(seed)
    known: list[Tree] = []
    for steps in range(first, first + MORE_STEPS + 1):
        search = _Search(ground, steps, random, known, work)
        mix = search.solve(least, pays, late)
        yield mix
        work = search.work
        if mix.load <= least * (1 + TIGHT) or work <= 0 or late():
            return
        known = [_later(ground, tree, steps + 1) for tree in mix.trees]


def _later(ground: Ground, tree: Tree, steps: int) -> Tree:
    """The same tree among more steps."""
    load = np.zeros((steps, tree.load.shape[1]))
    load[: len(tree.load)] = tree.load
    return Tree(tree.source, tree.when, tree.arc, load)


class _Search:
    """Column generation for one number of steps."""

    def __init__(self, ground: Ground, steps: int, random: np.random.Generator, known: list[Tree], work: float) -> None:
        self.ground, self.steps, self.random, self.work = ground, steps, random, work
        self.state = random.integers(1, 1 << 62, 1, dtype=np.uint64)
        self.trees: list[Tree] = []
        self._seen: set[bytes] = set()
        self.solver = new_highs(f"bfb-repaired-{steps}-steps")
        infinity, nothing = self.solver.getInfinity(), (np.zeros(0, np.int32), np.zeros(0))
        for _ in ground.sources:
            self.solver.addRow(1.0, 1.0, 0, *nothing)
        orbits = len(ground.weight)
        for _ in range(steps * orbits):
            self.solver.addRow(-infinity, 0.0, 0, *nothing)
        for step in range(steps):
            rows = (len(ground.sources) + step * orbits + np.arange(orbits)).astype(np.int32)
            self.solver.addCol(1.0, 0.0, infinity, orbits, rows, -np.ones(orbits))
        for tree in known:
            self._add(tree)
        for source in range(len(ground.sources)):
            self.add(source, ground.hops_from[source].copy(), np.ones((len(ground.arcs.src), steps)))

    def add(self, source: int, when: I64, price: F64) -> None:
        """Put in the tree that reaches ranks in those steps over the cheapest arcs."""
        ground, root = self.ground, int(self.ground.sources[source])
        arc = kernels.arcs_of_tree(root, ground.arcs.ptr, ground.arcs.src, price, when)
        load = np.zeros((self.steps, len(ground.weight)))
        used = arc[arc >= 0]
        np.add.at(load, (when[arc >= 0] - 1, ground.orbit[used]), ground.weight[ground.orbit[used]])
        self._add(Tree(source, when, arc, load))

    def _add(self, tree: Tree) -> None:
        key = tree.source.to_bytes(4, "little") + tree.when.tobytes() + tree.arc.tobytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.trees.append(tree)
        load = tree.load.reshape(-1)
        used = np.flatnonzero(load)
        rows = np.concatenate([[tree.source], len(self.ground.sources) + used]).astype(np.int32)
        values = np.concatenate([[1.0], load[used]])
        self.solver.addCol(0.0, 0.0, self.solver.getInfinity(), len(rows), rows, values)

    def solve(self, least: float, pays: Callable[[int, float], bool], late: Callable[[], bool]) -> Mix:
        """Add trees that cost less than their source's data is worth, until there are none or nothing is gained."""
        best, in_vain = np.inf, 0
        for _ in range(ROUNDS):
            total, price, worth, parts = self._solution()
            in_vain = 0 if total < best * (1 - 1e-4) else in_vain + 1
            best = min(best, total)
            if total <= least * (1 + TIGHT) or in_vain > PATIENCE or self.work <= 0 or late():
                break
            if not self._price(price, worth, parts):
                break
        if pays(self.steps, total):
            self._vary(price)
        used = np.flatnonzero(parts > 1e-9)
        trees, others = [self.trees[i] for i in used], np.delete(np.arange(len(self.trees)), used)
        return Mix(self.steps, trees, parts[used], total, [*trees, *(self.trees[i] for i in others[::-1])])

    def _solution(self) -> tuple[float, F64, F64, F64]:
        self.solver.run()
        if model_status(self.solver) != "Optimal":
            raise SolverFailed("bfb-repaired: the linear program over trees was not solved")
        solution, sources = self.solver.getSolution(), len(self.ground.sources)
        dual, value = np.array(solution.row_dual), np.array(solution.col_value)
        price = np.maximum(-dual[sources:], 0.0).reshape(self.steps, -1)
        return float(value[: self.steps].sum()), price, dual[:sources], np.maximum(value[self.steps :], 0.0)

    def _price(self, orbit_price: F64, worth: F64, parts: F64) -> int:
        """Look for cheap trees from every source; returns how many came in."""
        ground, before = self.ground, len(self.trees)
        price = np.ascontiguousarray((orbit_price * ground.weight)[:, ground.orbit].T)
        starts: list[list[I64]] = [[hops] for hops in ground.hops_from]
        for i in np.argsort(-parts, kind="stable")[: np.count_nonzero(parts > 1e-9)].tolist():
            starts[self.trees[i].source].append(self.trees[i].when)
        for source, whens in enumerate(starts):
            for when in (whens[0], whens[int(self.random.integers(len(whens)))]):
                cost, found = self._cheaper(source, when, price)
                if cost < worth[source] * (1 - 1e-7):
                    self.add(source, found, price)
        return len(self.trees) - before

    def _vary(self, orbit_price: F64) -> None:
        """Add trees that are cheap at disturbed prices: whole chunks need more to choose from than parts do."""
        ground = self.ground
        usual = np.ascontiguousarray((orbit_price * ground.weight)[:, ground.orbit].T)
        usual += NEARBY * usual.mean()
        for source, hops in enumerate(ground.hops_from):
            for _ in range(VARIANTS // len(ground.hops_from)):
                price = usual * self.random.exponential(1.0, usual.shape)
                self.add(source, self._cheaper(source, hops, price, VARIANT_MOVES)[1], price)

    def _cheaper(self, source: int, when: I64, price: F64, effort: int = MOVES) -> tuple[float, I64]:
        """A cheap tree from a source, from that start: its cost, and when it reaches whom."""
        ground, found = self.ground, when.copy()
        moves = effort * self.steps * len(when)
        self.work -= moves
        arcs, root = ground.arcs, int(ground.sources[source])
        cost = kernels.anneal(root, arcs.ptr, arcs.src, *ground.outgoing, price, found, moves, self.state)
        return float(cost), found
