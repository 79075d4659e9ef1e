"""Allreduce along pairs of trees: pairs cover each other, sums wait for all, links are as busy as the program says."""

import csv
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.bounds import recheck
from collsyn.bounds.joint import joint_split
from collsyn.check.verify import verify_schedule
from collsyn.synth.joint import JOINT
from collsyn.synth.joint_flow import JointFlow, Pace, paired
from collsyn.synth.joint_mix import JointPools, exact_units, in_units
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from tests.conftest import REPOSITORY
from tests.support.topologies import build, random_topologies, ring_edges, zoo

G = 1 << 30


def never():
    return False


def pairs_of(topology, units=None):
    """Pairs of the best mix, in that many units (by default without rounding), and the mix."""
    pools = JointPools(topology, 0, never)
    mix = pools.mixes()[-1]
    counts = in_units(mix, pools.pools[0].room, units or exact_units(mix) or 48)
    return paired(pools.unfolded(counts, 0), pools.unfolded(counts, 1)), counts


def way_to_root(hops, rank):
    """Ranks on the way from a rank up to the root."""
    at, way = rank, [rank]
    while at in hops:
        at = hops[at]
        way.append(at)
        assert len(way) <= len(hops) + 1
    return way


@given(random_topologies(max_ranks=7))
def test_pairs_are_trees_to_one_root_and_wait_for_each_other(topology):
    if topology.num_ranks < 2:
        return
    pairs, counts = pairs_of(topology, units=6)
    assert pairs.units.sum() % counts.units == 0
    assert (pairs.units > 0).all()
    everyone = set(range(topology.num_ranks))
    for pair in range(len(pairs.units)):
        hops = range(int(pairs.ptr[pair]), int(pairs.ptr[pair + 1]))
        up = {int(pairs.src[h]): int(pairs.dst[h]) for h in hops if pairs.up[h]}
        down = {int(pairs.dst[h]): int(pairs.src[h]) for h in hops if not pairs.up[h]}
        roots = {tuple(everyone - set(edges)) for edges in (up, down)}
        assert len(roots) == 1, "one root for both"
        (root,) = roots.pop()
        assert all(way_to_root(edges, rank)[-1] == root for edges in (up, down) for rank in everyone)
        for h in hops:
            links = pairs.routes[h].tolist()
            assert (topology.src[links[0]], topology.dst[links[-1]]) == (pairs.src[h], pairs.dst[h])
            assert all(topology.dst[a] == topology.src[b] for a, b in pairwise(links))
            # A hop sends the sum of what came up to its source, or what came down to it.
            source = int(pairs.src[h])
            from_above = not pairs.up[h] and source != root
            wanted = {k for k in hops if pairs.dst[k] == source and pairs.up[k] != from_above}
            assert set(pairs.needs[h].tolist()) == wanted
            assert all(h in pairs.following[k] for k in wanted)


@given(random_topologies(max_ranks=8))
def test_no_trees_beat_the_program(topology):
    if topology.num_ranks < 2:
        return
    pairs, counts = pairs_of(topology)
    rate = 1e-9 / pairs.least_part_s
    assert rate <= float(joint_split(topology).algbw_exact) * (1 + 1e-6)
    assert counts.congestion == pytest.approx(float(joint_split(topology).algbw_exact) / rate, rel=1e-6)


@pytest.mark.parametrize("name", ["mesh:4x4", "mesh:3x3", "genkautz:4x12", "dgx1", "torus:4x4"])
def test_trees_reach_the_program_where_switches_do_not_multiply(name):
    pools = JointPools(load_topology(name), 0, never)
    assert pools.mixes()[-1].congestion <= 1.001


@given(random_topologies(max_ranks=6), st.integers(1, 3), st.sampled_from([1, 2, 99]), st.sampled_from([0.0, 0.9]))
def test_the_order_sends_each_chunk_once_after_what_it_needs(topology, split, batch, horizon):
    if topology.num_ranks < 2:
        return
    pairs, _ = pairs_of(topology, units=topology.num_ranks)
    hop, first, count, finish_s = JointFlow(pairs, split, 1 << 20).order(Pace(batch, 0.1, horizon))
    sent = np.zeros(len(pairs.src), dtype=np.int64)
    for h, start, n in zip(hop.tolist(), first.tolist(), count.tolist(), strict=True):
        assert start == sent[h]
        assert 0 < n <= batch
        sent[h] += n
        assert all(sent[k] >= sent[h] for k in pairs.needs[h].tolist())
    assert np.array_equal(sent, (pairs.units * split)[pairs.pair_of_hop])
    assert np.isfinite(finish_s)


@pytest.mark.parametrize(
    ("name", "subset", "part"),
    [
        ("mesh:4x4", None, 0.97),
        ("mesh:3x3", None, 0.97),
        ("genkautz:4x12", None, 0.97),
        ("dgx1", (0, 1, 4), 0.97),
        ("dgx1", (0, 1, 2, 5, 6, 7), 0.97),
    ],
)
def test_large_allreduces_reach_the_program(name, subset, part):
    topology = load_topology(name)
    problem = Problem("allreduce", topology if subset is None else topology.subset(subset), G)
    assert JOINT.accepts(problem) is None
    schedule = JOINT.synthesize(problem, Options())
    verify_schedule(schedule).raise_if_bad()
    (bound,) = schedule.bounds
    assert (bound.kind, bound.scope) == ("dual", "tree")
    assert recheck(bound, schedule.collective, problem.topology, G) is None
    assert bound.time_s <= schedule.finish_s <= bound.time_s / part
    composed = method("trees").synthesize(problem, Options())
    assert schedule.finish_s < composed.finish_s


@pytest.mark.slow
def test_all_parts_of_a_dgx1_reach_the_program():
    table = REPOSITORY / "tests" / "support" / "dgx1_allocations.csv"
    served = 0
    for row in csv.DictReader(line for line in table.read_text().splitlines() if not line.startswith("#")):
        preset, link_gb_s = {"DGX-1P": ("dgx1p", 20), "DGX-1V": ("dgx1", 25)}[row["machine"]]
        topology = load_topology(preset).subset([int(rank) for rank in row["gpus"].split()])
        problem = Problem("allreduce", topology, G)
        joint = JOINT.accepts(problem) is None
        served += joint
        schedule = (JOINT if joint else method("trees")).synthesize(problem, Options())
        verify_schedule(schedule).raise_if_bad()
        least_s = G / (float(row["allreduce_joint"]) * link_gb_s) * 1e-9
        assert 0.97 <= least_s / schedule.finish_s <= 1.0001, row
    assert served == 52


@pytest.mark.slow
def test_a_mesh_of_64_ranks_reaches_the_program():
    topology = load_topology("mesh:8x8")
    schedule = JOINT.synthesize(Problem("allreduce", topology, G), Options())
    verify_schedule(schedule).raise_if_bad()
    assert schedule.finish_s <= schedule.bounds[0].time_s / 0.95


def test_it_refuses_what_it_cannot_help():
    def said(kind, topology, **more):
        return JOINT.accepts(Problem(kind, topology, G, **more)) or ""

    assert "makes no allgather" in said("allgather", zoo("line"))
    assert "no faster" in said("allreduce", load_topology("torus:4x4"))
    assert "no faster" in said("allreduce", load_topology("dgx-a100:2"))
    assert "group" in said("allreduce", zoo("line"), groups=((0, 1), (2, 3)))
    assert "reach each other" in said("allreduce", build(3, [(0, 1), (1, 0), (0, 2)]))
    assert "2 to" in said("allreduce", build(1, [(0, 1)], switches=1))


def test_chunks_and_time_are_as_asked():
    topology = zoo("line")
    for chunks in (1, 5):
        schedule = JOINT.synthesize(Problem("allreduce", topology, 4096, chunks), Options())
        assert schedule.collective.chunks_per_rank == chunks
        verify_schedule(schedule).raise_if_bad()
    hurried = JOINT.synthesize(Problem("allreduce", load_topology("mesh:4x4"), G), Options(time_limit_s=0.0))
    verify_schedule(hurried).raise_if_bad()


def test_one_way_links_carry_sums_and_copies():
    topology = build(4, ring_edges(4))
    pairs, _ = pairs_of(topology)
    assert pairs.height == 6
    assert 1e-9 / pairs.least_part_s == pytest.approx(float(joint_split(topology).algbw_exact))
