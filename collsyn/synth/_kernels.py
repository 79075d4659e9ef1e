"""Compiled loops of list scheduling: earliest starts of messages in a given order on links that they share."""

import numpy as np
import numpy.typing as npt
from numba import njit

# Rates that add up to the bandwidth in decimal miss it by rounding in binary.
RATE_SLACK = 1.0 + 1e-12


@njit(cache=True)
def _link_free_s(ends: npt.NDArray[np.float64], rates: npt.NDArray[np.float64], used: int, room: float) -> float:
    """From when on a link has room (bytes/s) left over; its flows stand in descending order of their ends."""
    taken = 0.0
    for i in range(used):
        taken += rates[i]
        if taken > room:
            return float(ends[i])
    return 0.0


@njit(cache=True)
def _reserve(
    ends: npt.NDArray[np.float64],
    rates: npt.NDArray[np.float64],
    used: int,
    bandwidth: float,
    end: float,
    rate: float,
) -> int:
    """Add a flow; returns how many stay. Those behind a full link's worth of later ends can never matter again."""
    if used == len(ends):
        # Two flows that end first are held as one until the later of their ends: safe, and rarely needed.
        rates[used - 2] += rates[used - 1]
        used -= 1
    i = used
    while i > 0 and ends[i - 1] < end:
        ends[i], rates[i] = ends[i - 1], rates[i - 1]
        i -= 1
    ends[i], rates[i] = end, rate
    used += 1
    taken = 0.0
    for j in range(used):
        taken += rates[j]
        if taken * RATE_SLACK >= bandwidth:
            return j + 1
    return used


@njit(cache=True)
def earliest_starts(
    row_ptr: npt.NDArray[np.int64],
    src_key: npt.NDArray[np.int64],
    dst_key: npt.NDArray[np.int64],
    is_copy: npt.NDArray[np.bool_],
    num_keys: int,
    route: npt.NDArray[np.int32],
    duration_s: npt.NDArray[np.float64],
    busy_s: npt.NDArray[np.float64],
    reduce_s: npt.NDArray[np.float64],
    rate: npt.NDArray[np.float64],
    fixed_s: npt.NDArray[np.float64],
    route_ptr: npt.NDArray[np.int64],
    route_links: npt.NDArray[np.int32],
    before_s: npt.NDArray[np.float64],
    bandwidth: npt.NDArray[np.float64],
    weight: npt.NDArray[np.float64],
    flows_per_link: int,
) -> npt.NDArray[np.float64]:
    """Start of every message, taken in order; see collsyn.synth.timing.earliest_starts.

    Message m has rows row_ptr[m] : row_ptr[m + 1], each reading the value src_key and writing dst_key; it arrives
    duration_s after its start, loads each link of its route for busy_s (a byte like `weight` bytes of the link's
    bandwidth, by the entry of the routes), and is reduced reduce_s after arrival. A start in fixed_s (NaN: none) is
    kept. O(messages x (rows + links x flows)).
    """
    num_messages = len(route)
    start = np.zeros(num_messages)
    ready = np.zeros(num_keys)  # when all writes to a value so far are done
    copied = np.zeros(num_keys)  # when the last write that replaced it was done
    read = np.zeros(num_keys)  # when it was last sent
    ends = np.zeros((len(bandwidth), flows_per_link))
    rates = np.zeros((len(bandwidth), flows_per_link))
    used = np.zeros(len(bandwidth), np.int64)
    for m in range(num_messages):
        at = fixed_s[m]
        if np.isnan(at):
            at = 0.0
            for row in range(row_ptr[m], row_ptr[m + 1]):
                source, target = src_key[row], dst_key[row]
                at = max(at, ready[source], read[target])
                before = ready[target] if is_copy[row] else copied[target]
                at = max(at, before - duration_s[m])
            for entry in range(route_ptr[route[m]], route_ptr[route[m] + 1]):
                link = route_links[entry]
                room = bandwidth[link] * RATE_SLACK - rate[m] * weight[entry]
                at = max(at, _link_free_s(ends[link], rates[link], used[link], room) - before_s[entry])
        start[m] = at
        for entry in range(route_ptr[route[m]], route_ptr[route[m] + 1]):
            link = route_links[entry]
            end = at + before_s[entry] + busy_s[m]
            load = rate[m] * weight[entry]
            used[link] = _reserve(ends[link], rates[link], used[link], bandwidth[link], end, load)
        done = at + duration_s[m] + reduce_s[m]
        for row in range(row_ptr[m], row_ptr[m + 1]):
            source, target = src_key[row], dst_key[row]
            read[source] = max(read[source], at)
            ready[target] = max(ready[target], done)
            if is_copy[row]:
                copied[target] = max(copied[target], done)
    return start


@njit(cache=True)
def company_order(
    kind_ptr: npt.NDArray[np.int64],
    kind_chunks: npt.NDArray[np.int32],
    chunk_ptr: npt.NDArray[np.int64],
    chunk_messages: npt.NDArray[np.int64],
    message_ptr: npt.NDArray[np.int64],
    message_chunks: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """The chunks of kind after kind, each followed by the one of its kind, not yet taken, that is in most of its
    messages; see collsyn.synth.neighbours."""
    num_chunks = len(kind_chunks)
    kind = np.empty(num_chunks, np.int64)
    for k in range(len(kind_ptr) - 1):
        for at in range(kind_ptr[k], kind_ptr[k + 1]):
            kind[kind_chunks[at]] = k
    order = np.empty(num_chunks, np.int64)
    taken = np.zeros(num_chunks, np.bool_)
    shared = np.zeros(num_chunks, np.int64)
    touched = np.empty(num_chunks, np.int64)
    for k in range(len(kind_ptr) - 1):
        next_free = kind_ptr[k]
        for at in range(kind_ptr[k], kind_ptr[k + 1]):
            best = -1
            if at > 0:
                last, count = order[at - 1], 0
                for entry in range(chunk_ptr[last], chunk_ptr[last + 1]):
                    m = chunk_messages[entry]
                    for row in range(message_ptr[m], message_ptr[m + 1]):
                        chunk = message_chunks[row]
                        if kind[chunk] != k or taken[chunk]:
                            continue
                        if shared[chunk] == 0:
                            touched[count] = chunk
                            count += 1
                        shared[chunk] += 1
                for i in range(count):
                    chunk = touched[i]
                    if best < 0 or (-shared[chunk], chunk) < (-shared[best], best):
                        best = chunk
                for i in range(count):
                    shared[touched[i]] = 0
            if best < 0:
                while taken[kind_chunks[next_free]]:
                    next_free += 1
                best = kind_chunks[next_free]
            taken[best] = True
            order[at] = best
    return order
