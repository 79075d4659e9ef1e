"""How far the greedy synthesizers search: which chunk counts, how much work, and when nothing is left to gain."""

import time
from collections.abc import Iterator

import numpy as np

from collsyn.bounds.bound import chunk_bound, fluid_bound
from collsyn.synth.problem import Options, Problem

# Chunks are not cut below LEAST_BYTES[1], or with small sizes 1 / SIZE_SHARE of the size, or LEAST_BYTES[0].
LEAST_BYTES, SIZE_SHARE = (512, 16384), 256

# Rising counts of chunks end when this many in a row were no better, or when three in a row gained less than the share
# LITTLE and the last took more than the share DEAR of the work.
PATIENCE, DEAR, LITTLE = 5, 0.05, 0.002

# A finish this close to a bound cannot be improved much.
CLOSE_ENOUGH = 1.001


class Effort:
    """The work that one search may do, counted in steps so that the same options give the same result.

    With a time limit, time decides instead. `work` is the number of steps of one pass; `best_s` the best finish so far.
    """

    def __init__(self, problem: Problem, options: Options, work: float) -> None:
        self.problem, self.options = problem, options
        self.best_s: float | None = None
        self._work, self._spent, self._serial = work, 0.0, 0
        self._start_s = time.monotonic()
        self._bound_s = fluid_bound(problem.collective(1), problem.topology, problem.size_bytes).time_s
        self._chunk_bounds_s: dict[int, float] = {}

    @property
    def timed(self) -> bool:
        """Whether a time limit is set."""
        return self.options.time_limit_s is not None

    def seed(self) -> int:
        """A seed for the next random choices."""
        self._serial += 1
        return (self.options.seed << 20) + self._serial

    def spend(self, steps: float, at_least: float = 0.0) -> None:
        """Count steps; the whole work is raised to `at_least` if it is less."""
        self._spent += steps
        self._work = max(self._work, at_least)

    def improved(self, finish_s: float) -> None:
        """Note a better finish, and tell who watches."""
        self.best_s = finish_s
        if self.options.progress is not None:
            self.options.progress(min(1.0, self._spent / self._work), f"{finish_s * 1e6:.1f} us")

    def over(self, share: float = 1.0) -> bool:
        """Whether that share of the work is done, or nothing is left to gain; never before there is a result."""
        if self.best_s is None:
            return False
        if self.best_s <= self._bound_s * CLOSE_ENOUGH:
            return True
        if self.options.time_limit_s is None:
            return self._spent >= share * self._work
        return time.monotonic() - self._start_s >= share * self.options.time_limit_s

    def chunk_bound_s(self, chunks: int) -> float:
        """No schedule with that many chunks a rank finishes earlier."""
        if chunks not in self._chunk_bounds_s:
            collective = self.problem.collective(chunks)
            bound = chunk_bound(collective, self.problem.topology, self.problem.size_bytes, batched=True)
            self._chunk_bounds_s[chunks] = bound.time_s
        return self._chunk_bounds_s[chunks]

    def can_gain(self, chunks: int) -> bool:
        """Whether there is work left, and that many chunks a rank might do better than the best so far."""
        return not self.over() and (self.best_s is None or self.best_s > self.chunk_bound_s(chunks) * CLOSE_ENOUGH)

    def chunk_counts(self, largest_bytes: float, most: int, patience: int = PATIENCE) -> Iterator[int]:
        """The count that the problem fixes, or else 1, 2, 3, 4, 6, 8, 12, ... while that pays.

        Not more than `most`, and not so many that the largest chunk, of `largest_bytes` uncut, becomes too small; so
        many in a row as `patience` says may be in vain.
        """
        fixed = 1 if self.problem.spec is not None else self.problem.chunks_per_rank
        if fixed is not None:
            yield fixed
            return
        least_bytes = min(LEAST_BYTES[1], max(LEAST_BYTES[0], self.problem.size_bytes // SIZE_SHARE))
        most = max(1, min(most, int(largest_bytes // max(self.problem.topology.min_piece_bytes, least_bytes))))
        in_vain, gained_little = 0, 0
        for chunks in _rising(most):
            before_s, spent = self.best_s or np.inf, self._spent
            yield chunks
            after_s = self.best_s or np.inf
            in_vain = 0 if after_s < before_s else in_vain + 1
            gained_little = 0 if after_s < (1 - LITTLE) * before_s else gained_little + 1
            if in_vain == patience or (gained_little >= 3 and self._spent - spent > DEAR * self._work):
                return


def _rising(most: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, ... up to most."""
    power = 1
    while power <= most:
        yield power
        if 1 < power <= most * 2 // 3:
            yield power * 3 // 2
        power *= 2
