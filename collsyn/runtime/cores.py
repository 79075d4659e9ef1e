"""Cores for ranks: two on one core, while another is free, answer each other at the pace of the scheduler."""

import os
from collections.abc import Sequence
from pathlib import Path

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def keep_to_core(allowed: Sequence[int], rank: int) -> set[int] | None:
    """Bind this thread to the core of a rank among those allowed to all; the cores it had, None if it stays.

    Ranks get the first threads of cores before the second ones. Schedulers wake who waits where its waker runs, and do
    not mind if the two take turns there for good.
    """
    order = sorted(allowed, key=lambda core: (_place_in_core(core), core))
    if len(order) < 2 or rank >= len(order):
        return None
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {order[rank]})
    except OSError:
        return None
    return before


def _place_in_core(core: int) -> int:
    """Number of a hardware thread within its core; 0 where the system does not say."""
    try:
        text = Path(_SIBLINGS.format(core)).read_text().strip()
        spans = [[int(end) for end in part.split("-")] for part in text.split(",")]
    except (OSError, ValueError):
        return 0
    threads = [thread for span in spans for thread in range(span[0], span[-1] + 1)]
    return threads.index(core) if core in threads else 0
