"""Each rank's own idea of the right result is that of the reference, and every kind of damage is counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.bench.data import Pattern
from collsyn.check.reference import reference
from collsyn.model.bind import layout
from collsyn.model.collective import make_collective
from collsyn.model.dtypes import DTYPES, OPS
from collsyn.model.kinds import KINDS, REDUCING

COUNTS = {"alltoallv": [[0, 1, 2], [3, 0, 1], [1, 1, 4]]}
NAMED = [kind for kind in KINDS if kind != "custom"]


def filled(pattern, num_ranks):
    """Inputs of all ranks."""
    inputs = []
    for rank in range(num_ranks):
        stored = np.empty(pattern.places.input[rank][2], dtype=pattern.dtype.storage)
        pattern.fill_input(rank, stored)
        inputs.append(stored)
    return inputs


def expected(collective, dtype, op, elements, inputs):
    """Outputs of the reference; buffers of ranks that get nothing are empty."""
    return reference(collective, dtype, op, inputs, elements)


@given(
    kind=st.sampled_from(NAMED),
    dtype=st.sampled_from(sorted(DTYPES)),
    op=st.sampled_from(OPS),
    elements=st.integers(1, 70),
    chunks=st.integers(1, 2),
    seed=st.integers(0, 3),
)
def test_the_reference_agrees(kind, dtype, op, elements, chunks, seed):
    collective = make_collective(kind, 3, chunks, counts=COUNTS.get(kind))
    pattern = Pattern(collective, elements, dtype, op, seed)
    outputs = expected(collective, dtype, op, elements, filled(pattern, 3))
    for rank, output in enumerate(outputs):
        assert pattern.wrong_elements(rank, output) == 0


@pytest.mark.parametrize("kind", NAMED)
def test_long_buffers_are_made_part_by_part(kind, monkeypatch):
    collective = make_collective(kind, 3, 2, counts=COUNTS.get(kind))
    whole = Pattern(collective, 100, "int32", "sum")
    inputs = filled(whole, 3)
    outputs = expected(collective, "int32", "sum", 100, inputs)
    monkeypatch.setattr("collsyn.bench.data._BLOCK", 7)
    for again, once in zip(filled(whole, 3), inputs, strict=True):
        assert np.array_equal(again, once)
    for rank, output in enumerate(outputs):
        assert whole.wrong_elements(rank, output) == 0
        if len(output) and len(whole.places.output[rank][0]):
            output[whole.places.output[rank][1][-1]] ^= 1
            assert whole.wrong_elements(rank, output) == 1


@pytest.mark.parametrize("kind", ["allgather", "allreduce", "alltoall", "broadcast"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_wrong_elements_are_counted(kind, dtype):
    collective = make_collective(kind, 3)
    pattern = Pattern(collective, 300, dtype, "sum")
    outputs = expected(collective, dtype, "sum", 300, filled(pattern, 3))
    damaged = outputs[1].copy()
    damaged.view(np.uint8)[:: damaged.itemsize] ^= 0x55
    # Flipping bits of every element makes every element another one (of bfloat16 sums: all but a few).
    assert pattern.wrong_elements(1, damaged) > 0.9 * len(damaged)
    one = outputs[2].copy()
    one[7:8].view(np.uint8)[-1] ^= 0x40
    assert pattern.wrong_elements(2, one) == 1


@pytest.mark.parametrize("kind", sorted(set(NAMED) - {"alltoallv"}))
def test_an_output_that_was_not_written_or_is_a_neighbours_is_wrong(kind):
    collective = make_collective(kind, 3)
    pattern = Pattern(collective, 600, "float32", "sum")
    outputs = expected(collective, "float32", "sum", 600, filled(pattern, 3))
    for rank, output in enumerate(outputs):
        if not len(output):
            continue
        stale = output.copy()
        pattern.poison(stale)
        assert pattern.wrong_elements(rank, stale) > 0.9 * len(output)
        shifted = np.roll(output, 1)
        assert pattern.wrong_elements(rank, shifted) > 0.5 * len(output)


def test_another_seed_is_other_data():
    collective = make_collective("allgather", 2)
    first, second = (filled(Pattern(collective, 100, "int32", "sum", seed), 2)[0] for seed in (0, 1))
    assert (first != second).mean() > 0.9


@pytest.mark.parametrize("kind", sorted(REDUCING))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_are_exact_in_the_coarsest_types(kind, dtype):
    collective = make_collective(kind, 24)
    pattern = Pattern(collective, 240, dtype, "sum")
    inputs = filled(pattern, 24)
    backwards = expected(collective, dtype, "sum", 240, inputs[::-1])
    forwards = expected(collective, dtype, "sum", 240, inputs)
    assert layout(collective, 240).lengths.sum() == 240
    if kind == "allreduce":
        assert all((a == b).all() for a, b in zip(forwards, backwards, strict=True))
    assert all(pattern.wrong_elements(rank, output) == 0 for rank, output in enumerate(forwards))
