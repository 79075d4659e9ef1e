"""Profiles of GPUs, here threads of the host: every pair, bytes verified first, joint runs, facts."""

import ctypes
import sys
from types import SimpleNamespace

import pytest

from collsyn.cuda.driver import DeviceFacts
from collsyn.cuda.facts import nvml_facts
from collsyn.errors import VerificationError
from collsyn.model.fields import Fields
from collsyn.model.profile import profile_document, profile_from_fields
from collsyn.profiling.gpu import profile_gpu
from collsyn.profiling.host import Effort
from tests.support.host_gpu import HostGpuDriver

SMALL = Effort(sizes=(8, 1 << 12), load_sizes=(8, 1 << 12), reduce_sizes=(1 << 10, 1 << 12), repeats=2, runs_per_rank=1)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in (("_MAX_ROUNDS", 3), ("_MIN_ROUNDS", 2), ("_TOGETHER_BYTES", 1 << 12), ("_BLOCKS", 2)):
        monkeypatch.setattr(f"collsyn.profiling.gpu.{name}", value)


@pytest.mark.parametrize("loopback", [True, False])
def test_every_pair_is_measured_and_the_file_is_a_topology(loopback: bool) -> None:
    driver, shares = HostGpuDriver(3), []
    profile = profile_gpu(driver, 3, SMALL, loopback=loopback, name="three", on_progress=shares.append)
    assert {(link.src, link.dst) for link in profile.links} == {(a, b) for a in range(3) for b in range(3) if a != b}
    assert all(link.beta_s_per_byte.value > 0 for link in profile.links)
    assert profile.backend == "cuda"
    assert shares == sorted(shares)
    assert {(a, b) for a, b, _ in profile.method["copy_engine_gb_s"]} == {
        (link.src, link.dst) for link in profile.links
    }
    assert all(rate > 0 for _, _, rate in profile.method["copy_engine_gb_s"])
    assert ("joint_runs" in profile.method) != loopback
    assert profile.facts["gpus"][0]["name"] == "host threads"
    again = profile_from_fields(Fields(profile_document(profile), "again"))
    assert again.topology().num_ranks == 3
    assert driver.memory == {}


def test_a_process_a_rank_measures_its_own_pairs(monkeypatch) -> None:
    monkeypatch.setattr("collsyn.cuda.cupy_driver.CupyDriver", lambda: HostGpuDriver(1))
    profile = profile_gpu(None, 3, SMALL, launcher="fork")
    assert {(link.src, link.dst) for link in profile.links} == {(a, b) for a in range(3) for b in range(3) if a != b}
    assert len(profile.method["copy_engine_gb_s"]) == 6
    assert profile.method["joint_runs"] > 0


def test_bytes_that_arrive_changed_are_no_measurement(monkeypatch) -> None:
    whole = HostGpuDriver.read

    def spoilt(self, device, address, data):
        whole(self, device, address, data)
        if data.nbytes >= 1 << 12:
            ctypes.memset(data.ctypes.data + 7, 0xEE, 1)

    monkeypatch.setattr(HostGpuDriver, "read", spoilt)
    with pytest.raises(VerificationError, match=r"rank \d (received byte 7 changed|reduced .* else than their sum)"):
        profile_gpu(HostGpuDriver(2), 2, SMALL)


class NVMLError(Exception):
    """As nvidia-ml-py has it."""


def unknown(*given):
    raise NVMLError("not supported")


def test_what_nvml_says_is_taken_and_what_it_does_not_know_left_out(monkeypatch) -> None:
    known = DeviceFacts("x", "u", (9, 0), 132, 1, "00000000:1b:00")
    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByPciBusId=lambda bus: bus,
        nvmlDeviceGetMaxPcieLinkGeneration=lambda handle: 5,
        nvmlDeviceGetMaxPcieLinkWidth=unknown,
        nvmlDeviceGetNvLinkState=lambda handle, link: link < 4 if link < 12 else unknown(),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert nvml_facts([known]) == [{"pcie_generation": 5, "nvlinks": 4}]
    nvml.nvmlInit = unknown
    assert nvml_facts([known]) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml_facts([known]) is None
