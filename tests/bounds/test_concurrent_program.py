"""Maximum concurrent flow by symmetric sources against the plain program, one flow for every pair, and known values."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from collsyn.bounds.concurrent_program import Flows, Program
from collsyn.model.topology import Topology
from collsyn.topology.resolve import load_topology
from tests.support.topologies import as_graph, build, random_topologies


def everyone(topology: Topology) -> np.ndarray:
    """A megabyte from every rank to every other one."""
    demand = np.full((topology.num_ranks,) * 2, 1e6)
    np.fill_diagonal(demand, 0.0)
    return demand


def least_time_s(topology: Topology, demand: np.ndarray) -> float:
    """The optimum with a flow of its own for every pair of ranks, without any use of symmetries."""
    graph = as_graph(topology)
    arcs = list(graph.edges(data="gb_s"))
    incidence = nx.incidence_matrix(graph, oriented=True).toarray()  # +1 where a link ends, -1 where it begins
    pairs = np.argwhere(demand > 0)
    width = len(pairs) * len(arcs) + 1
    balance, need = np.zeros((len(pairs) * len(incidence), width)), np.zeros(len(pairs) * len(incidence))
    load = np.zeros((len(arcs), width))
    for i, (source, target) in enumerate(pairs.tolist()):
        columns = slice(i * len(arcs), (i + 1) * len(arcs))
        balance[i * len(incidence) : (i + 1) * len(incidence), columns] = incidence
        need[i * len(incidence) + source], need[i * len(incidence) + target] = -1.0, 1.0
        load[np.arange(len(arcs)), i * len(arcs) + np.arange(len(arcs))] = demand[source, target] / 1e6
    load[:, -1] = [-gb_s for _, _, gb_s in arcs]
    cost = np.zeros(width)
    cost[-1] = 1.0
    found = linprog(cost, load, np.zeros(len(arcs)), balance, need, method="highs")
    assert found.status == 0
    return float(found.fun) * 1e-3


def assert_brings(program: Program, flows: Flows) -> None:
    """Every source's flow brings what the demand says, and the loads of all images are no more than it says."""
    t = program.topology
    load_s = np.zeros(t.num_links)
    for source, flow in zip(flows.sources, flows.flow, strict=True):
        assert (flow >= 0).all()
        for rank, vertices, links in zip(source.images.tolist(), source.vertices, source.links, strict=True):
            assert vertices[source.rank] == rank
            moved = np.zeros(t.num_links)
            moved[links] = flow
            net = np.bincount(t.dst, moved, t.num_vertices) - np.bincount(t.src, moved, t.num_vertices)
            wanted = np.zeros(t.num_vertices)
            wanted[: t.num_ranks] = program.demand[rank]
            wanted[rank] -= wanted.sum()
            assert net == pytest.approx(wanted, abs=1e-6 * program.demand.max())
            load_s += moved * t.beta_s_per_byte
    images = sorted(rank for source in flows.sources for rank in source.images.tolist())
    assert images == np.flatnonzero(program.demand.any(axis=1)).tolist()
    assert flows.time_s == pytest.approx(load_s.max())


@given(random_topologies(max_ranks=5), st.booleans(), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_the_value_is_that_of_one_flow_a_pair(topology: Topology, corner: bool, seed: int) -> None:
    demand = everyone(topology) * np.random.default_rng(seed).integers(0, 4, (topology.num_ranks,) * 2)
    if not demand.any():
        return
    program = Program(topology, demand)
    flows = program.solved(corner)
    assert flows is not None
    assert_brings(program, flows)
    assert flows.time_s == pytest.approx(least_time_s(topology, demand), rel=1e-3)
    exact = program.solved(corner, detours=0.0)
    assert exact is not None
    assert exact.time_s == pytest.approx(least_time_s(topology, demand), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "gb_s"), [("dgx1", 9.375), ("dgx-a100:2", 3.125), ("mi250:1", 4.6875), ("torus:4x4", 6.25)]
)
def test_known_rates_of_a_pair(name: str, gb_s: float) -> None:
    topology = load_topology(name)
    for corner in (True, False):
        flows = Program(topology, everyone(topology)).solved(corner)
        assert flows is not None
        assert 1e6 / flows.time_s / 1e9 == pytest.approx(gb_s, rel=1e-6)


@pytest.mark.parametrize("name", ["dgx1", "mi250:1", "hypercube:3", "mesh:3x3", "torus:3x4", "dgx-a100:2", "petersen"])
def test_symmetries_make_the_program_smaller_and_change_nothing_else(name: str) -> None:
    topology = load_topology(name)
    small = Program(topology, everyone(topology))
    plain = Program(replace(topology, symmetries=()), everyone(topology))
    assert small.num_flows < plain.num_flows == topology.num_ranks * topology.num_links
    one, other = small.solved(True), plain.solved(True)
    assert one is not None and other is not None
    assert_brings(small, one)
    assert one.time_s == pytest.approx(other.time_s, rel=1e-4)


def test_symmetries_that_do_not_keep_the_demand_are_not_used() -> None:
    topology = load_topology("torus:3x3")
    demand = everyone(topology)
    demand[0] *= 5
    program = Program(topology, demand)
    assert [source.images.tolist() for source in program.sources if source.rank == 0] == [[0]]
    flows = program.solved(True)
    assert flows is not None
    assert_brings(program, flows)
    assert flows.time_s == pytest.approx(least_time_s(topology, demand), rel=1e-3)


def test_two_spines_carry_twice_as_much_as_one() -> None:
    # Four ranks on two leaves; each leaf has a link of 10 GB/s to each of two spines.
    leaves = [(rank, 4 + rank // 2, 100) for rank in range(4)]
    topology = build(4, [*leaves, *((4 + leaf, 6 + spine, 10) for leaf in (0, 1) for spine in (0, 1))], 4, both=True)
    flows = Program(topology, everyone(topology)).solved(True)
    assert flows is not None
    assert flows.time_s == pytest.approx(4e6 / 20e9)
