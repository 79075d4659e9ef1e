"""What a benchmark found, row by row; times in seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collsyn.model.metrics import algbw_gb_s, busbw_gb_s


@dataclass(frozen=True)
class Timing:
    """One way of calling (out of place, in place): seconds of a call and wrong elements over all ranks.

    `wrong` is None where nothing was checked, `time_s` where nothing may be shown: a wrong result has no time.
    `blocks_s` are the blocks whose median it is, those of one launch after those of the one before.
    """

    time_s: float | None
    wrong: int | None
    blocks_s: tuple[float, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.wrong


@dataclass(frozen=True)
class Comparison:
    """Another library's collective on the same ranks in the same job, in blocks that alternate with ours.

    `ratio` is its median time over ours, `low` .. `high` the 95% bootstrap interval; above 1 it is the slower one;
    `blocks_s` are the blocks behind the median. `reason` says why it was not run; then the rest is None.
    """

    time_s: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    blocks_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Row:
    """One collective at one size. `size_bytes` and `count` are the columns of nccl-tests, rounded down as there.

    `asked_bytes` is the size before rounding. `in_place` is None where the collective knows no such call. `simulated_s`
    and `bound_s` are None where there is no topology to compute them with. On an emulated machine times are those of
    it, and ranks took `emulation_factor` times as long. `benchmark` is the name in a suite. `yardstick_s` are
    blocks of the plain exchange, each timed beside a block of calls out of place; empty where none were.
    On GPUs `launch` is how plans were launched, and `gpu` the name of the kind.
    """

    collective: str
    group_size: int
    source: str
    method: str
    asked_bytes: int
    size_bytes: int
    count: int
    dtype: str
    op: str
    root: int
    out_of_place: Timing
    in_place: Timing | None
    iterations: int
    simulated_s: float | None = None
    bound_s: float | None = None
    against: Mapping[str, Comparison] = field(default_factory=dict)
    emulation_factor: float | None = None
    benchmark: str = ""
    launches: int = 1
    yardstick_s: tuple[float, ...] = ()
    launch: Mapping[str, Any] | None = None
    gpu: str = ""

    @property
    def timings(self) -> tuple[Timing, ...]:
        """The ways of calling that were run."""
        return (self.out_of_place,) if self.in_place is None else (self.out_of_place, self.in_place)

    def algbw(self, timing: Timing) -> float | None:
        """Algorithm bandwidth of one way of calling in GB/s; None without a time."""
        return None if timing.time_s is None else algbw_gb_s(self.size_bytes, timing.time_s)

    def busbw(self, timing: Timing) -> float | None:
        """Bus bandwidth of one way of calling in GB/s; None without a time."""
        if timing.time_s is None:
            return None
        return busbw_gb_s(self.collective, self.group_size, self.size_bytes, timing.time_s)


@dataclass(frozen=True)
class BenchResult:
    """All rows of a run, with the configuration it ran under and where its plans came from."""

    rows: Sequence[Row]
    config: Mapping[str, Any]
    provenance: Mapping[str, Any]
    devices: Sequence[Mapping[str, Any]] = ()

    @property
    def wrong(self) -> int:
        """Checks that failed: calls with wrong elements, as nccl-tests counts them."""
        return sum(not timing.ok for row in self.rows for timing in row.timings)

    @property
    def average_busbw(self) -> float:
        """Mean of all bus bandwidths that are shown, GB/s; 0 without any."""
        shown = [bw for row in self.rows for timing in row.timings if (bw := row.busbw(timing)) is not None]
        return sum(shown) / len(shown) if shown else 0.0
