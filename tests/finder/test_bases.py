"""Sets of steps and generators are chosen by distances that networkx finds, too."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsyn.finder import bases
from collsyn.finder.reach_kernels import reaches
from collsyn.topology.presets import preset_wiring


def reach(graph):
    """Diameter from rank 0, and how many ranks are that far; None where some are not reached."""
    far = nx.single_source_shortest_path_length(graph, 0)
    if len(far) < len(graph):
        return None
    most = max(far.values())
    return most, sum(distance == most for distance in far.values())


def digraph(across, up, root, generators):
    """The Cayley digraph, rank by rank."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(across * up))
    for u in range(across * up):
        for g in generators:
            x = (u % across + root ** (u // across) * (g % across)) % across
            graph.add_edge(u, x + across * ((u // across + g // across) % up))
    return graph


GROUPS = [(7, 1, 1), (12, 1, 1), (7, 3, 2), (8, 2, 3), (5, 4, 2), (3, 4, 2), (9, 6, 2)]


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_reach_of_one_set(data):
    across, up, root = data.draw(st.sampled_from(GROUPS))
    n = across * up
    generators = data.draw(st.lists(st.integers(1, n - 1), min_size=1, max_size=4))
    powers = np.array([pow(root, y, across) for y in range(up)])
    found = reaches(across, powers, np.array([generators])).tolist()
    assert found == [list(reach(digraph(across, up, root, generators)) or (-1, -1))]


@given(st.data())
@settings(deadline=None, max_examples=20)
def test_the_nearest_sets_are_chosen(data):
    across, up, root = data.draw(st.sampled_from(GROUPS))
    count = data.draw(st.integers(1, 3))
    sets = bases._samples(np.random.default_rng(data.draw(st.integers(0, 99))), across * up - 1, count, 20)
    powers = np.array([pow(root, y, across) for y in range(up)])
    known = [reach(digraph(across, up, root, row)) for row in sets.tolist()]
    chosen = bases._nearest(across, powers, sets, 3)
    if not any(known):
        assert chosen == []
        return
    best = min(one for one in known if one)
    assert known[chosen[0]] == best
    assert all(known[row] for row in chosen)


@pytest.mark.parametrize(("most", "count"), [(5, 5), (6, 2), (1000, 3), (63, 4), (999, 8)])
def test_samples_are_sets(most, count):
    rows = bases._samples(np.random.default_rng(1), most, count, 200)
    assert 100 <= len(rows) <= 200
    assert rows.min() >= 1
    assert rows.max() <= most
    assert (np.diff(rows, axis=1) > 0).all()


@pytest.mark.parametrize(("across", "up", "root"), GROUPS[2:])
def test_inverses(across, up, root):
    graph = digraph(across, up, root, range(across * up))
    inverse = bases._inverses(across, up, root)
    assert graph.number_of_nodes() == len(inverse)
    for g, back in enumerate(inverse.tolist()):
        x = (g % across + root ** (g // across) * (back % across)) % across
        assert (x, (g // across + back // across) % up) == (0, 0)


@pytest.mark.parametrize("key", [(16, 4), (21, 4), (20, 3), (24, 5)])
def test_cayley_digraphs_with_inverses_have_links_both_ways(key):
    texts = list(bases._cayley(*key, 0, bases.LIGHT, two_way=True))
    for text in texts:
        wiring = preset_wiring(text)
        ends = set(zip(wiring.src.tolist(), wiring.dst.tolist(), strict=True))
        assert {(b, a) for a, b in ends} == ends
        assert set(np.bincount(wiring.dst).tolist()) == {key[1]}
    assert texts


def test_two_steps_are_as_near_as_two_steps_can_be():
    # Of degree-4 circulants of 2 m^2 + 2 m + 1 ranks the steps m, m + 1 have diameter m (Boesch and Wang 1985).
    for m in (2, 5, 11):
        n = 2 * m * m + 2 * m + 1
        text = next(bases._circulants(n, 4, 0))
        wiring = preset_wiring(text)
        graph = nx.DiGraph(zip(wiring.src.tolist(), wiring.dst.tolist(), strict=True))
        assert reach(graph)[0] == m
