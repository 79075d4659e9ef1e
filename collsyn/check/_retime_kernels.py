"""Hot loop of retiming: longest paths by repeated relaxation."""

import numpy as np
import numpy.typing as npt
from numba import njit


@njit(cache=True)
def relax(
    order: npt.NDArray[np.int64],
    ptr: npt.NDArray[np.int64],
    before: npt.NDArray[np.int64],
    lag_s: npt.NDArray[np.float64],
    start_s: npt.NDArray[np.float64],
    max_passes: int,
) -> bool:
    """Raise start_s until start_s[j] >= start_s[before[e]] + lag_s[e] for all e in ptr[j] : ptr[j + 1], up to rounding.

    One pass goes through `order`; returns whether a pass without a change came within `max_passes`.
    """
    for _ in range(max_passes):
        changed = False
        for j in order:
            least = start_s[j] * (1 + 1e-14)
            for e in range(ptr[j], ptr[j + 1]):
                earliest = start_s[before[e]] + lag_s[e]
                if earliest > least:
                    least = earliest
                    start_s[j] = earliest
                    changed = True
        if not changed:
            return True
    return False
