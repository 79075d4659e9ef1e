"""Signs that the PCI bus sends peers' traffic through the processor: IOMMU translation and access control (ACS)."""

import re

from collsyn.doctor.finding import Finding
from collsyn.doctor.system import System

_LSPCI_LIMIT_S = 30.0
# Switch ports that redirect requests send what one device writes to another up to the root first.
_REDIRECTS = re.compile(r"ACSCtl:.*ReqRedir\+")
_IOMMU_WORDS = re.compile(r"\b(?:iommu|intel_iommu|amd_iommu|iommu\.passthrough)=\S+")


def check_iommu(system: System, num_gpus: int) -> Finding:
    """IOMMU and ACS; they matter between GPUs, or a GPU and a network card, that talk over PCIe."""
    folder = "/sys/kernel/iommu_groups"
    groups = system.entries(folder)
    kinds = {(system.read(f"{folder}/{group}/type") or "unknown").strip() for group in groups}
    words = _IOMMU_WORDS.findall(system.read("/proc/cmdline") or "")
    redirecting = _redirecting_bridges(system)
    facts = {
        "iommu_groups": len(groups),
        "iommu_kinds": sorted(kinds),
        "kernel_options": words,
        "acs_redirecting": redirecting,
    }
    translates = bool(kinds - {"identity"})
    # A kernel that was told to pass through does not always say so of each group.
    if kinds <= {"identity", "unknown"} and {"iommu=pt", "iommu.passthrough=1"} & set(words):
        translates = False
    if not groups:
        detail = "no IOMMU in use"
    else:
        detail = f"an IOMMU with {len(groups)} groups, " + ("translating" if translates else "passing through")
    shown = "could not be read (lspci -vvv as root)" if redirecting is None else f"on at {redirecting} bridges"
    detail += f"; ACS redirection {shown if redirecting != 0 else 'off'}"
    if num_gpus < 2:
        return Finding("ok", f"{detail}; matters between GPUs only", facts=facts)
    remedies = []
    if redirecting:
        remedies.append("switch off ACS (BIOS, or setpci -s BRIDGE ECAP_ACS+0x6.w=0000 on each bridge)")
    if translates:
        remedies.append("boot with iommu=pt, or switch the IOMMU off (in the BIOS: VT-d, AMD-Vi)")
    if remedies:
        detail += ": copies between GPUs over PCIe may be slow, hang or go wrong (NVLink is not concerned)"
        return Finding("warning", detail, "; ".join(remedies), facts)
    return Finding("ok", detail, facts=facts)


def _redirecting_bridges(system: System) -> int | None:
    """Number of PCI functions that redirect requests; None where lspci is missing or may not see it."""
    lspci = system.command("lspci")
    ran = system.run([lspci, "-vvv"], _LSPCI_LIMIT_S) if lspci else None
    if ran is None or ran.code != 0 or "<access denied>" in ran.out:
        return None
    return sum(bool(_REDIRECTS.search(line)) for line in ran.out.splitlines())
