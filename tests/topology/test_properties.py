"""Degrees, diameter and bisection against networkx and brute force."""

from itertools import combinations, permutations, product

import networkx as nx
import numpy as np
import pytest
from hypothesis import given

from collsyn.topology import properties as module
from collsyn.topology.properties import bisection, capacity, properties
from collsyn.topology.resolve import load_topology
from tests.support.topologies import as_graph, build, random_topologies, ring_edges


def rank_to_rank(topology):
    """Ranks joined where a chain of links through switches leads from one to the other."""
    graph, hops = nx.DiGraph(as_graph(topology)), nx.DiGraph()
    switches = range(topology.num_ranks, topology.num_vertices)
    hops.add_nodes_from(range(topology.num_ranks))
    for a, b in permutations(range(topology.num_ranks), 2):
        if nx.has_path(graph.subgraph([a, b, *switches]), a, b):
            hops.add_edge(a, b)
    return hops


@given(random_topologies())
def test_diameters_are_those_of_networkx(topology):
    found = properties(topology)
    assert found.hops == nx.diameter(rank_to_rank(topology))
    lengths = dict(nx.all_pairs_dijkstra_path_length(as_graph(topology), weight="alpha_us"))
    pairs = permutations(range(topology.num_ranks), 2)
    assert found.alpha_s * 1e6 == pytest.approx(max(lengths[a][b] for a, b in pairs))


@given(random_topologies())
def test_degrees_count_links_lanes_and_bandwidth(topology):
    graph, found = as_graph(topology), properties(topology)
    for degree, edges in ((found.out, graph.out_edges), (found.into, graph.in_edges)):
        of_ranks = [[d for *_, d in edges(rank, data=True)] for rank in range(topology.num_ranks)]
        assert degree.links == (min(map(len, of_ranks)), max(map(len, of_ranks)))
        sums = [sum(d["gb_s"] for d in rank) for rank in of_ranks]
        assert np.array(degree.bandwidth) / 1e9 == pytest.approx((min(sums), max(sums)))


@given(random_topologies(max_ranks=5, max_switches=2))
def test_bisection_is_the_least_cut_of_all_halves(topology):
    graph, n = as_graph(topology), topology.num_ranks

    def leaving(inside):
        return sum(d["gb_s"] for a, b, d in graph.edges(data=True) if a in inside and b not in inside)

    values = []
    for size in {n // 2, n - n // 2}:
        for half in combinations(range(n), size):
            for chosen in product((False, True), repeat=topology.num_vertices - n):
                values.append(leaving({*half, *(n + s for s, picked in enumerate(chosen) if picked)}))
    found = bisection(topology)
    assert found.exact
    assert found.bandwidth / 1e9 == pytest.approx(min(values))


@pytest.mark.parametrize(
    ("text", "gb_s"),
    [
        ("ring:8", 2 * 50),
        ("full:6", 9 * 50),
        ("switch:6", 3 * 50),
        ("mesh:4x4", 4 * 50),
        ("torus:4x4", 8 * 50),
        ("hypercube:4", 8 * 50),
        ("petersen", 5 * 50),
        ("dgx1", 150),
        ("dgx-a100:2", 8 * 25),
        # Too many halves to try all: the preset's own cuts.
        ("torus:8x8", 16 * 50),
        ("torus:8x4@bandwidth_gb_s=10/50", 8 * 10),
        ("mesh:32x16", 16 * 50),
        ("hypercube:6", 32 * 50),
        ("dgx-a100:4", 2 * 8 * 25),
        ("mi250:2", 16 * 16),
        ("dgx2:2@costs=teccl", 8 * 12.5),
    ],
)
def test_known_bisections(text, gb_s):
    topology = load_topology(text)
    found = bisection(topology)
    assert found.bandwidth / 1e9 == pytest.approx(gb_s)
    assert found.exact == (topology.num_ranks <= 20)


def test_cuts_and_trying_all_halves_agree(monkeypatch):
    for text in ("torus:4x4", "mesh:4x2", "hypercube:4", "full:6", "switch:6", "bipartite:4x4", "ndv2:2"):
        topology = load_topology(text)
        tried = bisection(topology)
        with monkeypatch.context() as patch:
            patch.setattr(module, "MAX_HALVES", 0)
            cut = bisection(topology)
        assert (tried.exact, cut.exact) == (True, False)
        assert cut.bandwidth == pytest.approx(tried.bandwidth)


def test_a_bisection_that_nobody_knows_is_none():
    assert bisection(load_topology("genkautz:4x32")) is None


@pytest.mark.parametrize(
    ("text", "hops", "alpha_us"),
    [
        ("torus:8x8x8", 12, 6),
        ("mesh:32x16", 46, 23),
        ("hypercube:9", 9, 4.5),
        ("kautz:4x1", 2, 1),
        ("genkautz:4x32", 3, 1.5),
        ("petersen", 2, 1),
        ("dgx1", 2, 1.4),
        ("dgx2", 1, 0.7),
        ("dgx2:2", 1, 4.0),
        ("dgx-a100:2", 2, 3.3),
        ("dgx-h100:4", 2, 3.3),
    ],
)
def test_known_diameters(text, hops, alpha_us):
    found = properties(load_topology(text))
    assert found.hops == hops
    assert found.alpha_s * 1e6 == pytest.approx(alpha_us)


def test_parallel_links_count_by_the_quickest():
    topology = build(2, [(0, 1, 10, 3), (0, 1, 10, 1), (1, 0, 10, 2)])
    assert properties(topology).alpha_s == pytest.approx(2e-6)
    assert properties(topology).out.links == (1, 2)


def test_links_without_latency_are_links():
    topology = build(3, [(a, b, 10, 0) for a, b in ring_edges(3)])
    assert (properties(topology).hops, properties(topology).alpha_s) == (2, 0)


def test_a_disconnected_topology_has_no_diameter():
    found = properties(build(3, [(0, 1), (1, 0), (1, 2)]))
    assert (found.hops, found.alpha_s) == (None, None)
    assert found.bisection.bandwidth == 0


def test_capacity_counts_what_leaves_and_what_enters():
    topology = build(3, [(0, 1, 10), (1, 0, 20), (1, 2, 30), (2, 0, 40)])
    assert np.array(capacity(topology, [0])) / 1e9 == pytest.approx((10, 60))
    assert np.array(capacity(topology, [0, 1])) / 1e9 == pytest.approx((30, 40))
    assert capacity(topology, [0, 1, 2]) == (0, 0)


def test_what_would_take_too_long_is_left_out(monkeypatch):
    monkeypatch.setattr(module, "MAX_SEARCH", 10)
    assert properties(load_topology("ring:8")).hops is None
