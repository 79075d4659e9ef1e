"""What breadth-first broadcast costs, exactly: steps and bytes.

Source: Efficient Direct-Connect Topologies, arXiv 2202.03356; docs/bfb.md has the definitions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm

import numpy as np
import numpy.typing as npt

from collsyn.errors import Infeasible, InputError
from collsyn.model.arrays import I32, I64
from collsyn.model.topology import Topology
from collsyn.topology.symmetry import orbits

# Capacities are counted in whole units of at most this many a link; finer ones are rounded down to such units.
MOST_UNITS = 1 << 20


@dataclass(frozen=True)
class BfbCost:
    """Steps T_L and, for each, its part of the bandwidth factor T_B.

    An allgather of M bytes over N ranks takes `steps` messages one after the other and `factor` * M / B seconds of
    bytes, B the largest bandwidth into one rank. No schedule does with less than (N - 1) / N.
    """

    steps: int
    per_step: tuple[Fraction, ...]

    @property
    def factor(self) -> Fraction:
        """T_B, the bandwidth factor."""
        return sum(self.per_step, Fraction(0))


@dataclass(frozen=True, eq=False)
class Arcs:
    """Links from rank to rank, sorted by target, then source: arc i is `link[i]`, from `src[i]` into `dst[i]`.

    `capacity` counts units of bandwidth; `exact` says whether they are whole by themselves or were rounded down.
    """

    num_ranks: int
    link: I64
    src: I32
    dst: I32
    capacity: I64
    exact: bool

    @classmethod
    def of(cls, num_ranks: int, src: npt.ArrayLike, dst: npt.ArrayLike, gb_s: Sequence[Fraction]) -> "Arcs":
        """From the ends of links and their bandwidths."""
        source, target = np.asarray(src, dtype=np.int32), np.asarray(dst, dtype=np.int32)
        link = np.lexsort((source, target))
        units, exact = _whole(gb_s)
        return cls(num_ranks, link, source[link], target[link], units[link], exact)

    @cached_property
    def ptr(self) -> I64:
        """Where the arcs into every rank begin (with the end)."""
        ptr = np.zeros(self.num_ranks + 1, dtype=np.int64)
        np.cumsum(np.bincount(self.dst, minlength=self.num_ranks), out=ptr[1:])
        return ptr

    @cached_property
    def into_most(self) -> int:
        """The largest capacity into one rank."""
        into = np.zeros(self.num_ranks, dtype=np.int64)
        np.add.at(into, self.dst, self.capacity)
        return int(into.max(initial=0))


def arcs_of(topology: Topology) -> Arcs:
    """The arcs of a topology without switches; raises InputError for one with switches."""
    if topology.switch_names:
        raise InputError(f"topology {topology.name}: has switches; breadth-first broadcast needs links rank to rank")
    return Arcs.of(topology.num_ranks, topology.src, topology.dst, topology.exact_bandwidth_gb_s)


def bfb_cost(topology: Topology) -> BfbCost:
    """T_L and T_B of an allgather on a topology without switches; one rank of every orbit of its symmetries is enough.

    Raises InputError for switches, Infeasible where a rank cannot be reached. A reduce-scatter costs what the allgather
    does with all links turned round. O(orbits * (degree * links + ranks log ranks)) and small flows.
    """
    ranks = np.unique(orbits(topology)[: topology.num_ranks])
    try:
        return graph_cost(arcs_of(topology), ranks)
    except Infeasible as error:
        raise Infeasible(f"topology {topology.name}: {error}") from None


def graph_cost(arcs: Arcs, ranks: npt.NDArray[np.integer] | None = None) -> BfbCost:
    """The cost by what enters some ranks (all by default): for each step the rank that needs longest counts."""
    from collsyn.synth import bfb_kernels as kernels

    n = arcs.num_ranks
    if n == 1:
        return BfbCost(0, ())
    chosen = np.arange(n) if ranks is None else np.asarray(ranks, dtype=np.int64)
    worst: list[Fraction] = []
    for _, to_rank, to_near, capacity in entering(arcs, chosen):
        loads = [Fraction(p, q) for p, q in kernels.loads_of_rank(to_rank, to_near, capacity).tolist()]
        worst += [Fraction(0)] * (len(loads) - len(worst))
        worst[: len(loads)] = [max(pair) for pair in zip(worst, loads, strict=False)]
    return BfbCost(len(worst), tuple(load * arcs.into_most / n for load in worst))


def entering(arcs: Arcs, ranks: I64) -> Iterator[tuple[int, I32, I32, I64]]:
    """For every rank the distances to it, to the source of each of its arcs (a row each), and the arcs' capacities.

    Raises Infeasible where some rank cannot reach it.
    """
    from collsyn.synth import bfb_kernels as kernels

    parts = [slice(int(arcs.ptr[rank]), int(arcs.ptr[rank + 1])) for rank in ranks]
    targets = np.unique(np.concatenate([ranks, *(arcs.src[part] for part in parts)]))
    hops = kernels.distances_to(arcs.ptr, arcs.src, targets)
    row_of = np.full(arcs.num_ranks, -1)
    row_of[targets] = np.arange(len(targets))
    for rank, part in zip(ranks.tolist(), parts, strict=True):
        to_rank = hops[row_of[rank]]
        if to_rank.min() < 0:
            raise Infeasible(f"no way leads from rank {int(to_rank.argmin())} to rank {rank}")
        yield rank, to_rank, hops[row_of[arcs.src[part]]], arcs.capacity[part]


def _whole(gb_s: Sequence[Fraction]) -> tuple[I64, bool]:
    """Whole numbers in the proportions of bandwidths, and whether these are exact."""
    if not gb_s:
        return np.zeros(0, dtype=np.int64), True
    values = set(gb_s)
    unit = Fraction(gcd(*(value.numerator for value in values)), lcm(*(value.denominator for value in values)))
    top = max(values)
    if top / unit <= MOST_UNITS:
        return np.array([int(value / unit) for value in gb_s], dtype=np.int64), True
    return np.array([max(int(value * MOST_UNITS / top), 1) for value in gb_s], dtype=np.int64), False
