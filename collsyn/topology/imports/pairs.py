"""Matrices of bandwidths between pairs of GPUs, from p2pBandwidthLatencyTest and nvbandwidth, as a Profile."""

import re
from collections.abc import Mapping
from typing import Any

from collsyn.model.profile import Estimate, LinkFit, PortFit, Profile
from collsyn.topology.imports import links
from collsyn.topology.imports.described import names
from collsyn.topology.imports.grids import Grid, grids
from collsyn.topology.imports.text import Paste
from collsyn.units import gb_s_to_beta, us_to_s

P2P, NVBANDWIDTH = "p2pBandwidthLatencyTest", "nvbandwidth"
# Bandwidths of one GPU that differ by less are those of one port, or of links that are alike.
ALIKE = 1.15
MAX_GB_S = 1e5

_P2P_TITLE = re.compile(r"(Unidirectional P2P=\w+ Bandwidth.*Matrix|P2P=\w+ Latency.*Matrix)", re.IGNORECASE)
_NVB_TITLE = re.compile(r"memcpy \w+ (GPU\(row\) (<-|->|<->) GPU\(column\)) bandwidth", re.IGNORECASE)


def p2p_matches(paste: Paste) -> bool:
    """Whether there is output of p2pBandwidthLatencyTest."""
    return any(re.search(r"P2P=\w+ (Bandwidth|Latency)|p2pBandwidthLatencyTest", line) for line in paste.squeezed)


def nvbandwidth_matches(paste: Paste) -> bool:
    """Whether there is output of nvbandwidth."""
    return any(re.search(r"memcpy (CE|SM) \w+\(row\)|nvbandwidth", line) for line in paste.squeezed)


def read_p2p(paste: Paste, pairs: str | None = None) -> Profile:
    """The profile of p2pBandwidthLatencyTest: one way, with peer access where that was measured; raises InputError."""
    found = _grids(paste, _P2P_TITLE, r"D\\D|GPU")
    enabled = [grid for grid in found if "enabled bandwidth" in grid.title.lower()]
    bandwidths = enabled or [grid for grid in found if "bandwidth" in grid.title.lower()]
    if not bandwidths:
        paste.fail(
            "has no matrix of Unidirectional P2P Bandwidth; expected the whole output of p2pBandwidthLatencyTest"
        )
    warnings = [] if enabled else ["only the matrix without peer access is there: copies went through host memory"]
    # Writes go from the row to the column; where the title says reads, they come from there.
    reads = "reads" in bandwidths[0].title.lower()
    latency = [grid for grid in found if "latency" in grid.title.lower()]
    latency = [grid for grid in latency if "enabled" in grid.title.lower()] or latency
    alphas_us = _numbers(paste, latency[0], reads, "microseconds") if latency else {}
    return _profile(paste, P2P, _numbers(paste, bandwidths[0], reads, "GB/s"), alphas_us, pairs, warnings)


def read_nvbandwidth(paste: Paste, pairs: str | None = None) -> Profile:
    """The profile of nvbandwidth's copies from device to device, one way; raises InputError."""
    found = [grid for grid in _grids(paste, _NVB_TITLE, "") if "<->" not in grid.title]
    if not found:
        paste.fail(
            "has no matrix of one-way copies between GPUs; expected the output of nvbandwidth -t "
            "device_to_device_memcpy_write_ce"
        )
    return _profile(paste, NVBANDWIDTH, _numbers(paste, found[0], "<-" in found[0].title, "GB/s"), {}, pairs, [])


def _grids(paste: Paste, title: re.Pattern[str], corner: str) -> list[Grid]:
    def title_of(line: str) -> str | None:
        match = title.search(line)
        return None if match is None else match[1]

    return list(grids(paste, title_of, r"\d{1,4}", corner))


def _numbers(paste: Paste, grid: Grid, column_sends: bool, unit: str) -> dict[tuple[int, int], float]:
    """The number of every ordered pair of different GPUs; raises InputError for a pair without one."""
    n = len(grid.names)
    if sorted(map(int, grid.names)) != list(range(n)):
        paste.fail(f"the matrix is of GPUs {names(grid.names)}; expected 0, 1, ...", grid.line)
    found = {}
    for a in grid.names:
        for b in grid.names:
            if a == b:
                continue
            cell = grid.cells.get((a, b), "")
            value = float(cell) if re.fullmatch(r"\d{1,9}(\.\d{0,9})?", cell) else 0.0
            if not 0 < value <= MAX_GB_S:
                what = f"is {cell!r}" if cell else "is missing, the row is not whole"
                paste.fail(f"row {a}, column {b} {what}; expected {unit}", grid.line)
            found[(int(b), int(a)) if column_sends else (int(a), int(b))] = value
    return found


def _profile(
    paste: Paste,
    source: str,
    gb_s: Mapping[tuple[int, int], float],
    alphas_us: Mapping[tuple[int, int], float],
    pairs: str | None,
    warnings: list[str],
) -> Profile:
    """One link an ordered pair, and ports where a GPU's pairs are taken to share its bandwidth."""
    n = 1 + max((max(pair) for pair in gb_s), default=0)
    if n < 2:
        paste.fail(f"measures {n} GPU; expected at least two")
    assumed = {}
    if not alphas_us:
        assumed["alpha"] = f"{links.ALPHA_US['nvlink']} us: {links.COSTS_SOURCE}"
    assumed["overhead"] = f"{links.OVERHEAD_US} us: ours"
    rows = [[rate for (src, _), rate in gb_s.items() if src == gpu] for gpu in range(n)]
    shared = pairs == "shared" or (pairs is None and n > 2 and all(max(row) <= ALIKE * min(row) for row in rows))
    if shared:
        assumed["ports"] = (
            "all pairs of a GPU share its bandwidth, as through a switch or one PCIe link; they were measured one at a "
            "time (--pairs own: each pair has links of its own)"
        )
    elif n > 2:
        assumed["ports"] = "each pair has links of its own; they were measured one at a time (--pairs shared)"
    link_alpha = {pair: alphas_us.get(pair, links.ALPHA_US["nvlink"]) for pair in gb_s}
    fits = [_fit(src, dst, link_alpha[src, dst], rate) for (src, dst), rate in sorted(gb_s.items())]
    return Profile(
        name=f"{source}-{n}gpu",
        backend="cuda",
        num_ranks=n,
        links=tuple(fits),
        ports=tuple(PortFit(_exactly(0.0), _exactly(gb_s_to_beta(max(row)))) for row in rows) if shared else (),
        method={"source": source, "input": paste.hash},
        facts=_facts(assumed, warnings),
    )


def _facts(assumed: Mapping[str, str], warnings: list[str]) -> dict[str, Any]:
    return {"assumed": dict(assumed), **({"warnings": warnings} if warnings else {})}


def _fit(src: int, dst: int, alpha_us: float, gb_s: float) -> LinkFit:
    overhead_us = min(links.OVERHEAD_US, alpha_us)
    costs = (_exactly(us_to_s(alpha_us)), _exactly(gb_s_to_beta(gb_s)), _exactly(us_to_s(overhead_us)))
    return LinkFit(src, dst, *costs, residual=0.0, linear=True, points=())


def _exactly(value: float) -> Estimate:
    """A number that comes without an interval."""
    return Estimate(value, value, value)
