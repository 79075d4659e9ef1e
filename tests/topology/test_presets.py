"""The parametric presets are the graphs that their names promise; networkx is the oracle."""

from itertools import product
from math import prod

import networkx as nx
import numpy as np
import pytest

from collsyn.topology.presets import PRESETS, catalogue, preset_names
from collsyn.topology.resolve import load_topology
from tests.support.topologies import as_graph


def simple(topology):
    """The topology as a networkx DiGraph; fails on parallel links."""
    graph = as_graph(topology)
    digraph = nx.DiGraph(graph)
    assert digraph.number_of_edges() == topology.num_links
    return digraph


def undirected(topology):
    """The topology as an undirected graph; fails unless every link has an equal mirror image."""
    digraph = simple(topology)
    for a, b, costs in digraph.edges(data=True):
        assert digraph.edges[b, a] == costs
    return digraph.to_undirected()


ORACLES = {
    "ring:2": nx.path_graph(2),
    "ring:3": nx.cycle_graph(3),
    "ring:8": nx.cycle_graph(8),
    "full:6": nx.complete_graph(6),
    "mesh:7": nx.path_graph(7),
    "mesh:4x3": nx.grid_graph((4, 3)),
    "mesh:2x3x4": nx.grid_graph((2, 3, 4)),
    "mesh:3x1x3": nx.grid_graph((3, 3)),
    "torus:3x5": nx.grid_graph((3, 5), periodic=True),
    "torus:3x3x4": nx.grid_graph((3, 3, 4), periodic=True),
    "torus:2x2x2": nx.hypercube_graph(3),
    "hypercube:1": nx.path_graph(2),
    "hypercube:4": nx.hypercube_graph(4),
    "bipartite:2x3": nx.complete_bipartite_graph(2, 3),
    "bipartite:4x4": nx.complete_bipartite_graph(4, 4),
    "petersen": nx.petersen_graph(),
}


@pytest.mark.parametrize("text", ORACLES)
def test_undirected_presets_are_the_graphs_of_their_names(text):
    assert nx.is_isomorphic(undirected(load_topology(text)), ORACLES[text])


@pytest.mark.parametrize(
    ("text", "sizes"), [("mesh:4x3", (4, 3)), ("torus:3x2x4", (3, 2, 4)), ("hypercube:3", (2,) * 3)]
)
def test_ranks_of_grids_count_the_first_dimension_fastest(text, sizes):
    graph = undirected(load_topology(text))
    numbers = {place[::-1]: rank for rank, place in enumerate(product(*(range(size) for size in sizes[::-1])))}
    for place, rank in numbers.items():
        for d, size in enumerate(sizes):
            for step in (1, -1):
                other = list(place)
                other[d] += step
                if text.startswith("torus"):
                    other[d] %= size
                if tuple(other) in numbers and other != list(place):
                    assert graph.has_edge(rank, numbers[tuple(other)])


@pytest.mark.parametrize(("degree", "exponent"), [(1, 1), (2, 1), (4, 1), (2, 2), (3, 2), (2, 3)])
def test_kautz_is_an_iterated_line_graph_of_the_complete_digraph(degree, exponent):
    expected = nx.complete_graph(degree + 1, nx.DiGraph)
    for _ in range(exponent):
        expected = nx.convert_node_labels_to_integers(nx.line_graph(expected))
    graph = simple(load_topology(f"kautz:{degree}x{exponent}"))
    assert len(graph) == degree**exponent * (degree + 1)
    assert nx.is_isomorphic(graph, expected)


def test_kautz_4_1_has_20_ranks_two_hops_apart():
    graph = simple(load_topology("kautz:4x1"))
    assert len(graph) == 20
    assert nx.diameter(graph) == 2


@pytest.mark.parametrize(("degree", "num_ranks"), [(4, 12), (4, 32), (2, 7), (3, 7), (4, 20)])
def test_genkautz_is_imase_and_itoh_s_digraph_without_loops(degree, num_ranks):
    expected = nx.DiGraph()
    for u in range(num_ranks):
        expected.add_edges_from((u, (-degree * u - a) % num_ranks) for a in range(1, degree + 1))
    expected.remove_edges_from(list(nx.selfloop_edges(expected)))
    assert set(simple(load_topology(f"genkautz:{degree}x{num_ranks}")).edges) == set(expected.edges)


def test_genkautz_is_kautz_where_that_exists():
    assert nx.is_isomorphic(simple(load_topology("genkautz:4x20")), simple(load_topology("kautz:4x1")))


def test_genkautz_4_12_has_four_ranks_with_only_three_ways_in():
    # Known from its best allgather, 11/12 * 4/3 = 1.222 times the bound of degree 4.
    degrees = sorted(degree for _, degree in simple(load_topology("genkautz:4x12")).in_degree)
    assert degrees == [3] * 4 + [4] * 8


def test_switch_is_a_star_around_one_switch():
    topology = load_topology("switch:5")
    assert nx.is_isomorphic(undirected(topology), nx.star_graph(5))
    assert [topology.is_switch(v) for v in range(6)] == [False] * 5 + [True]
    assert as_graph(topology).degree(5) == 10


def test_defaults_are_50_gb_s_half_a_microsecond_and_no_overhead():
    for text in ("ring:4", "full:4", "switch:4", "torus:2x2", "hypercube:2", "kautz:2x1", "petersen"):
        topology = load_topology(text)
        assert set(topology.beta_s_per_byte.tolist()) == {1e-9 / 50}
        assert set(topology.alpha_s.tolist()) == {0.5e-6}
        assert not topology.overhead_s.any()
        assert topology.overhead_model == "none"
        assert topology.min_piece_bytes == 1


def test_costs_go_to_their_dimensions():
    graph = as_graph(load_topology("mesh:4x3@bandwidth_gb_s=100/25,alpha_us=0.5/2,overhead=alpha/0.25"))
    for a, b, costs in graph.edges(data=True):
        gb_s, alpha_us, overhead_us = (100, 0.5, 0.5) if abs(a - b) == 1 else (25, 2, 0.25)
        assert (costs["gb_s"], costs["alpha_us"], costs["overhead_us"]) == (gb_s, alpha_us, overhead_us)


def test_one_value_counts_for_all_dimensions():
    texts = ("torus:3x3@alpha_us=2,overhead=1", "torus:3x3@alpha_us=2/2,overhead=1/1")
    graphs = [list(as_graph(load_topology(text)).edges(data=True)) for text in texts]
    assert graphs[0] == graphs[1]


def test_overhead_in_microseconds_is_capped_by_the_alpha_of_each_link():
    topology = load_topology("mesh:2x2@alpha_us=0.2/0.8,overhead=0.3")
    assert sorted(set(topology.overhead_s.tolist())) == pytest.approx([0.2e-6, 0.3e-6])


@pytest.mark.parametrize("sizes", [(4, 8, 16), (2, 3, 2), (3, 2, 2), (5, 1, 3)])
def test_hetero3d_splits_a_rank_s_bandwidth_over_its_links_in_each_dimension(sizes):
    totals = (200, 100, 50)
    topology = load_topology(f"hetero3d:{'x'.join(map(str, sizes))}@bandwidth_gb_s=200/100/50")
    graph, strides = as_graph(topology), (1, sizes[0], sizes[0] * sizes[1])
    assert topology.num_ranks == prod(sizes)
    for rank in range(0, topology.num_ranks, 7):
        by_dimension = [[], [], []]
        for _, other, costs in graph.out_edges(rank, data=True):
            places = [[r // stride % size for stride, size in zip(strides, sizes, strict=True)] for r in (rank, other)]
            (dimension,) = (d for d in range(3) if places[0][d] != places[1][d])
            by_dimension[dimension].append(costs["gb_s"])
        links = [min(sizes[0] - 1, 2), sizes[1] - 1, sizes[2] - 1]
        assert [len(part) for part in by_dimension] == links
        for part, total in zip(by_dimension, totals, strict=True):
            assert not part or sum(part) == pytest.approx(total)
            assert len(set(part)) <= 1


@pytest.mark.parametrize("text", ["torus:6x4", "mesh:4x4", "hypercube:4", "ring:8", "full:6", "hetero3d:4x2x2"])
def test_half_cuts_of_grids_hold_half_of_the_ranks(text):
    topology = load_topology(text)
    assert len(topology.cuts) == sum(int(size) > 1 for size in text.split(":")[1].split("x")) * (
        4 if text == "hypercube:4" else 1
    )
    for cut in topology.cuts:
        assert 2 * len(set(cut.vertices)) == topology.num_ranks


def test_mesh_half_cut_crosses_one_link_a_line():
    topology = load_topology("mesh:4x3")
    inside = np.isin(np.arange(12), topology.cuts[0].vertices)
    crossing = np.flatnonzero(inside[topology.src] & ~inside[topology.dst])
    assert [topology.link_name(link) for link in crossing] == ["1->2", "5->6", "9->10"]


def test_links_come_with_their_mirror_image_right_behind_them():
    for text in ("torus:4x3", "full:5", "petersen", "switch:3"):
        topology = load_topology(text)
        assert topology.src[::2].tolist() == topology.dst[1::2].tolist()
        assert topology.dst[::2].tolist() == topology.src[1::2].tolist()


def test_large_grids_are_built_at_once():
    topology = load_topology("torus:200x200")
    assert (topology.num_ranks, topology.num_links) == (40_000, 160_000)


def test_the_catalogue_lists_every_preset_and_each_form_begins_with_the_name():
    entries = catalogue()
    assert [entry.name for entry in entries] == preset_names()
    assert set(PRESETS) < set(preset_names())
    for entry in entries:
        assert entry.form.split(":")[0] == entry.name
        assert entry.summary
