"""What profiles say of GPUs beside what was measured: kinds and counts, and what NVML tells of their links."""

from collections.abc import Callable, Sequence
from typing import Any

from collsyn.cuda.driver import DeviceFacts, Driver
from collsyn.runtime.facts import machine_facts

_MOST_LINKS = 18


def gpu_facts(driver: Driver, devices: Sequence[int]) -> dict[str, Any]:
    """Facts of this machine and its GPUs, nothing that names it; with what NVML says where it is installed."""
    known = [driver.facts(device) for device in devices]
    facts = {
        **machine_facts(),
        "gpus": [
            {"name": one.name, "compute_capability": ".".join(map(str, one.architecture)), "bytes": one.memory_bytes}
            for one in known
        ],
    }
    links = nvml_facts(known)
    return facts if links is None else {**facts, "links": links}


def nvml_facts(known: Sequence[DeviceFacts]) -> list[dict[str, Any]] | None:
    """Of each GPU its active NVLinks, PCIe generation and width, and NUMA node, by nvidia-ml-py; None without it."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return [_of_gpu(pynvml, one) for one in known]
    finally:
        pynvml.nvmlShutdown()


def _of_gpu(nvml: Any, known: DeviceFacts) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        handle = nvml.nvmlDeviceGetHandleByPciBusId(f"{known.bus}.0".encode())
    except nvml.NVMLError:
        return found
    asked: dict[str, Callable[[], Any]] = {
        "pcie_generation": lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
        "pcie_width": lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
        "numa_node": lambda: nvml.nvmlDeviceGetNumaNodeId(handle),
        "nvlinks": lambda: sum(_is_active(nvml, handle, link) for link in range(_MOST_LINKS)),
    }
    for name, ask in asked.items():
        try:
            found[name] = int(ask())
        except (nvml.NVMLError, AttributeError):
            # Older drivers and libraries do not know all of them.
            continue
    return found


def _is_active(nvml: Any, handle: Any, link: int) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetNvLinkState(handle, link))
    except nvml.NVMLError:
        return False
