"""Hot loop of pictures: replays the fair sharing of a simulated plan, and adds up what every link carries when."""

import numpy as np
import numpy.typing as npt
from numba import njit

from collsyn.check._sharing_kernels import Flows, Net, Queue, inner, join, leave, reshare, set_key

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


@inner
def _add(net: Net, route: int, rate: float, begin_s: float, end_s: float, bin_s: float, busy: F64) -> None:
    """A rate on all links of a route for some time, as parts of their bandwidth, averaged over every bin."""
    if rate == 0 or end_s <= begin_s:
        return
    first = min(int(begin_s / bin_s), busy.shape[1] - 1)
    last = min(int(end_s / bin_s), busy.shape[1] - 1)
    for e in range(net.route_ptr[route], net.route_ptr[route + 1]):
        link = net.route_link[e]
        part = rate * net.weight[e] / net.bandwidth[link] / bin_s
        for k in range(first, last + 1):
            within = end_s if k == last else (k + 1) * bin_s
            busy[link, k] += part * (within - max(begin_s, k * bin_s))


@inner
def _end(channel: int, now: float, queue: Queue, net: Net, flows: Flows, rate: F64, since: F64, bin_s: float,
         busy: F64) -> None:  # fmt: skip
    """A channel's transfer no longer occupies its links."""
    _add(net, flows.route[channel], rate[channel], since[channel], now, bin_s, busy)
    leave(net, flows, channel)
    rate[channel] = flows.rate[channel] = 0.0
    set_key(queue, channel, np.inf)


@njit(cache=True)
def replay(start_s: F64, num_bytes: F64, route: I64, channel: I64, net: Net, queue: Queue, flows: Flows, bin_s: float,
           busy: F64) -> None:  # fmt: skip
    """Add what transfers occupy, overhead included, to `busy` (links x bins of `bin_s` seconds).

    Transfers are in the order of `start_s`, which the simulator found; `num_bytes` include the bytes of their overhead.
    Their rates are found anew by the simulator's own rule.
    """
    num_channels, following, now = len(flows.rate), 0, 0.0
    rate, since = np.zeros(num_channels), np.zeros(num_channels)
    while now < np.inf:
        while queue.key[queue.heap[0]] <= now:
            _end(queue.heap[0], now, queue, net, flows, rate, since, bin_s, busy)
        while following < len(start_s) and start_s[following] <= now:
            mine = channel[following]
            # What came before on this channel is over, whatever rounding says.
            if queue.key[mine] < np.inf:
                _end(mine, now, queue, net, flows, rate, since, bin_s, busy)
            flows.rest[mine], flows.rate[mine], flows.since[mine] = num_bytes[following], 0.0, now
            flows.route[mine] = route[following]
            join(net, flows, mine)
            following += 1
        reshare(now, queue, net, flows)
        for mine in range(num_channels):
            if flows.rate[mine] != rate[mine]:
                _add(net, flows.route[mine], rate[mine], since[mine], now, bin_s, busy)
                rate[mine], since[mine] = flows.rate[mine], now
        now = queue.key[queue.heap[0]]
        if following < len(start_s):
            now = min(now, start_s[following])
