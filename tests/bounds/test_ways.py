"""Shortest ways and narrowest links: against enumeration of all routes."""

from functools import cache

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.bounds.ways import Ways, least_overhead, narrowest, shortest, through_switches, within
from tests.support.topologies import ZOO, build, random_topologies, zoo


def routes(topology):
    """All routes: simple paths of links from rank to another rank through switches."""
    found = []

    def extend(route, vertices):
        for link in topology.out_links[vertices[-1]].tolist():
            head = int(topology.dst[link])
            if head in vertices:
                continue
            if head < topology.num_ranks:
                found.append((*route, link))
            else:
                extend((*route, link), (*vertices, head))

    for rank in range(topology.num_ranks):
        extend((), (rank,))
    return found


def by_enumeration(topology, num_bytes):
    graph = nx.DiGraph()
    graph.add_nodes_from(range(topology.num_ranks))
    for route in routes(topology):
        links = list(route)
        cost = float(topology.alpha_s[links].sum() + num_bytes * topology.beta_s_per_byte[links].max())
        ends = int(topology.src[links[0]]), int(topology.dst[links[-1]])
        if not graph.has_edge(*ends) or graph.edges[ends]["weight"] > cost:
            graph.add_edge(*ends, weight=cost)
    times = np.full((topology.num_ranks,) * 2, np.inf)
    for source, reached in nx.all_pairs_dijkstra_path_length(graph):
        for target, time in reached.items():
            times[source, target] = time
    return times


@cache
def all_ranks(n):
    return np.arange(n)


@given(random_topologies(), st.sampled_from([0, 1000, 10**6]))
def test_least_times(topology, num_bytes):
    ways, expected = Ways(topology, num_bytes), by_enumeration(topology, num_bytes)
    ranks = all_ranks(topology.num_ranks)
    assert ways.between(ranks) == pytest.approx(expected, rel=1e-12)
    assert pytest.approx(expected, rel=1e-12) == ways.between(ranks, backwards=True).T


@pytest.mark.parametrize("name", ZOO)
def test_least_times_in_the_zoo(name):
    topology = zoo(name)
    for num_bytes in (0, 1 << 20):
        found = Ways(topology, num_bytes).between(all_ranks(topology.num_ranks))
        assert found == pytest.approx(by_enumeration(topology, num_bytes), rel=1e-12)


@given(random_topologies())
def test_nearest_of_several(topology):
    times = by_enumeration(topology, 0)
    some = np.arange(0, topology.num_ranks, 2)
    ways = Ways(topology, 0.0)
    assert ways.nearest(some)[: topology.num_ranks] == pytest.approx(times[some].min(axis=0), rel=1e-12)
    backwards = ways.nearest(some, backwards=True)[: topology.num_ranks]
    assert backwards == pytest.approx(times[:, some].min(axis=1), rel=1e-12)


@given(random_topologies())
def test_no_route_is_narrower_than_said(topology):
    claimed = narrowest(topology)
    for route in routes(topology):
        links = list(route)
        assert (claimed[links] <= topology.bandwidth[links].min() * (1 + 1e-12)).all()
    direct = (topology.src < topology.num_ranks) & (topology.dst < topology.num_ranks)
    assert claimed[direct] == pytest.approx(topology.bandwidth[direct])


@given(random_topologies())
def test_the_least_overhead_of_all_routes_over_a_link(topology):
    expected = np.full(topology.num_links, np.inf)
    for route in routes(topology):
        links = list(route)
        expected[links] = np.minimum(expected[links], topology.overhead_s[links].max())
    used = np.isfinite(expected)
    claimed = least_overhead(topology)
    # A walk may come back to the rank that it left, which no route does, so a link may be thought less of.
    assert (claimed[used] <= expected[used]).all()
    assert (claimed >= topology.overhead_s).all()
    assert np.isfinite(claimed).all()


def test_a_fast_port_behind_a_slow_one_is_held_as_long():
    # 0 to switch to 1: the overhead of 2 us at one end counts at the other, where no other way leads.
    slow, quick = [(0, 2, 50, 3, 2), (2, 1, 50, 1, 0)], (1, 2, 50, 1, 0)
    assert least_overhead(build(2, slow, switches=1)) == pytest.approx([2e-6, 2e-6])
    # A quick port into the switch makes a way with none.
    assert least_overhead(build(2, [*slow, quick], switches=1)) == pytest.approx([2e-6, 0, 0])


@given(random_topologies(), st.data())
def test_ways_within_and_through_switches(topology, data):
    some = st.lists(st.booleans(), min_size=topology.num_vertices, max_size=topology.num_vertices)
    inside = np.array(data.draw(some))
    part, vertices, ranks = within(topology, inside), np.arange(topology.num_vertices), topology.num_ranks
    for backwards in (False, True):
        graph = nx.DiGraph()
        graph.add_nodes_from(vertices.tolist())
        for a, b, alpha in zip(topology.src.tolist(), topology.dst.tolist(), topology.alpha_s.tolist(), strict=True):
            near, far = (b, a) if backwards else (a, b)
            if inside[a] and inside[b] and near >= ranks:
                graph.add_edge(near, far, weight=alpha)
        found = through_switches(part, vertices, backwards)
        for vertex in vertices.tolist():
            reached = nx.single_source_dijkstra_path_length(graph, vertex)
            assert found[vertex] == pytest.approx([reached.get(r, np.inf) for r in range(ranks)], rel=1e-12)


@given(random_topologies(), st.data())
def test_lengths_add_up(topology, data):
    one = st.integers(0, 5)
    lengths = np.array(data.draw(st.lists(one, min_size=topology.num_links, max_size=topology.num_links)))
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(range(topology.num_vertices))
    for tail, head, length in zip(topology.src.tolist(), topology.dst.tolist(), lengths.tolist(), strict=True):
        graph.add_edge(tail, head, weight=length)
    found = shortest(topology, lengths)
    for source in range(topology.num_ranks):
        reached = nx.single_source_dijkstra_path_length(graph, source)
        expected = [reached.get(target, np.inf) for target in range(topology.num_ranks)]
        assert found[source].tolist() == expected
