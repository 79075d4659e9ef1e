"""Families of graphs are what their names promise; networkx, sums of numbers and known parameters are the oracles."""

from itertools import combinations
from math import comb

import networkx as nx
import numpy as np
import pytest

from collsyn.errors import InputError
from collsyn.topology.resolve import load_topology
from collsyn.topology.symmetry import is_symmetry, orbits
from tests.support.topologies import as_graph


def directed(text):
    """A preset as a networkx DiGraph; fails on parallel links."""
    topology = load_topology(text)
    graph = nx.DiGraph(as_graph(topology))
    assert graph.number_of_edges() == topology.num_links
    return graph


def undirected(text):
    """A preset as a networkx Graph; fails where a link has no mirror image."""
    graph = directed(text)
    assert all(graph.has_edge(b, a) for a, b in graph.edges)
    return graph.to_undirected()


def doubled(graph):
    """The bipartite double of a networkx graph."""
    return nx.tensor_product(graph, nx.complete_graph(2))


def disjoint_sets(total, chosen, common):
    """Sets of so many things, joined where so many are common."""
    graph = nx.Graph()
    for a, b in combinations(list(combinations(range(total), chosen)), 2):
        if len(set(a) & set(b)) == common:
            graph.add_edge(a, b)
    return graph


ORACLES = {
    "circulant:12x2x3": nx.circulant_graph(12, [2, 3]),
    "circulant:10x1x5": nx.circulant_graph(10, [1, 5]),
    "circulant:7x2": nx.cycle_graph(7),
    "hamming:2x3": nx.cartesian_product(nx.complete_graph(3), nx.complete_graph(3)),
    "hamming:4x2": nx.hypercube_graph(4),
    "johnson:5x2": nx.line_graph(nx.complete_graph(5)),
    "johnson:6x3": disjoint_sets(6, 3, 2),
    "kneser:5x2": nx.petersen_graph(),
    "kneser:7x3": disjoint_sets(7, 3, 0),
    "paley:5": nx.cycle_graph(5),
    "paley:9": nx.cartesian_product(nx.complete_graph(3), nx.complete_graph(3)),
    "paley:13": nx.paley_graph(13).to_undirected(),
    "projective:2": nx.heawood_graph(),
    "quadrangle:2": nx.LCF_graph(30, [-13, -9, 7, -7, 9, 13], 5),
    "hoffman-singleton": nx.hoffman_singleton_graph(),
    "twisted-torus:4x3x4": nx.grid_graph((4, 3), periodic=True),
    "double:(petersen)": nx.desargues_graph(),
    "double:(full:5)": nx.circulant_graph(10, [1, 3]),
    "double:(ring:4)": doubled(nx.cycle_graph(4)),
    "edges:(petersen)": nx.line_graph(nx.petersen_graph()),
    "edges:(full:4)": nx.octahedral_graph(),
}


@pytest.mark.parametrize("text", ORACLES)
def test_graphs_with_links_both_ways(text):
    assert nx.is_isomorphic(undirected(text), ORACLES[text])


# (N, D, diameter) of distance-regular graphs, from the tables of Brouwer, Cohen and Neumaier.
DISTANCE_REGULAR = {
    "hamming:3x4": (64, 9, 3),
    "johnson:7x3": (35, 12, 3),
    "kneser:7x3": (35, 4, 3),
    "double:(kneser:7x3)": (70, 4, 7),
    "paley:25": (25, 12, 2),
    "paley:17": (17, 8, 2),
    "projective:3": (26, 4, 3),
    "projective:5": (62, 6, 3),
    "quadrangle:3": (80, 4, 4),
    "hoffman-singleton": (50, 7, 2),
    "edges:(projective:2)": (21, 4, 3),
    "edges:(quadrangle:2)": (45, 4, 4),
}


@pytest.mark.parametrize("text", DISTANCE_REGULAR)
def test_distance_regular_graphs(text):
    graph = undirected(text)
    num_ranks, degree, diameter = DISTANCE_REGULAR[text]
    assert len(graph) == num_ranks
    assert set(dict(graph.degree).values()) == {degree}
    assert nx.diameter(graph) == diameter
    assert nx.is_distance_regular(graph)


@pytest.mark.parametrize(("degree", "exponent"), [(2, 3), (3, 2), (2, 1)])
def test_de_bruijn_joins_words_that_overlap(degree, exponent):
    graph = directed(f"debruijn:{degree}x{exponent}")
    words = [tuple(u // degree**k % degree for k in reversed(range(exponent))) for u in range(degree**exponent)]
    expected = {(a, b) for a, u in enumerate(words) for b, v in enumerate(words) if u[1:] == v[:-1] and a != b}
    assert set(graph.edges) == expected


@pytest.mark.parametrize(("degree", "num_ranks"), [(2, 7), (3, 11), (4, 17), (4, 4)])
def test_generalised_de_bruijn(degree, num_ranks):
    expected = {(u, (degree * u + a) % num_ranks) for u in range(num_ranks) for a in range(degree)}
    assert set(directed(f"gendebruijn:{degree}x{num_ranks}").edges) == {(a, b) for a, b in expected if a != b}


@pytest.mark.parametrize("text", ["closed-genkautz:4x12", "closed-gendebruijn:4x17", "closed-gendebruijn:2x16"])
def test_closed_graphs_are_regular_and_hold_the_open_one(text):
    topology = load_topology(text)
    degree = int(text.split(":")[1].split("x")[0])
    for ends in (topology.src, topology.dst):
        assert set(np.bincount(ends).tolist()) == {degree}
    assert set(directed(text.removeprefix("closed-")).edges) < set(as_graph(topology).edges())


def test_one_way_circulant_and_repeated_steps():
    assert set(directed("circulant1:7x1x3").edges) == {(u, (u + s) % 7) for u in range(7) for s in (1, 3)}
    topology = load_topology("circulant1:4x1x2x3x1")
    assert np.bincount(topology.dst).tolist() == [4] * 4


@pytest.mark.parametrize("text", ["twisted-torus:6x3x2", "twisted-torus:4x4x2", "twisted-torus:2x4x1"])
def test_twisted_torus_closes_its_columns_with_a_shift(text):
    across, up, twist = map(int, text.split(":")[1].split("x"))
    expected = nx.Graph()
    for x in range(across):
        for y in range(up):
            expected.add_edge((x, y), ((x + 1) % across, y))
            expected.add_edge((x, y), (x, y + 1) if y + 1 < up else ((x + twist) % across, 0))
    places = {x + across * y: (x, y) for x in range(across) for y in range(up)}
    got = nx.relabel_nodes(undirected(text), places)
    assert {frozenset(edge) for edge in got.edges} == {frozenset(edge) for edge in expected.edges}


def test_cayley_digraph_of_the_group_of_order_21():
    graph = directed("cayley:7x3x2x1x8")
    assert len(graph) == 21
    assert set(dict(graph.out_degree).values()) == set(dict(graph.in_degree).values()) == {2}

    def times(u, v):
        (x, y), (x2, y2) = (u % 7, u // 7), (v % 7, v // 7)
        return (x + 2**y * x2) % 7 + 7 * ((y + y2) % 3)

    assert set(graph.edges) == {(u, times(u, g)) for u in range(21) for g in (1, 8)}
    # The group is not commutative.
    assert times(1, 7) != times(7, 1)


@pytest.mark.parametrize("text", ["random:12x3x1", "random:16x4x2", "random:9x4x5", "random:6x5x1"])
def test_random_regular_graphs(text):
    num_ranks, degree, _ = map(int, text.split(":")[1].split("x"))
    graph = undirected(text)
    assert set(dict(graph.degree).values()) == {degree}
    assert (len(graph), nx.is_connected(graph)) == (num_ranks, True)
    assert set(directed(text).edges) == set(graph.to_directed().edges)


def test_random_graphs_follow_their_seed():
    first, again, other = (set(undirected(text).edges) for text in ("random:30x3x1", "random:30x3x1", "random:30x3x2"))
    assert first == again
    assert first != other


@pytest.mark.parametrize("text", ["random1:9x3x1", "random1:16x2x4"])
def test_random_digraphs(text):
    num_ranks, degree, _ = map(int, text.split(":")[1].split("x"))
    graph = directed(text)
    assert set(dict(graph.in_degree).values()) == set(dict(graph.out_degree).values()) == {degree}
    assert (len(graph), nx.is_strongly_connected(graph)) == (num_ranks, True)


# How many kinds of ranks the recorded symmetries leave.
KINDS = {
    "circulant:12x2x3": 1,
    "circulant1:9x1x2": 1,
    "cayley:8x2x7x1x9": 1,
    "twisted-torus:6x4x3": 1,
    "johnson:6x2": 1,
    "kneser:7x2": 1,
    "paley:7": 1,
    "paley:49": 1,
    "projective:3": 1,
    "quadrangle:3": 2,
    "hoffman-singleton": 1,
    "gendebruijn:3x8": 4,
    "hamming:2x4": 1,
    "double:(kneser:7x3)": 1,
    "edges:(petersen)": 2,
}


@pytest.mark.parametrize("text", KINDS)
def test_recorded_symmetries_hold(text):
    topology = load_topology(text)
    assert all(is_symmetry(topology, permutation) for permutation in topology.symmetries)
    assert len(np.unique(orbits(topology))) == KINDS[text]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("circulant:12x2x4", "is not connected"),
        ("circulant:12x7", "step of 7"),
        ("circulant:12", "no steps"),
        ("circulant:12x1x1", "twice"),
        ("circulant1:5x5", "step of 5"),
        ("random:9x3x1", "both odd"),
        ("random:4x4x1", "more ranks than the degree"),
        ("random:9x4", "expected random:NxDxSEED"),
        ("cayley:7x3x3x1", "expected 1"),
        ("cayley:7x3x2x1", "is not connected"),
        ("cayley:7x3x2", "at least one rank"),
        ("cayley:7x3x2x21", "rank 21"),
        ("kneser:4x2", "is not connected"),
        ("kneser:4x3", "apart"),
        ("johnson:30x15", "at most"),
        ("johnson:3x3", "takes 3 of 3"),
        ("paley:8", "odd prime"),
        ("paley:2", "odd prime"),
        ("projective:4", "a prime"),
        ("quadrangle:37", "a prime"),
        ("gendebruijn:4x3", "as many ranks"),
        ("debruijn:2x30", "diameter 30"),
        ("hamming:30x2", "30 dimensions"),
    ],
)
def test_what_does_not_exist_is_refused_in_a_line(text, why):
    with pytest.raises(InputError, match=why) as caught:
        load_topology(text)
    assert str(caught.value).startswith(f"{text}: ")
    assert "\n" not in str(caught.value)


def test_sizes_of_subsets():
    assert load_topology("johnson:8x3").num_ranks == comb(8, 3)
