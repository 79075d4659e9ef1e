"""Sizes of a sweep, and how they are rounded down to whole elements for every rank."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.bench.sizes import count_column, num_elements, sweep
from collsyn.errors import InputError
from collsyn.model.collective import make_collective
from collsyn.model.kinds import KINDS

COUNTS = {"alltoallv": [[0, 1, 2], [3, 0, 1], [1, 1, 0]]}
NAMED = [kind for kind in KINDS if kind != "custom"]


def test_sweeps_by_factor_and_by_step():
    assert sweep(8, 128, factor=2) == (8, 16, 32, 64, 128)
    assert sweep(1, 1000, factor=10) == (1, 10, 100, 1000)
    assert sweep(10, 35, step_bytes=10) == (10, 20, 30)
    assert sweep(7, 7, factor=2) == (7,)


@pytest.mark.parametrize(
    "arguments", [(2, 1, 2, None), (1, 2, 1, None), (1, 2, 0, None), (1, 2, None, 0), (1, 2, None, None)]
)
def test_impossible_sweeps_are_refused(arguments):
    with pytest.raises(InputError):
        sweep(*arguments)


def test_a_sweep_without_end_is_refused():
    with pytest.raises(InputError, match="more than"):
        sweep(1, 1 << 40, step_bytes=1)


@pytest.mark.parametrize(
    "kind, size, elements, count",
    [
        ("allgather", 1000, 249, 83),
        ("reducescatter", 1000, 249, 83),
        ("alltoall", 1000, 249, 83),
        ("gather", 11, 0, 0),
        ("scatter", 12, 3, 1),
        ("allreduce", 1000, 250, 250),
        ("allreduce", 3, 0, 0),
        ("broadcast", 7, 1, 1),
        ("sendrecv", 1000, 250, 250),
    ],
)
def test_sizes_and_counts_of_nccl_tests(kind, size, elements, count):
    collective = make_collective(kind, 3, counts=COUNTS.get(kind))
    assert num_elements(collective, size, 4) == elements
    assert count_column(collective, elements) == count


@given(
    st.sampled_from(NAMED), st.integers(2, 3), st.integers(1, 100_000), st.sampled_from([1, 2, 4, 8]), st.integers(1, 3)
)
def test_rounding_down_keeps_all_but_less_than_one_round(kind, num_ranks, size, width, chunks):
    if kind == "alltoallv":
        num_ranks = 3
    collective = make_collective(kind, num_ranks, chunks, counts=COUNTS.get(kind))
    elements = num_elements(collective, size, width)
    assert 0 <= size - elements * width < width * num_ranks
    if kind in ("allgather", "reducescatter", "gather", "scatter", "alltoall"):
        assert elements % num_ranks == 0


def test_groups_count_their_own_ranks():
    collective = make_collective("allgather", 4, groups=[[0, 1], [2, 3]])
    assert num_elements(collective, 30, 4) == 6
    assert count_column(collective, 6) == 3
