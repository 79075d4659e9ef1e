"""Algorithm sets: schedules of one collective on one machine, each for a range of sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from collsyn.errors import InputError
from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology
from collsyn.units import format_size


@dataclass(frozen=True, eq=False)
class ScheduleSet:
    """`schedules[i]` serves sizes from `from_bytes[i]` up to, but not including, `from_bytes[i + 1]`.

    The first range begins at 0 and the last has no end, so that every size is served. All schedules are of one
    collective, in chunks of their own, on topologies of equal wiring. Raises InputError where that is not so.
    """

    schedules: tuple[Schedule, ...]
    from_bytes: tuple[int, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.schedules or len(self.schedules) != len(self.from_bytes):
            raise InputError(f"entries: {len(self.schedules)} schedules in {len(self.from_bytes)} ranges of sizes")
        if self.from_bytes[0] != 0 or any(one >= other for one, other in pairwise(self.from_bytes)):
            raise InputError(f"entries: ranges begin at {list(self.from_bytes)}; expected 0 and larger ones that rise")
        first = self.schedules[0]
        for schedule in self.schedules[1:]:
            if _kept(schedule) != _kept(first) or schedule.topology.wiring != first.topology.wiring:
                raise InputError("entries: are of different collectives or machines; expected one of each")

    @property
    def topology(self) -> Topology:
        """The machine that all are for."""
        return self.schedules[0].topology

    @property
    def ranges(self) -> list[tuple[int, int | None]]:
        """First and last size of each schedule in bytes; None: no end."""
        return [(first, beyond - 1) for first, beyond in pairwise(self.from_bytes)] + [(self.from_bytes[-1], None)]

    def at(self, size_bytes: int) -> Schedule:
        """The schedule that serves a size, as it stands in the set."""
        return self.schedules[max(i for i, first in enumerate(self.from_bytes) if first <= size_bytes)]


def _kept(schedule: Schedule) -> dict[str, Any]:
    """What all schedules of a set agree in."""
    return {key: value for key, value in schedule.collective.spec.items() if key != "chunks_per_rank"}


def ranges_text(ranges: Sequence[tuple[int, int | None]]) -> list[str]:
    """Ranges of sizes as people write them."""
    return [
        f"{format_size(first)} .. {'' if last is None else format_size(last + 1)}".rstrip() for first, last in ranges
    ]
