"""Work on ranges of rows by compiled loops that release the interpreter, on all cores."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")

# Enough blocks that a core which is busy with something else does not hold up the others.
BLOCKS_A_CORE = 16


class Workers:
    """A thread for each core, for as long as the `with` block runs."""

    def __init__(self) -> None:
        self._cores = len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self._cores)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)

    def blocks(self, work: Callable[[int, int], T], count: int, blocks_a_core: int = BLOCKS_A_CORE) -> list[T]:
        """`work(begin, stop)` for ranges that cover 0 .. count - 1, in order; what it raises is raised here."""
        blocks = max(1, min(count, self._cores * blocks_a_core))
        cuts = [count * i // blocks for i in range(blocks + 1)]
        if blocks == 1:
            return [work(0, count)]
        return list(self._pool.map(work, cuts[:-1], cuts[1:]))


def in_blocks(work: Callable[[int, int], T], count: int) -> list[T]:
    """`Workers.blocks` for once."""
    with Workers() as workers:
        return workers.blocks(work, count)
