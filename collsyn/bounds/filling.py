"""What every counting argument ends in: when can links have carried so many bytes, or so many messages?"""

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64


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


def earliest_count(count: int, first_s: F64, step_s: F64) -> float:
    """Smallest T with sum of floor(max(0, T - first_s) / step_s) >= count over the links; arrays of one entry a link.

    A link brings its k-th message at first_s + k * step_s. In the time that the fluid count gives, each link brings at
    most one message less than its share, so the moments within the largest step behind it are all that can matter.
    Complexity: O(links * largest step / smallest step).
    """
    if count <= 0:
        return 0.0
    if not len(first_s):
        return float("inf")
    fluid_s = float(earliest_bytes(count, 1.0 / step_s, first_s))
    rounding_s = 1e-9 * fluid_s
    before = np.floor(np.maximum(fluid_s - rounding_s - first_s, 0.0) / step_s)
    left = int(count - before.sum())
    window_s = 2 * float(step_s.max()) + 2 * rounding_s
    ahead = np.minimum(np.ceil(window_s / step_s) + 1, left).astype(np.int64)
    link = np.repeat(np.arange(len(ahead)), ahead)
    nth = np.arange(len(link)) - np.repeat(np.cumsum(ahead) - ahead, ahead) + 1
    moments = first_s[link] + (before[link] + nth) * step_s[link]
    return float(np.partition(moments, left - 1)[left - 1])
