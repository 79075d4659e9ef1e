"""GPUs (threads of the host) in several boxes: forced boundaries, all bytes by way of MPI, and what goes wrong."""

import os
import signal
import time
from itertools import product

import numpy as np
import pytest

from collsyn.cuda.far import Beyond
from collsyn.cuda.job import GpuJob
from collsyn.cuda.pack import pack
from collsyn.errors import DeviceError, InputError
from collsyn.model.bind import bind
from collsyn.model.plan import READS_PEER, Op
from collsyn.runtime.boxes import BOX_SIZE
from collsyn.runtime.crossing import AWAIT, FETCH, RAISE, SEND
from collsyn.runtime.launch import launch
from collsyn.runtime.mpirun import has_mpi
from collsyn.runtime.native_loader import native_library
from collsyn.runtime.transport import STAGING, TRANSPORT
from tests.cuda.test_job import assert_call_is_right, plan_of
from tests.runtime.plans import put_allgather, ring_allreduce
from tests.support.host_gpu import HostGpuDriver
from tests.support.plans import without

HERE = "tests.cuda.test_boxes"
LIMIT_S = 100
needs_mpi = pytest.mark.skipif(
    not has_mpi() or native_library() is None, reason="needs mpi4py, an mpirun and a compiler"
)


def start(name: str, num_ranks: int, **arguments):
    return launch(f"{HERE}:{name}", arguments, num_ranks, "mpirun", LIMIT_S)


def right_calls(bootstrap, kinds, elements, transport="kernel") -> tuple[int, int]:
    """Some calls of every kind; memory that is left, and copies by the driver."""
    driver = HostGpuDriver(1)
    with GpuJob.one_each(driver, bootstrap) as job:
        for kind, count in product(kinds, elements):
            assert_call_is_right(job, plan_of(kind, "full:4"), count, "int32", "sum", transport=transport)
        ours = ring_allreduce(bootstrap.size)
        assert_call_is_right(job, ours, max(elements), "int32", "max", transport=transport)
        copies = driver.copies.value
    return len(driver.memory), copies


@needs_mpi
@pytest.mark.parametrize(("size", "transport"), [("2", "kernel"), ("2", "specialised"), ("1", "kernel")])
def test_all_bytes_cross_right(size: str, transport: str, monkeypatch) -> None:
    monkeypatch.setenv(BOX_SIZE, size)
    kinds = ["allgather", "allreduce", "alltoall"] if transport == "kernel" else ["reducescatter"]
    found = start("right_calls", 4, kinds=kinds, elements=[5, 40_004], transport=transport)
    assert [left for left, _ in found] == [0] * 4
    assert all(copies > 0 for _, copies in found)


@needs_mpi
@pytest.mark.parametrize("staging", ["0", "1"])
def test_memory_that_mpi_takes_and_memory_that_is_staged(staging: str, monkeypatch) -> None:
    monkeypatch.setenv(BOX_SIZE, "2")
    monkeypatch.setenv(STAGING, staging)
    found = start("right_calls", 4, kinds=["allgather", "reducescatter"], elements=[70_001])
    assert [left for left, _ in found] == [0] * 4


def killed_in_a_call(bootstrap, victim: int) -> str:
    with GpuJob.one_each(HostGpuDriver(1), bootstrap) as job:
        prepared = job.prepare(bind(plan_of("allgather", "full:4"), 40, 4), "int32", threads=32)
        job.barrier()
        if bootstrap.rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        prepared.run(limit_s=60)
    return "not lost"


@needs_mpi
def test_a_lost_rank_of_another_box_ends_all(monkeypatch) -> None:
    monkeypatch.setenv(BOX_SIZE, "2")
    begin = time.monotonic()
    with pytest.raises(DeviceError, match=r"rank 1|^ranks 0, 1, 2, 3 were lost: mpirun ended"):
        start("killed_in_a_call", 4, victim=1)
    assert time.monotonic() - begin < 60


def waits_for_nothing(bootstrap) -> str:
    """The last signal to another box is missing."""
    plan = put_allgather(bootstrap.size)
    row = int(np.flatnonzero(plan.columns["op"] == Op.SIGNAL)[-1])
    with GpuJob.one_each(HostGpuDriver(1), bootstrap) as job:
        prepared = job.prepare(bind(without(plan, row), 40, 4), "int32", threads=32)
        prepared.run(limit_s=1)
    return "did not wait"


@needs_mpi
def test_a_wait_that_nobody_ends_ends_all_boxes(monkeypatch) -> None:
    monkeypatch.setenv(BOX_SIZE, "1")
    begin = time.monotonic()
    with pytest.raises(DeviceError, match=r"rank \d, channel \d, instruction \d+: wait .*not within the time limit"):
        start("waits_for_nothing", 3)
    assert time.monotonic() - begin < 60


def asked_for_too_much(bootstrap) -> list[str]:
    """What is refused across boxes, in words."""
    said = []
    with GpuJob.one_each(HostGpuDriver(1), bootstrap) as job:
        bound = bind(put_allgather(bootstrap.size), 40, 4)
        for work in (
            lambda: job.prepare(bound, "int32", transport="engine"),
            lambda: job.prepare(bound, "int32", blocks_per_channel=2),
            lambda: job.endpoints(64),
        ):
            try:
                work()
            except (DeviceError, InputError) as error:
                said.append(str(error))
    return said


@needs_mpi
def test_what_does_not_cross_is_refused(monkeypatch) -> None:
    monkeypatch.setenv(BOX_SIZE, "1")
    for said in start("asked_for_too_much", 2):
        assert said == [
            "transport: is 'engine', which reaches no other boxes; expected 'kernel'",
            "blocks_per_channel: is 2; expected 1 where ranks are in several boxes",
            "endpoints reach ranks of one box; those of this job are in 2",
        ]


@needs_mpi
@pytest.mark.parametrize(
    ("variable", "value", "num_ranks", "message"),
    [
        (BOX_SIZE, "2", 3, "boxes have unequal numbers of ranks: box 0 has 2, box 1 has 1"),
        (TRANSPORT, "nccl", 2, "COLLSYN_TRANSPORT: is 'nccl'; expected mpi"),
        (STAGING, "maybe", 2, "COLLSYN_STAGING: is 'maybe'; expected 1"),
    ],
)
def test_what_is_asked_for_wrongly_is_one_line(
    variable: str, value: str, num_ranks: int, message: str, monkeypatch
) -> None:
    monkeypatch.setenv(BOX_SIZE, "1")
    monkeypatch.setenv(variable, value)
    with pytest.raises((DeviceError, InputError), match=message):
        start("asked_for_too_much", num_ranks)


def test_forked_ranks_cannot_leave_their_box(monkeypatch) -> None:
    monkeypatch.setenv(BOX_SIZE, "1")
    with pytest.raises(DeviceError, match=r"share no memory, and only ranks that MPI started \(mpirun, srun\) reach"):
        launch(f"{HERE}:asked_for_too_much", {}, 2, "fork", LIMIT_S)


@pytest.mark.parametrize("builder", [put_allgather, ring_allreduce])
def test_records_for_other_boxes_are_those_of_the_plan(builder) -> None:
    """Against the plan itself: every byte that crosses is asked for once, and every answer is awaited."""
    bound = bind(builder(4), 50_001, 4)
    plan, columns = bound.plan, bound.columns
    near = pack(bound, "int32", "sum", [1])
    assert not np.isin(near.instructions["kind"], [SEND, RAISE, FETCH, AWAIT]).any()
    made = pack(bound, "int32", "sum", [1], beyond=Beyond(frozenset({0, 1}), 1 << 60))
    records, rows = made.instructions, made.rows
    for row in range(int(plan.channel_ptr[plan.channels_of(1)[0]]), int(plan.channel_ptr[plan.channels_of(1)[-1] + 1])):
        of, op, far = records[rows == row], columns["op"][row], columns["peer"][row] >= 2
        length = int(columns["length"][row])
        if op == Op.PUT and far:
            assert of["count"][of["kind"] == SEND].sum() == length and of["kind"][-1] == AWAIT
        elif op in READS_PEER and far:
            assert of["count"][of["kind"] == FETCH].sum() == length
        elif op == Op.SIGNAL and far:
            assert of["kind"][-1] == RAISE and of["src2_slot"][-1] == columns["peer"][row]
        else:
            assert not np.isin(of["kind"][-1:], [SEND, RAISE, FETCH, AWAIT]).any()
    for channel in made.channels:
        inside = records[channel["begin"] : channel["end"]]
        counted = np.isin(inside["kind"], [SEND, FETCH])
        assert channel["asks"] == counted.sum()
        awaits = inside["kind"] == AWAIT
        assert (inside["value"][awaits] == np.cumsum(counted)[awaits]).all()
