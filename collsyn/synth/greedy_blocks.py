"""Lockstep matching of very many chunks, several steps at a time for each rank, on all cores."""

import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from collsyn.model.arrays import I64

if TYPE_CHECKING:
    from collsyn.synth.greedy_step_kernels import U16, Lockstep

# So many steps are done at most for one rank before the next: what it holds then stays in the cache.
MOST_AT_ONCE = 16

# Ranks are cut into so many ranges a core, lest one that is busy with something else holds up the others.
RANGES_A_CORE = 4


def match_in_blocks(into: I64, src: I64, owner: I64, lag: int, seed: int) -> "U16 | None":
    """What every link carries in every step, `sent[step, link]`; None where a rank cannot be reached.

    As `greedy_step_kernels.match_steps`, but a rank learns of what its neighbours get only after a block of steps. That
    costs no time as long as there is enough that it has not got yet; blocks are short at the beginning, when all that
    is known is new, and at the end. The result does not depend on the number of cores. O(links x chunks).
    """
    from collsyn.synth import greedy_step_kernels as kernels

    ranks, cores = len(into) - 1, len(os.sched_getaffinity(0))
    state = kernels.begin(into, src, owner)
    left = kernels.steps_left(state)
    sent = np.empty((left + left // 50 + 8 * math.isqrt(ranks), len(src)), dtype=np.uint16)
    cuts = [ranks * i // (RANGES_A_CORE * cores) for i in range(RANGES_A_CORE * cores + 1)]
    step, held = 0, -1
    with ThreadPoolExecutor(cores) as pool:
        while left > 0:
            width = max(1, min(MOST_AT_ONCE, 1 + math.isqrt(step) // 2, left // 16))
            if step + width > len(sent):
                sent = np.concatenate([sent, np.empty((len(sent) // 4 + width, len(src)), dtype=np.uint16)])
            sent[step : step + width] = kernels.NOTHING
            block = partial(_block, state, sent, (step, step + width), seed)
            list(pool.map(block, cuts[:-1], cuts[1:]))
            step += width
            changed, before, held = kernels.advance(state, lag), held, int(state.got.sum())
            if not changed and held == before:
                return None
            left = kernels.steps_left(state)
    return np.asarray(sent[:step], dtype=np.uint16) if left == 0 else None


def _block(state: "Lockstep", sent: "U16", steps: tuple[int, int], seed: int, first: int, stop: int) -> int:
    from collsyn.synth import greedy_step_kernels as kernels

    return int(kernels.run_steps(state, sent, steps, (first, stop), seed, False))
