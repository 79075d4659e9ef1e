"""What the compiled event loops share: the machine as arrays, an event queue, links as resources, random numbers."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from collsyn.synth._kernels import RATE_SLACK, _link_free_s, _reserve

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

# Kinds of events; the code of one is kind << KIND_BIT | number of the message (of the hop for WAKE).
ARRIVAL, RELEASE, WAKE = 0, 1, 2
KIND_BIT = 40
NUMBER = (1 << KIND_BIT) - 1


class Machine(NamedTuple):
    """Hops and the links they share, as plain arrays.

    Per hop: `src`, `dst`, `rate` (bytes/s), `alpha_s`, `overhead_s`, `batch` (most chunks in a message), its part of
    `route_links` (with the alphas `before_s` each link) from `route_ptr`, the regions it enters, coarse to fine, in
    `regions` from `region_ptr`, and `precedence`, which orders the hops that can start in one instant. Per link:
    `bandwidth`, whether flows share it, the hops over it. Per rank: hops out of it, the regions it is in, `in_rate`
    (bytes/s that can enter) and `best_rate` (of a hop into it).
    """

    src: I64
    dst: I64
    rate: F64
    alpha_s: F64
    overhead_s: F64
    batch: I64
    route_ptr: I64
    route_links: I32
    before_s: F64
    region_ptr: I64
    regions: I64
    precedence: F64
    bandwidth: F64
    shared: U8
    link_ptr: I64
    link_hops: I64
    out_ptr: I64
    out_hops: I64
    member_ptr: I64
    member: I64
    in_rate: F64
    best_rate: F64
    num_regions: int
    flows: int


class Links(NamedTuple):
    """Flows on every link, and when the last one that is known will release it (minus the alphas before the link)."""

    ends: F64
    rates: F64
    used: I64
    release_s: F64


class Queue(NamedTuple):
    """Events in a binary heap ordered by (time, serial number); `state` is its size and the next serial number.

    `wake_s` says for every hop when it will be woken; `ready[: tally[0]]` are the hops to try in this instant, which is
    number tally[1], each marked with it; `keys` and the two `spare` arrays are for sorting them.
    """

    times: F64
    serials: I64
    codes: I64
    state: I64
    wake_s: F64
    ready: I64
    mark: I64
    tally: I64
    keys: F64
    spare: tuple[F64, I64, I64]


@njit(cache=True)
def free_links(machine: Machine) -> Links:
    """All links without flows."""
    shape = (len(machine.bandwidth), machine.flows)
    return Links(np.zeros(shape), np.zeros(shape), np.zeros(shape[0], np.int64), np.full(shape[0], -1.0))


@njit(cache=True)
def empty_queue(num_hops: int, most_messages: int) -> Queue:
    """No events yet. A message has at most two, its arrival and its release, and a hop one, its waking."""
    room = 2 * most_messages + num_hops + 1
    return Queue(
        np.empty(room),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.zeros(2, np.int64),
        np.full(num_hops, np.inf),
        np.zeros(num_hops, np.int64),
        np.full(num_hops, -1),
        np.zeros(2, np.int64),
        np.zeros(num_hops),
        (np.empty(num_hops), np.empty(num_hops, np.int64), np.empty(num_hops, np.int64)),
    )


@njit(cache=True)
def push(keys: F64, serials: I64, codes: I64, size: int, key: float, serial: int, code: int) -> int:
    """Put an entry into a binary heap ordered by (key, serial), serial being the largest so far for equal keys."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if keys[parent] < key or (keys[parent] == key and serials[parent] < serial):
            break
        keys[i], serials[i], codes[i] = keys[parent], serials[parent], codes[parent]
        i = parent
    keys[i], serials[i], codes[i] = key, serial, code
    return size + 1


@njit(cache=True)
def pop(keys: F64, serials: I64, codes: I64, size: int) -> int:
    """Take the first entry (number 0) out of the heap; returns the new size."""
    size -= 1
    key, serial, code = keys[size], serials[size], codes[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            keys[right] < keys[child] or (keys[right] == keys[child] and serials[right] < serials[child])
        ):
            child = right
        if key < keys[child] or (key == keys[child] and serial < serials[child]):
            break
        keys[i], serials[i], codes[i] = keys[child], serials[child], codes[child]
        i = child
    keys[i], serials[i], codes[i] = key, serial, code
    return size


@njit(cache=True)
def post(queue: Queue, time_s: float, kind: int, number: int) -> None:
    """Add an event."""
    code = (kind << KIND_BIT) + number
    queue.state[0] = push(queue.times, queue.serials, queue.codes, queue.state[0], time_s, queue.state[1], code)
    queue.state[1] += 1


@njit(cache=True)
def next_event(queue: Queue) -> tuple[float, int, int]:
    """Take the first event: its time, kind and number."""
    time_s, code = queue.times[0], queue.codes[0]
    queue.state[0] = pop(queue.times, queue.serials, queue.codes, queue.state[0])
    return time_s, code >> KIND_BIT, code & NUMBER


@njit(cache=True)
def make_ready(queue: Queue, hops: npt.NDArray[np.integer]) -> None:
    """Add hops to the list of those to try in this instant, each once."""
    for hop in hops:
        if queue.mark[hop] != queue.tally[1]:
            queue.mark[hop] = queue.tally[1]
            queue.ready[queue.tally[0]] = hop
            queue.tally[0] += 1


@njit(cache=True)
def begin_instant(queue: Queue) -> None:
    """Nothing is ready in the new instant yet."""
    queue.tally[0] = 0
    queue.tally[1] += 1


@njit(cache=True)
def sort_ready(queue: Queue) -> None:
    """Put the ready hops into the order of their keys (`keys[i]` is that of `ready[i]`), equal ones as they stood."""
    keys, places, hops = queue.spare
    n = queue.tally[0]
    size = 0
    for i in range(n):
        size = push(keys, places, hops, size, queue.keys[i], i, queue.ready[i])
    for i in range(n):
        queue.ready[i] = hops[0]
        size = pop(keys, places, hops, size)


@njit(cache=True)
def make_users_ready(machine: Machine, queue: Queue, hop: int) -> None:
    """A message has released the links of a hop: all hops over them can be tried."""
    for entry in range(machine.route_ptr[hop], machine.route_ptr[hop + 1]):
        link = machine.route_links[entry]
        make_ready(queue, machine.link_hops[machine.link_ptr[link] : machine.link_ptr[link + 1]])


@njit(cache=True)
def can_start(machine: Machine, links: Links, queue: Queue, hop: int, now_s: float, same_s: float) -> bool:
    """Whether all links of a hop have room now. If not, an event that is still to come will make the hop ready."""
    at_s, blocking = 0.0, -1
    for entry in range(machine.route_ptr[hop], machine.route_ptr[hop + 1]):
        link = machine.route_links[entry]
        room = machine.bandwidth[link] * RATE_SLACK - machine.rate[hop]
        free_s = _link_free_s(links.ends[link], links.rates[link], links.used[link], room) - machine.before_s[entry]
        if free_s > at_s:
            at_s, blocking = free_s, link
    if at_s <= now_s + same_s:
        return True
    # The release of the blocking link makes the hop ready, unless that event has passed or flows share the link.
    passed = links.release_s[blocking] <= now_s + same_s or machine.shared[blocking]
    if passed and at_s < queue.wake_s[hop]:
        queue.wake_s[hop] = at_s
        post(queue, at_s, WAKE, hop)
    return False


@njit(cache=True)
def start(
    machine: Machine, links: Links, queue: Queue, hop: int, message: int, num_bytes: float, now_s: float
) -> float:
    """Book a message on the links of its hop, and its events; returns when it arrives."""
    transfer_s = num_bytes / machine.rate[hop]
    busy_s = machine.overhead_s[hop] + transfer_s
    for entry in range(machine.route_ptr[hop], machine.route_ptr[hop + 1]):
        link = machine.route_links[entry]
        end_s, width = now_s + machine.before_s[entry] + busy_s, machine.bandwidth[link]
        flows, rates = links.ends[link], links.rates[link]
        links.used[link] = _reserve(flows, rates, links.used[link], width, end_s, machine.rate[hop])
        links.release_s[link] = max(links.release_s[link], now_s + busy_s)
    post(queue, now_s + machine.alpha_s[hop] + transfer_s, ARRIVAL, message)
    post(queue, now_s + busy_s, RELEASE, message)
    return float(now_s + machine.alpha_s[hop] + transfer_s)


@njit(cache=True)
def generator(seed: int) -> U64:
    """State of a xorshift generator."""
    random = np.array([np.uint64(seed) * np.uint64(2654435769) + np.uint64(88172645463325252)])
    for _ in range(8):
        draw(random)
    return random


@njit(cache=True)
def draw(random: U64) -> float:
    """The next number, in [0, 1), a multiple of 2^-20."""
    x = random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    random[0] = x
    return np.int64(x >> np.uint64(44)) * (1.0 / (1 << 20))


@njit(cache=True)
def shuffle(values: I64, n: int, random: U64) -> None:
    """Put the first n values into random order."""
    for i in range(n - 1, 0, -1):
        j = int(draw(random) * (i + 1))
        values[i], values[j] = values[j], values[i]
