"""Ratios of medians and their intervals; how times of ranks become one."""

import numpy as np
import pytest

from collsyn.bench.statistics import OVER_RANKS, over_ranks, ratio_of_medians


def test_over_ranks():
    seconds = np.array([[1.0, 5.0], [3.0, 1.0], [2.0, 3.0]])
    assert {how: over_ranks(seconds, how).tolist() for how in OVER_RANKS} == {
        "rank0": [1.0, 5.0],
        "avg": [2.0, 3.0],
        "min": [1.0, 1.0],
        "max": [3.0, 5.0],
    }


def test_ratio_is_that_of_the_medians_and_inside_its_interval():
    ratio, low, high = ratio_of_medians([4.0, 6.0, 50.0], [2.0, 2.0, 1.0])
    assert ratio == 3.0
    assert low <= ratio <= high


def test_equal_times_have_no_width():
    assert ratio_of_medians([3.0] * 5, [1.5] * 5) == (2.0, 2.0, 2.0)


def test_the_interval_holds_the_true_ratio_about_as_often_as_it_claims():
    rng = np.random.default_rng(0)
    held = 0
    for trial in range(200):
        theirs, ours = (np.exp(0.2 * rng.standard_normal(20)) for _ in range(2))
        _, low, high = ratio_of_medians(3.0 * theirs, ours, seed=trial)
        held += low <= 3.0 <= high
    assert held / 200 > 0.88


def test_more_blocks_narrow_the_interval():
    rng = np.random.default_rng(1)

    def width(blocks):
        _, low, high = ratio_of_medians(*np.exp(0.3 * rng.standard_normal((2, blocks))))
        return high - low

    assert width(1000) < width(10)


@pytest.mark.parametrize("seed", [0, 9])
def test_same_seed_same_interval(seed):
    values = np.linspace(1, 2, 11)
    assert ratio_of_medians(values, values[::-1], seed) == ratio_of_medians(values, values[::-1], seed)
