"""Links whose bandwidth depends on the length of a message, as where protocols switch or caches end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64, I64, Rows

if TYPE_CHECKING:
    from collsyn.model.topology import Topology

# (bytes, bytes per second), ascending in bytes; between two lengths logarithms are interpolated, beyond the first and
# last the rate stays.
SizeRates = tuple[tuple[float, float], ...]


def rates_at(points: SizeRates, num_bytes: npt.ArrayLike) -> F64:
    """Bytes per second of messages of some lengths over a link by itself."""
    sizes, rates = np.log(np.array(points, dtype=np.float64)).T
    return np.asarray(np.exp(np.interp(np.log(np.maximum(num_bytes, 1e-9)), sizes, rates)), dtype=np.float64)


def link_rates(topology: "Topology", link: npt.NDArray[np.integer], num_bytes: F64) -> F64:
    """Bytes per second that messages of some lengths have on a link each, when alone there; a message loads its link
    for its length over that rate.

    One entry a message and link; O(links + messages).
    """
    rate: F64 = topology.bandwidth[link]
    if topology.size_rates:
        for number in np.unique(link).tolist():
            points = topology.size_rates[number]
            if points:
                mine = np.flatnonzero(link == number)
                rate[mine] = np.minimum(rate[mine], rates_at(points, num_bytes[mine]))
    return rate


@dataclass(frozen=True, eq=False)
class SizedRoutes:
    """Routes of messages, one for each length where rates depend on it: a route an entry of `route`, and the rate that
    such a message has on each link (`link_rate`, an entry for each of `routes.data`)."""

    routes: Rows
    route: I64
    link_rate: F64

    @classmethod
    def of(cls, topology: "Topology", routes: Rows, route: npt.NDArray[np.integer], num_bytes: F64) -> "SizedRoutes":
        """The routes of messages (`route`; -1: none) of some lengths; O(messages x links of a route)."""
        known = np.asarray(route, dtype=np.int64)
        if not topology.size_rates:
            return cls(routes, known, topology.bandwidth[routes.data])
        bent = np.array([any(topology.size_rates[link] for link in links) for links in routes.tuples()], dtype=np.bool_)
        mine = np.flatnonzero((known >= 0) & np.append(bent, False)[known])
        pairs, number = np.unique(np.stack([known[mine], num_bytes[mine]]), axis=1, return_inverse=True)
        table = Rows.of([*routes.tuples(), *(routes[int(old)].tolist() for old in pairs[0])])
        sized = known.copy()
        sized[mine] = len(routes) + number.reshape(-1)
        # Messages on routes without such links may have any length.
        length = np.concatenate([np.full(len(routes), np.inf), pairs[1]])
        return cls(table, sized, link_rates(topology, table.data, np.repeat(length, table.lengths())))

    @property
    def rate(self) -> F64:
        """Bytes per second of a message on each route (infinite on the empty one)."""
        slowest = np.full(len(self.routes), np.inf)
        np.minimum.at(slowest, np.repeat(np.arange(len(self.routes)), self.routes.lengths()), self.link_rate)
        return slowest


def from_times(points: Sequence[tuple[int, float]], alpha_s: float) -> tuple[float, SizeRates]:
    """What measured times (bytes, seconds) of messages alone say of a link: its latency, and its rates by size.

    Latency is at most what the quickest message took. O(points).
    """
    latency_s = min(alpha_s, *(0.999 * seconds for _, seconds in points))
    return latency_s, tuple((float(size), size / (seconds - latency_s)) for size, seconds in points)
