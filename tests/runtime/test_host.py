"""Plans on shared memory between processes: right results, and an end in every kind of trouble."""

import functools
import os

import pytest

from collsyn.errors import DeviceError, InputError
from collsyn.model.dtypes import DTYPES
from collsyn.runtime import native_loader
from collsyn.runtime.launch import launch

LIMIT_S = 60


@pytest.fixture(params=["compiled", "numpy"])
def executor(request, monkeypatch):
    """Both executors, one after the other."""
    if request.param == "numpy":
        monkeypatch.setenv("COLLSYN_NATIVE", "0")
    native_loader.native_library.cache_clear()
    if request.param == "compiled" and native_loader.native_library() is None:
        pytest.skip("no C compiler here")
    yield request.param
    native_loader.native_library.cache_clear()


def start(name, num_ranks=3, timeout_s=LIMIT_S, **arguments):
    """Launch a function of targets.py on forked ranks."""
    return launch(f"tests.runtime.targets:{name}", arguments, num_ranks, "fork", timeout_s)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_allgather_of_all_types_and_sizes(executor, num_ranks):
    sizes = [1, num_ranks, 5 * num_ranks + 1, 1000]
    assert start("check_plan", num_ranks, builder="put_allgather", elements=sizes, ops=["sum"]) == [[]] * num_ranks


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_allreduce_of_all_types_and_reductions(executor, num_ranks):
    assert start("check_plan", num_ranks, builder="ring_allreduce", elements=[1, 301]) == [[]] * num_ranks


@pytest.mark.parametrize("builder", ["put_allgather", "ring_allreduce"])
def test_in_place(executor, builder):
    found = start("check_plan", 4, builder=builder, elements=[4, 1003], dtypes=["float32", "uint8"], in_place=True)
    assert found == [[]] * 4


def test_large_buffers(executor):
    assert start("check_plan", 2, builder="ring_allreduce", elements=[1_000_003], dtypes=["float64"]) == [[]] * 2


def test_more_ranks_than_cores():
    num_ranks = 4 * len(os.sched_getaffinity(0))
    found = start("check_plan", num_ranks, builder="put_allgather", elements=[num_ranks], dtypes=["int32"], repeats=20)
    assert found == [[]] * num_ranks


def test_two_plans_by_turns_without_a_barrier(executor):
    assert start("alternate", 4, turns=100) == [[]] * 4


def test_memory_is_used_again_when_sizes_shrink(executor):
    assert start("sweep_sizes", 3, sizes=[4000, 2000, 1, 3000]) == [[1, True]] * 3
    places, right = start("sweep_sizes", 3, sizes=[1, 4000, 8])[0]
    assert places >= 2
    assert right


def test_many_plans_at_once_need_no_descriptors():
    assert start("prepare_many", number=100) == [[True, "this plan is closed"]] * 3


@pytest.mark.parametrize("op", ["sum", "prod", "avg"])
def test_both_executors_round_alike(monkeypatch, op):
    if native_loader.native_library() is None:
        pytest.skip("no C compiler here")
    run = functools.partial(start, "outputs", builder="ring_allreduce", num_elements=77, op=op)
    compiled = {name: run(dtype=name) for name in DTYPES}
    monkeypatch.setenv("COLLSYN_NATIVE", "0")
    native_loader.native_library.cache_clear()
    try:
        assert {name: run(dtype=name) for name in DTYPES} == compiled
    finally:
        native_loader.native_library.cache_clear()


def test_a_stuck_plan_names_rank_channel_and_instruction(executor):
    with pytest.raises(
        DeviceError, match=r"^rank 1, channel 1, instruction 2: wait flag 3 >= 7 \(of rank 0\) for 0\.4"
    ):
        start("be_stuck", limit_s=0.4)


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_a_lost_rank_ends_the_others(executor, how):
    with pytest.raises(DeviceError, match=r"rank 1 "):
        start("loop_until_one_dies", victim=1, how=how)


def test_an_exception_on_a_rank_ends_the_others(executor):
    with pytest.raises(DeviceError, match=r"^rank 0: ValueError: boom with a second line$"):
        start("loop_until_one_dies", victim=0, how="raise")


@pytest.mark.parametrize("what", ["size", "op"])
def test_ranks_that_prepare_different_plans_are_told(what):
    with pytest.raises(
        DeviceError, match=r"ranks 0 and 1 disagree about the plan to prepare: ring-allreduce of 4 .* and"
    ):
        start("disagree", what=what)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("ranks", "is for 4 ranks; this job has 3"),
        ("dtype", "bound for elements of 4 bytes, not for float64"),
        ("place", "bound out of place"),
    ],
)
def test_requests_that_do_not_fit_the_plan_are_refused(how, message):
    with pytest.raises(InputError, match=message):
        start("misuse", how=how)
