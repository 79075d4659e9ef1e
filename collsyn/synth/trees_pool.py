"""Which trees, and how much of each: a linear program over trees that are made when prices of links ask for them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice

import numpy as np

from collsyn.errors import Infeasible, SolverFailed
from collsyn.model.arrays import F64, I32, I64, Rows
from collsyn.model.topology import Topology
from collsyn.solver import model_status, new_highs
from collsyn.synth import trees_kernels as kernels
from collsyn.synth.trees_model import Trees
from collsyn.synth.trees_partners import Partners, partners
from collsyn.synth.trees_symmetry import Moves

# Congestion this close to the least there is counts as least.
TIGHT = 1e-7
# Rounds of prices without a gain after which no better mix of trees is expected.
PATIENCE = 12
# Entries of cost matrices that are looked at in one search, about.
WORK = 1 << 28
# What a solution of the program counts as, for every entry of its matrix.
_PER_ENTRY = 10
# Starts with disturbed prices, and moves that are tried in an annealing.
NOISY, ANNEALING = 2, 20_000
# Ways of giving ranks partners that are looked at.
MOST_PARTNERS = 2
# Makes ways that cost nothing short, too.
_NEARBY = 1e-6


@dataclass(frozen=True)
class Demand:
    """Data that one root gives to all `members` (itself among them); `share` is its part of the size."""

    root: int
    share: Fraction
    members: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Tree:
    """A tree from the first rank of one orbit: parents by place in `members`, and the links of every hop.

    `hops` are (parent, child) places; `ptr` and `links` list the links of the way of each. `load[o]` is what it puts on
    every link of an orbit, if all its images are used for all data of all roots: in parts of the size.
    """

    number: int
    parent: I32
    hops: I64
    ptr: I64
    links: I64
    load: F64
    height: int


@dataclass(frozen=True, eq=False)
class Mix:
    """Trees and the part of their root's data that each carries (the parts of a root add up to 1).

    `congestion` is the time they take over the least time; `limit` the height that they were allowed.
    """

    trees: list[Tree]
    parts: F64
    congestion: float

    @property
    def height(self) -> int:
        """Hops of the deepest tree."""
        return max(tree.height for tree in self.trees)


@dataclass(eq=False)
class Pool:
    """Trees for some demands, one demand for each orbit of `moves`.

    `algbw_gb_s` is the rate that no trees exceed; congestion is measured against it. Across switches trees keep to
    `partners`, if given.
    """

    topology: Topology
    demands: Sequence[Demand]
    moves: Moves
    algbw_gb_s: Fraction
    trees: list[Tree] = field(default_factory=list)
    partners: Partners | None = None

    def __post_init__(self) -> None:
        t = self.topology
        self.members = [np.array(demand.members, dtype=np.int64) for demand in self.demands]
        self.roots = [demand.members.index(demand.root) for demand in self.demands]
        # Bytes that a link can carry in the least time, in parts of the size.
        room = t.bandwidth / (max(float(self.algbw_gb_s), 1e-12) * 1e9)
        self.room = np.zeros(len(self.moves.orbit_size))
        self.room[self.moves.orbit] = room
        self._cost = np.empty((t.num_ranks, t.num_vertices))
        self._last = np.empty((t.num_ranks, t.num_vertices), dtype=np.int32)
        self._known: set[bytes] = set()
        self.near = _NEARBY / room

    def price(self, orbit_price: F64) -> None:
        """Set the cost of every hop from prices of orbits of links."""
        t, moves = self.topology, self.moves
        price = (orbit_price / moves.orbit_size)[moves.orbit] * len(moves) + self.near
        shown = price if self.partners is None else self.partners.price_off(price)
        kernels.hop_costs(t.num_ranks, t.out_links.ptr, t.out_links.data, t.dst, shown, self._cost, self._last)
        if self.partners is not None:
            self.partners.admit(price, self._cost, self._last)

    def partnerships(self) -> list[Partners]:
        """Ways of giving every rank one partner across a switch."""
        self.price(np.zeros(len(self.moves.orbit_size)))
        return list(islice(partners(self.topology, self.moves, self._last), MOST_PARTNERS))

    def costs(self, number: int) -> F64:
        """Cost of every hop between the members of a demand, at the prices that were set."""
        members = self.members[number]
        if np.array_equal(members, np.arange(self.topology.num_ranks)):
            return self._cost[:, : len(members)]
        return np.ascontiguousarray(self._cost[np.ix_(members, members)])

    def add(self, number: int, parent: I32) -> Tree | None:
        """The tree with those parents and the ways that are cheapest now; None where it is in the pool already."""
        members, t = self.members[number], self.topology
        uses = np.zeros(t.num_links, dtype=np.int64)
        kernels.add_uses(parent, members, self._last, t.src, uses)
        key = bytes([number % 251]) + parent.tobytes() + uses.tobytes()
        if key in self._known:
            return None
        self._known.add(key)
        used = np.zeros(len(self.moves.orbit_size))
        np.add.at(used, self.moves.orbit, uses)
        load = used * (len(self.moves) * float(self.demands[number].share)) / self.moves.orbit_size
        depth, height = np.empty(len(parent), np.int64), np.empty(len(parent), np.int64)
        kernels.measure(parent, depth, height)
        order = np.argsort(depth, kind="stable")[1:]
        hops = np.stack([parent[order].astype(np.int64), order.astype(np.int64)], axis=1)
        ways = [self._way(int(members[u]), int(members[v])) for u, v in hops.tolist()]
        ptr = np.cumsum([0, *map(len, ways)])
        links = np.array([link for way in ways for link in way], dtype=np.int64)
        tree = Tree(number, parent, hops, ptr.astype(np.int64), links, load, int(depth.max()))
        self.trees.append(tree)
        return tree

    def _way(self, source: int, target: int) -> list[int]:
        way: list[int] = []
        at = target
        while at != source:
            way.append(int(self._last[source, at]))
            at = int(self.topology.src[way[-1]])
        return way[::-1]

    def unfolded(self, trees: Sequence[Tree], counts: I64, k: int) -> Trees:
        """The trees of all roots, from those of the first of every orbit and how many of k parts each carries."""
        moves, members = self.moves, self.members
        images = range(len(moves))
        hops = [moves.vertices[:, members[tree.number][tree.hops]] for tree in trees]
        starts = [self.demands[tree.number].root for tree in trees]
        ptr = np.cumsum([0, *(len(tree.hops) for tree in trees for _ in images)])
        ways = [tree.ptr[1:] - tree.ptr[:-1] for tree in trees for _ in images]
        share = {int(moves.vertices[g, demand.root]): demand.share for demand in self.demands for g in images}
        empty = np.zeros(0, dtype=np.int64)
        return Trees(
            self.topology,
            share,
            k,
            np.array([int(moves.vertices[g, start]) for start in starts for g in images], dtype=np.int32),
            np.repeat(counts, len(moves)),
            ptr.astype(np.int64),
            np.concatenate([empty, *(ends[:, :, 0].reshape(-1) for ends in hops)]).astype(np.int32),
            np.concatenate([empty, *(ends[:, :, 1].reshape(-1) for ends in hops)]).astype(np.int32),
            Rows(
                np.concatenate([[0], np.cumsum(np.concatenate([empty, *ways]))]),
                np.concatenate([empty, *(moves.links[:, tree.links].reshape(-1) for tree in trees)]),
            ),
        )

    def start(self) -> int:
        """Add a breadth-first tree for every demand; returns the least height that serves all. Raises Infeasible."""
        self.price(np.zeros(len(self.moves.orbit_size)))
        height = 0
        for number, demand in enumerate(self.demands):
            parent = kernels.nearest_tree(self.costs(number), self.roots[number])
            lost = np.flatnonzero(parent < 0)
            lost = lost[lost != self.roots[number]]
            if len(lost):
                target = demand.members[int(lost[0])]
                raise Infeasible(f"rank {demand.root} cannot reach rank {target} through members of its group")
            added = self.add(number, parent)
            height = max(height, added.height if added else 0)
        return height


class Program:
    """The linear program over a pool: parts of every demand's data, so that the congestion is least."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.columns = pool, 0
        self.solver = new_highs("trees")
        infinity = self.solver.getInfinity()
        for _ in pool.demands:
            self.solver.addRow(1.0, 1.0, 0, np.zeros(0, np.int32), np.zeros(0))
        for _ in pool.room:
            self.solver.addRow(-infinity, 0.0, 0, np.zeros(0, np.int32), np.zeros(0))
        rows = np.arange(len(pool.room), dtype=np.int32) + len(pool.demands)
        self.solver.addCol(1.0, 0.0, infinity, len(rows), rows, -pool.room)

    def keep(self, tree: int, part: float) -> None:
        """From now on at least that part of its data goes down a tree."""
        self.solver.changeColBounds(tree + 1, part, self.solver.getInfinity())

    def limit(self, tree: int, part: float) -> None:
        """From now on at most that part (infinity: any) of its data goes down a tree that has been in a solution."""
        self.solver.changeColBounds(tree + 1, 0.0, min(part, self.solver.getInfinity()))

    def solve(self) -> tuple[float, F64, F64, F64]:
        """(congestion, price of every orbit, worth of every demand, part of every tree) with the trees of now."""
        pool, first = self.pool, len(self.pool.demands)
        for tree in pool.trees[self.columns :]:
            orbits = np.flatnonzero(tree.load)
            rows = np.concatenate([[tree.number], first + orbits]).astype(np.int32)
            values = np.concatenate([[1.0], tree.load[orbits]])
            self.solver.addCol(0.0, 0.0, self.solver.getInfinity(), len(rows), rows, values)
        self.columns = len(pool.trees)
        self.solver.run()
        if model_status(self.solver) != "Optimal":
            raise SolverFailed("trees: the linear program over trees was not solved")
        solution = self.solver.getSolution()
        dual, value = np.array(solution.row_dual), np.array(solution.col_value)
        return float(value[0]), np.maximum(-dual[first:], 0.0), dual[:first], np.maximum(value[1:], 0.0)


def mixes(search: "Pricing", limit: int | None = None) -> list[Mix]:
    """Mixes of ever higher trees, each with less congestion than those before; the last is the best that was found.

    For every height, from the least, trees are added that the prices of links show to be worth their load (column
    generation), until the congestion is least or none is found; `limit` is the greatest height. Ends early when the
    search is over.
    """
    pool = search.pool
    height = pool.start()
    longest = max(len(members) for members in pool.members) - 1
    most = longest if limit is None else max(min(limit, longest), height)
    program, found = Program(pool), [Mix([], np.zeros(0), np.inf)]
    while True:
        mix = best_mix(search, program, height, height >= longest)
        if mix.congestion < found[-1].congestion * (1 - 1e-4):
            found.append(mix)
        if mix.congestion <= 1 + TIGHT or height >= most or search.is_over:
            return found[1:]
        height = min(most, height + max(1, height // 3))


def best_mix(search: "Pricing", program: Program, height: int, free: bool, patience: int = PATIENCE) -> Mix:
    """The best mix of trees of that height (any, if `free`), after so many rounds without a gain."""
    trees = search.pool.trees
    in_vain, least = 0, np.inf
    while True:
        congestion, price, worth, parts = program.solve()
        search.work += _PER_ENTRY * len(price) * len(trees)
        in_vain = 0 if congestion < least * (1 - 1e-5) else in_vain + 1
        least = min(least, congestion)
        used = np.flatnonzero(parts > 1e-9)
        done = congestion <= 1 + TIGHT or in_vain > patience or search.is_over
        if done or not search.add_worthwhile(price, worth, [trees[i] for i in used], height, free):
            return Mix([trees[i] for i in used], parts[used], congestion)


class Pricing:
    """Looks for trees that cost less than their demand is worth; is over after WORK, or once `late` says so."""

    def __init__(self, pool: Pool, seed: int, late: Callable[[], bool]) -> None:
        self.pool, self.late, self.work = pool, late, 0
        self.random = np.random.default_rng(seed)
        self.state = self.random.integers(1, 1 << 62, 1, dtype=np.uint64)

    @property
    def is_over(self) -> bool:
        """Whether the work or the time is used up."""
        return self.work > WORK or self.late()

    def add_worthwhile(self, price: F64, worth: F64, used: Sequence[Tree], height: int, free: bool) -> int:
        """Add such trees to the pool; returns how many."""
        pool, added = self.pool, 0
        pool.price(price)
        for number, demand in enumerate(pool.demands):
            if self.is_over:
                break
            cost = pool.costs(number)
            limit = (worth[number] * (1 - 1e-9) - 1e-12) / float(demand.share)
            starts = [tree.parent for tree in used if tree.number == number]
            for parent in self._candidates(cost, pool.roots[number], starts, height, free, limit):
                self.work += len(cost) ** 2
                if kernels.tree_cost(cost, parent) < limit:
                    added += pool.add(number, parent) is not None
        return added

    def _candidates(
        self, cost: F64, root: int, starts: list[I32], height: int, free: bool, limit: float
    ) -> Iterator[I32]:
        """Cheap trees from several starts; by annealing only where the others are not cheap enough."""
        if free:
            yield kernels.cheapest_tree(cost, root)
            return
        noisy = (cost * self.random.uniform(1, 1.5, cost.shape) for _ in range(NOISY))
        starts = [kernels.nearest_tree(cost, root), *(kernels.nearest_tree(c, root) for c in noisy), *starts]
        found = [kernels.shallow_tree(cost, root, height, parent) for parent in starts]
        yield from found
        price = [kernels.tree_cost(cost, parent) for parent in found]
        if min(price) >= limit:
            best = found[int(np.argmin(price))]
            self.work += ANNEALING
            yield kernels.annealed_tree(cost, root, height, best, ANNEALING, self.state)
