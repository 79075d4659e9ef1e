"""Links whose bandwidth depends on the length of a message, as where protocols switch or caches end."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64, Rows

if TYPE_CHECKING:
    from collsyn.model.topology import Topology

# (bytes, bytes per second), ascending in bytes; between two lengths logarithms are interpolated, beyond the first and
# last the rate stays.
SizeRates = tuple[tuple[float, float], ...]


def rates_at(points: SizeRates, num_bytes: npt.ArrayLike) -> F64:
    """Bytes per second of messages of some lengths over a link by itself."""
    sizes, rates = np.log(np.array(points, dtype=np.float64)).T
    return np.asarray(np.exp(np.interp(np.log(np.maximum(num_bytes, 1e-9)), sizes, rates)), dtype=np.float64)


def rate_limits(topology: "Topology", routes: Rows, route: npt.NDArray[np.integer], num_bytes: F64) -> F64:
    """The most that each message's length lets it have on its route, in bytes per second; infinite where nothing does.

    O(routes x messages), and nothing where no link has such rates.
    """
    limit = np.full(len(route), np.inf)
    if not topology.size_rates:
        return limit
    for number in np.unique(route):
        curves = [topology.size_rates[link] for link in routes[int(number)]] if number >= 0 else []
        mine = np.flatnonzero(route == number)
        for points in curves:
            if points:
                limit[mine] = np.minimum(limit[mine], rates_at(points, num_bytes[mine]))
    return limit


def from_times(points: Sequence[tuple[int, float]], alpha_s: float) -> tuple[float, SizeRates]:
    """What measured times (bytes, seconds) of messages alone say of a link: its latency, and its rates by size.

    Latency is at most what the quickest message took. O(points).
    """
    latency_s = min(alpha_s, *(0.999 * seconds for _, seconds in points))
    return latency_s, tuple((float(size), size / (seconds - latency_s)) for size, seconds in points)
