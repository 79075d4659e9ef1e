"""Fits the time model to measured message times, with intervals that come from the spread of the measurements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collsyn.errors import InputError
from collsyn.model.arrays import F64
from collsyn.model.profile import Estimate

RESAMPLES = 400
CONFIDENCE = 0.95
# A median further from the line than this (relative), beyond what its own spread explains, is no noise.
TOLERANCE = 0.25
# Times that do not grow with the size still need a bandwidth above 0: 1 PB/s stands for "too fast to see".
MIN_BETA_S_PER_BYTE = 1e-15
# A repeat that takes longer than so many medians was disturbed.
OUTLIER = 1.5
_REWEIGHTINGS = 3


@dataclass(frozen=True)
class Line:
    """time = alpha + size * beta; `residual` is the root mean square of its relative errors at the measured sizes.

    `linear` is false where some median is off by more than TOLERANCE and its own spread does not explain it.
    `points` are (bytes, median seconds), ascending.
    """

    alpha_s: Estimate
    beta_s_per_byte: Estimate
    residual: float
    linear: bool
    points: tuple[tuple[int, float], ...]


def fit_line(samples: Mapping[int, Sequence[float]], seed: int = 0) -> Line:
    """Straight line through repeated times of messages: `samples[bytes]` are seconds, at least two sizes.

    Medians per size are robust against a preempted repeat; relative errors are minimised, because 10% of 1 us matter
    as much as 10% of 1 ms. Alpha is at least 0. Intervals are percentiles over resamples of the repeats (Efron's
    bootstrap), so they say how sure the line is, not how well a line describes the machine: that is `linear`.
    Raises InputError. Complexity: O(resamples * samples log repeats).
    """
    sizes = sorted(samples)
    if len(sizes) < 2 or not all(len(samples[size]) for size in sizes):
        raise InputError("profile: a line needs times at two sizes or more")
    n = np.array(sizes, dtype=np.float64)
    medians = np.array([np.median(samples[size]) for size in sizes])
    if not (medians > 0).all():
        raise InputError("profile: a measured time is not above 0")
    alpha, beta = _relative_least_squares(n, medians[np.newaxis])
    rng = np.random.default_rng(seed)
    resampled = np.stack([resampled_medians(samples[size], rng) for size in sizes], axis=1)
    alphas, betas = _relative_least_squares(n, resampled)
    deviation = medians / (alpha[0] + n * beta[0]) - 1.0
    low, high = np.quantile(resampled, _tails(), axis=0)
    unexplained = np.abs(deviation) - (high - low) / (2.0 * medians)
    return Line(
        alpha_s=estimate(float(alpha[0]), alphas),
        beta_s_per_byte=estimate(float(beta[0]), betas),
        residual=float(np.sqrt(np.mean(deviation**2))),
        linear=bool((unexplained <= TOLERANCE).all()),
        points=tuple(zip(sizes, medians.tolist(), strict=True)),
    )


def fit_overhead(seconds: Sequence[float], size_bytes: int, line: Line, seed: int = 0) -> Estimate:
    """What each message of a stream occupies its link besides its bytes, in seconds: 0 <= overhead <= alpha.

    `seconds` are times from message to message of a long stream of messages of `size_bytes`, sent without waiting.
    """

    def occupied(per_message: F64) -> F64:
        beyond = per_message - size_bytes * line.beta_s_per_byte.value
        return np.asarray(np.clip(beyond, 0.0, line.alpha_s.value), dtype=np.float64)

    value = occupied(np.array([np.median(seconds)]))
    return estimate(float(value[0]), occupied(resampled_medians(seconds, np.random.default_rng(seed))))


def stragglers(samples: Mapping[int, Sequence[float]]) -> tuple[int, float]:
    """How many repeats took longer than OUTLIER times the median of their size, and by which part the first of a size
    took longer than the median, in the median over sizes; `samples[bytes]` are seconds in the order of measurement."""
    medians = {size: float(np.median(seconds)) for size, seconds in samples.items()}
    late = sum(one > OUTLIER * medians[size] for size, seconds in samples.items() for one in seconds)
    return late, float(np.median([seconds[0] / medians[size] - 1.0 for size, seconds in samples.items()]))


def furthest_point(
    points: Sequence[tuple[int, float]], alpha_s: float, beta_s_per_byte: float
) -> tuple[int, float] | None:
    """The size at which a line is furthest from the measured median, and how far (0.5: took half as long again)."""
    off = [(size, seconds / (alpha_s + size * beta_s_per_byte) - 1.0) for size, seconds in points]
    return max(off, key=lambda entry: abs(entry[1]), default=None)


def resampled_medians(values: Sequence[float], rng: np.random.Generator) -> F64:
    """Medians of RESAMPLES samples drawn with replacement; shape [RESAMPLES]."""
    data = np.asarray(values, dtype=np.float64)
    drawn = data[rng.integers(len(data), size=(RESAMPLES, len(data)))]
    return np.asarray(np.median(drawn, axis=1), dtype=np.float64)


def estimate(value: float, resampled: F64) -> Estimate:
    """A value with the percentile interval of its resamples, widened where needed to hold the value itself."""
    low, high = np.quantile(resampled, _tails())
    return Estimate(value, min(float(low), value), max(float(high), value))


def _tails() -> tuple[float, float]:
    return (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2


def _relative_least_squares(n: F64, times: F64) -> tuple[F64, F64]:
    """Alpha and beta that minimise the sum of ((time - line) / line)^2 for each row of `times` (shape [rows, sizes]).

    The weights start from the times and follow the line (iteratively reweighted least squares). Where the best alpha
    is negative it is 0, where the best beta is it is the smallest allowed, and the other one is fitted alone.
    """
    scale = n[-1]
    x = n / scale
    line = times
    alpha = beta = np.zeros(len(times))
    for _ in range(_REWEIGHTINGS):
        w = 1.0 / line**2
        s, sx, sxx = w.sum(1), w @ x, w @ (x * x)
        st, sxt = (w * times).sum(1), (w * times) @ x
        determinant = s * sxx - sx * sx
        alpha = (sxx * st - sx * sxt) / determinant
        beta = (s * sxt - sx * st) / determinant
        flat = beta < MIN_BETA_S_PER_BYTE * scale
        alpha = np.where(flat, st / s, alpha)
        beta = np.where(flat, MIN_BETA_S_PER_BYTE * scale, beta)
        beta = np.where(alpha < 0, sxt / sxx, beta)
        alpha = np.maximum(alpha, 0.0)
        line = alpha[:, np.newaxis] + beta[:, np.newaxis] * x
    return alpha, beta / scale
