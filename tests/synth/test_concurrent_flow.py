"""Paths of a flow, pieces dealt out to them, and schedules along them, against counts, maximum flows and bounds."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsyn.bounds import fluid_bound
from collsyn.bounds.concurrent_program import Program
from collsyn.check.simulate_plan import simulate_plan
from collsyn.check.verify import verify_schedule
from collsyn.errors import Infeasible
from collsyn.lower.lower import lower
from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology
from collsyn.synth import alltoall, concurrent_flow
from collsyn.synth import concurrent_flow_kernels as kernels
from collsyn.synth.concurrent_flow import FLOW
from collsyn.synth.concurrent_flow_paths import Ways, ways_of
from collsyn.synth.problem import Options, Problem
from collsyn.topology.resolve import load_topology
from tests.support.topologies import as_graph, build, random_topologies

G = 1 << 30


@pytest.fixture(autouse=True)
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less work than by default is enough for what is tested here."""
    monkeypatch.setattr(alltoall, "WORK", 300_000)


def solve(problem: Problem) -> Schedule:
    """The verified schedule."""
    assert FLOW.accepts(problem) is None
    schedule = FLOW.synthesize(problem, Options())
    verify_schedule(schedule).raise_if_bad()
    return schedule


def ways(topology: Topology, demand: np.ndarray) -> Ways:
    """The paths of solutions at a corner and inside."""
    program = Program(topology, demand)
    solutions = [program.solved(corner) for corner in (True, False)]
    return ways_of(program, [flows for flows in solutions if flows is not None])


def demands(topology: Topology, seed: int) -> np.ndarray:
    """From nothing to three megabytes for every pair."""
    demand = np.random.default_rng(seed).integers(0, 4, (topology.num_ranks,) * 2) * 1e6
    np.fill_diagonal(demand, 0.0)
    return demand


@given(random_topologies(max_ranks=6), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_paths_bring_all_and_load_links_as_the_flow_does(topology: Topology, seed: int) -> None:
    demand = demands(topology, seed)
    if not demand.any():
        return
    found = ways(topology, demand)
    ends = list(zip(found.source.tolist(), found.target.tolist(), strict=True))
    assert sorted(ends) == [(int(a), int(b)) for a, b in np.argwhere(demand)]
    pair = np.repeat(np.arange(len(found.source)), np.diff(found.ptr))
    for p, links in enumerate(found.links.tuples()):
        vertices = [int(found.source[pair[p]]), *(int(topology.dst[link]) for link in links)]
        assert [int(topology.src[link]) for link in links] == vertices[:-1]
        assert vertices[-1] == found.target[pair[p]] and len(set(vertices)) == len(vertices)
    for share in found.share:
        assert np.bincount(pair, share) == pytest.approx(np.ones(len(found.source)))
        amount = share * found.demand[pair]
        load = np.bincount(found.links.data, np.repeat(amount, found.links.lengths()), topology.num_links)
        # What is left out of thin paths goes over the others.
        assert (load * topology.beta_s_per_byte).max() <= found.time_s * (1 + 5 * kernels.DUST)


@given(random_topologies(max_ranks=6), st.integers(0, 99), st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_pieces_are_dealt_out_to_paths_of_their_pair(topology: Topology, seed: int, pieces: int) -> None:
    demand = demands(topology, seed)
    if not demand.any():
        return
    found = ways(topology, demand)
    path, top_s = found.dealt_out(np.full(len(found.source), pieces), seed)
    pair = np.repeat(np.arange(len(found.source)), np.diff(found.ptr))[path]
    assert pair.tolist() == np.repeat(np.arange(len(found.source)), pieces).tolist()
    load = np.zeros(topology.num_links)
    for p, i in zip(path.tolist(), pair.tolist(), strict=True):
        load[found.links[p]] += found.demand[i] / pieces
    assert top_s == pytest.approx((load * topology.beta_s_per_byte).max())
    # What a pair is dealt beyond its whole shares is less than a piece for each of its paths.
    extra_s = (found.demand / pieces * np.diff(found.ptr)).sum() * topology.beta_s_per_byte.max()
    assert top_s <= found.time_s * (1 + 5 * kernels.DUST) + extra_s
    hops = found.table
    for p in set(path.tolist()):
        ranks = [int(hops.src[hop]) for hop in found.hops[p]]
        assert [link for hop in found.hops[p] for link in hops.routes[int(hop)].tolist()] == found.links[p].tolist()
        assert ranks[0] == found.source[np.searchsorted(found.ptr, p, side="right") - 1]


def test_circles_of_a_flow_are_left_out() -> None:
    topology = build(3, [(0, 1), (1, 2), (2, 1)])
    flow = np.array([2.0, 2.5, 1.5])  # 1 goes on to rank 2, 1.5 runs in a circle
    need = np.array([0.0, 1.0, 1.0])
    out = topology.out_links
    src, dst = topology.src.astype(np.int64), topology.dst.astype(np.int64)
    target, amount, ptr, links = kernels.paths_of(flow, need, 0, src, dst, np.array(out.ptr), out.data.astype(np.int64))
    assert (target.tolist(), amount.tolist()) == ([1, 2], [1.0, 1.0])
    assert (ptr.tolist(), links.tolist()) == ([0, 1, 3], [0, 0, 1])


@pytest.mark.parametrize("name", ["dgx1", "dgx-a100:2", "mi250:1", "mi250:2", "random1:16x3x2", "genkautz:3x17"])
def test_large_alltoalls_come_near_the_program_as_schedules_and_as_plans(name: str) -> None:
    topology = load_topology(name)
    schedule = solve(Problem("alltoall", topology, G))
    time_s = float(schedule.provenance["options"]["flow_us"]) * 1e-6
    assert schedule.finish_s <= time_s / 0.98
    if topology.num_ranks == 8 or name == "dgx-a100:2":
        plan = lower(schedule)
        assert simulate_plan(plan, topology, G).finish_s <= time_s / 0.97


@pytest.mark.parametrize("name", ["dgx1", "dgx-a100:2", "random1:16x3x2"])
def test_skewed_counts_come_near_the_bound(name: str) -> None:
    topology = load_topology(name)
    random = np.random.default_rng(3)
    counts = 1e4 / (1 + random.permuted(np.tile(np.arange(topology.num_ranks), (topology.num_ranks, 1)), axis=1))
    problem = Problem("alltoallv", topology, G, counts=counts.astype(int).tolist())
    bound_s = fluid_bound(problem.collective(1), topology, G).time_s
    assert solve(problem).finish_s <= bound_s / 0.95


@given(random_topologies(max_ranks=5), st.integers(0, 99), st.sampled_from((1000, 1 << 20, 1 << 28)))
@settings(max_examples=20, deadline=None)
def test_any_counts_make_right_schedules(topology: Topology, seed: int, size: int) -> None:
    random = np.random.default_rng(seed)
    counts = random.integers(0, 5, (topology.num_ranks,) * 2) * random.integers(0, 2, (topology.num_ranks,) * 2)
    np.fill_diagonal(counts, 1)
    problem = Problem("alltoallv", topology, size, counts=counts.tolist())
    reason = FLOW.accepts(problem)
    if counts.sum() == topology.num_ranks:
        assert reason == "has nothing to do where no data moves"
    else:
        schedule = solve(problem)
        assert schedule.finish_s >= fluid_bound(problem.collective(1), topology, size).time_s * (1 - 1e-9)


@pytest.mark.parametrize("kind", ["scatter", "gather"])
@pytest.mark.parametrize("name", ["lopsided", "random1:16x3x2", "mi250"])
def test_gather_and_scatter_take_the_time_of_a_maximum_flow(kind: str, name: str) -> None:
    topology = build(3, [(0, 1, 100), (1, 0, 10), (0, 2, 5), (2, 0, 50), (1, 2, 20)])
    topology = topology if name == "lopsided" else load_topology(name)
    # All shards at once: from the root to a sink behind every other rank, for the time that lets all of it through.
    graph, least, most = as_graph(topology), 0.0, 1.0
    shard = G / topology.num_ranks
    flat = nx.DiGraph()
    for a, b, gb_s in graph.edges(data="gb_s"):
        ends = (a, b) if kind == "scatter" else (b, a)
        flat.add_edge(*ends, gb_s=gb_s + flat.get_edge_data(*ends, {"gb_s": 0.0})["gb_s"])
    while most - least > 1e-4 * most:
        middle = (least + most) / 2
        for a, b in flat.edges:
            flat[a][b]["capacity"] = flat[a][b]["gb_s"] * 1e9 * middle
        flat.add_edges_from([(rank, "sink", {"gb_s": 0.0, "capacity": shard}) for rank in range(1, topology.num_ranks)])
        enough = nx.maximum_flow_value(flat, 0, "sink") >= shard * (topology.num_ranks - 1) * (1 - 1e-9)
        flat.remove_node("sink")
        least, most = (least, middle) if enough else (middle, most)
    schedule = solve(Problem(kind, topology, G))
    assert float(schedule.provenance["options"]["flow_us"]) * 1e-6 == pytest.approx(most, rel=2e-3)
    assert schedule.finish_s <= most / 0.97


def test_ways_through_all_spines_are_used() -> None:
    leaves = [(rank, 4 + rank // 2, 100) for rank in range(4)]
    topology = build(4, [*leaves, *((4 + leaf, 6 + spine, 10) for leaf in (0, 1) for spine in (0, 1))], 4, both=True)
    schedule = solve(Problem("alltoall", topology, G))
    # Four pairs each way share twice 10 GB/s; over one spine it would be twice as long.
    assert schedule.finish_s <= G / 20e9 / 0.94


def test_why_not() -> None:
    ring = load_topology("ring:4")
    reasons = {kind: FLOW.accepts(Problem(kind, ring, G)) for kind in ("allgather", "allreduce", "reducescatter")}
    assert set(reasons.values()) == {"serves what goes to one rank each, unreduced"}
    assert FLOW.accepts(Problem("scatter", load_topology("torus:32x32"), G)) == "serves at most 512 ranks"
    assert "of at most 80000 flows" in str(FLOW.accepts(Problem("alltoall", load_topology("random:150x4x1"), G)))
    star = load_topology("switch:4")
    restricted = replace(star, allowed_pairs=frozenset({(0, 1), (1, 2), (2, 3), (3, 0)}))
    assert "which a sketch restricts" in str(FLOW.accepts(Problem("alltoall", restricted, G)))


def test_ranks_that_cannot_be_reached_are_named() -> None:
    problem = Problem("alltoall", build(3, [(0, 1), (1, 0), (0, 2)]), G)
    with pytest.raises(Infeasible, match="rank 2 cannot reach rank 0"):
        FLOW.synthesize(problem, Options())


def test_the_seed_decides_and_nothing_else() -> None:
    problem = Problem("alltoall", load_topology("random1:16x3x2"), G, chunks_per_rank=3)
    first, again = solve(problem), solve(replace(problem))
    assert all(np.array_equal(a, b) for a, b in zip(first.columns().values(), again.columns().values(), strict=True))
    assert concurrent_flow._ways(problem).time_s > 0
