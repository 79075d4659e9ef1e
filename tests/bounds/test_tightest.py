"""Cuts from maximum flows are the tightest of all vertex sets, wherever that is promised."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collsyn.bounds import fluid_bound, recheck
from collsyn.bounds.bound import bounds_by_argument
from collsyn.bounds.case import Case
from collsyn.bounds.tightest import tightest_sets
from collsyn.model.collective import make_collective
from collsyn.topology.resolve import load_topology
from tests.bounds.test_validity import flow_program_s, must_enter, tightest_cut
from tests.support.topologies import ZOO, build, random_topologies, zoo

M = 1 << 20
FEWER = settings(max_examples=max(settings().max_examples // 2, 1), suppress_health_check=[HealthCheck.too_slow])
EXACT = ("allgather", "reducescatter", "broadcast", "reduce", "gather", "scatter", "allreduce")


def by_cut(collective, topology):
    return min(b.algbw_exact for b in bounds_by_argument(collective, topology, M) if b.kind == "cut")


def by_flow(collective, topology):
    """The rate of the tightest set that flows alone find."""
    rates = []
    for mask in tightest_sets(Case(collective, topology, M)):
        inside = set(np.flatnonzero(mask).tolist())
        ends = zip(topology.src.tolist(), topology.dst.tolist(), topology.exact_bandwidth_gb_s, strict=True)
        capacity = sum(b for a, z, b in ends if a not in inside and z in inside)
        rates.append(capacity / must_enter(collective, inside))
    return min(rates)


@FEWER
@given(random_topologies(max_ranks=5, max_switches=2), st.sampled_from(EXACT), st.data())
def test_no_set_is_tighter(topology, kind, data):
    n, counts = topology.num_ranks, None
    root = data.draw(st.integers(0, n - 1)) if kind in ("broadcast", "reduce", "gather", "scatter") else None
    if kind in ("allgather", "reducescatter", "gather", "scatter") and data.draw(st.booleans()):
        counts = data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n).filter(any))
    collective = make_collective(kind, n, data.draw(st.integers(1, 3)), root, None, counts)
    exact = tightest_cut(collective, topology)
    if exact is not None:
        assert by_flow(collective, topology) == by_cut(collective, topology) == exact


@FEWER
@given(random_topologies(min_ranks=4, max_ranks=5, max_switches=2), st.sampled_from(EXACT), st.permutations(range(4)))
def test_one_group_among_others_that_relay(topology, kind, order):
    collective = make_collective(kind, topology.num_ranks, groups=[order[:3]])
    assert by_flow(collective, topology) == tightest_cut(collective, topology)


@pytest.mark.parametrize("kind", ["allgather", "reducescatter"])
def test_groups_that_meet_in_one_link(kind):
    # Two groups across a narrow bridge between boxes that the topology does not name.
    inner = [(a, b, 100) for box in ((0, 1, 2), (3, 4, 5)) for a in box for b in box if a != b]
    topology = build(6, [*inner, (0, 3, 10), (3, 0, 10)])
    collective = make_collective(kind, 6, groups=[[1, 4], [2, 5]])
    # One half of the size of each group goes over 10 GB/s.
    assert by_cut(collective, topology) == tightest_cut(collective, topology) == 10


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("kind", EXACT)
def test_certificates_are_rechecked_and_the_reversal_agrees(name, kind):
    topology = zoo(name)
    collective = make_collective(kind, topology.num_ranks)
    bound = fluid_bound(collective, topology, 1 << 30)
    assert recheck(bound, collective, topology, 1 << 30) is None
    backwards = {"allgather": "reducescatter", "broadcast": "reduce", "gather": "scatter"}
    if kind in backwards:
        other = fluid_bound(make_collective(backwards[kind], topology.num_ranks), topology.reversed(), 1 << 30)
        assert other.algbw_exact == bound.algbw_exact


@FEWER
@given(random_topologies(max_ranks=4, max_switches=1), st.sampled_from(["alltoall", "sendrecv", "scatter"]))
def test_lengths_from_the_program_prove_the_largest_concurrent_flow(topology, kind):
    collective = make_collective(kind, topology.num_ranks)
    proved = min(b.algbw_exact for b in bounds_by_argument(collective, topology, M) if b.algbw_exact is not None)
    assert M / float(proved) * 1e-9 == pytest.approx(flow_program_s(collective, topology), rel=1e-5)


# Per ordered pair of ranks, known from linear programs elsewhere: 0.375 of a link on a DGX-1V.
PAIRS = {"dgx1": Fraction(75, 8), "dgx-a100:2": Fraction(25, 8), "mi250:1": Fraction(75, 16)}


@pytest.mark.parametrize("name", PAIRS)
def test_known_rates_of_alltoall(name):
    topology = load_topology(name)
    n = topology.num_ranks
    assert fluid_bound(make_collective("alltoall", n), topology, M).algbw_exact == PAIRS[name] * n


def test_alltoall_where_no_simple_argument_is_tight():
    topology = load_topology("genkautz:4x32")
    collective = make_collective("alltoall", 32)
    bound = fluid_bound(collective, topology, 1 << 30)
    assert bound.kind == "lengths" and recheck(bound, collective, topology, 1 << 30) is None
    others = [b for b in bounds_by_argument(collective, topology, 1 << 30) if b.kind != "lengths" and b.algbw_exact]
    assert bound.algbw_exact < min(b.algbw_exact for b in others)


# GB/s of the size: 1/x* in ForestColl's papers and runs.
BOXES = {
    "dgx-a100:1": Fraction(2400, 7),
    "dgx-a100:2": Fraction(1040, 3),
    "dgx-a100:4": Fraction(800, 3),
    "dgx-a100:16": Fraction(640, 3),
    "mi250:1": Fraction(2400, 7),
    "mi250:2": Fraction(5312, 15),
    "mi250:4": Fraction(1024, 3),
    "mi250:8": Fraction(2048, 7),
}


@pytest.mark.parametrize("name", BOXES)
def test_published_optima(name):
    topology = load_topology(name)
    for kind in ("allgather", "reducescatter"):
        assert fluid_bound(make_collective(kind, topology.num_ranks), topology, M).algbw_exact == BOXES[name]


@pytest.mark.slow
@pytest.mark.parametrize("name, gb_s", [("dgx-a100:128", Fraction(25600, 127)), ("mi250:64", Fraction(16384, 63))])
def test_published_optima_of_1024_ranks(name, gb_s):
    topology = load_topology(name)
    assert fluid_bound(make_collective("allgather", 1024), topology, M).algbw_exact == gb_s


def test_bandwidths_without_a_common_measure():
    """Measured numbers have no small fractions: capacities are rounded, and what is proved stays exact."""
    measured = replace(zoo("petersen"), beta_s_per_byte=1e-9 / np.random.default_rng(3).uniform(1, 90, 30))
    collective = make_collective("allgather", 10)
    bound = fluid_bound(collective, measured, M)
    assert recheck(bound, collective, measured, M) is None
    assert float(bound.algbw_exact) == pytest.approx(float(tightest_cut(collective, measured)), rel=1e-9)


def test_with_counts_the_tightest_set_leaves_the_longest_shards_outside():
    ring = build(4, [(0, 1), (1, 2), (2, 3), (3, 0)], both=True)
    collective = make_collective("allgather", 4, counts=[5, 1, 1, 1])
    # Into any set without rank 0 go at least 5/8, into a neighbour alone 7/8, over two links of 50.
    assert by_cut(collective, ring) == Fraction(800, 7)
    assert by_cut(make_collective("allgather", 4, counts=[1, 0, 0, 0]), ring) == 100
