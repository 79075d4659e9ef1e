"""Compiled choice of paths for very many pieces: one search serves many receivers of a source."""

import numpy as np
from numba import njit

from collsyn.synth.alltoall_kernels import book, busy_on, cheapest, trace
from collsyn.synth.event_kernels import F64, I32, I64, Machine, draw, generator, shuffle


@njit(cache=True)
def load_links(machine: Machine, path: I32, num_bytes: float, load_s: F64) -> None:
    """Add what a piece (of a negative length: take away) loads the links of a path with."""
    for i in range(len(path)):
        hop = int(np.int64(path[i]))
        for entry in range(machine.route_ptr[hop], machine.route_ptr[hop + 1]):
            load = busy_on(machine, hop, entry, abs(num_bytes))
            load_s[machine.route_links[entry]] += load if num_bytes > 0 else -load


@njit(cache=True)
def route_by_source(
    machine: Machine,
    source: I64,
    piece_ptr: I64,
    target: I64,
    num_bytes: F64,
    parts: int,
    own: float,
    powers: F64,
    seed: int,
    given_s: F64,
    paths: I32,
    lengths: I64,
) -> float:
    """As `alltoall_kernels.route`, but pieces of one source that are rerouted together share a shortest-path tree.

    Source i has the pieces piece_ptr[i] : piece_ptr[i + 1], which are taken in `parts` random parts. All pieces of a
    part are taken off, prices are set, and one search gives the paths of all; which ways of equal cost it takes differs
    from search to search. A link costs a share `own` of its time besides the price, and carries `given_s` besides the
    pieces. A path that does not fit into the rows of `paths` is left as it is (they must have room for the fewest
    hops). Returns the load of the busiest link in seconds, or -1 where a target cannot be reached.
    O(passes x sources x parts x hops log + passes x legs).
    """
    num_ranks, num_links, num_hops = len(machine.out_ptr) - 1, len(machine.bandwidth), len(machine.src)
    random = generator(seed)
    load_s, price = given_s.copy(), np.zeros(num_links)
    cost, came_by = np.zeros(num_ranks), np.zeros(num_ranks, np.int32)
    heap = (np.zeros(num_hops + 1), np.zeros(num_hops + 1, np.int64), np.zeros(num_hops + 1, np.int64))
    noise, free, path = np.zeros(num_hops), np.zeros(num_links), np.zeros(paths.shape[1], np.int32)
    best_s, best_paths, best_lengths = np.inf, paths[:0].copy(), lengths[:0].copy()
    order, mine = np.arange(len(source)), np.arange(len(target))
    lengths[:] = 0
    for turn in range(len(powers)):
        power = powers[turn]
        shuffle(order, len(order), random)
        for i in order:
            pieces = mine[piece_ptr[i] : piece_ptr[i + 1]]
            shuffle(pieces, len(pieces), random)
            for part in range(parts):
                some = pieces[len(pieces) * part // parts : len(pieces) * (part + 1) // parts]
                if len(some) == 0:
                    continue
                mean = 0.0
                for p in some:
                    load_links(machine, paths[p, : lengths[p]], -num_bytes[p], load_s)
                    mean += num_bytes[p] / len(some)
                top_s = max(load_s.max(), mean / machine.bandwidth.max())
                price[:] = (load_s / top_s + 1e-3) ** power
                for hop in range(num_hops):
                    noise[hop] = (machine.alpha_s[hop] + mean / machine.rate[hop]) * own * (1 + draw(random))
                cheapest(machine, price, noise, mean, source[i], -1, cost, came_by, heap)
                missed = False
                for p in some:
                    if came_by[target[p]] < 0:
                        return -1.0
                    n = trace(machine, came_by, source[i], target[p], path)
                    if n >= 0:
                        lengths[p] = n
                        paths[p, :n] = path[:n]
                    missed |= lengths[p] == 0
                if missed:
                    noise[:] = 1.0
                    cheapest(machine, free, noise, mean, source[i], -1, cost, came_by, heap)
                for p in some:
                    if lengths[p] == 0:
                        n = trace(machine, came_by, source[i], target[p], path)
                        lengths[p] = n
                        paths[p, :n] = path[:n]
                    load_links(machine, paths[p, : lengths[p]], num_bytes[p], load_s)
        if load_s.max() < best_s * (1 - 1e-9):
            best_s = load_s.max()
            best_paths, best_lengths = paths.copy(), lengths.copy()
    paths[:] = best_paths
    lengths[:] = best_lengths
    return best_s


@njit(cache=True)
def relieve(
    machine: Machine,
    source: I64,
    target: I64,
    num_bytes: F64,
    power: float,
    own: float,
    most_searches: int,
    seed: int,
    given_s: F64,
    paths: I32,
    lengths: I64,
) -> tuple[float, int]:
    """Reroute pieces on the busiest links one by one, as long as that lowers their load.

    In every sweep the pieces that pass a link with nearly the highest load are put on their cheapest paths, where the
    price of a link is a power of its load. Sweeps end when three have not lowered the highest load, or with the last
    of `most_searches`. The best paths found are left in `paths` and `lengths`. `given_s` is
    what links carry besides. Returns the load of the busiest link, and searches made.
    O(sweeps x legs + searches x hops log).
    """
    num_ranks, num_links, num_hops = len(machine.out_ptr) - 1, len(machine.bandwidth), len(machine.src)
    random = generator(seed)
    load_s, price = given_s.copy(), np.zeros(num_links)
    cost, came_by = np.zeros(num_ranks), np.zeros(num_ranks, np.int32)
    heap = (np.zeros(num_hops + 1), np.zeros(num_hops + 1, np.int64), np.zeros(num_hops + 1, np.int64))
    noise, path, order = np.zeros(num_hops), np.zeros(paths.shape[1], np.int32), np.arange(len(source))
    for p in order:
        load_links(machine, paths[p, : lengths[p]], num_bytes[p], load_s)
    best_s, best_paths, best_lengths = load_s.max(), paths.copy(), lengths.copy()
    searches, in_vain = 0, 0
    while in_vain < 3 and searches < most_searches:
        shuffle(order, len(order), random)
        top_s = load_s.max()
        for p in order:
            hot = False
            for i in range(lengths[p]):
                way = int(np.int64(paths[p, i]))
                for entry in range(machine.route_ptr[way], machine.route_ptr[way + 1]):
                    hot |= load_s[machine.route_links[entry]] > 0.99 * top_s
            if not hot or searches >= most_searches:
                continue
            if searches % 16 == 0:
                top_s = load_s.max()
                price[:] = (load_s / top_s + 1e-3) ** power
                for h in range(num_hops):
                    noise[h] = (machine.alpha_s[h] + num_bytes[p] / machine.rate[h]) * own * (1 + draw(random))
            searches += 1
            book(machine, paths[p, : lengths[p]], num_bytes[p], -1.0, load_s, top_s, power, price)
            cheapest(machine, price, noise, num_bytes[p], source[p], target[p], cost, came_by, heap)
            n = trace(machine, came_by, source[p], target[p], path)
            if n >= 0:
                lengths[p] = n
                paths[p, :n] = path[:n]
            book(machine, paths[p, : lengths[p]], num_bytes[p], 1.0, load_s, top_s, power, price)
        in_vain += 1
        if load_s.max() < best_s * (1 - 1e-4):
            best_s, in_vain = load_s.max(), 0
            best_paths[:] = paths
            best_lengths[:] = lengths
    paths[:] = best_paths
    lengths[:] = best_lengths
    return best_s, searches
