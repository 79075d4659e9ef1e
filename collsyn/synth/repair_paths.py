"""Repair of schedules whose chunks go to one receiver each: other paths for what passed a failed link."""

import numpy as np

from collsyn.errors import Infeasible
from collsyn.model.arrays import F64, I32, I64, Bools
from collsyn.model.collective import Collective
from collsyn.model.schedule import Schedule
from collsyn.synth.alltoall import Paths, pieces, sendings
from collsyn.synth.alltoall_wide import HIGH_POWER, OWN, SEARCHES, balanced
from collsyn.synth.alltoall_wide_kernels import relieve
from collsyn.synth.event_kernels import Machine
from collsyn.synth.greedy_machine import MachineModel
from collsyn.synth.problem import Options, Problem
from collsyn.synth.repair_map import Map
from collsyn.synth.timing import in_order

# Timed in the old order a schedule is good enough within this of what its busiest link carries; else its pieces are
# sent anew along their paths, forwards and backwards so often.
GOOD_ENOUGH, ROUNDS = 1.03, 2


def rerouted(old: Schedule, problem: Problem, carried: Map, options: Options) -> tuple[Schedule, int]:
    """The repaired schedule, and how many of its sends are old; raises Infeasible where a receiver is cut off.

    Pieces whose path has failed, or passes a link that has become slower, get new ones that balance the load of links
    beside that of the others. Sends keep their old order, new ones standing where the old ones of their piece stood; if
    that leaves gaps, all are sent anew. O(sends log sends).
    """
    collective, model = problem.collective(old.collective.chunks_per_rank), MachineModel.of(problem.topology)
    chunk, source, target, num_bytes = pieces(collective, problem.size_bytes)
    far = np.flatnonzero(np.isinf(model.distance[source, target]))
    if len(far):
        raise Infeasible(
            f"topology {problem.topology.name}: no way leads from rank {source[far[0]]} to rank {target[far[0]]}"
        )
    row, piece, hop = _old_legs(old, problem, carried, model, chunk)
    whole = _whole(collective, model, (source, target), piece, hop) & ~_slower(old, problem, carried, row, piece, chunk)
    machine = model.machine(False, 0.0, 1.0)
    whole, paths, lengths = _balanced_again(
        machine, model, (source, target, num_bytes), (whole, piece, hop), options.seed
    )
    stays = whole[piece]
    row, piece, hop = row[stays], piece[stays], hop[stays]
    key_s, batch = old.start_s[row], old.batch[row].astype(np.int64)
    moved = np.flatnonzero(~whole)
    if len(moved):
        inside = np.arange(paths.shape[1]) < lengths[moved][:, None]
        fresh = np.repeat(moved, lengths[moved])
        steps = np.broadcast_to(np.arange(inside.shape[1]), inside.shape)[inside]
        seconds = num_bytes[fresh] / float(np.median(machine.rate))
        key_s = np.concatenate([key_s, _first_starts(old, carried, chunk)[fresh] + steps * seconds])
        piece, hop = np.concatenate([piece, fresh]), np.concatenate([hop, paths[moved][inside]])
        batch = np.concatenate([batch, np.full(len(fresh), -1)])
    order = np.lexsort((batch, key_s))
    schedule = in_order(
        collective,
        problem.topology,
        problem.size_bytes,
        model.table.routes,
        {
            "chunk": chunk[piece][order],
            "src": model.table.src[hop][order],
            "dst": model.table.dst[hop][order],
            "route": hop[order],
            "batch": batch[order],
        },
    )
    least_s = float(_loads(machine, hop, num_bytes[piece]).max(initial=0.0))
    if schedule.finish_s > GOOD_ENOUGH * least_s:
        legs = np.lexsort((key_s, piece))
        ptr = np.searchsorted(piece[legs], np.arange(len(chunk) + 1))
        along = Paths(collective, chunk, num_bytes, ptr, hop[legs].astype(np.int64))
        schedule = min([schedule, _sent_anew(problem, model, along)], key=lambda found: found.finish_s)
    return schedule, len(row)


def _balanced_again(
    machine: Machine, model: MachineModel, ends: tuple[I64, I64, F64], legs: tuple[Bools, I64, I64], seed: int
) -> tuple[Bools, I32, I64]:
    """Paths (hops as rows, and their number) of all pieces, and which are those of the old schedule.

    `ends` are source, target and bytes of the pieces; `legs` which are whole, and piece and hop of all old legs. Pieces
    that are not whole are routed beside the others; then the busiest links are relieved of any piece.
    """
    whole, piece, hop = legs
    stays, moved = whole[piece], np.flatnonzero(~whole)
    piece, hop = piece[stays], hop[stays]
    lengths = np.bincount(piece, minlength=len(whole)).astype(np.int64)
    diameter = int(model.distance[np.isfinite(model.distance)].max())
    paths = np.zeros((len(whole), max(int(lengths.max(initial=0)), diameter + diameter // 4 + 2)), np.int32)
    first = np.cumsum(lengths) - lengths
    paths[piece, np.arange(len(piece)) - first[piece]] = hop
    if len(moved):
        given_s = _loads(machine, hop, ends[2][piece])
        source, target, num_bytes = ends
        found = balanced(machine, model.distance, source[moved], target[moved], num_bytes[moved], seed, given_s)
        paths[moved, : found.hops.shape[1]] = found.hops
        lengths[moved] = found.lengths
        old_paths, old_lengths = paths.copy(), lengths.copy()
        nothing = np.zeros(len(machine.bandwidth))
        relieve(machine, *ends, HIGH_POWER, OWN[1], SEARCHES, seed, nothing, paths, lengths)
        same = (lengths == old_lengths) & (paths == old_paths).all(axis=1)
        whole = whole & same
    return whole, paths, lengths


def _old_legs(old: Schedule, problem: Problem, carried: Map, model: MachineModel, chunk: I64) -> tuple[I64, I64, I64]:
    """Old row, piece and hop of the sends of every piece along hops, in the order of pieces and starts."""
    _, routes, _, way = carried.ways(model.table.routes, backwards=False)
    number = {route: hop for hop, route in enumerate(model.table.routes.tuples())}
    hop_of_way = np.array([number.get(route, -1) for route in routes.tuples()] + [-1], dtype=np.int64)
    piece_of = np.full(problem.collective(old.collective.chunks_per_rank).num_chunks + 1, -1)
    piece_of[chunk] = np.arange(len(chunk))
    piece, hop = piece_of[carried.chunk[old.chunk]], hop_of_way[way[carried.way_of_row]]
    rows = np.flatnonzero(piece >= 0)
    rows = rows[np.lexsort((old.start_s[rows], piece[rows]))]
    return rows, piece[rows], hop[rows]


def _whole(collective: Collective, model: MachineModel, ends: tuple[I64, I64], piece: I64, hop: I64) -> Bools:
    """Which pieces still have a way from source to target."""
    src, dst = (np.append(column, -1)[hop].astype(np.int64) for column in (model.table.src, model.table.dst))
    first = np.diff(piece, prepend=-1) != 0
    last = np.append(first[1:], True)[: len(piece)]
    fits = hop >= 0
    fits &= np.where(first, src == ends[0][piece], src == np.concatenate([[-1], dst[:-1]])[: len(piece)])
    fits &= ~last | (dst == ends[1][piece])
    whole = np.zeros(len(ends[0]), dtype=np.bool_)
    whole[piece] = True
    whole[piece[~fits]] = False
    return whole


def _slower(old: Schedule, problem: Problem, carried: Map, row: I64, piece: I64, chunk: I64) -> Bools:
    """Which pieces pass a link that has less bandwidth than it had."""
    bandwidth = problem.topology.bandwidth
    slow = np.zeros(len(carried.routes), dtype=np.bool_)
    for number, (route, old_route) in enumerate(zip(carried.routes, carried.old_routes, strict=True)):
        if route:
            slow[number] = (bandwidth[list(route)] < old.topology.bandwidth[old.routes[old_route]] * (1 - 1e-9)).any()
    found = np.zeros(len(chunk), dtype=np.bool_)
    found[piece[slow[carried.way_of_row[row]]]] = True
    return found


def _first_starts(old: Schedule, carried: Map, chunk: I64) -> F64:
    """When every piece left its source in the old schedule (0: it did not)."""
    new = carried.chunk[old.chunk]
    first = np.full(int(max(chunk.max(), new.max(initial=0))) + 2, np.inf)
    np.minimum.at(first, new, old.start_s)
    return np.where(np.isinf(first), 0.0, first)[chunk]


def _loads(machine: Machine, hop: I64, num_bytes: F64) -> F64:
    """Seconds that every link is busy with legs."""
    held = np.bincount(hop, weights=num_bytes + machine.overhead_s[hop] * machine.rate[hop], minlength=len(machine.src))
    owner = np.repeat(np.arange(len(machine.src)), np.diff(machine.route_ptr))
    carried = np.bincount(machine.route_links, weights=held[owner], minlength=len(machine.bandwidth))
    return np.asarray(carried / machine.bandwidth, dtype=np.float64)


def _sent_anew(problem: Problem, model: MachineModel, paths: Paths) -> Schedule:
    """The best of a few sendings along given paths."""
    machine = model.machine(False, 0.0, float(paths.num_bytes.mean()))
    turn = (machine.dst[paths.hops] - machine.src[paths.hops]) % problem.topology.num_ranks
    times = min(
        (found for found in sendings(machine, model.turned_round(machine), paths, turn, ROUNDS) if found.exact),
        key=lambda found: found.finish_s,
    )
    hop = paths.hops
    return Schedule.build(
        paths.collective,
        problem.topology,
        problem.size_bytes,
        model.table.routes,
        {},
        chunk=np.repeat(paths.chunk, paths.lengths),
        src=model.table.src[hop],
        dst=model.table.dst[hop],
        route=hop,
        start_s=times.start_s,
        batch=times.message,
    )
