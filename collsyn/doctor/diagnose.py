"""All checks in the order in which the report has them."""

from collections.abc import Callable, Mapping

from collsyn.doctor.bus import check_iommu
from collsyn.doctor.finding import Finding, NotMade, Report
from collsyn.doctor.gpu import check_cupy, check_driver, check_ipc, check_peer_access
from collsyn.doctor.host import check_cores, check_limits, check_memory, check_process_vm, check_ranks, check_shm
from collsyn.doctor.system import System
from collsyn.doctor.tools import (
    check_compiler,
    check_cuda_compilers,
    check_mpi,
    check_mpi_launch,
    check_packages,
    check_solvers,
)

Found = Mapping[str, Finding | NotMade]

# Names in the report, which scripts rely on. A check sees the machine, and what those before it found.
CHECKS: dict[str, Callable[[System, Found], Finding | NotMade]] = {
    "packages": lambda system, _: check_packages(system),
    "solvers": lambda system, _: check_solvers(system),
    "cores": lambda system, _: check_cores(system),
    "memory": lambda system, _: check_memory(system),
    "limits": lambda system, _: check_limits(system),
    "ranks": lambda system, _: check_ranks(system),
    "compiler": lambda system, _: check_compiler(system),
    "mpi": lambda system, _: check_mpi(system),
    "mpi-launch": lambda system, _: check_mpi_launch(system),
    "shm": lambda system, _: check_shm(system),
    "process-vm": lambda system, _: check_process_vm(system),
    "gpu-driver": lambda system, _: check_driver(system),
    "cupy": lambda system, found: check_cupy(system, _made(found, "gpu-driver")),
    "cuda-compilers": lambda system, found: check_cuda_compilers(system, _num_gpus(found) > 0),
    "peer-access": lambda _, found: check_peer_access(_made(found, "cupy")),
    "ipc": lambda system, found: check_ipc(system, _made(found, "cupy")),
    "iommu": lambda system, found: check_iommu(system, _num_gpus(found)),
}


def diagnose(system: System | None = None, on_check: Callable[[float, str], None] | None = None) -> Report:
    """Make every check that this machine allows; `on_check(number done, name)` is told before each.

    Nothing is changed but the cache of compiled code. Commands and probes end at time limits of their own: a few
    seconds in all where nothing hangs. Needs no GPU, MPI or compiler.
    """
    system = system or System()
    results: dict[str, Finding | NotMade] = {}
    for number, (name, check) in enumerate(CHECKS.items()):
        if on_check is not None:
            on_check(number, name)
        results[name] = check(system, results)
    return Report(results, system.variable("HOME") or "")


def _made(found: Found, name: str) -> Finding:
    """A check that is always made."""
    finding = found[name]
    assert isinstance(finding, Finding)
    return finding


def _num_gpus(found: Found) -> int:
    """GPUs on the bus, or that nvidia-smi lists."""
    driver = _made(found, "gpu-driver")
    return max(int(driver.facts["gpus"]), len(driver.facts.get("devices", ())))
