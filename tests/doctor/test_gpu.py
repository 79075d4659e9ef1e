"""Driver, CuPy, peers, IPC and the PCI bus, on machines that are not there: what is said, not what GPUs do."""

import pytest

from collsyn.doctor.bus import check_iommu
from collsyn.doctor.finding import NotMade
from collsyn.doctor.gpu import check_cupy, check_driver, check_ipc, check_peer_access, count_gpus
from collsyn.doctor.system import Answer, Ran
from tests.support.machines import FakeSystem, gpu_machine

CUPY = {"cupy-cuda12x": "13.6.0"}


def cupy_of(system):
    """What the check of CuPy finds there."""
    return check_cupy(system, check_driver(system))


def cuda(system, **different):
    """The machine with another answer of CUDA."""
    system.probes[("cuda",)] = Answer({**system.probes[("cuda",)].facts, **different})
    return system


def test_a_machine_without_gpus_is_fine():
    system = FakeSystem()
    assert check_driver(system).status == "ok"
    cupy = cupy_of(system)
    assert cupy.status == "ok"
    assert isinstance(check_peer_access(cupy), NotMade)
    assert isinstance(check_ipc(system, cupy), NotMade)


def test_a_sound_machine_with_gpus_is_fine():
    system = gpu_machine(4)
    cupy = cupy_of(system)
    found = [check_driver(system), cupy, check_peer_access(cupy), check_ipc(system, cupy)]
    assert [one.status for one in found] == ["ok"] * 4
    assert found[0].detail == "driver 580.65.06, 4 x NVIDIA H100"
    assert "CUDA 12.9 on a driver for up to 13.0, 4 x NVIDIA H100 (sm_90), 80 GiB" in cupy.detail
    assert found[2].detail == "all 12 ordered pairs of 4 GPUs, all bytes verified"


def test_gpus_are_counted_on_the_bus_or_by_their_files():
    slots = ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]
    base = "/sys/bus/pci/devices"
    files = {f"{base}/{slot}/vendor": "0x10de\n" for slot in slots[:2]} | {f"{base}/{slots[2]}/vendor": "0x8086\n"}
    # An NVSwitch is NVIDIA's too, but a bridge.
    files |= {f"{base}/{slots[0]}/class": "0x030000\n", f"{base}/{slots[1]}/class": "0x068000\n"}
    assert count_gpus(FakeSystem(folders={base: slots}, files=files)) == 1
    assert count_gpus(FakeSystem(folders={"/dev": ["nvidia0", "nvidia1", "nvidiactl", "null"]})) == 2


def test_gpus_without_a_driver_are_a_problem():
    system = gpu_machine()
    del system.commands["nvidia-smi"]
    del system.files["/proc/driver/nvidia/version"]
    found = check_driver(system)
    assert found.status == "problem"
    assert "2 NVIDIA GPUs, but no driver" in found.detail
    assert "--gpus all" in found.remedy


def test_a_driver_without_nvidia_smi_is_a_warning():
    system = gpu_machine()
    del system.commands["nvidia-smi"]
    assert (check_driver(system).status, check_driver(system).facts["driver"]) == ("warning", "580.65.06")


@pytest.mark.parametrize(
    ("ran", "word", "remedy"),
    [
        (Ran(None, "", ""), "did not end within", "dmesg"),
        (None, "cannot be started", "driver"),
        (Ran(18, "Failed to initialize NVML: Driver/library version mismatch\n", ""), "mismatch", "reboot"),
        (Ran(0, "No devices were found\n", ""), "lists none", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_an_nvidia_smi_that_fails_is_a_problem(ran, word, remedy):
    found = check_driver(gpu_machine(commands={"nvidia-smi": ran}))
    assert found.status == "problem"
    assert word in found.detail
    assert remedy in found.remedy


def test_a_left_over_nvidia_smi_without_gpus_is_a_warning():
    assert check_driver(FakeSystem(commands={"nvidia-smi": Ran(9, "", "couldn't communicate")})).status == "warning"


@pytest.mark.parametrize(
    ("line", "word"),
    [("H100, 580.1, Exclusive_Process, Disabled", "Exclusive_Process"), ("H100, 580.1, Default, Enabled", "MIG")],
)
def test_modes_that_keep_ranks_apart_are_warnings(line, word):
    found = check_driver(gpu_machine(1, commands={"nvidia-smi": Ran(0, f"{line}\n", "")}))
    assert found.status == "warning"
    assert word in found.detail


def test_cupy_without_a_driver_is_a_warning_where_no_gpu_is():
    answer = Answer({"cupy": "13.6.0", "error": "CUDARuntimeError: cudaErrorInsufficientDriver: CUDA driver version"})
    found = cupy_of(FakeSystem(versions=CUPY, probes={("cuda",): answer}))
    assert found.status == "warning"
    assert "no driver and no GPU" in found.detail


@pytest.mark.parametrize(("driver", "extra"), [("580.65.06", "cuda13"), ("550.54", "cuda12")])
def test_gpus_without_cupy_are_a_warning_with_the_right_extra(driver, extra):
    line = Ran(0, f"H100, {driver}, Default, Disabled\n", "")
    found = cupy_of(gpu_machine(1, versions={"cupy-cuda12x": None}, commands={"nvidia-smi": line}))
    assert found.status == "warning"
    assert found.remedy == f"pip install 'collsyn[{extra}]'"


@pytest.mark.parametrize(
    ("answer", "word", "remedy"),
    [
        (Answer(None, "ended with code 1: ImportError: libnvrtc.so.12"), "libnvrtc", "pip uninstall"),
        (Answer(None, "did not end within 120 s"), "did not end", "pip"),
        (Answer({"error": "cudaErrorSystemNotReady: system not yet initialized"}), "not yet", "fabricmanager"),
        (Answer({"error": "cudaErrorNoDevice: no CUDA-capable device is detected"}), "''", "CUDA_VISIBLE_DEVICES"),
        (Answer({"error": "something new"}), "something new", "pip install"),
        (Answer({"devices": [], "pairs": []}), "sees no device", "pip install"),
    ],
)
def test_a_cupy_that_sees_no_gpu_is_a_problem(answer, word, remedy):
    system = gpu_machine(probes={("cuda",): answer}, variables={"CUDA_VISIBLE_DEVICES": ""})
    found = cupy_of(system)
    assert found.status == "problem"
    assert word in found.detail
    assert remedy in found.remedy
    assert isinstance(check_peer_access(found), NotMade)
    assert isinstance(check_ipc(system, found), NotMade)


def test_a_runtime_newer_than_the_driver_is_a_problem():
    found = cupy_of(cuda(gpu_machine(1), runtime=13000, driver=12040))
    assert found.status == "problem"
    assert "CUDA 13.0 on a driver for up to 12.4" in found.detail


def test_one_gpu_has_no_peers():
    assert isinstance(check_peer_access(cupy_of(gpu_machine(1))), NotMade)


@pytest.mark.parametrize("way", ["stores", "copies"])
def test_wrong_bytes_between_peers_are_a_problem_that_names_them(way):
    system = gpu_machine(3)
    pairs = [dict(pair) for pair in system.probes[("cuda",)].facts["pairs"]]
    pairs[3][way] = "4096 of 1048576 bytes wrong"
    found = check_peer_access(cupy_of(cuda(system, pairs=pairs)))
    assert found.status == "problem"
    assert f"1 to 2 by {way}: 4096 of 1048576 bytes wrong" in found.detail
    assert "1 of 12 ways" in found.detail
    assert "ACS" in found.remedy


def test_pairs_without_access_are_a_warning():
    pairs = [{"from": i, "to": 1 - i, "stores": "no access", "copies": "no access"} for i in range(2)]
    found = check_peer_access(cupy_of(cuda(gpu_machine(), pairs=pairs)))
    assert found.status == "warning"
    assert "2 of 2 ordered pairs of GPUs have no peer access: 0-1, 1-0" in found.detail


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (Answer(None, "was ended by SIGSEGV"), "SIGSEGV"),
        (Answer({"devices": ["verified", "cudaErrorInvalidResourceHandle"]}), "1 of 2 GPUs"),
        (Answer({"devices": ["3 of 1048576 bytes wrong", "verified"]}), "bytes wrong"),
    ],
)
def test_memory_that_other_processes_cannot_map_is_a_problem(answer, word):
    system = gpu_machine(probes={("ipc",): answer})
    found = check_ipc(system, cupy_of(system))
    assert found.status == "problem"
    assert word in found.detail
    assert "--ipc=host" in found.remedy


ACS_ON = "00:01.0 PCI bridge\n\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+\n"
ACS_OFF = "00:01.0 PCI bridge\n\t\tACSCap:\tSrcValid+ ReqRedir+\n\t\tACSCtl:\tSrcValid+ ReqRedir- CmpltRedir-\n"


def with_bus(lspci=None, groups=(), kind="DMA-FQ", cmdline="quiet"):
    """A machine with an IOMMU and bridges."""
    folder = "/sys/kernel/iommu_groups"
    return FakeSystem(
        folders={folder: groups},
        files={"/proc/cmdline": cmdline} | {f"{folder}/{group}/type": f"{kind}\n" for group in groups},
        commands={} if lspci is None else {"lspci": Ran(0, lspci, "")},
    )


@pytest.mark.parametrize(
    ("system", "status", "word"),
    [
        (with_bus(), "ok", "no IOMMU in use; ACS redirection could not be read"),
        (with_bus(ACS_OFF), "ok", "ACS redirection off"),
        (with_bus(ACS_ON), "warning", "on at 1 bridges"),
        (with_bus(ACS_OFF, groups=("0", "1")), "warning", "2 groups, translating"),
        (with_bus(ACS_OFF, groups=("0",), kind="identity"), "ok", "passing through"),
        (with_bus(ACS_OFF, groups=("0",), kind="unknown", cmdline="quiet iommu=pt"), "ok", "passing through"),
        (with_bus("Capabilities: <access denied>\n"), "ok", "could not be read"),
    ],
)
def test_signs_on_the_bus_matter_between_gpus(system, status, word):
    found = check_iommu(system, num_gpus=2)
    assert found.status == status
    assert word in found.detail
    assert check_iommu(system, num_gpus=0).status == "ok"
