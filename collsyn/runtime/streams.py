"""Which results of a plan are best stored past the caches."""

import functools
import os

import numpy as np

from collsyn.check.execute import operands
from collsyn.model.arrays import Bools
from collsyn.model.bind import BoundPlan
from collsyn.model.plan import Buffer

_USUAL_CACHE_BYTES = 32 << 20


def past_the_caches(bound: BoundPlan) -> Bools:
    """Instructions whose result nobody reads within the call, if the memory of all ranks does not fit into the caches.

    Such a result would be gone from the caches by the time that the user looks, and an ordinary store would fetch every
    line before it overwrites it. O(instructions log instructions).
    """
    length = bound.columns["length"]
    if bound.buffer_bytes.sum() <= _cache_bytes() // 2:
        return np.zeros(len(length), dtype=np.bool_)
    memory, begin, used = {}, {}, {}
    for which, has, owners in operands(bound):
        used[which] = has & (length > 0)
        memory[which] = owners * len(Buffer) + bound.columns[f"{which}_buffer"]
        begin[which] = bound.columns[f"{which}_offset"]
    unread: Bools = used["dst"].copy()
    for place in np.unique(memory["dst"][unread]):
        reads = [np.flatnonzero(used[which] & (memory[which] == place)) for which in ("src", "src2")]
        starts = np.concatenate([begin[which][rows] for which, rows in zip(("src", "src2"), reads, strict=True)])
        if not len(starts):
            continue
        ends = starts + length[np.concatenate(reads)]
        order = np.argsort(starts, kind="stable")
        starts, furthest = starts[order], np.maximum.accumulate(ends[order])
        writes = np.flatnonzero(used["dst"] & (memory["dst"] == place))
        first = begin["dst"][writes]
        # A range is read if, of all reads that begin before its end, the furthest one ends behind its begin.
        before = np.searchsorted(starts, first + length[writes], side="left")
        unread[writes] = (before == 0) | (furthest[before - 1] <= first)
    return unread


@functools.cache
def _cache_bytes() -> int:
    """Size of the largest cache; a common one where the system does not tell."""
    try:
        found = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (OSError, ValueError):
        found = 0
    return found if found > 0 else _USUAL_CACHE_BYTES
