"""Rings through all ranks of a group."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsyn.model.topology import Topology
from collsyn.synth.baseline import hops_of, pair_table
from collsyn.synth.orders import ring_order
from collsyn.topology.resolve import load_topology
from tests.support.topologies import build, random_topologies

SIZE = 1e6


def slowest(topology: Topology, order: tuple[int, ...], both_ways: bool = False) -> float | None:
    """Seconds of the slowest hop of a ring, None where a hop is missing."""
    pairs = pair_table(hops_of(topology), SIZE)
    steps = list(zip(order, order[1:] + order[:1], strict=True))
    steps += [(b, a) for a, b in steps] if both_ways else []
    return None if any(step not in pairs for step in steps) else max(pairs[step] for step in steps)


@given(random_topologies(min_ranks=3, max_ranks=5), st.booleans())
@settings(max_examples=60)
def test_the_slowest_hop_is_as_quick_as_can_be(topology: Topology, both_ways: bool) -> None:
    members = tuple(range(topology.num_ranks))
    found = ring_order(topology, members, SIZE, both_ways)
    rings = [slowest(topology, (0, *rest), both_ways) for rest in permutations(members[1:])]
    best = min((seconds for seconds in rings if seconds is not None), default=None)
    if found is None:
        assert best is None
    else:
        assert sorted(found) == list(members)
        assert slowest(topology, found, both_ways) == pytest.approx(best, rel=1e-6)


LARGE = ("torus:8x8", "mesh:8x8", "mesh:5x4", "torus:5x5", "hypercube:6", "torus:8x8x8", "dgx1")


@pytest.mark.parametrize("preset", LARGE)
def test_large_graphs_have_rings(preset: str) -> None:
    topology = load_topology(preset)
    for both_ways in (False, True):
        order = ring_order(topology, tuple(range(topology.num_ranks)), SIZE, both_ways)
        assert order is not None and sorted(order) == list(range(topology.num_ranks))
        assert slowest(topology, order, both_ways) is not None


@pytest.mark.parametrize("preset", ["mesh:3x3", "mesh:5x5", "mesh:5", "mesh:3x3x3"])
def test_odd_meshes_have_none(preset: str) -> None:
    topology = load_topology(preset)
    assert ring_order(topology, tuple(range(topology.num_ranks)), SIZE) is None


def test_a_symmetry_gives_the_ring_of_a_ring() -> None:
    assert ring_order(load_topology("ring:40"), tuple(range(40)), SIZE) == tuple(range(40))


def test_one_way_rings_have_no_second_way() -> None:
    topology = build(4, [(0, 1), (1, 2), (2, 3), (3, 0)])
    assert ring_order(topology, (0, 1, 2, 3), SIZE) == (0, 1, 2, 3)
    assert ring_order(topology, (0, 1, 2, 3), SIZE, both_ways=True) is None


def test_rings_of_part_of_the_ranks() -> None:
    topology = load_topology("dgx1")
    order = ring_order(topology, (0, 1, 2, 3), SIZE)
    assert order is not None and sorted(order) == [0, 1, 2, 3]
    assert ring_order(topology, (0, 6), SIZE) is None
    assert ring_order(topology, (4,), SIZE) == (4,)
