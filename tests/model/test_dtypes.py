"""Element types against exact rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.errors import InputError
from collsyn.model.dtypes import (
    DTYPES,
    OPS,
    bfloat16_to_float32,
    checked_op,
    divide,
    dtype_of,
    first_difference,
    float32_to_bfloat16,
    random_data,
    reduce_into,
    to_numbers,
    to_stored,
    tolerance,
)

FLOATS = [name for name, dtype in DTYPES.items() if dtype.is_float]
INTEGERS = [name for name, dtype in DTYPES.items() if not dtype.is_float]
# Digits of the significand and exponent of the smallest subnormal.
FORMATS = {"float16": (11, -24), "bfloat16": (8, -133), "float32": (24, -149), "float64": (53, -1074)}


def rounded(value, name):
    """A fraction rounded to nearest even in a format, by integer arithmetic (no overflow expected)."""
    digits, lowest = FORMATS[name]
    if value == 0:
        return Fraction(0)
    exponent = 0
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** max(exponent - digits + 1, lowest)
    return round(value / step) * step  # Python rounds halves to even


def exact(stored, name):
    return [Fraction(float(x)) for x in to_numbers(name, stored)]


def operands(name, seed, length=200):
    """Numbers of mixed magnitude whose sums and products stay finite, among them cancellation and ties."""
    rng = np.random.default_rng(seed)
    scale = 2.0 ** rng.integers(-6, 7, size=length)
    return to_stored(name, (rng.integers(-999, 1000, size=length) / 7 * scale).astype(np.float32))


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_float_operations_are_rounded_once_to_nearest_even(name, op):
    a, b = operands(name, 1), operands(name, 2)
    if name in ("float16", "bfloat16"):
        a, b = a[np.abs(to_numbers(name, a)) < 200], b[: (np.abs(to_numbers(name, a)) < 200).sum()]
        b = np.where(np.abs(to_numbers(name, b)) < 200, b, a)
    dst = np.empty_like(a)
    reduce_into(op, name, dst, a, b)
    pairs = zip(exact(a, name), exact(b, name), strict=True)
    assert exact(dst, name) == [rounded(x * y if op == "prod" else x + y, name) for x, y in pairs]


@pytest.mark.parametrize("name", FLOATS)
def test_division_of_floats_is_rounded_once(name):
    a = operands(name, 3)
    result = a.copy()
    divide(name, result, 7)
    assert exact(result, name) == [rounded(x / 7, name) for x in exact(a, name)]


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("op", OPS)
def test_integers_wrap(name, op):
    rng = np.random.default_rng(4)
    a, b = random_data(name, op, 100, rng), random_data(name, op, 100, rng)
    info = np.iinfo(dtype_of(name).storage)
    function = {
        "sum": lambda x, y: x + y,
        "prod": lambda x, y: x * y,
        "min": min,
        "max": max,
        "avg": lambda x, y: x + y,
    }
    want = [(function[op](int(x), int(y)) - info.min) % (1 << info.bits) + info.min for x, y in zip(a, b, strict=True)]
    dst = np.empty_like(a)
    reduce_into(op, name, dst, a, b)
    assert dst.tolist() == want


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("count", [1, 2, 3, 300])
def test_division_of_integers_truncates_toward_zero(name, count):
    info = np.iinfo(dtype_of(name).storage)
    values = [info.min, info.min + 1, info.max, 0, 1, 7, *([-1, -7] if info.min else [])]
    stored = np.array(values, dtype=dtype_of(name).storage)
    divide(name, stored, count)
    assert stored.tolist() == [abs(v) // count * (1 if v >= 0 else -1) for v in values]


@pytest.mark.parametrize("name", FLOATS)
def test_min_and_max_keep_bits_and_propagate_nans(name):
    nan = float("nan")
    a = to_stored(name, np.array([0.0, -0.0, 1.5, nan, 2.0, -3.0], np.float32))
    b = to_stored(name, np.array([-0.0, 0.0, 1.5, 1.0, nan, -2.0], np.float32))
    for op, want in (("min", [b[0], b[1], b[2], a[3], b[4], a[5]]), ("max", [b[0], b[1], b[2], a[3], b[4], b[5]])):
        dst = np.empty_like(a)
        reduce_into(op, name, dst, a, b)
        assert dst.tobytes() == np.array(want, dtype=a.dtype).tobytes()


@pytest.mark.parametrize("name", list(DTYPES))
@pytest.mark.parametrize("op", OPS)
def test_the_target_may_be_an_operand(name, op):
    rng = np.random.default_rng(5)
    a, b = random_data(name, op, 50, rng), random_data(name, op, 50, rng)
    apart, first, second = np.empty_like(a), a.copy(), b.copy()
    reduce_into(op, name, apart, a, b)
    reduce_into(op, name, first, first, b)
    reduce_into(op, name, second, a, second)
    assert first.tobytes() == apart.tobytes() == second.tobytes()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bfloat16_is_the_nearest_even(value):
    stored = float32_to_bfloat16(np.array([value], np.float32))
    number = float(bfloat16_to_float32(stored)[0])
    if np.isinf(number):
        assert abs(value) >= (2 - 2**-8) * 2.0**127
    else:
        assert Fraction(number) == rounded(Fraction(value), "bfloat16")


def test_bfloat16_of_special_values():
    assert float32_to_bfloat16(np.array([np.inf, -np.inf], np.float32)).tolist() == [0x7F80, 0xFF80]
    tricky = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(bfloat16_to_float32(float32_to_bfloat16(tricky))).all()


@pytest.mark.parametrize("name", list(DTYPES))
@pytest.mark.parametrize("op", OPS)
def test_default_data_reduces_alike_in_any_order(name, op):
    rng = np.random.default_rng(6)
    parts = [random_data(name, op, 64, rng) for _ in range(24)]
    results = []
    for _ in range(3):
        total = parts[0].copy()
        for part in parts[1:]:
            reduce_into(op, name, total, part, total)
        results.append(total.tobytes())
        parts = [parts[i] for i in rng.permutation(len(parts))]
    assert len(set(results)) == 1


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
def test_tolerance_covers_other_orders_of_general_data(name, op):
    rng = np.random.default_rng(7)
    parts = [random_data(name, op, 500, rng, general=True) for _ in range(9)]
    forward, tree = parts[0].copy(), [part.copy() for part in parts]
    for part in parts[1:]:
        reduce_into(op, name, forward, forward, part)
    while len(tree) > 1:
        reduce_into(op, name, tree[0], tree[0], tree[-1])
        tree = tree[1:-1] + tree[:1]
    allowed = tolerance(name, op, len(parts))
    assert first_difference(name, tree[0], forward, allowed) is None
    if op in ("sum", "prod"):
        assert first_difference(name, tree[0], forward) is not None


def test_first_difference_finds_the_place():
    a = to_stored("bfloat16", np.array([1.0, np.nan, 3.0, 4.0]))
    b = a.copy()
    assert first_difference("bfloat16", a, b) is None
    b[2] += 1
    assert first_difference("bfloat16", a, b) == 2
    assert first_difference("bfloat16", a, b, 0.01) is None
    assert first_difference("bfloat16", a[:3], a) == 3


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="'float' is not known; expected one of float32"):
        dtype_of("float")
    with pytest.raises(InputError, match="'mean' is not known; expected one of sum"):
        checked_op("mean")
