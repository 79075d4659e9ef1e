"""Compiled loops for pieces that each go from one rank to one other: choice of paths, and sending along them."""

from typing import NamedTuple

import numpy as np
from numba import njit

from collsyn.synth.event_kernels import (
    F64,
    I32,
    I64,
    RELEASE,
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
    pop,
    push,
    shuffle,
    sort_ready,
    start,
)


class Waiting(NamedTuple):
    """Legs that wait for their hop: hop h has a heap of num[h] legs, best priority first, in its part of the arrays."""

    ptr: I64
    key: F64
    serial: I64
    leg: I64
    num: I64


@njit(cache=True)
def busy_on(machine: Machine, hop: int, entry: int, num_bytes: float) -> float:
    """Seconds of a link's capacity that a message over a hop uses, `entry` being the link's place in the route."""
    link = machine.route_links[entry]
    return float((num_bytes + machine.overhead_s[hop] * machine.rate[hop]) / machine.bandwidth[link])


@njit(cache=True)
def cheapest(
    machine: Machine,
    price: F64,
    noise: F64,
    num_bytes: float,
    source: int,
    target: int,
    cost: F64,
    came_by: I32,
    heap: tuple[F64, I64, I64],
) -> None:
    """Dijkstra from source until target is settled; leaves the hop by which every settled rank was reached."""
    cost[:] = np.inf
    came_by[:] = -1
    cost[source] = 0.0
    times, serials, codes = heap
    size = push(times, serials, codes, 0, 0.0, 0, source)
    serial = 1
    while size > 0:
        reached, rank = times[0], codes[0]
        size = pop(times, serials, codes, size)
        if reached > cost[rank]:
            continue
        if rank == target:
            return
        for q in range(machine.out_ptr[rank], machine.out_ptr[rank + 1]):
            hop = machine.out_hops[q]
            step = noise[hop]
            for entry in range(machine.route_ptr[hop], machine.route_ptr[hop + 1]):
                step += price[machine.route_links[entry]] * busy_on(machine, hop, entry, num_bytes)
            other = machine.dst[hop]
            if reached + step < cost[other]:
                cost[other] = reached + step
                came_by[other] = hop
                size = push(times, serials, codes, size, cost[other], serial, other)
                serial += 1


@njit(cache=True)
def book(
    machine: Machine, path: I32, num_bytes: float, sign: float, load_s: F64, top_s: float, power: float, price: F64
) -> None:
    """Add (sign 1) or take away (-1) what a piece loads the links of a path with, and set their prices anew.

    The price of a link is how fast the sum of all loads to a power grows with its load.
    """
    for i in range(len(path)):
        hop = int(np.int64(path[i]))
        for entry in range(machine.route_ptr[hop], machine.route_ptr[hop + 1]):
            link = machine.route_links[entry]
            load_s[link] += sign * busy_on(machine, hop, entry, num_bytes)
            price[link] = (load_s[link] / top_s + 1e-3) ** power


@njit(cache=True)
def trace(machine: Machine, came_by: I32, source: int, target: int, path: I32) -> int:
    """Write the way that a search found into path; returns its length, -1 if it does not fit."""
    n, rank = 0, target
    while rank != source:
        rank = machine.src[came_by[rank]]
        n += 1
    if n > len(path):
        return -1
    rank = target
    for i in range(n - 1, -1, -1):
        path[i] = came_by[rank]
        rank = machine.src[path[i]]
    return n


@njit(cache=True)
def route(
    machine: Machine, source: I64, target: I64, num_bytes: F64, powers: F64, seed: int, paths: I32, lengths: I64
) -> float:
    """Give every piece a path such that the most loaded link has little to carry; returns its load in seconds.

    Pieces are put on their cheapest path one after the other, and in one pass for each further power are taken off and
    put on again; prices rise with a power of the load (the sum of loads to a power is a potential whose minimum comes
    close to the least maximum as the power grows). The hops of piece p are written to `paths[p, : lengths[p]]`, which
    must have room for the fewest hops between any ranks. O(passes x pieces x hops log).
    """
    num_ranks, num_links, num_hops = len(machine.out_ptr) - 1, len(machine.bandwidth), len(machine.src)
    if num_links == 0:
        return 0.0
    random = generator(seed)
    load_s, price, free = np.zeros(num_links), np.zeros(num_links), np.zeros(num_links)
    cost, came_by = np.zeros(num_ranks), np.zeros(num_ranks, np.int32)
    heap = (np.zeros(num_hops + 1), np.zeros(num_hops + 1, np.int64), np.zeros(num_hops + 1, np.int64))
    # A little time beside the prices keeps ways short where loads do not matter; its noise spreads equal ways.
    noise, ones = np.zeros(num_hops), np.ones(num_hops)
    order = np.arange(len(source))
    path = np.zeros(paths.shape[1], np.int32)
    best_s, best_paths, best_lengths = np.inf, paths.copy(), lengths.copy()
    lengths[:] = 0
    for turn in range(len(powers)):
        power = powers[turn]
        shuffle(order, len(order), random)
        for i in range(len(order)):
            p = order[i]
            if i % 16 == 0:
                top_s = max(load_s.max(), num_bytes[p] / machine.bandwidth.max())
                price[:] = (load_s / top_s + 1e-3) ** power
                for hop in range(num_hops):
                    noise[hop] = (machine.alpha_s[hop] + num_bytes[p] / machine.rate[hop]) * 1e-3 * (1 + draw(random))
            book(machine, paths[p, : lengths[p]], num_bytes[p], -1.0, load_s, top_s, power, price)
            cheapest(machine, price, noise, num_bytes[p], source[p], target[p], cost, came_by, heap)
            n = trace(machine, came_by, source[p], target[p], path)
            if n < 0 and lengths[p] == 0:
                cheapest(machine, free, ones, num_bytes[p], source[p], target[p], cost, came_by, heap)
                n = trace(machine, came_by, source[p], target[p], path)
            if n >= 0:
                lengths[p] = n
                paths[p, :n] = path[:n]
            book(machine, paths[p, : lengths[p]], num_bytes[p], 1.0, load_s, top_s, power, price)
        if load_s.max() < best_s:
            best_s = load_s.max()
            best_paths[:] = paths
            best_lengths[:] = lengths
    paths[:] = best_paths
    lengths[:] = best_lengths
    return best_s


@njit(cache=True)
def wait(waiting: Waiting, hop: int, leg: int, priority: float) -> None:
    """Let a leg wait for its hop."""
    a, b = waiting.ptr[hop], waiting.ptr[hop + 1]
    keys, serials, legs = waiting.key[a:b], waiting.serial[a:b], waiting.leg[a:b]
    waiting.num[hop] = push(keys, serials, legs, waiting.num[hop], -priority, leg, leg)


@njit(cache=True)
def first_waiting(waiting: Waiting, hop: int) -> int:
    """Take the leg of highest priority that waits for a hop."""
    a, b = waiting.ptr[hop], waiting.ptr[hop + 1]
    leg = waiting.leg[a]
    waiting.num[hop] = pop(waiting.key[a:b], waiting.serial[a:b], waiting.leg[a:b], waiting.num[hop])
    return int(leg)


@njit(cache=True)
def most_work_s(machine: Machine, work_s: F64, hop: int) -> float:
    """Work left on the busiest link of a hop."""
    most_s = 0.0
    for entry in range(machine.route_ptr[hop], machine.route_ptr[hop + 1]):
        most_s = max(most_s, work_s[machine.route_links[entry]])
    return most_s


@njit(cache=True)
def arrange(machine: Machine, queue: Queue, waiting: Waiting, work_s: F64) -> None:
    """Order the ready hops for which legs wait by priority plus the work left on their links; drop the others."""
    n = 0
    for hop in queue.ready[: queue.tally[0]]:
        if waiting.num[hop] > 0:
            queue.ready[n] = hop
            queue.keys[n] = waiting.key[waiting.ptr[hop]] - most_work_s(machine, work_s, hop)
            n += 1
    queue.tally[0] = n
    sort_ready(queue)


@njit(cache=True)
def send(
    machine: Machine, leg_ptr: I64, leg_hop: I64, num_bytes: F64, priority: F64, same_s: float
) -> tuple[F64, I32, F64]:
    """Send every piece p along its legs leg_ptr[p] : leg_ptr[p + 1], a hop each.

    A hop that can start takes the waiting leg of highest priority (several as one message, up to its `batch`); of the
    hops that can start in one instant those come first whose links have most left to do. Returns start and message of
    every leg, and when each piece arrives. O(legs x (hops per link + log legs)).
    """
    num_hops, num_legs = len(machine.src), len(leg_hop)
    piece = np.zeros(num_legs, np.int64)
    legs_of_hop, work_s = np.zeros(num_hops + 1, np.int64), np.zeros(len(machine.bandwidth))
    for p in range(len(num_bytes)):
        for leg in range(leg_ptr[p], leg_ptr[p + 1]):
            piece[leg] = p
            legs_of_hop[leg_hop[leg] + 1] += 1
            for entry in range(machine.route_ptr[leg_hop[leg]], machine.route_ptr[leg_hop[leg] + 1]):
                work_s[machine.route_links[entry]] += busy_on(machine, leg_hop[leg], entry, num_bytes[p])
    waiting = Waiting(
        np.cumsum(legs_of_hop),
        np.zeros(num_legs),
        np.zeros(num_legs, np.int64),
        np.zeros(num_legs, np.int64),
        np.zeros(num_hops, np.int64),
    )
    start_s, message, arrival_s = np.zeros(num_legs), np.full(num_legs, -1, np.int32), np.zeros(len(num_bytes))
    msg_ptr, msg_leg, num_messages = np.zeros(num_legs + 1, np.int64), np.zeros(num_legs, np.int64), int(np.int64(0))
    links, queue, now_s = free_links(machine), empty_queue(num_hops, num_legs), 0.0
    for p in range(len(num_bytes)):
        if leg_ptr[p + 1] > leg_ptr[p]:
            wait(waiting, leg_hop[leg_ptr[p]], leg_ptr[p], priority[leg_ptr[p]])
    make_ready(queue, np.arange(num_hops))
    while True:
        arrange(machine, queue, waiting, work_s)
        for hop in queue.ready[: queue.tally[0]]:
            if not can_start(machine, links, queue, hop, now_s, same_s):
                continue
            m, total = num_messages, 0.0
            msg_ptr[m + 1] = msg_ptr[m]
            while waiting.num[hop] > 0 and msg_ptr[m + 1] - msg_ptr[m] < machine.batch[hop]:
                leg = first_waiting(waiting, hop)
                msg_leg[msg_ptr[m + 1]] = leg
                msg_ptr[m + 1] += 1
                start_s[leg], message[leg] = now_s, m
                total += num_bytes[piece[leg]]
                for entry in range(machine.route_ptr[hop], machine.route_ptr[hop + 1]):
                    work_s[machine.route_links[entry]] -= busy_on(machine, hop, entry, num_bytes[piece[leg]])
            num_messages += 1
            start(machine, links, queue, hop, m, total, now_s)
        if queue.state[0] == 0:
            return start_s, message, arrival_s
        begin_instant(queue)
        until_s = queue.times[0] + same_s
        while queue.state[0] > 0 and queue.times[0] <= until_s:
            now_s, kind, number = next_event(queue)
            if kind == WAKE:
                queue.wake_s[number] = np.inf
                make_ready(queue, np.array([number]))
            elif kind == RELEASE:
                make_users_ready(machine, queue, leg_hop[msg_leg[msg_ptr[number]]])
            else:
                for leg in msg_leg[msg_ptr[number] : msg_ptr[number + 1]]:
                    if leg + 1 == leg_ptr[piece[leg] + 1]:
                        arrival_s[piece[leg]] = now_s
                    else:
                        wait(waiting, leg_hop[leg + 1], leg + 1, priority[leg + 1])
                        make_ready(queue, leg_hop[leg + 1 : leg + 2])
