"""Compiled loops of the greedy matching: which chunks a free hop carries, and what made a run late."""

from typing import NamedTuple

import numpy as np
from numba import njit

from collsyn.synth.event_kernels import (
    F64,
    I32,
    I64,
    RELEASE,
    U8,
    U64,
    WAKE,
    Machine,
    Queue,
    begin_instant,
    can_start,
    draw,
    empty_queue,
    free_links,
    generator,
    make_ready,
    make_users_ready,
    next_event,
    shuffle,
    sort_ready,
    start,
)

# Status of a chunk at a rank; CLOSED is neither wanted nor passed on there.
OPEN, COMING, HELD, CLOSED = 0, 1, 2, 3

# Weights of a candidate's score: copies in the regions that the hop enters, coarse before fine, then copies anywhere.
REGION_WEIGHT, COPIES_WEIGHT = 1024.0, 65536.0

# Trying a hop costs about as much as looking at this many chunks.
LOOKS_PER_HOP = 20

# A hop is slow if another one into the same rank is faster by this factor.
SLOWER = 1.5

# How many messages that have just started towards a rank are looked at for a swap.
MAX_FRESH = 64


class Task(NamedTuple):
    """What is to be spread: bytes of every chunk, and rank x chunk who has it and who shall get it."""

    chunk_bytes: F64
    have: U8
    want: U8


class Rules(NamedTuple):
    """How candidates are chosen.

    `window`: candidates looked at for a hop; `near`: weight of the neighbours of its end that lack the chunk; `slack`:
    a slow hop takes what can come to its end otherwise only if it arrives within slack x the time in which the end
    can receive the rest (0: always); `limit_s`: nothing may arrive later; `by_precedence`: hops into new regions choose
    first, then fast ones; `same_s`: events this close are one instant.
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

    Rank x chunk: `status`, and `arrival_s` (only kept with a bias). Per rank: the chunks it holds in order of arrival
    (`held`, `num_held`), how many it wants that nobody brings (`wanted`) and their bytes (`missing`); `longest_s` is
    the longest time that any rank takes to receive its own. Per hop: how much of its source's list it need not look at
    again (`seen`). Per chunk: copies in all and per region, held and coming. `relaxed`: slow hops take anything.
    """

    status: U8
    arrival_s: F64
    held: I64
    num_held: I64
    seen: I64
    copies: I32
    region_copies: I32
    wanted: I64
    missing: F64
    longest_s: F64
    random: U64
    relaxed: U8
    looks: I64


class Log(NamedTuple):
    """Messages in the order of their starts: hop, start, and the chunks `rows[ptr[m] : ptr[m + 1]]`."""

    hop: I64
    start_s: F64
    ptr: I64
    rows: I64


@njit(cache=True)
def rarity(machine: Machine, state: State, hop: int, chunk: int) -> float:
    """Copies of a chunk, those in the regions that the hop enters (coarse first) before those anywhere."""
    score = 0.0
    for q in range(machine.region_ptr[hop], machine.region_ptr[hop + 1]):
        score = score * REGION_WEIGHT + state.region_copies[machine.regions[q], chunk]
    return float(score * COPIES_WEIGHT + state.copies[chunk])


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
def choose(
    machine: Machine, task: Task, rules: Rules, bias: F64, state: State, hop: int, now_s: float, spent: float
) -> int:
    """The best chunk for a hop to carry now, or -1; `spent` are the bytes of this message so far.

    Candidates stand in the order in which the source got them; those before `seen[hop]` can never be of use again.
    """
    u, v = machine.src[hop], machine.dst[hop]
    enters = machine.region_ptr[hop + 1] > machine.region_ptr[hop]
    first_region = machine.regions[machine.region_ptr[hop]] if enters else 0
    biased = bias.size > 0
    slow = machine.rate[hop] * SLOWER < machine.best_rate[v]
    soon_s = rules.limit_s
    if rules.slack > 0.0 and not state.relaxed[0]:
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
    machine: Machine,
    task: Task,
    rules: Rules,
    bias: F64,
    state: State,
    log: Log,
    m: int,
    hop: int,
    now_s: float,
    others: I64,
) -> float:
    """Fill message m with the chunk of one that starts now and can change to another; returns its bytes, 0 if none can.

    `others` are the messages that have started towards the same rank in this instant. The other one gets its new chunk
    here, so that one more link is in use (an augmenting path of length two).
    """
    for other in others:
        chunk, its_hop = log.rows[log.ptr[other]], log.hop[other]
        num_bytes = task.chunk_bytes[chunk]
        if log.ptr[other + 1] - log.ptr[other] != 1 or state.status[machine.src[hop], chunk] != HELD:
            continue
        if now_s + machine.alpha_s[hop] + num_bytes / machine.rate[hop] > rules.limit_s:
            continue
        another = choose(machine, task, rules, bias, state, its_hop, now_s, 0.0)
        if another >= 0 and task.chunk_bytes[another] == num_bytes:
            rank = machine.dst[hop]
            take(machine, task, state, rank, another)
            if bias.size > 0:
                state.arrival_s[rank, another] = state.arrival_s[rank, chunk]
            log.rows[log.ptr[other]] = another
            log.rows[log.ptr[m]], log.ptr[m + 1] = chunk, log.ptr[m] + 1
            return float(num_bytes)
    return 0.0


@njit(cache=True)
def begin(machine: Machine, task: Task, rules: Rules, biased: bool) -> State:
    """The state before anything is sent."""
    num_ranks, num_chunks = task.have.shape
    state = State(
        np.zeros((num_ranks, num_chunks), np.uint8),
        np.zeros((num_ranks, num_chunks if biased else 0)),
        np.zeros((num_ranks, num_chunks), np.int64),
        np.zeros(num_ranks, np.int64),
        np.zeros(len(machine.src), np.int64),
        np.zeros(num_chunks, np.int32),
        np.zeros((machine.num_regions, num_chunks), np.int32),
        np.zeros(num_ranks, np.int64),
        np.zeros(num_ranks),
        np.zeros(1),
        generator(rules.seed),
        np.zeros(1, np.uint8),
        np.zeros(1, np.int64),
    )
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
def fill(
    machine: Machine, task: Task, rules: Rules, bias: F64, state: State, log: Log, m: int, hop: int, now_s: float
) -> float:
    """Choose the chunks of message m and write them to the log; returns their bytes, 0 if there are none."""
    first, n, num_bytes = log.ptr[m], 0, 0.0
    while n < machine.batch[hop]:
        chunk = choose(machine, task, rules, bias, state, hop, now_s, num_bytes)
        if chunk < 0:
            break
        take(machine, task, state, machine.dst[hop], chunk)
        log.rows[first + n] = chunk
        num_bytes += task.chunk_bytes[chunk]
        n += 1
    log.hop[m], log.start_s[m], log.ptr[m + 1] = hop, now_s, first + n
    return num_bytes


@njit(cache=True)
def advance(machine: Machine, queue: Queue, state: State, log: Log, same_s: float) -> float:
    """Take all events of the next instant, and list the hops that they concern; returns the time."""
    begin_instant(queue)
    until_s = queue.times[0] + same_s
    now_s = 0.0
    while queue.state[0] > 0 and queue.times[0] <= until_s:
        now_s, kind, number = next_event(queue)
        if kind == WAKE:
            queue.wake_s[number] = np.inf
            make_ready(queue, np.array([number]))
        elif kind == RELEASE:
            make_users_ready(machine, queue, log.hop[number])
        else:
            rank = machine.dst[log.hop[number]]
            for row in range(log.ptr[number], log.ptr[number + 1]):
                hold(state, rank, log.rows[row])
            make_ready(queue, machine.out_hops[machine.out_ptr[rank] : machine.out_ptr[rank + 1]])
    return now_s


@njit(cache=True)
def arrange(machine: Machine, queue: Queue, rules: Rules, state: State) -> None:
    """Put the ready hops into random order, or by precedence and random where equal."""
    n = queue.tally[0]
    shuffle(queue.ready, n, state.random)
    if rules.by_precedence:
        for i in range(n):
            queue.keys[i] = machine.precedence[queue.ready[i]]
        sort_ready(queue)


@njit(cache=True)
def longest_need_s(machine: Machine, state: State) -> float:
    """The longest time in which any rank can receive what it wants and nobody brings."""
    longest_s = 1e-30
    for rank in range(len(state.missing)):
        longest_s = max(longest_s, state.missing[rank] / machine.in_rate[rank])
    return longest_s


@njit(cache=True)
def match(machine: Machine, task: Task, rules: Rules, bias: F64) -> tuple[int, float, Log, int]:
    """Spread all chunks; returns how many deliveries are left over, the finish, the messages, and the looks it took.

    `bias[rank, chunk]` (or an empty array) counts copies off the rarity of a chunk for that rank. All events of one
    instant are taken together, then the hops that they concern are tried in turn. Something is left over only if it
    cannot arrive by the limit. O(deliveries x (hops per link + chunks looked at)).
    """
    num_hops, num_ranks = len(machine.src), len(task.have)
    state, links = begin(machine, task, rules, bias.size > 0), free_links(machine)
    left = state.wanted.sum()
    log = Log(np.zeros(left, np.int64), np.zeros(left), np.zeros(left + 1, np.int64), np.zeros(left, np.int64))
    queue = empty_queue(num_hops, left)
    fresh, num_fresh = np.zeros((num_ranks, MAX_FRESH), np.int64), np.zeros(num_ranks, np.int64)
    fresh_in = np.full(num_ranks, -1)
    # Typed as any other message number, lest what it is given to is compiled twice.
    num_messages, finish_s, now_s = int(np.int64(0)), 0.0, 0.0
    make_ready(queue, np.arange(num_hops))
    while left > 0:
        state.longest_s[0] = longest_need_s(machine, state)
        arrange(machine, queue, rules, state)
        for hop in queue.ready[: queue.tally[0]]:
            rank, m = machine.dst[hop], num_messages
            state.looks[0] += LOOKS_PER_HOP
            if state.wanted[rank] == 0 or not can_start(machine, links, queue, hop, now_s, rules.same_s):
                continue
            if fresh_in[rank] != queue.tally[1]:
                fresh_in[rank], num_fresh[rank] = queue.tally[1], 0
            num_bytes = fill(machine, task, rules, bias, state, log, m, hop, now_s)
            if num_bytes == 0.0:
                others = fresh[rank, : num_fresh[rank]]
                num_bytes = swap_in(machine, task, rules, bias, state, log, m, hop, now_s, others)
            if num_bytes == 0.0:
                continue
            arrival_s = start(machine, links, queue, hop, m, num_bytes, now_s)
            finish_s = max(finish_s, arrival_s)
            if bias.size > 0:
                for row in range(log.ptr[m], log.ptr[m + 1]):
                    state.arrival_s[rank, log.rows[row]] = arrival_s
            if num_fresh[rank] < MAX_FRESH:
                fresh[rank, num_fresh[rank]] = m
                num_fresh[rank] += 1
            left -= log.ptr[m + 1] - log.ptr[m]
            num_messages += 1
        if left > 0 and queue.state[0] == 0:
            # Nothing is under way: what is left has to come over slow hops, or cannot come in time.
            if state.relaxed[0] or rules.slack == 0.0:
                break
            state.relaxed[0] = 1
            begin_instant(queue)
            make_ready(queue, np.arange(num_hops))
        elif left > 0:
            now_s = advance(machine, queue, state, log, rules.same_s)
    done = log.ptr[num_messages]
    kept = Log(log.hop[:num_messages], log.start_s[:num_messages], log.ptr[: num_messages + 1], log.rows[:done])
    return left, finish_s, kept, state.looks[0]


@njit(cache=True)
def blame(
    machine: Machine, task: Task, log: Log, left: int, finish_s: float, bias: F64, step: float, decay: float
) -> None:
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
