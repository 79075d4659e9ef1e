"""Alltoall of boxes with skewed counts: rails against brute force, schedules against the bound."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsyn.bounds import fluid_bound
from collsyn.check.verify import verify_schedule
from collsyn.synth import rebalanced_kernels as kernels
from collsyn.synth.problem import Options, Problem
from collsyn.synth.rebalanced import REBALANCED
from collsyn.topology.resolve import load_topology


def skewed(n: int, seed: int) -> list[list[int]]:
    """Counts whose largest are a hundred times the least, with senders and receivers that have more than others."""
    random = np.random.default_rng(seed)
    shares = 1e4 / np.arange(1, n + 1)
    table = np.array([shares[random.permutation(n)] for _ in range(n)])
    table *= np.exp(random.normal(0, 0.5, n))[:, None] * np.exp(random.normal(0, 0.5, n))
    counts: list[list[int]] = (table.astype(int) + 1).tolist()
    return counts


@pytest.mark.parametrize(("name", "seed"), [("dgx-h100:3", 0), ("dgx-h100:4", 1), ("dgx-a100:3", 2)])
def test_skewed_counts_come_near_the_bound(name: str, seed: int) -> None:
    topology = load_topology(name)
    problem = Problem("alltoallv", topology, 1 << 28, counts=skewed(topology.num_ranks, seed))
    schedule = REBALANCED.synthesize(problem, Options())
    verify_schedule(schedule).raise_if_bad()
    assert schedule.finish_s <= fluid_bound(problem.collective(1), topology, 1 << 28).time_s / 0.93


@given(st.integers(2, 3), st.integers(1, 3), st.integers(1, 6), st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_rails_are_as_even_as_any_choice_but_for_one_piece(boxes: int, rails: int, many: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    start = random.integers(0, boxes, many)
    end = (start + random.integers(1, boxes, many)) % boxes
    places = random.integers(0, rails, (2, many))
    size = random.integers(1, 20, many).astype(float)
    rail = kernels.choose_rails(start, end, places[0], places[1], size, np.argsort(-size, kind="stable"), boxes, rails)

    def busiest(choice: np.ndarray) -> float:
        load = np.zeros((2, boxes, rails))
        np.add.at(load[0], (start, choice), size)
        np.add.at(load[1], (end, choice), size)
        return float(load.max())

    best = min(busiest(np.array(choice)) for choice in itertools.product(range(rails), repeat=many))
    # Two ends share a piece, so that the rule of list scheduling (Graham) holds for each of them.
    assert busiest(rail) <= 2 * best + size.max()
    if rails == 1:
        assert busiest(rail) == best


@given(st.integers(2, 5), st.integers(0, 40), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_an_open_shop_serves_one_pair_at_a_time_and_never_waits_in_vain(boxes: int, many: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    start = random.integers(0, boxes, many)
    end = (start + random.integers(1, boxes, many)) % boxes
    seconds = random.integers(1, 9, many).astype(float)
    cell = start * boxes + end
    order = np.argsort(cell, kind="stable")
    begin_s = kernels.open_shop(np.searchsorted(cell[order], np.arange(boxes**2 + 1)), order, seconds, boxes)
    assert not np.isnan(begin_s).any()
    for ends in (start, end):
        for box in range(boxes):
            mine = np.flatnonzero(ends == box)
            mine = mine[np.argsort(begin_s[mine])]
            assert (begin_s[mine][1:] >= (begin_s + seconds)[mine][:-1] - 1e-9).all()
    # When a piece begins later than 0, one of its ends was busy until then.
    for p in np.flatnonzero(begin_s > 0):
        rivals = ((start == start[p]) | (end == end[p])) & np.isclose(begin_s + seconds, begin_s[p])
        assert rivals.any()
    loads = [np.bincount(ends, weights=seconds, minlength=boxes).max() for ends in (start, end)]
    assert (begin_s + seconds).max(initial=0.0) <= 2 * max(loads) + 1e-9


@pytest.mark.parametrize("name", ["torus:4x4", "dgx1", "ndv2"])
def test_without_boxes_or_hops_inside_it_is_refused(name: str) -> None:
    assert REBALANCED.accepts(Problem("alltoall", load_topology(name), 1 << 20)) is not None
