"""Kernels of one's own: the example on GPUs that are threads of the host, in one process and in several."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from collsyn.cuda.job import GpuJob
from collsyn.errors import DeviceError, InputError
from collsyn.runtime.launch import launch
from tests.support.host_gpu import HostGpuDriver

EXAMPLE = Path(__file__).parents[2] / "examples" / "scaled_allreduce.py"


def example():
    spec = importlib.util.spec_from_file_location("scaled_allreduce", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("num_ranks", [2, 5])
def test_the_example_is_numpys_result(num_ranks: int) -> None:
    driver = HostGpuDriver(1)
    assert example().main(num_ranks, driver, count=333) == 0
    assert driver.memory == {}


def in_processes(bootstrap) -> list[float]:
    module = example()
    with GpuJob.one_each(HostGpuDriver(1), bootstrap) as job:
        call = module.ScaledAllreduce(job, 100)
        found = []
        for turn in range(4):
            call.array(bootstrap.rank, 0)[...] = np.arange(100) + bootstrap.rank * turn
            job.barrier()
            call(0.5)
            found.append(float(np.sum(call.array(bootstrap.rank, 1))))
        call.close()
    return found


def test_the_example_between_processes() -> None:
    # 0.5 * the sum over three ranks of (4950 + 100 * rank * turn).
    wanted = [0.5 * (3 * 4950 + 100 * 3 * turn) for turn in range(4)]
    assert launch("tests.cuda.test_endpoints:in_processes", {}, 3, "fork", 60) == [wanted] * 3


def test_a_flag_that_nobody_raises_is_named() -> None:
    module = example()
    with GpuJob.loopback(HostGpuDriver(1), 3) as job:
        call = module.ScaledAllreduce(job, 10)
        call(1.0)
        del job.devices[2]
        with pytest.raises(DeviceError, match=r"rank [01]: flag 2 was not raised within the time limit"):
            call(1.0, limit_s=0.2)
        job.devices[2] = 0
        with pytest.raises(DeviceError, match="the job has ended"):
            job.endpoints(10)


def test_what_endpoints_need() -> None:
    with GpuJob.loopback(HostGpuDriver(1), 2) as job:
        with pytest.raises(InputError, match="expected at least 0 and 1"):
            job.endpoints(8, num_flags=0)
        made = job.endpoints(64)
        with pytest.raises(InputError, match="rank 2 is not of this process"):
            made.argument(2)
        assert len(made.data(1, np.float32)) == 16
