"""What has changed from one profile of a machine to another: cost by cost, and whether the intervals allow that."""

from collections.abc import Iterator
from dataclasses import dataclass

from collsyn.model.profile import SAME, Estimate, Profile, ranks_text
from collsyn.units import beta_to_gb_s, s_to_us


@dataclass(frozen=True)
class Change:
    """One cost on both sides, in `unit` (us or GB/s); None where it is not there.

    `relative` is right / left - 1 (None where a side is missing or 0). `differs`: a side is missing, or they are more
    than 10% apart and their intervals do not meet.
    """

    what: str
    unit: str
    left: float | None
    right: float | None
    relative: float | None
    differs: bool


_Costs = dict[tuple[str, str], Estimate]


def profile_changes(left: Profile, right: Profile) -> list[Change]:
    """Every cost of two profiles: of links, ports, shared links and reductions, in the order of the files. O(links)."""
    sides = dict(_costs(left)), dict(_costs(right))
    keys = [*sides[0], *(key for key in sides[1] if key not in sides[0])]
    return [_change(what, unit, *(side.get((what, unit)) for side in sides)) for what, unit in keys]


def _costs(profile: Profile) -> Iterator[tuple[tuple[str, str], Estimate]]:
    """Costs in the units of files, by what they are; intervals ascend."""
    for one in profile.shared:
        if one.full:
            way = "out of" if one.out else "into"
            yield (f"shared {way} {ranks_text(one.ranks)}", "GB/s"), _gb_s(one.beta_s_per_byte)
    for rank, port in enumerate(profile.ports):
        yield (f"port {rank} alpha", "us"), _us(port.alpha_s)
        yield (f"port {rank}", "GB/s"), _gb_s(port.beta_s_per_byte)
    for link in profile.links:
        name = f"{link.src}->{link.dst}"
        if link.via is not None:
            name += f" via {link.via}"
        yield (f"{name} alpha", "us"), _us(link.alpha_s)
        yield (name, "GB/s"), _gb_s(link.beta_s_per_byte)
        yield (f"{name} overhead", "us"), _us(link.overhead_s)
    if profile.reduce_s_per_byte:
        beta = profile.reduce_s_per_byte
        yield ("reduction", "GB/s"), _gb_s(Estimate(beta, beta, beta))


def _us(seconds: Estimate) -> Estimate:
    return Estimate(s_to_us(seconds.value), s_to_us(seconds.low), s_to_us(seconds.high))


def _gb_s(beta: Estimate) -> Estimate:
    return Estimate(beta_to_gb_s(beta.value), beta_to_gb_s(beta.high), beta_to_gb_s(beta.low))


def _change(what: str, unit: str, left: Estimate | None, right: Estimate | None) -> Change:
    if left is None or right is None:
        old, new = (None if one is None else one.value for one in (left, right))
        return Change(what, unit, old, new, None, True)
    relative = right.value / left.value - 1 if left.value else None
    apart = max(left.value, right.value) > SAME * min(left.value, right.value)
    differs = apart and (left.high < right.low or right.high < left.low)
    return Change(what, unit, left.value, right.value, relative, differs)
