"""Ranks on GPUs that are threads of the host: all ways to place them, and what goes wrong."""

import json
import os
import signal
import time
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from collsyn.check.reference import make_inputs, reference
from collsyn.comm.lent import lent_plan
from collsyn.cuda.job import GpuJob
from collsyn.errors import CollsynError, DeviceError, InputError
from collsyn.lower.lower import lower
from collsyn.model.bind import bind, layout
from collsyn.model.dtypes import first_difference
from collsyn.model.plan import Op, Plan
from collsyn.runtime.launch import launch
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from tests.support.host_gpu import HostGpuDriver
from tests.support.plans import without

HERE = "tests.cuda.test_job"


def plan_of(kind: str, topology: str = "full:3", by: str = "direct") -> Plan:
    return lower(method(by).synthesize(Problem(kind, load_topology(topology), 1 << 12), Options()))


def assert_call_is_right(
    job: GpuJob, plan: Plan, elements: int, dtype: str, op: str, in_place: bool = False, transport: str = "kernel"
) -> None:
    width = {"int32": 4, "float16": 2}[dtype]
    prepared = job.prepare(bind(plan, elements, width, in_place), dtype, op, threads=32, transport=transport)
    for seed in range(2):
        inputs = make_inputs(plan.collective, dtype, op, elements, seed=seed)
        want = reference(plan.collective, dtype, op, inputs, elements)
        for rank in job.devices:
            prepared.output(rank)[...] = 77
            prepared.input(rank)[...] = inputs[rank]
        job.barrier()
        prepared.run(limit_s=20)
        job.barrier()
        chunks_of = layout(plan.collective, elements).output
        for rank in job.devices:
            chunks, first, _ = chunks_of[rank]
            lengths = layout(plan.collective, elements).lengths
            for chunk, begin in zip(chunks.tolist(), first.tolist(), strict=True):
                part = slice(begin, begin + int(lengths[chunk]))
                assert first_difference(dtype, prepared.output(rank)[part], want[rank][part]) is None, (rank, chunk)


@pytest.mark.parametrize(
    ("kind", "op", "transport"),
    [
        *product(["allgather", "reducescatter", "allreduce", "alltoall", "broadcast"], ["sum"], ["kernel", "engine"]),
        *product(["reducescatter", "allreduce"], ["avg"], ["kernel", "specialised", "engine"]),
    ],
)
def test_all_ranks_on_one_gpu(kind: str, op: str, transport: str) -> None:
    driver = HostGpuDriver(1)
    with GpuJob.loopback(driver, 3) as job:
        assert_call_is_right(job, plan_of(kind), 99, "float16", op, transport=transport)
    assert driver.memory == {}
    together = {together for _, blocks, together in driver.launches if blocks != 32}
    assert together == (set() if transport == "engine" else {True})


def test_a_gpu_a_rank_in_one_process() -> None:
    driver = HostGpuDriver(4)
    with GpuJob.one_process(driver, 4) as job:
        assert_call_is_right(job, plan_of("allreduce", "ring:4", "ring"), 1000, "int32", "max")
        plan = plan_of("allgather", "ring:4", "ring")
        assert_call_is_right(job, plan, 1000, "int32", "sum", in_place=True)
        assert_call_is_right(job, plan, 1000, "int32", "sum", in_place=True, transport="engine")
    assert {device for device, _, _ in driver.launches} == set(range(4))
    assert driver.memory == {}


def one_of_several(bootstrap, kind: str) -> int:
    driver = HostGpuDriver(1)
    with GpuJob.one_each(driver, bootstrap) as job:
        assert_call_is_right(job, plan_of(kind), 100, "int32", "sum")
        assert_call_is_right(job, plan_of(kind), 7, "int32", "sum", transport="engine" if bootstrap.rank else "kernel")
    return len(driver.memory)


@pytest.mark.parametrize("kind", ["allreduce", "alltoall"])
def test_a_process_a_gpu(kind: str) -> None:
    assert launch(f"{HERE}:one_of_several", {"kind": kind}, 3, "fork", 100) == [0, 0, 0]


def test_a_kernel_for_one_plan_is_made_of_few_instructions(monkeypatch) -> None:
    monkeypatch.setattr("collsyn.cuda.specialise.MAX_INSTRUCTIONS", 5)
    refused = pytest.raises(InputError, match="instructions here; a kernel of its own is made of up to 5")
    with GpuJob.loopback(HostGpuDriver(1), 3) as job, refused:
        job.prepare(bind(plan_of("allgather"), 30, 4), "int32", transport="specialised")


def test_users_buffers_take_the_place_of_ours() -> None:
    driver, plan = HostGpuDriver(1), lent_plan("allreduce", 3)
    bound = replace(bind(plan, 30, 4), is_lent=True)
    with GpuJob.loopback(driver, 3) as job:
        prepared = job.prepare(bound, "int32", threads=32)
        with pytest.raises(InputError, match="works on buffers of the user"):
            prepared.input(0)
        for seed in range(2):
            inputs = make_inputs(plan.collective, "int32", "sum", 30, seed=seed)
            mine = [(data.copy(), np.full(30, 77, np.int32)) for data in inputs]
            prepared.register({rank: (a.ctypes.data, b.ctypes.data) for rank, (a, b) in enumerate(mine)})
            prepared.run()
            for (_, output), want in zip(mine, reference(plan.collective, "int32", "sum", inputs, 30), strict=True):
                assert np.array_equal(output, want)
        with pytest.raises(InputError, match="bind it with lent ones"):
            job.prepare(bind(plan, 30, 4), "int32").register({0: (0, 0)})


@pytest.mark.parametrize("transport", ["kernel", "specialised", "engine"])
def test_a_wait_that_nobody_ends_names_rank_channel_and_instruction(transport: str) -> None:
    plan = plan_of("allgather")
    row = int(np.flatnonzero(plan.columns["op"] == Op.SIGNAL)[-1])
    broken = without(plan, row)
    with GpuJob.loopback(HostGpuDriver(1), 3) as job:
        prepared = job.prepare(bind(broken, 30, 4), "int32", threads=32, transport=transport)
        with pytest.raises(DeviceError, match=r"rank \d, channel \d, instruction \d+: .*not within the time limit"):
            prepared.run(limit_s=0.3)
        with pytest.raises(DeviceError, match="the job has ended: rank"):
            prepared.run()


def killed_in_a_call(bootstrap) -> str:
    with GpuJob.one_each(HostGpuDriver(1), bootstrap) as job:
        prepared = job.prepare(bind(plan_of("allgather"), 30, 4), "int32", threads=32)
        job.barrier()
        if bootstrap.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        try:
            prepared.run(limit_s=60)
        except DeviceError as error:
            assert time.monotonic() - begin < 30
            print(json.dumps(str(error)))
            raise
    return "not lost"


def test_a_lost_rank_ends_the_calls_of_the_others() -> None:
    begin = time.monotonic()
    with pytest.raises(DeviceError, match="rank 1"):
        launch(f"{HERE}:killed_in_a_call", {}, 3, "fork", 50)
    assert time.monotonic() - begin < 40


def different_plans(bootstrap) -> None:
    with GpuJob.one_each(HostGpuDriver(1), bootstrap) as job:
        job.prepare(bind(plan_of("allgather"), 30 if bootstrap.rank else 33, 4), "int32")


def same_gpu(bootstrap) -> None:
    driver = HostGpuDriver(2)
    GpuJob(driver, {bootstrap.rank: 0}, bootstrap)


def missing_gpu(bootstrap) -> None:
    GpuJob.one_each(HostGpuDriver(2), bootstrap)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("different_plans", "the plan to prepare"),
        ("same_gpu", "ranks 0 and 1 have the same GPU in processes of their own"),
        ("missing_gpu", "rank 2 has GPU 2; this process sees 2"),
    ],
)
def test_what_processes_must_agree_about(target: str, message: str) -> None:
    with pytest.raises(CollsynError, match=message):
        launch(f"{HERE}:{target}", {}, 3, "fork", 50)


def test_what_does_not_fit_is_refused_before_anything_runs() -> None:
    plan = plan_of("allgather")
    blocks = plan.num_channels
    with GpuJob.loopback(HostGpuDriver(1, room=2), 3) as job:
        with pytest.raises(DeviceError, match=f"needs {blocks} blocks of 512 threads at once on GPU 0, which holds 2"):
            job.prepare(bind(plan, 30, 4), "int32")
        with pytest.raises(InputError, match="transport: is 'dma'; expected one of kernel, specialised, engine"):
            job.prepare(bind(plan, 30, 4), "int32", transport="dma")
        with pytest.raises(InputError, match="threads: is 33; expected a multiple of 32"):
            job.prepare(bind(plan, 30, 4), "int32", threads=33)
        with pytest.raises(InputError, match="is bound for elements of 4 bytes, not for float16"):
            job.prepare(bind(plan, 30, 4), "float16")
        with pytest.raises(InputError, match="is for 4 ranks; this job has 3"):
            job.prepare(bind(plan_of("allgather", "full:4"), 40, 4), "int32")
    with pytest.raises(DeviceError, match="4 ranks need as many GPUs; this process sees 2"):
        GpuJob.one_process(HostGpuDriver(2), 4)
    with pytest.raises(DeviceError, match="GPU 0 has no peer access to GPU 1"):
        GpuJob.one_process(HostGpuDriver(2, blocked=((0, 1),)), 2)
