"""Every textbook algorithm takes exactly its textbook time on the topologies it is made for."""

from collections.abc import Callable
from math import ceil, log2
from typing import NamedTuple

import pytest

from collsyn.check.verify import verify_schedule
from collsyn.model.topology import Topology
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.hops import hops
from collsyn.topology.resolve import load_topology


class Costs(NamedTuple):
    """Ranks, whole bytes M, bytes of a shard m, and the costs of every hop."""

    n: int
    M: float
    m: float
    alpha: float
    beta: float
    overhead: float


def costs(topology: Topology, size_bytes: int) -> Costs:
    table, n = hops(topology), topology.num_ranks
    for column in (table.alpha_s, table.beta_s_per_byte, table.overhead_s):
        assert (column == column[0]).all(), "textbook times need equal hops"
    alpha, beta, overhead = (float(c[0]) for c in (table.alpha_s, table.beta_s_per_byte, table.overhead_s))
    return Costs(n, size_bytes, size_bytes / n, alpha, beta, overhead)


def one_hop(c: Costs) -> float:
    return c.alpha + c.beta * c.m


def ring(c: Costs) -> float:
    return (c.n - 1) * (c.alpha + c.beta * c.m)


def two_way_ring(c: Costs) -> float:
    return c.n // 2 * c.alpha + (c.n - 1) / 2 * c.beta * c.m


def pipeline(c: Costs) -> float:
    chunk = c.M / 4
    return (c.n - 1) * (c.alpha + c.beta * chunk) + 3 * (c.overhead + c.beta * chunk)


def recursive(c: Costs) -> float:
    return log2(c.n) * c.alpha + (c.n - 1) * c.beta * c.m


def doubling(c: Costs) -> float:
    return log2(c.n) * (c.alpha + c.beta * c.M)


def through_one_port(c: Costs) -> float:
    return c.alpha + (c.n - 1) * c.beta * c.m + (c.n - 2) * c.overhead


def at_once(c: Costs) -> float:
    return c.alpha + (c.n - 1) * c.beta * c.m


def binomial(c: Costs) -> float:
    return ceil(log2(c.n)) * (c.alpha + c.beta * c.M)


def binomial_shards(c: Costs) -> float:
    return log2(c.n) * c.alpha + (c.n - 1) * c.beta * c.m


def all_links(c: Costs) -> float:
    return log2(c.n) * c.alpha + (c.n - 1) / log2(c.n) * c.beta * c.m


def partial_sums_over_all_links(c: Costs) -> float:
    return log2(c.n) * c.alpha + c.beta * c.M


def twice(time: Callable[[Costs], float]) -> Callable[[Costs], float]:
    return lambda c: 2 * time(c)


RINGS = ("ring:3", "ring:8", "ring:8@overhead=alpha", "switch:6", "switch:8@overhead=0.2", "full:5")
POWERS = ("full:8", "full:8@overhead=alpha", "switch:8", "switch:8@overhead=0.2", "hypercube:4", "full:2")
TWO_WAY = ("ring:3", "ring:8", "ring:7@overhead=alpha", "full:6")
FULL = ("full:5", "full:8@overhead=alpha", "full:2")
# Tori whose ranks have as many links as there are rounds.
SHORT_TORI = ("ring:4", "torus:4x4", "torus:4x4@overhead=alpha", "hypercube:3", "hypercube:4", "ring:2")
PORTS = ("switch:5", "switch:8@overhead=0.2", "switch:8@overhead=alpha")
PORTS_HELD = ("switch:8@overhead=0.2", "switch:8@overhead=alpha")

# method, collectives, topologies, chunks per rank, time
TABLE = [
    ("ring", ("allgather", "reducescatter"), RINGS, None, ring),
    ("ring", ("allgather", "reducescatter"), RINGS, 3, ring),
    ("ring", ("allreduce",), RINGS, None, twice(ring)),
    ("ring", ("broadcast", "reduce"), RINGS, 4, pipeline),
    ("two-way-ring", ("allgather", "reducescatter"), TWO_WAY, None, two_way_ring),
    ("two-way-ring", ("allreduce",), TWO_WAY, 2, twice(two_way_ring)),
    ("recursive", ("allgather", "reducescatter"), POWERS, None, recursive),
    ("recursive", ("allgather", "reducescatter"), POWERS, 5, recursive),
    ("recursive", ("allreduce",), POWERS, None, twice(recursive)),
    ("doubling", ("allreduce",), POWERS, None, doubling),
    ("direct", ("allgather", "reducescatter", "alltoall", "gather", "scatter"), FULL, None, one_hop),
    ("direct", ("allgather", "reducescatter", "alltoall"), FULL, 2, one_hop),
    ("direct", ("allreduce",), FULL, None, twice(one_hop)),
    ("direct", ("allgather", "reducescatter", "alltoall", "gather", "scatter"), PORTS, None, through_one_port),
    ("at-once", ("allgather", "reducescatter", "alltoall", "gather", "scatter"), PORTS_HELD, None, at_once),
    ("at-once", ("allreduce",), PORTS_HELD, None, twice(at_once)),
    ("one-shot", ("allreduce",), FULL, None, lambda c: c.alpha + c.beta * c.M),
    ("binomial", ("broadcast", "reduce"), POWERS, None, binomial),
    ("binomial", ("scatter", "gather"), POWERS, None, binomial_shards),
    ("binomial", ("allreduce",), POWERS, None, twice(binomial)),
    ("swing", ("allgather", "reducescatter"), SHORT_TORI, None, all_links),
    ("swing", ("allreduce",), SHORT_TORI, None, twice(all_links)),
    (
        "swing-latency",
        ("allreduce",),
        ("ring:4", "torus:4x4", "hypercube:4", "ring:2"),
        None,
        partial_sums_over_all_links,
    ),
    ("bine", ("allgather", "reducescatter"), POWERS, None, recursive),
    ("bine", ("allreduce",), POWERS, 3, twice(recursive)),
    ("bine", ("broadcast", "reduce"), POWERS, 1, binomial),
    ("bine", ("scatter", "gather"), POWERS, None, binomial_shards),
]

CASES = [
    (name, kind, topology, chunks, time)
    for name, kinds, topologies, chunks, time in TABLE
    for kind in kinds
    for topology in topologies
]


@pytest.mark.parametrize(("name", "kind", "preset", "chunks", "time"), CASES)
@pytest.mark.parametrize("size_bytes", [840, 1 << 26])
def test_meets_its_textbook_time(
    name: str, kind: str, preset: str, chunks: int | None, time: Callable[[Costs], float], size_bytes: int
) -> None:
    topology = load_topology(preset)
    problem = Problem(kind, topology, size_bytes, chunks)
    assert method(name).accepts(problem) is None
    schedule = method(name).synthesize(problem, Options())
    verify_schedule(schedule).raise_if_bad()
    assert schedule.finish_s == pytest.approx(time(costs(topology, size_bytes)), rel=1e-9)


@pytest.mark.parametrize("root", range(8))
@pytest.mark.parametrize("preset", ["hypercube:3", "switch:8"])
def test_any_root_takes_the_same_time(preset: str, root: int) -> None:
    topology = load_topology(preset)
    c = costs(topology, 1 << 20)
    for kind, time in (("broadcast", binomial), ("reduce", binomial), ("scatter", binomial_shards)):
        schedule = method("binomial").synthesize(Problem(kind, topology, 1 << 20, root=root), Options())
        assert schedule.finish_s == pytest.approx(time(c), rel=1e-9)


@pytest.mark.parametrize("n", [3, 5, 6, 7])
def test_binomial_of_other_numbers_is_no_slower(n: int) -> None:
    topology = load_topology(f"switch:{n}")
    for kind in ("broadcast", "reduce", "allreduce"):
        schedule = method("binomial").synthesize(Problem(kind, topology, 1 << 20), Options())
        verify_schedule(schedule).raise_if_bad()
        limit = (2 if kind == "allreduce" else 1) * binomial(costs(topology, 1 << 20))
        assert schedule.finish_s <= limit * (1 + 1e-9)


def test_groups_with_links_of_their_own_do_not_slow_each_other() -> None:
    topology = load_topology("full:8")
    groups = ((0, 1, 2, 3), (7, 5, 6, 4))
    alone = load_topology("full:4")
    for name in ("ring", "recursive", "direct"):
        both = method(name).synthesize(Problem("allgather", topology, 1 << 20, groups=groups), Options())
        verify_schedule(both).raise_if_bad()
        one = method(name).synthesize(Problem("allgather", alone, 1 << 20), Options())
        assert both.finish_s == pytest.approx(one.finish_s, rel=1e-9)
