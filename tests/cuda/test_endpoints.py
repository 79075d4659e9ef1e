"""Kernels of one's own: the example on GPUs that are threads of the host, in one process and in several."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from collsyn.cuda.endpoints import ENDPOINT
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


# Every rank sends its words to the next one as packets, and adds one to what it gets; by calls, in two sets in turns.
PACKETS = """
#include "collsyn.cuh"
using namespace collsyn;
struct ring { endpoint peers; const u32 *words; u32 *got; u64 count; u32 call, late; };
COLLSYN_FN void send_on_threads(thread &t, const ring &r) {
    const endpoint &e = r.peers;
    worker w = worker_of(t, t.block, t.blocks);
    u64 set = r.call % 2 * ((r.count + 1) & ~1ull) * 8;
    put_packets(w, (u64 *)(e.data[(e.rank + 1) % e.num_ranks] + set), r.words, r.count, r.call + 1);
    u32 *got = r.got;
    bool came = get_packets(w, (const u64 *)(e.data[e.rank] + set), r.count, r.call + 1, patience{e.limit_ns, nullptr},
        [&](u64 i, u32 word) { got[i] = word + 1; });
    if (meet_any(t, !came) && t.index == 0) store_release(e.failed, 1u);
    flush(t);
    /* The next call may use the other set at once, but this one only when everybody has read it. */
    if (t.block == 0) {
        signal_to(e, t, (e.rank + e.num_ranks - 1) % e.num_ranks, 0, 1);
        wait_for(e, t, 0, 1);
    }
}
COLLSYN_ENTRY(send_on, ring)
"""
RING = np.dtype([("peers", ENDPOINT), ("words", "u8"), ("got", "u8"), ("count", "u8"), ("call", "u4"), ("late", "u4")])


@pytest.mark.parametrize(("count", "blocks"), [(1, 1), (7, 1), (64, 1), (65, 3)])
def test_packets_carry_words_with_their_flags(count: int, blocks: int) -> None:
    driver, n = HostGpuDriver(1), 3
    with GpuJob.loopback(driver, n) as job:
        made = job.endpoints(2 * 8 * (count + 1), num_flags=1)
        kernel = job.module_of(0, PACKETS, "packets.cu")("send_on")
        streams = {rank: driver.stream(0) for rank in range(n)}
        for call in range(3):
            words = [np.arange(count, dtype=np.uint32) * 7 + 1000 * rank + call for rank in range(n)]
            got = [np.zeros(count, dtype=np.uint32) for _ in range(n)]
            for rank in range(n):
                argument = np.zeros((), dtype=RING)
                argument["peers"] = made.argument(rank, 5)
                argument["words"], argument["got"] = words[rank].ctypes.data, got[rank].ctypes.data
                argument["count"], argument["call"] = count, call
                driver.launch(0, kernel, streams[rank], blocks, 32, argument[()], True)
            job.wait(made, streams, 5)
            made.check()
            made.advance(1)
            for rank in range(n):
                assert np.array_equal(got[rank], words[(rank - 1) % n] + 1), (call, rank)
