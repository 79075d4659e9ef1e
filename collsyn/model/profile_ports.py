"""Ports of ranks whose rate depends on how much a call works on, from the times of exchanges of all with all."""

from typing import TYPE_CHECKING, Any

from collsyn.model.size_rates import SizeRates, from_times
from collsyn.model.topology import Topology
from collsyn.units import tidy_beta

if TYPE_CHECKING:
    from collsyn.model.profile import PortFit, Profile


def by_working_set(profile: "Profile", machine: Topology) -> dict[str, Any]:
    """Columns of a topology that change where ports are no straight line, or reductions have no one rate.

    What bends ports are caches. They bend the times of pairs alone, too, and as those go through the same ports, pairs
    then have no rates by length of their own.
    """
    n = profile.num_ranks
    found: dict[str, Any] = {}
    if not all(port.linear for port in profile.ports):
        pairs: list[SizeRates] = [()] * (machine.num_links - 2 * n)
        ports = [_port_rates(port, n) for port in profile.ports]
        beta = machine.beta_s_per_byte.copy()
        beta[-2 * n :] = [tidy_beta(1.0 / max(rate for _, rate in points)) for points in ports * 2]
        found = {"size_rates": (), "working_set_rates": (*pairs, *ports, *ports), "beta_s_per_byte": beta}
    if profile.reduce_points:
        found["reduce_working_set_rates"] = tuple(
            (_exchange_bytes(n, size // (n - 1)), size / seconds) for size, seconds in profile.reduce_points
        )
    return found


def _port_rates(port: "PortFit", num_ranks: int) -> SizeRates:
    latency_s, rates = from_times(port.points, port.points[0][1])
    # What takes little longer than nothing says little of a rate.
    told = [rate for rate, (_, seconds) in zip(rates, port.points, strict=True) if seconds > 1.5 * latency_s]
    return tuple((_exchange_bytes(num_ranks, int(size) // num_ranks), rate) for size, rate in told or rates[-1:])


def _exchange_bytes(num_ranks: int, part_bytes: int) -> float:
    """What a rank works on where each sends a part to each: a part, and all of theirs."""
    return float((num_ranks + 1) * part_bytes)
