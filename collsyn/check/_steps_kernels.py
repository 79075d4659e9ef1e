"""Compiled replay of step tables: every arrival is tested against its sender's and against the links' steps."""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

I64 = npt.NDArray[np.int64]

# What can be wrong with one entry.
LATE_STEP, NO_PORT, TWICE, NOT_HELD, MISSING, AT_ROOT = 0, 1, 2, 3, 4, 5
NUM_FAULTS = 6


@njit(cache=True, nogil=True)
def faults(
    steps: npt.NDArray[Any],
    ports: npt.NDArray[Any],
    near_ptr: I64,
    near: I64,
    owner: I64,
    lag: int,
    num_steps: int,
    shown: int,
    begin: int,
    stop: int,
) -> tuple[I64, I64]:
    """Faults of the rows of ranks `begin` .. `stop` - 1: how many of each kind, and the first few of each.

    `near[near_ptr[r] + p]` is the rank at port p of rank r, `owner[c]` the root of chunk c. The second result has the
    shape [NUM_FAULTS, shown, 2] and holds ranks and chunks. Nothing is taken for granted: ports and steps are tested
    before they index anything. O(entries).
    """
    never = np.iinfo(steps.dtype).max
    count = np.zeros(NUM_FAULTS, dtype=np.int64)
    first = np.zeros((NUM_FAULTS, shown, 2), dtype=np.int64)
    for rank in range(begin, stop):
        row, port_row = steps[rank], ports[rank]
        degree = near_ptr[rank + 1] - near_ptr[rank]
        words = (num_steps + 63) // 64
        used = np.zeros(degree * words, dtype=np.uint64)
        for chunk in range(len(row)):
            step, fault = np.int64(row[chunk]), -1
            if owner[chunk] == rank:
                fault = -1 if step == never else AT_ROOT
            elif step == never:
                fault = MISSING
            elif step >= num_steps:
                fault = LATE_STEP
            elif port_row[chunk] >= degree:
                fault = NO_PORT
            else:
                port = np.int64(port_row[chunk])
                word, bit = port * words + step // 64, np.uint64(1) << np.uint64(step % 64)
                sender = near[near_ptr[rank] + port]
                if used[word] & bit:
                    fault = TWICE
                elif owner[chunk] != sender:
                    before = np.int64(steps[sender, chunk])
                    if before == never or before + lag > step:
                        fault = NOT_HELD
                used[word] |= bit
            if fault >= 0:
                if count[fault] < shown:
                    first[fault, count[fault], 0] = rank
                    first[fault, count[fault], 1] = chunk
                count[fault] += 1
    return count, first
