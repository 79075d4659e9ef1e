"""Hot loops of plan simulation: max-min fair rates of transfers on links, and the queue of what happens next."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

# Only kernels call these: wrappers to call them from Python would take half as long again to compile.
_INNER: dict[str, Any] = {"cache": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
inner = njit(**_INNER)

# Links that are this close to the tightest are tight, too.
_TIE = 1 + 1e-12
# A rate that changes by less than this has not changed.
_SAME = 1e-13


class Net(NamedTuple):
    """Links and routes: the links of route r are `route_link[route_ptr[r] : route_ptr[r + 1]]`, at most `width`.

    A byte loads the link of entry e of `route_link` like `weight[e]` bytes of its bandwidth. A transfer over a route
    ends with `tail_bytes` that only occupy its links (overhead), and arrives `alpha_s` after the last byte before them
    was sent.
    """

    route_ptr: I64
    route_link: I32
    weight: F64
    alpha_s: F64
    tail_bytes: F64
    bandwidth: F64
    width: int


class Flows(NamedTuple):
    """Transfers, at most one a channel, and the lists of those on every link.

    Channel c has `rest` bytes left at time `since` and sends at `rate` over `route`. Entry c * width + k of the lists
    is its k-th link: `first` of a link, then `after` of an entry; `users` counts them. `touched` are the links whose
    lists changed (`touched[-1]` of them), marked in `is_touched`. The rest is space to work in.
    """

    route: I64
    rest: F64
    rate: F64
    since: F64
    first: I64
    after: I64
    before: I64
    users: I64
    touched: I64
    is_touched: npt.NDArray[np.bool_]
    links: I64
    members: I64
    link_seen: npt.NDArray[np.bool_]
    flow_seen: npt.NDArray[np.bool_]
    room: F64
    open_users: I64
    open_weight: F64
    new_rate: F64


class Queue(NamedTuple):
    """A binary heap of numbers by (key, number) that knows where each is."""

    heap: I64
    where: I64
    key: F64


def new_queue(size: int) -> Queue:
    """A queue that holds all its items, none with a moment yet."""
    return Queue(heap=np.arange(size), where=np.arange(size), key=np.full(size, np.inf))


def new_flows(num_channels: int, num_links: int, width: int) -> Flows:
    """No transfers yet; `width` is the length of the longest route."""
    return Flows(
        route=np.full(num_channels, -1, np.int64),
        rest=np.zeros(num_channels),
        rate=np.zeros(num_channels),
        since=np.zeros(num_channels),
        first=np.full(num_links, -1, np.int64),
        after=np.empty(num_channels * width, np.int64),
        before=np.empty(num_channels * width, np.int64),
        users=np.zeros(num_links, np.int64),
        touched=np.zeros(num_links + 1, np.int64),
        is_touched=np.zeros(num_links, np.bool_),
        links=np.empty(num_links, np.int64),
        members=np.empty(num_channels, np.int64),
        link_seen=np.zeros(num_links, np.bool_),
        flow_seen=np.zeros(num_channels, np.bool_),
        room=np.empty(num_links),
        open_users=np.empty(num_links, np.int64),
        open_weight=np.empty(num_links),
        new_rate=np.empty(num_channels),
    )


@inner
def sift_up(queue: Queue, at: int) -> None:
    """Move the entry at a place up to where it belongs."""
    heap, where, key = queue.heap, queue.where, queue.key
    item = heap[at]
    while at > 0:
        above = (at - 1) >> 1
        other = heap[above]
        if key[other] < key[item] or (key[other] == key[item] and other < item):
            break
        heap[at] = other
        where[other] = at
        at = above
    heap[at] = item
    where[item] = at


@inner
def sift_down(queue: Queue, at: int, size: int) -> None:
    """Move the entry at a place down to where it belongs among the first `size`."""
    heap, where, key = queue.heap, queue.where, queue.key
    item = heap[at]
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size:
            left, right = heap[below], heap[below + 1]
            if key[right] < key[left] or (key[right] == key[left] and right < left):
                below += 1
        other = heap[below]
        if key[item] < key[other] or (key[item] == key[other] and item < other):
            break
        heap[at] = other
        where[other] = at
        at = below
    heap[at] = item
    where[item] = at


@inner
def set_key(queue: Queue, item: int, key: float) -> None:
    """Change the key of an item of a queue that holds all its items at all times."""
    queue.key[item] = key
    sift_up(queue, queue.where[item])
    sift_down(queue, queue.where[item], len(queue.heap))


@inner
def _touch(flows: Flows, link: int) -> None:
    if not flows.is_touched[link]:
        flows.is_touched[link] = True
        flows.touched[flows.touched[-1]] = link
        flows.touched[-1] += 1


@inner
def join(net: Net, flows: Flows, channel: int) -> None:
    """Put a channel's transfer into the lists of its links."""
    begin = net.route_ptr[flows.route[channel]]
    for k in range(net.route_ptr[flows.route[channel] + 1] - begin):
        link, entry = net.route_link[begin + k], channel * net.width + k
        following = flows.first[link]
        flows.after[entry], flows.before[entry] = following, -1
        if following >= 0:
            flows.before[following] = entry
        flows.first[link] = entry
        flows.users[link] += 1
        _touch(flows, link)


@inner
def leave(net: Net, flows: Flows, channel: int) -> None:
    """Take a channel's transfer out of the lists of its links."""
    begin = net.route_ptr[flows.route[channel]]
    for k in range(net.route_ptr[flows.route[channel] + 1] - begin):
        link, entry = net.route_link[begin + k], channel * net.width + k
        previous, following = flows.before[entry], flows.after[entry]
        if previous >= 0:
            flows.after[previous] = following
        else:
            flows.first[link] = following
        if following >= 0:
            flows.before[following] = previous
        flows.users[link] -= 1
        _touch(flows, link)


@inner
def reshare(now: float, queue: Queue, net: Net, flows: Flows) -> None:
    """Set the rates of all transfers that share links, however indirectly, with a link whose list changed.

    Transfers elsewhere keep theirs: max-min fair rates of parts without a common link do not depend on each other.
    """
    for i in range(flows.touched[-1]):
        link = flows.touched[i]
        flows.is_touched[link] = False
        if flows.users[link] == 0 or flows.link_seen[link]:
            continue
        num_links, num_flows = _connected(link, net, flows)
        for j in range(num_links):
            flows.room[flows.links[j]] = net.bandwidth[flows.links[j]]
            flows.open_users[flows.links[j]] = flows.users[flows.links[j]]
        _fill(num_links, num_flows, net, flows)
        for j in range(num_flows):
            flow = flows.members[j]
            rate, new_rate = flows.rate[flow], flows.new_rate[flow]
            if abs(new_rate - rate) > _SAME * new_rate:
                flows.rest[flow] = max(flows.rest[flow] - rate * (now - flows.since[flow]), 0.0)
                flows.rate[flow], flows.since[flow] = new_rate, now
                set_key(queue, flow, now + flows.rest[flow] / new_rate)
    flows.touched[-1] = 0
    flows.link_seen[:] = False


@inner
def _connected(link: int, net: Net, flows: Flows) -> tuple[int, int]:
    """List the links and transfers that are joined to a link by sharing, and what a byte of all of a link's loads it
    with; returns how many there are of both."""
    flows.links[0], flows.link_seen[link] = link, True
    num_links, num_flows, looked_at = 1, 0, 0
    while looked_at < num_links:
        here = flows.links[looked_at]
        entry = flows.first[here]
        flows.open_weight[here] = 0.0
        looked_at += 1
        while entry >= 0:
            flow = entry // net.width
            flows.open_weight[here] += net.weight[net.route_ptr[flows.route[flow]] + entry % net.width]
            entry = flows.after[entry]
            if flows.flow_seen[flow]:
                continue
            flows.flow_seen[flow] = True
            flows.members[num_flows] = flow
            num_flows += 1
            route = flows.route[flow]
            for e in range(net.route_ptr[route], net.route_ptr[route + 1]):
                other = net.route_link[e]
                if not flows.link_seen[other]:
                    flows.link_seen[other] = True
                    flows.links[num_links] = other
                    num_links += 1
    for i in range(num_flows):
        flows.flow_seen[flows.members[i]] = False
    return num_links, num_flows


@inner
def _fill(num_links: int, num_flows: int, net: Net, flows: Flows) -> None:
    """Max-min fair rates by progressive filling: all rise alike until a link is full, then those off it."""
    links, room, open_users, new_rate = flows.links, flows.room, flows.open_users, flows.new_rate
    open_weight = flows.open_weight
    for i in range(num_flows):
        new_rate[flows.members[i]] = -1.0
    left = num_flows
    while left > 0:
        level = np.inf
        kept = 0
        for i in range(num_links):
            link = links[i]
            if open_users[link] > 0:
                level = min(level, room[link] / open_weight[link])
                links[kept] = link
                kept += 1
        num_links = kept
        for i in range(num_links):
            link = links[i]
            if open_users[link] == 0 or room[link] > level * open_weight[link] * _TIE:
                continue
            entry = flows.first[link]
            while entry >= 0:
                flow = entry // net.width
                entry = flows.after[entry]
                if new_rate[flow] >= 0:
                    continue
                new_rate[flow] = level
                left -= 1
                route = flows.route[flow]
                for e in range(net.route_ptr[route], net.route_ptr[route + 1]):
                    room[net.route_link[e]] -= level * net.weight[e]
                    open_weight[net.route_link[e]] -= net.weight[e]
                    open_users[net.route_link[e]] -= 1
