"""Recorded symmetries hold on every preset, and what is none is not taken for one."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.topology.resolve import load_topology
from collsyn.topology.symmetry import extended_to_switches, group_elements, is_symmetry, link_images, orbits
from tests.support.topologies import ZOO, as_graph, build, random_topologies, ring_edges, zoo

# Order of the group that the recorded symmetries generate, and how many kinds of ranks it leaves.
GROUPS = {
    "ring:2": (2, 1),
    "ring:7": (7, 1),
    "full:6": (6, 1),
    "switch:5": (5, 1),
    "torus:3x4": (12, 1),
    "torus:2x3x4": (24, 1),
    "hypercube:4": (16, 1),
    "mesh:4x3": (4, 4),
    "mesh:1x5": (2, 3),
    "hetero3d:4x3x2": (24, 1),
    "kautz:2x1": (6, 1),
    "kautz:4x1": (120, 1),
    "kautz:2x2": (6, 2),
    "genkautz:4x12": (2, 6),
    "genkautz:4x20": (10, 2),
    "bipartite:2x3": (6, 2),
    "bipartite:3x3": (18, 1),
    "petersen": (20, 1),
    "dgx1": (4, 2),
    "dgx1p": (8, 1),
    "mi250:2": (8, 4),
    "ndv2:2": (8, 2),
    "ndv2:3@costs=teccl": (3, 8),
    "ndv2:2@costs=taccl,sketch=2": (8, 2),
    "dgx2": (16, 1),
    "dgx2:2": (32, 1),
    "dgx2:2@costs=teccl": (16, 2),
    "dgx2:2@costs=taccl,sketch=2": (32, 1),
    "dgx-a100:4": (32, 1),
    "dgx-h100:2": (16, 1),
}


def maps_links_to_equal_links(topology, permutation):
    """The definition, edge by edge with networkx's data."""
    graph = as_graph(topology)
    for a, b in set(graph.edges()):
        here = sorted(sorted(d.items()) for d in graph.get_edge_data(a, b).values())
        image = graph.get_edge_data(permutation[a], permutation[b]) or {}
        if here != sorted(sorted(d.items()) for d in image.values()):
            return False
    return True


@pytest.mark.parametrize("text", GROUPS)
def test_recorded_symmetries_hold_and_generate_the_group_they_should(text):
    topology = load_topology(text)
    for permutation in topology.symmetries:
        assert sorted(permutation) == list(range(topology.num_vertices))
        assert maps_links_to_equal_links(topology, permutation)
        assert is_symmetry(topology, permutation)
    order, kinds = GROUPS[text]
    assert len(group_elements(topology)) == order
    assert len(set(orbits(topology)[: topology.num_ranks].tolist())) == kinds


@pytest.mark.parametrize("name", ZOO)
def test_recorded_symmetries_of_the_zoo_hold(name):
    assert all(maps_links_to_equal_links(zoo(name), permutation) for permutation in zoo(name).symmetries)


@pytest.mark.parametrize("text", ["torus:3x4@bandwidth_gb_s=10/20", "hypercube:3", "hetero3d:3x2x2"])
def test_translations_take_every_rank_to_every_other_exactly_once(text):
    topology = load_topology(text)
    elements = group_elements(topology)
    assert sorted(element[0] for element in elements) == list(range(topology.num_ranks))
    assert (
        len(elements) == prod(int(n) for n in text.split("@")[0].split(":")[1].split("x")) if "hyper" not in text else 8
    )


@given(random_topologies(), st.randoms(use_true_random=False))
def test_is_symmetry_agrees_with_the_definition(topology, random):
    order = list(range(topology.num_vertices))
    random.shuffle(order)
    ranks = all(order[v] < topology.num_ranks for v in range(topology.num_ranks))
    assert is_symmetry(topology, order) == (ranks and maps_links_to_equal_links(topology, order))


@given(random_topologies(equal=True, max_ranks=4, max_switches=0))
def test_symmetries_found_by_hand_are_all_taken(topology):
    from itertools import permutations

    for order in permutations(range(topology.num_ranks)):
        assert is_symmetry(topology, order) == maps_links_to_equal_links(topology, order)


def test_link_images_take_links_to_links():
    topology = load_topology("dgx1")
    permutation = topology.symmetries[0]
    images = link_images(topology, permutation)
    assert sorted(images.tolist()) == list(range(topology.num_links))
    for link, image in enumerate(images.tolist()):
        assert permutation[topology.src[link]] == topology.src[image]
        assert permutation[topology.dst[link]] == topology.dst[image]
        assert topology.count[link] == topology.count[image]


def test_link_images_of_parallel_links_take_each_once():
    topology = build(2, [(0, 1, 10), (0, 1, 10), (0, 1, 20), (1, 0, 10), (1, 0, 20), (1, 0, 10)])
    images = link_images(topology, [1, 0])
    assert sorted(images.tolist()) == list(range(6))
    assert link_images(build(2, [(0, 1, 10), (0, 1, 10), (1, 0, 10), (1, 0, 20)]), [1, 0]) is None


@pytest.mark.parametrize(
    ("edges", "permutation"),
    [
        ([(a, b, 10 if a else 20) for a, b in ring_edges(4)], (1, 2, 3, 0)),
        ([(a, b, 10, 0.5 + a % 2) for a, b in ring_edges(4)], (1, 2, 3, 0)),
        ([(a, b, 10, 0.5, 0.1 * (a == 1)) for a, b in ring_edges(4)], (1, 2, 3, 0)),
        (ring_edges(4), (1, 0, 2, 3)),
        (ring_edges(4), (3, 2, 1, 0)),
        (ring_edges(4), (0, 0, 1, 2)),
    ],
)
def test_what_is_no_symmetry_is_refused(edges, permutation):
    assert not is_symmetry(build(4, edges), permutation)


def test_a_switch_that_can_more_is_no_image_of_one_that_cannot():
    from dataclasses import replace

    plain = build(2, [(0, 2), (1, 3), (2, 3)], switches=2, both=True)
    assert is_symmetry(plain, (1, 0, 3, 2))
    able = replace(plain, multicast=np.array([False, False, True, False]))
    assert not is_symmetry(able, (1, 0, 3, 2))
    assert not is_symmetry(plain, (2, 3, 0, 1))
    slow = replace(plain, reduce_s_per_byte=np.array([1e-12, 2e-12]))
    assert not is_symmetry(slow, (1, 0, 3, 2))


def test_switches_follow_their_ranks():
    topology = load_topology("dgx2:2")
    boxes = extended_to_switches(topology, [(rank + 16) % 32 for rank in range(32)])
    name = topology.switch_names.index
    for switch in ("nvswitch", "pcie3", "nic7"):
        assert boxes[32 + name(f"box0.{switch}")] == 32 + name(f"box1.{switch}")
    assert boxes[32 + name("fabric")] == 32 + name("fabric")
    assert extended_to_switches(topology, [1, 2, 0, *range(3, 32)]) is None
    assert extended_to_switches(load_topology("dgx-a100:2"), [1, 0, *range(2, 16)]) is None


def test_a_group_too_large_to_list_is_none():
    assert group_elements(load_topology("torus:64x64")) is None
    assert len(group_elements(load_topology("ring:64"), limit=64 * 64)) == 64
    assert group_elements(load_topology("ring:64"), limit=64 * 63) is None
