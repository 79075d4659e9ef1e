"""Compiled matching for links of a few speeds: events in one queue a speed, each in the order in which it came."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from collsyn.synth.event_kernels import draw, generator, shuffle
from collsyn.synth.greedy_step_kernels import F64, I32, I64, U16, U64

U8 = npt.NDArray[np.uint8]

# A copy in the region that a link enters counts as many copies elsewhere.
REGION_WEIGHT = 1024


class Network(NamedTuple):
    """Links by end and by source, the speed of each; per speed how long a chunk occupies a link and when it arrives.

    `tail[link]`: about how many chunks the other links into its end bring while it carries one. `region[rank]` numbers
    parts that are fast inside.
    """

    src: I64
    dst: I64
    speed: I64
    busy_s: F64
    arrival_s: F64
    into: I64
    into_links: I64
    out_of: I64
    out_links: I64
    tail: I64
    region: I64


class Choice(NamedTuple):
    """How chunks are chosen.

    `samples[speed]`: of how many chunks, picked at random, a link takes the rarest (0: the first that came);
    `declines`: a link leaves alone a rank that the other links can serve by the time it would be through.
    """

    samples: I64
    declines: bool
    same_s: float
    seed: int


class Spread(NamedTuple):
    """What changes: see `greedy_step_kernels.Lockstep`; copies of each chunk in all and by region, held or coming."""

    bits: U64
    lists: U16
    got: I64
    missing: I64
    seen: I64
    free_s: F64
    idle: U8
    copies: I32
    regional: I32
    random: U64


class Log(NamedTuple):
    """Sends in the order of their starts, and for each the next one of its speed (-1: none)."""

    link: I32
    chunk: U16
    start_s: F64
    following: I32


class Queues(NamedTuple):
    """Per speed the first send whose link is not free yet, the first that has not arrived, and the last; -1: none."""

    release: I64
    arrival: I64
    last: I64


# Compiled code is slow in passing on structures of many arrays, so that small functions get only the arrays they use.


@njit(cache=True, nogil=True)
def lacks(bits: U64, rank: int, chunk: int) -> bool:
    """Whether a chunk is neither at a rank nor coming."""
    return bool(bits[rank, chunk >> 6] >> np.uint64(chunk & 63) & np.uint64(1) == 0)


@njit(cache=True, nogil=True)
def begin(net: Network, owner: I64, seed: int) -> Spread:
    """The state in which every chunk is at its owner only."""
    ranks, chunks = len(net.into) - 1, len(owner)
    state = Spread(
        np.zeros((ranks, (chunks + 63) // 64), np.uint64),
        np.empty((ranks, chunks), np.uint16),
        np.zeros(ranks, np.int64),
        np.full(ranks, chunks),
        np.zeros(len(net.src), np.int64),
        np.zeros(len(net.src)),
        np.ones(len(net.src), np.uint8),
        np.ones(chunks, np.int32),
        np.zeros((net.region.max() + 1, chunks), np.int32),
        generator(seed),
    )
    for chunk in range(chunks):
        rank = owner[chunk]
        state.bits[rank, chunk >> 6] |= np.uint64(1) << np.uint64(chunk & 63)
        state.lists[rank, state.got[rank]] = chunk
        state.got[rank] += 1
        state.missing[rank] -= 1
        state.regional[net.region[rank], chunk] += 1
    return state


@njit(cache=True, nogil=True)
def first_useful(lists: U16, bits: U64, source: int, rank: int, place: int, known: int) -> int:
    """The first place from `place` on in the list of a source, `known` long, of a chunk that a rank lacks."""
    while place < known and not lacks(bits, rank, int(np.int64(lists[source, place]))):
        place += 1
    return place


@njit(cache=True, nogil=True)
def rarest(state: Spread, source: int, rank: int, region: int, place: int, samples: int) -> int:
    """The rarest of some chunks in the list of a source from `place` on that a rank lacks, the one at `place` if equal.

    `region` is the one that the link enters (-1: none); copies in it count before those anywhere.
    """
    lists, known, best, least = state.lists, state.got[source], -1, 1 << 60
    few = known - place <= samples
    for i in range(known - place if few else samples):
        at = place + (i if few or i == 0 else int(draw(state.random) * (known - place)))
        chunk = int(np.int64(lists[source, at]))
        if lacks(state.bits, rank, chunk):
            score = int(np.int64(state.copies[chunk]))
            if region >= 0:
                score += int(np.int64(state.regional[region, chunk])) * REGION_WEIGHT
            if score < least:
                best, least = chunk, score
    return best


@njit(cache=True, nogil=True)
def others_suffice(net: Network, free_s: F64, missing: int, link: int, now_s: float, same_s: float) -> bool:
    """Whether the other links into the end of a link can bring all it lacks before this one would be through."""
    rank, own = net.dst[link], net.speed[link]
    through_s, could = now_s + net.arrival_s[own], 0
    for entry in range(net.into[rank], net.into[rank + 1]):
        other = net.into_links[entry]
        speed = net.speed[other]
        if other != link and net.busy_s[speed] <= net.busy_s[own]:
            left_s = through_s - max(free_s[other], now_s) - (net.arrival_s[speed] - net.busy_s[speed])
            could += max(0, int((left_s + same_s) / net.busy_s[speed]))
    return could >= missing


@njit(cache=True, nogil=True)
def next_instant(busy_s: F64, arrival_s: F64, start_s: F64, release: I64, arrival: I64) -> float:
    """When the next link is free or the next chunk arrives; infinite if nothing is under way."""
    next_s = np.inf
    for speed in range(len(busy_s)):
        if release[speed] >= 0:
            next_s = min(next_s, start_s[release[speed]] + busy_s[speed])
        if arrival[speed] >= 0:
            next_s = min(next_s, start_s[arrival[speed]] + arrival_s[speed])
    return float(next_s)


@njit(cache=True, nogil=True)
def add_once(link: int, marks: U8, ready: I64, size: int) -> int:
    """Add a link to those to be tried if it is not among them; returns their number."""
    if marks[link]:
        return size
    marks[link], ready[size] = 1, link
    return size + 1


@njit(cache=True, nogil=True)
def run(
    net: Network, choice: Choice, state: Spread, queues: Queues, log: Log, ready: I64, marks: U8
) -> tuple[int, float]:
    """Instant after instant until all is sent; returns how much was sent, and when all of it has arrived."""
    src, dst, link_speed, busy_s, arrival_s = net.src, net.dst, net.speed, net.busy_s, net.arrival_s
    bits, lists, got, missing, seen = state.bits, state.lists, state.got, state.missing, state.seen
    free_s, idle, copies, regional = state.free_s, state.idle, state.copies, state.regional
    sent_over, sent, start_s, following = log.link, log.chunk, log.start_s, log.following
    release, arrival, last = queues.release, queues.arrival, queues.last
    out_of, out_links, region, tail = net.out_of, net.out_links, net.region, net.tail
    total, size, sends, now_s, finish_s, declines = len(sent_over), len(ready), 0, 0.0, 0.0, choice.declines
    while sends < total:
        shuffle(ready, size, state.random)
        for i in range(size):
            link = ready[i]
            source, rank, speed = src[link], dst[link], link_speed[link]
            if missing[rank] == 0:
                continue
            near_end = declines and missing[rank] <= tail[link]
            if near_end and others_suffice(net, free_s, missing[rank], link, now_s, choice.same_s):
                continue
            place = first_useful(lists, bits, source, rank, seen[link], got[source])
            seen[link] = place
            if place == got[source]:
                continue
            chunk = int(np.int64(lists[source, place]))
            if choice.samples[speed] > 0:
                entered = region[rank] if region[rank] != region[source] else -1
                chunk = rarest(state, source, rank, entered, place, choice.samples[speed])
            bits[rank, chunk >> 6] |= np.uint64(1) << np.uint64(chunk & 63)
            missing[rank] -= 1
            copies[chunk] += 1
            regional[region[rank], chunk] += 1
            sent_over[sends], sent[sends], start_s[sends], following[sends] = link, chunk, now_s, -1
            if last[speed] >= 0:
                following[last[speed]] = sends
            last[speed] = sends
            if release[speed] < 0:
                release[speed] = sends
            if arrival[speed] < 0:
                arrival[speed] = sends
            free_s[link], idle[link] = now_s + busy_s[speed], 0
            finish_s = max(finish_s, now_s + arrival_s[speed])
            sends += 1
        until_s = next_instant(busy_s, arrival_s, start_s, release, arrival) + choice.same_s
        if until_s == np.inf:
            if not declines:
                break
            # Nothing is under way: what is left must come over links that have declined.
            declines, size = False, len(ready)
            ready[:] = np.arange(len(ready))
            continue
        size = 0
        for speed in range(len(busy_s)):
            send = release[speed]
            while send >= 0 and start_s[send] + busy_s[speed] <= until_s:
                now_s = max(now_s, start_s[send] + busy_s[speed])
                idle[sent_over[send]] = 1
                size = add_once(sent_over[send], marks, ready, size)
                send = following[send]
            release[speed] = send
        for speed in range(len(busy_s)):
            send = arrival[speed]
            while send >= 0 and start_s[send] + arrival_s[speed] <= until_s:
                now_s = max(now_s, start_s[send] + arrival_s[speed])
                rank = dst[sent_over[send]]
                lists[rank, got[rank]] = sent[send]
                got[rank] += 1
                for entry in range(out_of[rank], out_of[rank + 1]):
                    if idle[out_links[entry]]:
                        size = add_once(out_links[entry], marks, ready, size)
                send = following[send]
            arrival[speed] = send
        for i in range(size):
            marks[ready[i]] = 0
    return sends, finish_s


@njit(cache=True, nogil=True)
def match_rates(net: Network, owner: I64, choice: Choice) -> tuple[int, float, Log]:
    """Spread all chunks, each from its owner to all ranks; returns how many deliveries are left, finish, and sends.

    Chunks are of one length. Some are left over only where a rank is cut off. Links of one speed are served in the
    order of their events, so that no heap is needed.
    O(links x chunks + sends x (speeds + samples + links of a rank)).
    """
    state = begin(net, owner, choice.seed)
    left, speeds = state.missing.sum(), len(net.busy_s)
    log = Log(np.empty(left, np.int32), np.empty(left, np.uint16), np.empty(left), np.empty(left, np.int32))
    queues = Queues(np.full(speeds, -1), np.full(speeds, -1), np.full(speeds, -1))
    ready, marks = np.arange(len(net.src)), np.zeros(len(net.src), np.uint8)
    sends, finish_s = run(net, choice, state, queues, log, ready, marks)
    done = Log(log.link[:sends], log.chunk[:sends], log.start_s[:sends], log.following[:sends])
    return left - sends, finish_s, done


@njit(cache=True, nogil=True)
def order_of_sends(start_s: F64, chunk: U16, link: I32, links: int, chunks: int) -> I64:
    """Numbers of sends, given by start, in the order of (start, chunk, link). O(sends + links + chunks)."""
    first = _stable(np.arange(len(link)), link, links)
    second = _stable(first, chunk, chunks)
    group, groups = np.zeros(len(link), np.int64), 0
    for i in range(1, len(link)):
        groups += int(start_s[i] != start_s[i - 1])
        group[i] = groups
    return _stable(second, group, groups + 1)


@njit(cache=True, nogil=True)
def _stable(order: I64, keys: npt.NDArray[np.integer], most: int) -> I64:
    """Some numbers sorted by their keys, 0 .. most - 1, equal ones as they stood."""
    places = np.zeros(most + 1, np.int64)
    for i in order:
        places[np.int64(keys[i]) + 1] += 1
    for key in range(most):
        places[key + 1] += places[key]
    result = np.empty(len(order), np.int64)
    for i in order:
        key = int(np.int64(keys[i]))
        result[places[key]] = i
        places[key] += 1
    return result
