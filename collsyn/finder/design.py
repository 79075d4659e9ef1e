"""A design: a graph's text with what breadth-first broadcast costs on it, and what a theorem said beforehand."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from collsyn.errors import Infeasible
from collsyn.finder.limits import FORTH, least_factor
from collsyn.synth.bfb_cost import Arcs, graph_cost
from collsyn.topology.wiring import Wiring


@dataclass(frozen=True)
class Cost:
    """Steps, and bandwidth factor in M/B: M bytes in all, B the bandwidth of all ports of a rank."""

    steps: int
    factor: Fraction

    def covers(self, other: "Cost") -> bool:
        """Whether it is no worse in both."""
        return self.steps <= other.steps and self.factor <= other.factor

    def time_s(self, size_bytes: int, alpha_s: float, rank_bandwidth: float) -> float:
        """Seconds at one size, B in bytes per second."""
        return self.steps * alpha_s + float(self.factor) * size_bytes / rank_bandwidth


@dataclass(frozen=True)
class Design:
    """A graph as a preset's text, and what a collective costs on it.

    `cost` is that of breadth-first broadcast, computed on the graph; or, where there is a `base`, that of the schedule
    solved there and carried along. `predicted` is what theorems say (None: a base graph). `regular`: every rank has
    the asked number of links each way, which expansions need.
    """

    text: str
    num_ranks: int
    degree: int
    cost: Cost
    predicted: Cost | None = None
    regular: bool = True
    base: str | None = None


def step_loads(wiring: Wiring) -> tuple[Fraction, ...]:
    """Shards over the busiest link in each step of an allgather."""
    n = wiring.num_ranks
    arcs = Arcs.of(n, wiring.src, wiring.dst, [Fraction(1)] * len(wiring.src))
    return tuple(part * n / arcs.into_most for part in graph_cost(arcs, representatives(wiring)).per_step)


def cost_of(wiring: Wiring, degree: int, phases: Iterable[int]) -> Cost | None:
    """What the phases of a collective take one after the other; None where some rank cannot be reached."""
    n, steps, factor = wiring.num_ranks, 0, Fraction(0)
    if n == 1:
        return Cost(0, Fraction(0))
    ranks = representatives(wiring)
    capacity = [Fraction(1)] * len(wiring.src)
    for phase in phases:
        ends = (wiring.src, wiring.dst) if phase == FORTH else (wiring.dst, wiring.src)
        arcs = Arcs.of(n, *ends, capacity)
        try:
            found = graph_cost(arcs, ranks)
        except Infeasible:
            return None
        steps += found.steps
        factor += found.factor * Fraction(degree, arcs.into_most)
    return Cost(steps, factor)


def representatives(wiring: Wiring) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """One rank of every kind that the recorded symmetries leave."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = wiring.num_ranks
    images = np.array(wiring.symmetries, dtype=np.int64).reshape(-1, n)
    sources = np.tile(np.arange(n), len(images))
    graph = coo_array((np.ones(images.size, dtype=np.int8), (sources, images.reshape(-1))), shape=(n, n))
    _, labels = connected_components(graph, directed=False)
    return np.unique(labels, return_index=True)[1].astype(np.int64)


def is_regular(wiring: Wiring, degree: int) -> bool:
    """Whether that many links leave and enter every rank."""
    counts = [np.bincount(ends, minlength=wiring.num_ranks) for ends in (wiring.src, wiring.dst)]
    return all(bool((count == degree).all()) for count in counts)


def pareto(designs: Iterable[Design]) -> list[Design]:
    """The designs that no other one covers, by steps; of equal costs the first stays."""
    best: list[Design] = []
    for design in sorted(designs, key=lambda each: (each.cost.steps, each.cost.factor)):
        if not best or design.cost.factor < best[-1].cost.factor:
            best.append(design)
    return best


def is_bandwidth_optimal(design: Design, num_phases: int) -> bool:
    """Whether its factor is the least there is."""
    return design.cost.factor == num_phases * least_factor(design.num_ranks)
