"""Allreduce in one phase: its time against the bound, its trees against shortest paths, and its plans on real data."""

from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings

from collsyn.bounds import chunk_bound
from collsyn.check.simulate_plan import simulate_plan
from collsyn.check.verify import verify_schedule
from collsyn.errors import Infeasible
from collsyn.lower.lower import lower
from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology
from collsyn.synth import partial_sums
from collsyn.synth.in_trees import InTrees, Trees, grown
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.hops import Hops, hops
from collsyn.topology.resolve import load_topology
from tests.support.mutate import check_mutants
from tests.support.running import assert_runs
from tests.support.topologies import random_topologies

SMALL = 1024


def solve(preset: str, size_bytes: int = SMALL, groups: tuple[tuple[int, ...], ...] | None = None) -> Schedule:
    """The verified schedule of an accepted allreduce."""
    problem = Problem("allreduce", load_topology(preset), size_bytes, groups=groups)
    assert method("one-phase").accepts(problem) is None
    schedule = method("one-phase").synthesize(problem, Options())
    verify_schedule(schedule).raise_if_bad()
    return schedule


@pytest.mark.parametrize(
    "preset", ["full:8", "dgx1", "ring:8", "torus:4x4", "mesh:3x4", "hypercube:4", "dgx-a100:2@overhead=none"]
)
def test_small_buffers_take_the_time_of_the_longest_way(preset):
    schedule = solve(preset)
    bound = chunk_bound(schedule.collective, schedule.topology, SMALL)
    assert schedule.finish_s <= 1.1 * bound.time_s


@pytest.mark.parametrize("preset", ["dgx1", "torus:4x4", "full:4"])
def test_plans_add_one_latency_in_which_peers_say_that_they_have_begun(preset):
    schedule = solve(preset)
    plan = lower(schedule)
    latency = schedule.topology.alpha_s.max()
    assert simulate_plan(plan, schedule.topology, SMALL).finish_s <= schedule.finish_s + latency * (1 + 1e-9)
    assert_runs(plan, 67)


def test_ranks_of_a_ring_send_few_sums():
    schedule = solve("ring:8")
    crossing = Counter(zip(schedule.messages.src.tolist(), schedule.messages.dst.tolist(), strict=True))
    # Four sums one way round and three the other would do; ranks that go either way by turns need fewer.
    assert max(count for (src, dst), count in crossing.items() if src != dst) <= 3


def test_groups_share_the_links_and_ranks_outside_pass_sums_on():
    schedule = solve("ring:6", groups=((0, 2, 4), (1, 5)))
    assert {int(rank) for rank in schedule.src} > {0, 2, 4}
    assert_runs(lower(schedule), 67)


def test_wrong_schedules_are_found():
    check_mutants(solve("dgx1"), seed=3)


def test_what_it_does_not_serve_is_said():
    large = Problem("allreduce", load_topology("ring:129"), 64)
    assert method("one-phase").accepts(large) == "serves up to 128 ranks; ring:129 has 129"
    apart = Problem("allreduce", load_topology("ring:4"), 64).as_kind("allgather")
    assert method("one-phase").accepts(apart) == "makes no allgather"


def test_too_many_sums_at_a_rank_are_one_line(monkeypatch):
    monkeypatch.setattr(partial_sums, "_MAX_SLOT", 3)
    with pytest.raises(Infeasible, match=r"one-phase: a rank would keep .* partial sums at once; 3 is the limit"):
        solve("torus:4x4")


def joined(num_ranks: int, links: list[tuple[int, int]], alpha_us: list[float]) -> Topology:
    """Ranks with links of 1000 GB/s and the given latencies."""
    return Topology(
        "joined",
        num_ranks,
        src=[a for a, _ in links],
        dst=[b for _, b in links],
        alpha_s=[alpha / 1e6 for alpha in alpha_us],
        beta_s_per_byte=[1e-12] * len(links),
        overhead_s=[0.0] * len(links),
        count=[1] * len(links),
    )


def test_a_rank_outside_adds_up_what_comes_for_one_sum_and_for_several():
    # All go through rank 3 (and 4), which has no part of its own.
    star = [(a, 3) for a in range(3)] + [(3, a) for a in range(3)]
    chain = [(0, 3), (3, 0), (1, 3), (3, 1), (3, 4), (4, 3), (4, 2), (2, 4)]
    for topology in (joined(4, star, [1.0] * 6), joined(5, chain, [1, 1, 1, 1, 1, 1, 2, 0.5])):
        for group in ((0, 1, 2), (2, 0, 1)):
            problem = Problem("allreduce", topology, 100, groups=(group,))
            schedule = method("one-phase").synthesize(problem, Options())
            verify_schedule(schedule).raise_if_bad()
            assert_runs(lower(schedule), 67)


@given(random_topologies())
@settings(max_examples=25)
def test_groups_on_random_topologies(topology):
    for groups in ((tuple(range(0, topology.num_ranks, 2)),), (tuple(range(topology.num_ranks - 1, 0, -1)) or (0,),)):
        problem = Problem("allreduce", topology, 100, groups=groups)
        if method("one-phase").accepts(problem) is None:
            verify_schedule(method("one-phase").synthesize(problem, Options())).raise_if_bad()


def test_links_that_take_next_to_no_time_are_not_taken_in_a_circle():
    pair = [(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)]
    topology = joined(3, pair, [0.0, 0.0, 1e5, 1e5, 1e5, 1e5])
    schedule = method("one-phase").synthesize(Problem("allreduce", topology, 1), Options())
    verify_schedule(schedule).raise_if_bad()


def parts_on_hops(table: Hops, group: tuple[int, ...], trees: Trees) -> Counter[int]:
    """How many different sets of ranks cross every hop, by walking from every rank to every root."""
    crossing: set[tuple[int, frozenset[int]]] = set()
    for root, tree in trees.items():
        below: dict[int, set[int]] = {}
        for rank in group:
            at = rank
            while at != root:
                below.setdefault(at, set()).add(rank)
                at = int(table.dst[tree[at]])
        assert set(below) == set(tree)
        crossing |= {(tree[rank], frozenset(ranks)) for rank, ranks in below.items()}
    return Counter(hop for hop, _ in crossing)


@given(topology=random_topologies(max_ranks=7))
@settings(max_examples=40, deadline=None)
def test_trees_are_quickest_ways_of_all_ranks(topology):
    table, size = hops(topology), 1000
    graph = nx.DiGraph()
    graph.add_nodes_from(range(topology.num_ranks))
    for src, dst, cost in zip(table.src.tolist(), table.dst.tolist(), table.seconds(size).tolist(), strict=True):
        if cost < graph.get_edge_data(src, dst, {"weight": np.inf})["weight"]:
            graph.add_edge(src, dst, weight=cost)
    if not nx.is_strongly_connected(graph):
        return
    group = tuple(range(0, topology.num_ranks, 2))
    ways = InTrees.quickest(table, size)
    trees = grown(ways, group)
    assert set(trees) == set(group)
    for root, tree in trees.items():
        for rank in group:
            at, cost = rank, 0.0
            while at != root:
                assert int(table.src[tree[at]]) == at
                cost += float(table.seconds(size)[tree[at]])
                at = int(table.dst[tree[at]])
            assert cost == pytest.approx(nx.dijkstra_path_length(graph, rank, root), rel=1e-6)
    parts_on_hops(table, group, trees)


def test_better_parents_are_found():
    table = hops(load_topology("torus:4x4"))
    trees = grown(InTrees.quickest(table, 64), tuple(range(16)))
    crossing = parts_on_hops(table, tuple(range(16)), trees)
    # Row by row, then column by column: two sums one way round every ring and one the other, 96 in all.
    assert max(crossing.values()) == 2
    assert sum(crossing.values()) < 96
