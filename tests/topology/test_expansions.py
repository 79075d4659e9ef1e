"""Graphs made from graphs: networkx is the oracle, and texts of any nesting become what they say or one line."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.errors import InputError
from collsyn.topology.expansions import degree_expansion, line_graph, product
from collsyn.topology.presets import preset_wiring
from collsyn.topology.resolve import load_topology
from collsyn.topology.symmetry import is_symmetry, orbits
from tests.support.topologies import as_graph

BASES = ["ring:5", "full:4", "bipartite:2x3", "genkautz:3x7", "circulant1:5x1x2", "petersen", "random1:7x2x3"]


def graph_of(wiring):
    """A wiring as a networkx multigraph."""
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(range(wiring.num_ranks))
    graph.add_edges_from(zip(wiring.src.tolist(), wiring.dst.tolist(), strict=True))
    return graph


def links(graph):
    """Ends of all links, parallel ones as often as they are there."""
    return sorted((a, b) for a, b, *_ in graph.edges)


@pytest.mark.parametrize("text", BASES)
def test_line_graph(text):
    base = preset_wiring(text)
    number = {edge: i for i, edge in enumerate(zip(base.src.tolist(), base.dst.tolist(), strict=True))}
    expected = nx.relabel_nodes(nx.line_graph(nx.DiGraph(graph_of(base))), number)
    assert links(graph_of(line_graph(base))) == links(expected)


@pytest.mark.parametrize("text", BASES)
@pytest.mark.parametrize("copies", [1, 2, 3])
def test_degree_expansion_is_the_lexicographic_product_with_loose_copies(text, copies):
    base = preset_wiring(text)
    expected = nx.lexicographic_product(nx.DiGraph(graph_of(base)), nx.empty_graph(copies, nx.DiGraph))
    numbered = nx.relabel_nodes(expected, {(v, i): i * base.num_ranks + v for v, i in expected})
    assert links(graph_of(degree_expansion(base, copies))) == links(numbered)


@pytest.mark.parametrize("first", BASES[:4])
@pytest.mark.parametrize("second", BASES[2:])
def test_product(first, second):
    a, b = preset_wiring(first), preset_wiring(second)
    expected = nx.cartesian_product(nx.DiGraph(graph_of(a)), nx.DiGraph(graph_of(b)))
    numbered = nx.relabel_nodes(expected, {(x, y): x + a.num_ranks * y for x, y in expected})
    assert links(graph_of(product([a, b]))) == links(numbered)


def test_names_and_nesting():
    assert nx.is_isomorphic(as_graph(load_topology("power:(ring:4)x2")), as_graph(load_topology("torus:4x4")))
    assert nx.is_isomorphic(as_graph(load_topology("expand:(full:2)x4")), as_graph(load_topology("bipartite:4x4")))
    assert nx.is_isomorphic(as_graph(load_topology("line:(full:5)")), as_graph(load_topology("kautz:4x1")))
    three = load_topology("product:(full:2)x(line:(full:3))x(ring:4)")
    assert three.num_ranks == 2 * 6 * 4
    assert load_topology("line:(line:(bipartite:4x4))").num_ranks == 128


def test_lanes_of_a_trunk_are_links_of_their_own():
    trunk = load_topology("trunk:(full:3)x2")
    assert (trunk.num_links, set(np.bincount(trunk.dst).tolist())) == (12, {4})
    line = load_topology("line:(trunk:(full:3)x2)")
    assert line.num_ranks == 12
    assert set(np.bincount(line.dst).tolist()) == {4}
    assert nx.number_of_selfloops(as_graph(line)) == 0


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("line:(bipartite:3x3)", 1),
        ("line:(trunk:(ring:3)x2)", 2),
        ("expand:(ring:5)x3", 1),
        ("product:(ring:3)x(full:4)", 1),
        ("product:(mesh:3)x(ring:3)", 2),
        ("power:(circulant1:5x1x2)x2", 1),
        ("trunk:(ring:5)x2", 1),
        ("double:(ring:5)", 1),
        ("edges:(full:5)", 2),
    ],
)
def test_symmetries_go_along(text, kinds):
    topology = load_topology(text)
    assert all(is_symmetry(topology, permutation) for permutation in topology.symmetries)
    assert len(np.unique(orbits(topology))) == kinds


def test_costs_are_given_at_the_end_one_a_dimension_of_a_product():
    topology = load_topology("product:(ring:4)x(full:3)@alpha_us=1/2,bandwidth_gb_s=25")
    for src, dst, alpha_s in zip(topology.src.tolist(), topology.dst.tolist(), topology.alpha_s.tolist(), strict=True):
        assert alpha_s == pytest.approx(1e-6 if src // 4 == dst // 4 else 2e-6)
    assert load_topology("line:(full:3)@alpha_us=3").alpha_s[0] == pytest.approx(3e-6)
    assert topology.name == "product:(ring:4)x(full:3)@alpha_us=1/2,bandwidth_gb_s=25"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("line:bipartite:4x4", "expected line|form line"),
        ("line:", "form line"),
        ("line", "form line"),
        ("line:(full:3", "closing"),
        ("line:(full:3))", "cannot read"),
        ("line:(full:3)x2", "1 numbers"),
        ("expand:(full:3)", "0 numbers"),
        ("expand:(full:3)x", "ends too early"),
        ("expand:(full:3)x0", "the number 0; expected 1 .. "),
        ("expand:(full:3)x1000000000", "the number 1000000000; expected 1 .. "),
        ("expand:(full:3)x999999", "at most"),
        ("power:(full:3)x17", "17 factors"),
        ("power:(full:9)x16", "at most"),
        ("product:(full:3)", "1 graphs"),
        ("line:(switch:4)", "has switches"),
        ("line:(hetero3d:4x2x3)", "shares bandwidths"),
        ("line:(nonsense:4)", "is no formula"),
        ("line:(dgx1)", "is no formula"),
        ("line:(full:3@alpha_us=1)", "costs inside"),
        ("line:(full:3)@colour=blue", "not known"),
        ("line:(full:1)", "at least 2"),
        ("edges:(kautz:2x1)", "one way"),
        ("edges:(trunk:(full:3)x2)", "several"),
        ("line:(" * 40 + "full:3" + ")" * 40, "deep|at most|far fewer"),
        ("line:(line:(line:(line:(line:(line:(full:40))))))", "at most|far fewer"),
    ],
)
def test_bad_texts_are_refused_in_a_line(text, why):
    with pytest.raises(InputError, match=why) as caught:
        load_topology(text)
    assert str(caught.value).startswith(f"{text}: ")


@given(st.text(alphabet="(x)12:@lineful", max_size=24))
def test_any_text_is_a_topology_or_an_input_error(rest):
    for name in ("line:", "product:", "expand:"):
        try:
            load_topology(name + rest)
        except InputError as error:
            assert "\n" not in str(error)
