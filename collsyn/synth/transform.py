"""New schedules from old: reversed in time, one after another, and without sends that nobody needs."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64, I64, Bools, Rows
from collsyn.model.collective import Collective
from collsyn.model.schedule import REDUCE, RouteCosts, Schedule
from collsyn.model.topology import Topology
from collsyn.synth.problem import Problem
from collsyn.synth.timing import by_start, in_order, message_of_rows


def by_reversal(problem: Problem, synthesize_forward: Callable[[Problem], Schedule]) -> Schedule:
    """A schedule from that of the reversed problem, such as a reduce-scatter from an allgather against the links."""
    forward = synthesize_forward(problem.reversed)
    return reverse(forward, problem.collective(forward.collective.chunks_per_rank), problem.topology)


def by_composition(problem: Problem, synthesize_phase: Callable[[Problem], Schedule]) -> Schedule:
    """An allreduce from a reduce-scatter and an allgather of the same chunks."""
    first = synthesize_phase(problem.as_kind("reducescatter"))
    chunks = first.collective.chunks_per_rank
    second = synthesize_phase(problem.as_kind("allgather", chunks))
    return compose(first, second, problem.collective(chunks))


def reverse(schedule: Schedule, collective: Collective, topology: Topology | None = None) -> Schedule:
    """The schedule run backwards over links turned round: copies spread along trees become sums gathered along them.

    `collective` is the reversed one with the same chunks, `topology` the schedule's with every link turned round (made
    if not given). Where all routes over a link have the same overhead and reducing is free, every send is mirrored in
    time and the finish stays (Topology's time model shifts all loads of a link alike); otherwise sends keep the
    mirrored order and start as early as that allows. O(sends log sends).
    """
    schedule = useful(schedule)
    topology = schedule.topology.reversed() if topology is None else topology
    messages = schedule.messages
    message = message_of_rows(messages)
    end_s = float(messages.arrival_s.max(initial=0.0))
    mirrored_s = (end_s - messages.arrival_s)[message]
    columns = dict(schedule.columns())
    columns |= {"src": schedule.dst, "dst": schedule.src, "start_s": mirrored_s}
    if collective.reduces:
        columns["op"] = np.full(schedule.num_sends, REDUCE, dtype=np.uint8)
    routes = Rows.of([route[::-1] for route in schedule.routes.tuples()])
    order = np.lexsort((message, columns["start_s"]))
    columns = {name: values[order] for name, values in columns.items()}
    columns["batch"] = message[order]
    exact = not (collective.reduces and topology.reduce_s_per_byte.any()) and _mirrors_exactly(schedule)
    fixed_s = columns["start_s"] if exact else None
    return in_order(collective, topology, schedule.size_bytes, routes, columns, schedule.provenance, fixed_s)


def compose(first: Schedule, second: Schedule, collective: Collective) -> Schedule:
    """`first`, then `second` on its results, as one collective, overlapping where data and links allow.

    Both have the chunks of `collective`, the same topology and size (allreduce: reduce-scatter, then allgather). Each
    send of the second phase leaves as soon as it can; the finish is at most that with a barrier between the phases (at
    which links are free again: an overhead can load the last link of a route beyond the arrival).
    O(sends log sends).
    """
    assert first.collective.num_chunks == second.collective.num_chunks == collective.num_chunks
    routes = Rows(
        np.concatenate([first.routes.ptr, second.routes.ptr[1:] + first.routes.ptr[-1]]),
        np.concatenate([first.routes.data, second.routes.data]),
    )
    parts = [by_start(first), by_start(second)]
    parts[1]["route"] = parts[1]["route"] + len(first.routes)
    parts[1]["batch"] = parts[1]["batch"] + len(first.messages)
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    behind = columns.pop("start_s")
    behind[first.num_sends :] += max(first.finish_s, _links_free_s(first))
    kept = np.where(np.arange(len(behind)) < first.num_sends, behind, np.nan)
    # A reversed phase ends late everywhere, so it is moved forward too; list scheduling shares links more cautiously
    # than the phases may have done, so that keeping the first phase, or both, can still be better.
    candidates = [
        in_order(collective, first.topology, first.size_bytes, routes, columns, first.provenance, fixed_s)
        for fixed_s in (None, kept, behind)
    ]
    return min(candidates, key=lambda schedule: schedule.finish_s)


def _links_free_s(schedule: Schedule) -> float:
    """When the last load of a link ends."""
    messages, routes = schedule.messages, schedule.routes
    if not len(routes.data):
        return 0.0
    before_s = RouteCosts.of(schedule.topology, routes).before_s
    latest_before_s = np.zeros(len(routes))
    np.maximum.at(latest_before_s, np.repeat(np.arange(len(routes)), routes.lengths()), before_s)
    travels = routes.lengths()[messages.route] > 0
    ends_s = messages.start_s + latest_before_s[messages.route] + messages.busy_s
    return float(ends_s[travels].max(initial=0.0))


def useful(schedule: Schedule) -> Schedule:
    """A schedule of copies without sends of what is there already or of what is neither wanted nor passed on."""
    done_s = schedule.messages.done_s[message_of_rows(schedule.messages)]
    kept = _first_arrivals(schedule, done_s)
    while True:
        needed = kept & _wanted_or_passed_on(schedule, kept)
        if needed.sum() == kept.sum():
            break
        kept = needed
    if kept.all():
        return schedule
    columns = {name: values[kept] for name, values in schedule.columns().items()}
    routes, notes = schedule.routes, schedule.provenance
    return Schedule.build(schedule.collective, schedule.topology, schedule.size_bytes, routes, notes, **columns)


def _first_arrivals(schedule: Schedule, done_s: F64) -> Bools:
    """Rows that bring a chunk to a rank that has not got it before."""
    pairs = _pair_keys(schedule, schedule.dst)
    order = np.lexsort((np.arange(len(pairs)), done_s))
    _, first = np.unique(pairs[order], return_index=True)
    kept = np.zeros(len(pairs), dtype=np.bool_)
    kept[order[first]] = True
    return kept & ~_in_sets(schedule.collective, schedule.collective.pre, schedule.chunk, schedule.dst)


def _wanted_or_passed_on(schedule: Schedule, kept: Bools) -> Bools:
    wanted = _in_sets(schedule.collective, schedule.collective.post, schedule.chunk, schedule.dst)
    sent = np.unique(_pair_keys(schedule, schedule.src)[kept])
    return wanted | np.isin(_pair_keys(schedule, schedule.dst), sent)


def _pair_keys(schedule: Schedule, ranks: npt.NDArray[np.int32]) -> I64:
    return schedule.chunk.astype(np.int64) * schedule.topology.num_ranks + ranks


def _in_sets(
    collective: Collective,
    set_of_chunk: npt.NDArray[np.int32],
    chunk: npt.NDArray[np.int32],
    rank: npt.NDArray[np.int32],
) -> Bools:
    """Whether each rank is in the set (pre or post) of each chunk."""
    ids = set_of_chunk[chunk].astype(np.int64)
    owner = np.repeat(np.arange(len(collective.sets)), collective.sets.lengths())
    members = owner * collective.num_ranks + collective.sets.data
    return np.isin(ids * collective.num_ranks + rank, members)


def _mirrors_exactly(schedule: Schedule) -> bool:
    """Whether all messages over a link load it for the same overhead."""
    overhead = RouteCosts.of(schedule.topology, schedule.routes).overhead_s
    used = np.unique(schedule.route)
    links = np.concatenate([schedule.routes[int(route)] for route in used]) if len(used) else np.zeros(0, np.int32)
    values = np.repeat(overhead[used], schedule.routes.lengths()[used])
    low, high = (np.full(schedule.topology.num_links, fill) for fill in (np.inf, -np.inf))
    np.minimum.at(low, links, values)
    np.maximum.at(high, links, values)
    seen = np.unique(links)
    return bool(np.allclose(low[seen], high[seen], rtol=1e-12, atol=0))
