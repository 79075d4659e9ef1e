"""Which trees up and down, and how much of each: a linear program in which both kinds share every link."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np

from collsyn.bounds.joint import joint_split
from collsyn.errors import SolverFailed
from collsyn.model.arrays import F64, I64
from collsyn.model.topology import Topology
from collsyn.solver import model_status, new_highs
from collsyn.synth.problem import turned
from collsyn.synth.trees_model import Trees
from collsyn.synth.trees_pool import Demand, Pool, Pricing, Tree
from collsyn.synth.trees_symmetry import moves

# Congestion this close to the least there is counts as least; rounds without a gain after which it is taken to be.
TIGHT, PATIENCE = 1e-3, 8
# Roots that carry less than this part of the data are left out.
_SMALL = 1e-6
# Denominators of parts that are looked for, and the most units.
_SIMPLE, MAX_UNITS = 720, 2048
# Trees of both kinds after which no more are looked for: the program gets slow.
MAX_TREES = 2400
# Moves of single parts after a rounding, and loads of links that are looked at for them.
MAX_EXCHANGES, EXCHANGE_WORK = 300, 160_000_000
_DOWN, _UP = 0, 1


@dataclass(frozen=True, eq=False)
class Mix:
    """Trees of both kinds (`up[i]` says which) and the part of all data that each carries.

    The parts of a demand's trees down are as much as those of its trees up. `congestion` is the time they take over the
    least time.
    """

    trees: list[Tree]
    up: I64
    parts: F64
    congestion: float


@dataclass(frozen=True, eq=False)
class Counts:
    """As a mix, in whole numbers: tree i of the mix carries `count[i]` of `units`, each with all its images."""

    mix: Mix
    count: I64
    units: int
    congestion: float


class JointPools:
    """Pools of trees down (on the topology) and up (on the one turned round) from the roots of the best split."""

    def __init__(self, topology: Topology, seed: int, late: Callable[[], bool]) -> None:
        split = joint_split(topology)
        self.symmetry = moves(topology, lambda image: True)
        share = split.roots / split.roots.sum()
        roots = [r for r in np.unique(self.symmetry.first).tolist() if share[self.symmetry.first == r].sum() > _SMALL]
        everyone = tuple(range(topology.num_ranks))
        demands = [Demand(root, Fraction(1, len(self.symmetry)), everyone) for root in roots]
        self.pools = [Pool(t, demands, self.symmetry, split.algbw_exact) for t in (topology, turned(topology))]
        self.searches = [Pricing(pool, seed + i, late) for i, pool in enumerate(self.pools)]
        self.late = late

    @property
    def is_over(self) -> bool:
        """Whether the work or the time is used up."""
        many = sum(len(pool.trees) for pool in self.pools) > MAX_TREES
        return many or any(search.is_over for search in self.searches)

    def mixes(self) -> list[Mix]:
        """Mixes of ever higher trees, each with less congestion than those before, until it is least."""
        height = self.start()
        longest = self.pools[0].topology.num_ranks - 1
        program, found = _Program(self.pools), [Mix([], np.zeros(0, np.int64), np.zeros(0), np.inf)]
        while True:
            mix = self._best(program, height, height >= longest)
            if mix.congestion < found[-1].congestion * (1 - TIGHT):
                found.append(mix)
            if mix.congestion <= 1 + TIGHT or height >= longest or self.is_over:
                return found[1:]
            height = min(longest, height + max(1, height // 3))

    def start(self) -> int:
        """Add a first tree for every demand; returns the least height that serves all. Raises Infeasible."""
        return max(pool.start() for pool in self.pools)

    def unfolded(self, counts: "Counts", kind: int) -> Trees:
        """The trees down (kind 0) or up (1) of all roots."""
        chosen = np.flatnonzero((counts.mix.up == kind) & (counts.count > 0))
        trees = [counts.mix.trees[i] for i in chosen.tolist()]
        return self.pools[kind].unfolded(trees, counts.count[chosen], counts.units)

    def _best(self, program: "_Program", height: int, free: bool) -> Mix:
        in_vain, least = 0, np.inf
        while True:
            congestion, price, worth, parts = program.solve()
            in_vain = 0 if congestion < least * (1 - 1e-4) else in_vain + 1
            least = min(least, congestion)
            used = [np.flatnonzero(each > 1e-9) for each in parts]
            trees = [[pool.trees[i] for i in at] for pool, at in zip(self.pools, used, strict=True)]
            over = congestion <= 1 + TIGHT / 10 or in_vain > PATIENCE or self.is_over
            if over or not sum(
                search.add_worthwhile(price, worth[kind], trees[kind], height, free)
                for kind, search in enumerate(self.searches)
            ):
                up = np.repeat([_DOWN, _UP], [len(each) for each in trees])
                values = np.concatenate([parts[kind][used[kind]] for kind in (_DOWN, _UP)])
                return Mix([*trees[_DOWN], *trees[_UP]], up, values, congestion)


class _Program:
    """The linear program: rows for all data, for every demand down and up, and for every orbit of links."""

    def __init__(self, pools: list[Pool]) -> None:
        self.pools, self.columns = pools, [0, 0]
        self.solver = new_highs("joint")
        infinity = self.infinity = self.solver.getInfinity()
        nothing = np.zeros(0, np.int32), np.zeros(0)
        demands, orbits = len(pools[0].demands), len(pools[0].room)
        self.solver.addRow(1.0, 1.0, 0, *nothing)
        for _ in range(2 * demands):
            self.solver.addRow(0.0, 0.0, 0, *nothing)
        for _ in range(orbits):
            self.solver.addRow(-infinity, 0.0, 0, *nothing)
        self.first = 1 + 2 * demands
        rows = np.arange(orbits, dtype=np.int32) + self.first
        self.solver.addCol(1.0, 0.0, infinity, orbits, rows, -pools[0].room)
        for number in range(demands):
            places = np.array([0, 1 + number, 1 + demands + number], dtype=np.int32)
            self.solver.addCol(0.0, 0.0, infinity, 3, places, np.array([1.0, -1.0, -1.0]))
        # The columns of the trees of both kinds.
        self.places: list[list[int]] = [[], []]

    def solve(self) -> tuple[float, F64, list[F64], list[F64]]:
        """(congestion, price of every orbit, worth of every demand and part of every tree of both kinds)."""
        demands = len(self.pools[0].demands)
        for kind, pool in enumerate(self.pools):
            for tree in pool.trees[self.columns[kind] :]:
                orbits = np.flatnonzero(tree.load)
                rows = np.concatenate([[1 + kind * demands + tree.number], self.first + orbits]).astype(np.int32)
                values = np.concatenate([[1.0], tree.load[orbits]])
                self.solver.addCol(0.0, 0.0, self.infinity, len(rows), rows, values)
                self.places[kind].append(int(self.solver.getNumCol()) - 1)
            self.columns[kind] = len(pool.trees)
        self.solver.run()
        if model_status(self.solver) != "Optimal":
            raise SolverFailed("joint: the linear program over trees was not solved")
        solution = self.solver.getSolution()
        dual, value = np.array(solution.row_dual), np.maximum(np.array(solution.col_value), 0.0)
        worth = [dual[1 + i * demands : 1 + (i + 1) * demands] for i in (_DOWN, _UP)]
        return float(value[0]), np.maximum(-dual[self.first :], 0.0), worth, [value[at] for at in self.places]


def exact_units(mix: Mix) -> int | None:
    """The number of units at which the mix needs no rounding; None where it is above MAX_UNITS."""
    parts = [Fraction(part).limit_denominator(_SIMPLE) for part in mix.parts.tolist()]
    close = all(abs(float(near) - part) < 1e-8 for near, part in zip(parts, mix.parts.tolist(), strict=True))
    units = lcm(*(part.denominator for part in parts))
    return units if close and units <= MAX_UNITS else None


def in_units(mix: Mix, room: F64, units: int) -> Counts:
    """The mix in whole units: rounded down, then missing ones where they harm least, then moved while that helps."""
    number = np.array([tree.number for tree in mix.trees])
    load = np.array([tree.load for tree in mix.trees]) / (room * units)
    count = np.floor(mix.parts * units + 1e-6).astype(np.int64)
    groups = {
        (n, kind): np.flatnonzero((number == n) & (mix.up == kind)) for n in set(number.tolist()) for kind in (0, 1)
    }
    wanted = {n: mix.parts[groups[n, _DOWN]].sum() * units for n in set(number.tolist())}
    quota = {n: max(int(count[groups[n, kind]].sum()) for kind in (0, 1)) for n in wanted}
    while sum(quota.values()) < units:
        quota[max(wanted, key=lambda n: wanted[n] - quota[n])] += 1
    while sum(quota.values()) > units:
        quota[min(wanted, key=lambda n: wanted[n] - quota[n] if quota[n] else np.inf)] -= 1
    for (n, _), mine in groups.items():
        while count[mine].sum() > quota[n]:
            count[mine[np.flatnonzero(count[mine])[0]]] -= 1
        while count[mine].sum() < quota[n]:
            count[mine[_rank(count @ load + load[mine]).argmin()]] += 1
    work = 0
    for _ in range(MAX_EXCHANGES):
        busy = count @ load
        now, best = float(_rank(busy[None, :])[0]), None
        for giver in np.flatnonzero(count).tolist():
            mine = groups[int(number[giver]), int(mix.up[giver])]
            work += len(mine) * len(busy)
            ranks = _rank(busy - load[giver] + load[mine])
            at = int(ranks.argmin())
            if ranks[at] < now * (1 - 1e-9):
                now, best = float(ranks[at]), (giver, int(mine[at]))
        if best is None or work > EXCHANGE_WORK:
            break
        count[best[0]] -= 1
        count[best[1]] += 1
    return Counts(mix, count, units, float((count @ load).max()))


def _rank(busy: F64) -> F64:
    """Of several loads (rows) the largest entry; those that come near it make a small difference."""
    most = busy.max(axis=1)
    return np.asarray(most * (1 + 1e-6 * ((busy / most[:, None]) ** 64).sum(axis=1)))
