"""Which copies of a plan are best stored past the caches."""

import functools
import os

import numpy as np

from collsyn.check.execute import operands
from collsyn.model.arrays import Bools
from collsyn.model.bind import BoundPlan
from collsyn.model.plan import Buffer, Op

_USUAL_CACHE_BYTES = 32 << 20


def past_the_caches(bound: BoundPlan) -> Bools:
    """Instructions whose copies are best stored past the caches: none while the memory of all ranks fits into them.

    Else those that no reduction reads: an ordinary store would fetch every line before it overwrites it, and lose it
    before anybody looks. O(n log n) for n instructions.
    """
    if bound.buffer_bytes.sum() <= _cache_bytes() // 2:
        return np.zeros(len(bound.columns["op"]), dtype=np.bool_)
    reduces = np.isin(bound.columns["op"], [Op.REDUCE, Op.GET_REDUCE])
    return ~_read_by(bound, reduces)


def _read_by(bound: BoundPlan, readers: Bools) -> Bools:
    """Instructions that write what some of the readers read (before or after)."""
    length = bound.columns["length"]
    memory, begin, used = {}, {}, {}
    for which, has, owners in operands(bound):
        used[which] = has & (length > 0)
        memory[which] = owners * len(Buffer) + bound.columns[f"{which}_buffer"]
        begin[which] = bound.columns[f"{which}_offset"]
    read = np.zeros(len(length), dtype=np.bool_)
    for place in np.unique(memory["dst"][used["dst"]]):
        rows = {which: np.flatnonzero(used[which] & readers & (memory[which] == place)) for which in ("src", "src2")}
        starts = np.concatenate([begin[which][rows[which]] for which in rows])
        if not len(starts):
            continue
        ends = starts + length[np.concatenate(list(rows.values()))]
        order = np.argsort(starts, kind="stable")
        starts, furthest = starts[order], np.maximum.accumulate(ends[order])
        writes = np.flatnonzero(used["dst"] & (memory["dst"] == place))
        first = begin["dst"][writes]
        # A range is read if, of all reads that begin before its end, the furthest one ends behind its begin.
        before = np.searchsorted(starts, first + length[writes], side="left")
        read[writes] = (before > 0) & (furthest[before - 1] > first)
    return read


@functools.cache
def _cache_bytes() -> int:
    """Size of the largest cache; a common one where the system does not tell."""
    try:
        found = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (OSError, ValueError):
        found = 0
    return found if found > 0 else _USUAL_CACHE_BYTES
