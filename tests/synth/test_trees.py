"""Trees: spanning, within capacities, as fast as the tightest cut, and shallow; and the schedules they become."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.bounds import fluid_bound
from collsyn.bounds.tightest import tightest_rate
from collsyn.check.verify import verify_schedule
from collsyn.errors import Infeasible
from collsyn.model.collective import make_collective
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.synth.trees_demand import pool_for
from collsyn.synth.trees_pool import Pricing, mixes
from collsyn.synth.trees_rounding import exact_k, in_parts, rounded
from collsyn.synth.trees_schedule import Flow, Pace
from collsyn.synth.trees_thinning import thinned
from collsyn.topology.resolve import load_topology
from tests.support.topologies import build, random_topologies, zoo

G = 1 << 30


def never():
    return False


def solved(problem, seed=0):
    """The pool, and its mixes."""
    pool = pool_for(problem)
    return pool, mixes(Pricing(pool, seed, never))


def unfolded(problem, k=None):
    """Trees of the best mix, rounded to k parts (by default without rounding where 4096 parts suffice)."""
    pool, found = solved(problem)
    k = k or exact_k(found[-1]) or 64
    parts = in_parts(pool, found[-1], k, Pricing(pool, 1, never))
    return pool.unfolded(parts.trees, parts.counts, k), parts.congestion


def assert_spanning(trees, members):
    """Every tree leads from its root to every member once, by routes that join the ends of its hops."""
    topology = trees.topology
    for i, root in enumerate(trees.root.tolist()):
        reached = {root}
        for hop in range(int(trees.ptr[i]), int(trees.ptr[i + 1])):
            src, dst, route = int(trees.src[hop]), int(trees.dst[hop]), trees.routes[hop].tolist()
            assert src in reached and dst not in reached
            reached.add(dst)
            vertices = [int(topology.src[route[0]]), *(int(topology.dst[link]) for link in route)]
            assert (vertices[0], vertices[-1]) == (src, dst)
            assert all(topology.is_switch(v) for v in vertices[1:-1])
            assert all(int(topology.src[link]) == v for link, v in zip(route, vertices[:-1], strict=True))
        assert reached == set(members[root])
    for root in np.unique(trees.root).tolist():
        assert trees.weight[trees.root == root].sum() == trees.k


def loads_of(trees):
    """Parts of the size on every link, hop by hop."""
    loads = {}
    for hop, tree in enumerate(trees.tree_of_hop.tolist()):
        for link in trees.routes[hop].tolist():
            part = trees.share[int(trees.root[tree])] * int(trees.weight[tree]) / trees.k
            loads[link] = loads.get(link, Fraction(0)) + part
    return loads


@pytest.mark.parametrize("kind", ["allgather", "broadcast"])
@pytest.mark.parametrize(
    "name", ["line", "unequal ring", "star", "unequal star", "two boxes", "lopsided", "petersen", "dgx1", "ndv2:2"]
)
def test_trees_span_and_are_as_fast_as_the_tightest_cut(name, kind):
    topology = zoo(name)
    problem = Problem(kind, topology, G)
    trees, congestion = unfolded(problem)
    assert_spanning(trees, dict.fromkeys(range(topology.num_ranks), range(topology.num_ranks)))
    assert trees.loads == loads_of(trees)
    bandwidth = topology.exact_bandwidth_gb_s
    assert trees.algbw_gb_s == min(bandwidth[link] / load for link, load in trees.loads.items())
    optimum = tightest_rate(problem.collective(), topology)
    assert float(optimum / trees.algbw_gb_s) == pytest.approx(congestion, rel=1e-9)
    assert optimum == trees.algbw_gb_s


@given(random_topologies(max_switches=0), st.sampled_from(["allgather", "broadcast"]), st.data())
def test_without_switches_random_machines_reach_the_tightest_cut(topology, kind, data):
    n = topology.num_ranks
    root = data.draw(st.integers(0, n - 1)) if kind == "broadcast" else None
    counts = data.draw(st.none() | st.lists(st.integers(0, 3), min_size=n, max_size=n).filter(any))
    _, found = solved(Problem(kind, topology, G, root=root, counts=None if kind == "broadcast" else counts))
    assert found[-1].congestion == pytest.approx(1.0, abs=1e-6)
    for mix in found:
        parts = {}
        for tree, part in zip(mix.trees, mix.parts.tolist(), strict=True):
            parts[tree.number] = parts.get(tree.number, 0.0) + part
        assert all(total == pytest.approx(1.0) for total in parts.values())


# Hops from a root to the farthest rank at which the optimum is reached; published packings are in docs/trees.md.
HEIGHTS = {
    "dgx-a100:1": 1,
    "dgx-a100:2": 2,
    "dgx-a100:4": 2,
    "dgx2:2": 2,
    "mi250:1": 6,
    "dgx1": 2,
    "bipartite:4x4": 2,
    "torus:4x4": 4,
    "hypercube:4": 4,
    "petersen": 2,
    "kautz:4x1": 3,
    "genkautz:4x12": 3,
    "mesh:4x4": 6,
}


@pytest.mark.parametrize("name", HEIGHTS)
def test_small_height_at_the_optimum(name):
    _, found = solved(Problem("allgather", load_topology(name), G))
    assert found[-1].congestion == pytest.approx(1.0, abs=1e-6)
    assert found[-1].height <= HEIGHTS[name]
    assert [mix.height for mix in found] == sorted(mix.height for mix in found)
    assert [mix.congestion for mix in found] == sorted((mix.congestion for mix in found), reverse=True)


def test_a_limit_of_height_is_kept():
    pool = pool_for(Problem("allgather", load_topology("genkautz:4x12"), G))
    found = mixes(Pricing(pool, 0, never), 2)
    assert found[-1].height == 2 and found[-1].congestion > 1.3


@pytest.mark.parametrize("name", ["dgx-a100:2", "mi250:1", "genkautz:4x12"])
@pytest.mark.parametrize("k", [1, 2, 5, 16])
def test_fixed_k(name, k):
    problem = Problem("allgather", load_topology(name), G)
    trees, congestion = unfolded(problem, k)
    n = problem.topology.num_ranks
    assert_spanning(trees, dict.fromkeys(range(n), range(n)))
    optimum = tightest_rate(problem.collective(), problem.topology)
    assert float(optimum / trees.algbw_gb_s) == pytest.approx(congestion, rel=1e-9)
    # Rounding k parts loses at most one part of every tree of the mix.
    assert 1 - 1e-9 <= congestion <= 1 + 4.0 / k


def test_dgx_a100_needs_thirteen_parts():
    """Two boxes: 15 hops between boxes for 13 parts, as 11 x 1 + 2 x 2 or 12 x 1 + 1 x 3."""
    pool, found = solved(Problem("allgather", load_topology("dgx-a100:2"), G))
    assert exact_k(found[-1]) == 13
    parts = rounded(pool, found[-1], 13)
    assert len(parts.trees) == 2 and parts.counts.sum() == 13
    assert parts.congestion == pytest.approx(1.0)
    assert pool.unfolded(parts.trees, parts.counts, 13).algbw_gb_s == Fraction(1040, 3)


@pytest.mark.parametrize("name, k, height", [("torus:4x4", 4, 7), ("dgx1", 6, 5), ("mesh:4x4", 2, 9)])
def test_whole_trees_of_a_broadcast(name, k, height):
    """As many unit trees as links leave the root, which Edmonds' theorem promises."""
    trees, congestion = unfolded(Problem("broadcast", load_topology(name), G), k)
    assert congestion == pytest.approx(1.0)
    assert trees.height <= height


def test_fewer_trees_share_the_parts_of_those_left_out():
    problem = Problem("allgather", load_topology("mi250:2"), G)
    pool, found = solved(problem)
    fewer = thinned(Pricing(pool, 1, never), found[-1])
    numbers = [len(mix.trees) for mix in (found[-1], *fewer)]
    assert len(fewer) > 5 and all(np.diff(numbers) < 0)
    room = problem.topology.bandwidth / (float(pool.algbw_gb_s) * 1e9)
    for mix in fewer:
        assert mix.congestion <= 1.07
        for number in range(len(pool.demands)):
            parts = [part for tree, part in zip(mix.trees, mix.parts, strict=True) if tree.number == number]
            assert sum(parts) == pytest.approx(1)
        # The congestion is what the links really carry.
        load = sum(part * tree.load for tree, part in zip(mix.trees, mix.parts, strict=True))
        assert (load[pool.moves.orbit] / room).max() == pytest.approx(mix.congestion)


def test_partners_are_the_only_ones_across_their_switch():
    problem = Problem("allgather", load_topology("mi250:2"), G)
    pool = pool_for(problem)
    pairs = pool.partnerships()
    assert pairs and all(sorted(each.of.tolist()) == list(range(32)) for each in pairs)
    pool.partners = pairs[0]
    best = mixes(Pricing(pool, 0, never))[-1]
    parts = rounded(pool, best, 16, others=0)
    trees = pool.unfolded(parts.trees, parts.counts, 16)
    assert_spanning(trees, {root: range(32) for root in range(32)})
    crossing = trees.routes.lengths() > 1
    assert crossing.any()
    assert (pairs[0].of[trees.src[crossing]] == trees.dst[crossing]).all()


def test_no_partners_where_a_switch_is_the_only_way():
    assert not pool_for(Problem("allgather", load_topology("dgx-a100:1"), G)).partnerships()


def test_groups_keep_to_their_members():
    topology = zoo("dgx1")
    groups = ((0, 1, 2, 3), (4, 5, 6, 7))
    trees, _ = unfolded(Problem("allgather", topology, G, groups=groups))
    assert_spanning(trees, {rank: group for group in groups for rank in group})
    line = zoo("line")
    apart = Problem("allgather", line, G, groups=((0, 2), (1, 3)))
    assert "process group" in str(method("trees").accepts(apart))


def test_what_cannot_be_reached_is_named():
    apart = build(3, [(0, 1), (1, 0), (1, 2)])
    with pytest.raises(Infeasible, match="rank 2 cannot reach rank 0"):
        pool_for(Problem("allgather", apart, G)).start()


@given(st.integers(1, 40), st.integers(1, 16), st.integers(1, 8), st.integers(1, 4), st.sampled_from([0.0, 0.9]))
def test_messages_pass_on_only_what_is_there(pieces, leaf, relay, taper, horizon):
    trees, _ = unfolded(Problem("allgather", zoo("genkautz:3x7"), G), 4)
    flow = Flow(trees, 3, G)
    hop, first, count, finish_s = flow.order(Pace(pieces, leaf, relay, taper, 0.1, horizon), 10_000)
    arrived = {}
    for h, begin, n in zip(hop.tolist(), first.tolist(), count.tolist(), strict=True):
        before = int(trees.before[h])
        assert n > 0 and begin == arrived.get(h, 0)
        assert before < 0 or begin + n <= arrived[before]
        arrived[h] = begin + n
    assert [arrived[h] for h in range(len(trees.dst))] == flow.chunks.tolist()
    assert flow.least_s <= finish_s < 4 * flow.least_s
    assert flow.order(Pace(pieces, leaf), 5)[3] == np.inf


@pytest.mark.parametrize("kind", ["allgather", "reducescatter"])
@pytest.mark.parametrize("name", ["dgx-a100:1", "dgx-a100:2", "dgx1", "torus:4x4", "bipartite:4x4", "genkautz:4x12"])
def test_large_messages_come_close_to_the_bound(name, kind):
    problem = Problem(kind, load_topology(name), G)
    schedule = method("trees").synthesize(problem, Options())
    verify_schedule(schedule).raise_if_bad()
    bound = fluid_bound(schedule.collective, problem.topology, G)
    assert G / float(bound.algbw_exact) * 1e-9 / schedule.finish_s >= 0.97


def test_a_card_behind_slower_links_is_filled_by_two_messages():
    # 12.5 GB/s behind links of 12: one message at a time could not fill it.
    problem = Problem("allgather", load_topology("ndv2:2"), G)
    schedule = method("trees").synthesize(problem, Options())
    assert fluid_bound(schedule.collective, problem.topology, G).time_s / schedule.finish_s >= 0.97
    assert np.isclose(schedule.rate.max(), 6.25e9)


def test_a_broadcast_over_too_many_links_is_refused():
    problem = Problem("broadcast", load_topology("torus:16x16"), G)
    assert "600 links" in str(method("trees").accepts(problem))
    assert method("trees").accepts(problem.as_kind("allgather")) is None


def test_chunks_that_are_given_are_kept():
    problem = Problem("allgather", zoo("dgx-a100:2"), G, chunks_per_rank=13)
    schedule = method("trees").synthesize(problem, Options())
    assert schedule.collective.chunks_per_rank == 13
    assert schedule.provenance["options"]["parts"] in (1, 13)


def test_a_time_limit_ends_the_search():
    problem = Problem("allgather", load_topology("mi250:1"), G)
    schedule = method("trees").synthesize(problem, Options(time_limit_s=1e-6))
    verify_schedule(schedule).raise_if_bad()


def test_counts_without_data_have_no_trees():
    topology = zoo("dgx1")
    problem = Problem("allgather", topology, G, counts=[0, 3, 1, 0, 2, 1, 1, 1])
    trees, _ = unfolded(problem)
    assert sorted(set(trees.root.tolist())) == [1, 2, 4, 5, 6, 7]
    assert trees.share[1] == Fraction(3, 9)
    assert trees.algbw_gb_s == tightest_rate(make_collective("allgather", 8, counts=problem.counts), topology)


@pytest.mark.parametrize("kind", ["broadcast", "allgather", "allreduce"])
def test_a_group_of_all_ranks_in_another_order(kind: str) -> None:
    topology = load_topology("ring:4")
    problem = Problem(kind, topology, 1000, groups=((0, 2, 1, 3),))
    schedule = method("trees").synthesize(problem, Options())
    verify_schedule(schedule).raise_if_bad()
