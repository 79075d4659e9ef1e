"""Maximum flows against networkx, from scratch and after capacities changed under a flow."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.bounds.maxflow import MAX_TOTAL, FlowNetwork
from collsyn.errors import SolverFailed

CAPACITIES = st.sampled_from([0, 1, 2, 3, 7, 1 << 40, (1 << 52) + 1])


@st.composite
def networks(draw):
    """(vertices, arcs as (tail, head, capacity)), parallel ones among them; vertex 0 is the source and 1 the sink."""
    n = draw(st.integers(2, 8))
    vertices = st.integers(0, n - 1)
    arcs = draw(st.lists(st.tuples(vertices, vertices, CAPACITIES), min_size=1, max_size=25))
    return n, [arc for arc in arcs if arc[0] != arc[1]] or [(0, 1, 1)]


def network_of(n, arcs):
    return FlowNetwork(n, *(np.array(column) for column in zip(*arcs, strict=True)))


def known_value(n, arcs):
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    for tail, head, capacity in arcs:
        before = graph.get_edge_data(tail, head, {"capacity": 0})["capacity"]
        graph.add_edge(tail, head, capacity=before + capacity)
    return nx.maximum_flow_value(graph, 0, 1)


def assert_is_flow(network, n, arcs, value):
    """Within capacities, conserved, of that value; and the sets of both minimum cuts have just that capacity."""
    flow = network.flow()
    assert (flow >= 0).all() and (flow <= [c for _, _, c in arcs]).all()
    net = np.zeros(n, dtype=np.int64)
    for (tail, head, _), amount in zip(arcs, flow.tolist(), strict=True):
        net[tail] -= amount
        net[head] += amount
    assert net[1] == value == -net[0]
    assert not net[2:].any()
    for inside in (network.sink_side(1), ~network.source_side(0)):
        assert inside[1] and not inside[0]
        assert sum(c for tail, head, c in arcs if inside[head] and not inside[tail]) == value


@given(networks())
def test_value_flow_and_cuts(case):
    n, arcs = case
    network = network_of(n, arcs)
    value = network.push(0, 1)
    assert value == known_value(n, arcs)
    assert_is_flow(network, n, arcs, value)
    network.reset()
    assert not network.flow().any()


@given(networks(), st.integers(0, 9))
def test_a_limited_push_goes_on_later(case, limit):
    n, arcs = case
    network = network_of(n, arcs)
    first = network.push(0, 1, limit)
    assert first == min(limit, known_value(n, arcs))
    assert first + network.push(0, 1) == known_value(n, arcs)


@given(networks(), st.data())
def test_capacities_change_under_the_flow(case, data):
    n, arcs = case
    network = network_of(n, arcs)
    value = network.push(0, 1)
    for _ in range(5):
        arc, capacity = data.draw(st.integers(0, len(arcs) - 1)), data.draw(CAPACITIES)
        if capacity > arcs[arc][2]:
            # A network knows more than all of its first capacities as unlimited.
            capacity = min(capacity, network.unlimited)
            network.raise_capacity(arc, capacity)
        else:
            value -= network.lower_capacity(arc, capacity, 0, 1)
        arcs[arc] = (*arcs[arc][:2], capacity)
        value += network.push(0, 1)
        assert value == known_value(n, arcs)
        assert_is_flow(network, n, arcs, value)


def test_a_larger_random_network():
    random = np.random.default_rng(0)
    arcs = [(int(a), int(b), int(c)) for a, b, c in random.integers(0, [150, 150, 1000], (1200, 3)) if a != b]
    network = network_of(150, arcs)
    assert_is_flow(network, 150, arcs, network.push(0, 1))


def test_numbers_beyond_32_bits_are_exact():
    big = (1 << 58) + 1
    network = network_of(3, [(0, 2, big), (2, 1, big), (0, 1, big)])
    assert network.push(0, 1) == 2 * big


def test_unlimited_arcs_are_never_in_a_cut():
    network = network_of(4, [(0, 2, MAX_TOTAL), (2, 3, 5), (2, 3, 6), (3, 1, MAX_TOTAL)])
    assert network.push(0, 1) == 11 < network.unlimited
    assert np.flatnonzero(network.sink_side(1)).tolist() == [1, 3]
    network.raise_capacity(1, MAX_TOTAL)
    assert network.push(0, 1) == 1


@pytest.mark.parametrize("capacity", [[-1, 1], [MAX_TOTAL - 1, 1]])
def test_capacities_that_do_not_fit_are_refused(capacity):
    with pytest.raises(SolverFailed, match="capacities"):
        FlowNetwork(2, [0, 0], [1, 1], capacity)
