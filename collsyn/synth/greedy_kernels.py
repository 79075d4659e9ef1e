"""Compiled loops of the greedy matching: an event queue over messages, and the choice of chunks for a free hop."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from collsyn.synth._kernels import RATE_SLACK, _link_free_s, _reserve

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
U8 = npt.NDArray[np.uint8]

# Status of a chunk at a rank; CLOSED is neither wanted nor passed on there.
OPEN, COMING, HELD, CLOSED = 0, 1, 2, 3

# Kinds of events; the code of one is kind << KIND_BIT | number of the message (of the hop for WAKE).
ARRIVAL, RELEASE, WAKE = 0, 1, 2
KIND_BIT = 40

# Weights of a candidate's score: copies in the regions that the hop enters, coarse before fine, then copies anywhere.
REGION_WEIGHT, COPIES_WEIGHT = 1024.0, 65536.0

# Trying a hop costs about as much as looking at this many chunks.
LOOKS_PER_HOP = 5

# A hop is slow if another one into the same rank is faster by this factor.
SLOWER = 1.5

# How many messages that have just started towards a rank are looked at for a swap.
MAX_FRESH = 64


class Machine(NamedTuple):
    """Hops and the links they share, as plain arrays.

    Per hop: `src`, `dst`, `rate` (bytes/s), `alpha_s`, `overhead_s`, `batch` (most chunks in a message), its part of
    `route_links` (with the alphas `before_s` each link) from `route_ptr`, and the regions it enters, coarse to fine, in
    `regions` from `region_ptr`. Per link: `bandwidth`, whether flows share it, the hops over it. Per rank: hops out of
    it, the regions it is in, `in_rate` (bytes/s that can enter) and `best_rate` (of a hop into it). `precedence` orders
    the hops that can start in one instant.
    """

    src: I32
    dst: I32
    rate: F64
    alpha_s: F64
    overhead_s: F64
    batch: I64
    route_ptr: I64
    route_links: I32
    before_s: F64
    region_ptr: I64
    regions: I64
    bandwidth: F64
    shared: U8
    link_ptr: I64
    link_hops: I64
    out_ptr: I64
    out_hops: I32
    member_ptr: I64
    member: I64
    in_rate: F64
    best_rate: F64
    precedence: F64
    num_regions: int
    flows: int


class Task(NamedTuple):
    """What is to be spread: bytes of every chunk, and rank x chunk who has it and who shall get it."""

    chunk_bytes: F64
    have: U8
    want: U8


class Rules(NamedTuple):
    """How candidates are chosen.

    `window`: candidates looked at for a hop; `near`: weight of the dst's neighbours that lack the chunk; `slack`: a slow hop
    takes what its region has already only if it arrives within slack x the time the dst still needs (0: always);
    `limit_s`: nothing may arrive later; `by_precedence`: hops into new regions choose first, then fast ones; `same_s`: events this close are one instant.
    """

    window: int
    near: float
    slack: float
    limit_s: float
    by_precedence: bool
    same_s: float
    seed: int


class State(NamedTuple):
    """What changes while matching.

    Rank x chunk `status`, `arrival_s` (only kept with a bias), chunks that a rank holds in order of arrival (`held`,
    `num_held`), how much of that list a hop need not look at again (`seen`), copies of every chunk in all and per region
    (held and coming), chunks that a rank wants and nobody brings, their bytes, and the longest time that any rank takes to
    receive its own (`longest_s`), flows on every link, the random state, and the looks taken.
    """

    status: U8
    arrival_s: F64
    held: I32
    num_held: I64
    seen: I64
    copies: I32
    region_copies: I32
    wanted: I64
    missing: F64
    longest_s: F64
    ends: F64
    rates: F64
    used: I64
    random: npt.NDArray[np.uint64]
    looks: I64


class Log(NamedTuple):
    """Messages in the order of their starts: hop, start, and the chunks `rows[ptr[m] : ptr[m + 1]]`."""

    hop: I32
    start_s: F64
    ptr: I64
    rows: I32


@njit(cache=True)
def push(times: F64, serials: I64, codes: I64, size: int, time_s: float, serial: int, code: int) -> int:
    """Put an event into a binary heap ordered by (time, serial number); returns the new size."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if times[parent] <= time_s:
            break
        times[i], serials[i], codes[i] = times[parent], serials[parent], codes[parent]
        i = parent
    times[i], serials[i], codes[i] = time_s, serial, code
    return size + 1


@njit(cache=True)
def pop(times: F64, serials: I64, codes: I64, size: int) -> int:
    """Take the first event (entry 0) out of the heap; returns the new size."""
    size -= 1
    time_s, serial, code = times[size], serials[size], codes[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            times[right] < times[child] or (times[right] == times[child] and serials[right] < serials[child])
        ):
            child = right
        if time_s < times[child] or (time_s == times[child] and serial < serials[child]):
            break
        times[i], serials[i], codes[i] = times[child], serials[child], codes[child]
        i = child
    times[i], serials[i], codes[i] = time_s, serial, code
    return size


@njit(cache=True)
def draw(random: npt.NDArray[np.uint64]) -> float:
    """The next number of a xorshift generator, in [0, 1)."""
    x = random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    random[0] = x
    return np.int64(x >> np.uint64(44)) * (1.0 / (1 << 20))


@njit(cache=True)
def arrange(hops: I64, n: int, machine: Machine, rules: Rules, random: npt.NDArray[np.uint64]) -> None:
    """Put the first n hops into random order, the fast ones first if the rules say so."""
    for i in range(n - 1, 0, -1):
        j = int(draw(random) * (i + 1))
        hops[i], hops[j] = hops[j], hops[i]
    if rules.by_precedence:
        hops[:n] = hops[:n][np.argsort(machine.precedence[hops[:n]], kind="mergesort")]


@njit(cache=True)
def startable_s(machine: Machine, state: State, hop: int) -> tuple[float, int]:
    """Earliest time at which all links of a hop have room, and the link that has it last (-1: all have it now)."""
    at_s, blocking = 0.0, -1
    for entry in range(machine.route_ptr[hop], machine.route_ptr[hop + 1]):
        link = machine.route_links[entry]
        room = machine.bandwidth[link] * RATE_SLACK - machine.rate[hop]
        free_s = _link_free_s(state.ends[link], state.rates[link], state.used[link], room) - machine.before_s[entry]
        if free_s > at_s:
            at_s, blocking = free_s, link
    return at_s, blocking


@njit(cache=True)
def rarity(machine: Machine, state: State, hop: int, chunk: int) -> float:
    """Copies of a chunk, those in the regions that the hop enters (coarse first) before those anywhere."""
    score = 0.0
    for q in range(machine.region_ptr[hop], machine.region_ptr[hop + 1]):
        score = score * REGION_WEIGHT + state.region_copies[machine.regions[q], chunk]
    return score * COPIES_WEIGHT + state.copies[chunk]


@njit(cache=True)
def neighbours_need(machine: Machine, state: State, rank: int, chunk: int) -> float:
    """How much the neighbours of a rank need a chunk: each counts by its share of the longest time still needed."""
    need = 0.0
    for q in range(machine.out_ptr[rank], machine.out_ptr[rank + 1]):
        other = machine.dst[machine.out_hops[q]]
        if state.status[other, chunk] == OPEN:
            need += state.missing[other] / machine.in_rate[other] / state.longest_s[0]
    return need


@njit(cache=True)
def choose(machine: Machine, task: Task, rules: Rules, bias: F64, state: State, hop: int, now_s: float, spent: float) -> int:
    """The best chunk for a hop to carry now, or -1; `spent` are the bytes of this message so far.

    Candidates stand in the order in which the source got them; those before `seen[hop]` can never be of use again.
    """
    u, v = machine.src[hop], machine.dst[hop]
    enters = machine.region_ptr[hop + 1] > machine.region_ptr[hop]
    first_region = machine.regions[machine.region_ptr[hop]] if enters else 0
    biased = bias.size > 0
    slow = machine.rate[hop] * SLOWER < machine.best_rate[v]
    soon_s = rules.limit_s
    if rules.slack > 0.0:
        soon_s = min(soon_s, now_s + rules.slack * state.missing[v] / machine.in_rate[v])
    best, best_score, found, at_head = -1, 0.0, 0, True
    for i in range(state.seen[hop], state.num_held[u]):
        chunk = state.held[u, i]
        state.looks[0] += 1
        if state.status[v, chunk] != OPEN:
            if at_head:
                state.seen[hop] = i + 1
            continue
        at_head = False
        arrival_s = now_s + machine.alpha_s[hop] + (spent + task.chunk_bytes[chunk]) / machine.rate[hop]
        known = state.region_copies[first_region, chunk] > 0 if enters else slow
        if arrival_s > (soon_s if known else rules.limit_s):
            continue
        score = rarity(machine, state, hop, chunk) + draw(state.random)
        if rules.near > 0.0:
            score -= rules.near * neighbours_need(machine, state, v, chunk)
        if biased:
            score -= bias[v, chunk]
        if best < 0 or score < best_score:
            best, best_score = chunk, score
        found += 1
        if found >= rules.window:
            break
    if biased and best >= 0 and better_soon(machine, task, rules, bias, state, hop, now_s, best_score):
        return -1
    return best


@njit(cache=True)
def better_soon(
    machine: Machine, task: Task, rules: Rules, bias: F64, state: State, hop: int, now_s: float, score: float
) -> bool:
    """Whether a chunk that is wanted much more comes to the source before this message would be through."""
    u, v = machine.src[hop], machine.dst[hop]
    state.looks[0] += len(state.copies) // 4
    for chunk in range(len(state.copies)):
        if state.status[u, chunk] != COMING or state.status[v, chunk] != OPEN:
            continue
        wait_s = state.arrival_s[u, chunk] - now_s
        transfer_s = task.chunk_bytes[chunk] / machine.rate[hop]
        in_time = now_s + wait_s + machine.alpha_s[hop] + transfer_s <= rules.limit_s
        if in_time and wait_s < 0.99 * transfer_s and rarity(machine, state, hop, chunk) - bias[v, chunk] < score - 2.0:
            return True
    return False


@njit(cache=True)
def want(task: Task, state: State, rank: int, chunk: int) -> None:
    """Book that a rank wants a chunk."""
    state.wanted[rank] += 1
    state.missing[rank] += task.chunk_bytes[chunk]


@njit(cache=True)
def take(machine: Machine, task: Task, state: State, rank: int, chunk: int) -> None:
    """Book that a chunk comes to a rank."""
    state.status[rank, chunk] = COMING
    state.copies[chunk] += 1
    state.wanted[rank] -= 1
    state.missing[rank] -= task.chunk_bytes[chunk]
    for q in range(machine.member_ptr[rank], machine.member_ptr[rank + 1]):
        state.region_copies[machine.member[q], chunk] += 1


@njit(cache=True)
def swap_in(
    machine: Machine, task: Task, rules: Rules, bias: F64, state: State, log: Log, hop: int, now_s: float, fresh: I64
) -> int:
    """A chunk for a hop that has nothing of its own to bring: that of a message which starts now and can change to another.

    `fresh` are the messages that have started towards the same rank in this instant. The other message gets its new
    chunk here, so that one more link is in use (an augmenting path of length two). Returns -1 if there is none.
    """
    u, v = machine.src[hop], machine.dst[hop]
    for m in fresh:
        chunk, other = log.rows[log.ptr[m]], log.hop[m]
        if log.ptr[m + 1] - log.ptr[m] != 1 or state.status[u, chunk] != HELD:
            continue
        if now_s + machine.alpha_s[hop] + task.chunk_bytes[chunk] / machine.rate[hop] > rules.limit_s:
            continue
        another = choose(machine, task, rules, bias, state, other, now_s, 0.0)
        if another >= 0 and task.chunk_bytes[another] == task.chunk_bytes[chunk]:
            take(machine, task, state, v, another)
            if bias.size > 0:
                state.arrival_s[v, another] = state.arrival_s[v, chunk]
            log.rows[log.ptr[m]] = another
            return int(chunk)
    return -1


@njit(cache=True)
def begin(machine: Machine, task: Task, rules: Rules, biased: bool) -> State:
    """The state before anything is sent."""
    num_ranks, num_chunks = task.have.shape
    num_links = len(machine.bandwidth)
    state = State(
        np.zeros((num_ranks, num_chunks), np.uint8),
        np.zeros((num_ranks, num_chunks if biased else 0)),
        np.zeros((num_ranks, num_chunks), np.int32),
        np.zeros(num_ranks, np.int64),
        np.zeros(len(machine.src), np.int64),
        np.zeros(num_chunks, np.int32),
        np.zeros((machine.num_regions, num_chunks), np.int32),
        np.zeros(num_ranks, np.int64),
        np.zeros(num_ranks),
        np.zeros(1),
        np.zeros((num_links, machine.flows)),
        np.zeros((num_links, machine.flows)),
        np.zeros(num_links, np.int64),
        np.array([np.uint64(rules.seed) * np.uint64(2654435769) + np.uint64(88172645463325252)]),
        np.zeros(1, np.int64),
    )
    for _ in range(8):
        draw(state.random)
    for rank in range(num_ranks):
        for chunk in range(num_chunks):
            if task.have[rank, chunk]:
                want(task, state, rank, chunk)
                take(machine, task, state, rank, chunk)
                hold(state, rank, chunk)
            elif task.want[rank, chunk]:
                want(task, state, rank, chunk)
            else:
                state.status[rank, chunk] = CLOSED
    return state


@njit(cache=True)
def hold(state: State, rank: int, chunk: int) -> None:
    """Book that a chunk has arrived."""
    state.status[rank, chunk] = HELD
    state.held[rank, state.num_held[rank]] = chunk
    state.num_held[rank] += 1


@njit(cache=True)
def mark_ready(hops: npt.NDArray[np.integer], mark: I64, group: int, ready: I64, num_ready: int) -> int:
    """Add hops to the list of those to try in this instant, each once; returns its new length."""
    for hop in hops:
        if mark[hop] != group:
            mark[hop] = group
            ready[num_ready] = hop
            num_ready += 1
    return num_ready


@njit(cache=True)
def match(machine: Machine, task: Task, rules: Rules, bias: F64) -> tuple[int, float, Log, int]:
    """Spread all chunks; returns how many deliveries are left over, the finish, the messages, and the looks it took.

    `bias[rank, chunk]` (or an empty array) counts copies off the rarity of a chunk for that rank. An event is an arrival, the
    release of a message's links, or the waking of a hop; all events of one instant are taken together, then the hops that
    they concern are tried in turn. O(deliveries x (hops per link + chunks looked at)).
    """
    num_hops = len(machine.src)
    state = begin(machine, task, rules, bias.size > 0)
    left = int((task.want & (1 - task.have)).sum())
    log = Log(np.zeros(left, np.int32), np.zeros(left), np.zeros(left + 1, np.int64), np.zeros(left, np.int32))
    num_messages, serial, size, finish_s, now_s = 0, 0, 0, 0.0, 0.0
    capacity = 4 * num_hops + 1024
    times, serials, codes = np.zeros(capacity), np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)
    wake_s = np.full(num_hops, np.inf)
    release_s = np.full(len(machine.bandwidth), -1.0)
    ready, num_ready, mark, group = np.arange(num_hops), num_hops, np.zeros(num_hops, np.int64), 0
    fresh = np.zeros((len(task.have), MAX_FRESH), np.int64)
    num_fresh, fresh_in = np.zeros(len(task.have), np.int64), np.full(len(task.have), -1)
    while left > 0:
        state.longest_s[0] = (state.missing / machine.in_rate).max()
        arrange(ready, num_ready, machine, rules, state.random)
        for hop in ready[:num_ready]:
            v = machine.dst[hop]
            state.looks[0] += LOOKS_PER_HOP
            if state.wanted[v] == 0:
                continue
            at_s, blocking = startable_s(machine, state, hop)
            if at_s > now_s + rules.same_s:
                # The release of the blocking link will wake this hop, unless that event has passed.
                passed = release_s[blocking] <= now_s + rules.same_s or machine.shared[blocking]
                if passed and at_s < wake_s[hop]:
                    wake_s[hop] = at_s
                    size = push(times, serials, codes, size, at_s, serial, (WAKE << KIND_BIT) + hop)
                    serial += 1
                continue
            m, first, n, num_bytes = num_messages, log.ptr[num_messages], 0, 0.0
            while n < machine.batch[hop]:
                chunk = choose(machine, task, rules, bias, state, hop, now_s, num_bytes)
                if chunk < 0:
                    break
                take(machine, task, state, v, chunk)
                log.rows[first + n] = chunk
                num_bytes += task.chunk_bytes[chunk]
                n += 1
            if n == 0 and fresh_in[v] == group:
                chunk = swap_in(machine, task, rules, bias, state, log, hop, now_s, fresh[v, : num_fresh[v]])
                if chunk >= 0:
                    log.rows[first] = chunk
                    num_bytes = task.chunk_bytes[chunk]
                    n = 1
            if n == 0:
                continue
            log.hop[m], log.start_s[m], log.ptr[m + 1] = hop, now_s, first + n
            num_messages += 1
            left -= n
            if fresh_in[v] != group:
                fresh_in[v], num_fresh[v] = group, 0
            if num_fresh[v] < MAX_FRESH:
                fresh[v, num_fresh[v]] = m
                num_fresh[v] += 1
            busy_s = machine.overhead_s[hop] + num_bytes / machine.rate[hop]
            arrival_s = now_s + machine.alpha_s[hop] + num_bytes / machine.rate[hop]
            finish_s = max(finish_s, arrival_s)
            if bias.size > 0:
                for row in range(first, first + n):
                    state.arrival_s[v, log.rows[row]] = arrival_s
            for entry in range(machine.route_ptr[hop], machine.route_ptr[hop + 1]):
                link = machine.route_links[entry]
                end_s, width = now_s + machine.before_s[entry] + busy_s, machine.bandwidth[link]
                state.used[link] = _reserve(
                    state.ends[link], state.rates[link], state.used[link], width, end_s, machine.rate[hop]
                )
                release_s[link] = max(release_s[link], now_s + busy_s)
            if size + 2 + num_hops > len(times):
                times = np.append(times, np.zeros(len(times)))
                serials = np.append(serials, np.zeros(len(serials), np.int64))
                codes = np.append(codes, np.zeros(len(codes), np.int64))
            size = push(times, serials, codes, size, arrival_s, serial, (ARRIVAL << KIND_BIT) + m)
            size = push(times, serials, codes, size, now_s + busy_s, serial + 1, (RELEASE << KIND_BIT) + m)
            serial += 2
        if size == 0:
            break
        group += 1
        num_ready = 0
        until_s = times[0] + rules.same_s
        while size > 0 and times[0] <= until_s:
            now_s = times[0]
            kind, which = codes[0] >> KIND_BIT, codes[0] & ((1 << KIND_BIT) - 1)
            size = pop(times, serials, codes, size)
            if kind == WAKE:
                wake_s[which] = np.inf
                ready[num_ready] = which
                num_ready += mark[which] != group
                mark[which] = group
                continue
            hop = log.hop[which]
            if kind == ARRIVAL:
                v = machine.dst[hop]
                for row in range(log.ptr[which], log.ptr[which + 1]):
                    hold(state, v, log.rows[row])
                out = machine.out_hops[machine.out_ptr[v] : machine.out_ptr[v + 1]]
                num_ready = mark_ready(out, mark, group, ready, num_ready)
                continue
            for entry in range(machine.route_ptr[hop], machine.route_ptr[hop + 1]):
                link = machine.route_links[entry]
                users = machine.link_hops[machine.link_ptr[link] : machine.link_ptr[link + 1]]
                num_ready = mark_ready(users, mark, group, ready, num_ready)
    done = log.ptr[num_messages]
    kept = Log(log.hop[:num_messages], log.start_s[:num_messages], log.ptr[: num_messages + 1], log.rows[:done])
    return left, finish_s, kept, state.looks[0]


@njit(cache=True)
def blame(machine: Machine, task: Task, log: Log, left: int, finish_s: float, bias: F64, step: float, decay: float) -> None:
    """Raise the bias of what made a run late, let the rest fade.

    Blamed are the deliveries that were left over, or the last ones to arrive and all deliveries that they came from.
    """
    num_ranks, num_chunks = task.have.shape
    bias *= decay
    brought = np.full((num_ranks, num_chunks), -1)
    for m in range(len(log.hop)):
        for row in range(log.ptr[m], log.ptr[m + 1]):
            brought[machine.dst[log.hop[m]], log.rows[row]] = m
    if left > 0:
        for rank in range(num_ranks):
            for chunk in range(num_chunks):
                if task.want[rank, chunk] and not task.have[rank, chunk] and brought[rank, chunk] < 0:
                    bias[rank, chunk] += step
        return
    blamed = np.zeros((num_ranks, num_chunks), np.uint8)
    for m in range(len(log.hop)):
        hop = log.hop[m]
        num_bytes = 0.0
        for row in range(log.ptr[m], log.ptr[m + 1]):
            num_bytes += task.chunk_bytes[log.rows[row]]
        if log.start_s[m] + machine.alpha_s[hop] + num_bytes / machine.rate[hop] < 0.999 * finish_s:
            continue
        for row in range(log.ptr[m], log.ptr[m + 1]):
            chunk, rank = log.rows[row], machine.dst[hop]
            while brought[rank, chunk] >= 0 and not blamed[rank, chunk]:
                blamed[rank, chunk] = 1
                bias[rank, chunk] += step
                rank = machine.src[log.hop[brought[rank, chunk]]]
