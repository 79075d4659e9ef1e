"""Times of several ranks and blocks brought to one number, and how sure a ratio of two of them is."""

from collections.abc import Sequence

import numpy as np

from collsyn.model.arrays import F64

RESAMPLES = 2000
CONFIDENCE = 0.95

# Names of `--average` in the order of nccl-tests' numbers: rank 0, average, minimum, maximum over ranks.
OVER_RANKS = ("rank0", "avg", "min", "max")


def over_ranks(seconds: F64, how: str) -> F64:
    """One time a block from those of all ranks (shape [ranks, blocks]), as `--average` asks; shape [blocks]."""
    reduced = {
        "rank0": lambda: seconds[0],
        "avg": lambda: seconds.mean(axis=0),
        "min": lambda: seconds.min(axis=0),
        "max": lambda: seconds.max(axis=0),
    }[how]()
    return np.asarray(reduced, dtype=np.float64)


def ratio_of_medians(
    numerator: Sequence[float] | F64, denominator: Sequence[float] | F64, seed: int = 0
) -> tuple[float, float, float]:
    """Ratio of two medians and its 95% interval (low, high), by resampling both sides apart (percentile bootstrap)."""
    above, below = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    ratio = float(np.median(above) / np.median(below))
    rng = np.random.default_rng(seed)

    def medians(values: F64) -> F64:
        drawn = values[rng.integers(len(values), size=(RESAMPLES, len(values)))]
        return np.asarray(np.median(drawn, axis=1), dtype=np.float64)

    low, high = np.quantile(medians(above) / medians(below), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return ratio, min(float(low), ratio), max(float(high), ratio)
