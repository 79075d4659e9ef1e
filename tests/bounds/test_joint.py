"""The joint linear program: against one with flows, between composition and cuts, and its certificates."""

import copy
import csv
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.optimize import linprog

from collsyn.bounds import fluid_bound, recheck, tree_bound
from collsyn.bounds.joint import joint_split
from collsyn.bounds.maxflow import FlowNetwork
from collsyn.bounds.tightest import tightest_rate
from collsyn.errors import Infeasible
from collsyn.model.bound import bound_from_fields
from collsyn.model.collective import make_collective
from collsyn.model.fields import Fields
from collsyn.topology.resolve import load_topology
from tests.conftest import REPOSITORY
from tests.support.topologies import build, random_topologies, zoo

M = 1 << 20
FEWER = settings(max_examples=max(settings().max_examples // 2, 1))


def with_flows(topology):
    """GB/s of the joint program with a flow to every rank in each part, as one linear program."""
    t, n, links = topology, topology.num_ranks, topology.num_links
    # Columns: x of every rank, down, up, then for both parts and every target the flow on links.
    columns = n + 2 * links + 2 * n * links
    equal, less, room = [], [], []

    def row(entries):
        values = np.zeros(columns)
        for place, value in entries:
            values[place] += value
        return values

    for link in range(links):
        less.append(row([(n + link, 1), (n + links + link, 1)]))
        room.append(t.bandwidth[link] / 1e9)
    for part, able in enumerate((t.multicast, t.reduction)):
        tail, head = (t.src, t.dst) if part == 0 else (t.dst, t.src)
        first = n + part * links
        for switch in range(n, t.num_vertices):
            if not able[switch]:
                ends = [(first + e, 1) for e in range(links) if head[e] == switch]
                equal.append(row([*ends, *((first + e, -1) for e in range(links) if tail[e] == switch)]))
        for target in range(n):
            flow = n + 2 * links + (part * n + target) * links
            for link in range(links):
                less.append(row([(flow + link, 1), (first + link, -1)]))
                room.append(0.0)
            for vertex in range(t.num_vertices):
                out = [(flow + e, 1) for e in range(links) if tail[e] == vertex]
                into = [(flow + e, -1) for e in range(links) if head[e] == vertex]
                if vertex == target:
                    # What comes in is at least all that has its root elsewhere.
                    less.append(row([*out, *into, *((r, 1) for r in range(n) if r != target)]))
                else:
                    less.append(row([*out, *into, *([(vertex, -1)] if vertex < n else [])]))
                room.append(0.0)
    cost = np.concatenate([-np.ones(n), np.zeros(columns - n)])
    found = linprog(
        cost,
        A_ub=np.array(less),
        b_ub=room,
        A_eq=np.array(equal) if equal else None,
        b_eq=np.zeros(len(equal)) if equal else None,
    )
    assert found.success
    return -found.fun


def composed(topology):
    """GB/s of the best reduce-scatter and allgather, one after the other."""
    n = topology.num_ranks
    rates = [tightest_rate(make_collective(kind, n), topology) for kind in ("reducescatter", "allgather")]
    return 1 / sum(1 / rate for rate in rates)


def passes_on_all(topology):
    """Whether as much leaves every switch as enters it; where not, cuts need not be reached by trees."""
    through = np.zeros(topology.num_vertices)
    np.add.at(through, topology.dst, topology.bandwidth)
    np.subtract.at(through, topology.src, topology.bandwidth)
    return np.allclose(through[topology.num_ranks :], 0, atol=1e-3)


def test_what_enters_a_switch_and_cannot_leave_it_is_no_use_to_cuts():
    """Both ranks send 10 GB/s and get 10, but two ways of 5 lead through one link behind the first switch."""
    ends = [(1, 0), (0, 2), (2, 4), (4, 3), (3, 1), (1, 2), (0, 1), (3, 0)]
    topology = build(2, [(a, b, 5.0) for a, b in ends], switches=3)
    assert not passes_on_all(topology)
    assert joint_split(topology).algbw_exact == Fraction(15, 2) < composed(topology)


@FEWER
@given(random_topologies(max_ranks=5))
def test_it_is_that_with_flows(topology):
    if topology.num_ranks > 1:
        assert float(joint_split(topology).algbw_exact) == pytest.approx(with_flows(topology), rel=1e-6)


@given(random_topologies())
def test_it_lies_between_composition_and_cuts(topology):
    if topology.num_ranks < 2:
        return
    rate = joint_split(topology).algbw_exact
    cuts = fluid_bound(make_collective("allreduce", topology.num_ranks), topology, M).algbw_exact
    if passes_on_all(topology):
        assert float(rate) >= float(composed(topology)) * (1 - 1e-7)
    assert float(rate) <= float(cuts) * (1 + 1e-7)


@given(random_topologies())
def test_every_rank_gets_all_within_the_split(topology):
    if topology.num_ranks < 2:
        return
    split, n = joint_split(topology), topology.num_vertices
    assert split.roots.sum() == pytest.approx(float(split.algbw_exact), rel=1e-6)
    assert (split.down + split.up <= topology.bandwidth / 1e9 * (1 + 1e-7)).all()
    ranks = np.arange(topology.num_ranks)
    for capacity, tail, head in (
        (split.down, topology.src, topology.dst),
        (split.up, topology.dst, topology.src),
    ):
        scaled = np.round(np.concatenate([capacity, split.roots]) * (1 << 30)).astype(np.int64)
        network = FlowNetwork(
            n + 1, np.concatenate([tail, np.full(len(ranks), n)]), np.concatenate([head, ranks]), scaled
        )
        for rank in ranks.tolist():
            network.reset()
            assert network.push(n, rank) >= split.roots.sum() * (1 << 30) * (1 - 1e-6)


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("mesh:4x4", Fraction(80)),
        ("mesh:8x8", Fraction(800, 9)),
        ("mesh:32x16", Fraction(48800, 511)),
        ("torus:4x4", Fraction(320, 3)),
        ("bipartite:4x4", Fraction(800, 7)),
        ("dgx-a100:2", Fraction(520, 3)),
        ("genkautz:4x12", Fraction(100)),
    ],
)
def test_known_rates(name, rate):
    assert joint_split(load_topology(name)).algbw_exact == rate


def test_all_parts_of_a_dgx1():
    table = REPOSITORY / "tests" / "support" / "dgx1_allocations.csv"
    rows = list(csv.DictReader(line for line in table.read_text().splitlines() if not line.startswith("#")))
    assert len(rows) == 60
    for row in rows:
        preset, link_gb_s = {"DGX-1P": ("dgx1p", 20), "DGX-1V": ("dgx1", 25)}[row["machine"]]
        topology = load_topology(preset).subset([int(rank) for rank in row["gpus"].split()])
        found = float(joint_split(topology).algbw_exact) / link_gb_s
        assert f"{found:.4f}" == row["allreduce_joint"], row


def test_a_switch_that_multiplies_and_reduces_helps():
    plain = zoo("star")
    able = replace(plain, multicast=np.arange(5) == 4, reduction=np.arange(5) == 4)
    assert joint_split(able).algbw_exact > joint_split(plain).algbw_exact
    half = replace(plain, multicast=np.arange(5) == 4)
    assert float(joint_split(half).algbw_exact) == pytest.approx(with_flows(half), rel=1e-6)


def test_ranks_that_do_not_reach_each_other():
    with pytest.raises(Infeasible):
        joint_split(build(3, [(0, 1), (1, 0), (0, 2)]))
    with pytest.raises(Infeasible):
        joint_split(build(1, [(0, 1)], switches=1))


def problem_of(name="unequal ring", chunks=2):
    topology = zoo(name)
    return make_collective("allreduce", topology.num_ranks, chunks), topology, M


@given(random_topologies())
def test_its_certificate_holds_and_survives_a_file(topology):
    problem = make_collective("allreduce", topology.num_ranks), topology, M
    bound = tree_bound(*problem)
    if topology.num_ranks < 2:
        assert bound is None
        return
    assert (bound.kind, bound.scope) == ("dual", "tree")
    assert recheck(bound_from_fields(Fields(bound.document(), "file")), *problem) is None
    assert "shows" in recheck(replace(bound, time_s=bound.time_s * 1.001), *problem)
    assert "GB/s" in recheck(replace(bound, algbw_exact=bound.algbw_exact * Fraction(999, 1000)), *problem)


def test_where_latency_counts_it_is_counted():
    _, topology, _ = problem_of()
    small = tree_bound(make_collective("allreduce", 5), topology, 8)
    assert small.time_s > 8 / float(small.algbw_exact) * 1e-9 + topology.alpha_s.min()


@pytest.mark.parametrize("name", ["unequal ring", "star", "two boxes"])
def test_a_changed_certificate_is_refused(name):
    problem = problem_of(name)
    bound = tree_bound(*problem)
    assert recheck(bound, *problem) is None
    forged = []
    for at, entry in enumerate(bound.certificate["sets"]):
        key = next(iter(set(entry) & {"vertices", "all_but"}))
        for changed in (
            {**entry, "weight": entry["weight"] * 2 + 1},
            {**entry, "weight": -1},
            {**entry, "weight": 0},
            {**entry, "weight": 0.5},
            {**entry, "weight": True},
            {**entry, "weight": 1 << 70},
            {**entry, "part": "sideways"},
            {**entry, key: [10**6]},
            {**entry, key: [0, 0]},
            {**entry, key: "0"},
            {**entry, "note": 1},
            {"part": entry["part"], "weight": 1, "all_but": []},
            None,
        ):
            sets = copy.deepcopy(bound.certificate["sets"])
            sets[at] = changed
            forged.append({"sets": sets})
    forged += [{"sets": other} for other in ([], None, "0", bound.certificate["sets"][:1])]
    levels = bound.certificate["levels"]
    forged += [{"levels": other} for other in (None, [], {}, {"down": levels["down"]}, {**levels, "up": [0] * 99})]
    forged += [{"capacity_gb_s": other} for other in ("1", None, 7, "-1")]
    for change in forged:
        certificate = {**bound.certificate, **change}
        said = recheck(replace(bound, certificate=certificate), *problem)
        assert isinstance(said, str) and said, change
    for key in bound.certificate:
        lacking = {k: v for k, v in bound.certificate.items() if k != key}
        assert recheck(replace(bound, certificate=lacking), *problem) is not None


def test_levels_are_for_switches_that_pass_on_what_they_get():
    collective, topology, size_bytes = problem_of("star")
    able = replace(topology, multicast=np.arange(5) == 4, reduction=np.arange(5) == 4)
    bound = tree_bound(collective, able, size_bytes)
    for part in ("down", "up"):
        levels = {**bound.certificate["levels"], part: [1]}
        said = recheck(
            replace(bound, certificate={**bound.certificate, "levels": levels}), collective, able, size_bytes
        )
        assert "needs not pass on" in said


def test_it_is_no_bound_on_all_schedules_and_serves_allreduce_alone():
    problem = problem_of()
    bound = tree_bound(*problem)
    assert "no argument 'dual' for a fluid bound" in recheck(replace(bound, scope="fluid"), *problem)
    assert "for a tree bound" in recheck(replace(fluid_bound(*problem), scope="tree"), *problem)
    others = [make_collective("allgather", 5), make_collective("allreduce", 5, groups=[(0, 1, 2), (3, 4)])]
    for other in others:
        assert tree_bound(other, problem[1], M) is None
        assert recheck(bound, other, *problem[1:]) is not None
