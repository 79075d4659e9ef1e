"""Checks of NVIDIA GPUs: hardware, driver, CuPy, and how GPUs and processes reach each other's memory."""

import re
from typing import Any

from collsyn.doctor.finding import Finding, NotMade, gib
from collsyn.doctor.system import Answer, System
from collsyn.doctor.tools import CUPY_DISTRIBUTIONS

_NVIDIA = "0x10de"
# Display controllers: VGA and 3D.
_GPU_CLASSES = ("0x0300", "0x0302")
_SMI_LIMIT_S = 30.0
_CUDA_LIMIT_S = 120.0
_VERIFIED, _NO_ACCESS = "verified", "no access"
_SHOWN_PAIRS = 6

# Signs in CUDA's messages, and what to do about each.
_REMEDIES = (
    (
        ("system not yet initialized", "SystemNotReady", "SystemNotYetInitialized"),
        "start the fabric manager, of the driver's version (systemctl start nvidia-fabricmanager)",
    ),
    (
        ("driver version is insufficient", "InsufficientDriver", "unsupported toolchain"),
        "install a newer driver, or the CuPy for the driver that is here (pip install 'collsyn[cuda12]')",
    ),
    (("mismatch", "SystemDriverMismatch"), "reboot, or reload the kernel module: the driver was updated under it"),
    (
        ("NoDevice", "no CUDA-capable device"),
        "see CUDA_VISIBLE_DEVICES and the container's devices (docker run --gpus all)",
    ),
    (
        ("exclusive", "DevicesUnavailable", "busy or unavailable"),
        "nvidia-smi -c DEFAULT, and end what holds the device",
    ),
    (("out of memory", "MemoryAllocation"), "end what fills the GPU's memory (nvidia-smi shows it)"),
)


def count_gpus(system: System) -> int:
    """NVIDIA GPUs on the PCI bus, as far as this process sees it, or by their device files."""
    on_bus = 0
    for name in system.entries("/sys/bus/pci/devices"):
        folder = f"/sys/bus/pci/devices/{name}"
        vendor, kind = (system.read(f"{folder}/{part}") or "" for part in ("vendor", "class"))
        on_bus += vendor.strip() == _NVIDIA and kind.strip()[:6] in _GPU_CLASSES
    files = sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in system.entries("/dev"))
    return max(on_bus, files)


def check_driver(system: System) -> Finding:
    """The NVIDIA driver and what its nvidia-smi lists."""
    gpus = count_gpus(system)
    text = system.read("/proc/driver/nvidia/version") or ""
    match = re.search(r"Kernel Module\D*?(\d+(?:\.\d+)+)", text)
    loaded = match[1] if match else ("of unknown version" if text else None)
    smi = system.command("nvidia-smi")
    facts: dict[str, Any] = {"gpus": gpus, "driver": loaded}
    seen = f"{gpus} NVIDIA GPU{'s' * (gpus != 1)}"
    if loaded is None and smi is None:
        if gpus == 0:
            return Finding("ok", "no NVIDIA GPU and no driver: ranks run on the host", facts=facts)
        remedy = "install the NVIDIA driver; in a container, docker run --gpus all with the NVIDIA container toolkit"
        return Finding("problem", f"{seen}, but no driver", remedy, facts)
    if smi is None:
        remedy = (
            "install the tools of the driver (nvidia-utils); in a container, NVIDIA_DRIVER_CAPABILITIES=utility,compute"
        )
        return Finding("warning", f"{seen}, driver {loaded}, but no nvidia-smi", remedy, facts)
    query = ("name", "driver_version", "compute_mode", "mig.mode.current")
    ran = system.run([smi, f"--query-gpu={','.join(query)}", "--format=csv,noheader"], _SMI_LIMIT_S)
    trouble = "cannot be started" if ran is None else ran.trouble(_SMI_LIMIT_S)
    if ran is None or trouble:
        if gpus == 0:
            remedy = "remove the driver's packages, or ignore this on a machine without GPUs"
            return Finding("warning", f"no NVIDIA GPU, though nvidia-smi is there ({trouble})", remedy, facts)
        remedy = _remedy(trouble, "reload or reinstall the driver (dmesg has its errors, NVRM: lines)")
        return Finding("problem", f"{seen}, but nvidia-smi {trouble}", remedy, facts)
    rows = [[part.strip() for part in line.split(",")] for line in ran.out.splitlines() if line.count(",") >= 3]
    facts |= {"devices": [dict(zip(("name", "driver", "compute_mode", "mig"), row, strict=False)) for row in rows]}
    if not rows:
        return Finding("problem", f"{seen}, but nvidia-smi lists none", _remedy("NoDevice", ""), facts)
    detail = f"driver {rows[0][1]}, {_counted([row[0] for row in rows])}"
    shut = [index for index, row in enumerate(rows) if row[2] in ("Exclusive_Process", "Prohibited")]
    if shut:
        modes = f"compute mode {rows[shut[0]][2]} on GPU {', '.join(map(str, shut))}"
        return Finding("warning", f"{detail}; {modes}: ranks cannot share it", "nvidia-smi -c DEFAULT", facts)
    if any(row[3] == "Enabled" for row in rows):
        detail_mig = f"{detail}; MIG is on: instances reach no peers"
        return Finding("warning", detail_mig, "nvidia-smi -mig 0 for peer access (needs an idle GPU)", facts)
    return Finding("ok", detail, facts=facts)


def check_cupy(system: System, driver: Finding) -> Finding:
    """CuPy, the CUDA runtime it brings, and the devices that it sees."""
    has_gpu = bool(driver.facts["gpus"] or driver.facts.get("devices"))
    installed = [name for name in CUPY_DISTRIBUTIONS if system.version(name)]
    extra = _extra(driver)
    if not installed:
        if not has_gpu:
            return Finding("ok", "not installed; only GPUs need it", facts={"installed": []})
        return Finding("warning", "not installed: the GPUs here cannot be used", f"pip install 'collsyn[{extra}]'")
    answer = _cuda(system)
    facts = {"installed": installed, **(answer.facts or {})}
    shown = f"{installed[0]} {system.version(installed[0])}"
    if answer.facts is None:
        remedy = f"pip uninstall {' '.join(installed)}, then pip install 'collsyn[{extra}]'"
        return Finding("problem" if has_gpu else "warning", f"{shown} {answer.trouble}", remedy, facts)
    if "error" in answer.facts or not answer.facts["devices"]:
        error = answer.facts.get("error", "it sees no device")
        if not has_gpu:
            remedy = "none is needed on a machine without GPUs; else install the NVIDIA driver"
            return Finding("warning", f"{shown}, but no driver and no GPU ({error})", remedy, facts)
        hidden = system.variable("CUDA_VISIBLE_DEVICES")
        note = "" if hidden is None else f" (CUDA_VISIBLE_DEVICES is {hidden!r})"
        general = f"pip install 'collsyn[{extra}]' for the driver that is here, and see CUDA_VISIBLE_DEVICES"
        return Finding("problem", f"{shown}: {error}{note}", _remedy(error, general), facts)
    devices = answer.facts["devices"]
    names = _counted([f"{device['name']} (sm_{device['compute'].replace('.', '')})" for device in devices])
    runtime, newest = (_cuda_version(answer.facts[key]) for key in ("runtime", "driver"))
    memory = gib(min(device["memory_bytes"] for device in devices))
    detail = f"{shown}, CUDA {runtime} on a driver for up to {newest}, {names}, {memory} each or more"
    if answer.facts["runtime"] // 1000 > answer.facts["driver"] // 1000:
        return Finding("problem", detail, f"install a newer driver, or pip install 'collsyn[{extra}]'", facts)
    return Finding("ok", detail, facts=facts)


def check_peer_access(cupy: Finding) -> Finding | NotMade:
    """The matrix of GPUs: who writes into whose memory, by kernel and by copy engine, with all bytes verified."""
    if not (count := len(cupy.facts.get("devices", ()))) or cupy.status == "problem":
        return NotMade("no GPU that CuPy sees")
    if count == 1:
        return NotMade("one GPU has no peers")
    pairs: list[dict[str, Any]] = cupy.facts["pairs"]
    facts = {"pairs": pairs}
    ways = [(pair, pair[way], way) for pair in pairs for way in ("stores", "copies")]
    bad = [entry for entry in ways if entry[1] not in (_VERIFIED, _NO_ACCESS)]
    if bad:
        shown = "; ".join(f"{pair['from']} to {pair['to']} by {way}: {what}" for pair, what, way in bad[:_SHOWN_PAIRS])
        remedy = "switch off ACS and the IOMMU (BIOS, iommu=pt; see iommu), and try again; dmesg names failures (Xid)"
        return Finding("problem", f"{len(bad)} of {len(ways)} ways between GPUs fail: {shown}", remedy, facts)
    lacking = [pair for pair in pairs if pair["stores"] == _NO_ACCESS]
    if lacking:
        shown = ", ".join(f"{pair['from']}-{pair['to']}" for pair in lacking[:_SHOWN_PAIRS])
        more = f" and {len(lacking) - _SHOWN_PAIRS} more" if len(lacking) > _SHOWN_PAIRS else ""
        remedy = "nvidia-smi topo -p2p w says why; consumer GPUs and virtual machines often refuse it"
        detail = f"{len(lacking)} of {len(pairs)} ordered pairs of GPUs have no peer access: {shown}{more}"
        return Finding("warning", f"{detail}; all bytes of the others verified", remedy, facts)
    return Finding("ok", f"all {len(pairs)} ordered pairs of {count} GPUs, all bytes verified", facts=facts)


def check_ipc(system: System, cupy: Finding) -> Finding | NotMade:
    """Whether another process can map a GPU's memory, which one process a GPU needs."""
    if not cupy.facts.get("devices") or cupy.status == "problem":
        return NotMade("no GPU that CuPy sees")
    answer = system.probe("ipc", limit_s=_CUDA_LIMIT_S)
    remedy = (
        "run all ranks in one container with one process namespace (docker run --ipc=host --pid=host); "
        "Windows (WSL) and MIG have no IPC"
    )
    if answer.facts is None:
        return Finding("problem", f"sharing GPU memory between processes: {answer.trouble}", remedy)
    results: list[str] = answer.facts["devices"]
    bad = [(device, what) for device, what in enumerate(results) if what != _VERIFIED]
    if bad:
        device, what = bad[0]
        detail = f"on {len(bad)} of {len(results)} GPUs another process cannot use memory by its handle"
        return Finding("problem", f"{detail} (GPU {device}: {what})", _remedy(what, remedy), answer.facts)
    return Finding(
        "ok", f"another process filled memory of each of {len(results)} GPUs, all bytes verified", facts=answer.facts
    )


def _cuda(system: System) -> Answer:
    return system.probe("cuda", limit_s=_CUDA_LIMIT_S)


def _remedy(error: str, general: str) -> str:
    """What to do about an error of CUDA, by its signs; `general` where none is known."""
    lowered = error.lower()
    return next((text for signs, text in _REMEDIES if any(sign.lower() in lowered for sign in signs)), general)


def _extra(driver: Finding) -> str:
    """The extra whose CuPy the driver can run: CUDA 13 needs a driver from 580 on."""
    devices = driver.facts.get("devices") or [{"driver": driver.facts["driver"] or ""}]
    match = re.match(r"\d+", devices[0]["driver"])
    return "cuda13" if match and int(match[0]) >= 580 else "cuda12"


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _counted(names: list[str]) -> str:
    """`8 x H100` for eight of one name."""
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
