"""The best schedules of several sizes become one algorithm set, with the sizes where one gives way to the next."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import isqrt
from typing import Any

from collsyn.check.simulate import retime
from collsyn.errors import CollsynError
from collsyn.model.schedule import Schedule
from collsyn.model.schedule_set import ScheduleSet
from collsyn.portfolio.candidates import ALIKE
from collsyn.portfolio.trial import plan_time_s

# A crossover is found to within this factor.
RESOLUTION = 1.1

Timer = Callable[[Schedule, int], float]


def algorithm_set(schedules: Sequence[Schedule], plans: bool) -> ScheduleSet:
    """The set of the best schedules at ascending sizes.

    A schedule that stays within ALIKE of the best at the next size serves it, too, so that sets are short. Between the
    sizes of two that follow each other, that from which the larger one's is quicker is searched by halving (simulated
    plans if `plans`, else schedules retimed); O(log) simulations, as if they crossed once.
    """
    time_s = _timer(plans)
    kept, first = [schedules[0]], [0]
    largest = schedules[0].size_bytes
    for schedule in schedules[1:]:
        size = schedule.size_bytes
        if time_s(kept[-1], size) > ALIKE * time_s(schedule, size):
            first.append(_crossover(kept[-1], schedule, (largest, size), time_s))
            kept.append(schedule)
        largest = size
    return ScheduleSet(tuple(kept), tuple(first), _provenance(schedules))


def set_of_all(schedules: Sequence[Schedule]) -> ScheduleSet:
    """The set in which each schedule serves the sizes nearest to its own, on a scale of ratios; nothing is timed."""
    sizes = [schedule.size_bytes for schedule in schedules]
    first = [0, *(isqrt(one * other) + 1 for one, other in pairwise(sizes))]
    return ScheduleSet(tuple(schedules), tuple(first), _provenance(schedules))


def _provenance(schedules: Sequence[Schedule]) -> dict[str, Any]:
    """What the set says of its origin: sizes that schedules were made for, and what the first of them says."""
    own = schedules[0].provenance
    known = {key: own[key] for key in ("tool", "version", "seed") if key in own}
    return {**known, "sizes": [schedule.size_bytes for schedule in schedules]}


def _crossover(small: Schedule, large: Schedule, sizes: tuple[int, int], time_s: Timer) -> int:
    """The least size known, to within RESOLUTION, from which the schedule for larger sizes is quicker."""
    low, high = sizes
    while high > max(low + 1, low * RESOLUTION):
        middle = isqrt(low * high)
        if not low < middle < high:
            break
        if time_s(large, middle) <= time_s(small, middle):
            high = middle
        else:
            low = middle
    return high


def _timer(plans: bool) -> Timer:
    """Times of schedules at other sizes, each found once; infinite where a schedule cannot be run at a size."""
    known: dict[tuple[int, int], float] = {}

    def time_s(schedule: Schedule, size_bytes: int) -> float:
        key = id(schedule), size_bytes
        if key not in known:
            try:
                timed = retime(schedule, size_bytes)
                known[key] = plan_time_s(timed) if plans else timed.finish_s
            except CollsynError:
                known[key] = float("inf")
        return known[key]

    return time_s
