"""The compiled reductions against those of the model, bit by bit."""

import itertools

import numpy as np
import pytest

from collsyn.model.dtypes import DTYPES, OPS, divide, dtype_of, reduce_into, to_numbers, to_stored
from collsyn.runtime.native_loader import DTYPE_CODES, OP_CODES, native_library

LENGTHS = (0, 1, 8, 63, 513, 4099)
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, 6e-8, 1e-40, 65504.0, 3e38, 1.0009765625, 1 / 3]


@pytest.fixture(scope="module")
def library():
    """The compiled executor."""
    loaded = native_library()
    if loaded is None:
        pytest.skip("no C compiler here")
    return loaded


def samples(dtype_name, length, seed):
    """Random bits, which of floats are of all magnitudes, with special numbers among them."""
    dtype, rng = dtype_of(dtype_name), np.random.default_rng(seed)
    data = rng.integers(0, 256, size=length * dtype.num_bytes, dtype=np.uint8).view(dtype.storage)
    if dtype.is_float and length > 100:
        with np.errstate(over="ignore"):
            special = to_stored(dtype_name, np.array(SPECIAL, dtype=np.float64))
        pairs = np.array(list(itertools.product(special, special)), dtype=dtype.storage)
        data[: len(pairs)] = pairs[:, seed % 2][: len(data)]
    return data


def same_bits(dtype_name, got, want):
    """Whether bits are equal; a NaN equals every NaN."""
    with np.errstate(invalid="ignore"):
        numbers = [to_numbers(dtype_name, array) for array in (got, want)]
        either_nan = np.isnan(numbers[0]) & np.isnan(numbers[1]) if dtype_of(dtype_name).is_float else False
    unsigned = f"u{got.dtype.itemsize}"
    return bool((either_nan | (got.view(unsigned) == want.view(unsigned))).all())


@pytest.mark.parametrize("dtype_name", DTYPES)
@pytest.mark.parametrize("op_name", OPS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("into", ["apart", "first", "second"])
def test_compiled_reductions_equal_the_model(library, dtype_name, op_name, length, into):
    a, b = samples(dtype_name, length, 0), samples(dtype_name, length, 1)
    want = np.zeros_like(a)
    with np.errstate(all="ignore"):
        reduce_into(op_name, dtype_name, want, a, b)
    dst = {"apart": np.zeros_like(a), "first": a, "second": b}[into]
    addresses = [array.ctypes.data for array in (dst, a, b)]
    library.collsyn_reduce(DTYPE_CODES[dtype_name], OP_CODES[op_name], *addresses, length)
    assert same_bits(dtype_name, dst, want)


@pytest.mark.parametrize("length", [0, 1, 63, 4095, 4096, 4097, 100_003])
@pytest.mark.parametrize("stream", [0, 1])
@pytest.mark.parametrize(("dst", "src"), [(64, 1000), (65, 128), (127, 64)])
def test_copies_move_all_bytes_and_no_others(library, length, stream, dst, src):
    given = np.random.default_rng(length).integers(0, 256, size=length + 2000, dtype=np.uint8)
    memory = np.zeros(length + 2000, dtype=np.uint8)
    want = memory.copy()
    want[dst : dst + length] = given[src : src + length]
    library.collsyn_copy(memory.ctypes.data + dst, given.ctypes.data + src, length, stream)
    assert (memory == want).all()
    # Within one buffer the ranges overlap.
    want = given.copy()
    want[dst : dst + length] = given[src : src + length]
    library.collsyn_copy(given.ctypes.data + dst, given.ctypes.data + src, length, stream)
    assert (given == want).all()


@pytest.mark.parametrize("dtype_name", DTYPES)
@pytest.mark.parametrize("divisor", [2, 3, 7, 100])
def test_compiled_division_equals_the_model(library, dtype_name, divisor):
    data = samples(dtype_name, 4099, 0)
    want = data.copy()
    with np.errstate(all="ignore"):
        divide(dtype_name, want, divisor)
    library.collsyn_divide(DTYPE_CODES[dtype_name], data.ctypes.data, len(data), divisor)
    assert same_bits(dtype_name, data, want)


def test_integers_are_divided_toward_zero(library):
    data = np.array([7, -7, 8, -8, np.iinfo(np.int64).min], dtype=np.int64)
    library.collsyn_divide(DTYPE_CODES["int64"], data.ctypes.data, len(data), 4)
    assert data.tolist() == [1, -1, 2, -2, -(2**61)]


def test_every_type_and_reduction_of_the_model_has_a_kernel():
    assert set(DTYPE_CODES) == set(DTYPES)
    assert set(OP_CODES) == set(OPS)
