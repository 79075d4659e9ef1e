"""The fit recovers what synthetic times were made from, says how sure it is, and tells a bent line from noise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.errors import InputError
from collsyn.profiling.fit import TOLERANCE, fit_line, fit_overhead, furthest_point, stragglers

SIZES = [1, 64, 1024, 16 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20]


def times_of(alpha_s, beta, rng=None, noise=0.0, repeats=15, sizes=SIZES):
    """Repeated times of a straight line with multiplicative noise whose median is 1."""
    rng = rng or np.random.default_rng(1)
    return {n: (alpha_s + n * beta) * np.exp(noise * rng.standard_normal(repeats)) for n in sizes}


@given(
    alpha_us=st.floats(0.05, 500),
    gb_s=st.floats(0.05, 900),
    sizes=st.lists(st.integers(1, 1 << 30), min_size=2, max_size=12, unique=True),
)
def test_exact_times_give_the_exact_line(alpha_us, gb_s, sizes):
    line = fit_line(times_of(alpha_us * 1e-6, 1e-9 / gb_s, sizes=sizes))
    for n, _ in line.points:
        predicted = line.alpha_s.value + n * line.beta_s_per_byte.value
        assert predicted == pytest.approx(alpha_us * 1e-6 + n * 1e-9 / gb_s, rel=1e-5)
    assert line.linear
    assert line.residual < 1e-5


@pytest.mark.parametrize("noise", [0.03, 0.2])
def test_the_intervals_hold_the_truth_about_as_often_as_they_claim(noise):
    rng = np.random.default_rng(7)
    held = []
    for trial in range(150):
        alpha_s, beta = 10 ** rng.uniform(-7, -4), 10 ** rng.uniform(-11, -9)
        line = fit_line(times_of(alpha_s, beta, rng, noise), seed=trial)
        held.append([e.low <= truth <= e.high for e, truth in ((line.alpha_s, alpha_s), (line.beta_s_per_byte, beta))])
        assert line.linear
    assert (np.mean(held, axis=0) > 0.87).all()


def test_preempted_repeats_do_not_move_the_line():
    samples = times_of(2e-6, 1e-10)
    for values in samples.values():
        values[:5] += 4e-3
    line = fit_line(samples)
    assert line.alpha_s.value == pytest.approx(2e-6, rel=1e-6)
    assert line.beta_s_per_byte.value == pytest.approx(1e-10, rel=1e-6)


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_bent_line_is_called_bent_and_the_place_is_named(noise):
    rng = np.random.default_rng(3)
    samples = times_of(1e-6, 5e-11, rng, noise)
    for n in samples:
        if n > 256 << 10:  # leaves the cache: four times slower
            samples[n] = samples[n] + (n - (256 << 10)) * 15e-11
    line = fit_line(samples)
    assert not line.linear
    size, off = furthest_point(line.points, line.alpha_s.value, line.beta_s_per_byte.value)
    assert abs(off) > TOLERANCE
    assert size == max(samples, key=lambda n: abs(np.median(samples[n]) / line_at(line, n) - 1))


def line_at(line, n):
    """Seconds that the line gives to a message of n bytes."""
    return line.alpha_s.value + n * line.beta_s_per_byte.value


def test_noise_alone_is_not_called_bent():
    rng = np.random.default_rng(11)
    assert all(fit_line(times_of(1e-6, 1e-10, rng, noise=0.4, repeats=9)).linear for _ in range(40))


def test_costs_stay_physical_when_the_best_line_is_not():
    falling = fit_line({1: [5e-6], 1 << 20: [4e-6]})
    assert falling.beta_s_per_byte.value > 0
    assert falling.alpha_s.value == pytest.approx(4.5e-6, rel=0.2)
    through_zero = fit_line({1 << 10: [1e-7], 1 << 20: [1e-3]})
    assert through_zero.alpha_s.value == 0
    assert through_zero.beta_s_per_byte.value > 0


@pytest.mark.parametrize("samples", [{}, {8: [1e-6]}, {8: [1e-6], 16: []}, {8: [0.0], 16: [1e-6]}])
def test_too_little_or_impossible_input_is_refused(samples):
    with pytest.raises(InputError):
        fit_line(samples)


def test_overhead_is_what_a_message_takes_besides_its_bytes():
    line = fit_line(times_of(2e-6, 1e-9))
    overhead = fit_overhead([0.6e-6, 0.5e-6, 0.7e-6, 0.6e-6], 100, line)
    assert overhead.value == pytest.approx(0.5e-6)
    assert overhead.low <= overhead.value <= overhead.high
    assert overhead.high - overhead.low > 0


@pytest.mark.parametrize("per_message, expected", [(1e-3, 2e-6), (1e-9, 0.0)])
def test_overhead_stays_between_0_and_alpha(per_message, expected):
    line = fit_line(times_of(2e-6, 1e-9))
    assert fit_overhead([per_message] * 3, 64, line).value == pytest.approx(expected, rel=1e-6)


def test_the_same_seed_gives_the_same_intervals():
    samples = times_of(2e-6, 1e-10, noise=0.2)
    assert fit_line(samples, seed=5) == fit_line(samples, seed=5)
    assert fit_line(samples, seed=5) != fit_line(samples, seed=6)


def test_stragglers_are_counted_and_the_first_repeat_is_told_apart():
    samples = {1: [2.0, 1.0, 1.0, 1.0, 1.4], 64: [3.0, 2.0, 2.0, 9.0, 2.0], 128: [4.0, 4.0, 4.0]}
    assert stragglers(samples) == (2, pytest.approx(0.5))
