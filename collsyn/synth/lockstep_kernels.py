"""Compiled matching in lockstep: in every step every link takes the first chunk of its source that its end lacks."""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

I64 = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def advance(
    steps: npt.NDArray[Any],
    ports: npt.NDArray[Any],
    order: npt.NDArray[Any],
    held: npt.NDArray[np.uint64],
    count: I64,
    visible: I64,
    seen: I64,
    near_ptr: I64,
    near: I64,
    step: int,
    begin: int,
    stop: int,
) -> int:
    """One step for the ranks `begin` .. `stop` - 1, which receive; returns how many chunks come.

    `order[r, :count[r]]` are the chunks of rank r as they came, of which the first `visible[r]` can be sent on; `held`
    has a bit for each. `near[near_ptr[r] + p]` is the neighbour at port p, and `seen` of that entry how much of the
    neighbour's list has been looked at: each entry is once. Only rows of ranks in the range are written to, so that
    ranges can run beside each other and the result does not depend on how.
    """
    moved = 0
    most = order.shape[1]
    for rank in range(begin, stop):
        if count[rank] == most:
            continue
        first, degree = near_ptr[rank], near_ptr[rank + 1] - near_ptr[rank]
        mine = held[rank]
        for turn in range(degree):
            # Ports take turns, so that neighbours do not all pass on the same.
            port = (turn + step) % degree
            entry = first + port
            sender = near[entry]
            at, end = seen[entry], visible[sender]
            while at < end:
                chunk = np.int64(order[sender, at])
                at += 1
                bit = np.uint64(1) << np.uint64(chunk & 63)
                if not mine[chunk >> 6] & bit:
                    mine[chunk >> 6] |= bit
                    steps[rank, chunk] = step
                    ports[rank, chunk] = port
                    order[rank, count[rank]] = chunk
                    count[rank] += 1
                    moved += 1
                    break
            seen[entry] = at
    return moved
