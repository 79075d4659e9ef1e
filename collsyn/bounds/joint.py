"""The joint linear program of an allreduce along trees: where roots are, and what each link carries up and down."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Any

import numpy as np

from collsyn.bounds.maxflow import FlowNetwork
from collsyn.bounds.ways import steps_from_ranks
from collsyn.errors import Infeasible, SolverFailed
from collsyn.model.arrays import F64, I64, Bools
from collsyn.model.topology import Topology
from collsyn.solver import model_status, new_highs

# Of all data this much may be missing in a cut that counts as satisfied.
TIGHT = 1e-8
# Capacities are rounded to this many steps of all data.
_STEPS = 1 << 40
MAX_ROUNDS = 500
# Denominators of the dual solution that are looked for; weights are rounded to a part of 2^30 where it has none.
_SIMPLE, _MAX_SCALE = 5040, 1 << 36
_ROUNDED = 1 << 30


@dataclass(frozen=True, eq=False)
class Split:
    """`roots[r]`: GB/s whose root is rank r; `down[e]`, `up[e]`: GB/s that link e carries in either part.

    `algbw_exact` is what the certificate shows: no trees do more.
    """

    roots: F64
    down: F64
    up: F64
    algbw_exact: Fraction
    certificate: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class EvenSplit:
    """`rate`: bytes/s of all data; `down[e]`, `up[e]`: bytes/s that link e carries in either part."""

    rate: float
    down: F64
    up: F64


@lru_cache(maxsize=16)
def joint_split(topology: Topology) -> Split:
    """The best split of every link for allreduces along trees, with its dual solution as a certificate.

    Of all best splits one whose roots are near the other ranks.

    Maximises sum of x_r where each link's bandwidth is split into a part d down and a part u up, such that d over the
    links that leave any vertex set without all ranks, and u over those that enter it, is at least x of its ranks
    (Edmonds: then trees from every root fit into d, and turned round into u). Switches that cannot multiply (down) or
    reduce (up) pass on what they get. Sets come in as they are needed: a maximum flow to every rank finds a set that
    falls short. Machines whose links go both ways alike have an optimum with u the reverse of d, which halves the
    program. Raises Infeasible where ranks do not reach each other, SolverFailed where the program is not solved.
    Complexity: rounds x (a linear program + a flow a rank); 8 rounds on a mesh of 8x8, 14 on one of 32x16.
    """
    if topology.num_ranks < 2:
        raise Infeasible("an allreduce along trees needs at least two ranks")
    program = _Program(topology)
    x, _ = _solved(program)
    certificate = program.certificate()
    program.prefer_near(float(x.sum()))
    x, parts = _solved(program)
    down, scale = parts[0], program.unit / 1e9
    up = down[program.mirror] if program.mirror is not None else parts[1]
    return Split(x * scale, down * scale, up * scale, Fraction(certificate["capacity_gb_s"]), certificate)


@lru_cache(maxsize=16)
def even_split(topology: Topology) -> EvenSplit:
    """The best split of every link where every rank is the root of as much; see `joint_split`.

    On meshes no slower than the best of all. Raises Infeasible where ranks do not reach each other, SolverFailed.
    """
    program = _Program(topology)
    for rank in range(1, topology.num_ranks):
        program.row(0.0, 0.0, np.array([1, 1 + rank]), np.array([1.0, -1.0]))
    x, parts = _solved(program)
    down = parts[0]
    up = down[program.mirror] if program.mirror is not None else parts[1]
    return EvenSplit(float(x.sum()) * program.unit, down * program.unit, up * program.unit)


def _solved(program: "_Program") -> tuple[F64, list[F64]]:
    """A best solution of which no set falls short."""
    for _ in range(MAX_ROUNDS):
        x, parts = program.solve()
        if not x.sum() > 1e-12:
            raise Infeasible("an allreduce along trees needs ranks that reach each other")
        known = [cut for number, room in enumerate(parts) for cut in _short(program.topology, x, room, number)]
        if not program.add(known):
            return x, parts
    raise SolverFailed("joint linear program: too many cuts")


def _short(topology: Topology, x: F64, capacity: F64, part: int) -> list[tuple[int, Bools]]:
    """Sets that a part falls short of: (part, vertices), part 0 down and 1 up.

    A flow that must bring all data from the roots to each rank; ranks that get it join the source, because sets without
    them have been seen to have enough.
    """
    n, ranks = topology.num_vertices, topology.num_ranks
    tail, head = (topology.src, topology.dst) if part == 0 else (topology.dst, topology.src)
    scale = _STEPS / x.sum()
    flows = np.round(x * scale).astype(np.int64)
    need = int(flows.sum())
    ends = np.concatenate([flows, np.zeros(ranks, np.int64)])
    sources, targets = np.full(2 * ranks, n), np.tile(np.arange(ranks), 2)
    network = FlowNetwork(n + 1, np.concatenate([tail, sources]), np.concatenate([head, targets]))
    links = np.minimum(np.round(capacity * scale), need).astype(np.int64)
    network.set_capacities(np.concatenate([links, ends]))
    joined = topology.num_links + ranks
    found: dict[bytes, Bools] = {}
    for rank in range(ranks):
        network.reset()
        if need - network.push(n, rank, need) > need * TIGHT:
            for outside in (network.sink_side(rank)[:n], ~network.source_side(n)[:n]):
                found.setdefault(outside.tobytes(), ~outside)
        else:
            network.change(np.array([joined + rank]), need)
    return [(part, inside) for inside in found.values() if inside.any()]


class _Program:
    """The linear program with the cuts that are known; bandwidths and rates in units of the largest bandwidth."""

    def __init__(self, topology: Topology) -> None:
        t = self.topology = topology
        self.unit = float(t.bandwidth.max())
        self.mirror = _mirror(t)
        self.parts = 1 if self.mirror is not None else 2
        self.cuts: list[tuple[int, Bools]] = []
        self._known: set[bytes] = set()
        self.solver = new_highs("joint-bound")
        # Columns: the sum, x of every rank, then the parts of every link.
        self.first = 1 + t.num_ranks
        columns = self.first + self.parts * t.num_links
        infinity = self.infinity = self.solver.getInfinity()
        cost = np.zeros(columns)
        cost[0] = -1.0
        nothing = np.zeros(0, np.int32), np.zeros(0)
        room = np.tile(t.bandwidth / self.unit, self.parts)
        upper = np.concatenate([np.full(self.first, infinity), room])
        self.solver.addCols(columns, cost, np.zeros(columns), upper, 0, np.zeros(columns, np.int32), *nothing)
        self.row(0.0, 0.0, np.arange(self.first), np.array([-1.0] + [1.0] * t.num_ranks))
        for link, width in enumerate((t.bandwidth / self.unit).tolist()):
            other = link + t.num_links if self.mirror is None else int(self.mirror[link])
            if self.mirror is None or link < other:
                self.row(-infinity, width, self.first + np.array([link, other]), np.ones(2))
        self.level_rows: list[tuple[int, int, int]] = []
        for part, able in list(enumerate((t.multicast, t.reduction)))[: self.parts]:
            for switch in (np.flatnonzero(~able[t.num_ranks :]) + t.num_ranks).tolist():
                links = np.concatenate([t.in_links[switch], t.out_links[switch]])
                signs = np.repeat([1.0, -1.0], [len(t.in_links[switch]), len(t.out_links[switch])])
                row = self.row(0.0, 0.0, self.first + part * t.num_links + links, signs)
                self.level_rows.append((row, part, switch - t.num_ranks))
        self.first_cut = self.solver.getNumRow()
        singles = np.eye(t.num_vertices, dtype=np.bool_)[: t.num_ranks]
        alone = [(part, mask) for part in range(self.parts) for rank in singles for mask in (rank, ~rank)]
        self.add(alone)

    def row(self, lower: float, upper: float, columns: I64, values: F64) -> int:
        """Add a row; returns its number."""
        self.solver.addRow(lower, upper, len(columns), columns.astype(np.int32), values)
        return int(self.solver.getNumRow()) - 1

    def add(self, cuts: list[tuple[int, Bools]]) -> int:
        """Add the cuts that are new; returns how many."""
        t, before = self.topology, len(self.cuts)
        for part, inside in cuts:
            key = bytes([part]) + inside.tobytes()
            if key in self._known:
                continue
            self._known.add(key)
            self.cuts.append((part, inside))
            tail, head = inside[t.src], inside[t.dst]
            links = np.flatnonzero((tail & ~head) if part == 0 else (head & ~tail))
            ranks = inside[: t.num_ranks]
            # Of a large set the sum less the other ranks is the shorter row.
            large = ranks.sum() * 2 > t.num_ranks
            members = np.flatnonzero(~ranks if large else ranks)
            columns = np.concatenate([[0] if large else [], 1 + members, self.first + part * t.num_links + links])
            signs = np.repeat([1.0, -1.0 if large else 1.0, -1.0], [int(large), len(members), len(links)])
            self.row(-self.infinity, 0.0, columns.astype(np.int64), signs)
        return len(self.cuts) - before

    def solve(self) -> tuple[F64, list[F64]]:
        """x of every rank, and each part's share of every link (down alone where up is its reverse)."""
        self.solver.run()
        if model_status(self.solver) != "Optimal":
            raise SolverFailed("joint linear program: was not solved")
        value = np.maximum(np.array(self.solver.getSolution().col_value), 0.0)
        links = self.topology.num_links
        return value[1 : self.first], [value[self.first + i * links :][:links] for i in range(self.parts)]

    def prefer_near(self, total: float) -> None:
        """From now on keep the sum of x, and look for roots whose farthest rank is near."""
        away = steps_from_ranks(self.topology)[:, : self.topology.num_ranks]
        radius = np.maximum(away.max(axis=1), away.max(axis=0))
        self.solver.changeColBounds(0, total * (1 - TIGHT), self.infinity)
        for rank, cost in enumerate([0.0, *radius.tolist()]):
            self.solver.changeColCost(rank, cost)

    def certificate(self) -> dict[str, Any]:
        """The dual of the last solution."""
        from collsyn.bounds.case import Case
        from collsyn.bounds.dual import ARGUMENT
        from collsyn.model.collective import make_collective

        dual = np.array(self.solver.getSolution().row_dual)
        weights = np.maximum(-dual[self.first_cut :], 0.0)
        weights[weights < 1e-9] = 0.0
        levels = np.zeros((2, len(self.topology.switch_names)))
        for row, part, switch in self.level_rows:
            levels[part, switch] = -dual[row]
        if self.mirror is not None:
            levels[1] = -levels[0]
        used = np.flatnonzero(weights)
        whole = _whole(np.concatenate([weights[used], levels.reshape(-1)]))
        sets = []
        for weight, at in zip(whole[: len(used)], used.tolist(), strict=True):
            part, inside = self.cuts[at]
            for name in ("down", "up") if self.mirror is not None else (("down", "up")[part],):
                if weight:
                    sets.append({"part": name, "weight": weight, **_listed(inside)})
        levels_of = np.array(whole[len(used) :], dtype=object).reshape(2, -1).tolist()
        certificate = {"kind": "dual", "sets": sets, "levels": {"down": levels_of[0], "up": levels_of[1]}}
        case = Case(make_collective("allreduce", self.topology.num_ranks), self.topology, 1)
        return {**certificate, **ARGUMENT.prove(case, certificate).facts}


def _listed(inside: Bools) -> dict[str, list[int]]:
    large = inside.sum() * 2 > len(inside)
    return {"all_but" if large else "vertices": np.flatnonzero(~inside if large else inside).tolist()}


def _whole(values: F64) -> list[int]:
    """The values as whole numbers in the same proportions, exact where they are simple fractions."""
    if not len(values):
        return []
    parts = [Fraction(value).limit_denominator(_SIMPLE) for value in values.tolist()]
    scale = lcm(*(part.denominator for part in parts))
    close = all(abs(float(part) - value) < 1e-8 for part, value in zip(parts, values.tolist(), strict=True))
    if close and scale <= _MAX_SCALE:
        return [int(part * scale) for part in parts]
    return [round(value * _ROUNDED) for value in values.tolist()]


def _mirror(topology: Topology) -> I64 | None:
    """For every link one that goes back with the same bandwidth, pairs of them; None where some link has none."""
    t = topology
    if (t.multicast != t.reduction).any():
        return None
    there = np.lexsort((t.beta_s_per_byte, t.dst, t.src))
    back = np.lexsort((t.beta_s_per_byte, t.src, t.dst))
    same = (t.src[there] == t.dst[back]) & (t.dst[there] == t.src[back])
    same &= t.beta_s_per_byte[there] == t.beta_s_per_byte[back]
    if not same.all():
        return None
    mirror = np.empty(t.num_links, dtype=np.int64)
    mirror[there] = back
    return mirror
