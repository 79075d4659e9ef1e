"""Loops over trees and hops against networkx, and the groups of symmetries that unfold trees."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.synth import trees_kernels as kernels
from collsyn.synth.trees_symmetry import moves
from collsyn.topology.resolve import load_topology
from collsyn.topology.symmetry import is_symmetry
from tests.support.topologies import random_topologies, zoo

SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def costs(draw):
    """A matrix of whole costs of hops, some of which are missing, and a root."""
    n = draw(st.integers(1, 8))
    random = np.random.default_rng(draw(SEEDS))
    cost = random.integers(1, 10, (n, n)).astype(np.float64)
    cost[random.random((n, n)) < draw(st.sampled_from([0.0, 0.3, 0.6]))] = np.inf
    np.fill_diagonal(cost, np.inf)
    return cost, draw(st.integers(0, n - 1))


def graph_of(cost, root):
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(cost)))
    for u, v in zip(*np.nonzero(np.isfinite(cost)), strict=True):
        if v != root:
            graph.add_edge(int(u), int(v), weight=float(cost[u, v]))
    return graph


def measured(parent):
    depth, height = np.empty(len(parent), np.int64), np.empty(len(parent), np.int64)
    kernels.measure(parent, depth, height)
    return depth, height


def assert_tree(parent, cost, root):
    assert parent[root] == -1
    graph = nx.DiGraph([(int(p), v) for v, p in enumerate(parent.tolist()) if p >= 0])
    graph.add_node(root)
    assert len(graph) == len(cost) and nx.is_arborescence(graph)
    assert all(np.isfinite(cost[u, v]) for u, v in graph.edges)
    depth, height = measured(parent)
    lengths = nx.single_source_shortest_path_length(graph, root)
    assert depth.tolist() == [lengths[v] for v in range(len(cost))]
    assert height[root] == max(lengths.values())


@given(costs())
def test_the_cheapest_tree(case):
    cost, root = case
    graph = graph_of(cost, root)
    parent = kernels.cheapest_tree(cost, root)
    if len(nx.descendants(graph, root)) < len(cost) - 1:
        assert (parent == -1).all()
        return
    assert_tree(parent, cost, root)
    least = nx.minimum_spanning_arborescence(graph).size("weight") if len(cost) > 1 else 0
    assert kernels.tree_cost(cost, parent) == pytest.approx(least)


@given(costs(), st.integers(0, 3), SEEDS)
def test_shallow_trees_keep_their_height_and_get_no_dearer(case, more, seed):
    cost, root = case
    start = kernels.nearest_tree(cost, root)
    if (np.delete(start, root) < 0).any():
        assert len(nx.descendants(graph_of(cost, root), root)) < len(cost) - 1
        return
    assert_tree(start, cost, root)
    depth, _ = measured(start)
    nearest = nx.single_source_shortest_path_length(graph_of(cost, root), root)
    assert depth.tolist() == [nearest[v] for v in range(len(cost))]
    limit = int(depth.max()) + more
    better = kernels.shallow_tree(cost, root, limit, start)
    best = kernels.annealed_tree(cost, root, limit, better, 500, np.array([seed + 1], dtype=np.uint64))
    for parent in (better, best):
        assert_tree(parent, cost, root)
        assert measured(parent)[0].max(initial=0) <= limit
    assert kernels.tree_cost(cost, best) <= kernels.tree_cost(cost, better) <= kernels.tree_cost(cost, start)


@given(random_topologies(), SEEDS)
def test_costs_of_hops_are_those_of_the_cheapest_ways_through_switches(topology, seed):
    price = np.random.default_rng(seed).integers(0, 10, topology.num_links).astype(np.float64)
    n = topology.num_ranks
    cost = np.empty((n, topology.num_vertices))
    last = np.empty((n, topology.num_vertices), dtype=np.int32)
    out = topology.out_links
    kernels.hop_costs(n, out.ptr, out.data, topology.dst, price, cost, last)
    for source in range(n):
        graph = nx.MultiDiGraph()
        graph.add_node(source)
        for link, (a, b) in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True)):
            if (a == source or a >= n) and b != source:
                graph.add_edge(a, b, weight=price[link])
        known = nx.single_source_dijkstra_path_length(graph, source)
        for target in range(topology.num_vertices):
            if target == source:
                assert np.isinf(cost[source, target])
                continue
            assert cost[source, target] == known.get(target, np.inf)
            way, at = [], target
            while at != source and target in known:
                way.append(int(last[source, at]))
                at = int(topology.src[way[-1]])
            assert sum(price[way]) == known.get(target, 0)


@pytest.mark.parametrize(
    "name, order",
    [("torus:3x3", 9), ("dgx-a100:2", 16), ("bipartite:4x4", 8), ("dgx1", 4), ("mi250:2", 8), ("line", 1)],
)
def test_moves_leave_no_rank_in_place(name, order):
    topology = zoo(name) if name in ("line", "dgx1") else load_topology(name)
    found = moves(topology, lambda image: True)
    assert len(found) == order
    n = topology.num_ranks
    for vertices, links in zip(found.vertices, found.links, strict=True):
        assert is_symmetry(topology, vertices)
        assert np.array_equal(topology.src[links], vertices[topology.src])
        assert np.array_equal(topology.dst[links], vertices[topology.dst])
        assert np.array_equal(topology.beta_s_per_byte[links], topology.beta_s_per_byte)
    assert not (found.vertices[1:, :n] == np.arange(n)).any()
    for rank in range(n):
        assert found.vertices[found.element[rank], found.first[rank]] == rank
    assert (np.bincount(found.orbit) == found.orbit_size).all()
    assert all(
        set(found.links[:, e]) == set(np.flatnonzero(found.orbit == found.orbit[e])) for e in (0, len(links) - 1)
    )


def test_only_symmetries_that_are_kept_count():
    topology = load_topology("dgx-a100:2")
    assert len(moves(topology, lambda image: image[0] == 8)) == 2
    assert len(moves(topology, lambda image: False)) == 1
