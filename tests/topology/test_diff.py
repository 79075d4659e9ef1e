"""Differences between topologies."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from collsyn.topology.diff import differences
from collsyn.topology.resolve import load_topology
from tests.support.topologies import ZOO, build, random_topologies, zoo


@pytest.mark.parametrize("name", ZOO)
def test_nothing_differs_from_itself(name):
    assert differences(zoo(name), zoo(name)) == []


@given(random_topologies(max_ranks=4), random_topologies(max_ranks=4))
def test_differences_are_mirrored_when_sides_change(left, right):
    def told(rows, swapped):
        sides = ((row.right, row.left) if swapped else (row.left, row.right) for row in rows)
        return {
            ("<->".join(sorted(row.what.removeprefix("link ").split("<->"))), *pair)
            for row, pair in zip(rows, sides, strict=True)
        }

    assert told(differences(left, right), False) == told(differences(right, left), True)


def test_the_order_of_links_does_not_matter():
    edges = [(0, 1, 10), (0, 1, 20), (1, 0, 10)]
    assert differences(build(2, edges), build(2, edges[::-1])) == []


def test_every_kind_of_difference_is_told():
    left = build(2, [(0, 1, 25, 0.7, 0.3), (1, 0, 25, 0.7, 0.3), (0, 2, 10)], switches=1)
    right = build(3, [(0, 1, 25, 0.7, 0.7), (1, 0, 25, 0.7, 0.7), (1, 2, 10)])
    right = replace(right, min_piece_bytes=16384, reduce_s_per_byte=np.array([1e-11, 0, 0]))
    assert {row.what: (row.left, row.right) for row in differences(left, right)} == {
        "ranks": ("2", "3"),
        "minimum piece": ("1", "16K"),
        "switch s0": ("plain", "-"),
        "reduction on rank 0": ("-", "100 GB/s"),
        "link 0<->1": ("25 GB/s, 0.7 us, occupied 0.3 us", "25 GB/s, 0.7 us, occupied 0.7 us"),
        "link 0->s0": ("10 GB/s, 0.5 us", "-"),
        "link 1->2": ("-", "10 GB/s, 0.5 us"),
    }


def test_a_difference_one_way_is_one_way():
    left, right = build(2, [(0, 1, 10), (1, 0, 10)]), build(2, [(0, 1, 20), (1, 0, 10)])
    assert [row.what for row in differences(left, right)] == ["link 0->1"]


def test_dgx1_and_dgx1p_differ_in_all_pairs():
    rows = differences(load_topology("dgx1"), load_topology("dgx1p"))
    assert len(rows) == 16
    assert {row.left.split(",")[0] for row in rows} == {"2 x 25 GB/s", "25 GB/s"}
    assert {row.right.split(",")[0] for row in rows} == {"20 GB/s"}


def test_abilities_of_switches_are_compared():
    a100, h100 = (load_topology(f"dgx-{name}@bandwidth_gb_s=100") for name in ("a100", "h100"))
    assert [(row.what, row.right) for row in differences(a100, h100)] == [
        ("switch box0.nvswitch", "multicast, reduction")
    ]
