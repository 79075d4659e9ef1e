"""A kernel of one's own between GPUs: an allreduce fused with a scale (scaled_allreduce.cu).

    python examples/scaled_allreduce.py 4        # four ranks on one GPU

The same works with a process for each GPU: make the job with `GpuJob.one_each(driver, bootstrap)`.
"""

import sys
from pathlib import Path

import numpy as np

from collsyn.cuda.driver import Driver
from collsyn.cuda.endpoints import ENDPOINT, Endpoints
from collsyn.cuda.job import GpuJob
from collsyn.errors import DeviceError

SOURCE = Path(__file__).with_suffix(".cu")
# The kernel's argument, field by field.
ARGUMENT = np.dtype(
    [("peers", ENDPOINT), ("input", "u8"), ("output", "u8"), ("count", "u8"), ("scale", "f4"), ("reserved", "u4")]
)
THREADS = 512


class ScaledAllreduce:
    """`scale * sum` of all ranks' inputs, at every rank; buffers are made here and filled by whoever calls."""

    def __init__(self, job: GpuJob, count: int) -> None:
        """Memory for two sets of everybody's input, and input and output of the ranks of this process."""
        self.job, self.count = job, count
        self.endpoints: Endpoints = job.endpoints(2 * job.size * count * 4, num_flags=job.size)
        self.buffers = {
            rank: (job.driver.allocate(device, count * 4), job.driver.allocate(device, count * 4))
            for rank, device in job.devices.items()
        }
        self.streams = {rank: job.driver.stream(device) for rank, device in job.devices.items()}

    def array(self, rank: int, which: int) -> object:
        """Input (0) or output (1) of a rank, as a CuPy array."""
        address = self.buffers[rank][which]
        return self.job.driver.array(self.job.devices[rank], address, self.count * 4, np.dtype(np.float32))

    def __call__(self, scale: float, limit_s: float = 10) -> None:
        """Run it once on all ranks of this process, and wait."""
        driver = self.job.driver
        for rank, device in self.job.devices.items():
            kernel = self.job.module_of(device, SOURCE.read_text(), SOURCE.name)("scaled_allreduce")
            argument = np.zeros((), dtype=ARGUMENT)
            argument["peers"] = self.endpoints.argument(rank, limit_s)
            argument["input"], argument["output"] = self.buffers[rank]
            argument["count"], argument["scale"] = self.count, scale
            driver.launch(device, kernel, self.streams[rank], 1, THREADS, argument[()], True)
        self.job.wait(self.endpoints, self.streams, limit_s)
        self.endpoints.check()
        self.endpoints.advance(1)

    def close(self) -> None:
        """Give input and output back; the job gives back the rest."""
        for rank, device in self.job.devices.items():
            for address in self.buffers[rank]:
                self.job.driver.free(device, address)


def main(num_ranks: int, driver: Driver | None = None, count: int = 1000) -> float:
    """Run it three times on one GPU; the largest difference from NumPy's result."""
    if driver is None:
        from collsyn.cuda.cupy_driver import CupyDriver

        driver = CupyDriver()
    worst = 0.0
    rng = np.random.default_rng(0)
    with GpuJob.loopback(driver, num_ranks) as job:
        call = ScaledAllreduce(job, count)
        for scale in (1.0, 0.5, 2.0):
            inputs = rng.integers(-8, 8, (num_ranks, count)).astype(np.float32)
            for rank in range(num_ranks):
                driver.write(job.devices[rank], call.buffers[rank][0], inputs[rank])
            call(scale)
            for rank in range(num_ranks):
                output = np.empty(count, dtype=np.float32)
                driver.read(job.devices[rank], call.buffers[rank][1], output)
                worst = max(worst, float(np.abs(output - scale * inputs.sum(axis=0)).max()))
        call.close()
    return worst


if __name__ == "__main__":
    try:
        print(f"largest difference: {main(int(sys.argv[1]) if len(sys.argv) > 1 else 4):g}")
    except DeviceError as error:
        sys.exit(str(error))
