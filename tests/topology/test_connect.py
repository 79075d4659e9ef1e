"""Connectivity against networkx."""

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.errors import Infeasible
from collsyn.topology.connect import require_connected, unreachable_pair
from tests.support.topologies import ZOO, as_graph, build, random_topologies, zoo


@st.composite
def sparse(draw):
    """Random topologies, most of them disconnected."""
    num_ranks, switches = draw(st.integers(1, 5)), draw(st.integers(0, 2))
    vertices = st.integers(0, num_ranks + switches - 1)
    pairs = draw(st.lists(st.tuples(vertices, vertices).filter(lambda ends: ends[0] != ends[1]), max_size=8))
    return build(num_ranks, pairs, switches)


@given(sparse())
def test_a_pair_is_named_exactly_when_one_does_not_reach_the_other(topology):
    graph, pair = as_graph(topology), unreachable_pair(topology)
    if pair is None:
        ranks = range(topology.num_ranks)
        assert all(nx.has_path(graph, a, b) for a in ranks for b in ranks)
    else:
        assert not nx.has_path(graph, *pair)
        assert max(pair) < topology.num_ranks


@given(random_topologies())
def test_random_topologies_are_connected(topology):
    require_connected(topology)


@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_is_connected(name):
    require_connected(zoo(name))


def test_the_message_names_the_pair():
    topology = build(3, [(0, 1), (1, 0), (2, 0)], name="broken")
    with pytest.raises(Infeasible, match="broken: no links lead from rank 0 to rank 2"):
        require_connected(topology)
    require_connected(topology, [1, 0])
    with pytest.raises(Infeasible, match="from rank 1 to rank 2"):
        require_connected(topology, [2, 1])


def test_switches_need_not_reach_anything():
    require_connected(build(2, [(0, 1), (1, 0), (0, 2), (3, 1)], switches=2))


def test_relays_that_are_not_members_may_be_used():
    require_connected(build(3, [(0, 1), (1, 2), (2, 1), (1, 0)]), [0, 2])
