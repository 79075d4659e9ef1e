"""Conversions: sizes as nccl-tests writes them, and numbers that survive the way there and back."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.errors import InputError
from collsyn.units import (
    beta_to_gb_s,
    exact_gb_s,
    format_size,
    gb_s_to_beta,
    parse_size,
    rounded,
    s_to_us,
    us_to_s,
)

SIZES = {
    "1": 1,
    "8": 8,
    "17B": 17,
    "1K": 1024,
    "1k": 1024,
    "1KiB": 1024,
    "1kib": 1024,
    "1KB": 1000,
    "64M": 64 * 2**20,
    "64MB": 64 * 10**6,
    "1.5K": 1536,
    "0.5KB": 500,
    "2G": 2**31,
    "2GB": 2 * 10**9,
    "3T": 3 * 2**40,
    "1TiB": 2**40,
    " 4 K ": 4096,
    4096: 4096,
}


@pytest.mark.parametrize("text", SIZES)
def test_sizes(text):
    assert parse_size(text) == SIZES[text]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "K",
        "0",
        "0K",
        "-1",
        "1X",
        "1KK",
        "1iB",
        "1.5",
        "1e6",
        "0.3K",
        "1 000",
        "nan",
        "inf",
        None,
        True,
        1.5,
        [1],
        "1048577T",
        2**60 + 1,
    ],
)
def test_what_is_no_size_is_refused_in_one_line(text):
    with pytest.raises(InputError, match="size") as caught:
        parse_size(text)
    assert "\n" not in str(caught.value)


@given(st.integers(1, 2**60) | st.builds(lambda n, p: n * 1024**p, st.integers(1, 5000), st.integers(0, 4)))
def test_a_size_written_is_the_size_read(size_bytes):
    assert parse_size(format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(1024, "1K"), (1000, "1KB"), (64 << 20, "64M"), (1536, "1536"), (1, "1"), (3 << 40, "3T"), (1024000, "1000K")],
)
def test_sizes_are_written_short(size_bytes, text):
    assert format_size(size_bytes) == text


def test_units_are_si():
    assert us_to_s(0.7) == 7e-7
    assert s_to_us(7e-7) == pytest.approx(0.7, rel=1e-15)
    assert gb_s_to_beta(50) == pytest.approx(2e-11, rel=1e-15)
    assert beta_to_gb_s(2e-11) == pytest.approx(50, rel=1e-15)


POSITIVE = st.floats(1e-6, 1e6)


@given(POSITIVE)
def test_numbers_of_files_survive_conversion(value):
    written = rounded(value)
    assert rounded(s_to_us(us_to_s(written))) == written
    assert rounded(beta_to_gb_s(gb_s_to_beta(written))) == written
    assert written == pytest.approx(value, rel=1e-13)


@given(st.integers(1, 10**5), st.integers(1, 10**3))
def test_bandwidths_that_are_simple_fractions_are_found_exactly(numerator, denominator):
    simple = Fraction(numerator, denominator)
    assert exact_gb_s(gb_s_to_beta(float(simple))) == simple


def test_published_bandwidths_are_exact():
    assert exact_gb_s(gb_s_to_beta(12.5)) == Fraction(25, 2)
    assert exact_gb_s(23e-12) == Fraction(1000, 23)
    assert exact_gb_s(105e-12) == Fraction(1000, 105)


@given(POSITIVE)
def test_a_measured_bandwidth_is_taken_as_it_stands(gb_s):
    assert float(exact_gb_s(gb_s_to_beta(gb_s))) == pytest.approx(gb_s, rel=1e-13)
