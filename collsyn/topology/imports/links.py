"""Bandwidths of kinds of links, one direction, GB/s = 10^9 bytes/s, each with its source: what files do not say."""

import re
from dataclasses import dataclass

# Latencies and overheads are those of the bundled machines (profiles/): no file of this kind states one.
ALPHA_US = {"nvlink": 0.7, "hub": 0.35, "xgmi": 0.7, "pcie": 0.35, "uplink": 0.35, "smp": 0.35, "nic": 1.3}
OVERHEAD_US = 0.3
MIN_PIECE_BYTES = 16 << 10
COSTS_SOURCE = (
    "0.7 us a direct link or a way through a switch (TACCL, arXiv 2111.04867), 1.3 us a network card (TE-CCL, SIGCOMM "
    "2024), 0.35 us a PCIe or socket link, overhead 0.3 us and pieces of 16K (ours)"
)


@dataclass(frozen=True)
class Generation:
    """Links of one generation: GB/s of a lane, and what usually comes with such GPUs (PCIe GT/s, GB/s of a card).

    `capable`: its switches multicast and reduce.
    """

    title: str
    lane_gb_s: float
    source: str
    pcie_gt_s: float
    nic_gb_s: float
    capable: bool = False


GENERATIONS: dict[str, Generation] = {
    "nvlink1": Generation("NVLink 1", 20, "P100 data sheet: 160 GB/s both ways over 4 links", 8, 12.5),
    "nvlink2": Generation("NVLink 2", 25, "V100 data sheet: 300 GB/s both ways over 6 links", 8, 12.5),
    "nvlink3": Generation("NVLink 3", 25, "A100 data sheet: 600 GB/s both ways over 12 links", 16, 25),
    "bridge3": Generation("NVLink 3 bridge", 14.0625, "GA102 white paper: 112.5 GB/s both ways over 4 links", 16, 12.5),
    "nvlink4": Generation("NVLink 4", 25, "H100 data sheet: 900 GB/s both ways over 18 links", 32, 50, True),
    "nvlink5": Generation("NVLink 5", 50, "B200 data sheet: 1800 GB/s both ways over 18 links", 32, 50, True),
    "gfx906": Generation("xGMI of MI50", 46, "MI50 data sheet: 184 GB/s both ways over 2 links", 16, 12.5),
    "gfx908": Generation("xGMI of MI100", 46, "MI100 data sheet: 276 GB/s both ways over 3 links", 16, 25),
    "gfx90a": Generation("xGMI of MI200", 50, "CDNA 2 white paper: 100 GB/s both ways a link", 16, 25),
    "gfx942": Generation("xGMI of MI300", 64, "CDNA 3 white paper: 128 GB/s both ways a link", 32, 50),
    "gfx950": Generation("xGMI of MI350", 76.8, "MI350X data sheet: 153.6 GB/s both ways a link", 32, 50),
}

# No GPU up to NVLink 5 has more.
MAX_LANES = 18

# Usual without any sign of a generation.
UNKNOWN = Generation("", 25, "", 16, 12.5)

# GB/s of one PCIe lane by GT/s: 8b/10b coding up to 5, 128b/130b up to 32, flits of 64 (242 of 256 bytes).
PCIE_LANE_GB_S = {
    2.5: 0.25,
    5.0: 0.5,
    8.0: 8 / 8 * 128 / 130,
    16.0: 16 / 8 * 128 / 130,
    32.0: 32 / 8 * 128 / 130,
    64.0: 64 / 8 * 242 / 256,
}
PCIE_SOURCE = "PCI Express base specification: rate, coding and width"


@dataclass(frozen=True)
class Processor:
    """GB/s between two sockets or NUMA nodes with processors of one kind, one direction."""

    title: str
    gb_s: float


# What NCCL 2.29 reckons with (src/graph/topo.h).
PROCESSORS: dict[str, Processor] = {
    "": Processor("an unknown processor", 16),
    "zen2": Processor("AMD Zen 1 and 2", 16),
    "zen4": Processor("AMD Zen 3 and 4", 24),
    "zen5": Processor("AMD Zen 5", 32),
    "broadwell": Processor("Intel up to Broadwell", 6),
    "skylake": Processor("Intel Skylake to Ice Lake", 10),
    "sapphire": Processor("Intel Sapphire Rapids", 22),
    "emerald": Processor("Intel Emerald Rapids", 40),
    "power9": Processor("IBM POWER9", 32),
    "arm": Processor("Arm", 6),
}
PROCESSOR_SOURCE = "NCCL 2.29, src/graph/topo.h"

# Generations by the compute capability that NCCL writes (sm), highest first.
_BY_SM = (
    (100, "nvlink5"),
    (90, "nvlink4"),
    (87, None),
    (86, "bridge3"),
    (80, "nvlink3"),
    (70, "nvlink2"),
    (60, "nvlink1"),
)

# Generations by words in names of GPUs, behind the maker's.
_MAKER = r"(?:NVIDIA|Tesla|GeForce|Quadro|Instinct)\s+(?:[A-Za-z]+\s+){0,2}"
_MODELS: tuple[tuple[str, str], ...] = (
    (r"P100", "nvlink1"),
    (r"V100|TITAN V|GV100|RTX [5-8]000\b|TITAN RTX", "nvlink2"),
    (r"A100|A800|A30\b", "nvlink3"),
    (r"A[456][05]00\b|3090|A40\b", "bridge3"),
    (r"G?H100|H800|G?H200|H20\b", "nvlink4"),
    (r"G?B[123]00", "nvlink5"),
    (r"MI50|MI60", "gfx906"),
    (r"MI100", "gfx908"),
    (r"MI2[15]0", "gfx90a"),
    (r"MI3[02][05]", "gfx942"),
    (r"MI35[05]", "gfx950"),
)


def generation_of_text(text: str) -> tuple[str, str] | None:
    """The generation of the first GPU that a text names with its maker (`NVIDIA A100`), and that name."""
    found = [(match, name) for words, name in _MODELS if (match := re.search(f"{_MAKER}({words})", text))]
    if not found:
        return None
    match, name = min(found, key=lambda pair: pair[0].start())
    return name, match[1]


def generation_of_sm(sm: int) -> str | None:
    """The generation of a compute capability such as 80; None without NVLink, or before it."""
    if sm >= 120:
        return None
    return next((name for least, name in _BY_SM if sm >= least), None)


def generation_of_gcn(gcn: str) -> str | None:
    """The generation of an AMD target as RCCL writes it: gfx942, 942, or 910 for gfx90a."""
    known = {"906": "gfx906", "908": "gfx908", "910": "gfx90a", "90a": "gfx90a", "950": "gfx950"}
    known |= dict.fromkeys(("940", "941", "942"), "gfx942")
    return known.get(gcn.lower().removeprefix("gfx"))


def pcie_gb_s(gt_s: float, width: int) -> float | None:
    """GB/s of a PCIe link, one direction; None for rates and widths that are none."""
    lane = PCIE_LANE_GB_S.get(gt_s)
    return None if lane is None or not 1 <= width <= 32 else float(f"{lane * width:.4g}")


def processor_of(arch: str, vendor: str, family: int, model: int) -> str:
    """The key in PROCESSORS of what NCCL writes of a processor."""
    if arch == "ppc64":
        return "power9"
    if arch in ("arm64", "aarch64"):
        return "arm"
    if vendor == "AuthenticAMD":
        # Families are written as 0x17 .. 0x1a or, with the extended part beside, as 143 .. 191.
        return "zen5" if family in (26, 191) else "zen4" if family in (25, 175) else "zen2"
    if vendor == "GenuineIntel" and family == 6:
        steps = ((0xCF, "emerald"), (0x8F, "sapphire"), (0x55, "skylake"))
        return next((name for least, name in steps if model >= least), "broadwell")
    return ""
