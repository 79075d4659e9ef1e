"""What every counting argument ends in: when can links have carried so many bytes, or so many messages?"""

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64

# Halvings that bring any interval of floats down to neighbours (53 bits of mantissa and some for unequal ends).
_HALVINGS = 64


def earliest_bytes(num_bytes: npt.ArrayLike, bandwidth: npt.ArrayLike, ready_s: npt.ArrayLike) -> F64:
    """Smallest T with sum of bandwidth * max(0, T - ready_s) >= num_bytes; links along the last axis, others broadcast.

    For each T the sum is the largest over prefixes of the links sorted by `ready_s`, so T is the least of the times at
    which some prefix alone suffices. Bytes, bytes/s and seconds; complexity O(links log links).
    """
    rate, ready = np.broadcast_arrays(np.asarray(bandwidth, np.float64), np.asarray(ready_s, np.float64))
    order = np.argsort(ready, axis=-1, kind="stable")
    rate, ready = np.take_along_axis(rate, order, -1), np.take_along_axis(ready, order, -1)
    amount = np.asarray(num_bytes, np.float64)[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        times = (amount + np.cumsum(rate * ready, axis=-1)) / np.cumsum(rate, axis=-1)
    times = np.where(np.isnan(times), np.inf, times)
    found = times.min(axis=-1, initial=np.inf)
    return np.where(amount[..., 0] > 0, found, 0.0)


def earliest_count(count: npt.ArrayLike, first_s: npt.ArrayLike, step_s: npt.ArrayLike) -> F64:
    """Smallest T with sum of floor(max(0, T - first_s) / step_s) >= count; links along the last axis, others broadcast.

    A link brings its k-th message at first_s + k * step_s. Bisection between neighbouring floats, then the nearest such
    moment; complexity O(64 links).
    """
    first, step = np.broadcast_arrays(np.asarray(first_s, np.float64), np.asarray(step_s, np.float64))
    wanted = np.broadcast_to(np.asarray(count, np.float64), first.shape[:-1])
    if not first.shape[-1]:
        return np.where(wanted > 0, np.inf, 0.0)

    def enough(time_s: F64) -> npt.NDArray[np.bool_]:
        brought = np.floor(np.maximum(time_s[..., None] - first, 0.0) / step).sum(axis=-1)
        return np.asarray(brought >= wanted)

    # With T moved one largest step further every link brings at least what it brings in the fluid count.
    low = earliest_bytes(wanted, 1.0 / step, first)
    low, high = low * (1 - 1e-12), low * (1 + 1e-12) + 2 * step.max(axis=-1)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        good = enough(middle)
        low, high = np.where(good, low, middle), np.where(good, middle, high)
    moments = first + np.maximum(np.round((high[..., None] - first) / step), 1.0) * step
    nearest = np.abs(moments - high[..., None]).argmin(axis=-1)
    snapped = np.take_along_axis(moments, nearest[..., None], -1)[..., 0]
    return np.where(wanted > 0, snapped, 0.0)
