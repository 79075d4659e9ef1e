"""Work on ranges of rows by compiled loops that release the interpreter, on all cores."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# Enough blocks that a core which is busy with something else does not hold up the others.
BLOCKS_A_CORE = 16


def in_blocks(work: Callable[[int, int], T], count: int) -> list[T]:
    """`work(begin, stop)` for ranges that cover 0 .. count - 1, on as many threads as there are cores; in order."""
    cores = len(os.sched_getaffinity(0))
    blocks = max(1, min(count, cores * BLOCKS_A_CORE))
    cuts = [count * i // blocks for i in range(blocks + 1)]
    with ThreadPoolExecutor(cores) as pool:
        try:
            return list(pool.map(work, cuts[:-1], cuts[1:]))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
