"""Breaks schedules in the ways in which synthesizers go wrong, and asks whether the checker notices.

    invalid = check_mutants(schedule, seed=0)      # asserts; {kind of mutation: mutants that were wrong}

A mutant may happen to be right (a route that is as good, a drop of what nobody needed); a brute-force replay that
shares nothing with the checker says so, not a list of exceptions.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from collsyn.check.verify import verify_schedule
from collsyn.errors import InputError
from collsyn.model.collective import make_collective
from collsyn.model.kinds import ROOTED
from collsyn.model.schedule import RouteCosts, Schedule
from tests.support.bruteforce import why_invalid

Columns = dict[str, np.ndarray]
Mutation = Callable[[Schedule, np.random.Generator], Schedule | None]


def check_mutants(schedule: Schedule, seed: int, per_kind: int = 3) -> Counter[str]:
    """Assert that checker and brute force agree on the schedule (right) and its mutants; count wrong ones by kind."""
    assert why_invalid(schedule) is None
    assert verify_schedule(schedule).ok
    invalid: Counter[str] = Counter()
    for kind, mutant in mutants(schedule, seed, per_kind):
        reason, report = why_invalid(mutant), verify_schedule(mutant)
        assert report.ok == (reason is None), f"{kind}, seed {seed}: brute force says {reason}, checker says {report}"
        assert bool(report.problems) != report.ok
        invalid[kind] += reason is not None
    return invalid


def mutants(schedule: Schedule, seed: int, per_kind: int = 3) -> Iterator[tuple[str, Schedule]]:
    """Kind and mutant, `per_kind` of each kind where the schedule has what it needs; none equals the schedule."""
    rng = np.random.default_rng(seed)
    for kind, mutate in MUTATIONS.items():
        for _ in range(per_kind):
            mutant = mutate(schedule, rng)
            if mutant is not None and not _equal(mutant, schedule):
                yield kind, mutant


def drop(schedule: Schedule, rng: np.random.Generator) -> Schedule | None:
    """One send is missing."""
    return edited(schedule, keep=np.arange(schedule.num_sends) != rng.integers(schedule.num_sends))


def earlier(schedule: Schedule, rng: np.random.Generator) -> Schedule | None:
    """A message leaves before its time."""
    message = _pick(rng, np.flatnonzero(schedule.messages.start_s > 0))
    if message is None:
        return None
    return moved(schedule, message, schedule.messages.start_s[message] * rng.choice([0.0, 0.5, 0.99, rng.random()]))


def later(schedule: Schedule, rng: np.random.Generator) -> Schedule | None:
    """A message leaves late, perhaps after the end, perhaps into the way of others."""
    message = int(rng.integers(len(schedule.messages)))
    return moved(
        schedule, message, schedule.messages.start_s[message] + schedule.finish_s * rng.choice([0.1, 0.5, 1.5])
    )


def reroute(schedule: Schedule, rng: np.random.Generator) -> Schedule | None:
    """A message takes another way: a route of the table, one of any link, or its own cut short."""
    routes, row = schedule.routes.tuples(), int(rng.integers(schedule.num_sends))
    link = int(rng.integers(schedule.topology.num_links))
    own = routes[schedule.route[row]]
    other = [routes[rng.integers(len(routes))], (link,), own[:-1], (*own, link)][rng.integers(4)]
    columns = writable(schedule)
    columns["route"][_fellows(schedule, row)] = len(routes)
    return edited(schedule, columns, routes=[*routes, other])


def duplicate(schedule: Schedule, rng: np.random.Generator) -> Schedule | None:
    """A message goes twice: at once, or again when all is done."""
    row, columns = int(rng.integers(schedule.num_sends)), writable(schedule)
    columns = {name: np.append(values, values[row]) for name, values in columns.items()}
    columns["batch"][-1] = -1
    columns["start_s"][-1] += rng.choice([0.0, schedule.finish_s])
    return edited(schedule, columns)


def swap_chunk(schedule: Schedule, rng: np.random.Generator) -> Schedule | None:
    """Two sends carry each other's chunk, or one another chunk than it should."""
    a, b = rng.integers(schedule.num_sends, size=2)
    columns = writable(schedule)
    columns["chunk"][[a, b]] = columns["chunk"][[b, a]]
    if rng.random() < 0.3:
        columns["chunk"][a] = rng.integers(schedule.collective.num_chunks)
    return edited(schedule, columns)


def destination(schedule: Schedule, rng: np.random.Generator) -> Schedule | None:
    """A message goes to another rank, over a route that leads there if one is known."""
    row, columns = int(rng.integers(schedule.num_sends)), writable(schedule)
    other = int(rng.integers(schedule.topology.num_ranks))
    ends = np.flatnonzero((schedule.src == schedule.src[row]) & (schedule.dst == other))
    columns["dst"][_fellows(schedule, row)] = other
    if len(ends):
        columns["route"][_fellows(schedule, row)] = schedule.route[ends[0]]
    return edited(schedule, columns)


def root(schedule: Schedule, rng: np.random.Generator) -> Schedule | None:
    """The collective has another root than the schedule."""
    spec = schedule.collective.spec
    if schedule.collective.kind not in ROOTED:
        return None
    other = int(rng.integers(schedule.collective.num_ranks))
    try:
        collective = make_collective(
            spec["kind"], spec["ranks"], spec["chunks_per_rank"], other, spec.get("groups"), spec.get("counts")
        )
    except InputError:
        return None
    if collective.num_chunks != schedule.collective.num_chunks:
        return None
    return replace(edited(schedule), collective=collective)


def overlap(schedule: Schedule, rng: np.random.Generator) -> Schedule | None:
    """Of two messages that follow each other on a link, the second comes while the first is there."""
    messages, routes = schedule.messages, schedule.routes.tuples()
    before = RouteCosts.of(schedule.topology, schedule.routes).before_s
    uses: dict[int, list[tuple[float, int, float]]] = {}
    for m, route in enumerate(messages.route.tolist()):
        for place, link in enumerate(routes[route]):
            ahead = float(before[schedule.routes.ptr[route] + place])
            uses.setdefault(link, []).append((float(messages.start_s[m]) + ahead, m, ahead))
    busy = [sorted(entries) for entries in uses.values() if len(entries) > 1]
    if not busy:
        return None
    entries = busy[rng.integers(len(busy))]
    first = int(rng.integers(len(entries) - 1))
    (begin, m, _), (_, following, ahead) = entries[first], entries[first + 1]
    target = begin + float(messages.busy_s[m]) * rng.choice([0.0, 0.5, 0.999]) - ahead
    return moved(schedule, following, target) if target >= 0 else None


def flip_op(schedule: Schedule, rng: np.random.Generator) -> Schedule | None:
    """A copy that should join, or a join that should replace."""
    columns = writable(schedule)
    columns["op"][rng.integers(schedule.num_sends)] ^= 1
    return edited(schedule, columns)


def break_batch(schedule: Schedule, rng: np.random.Generator) -> Schedule | None:
    """One of a batch leaves at another time or rate, or two strangers are made a batch."""
    columns = writable(schedule)
    row = _pick(rng, np.flatnonzero(schedule.batch >= 0))
    if row is None:
        if schedule.num_sends < 2:
            return None
        columns["batch"][rng.choice(schedule.num_sends, size=2, replace=False)] = 0
    elif rng.random() < 0.5:
        columns["start_s"][row] += 0.25 * schedule.finish_s
    else:
        columns["rate"][row] = 0.5 * float(schedule.messages.rate.min())
    return edited(schedule, columns)


def rate(schedule: Schedule, rng: np.random.Generator) -> Schedule | None:
    """A message goes faster or slower than planned."""
    row, columns = int(rng.integers(schedule.num_sends)), writable(schedule)
    travels = schedule.messages.rate[np.isfinite(schedule.messages.rate)]
    columns["rate"][_fellows(schedule, row)] = float(rng.choice(travels)) * rng.choice([0.5, 1.01, 2.0])
    return edited(schedule, columns)


def slot(schedule: Schedule, rng: np.random.Generator) -> Schedule | None:
    """A send reads or writes another partial result."""
    row, columns = int(rng.integers(schedule.num_sends)), writable(schedule)
    if rng.random() < 0.5:
        columns["src_slot"][row] = rng.choice([-1, 0, 1])
    else:
        columns["dst_slot"][row] = rng.choice([0, 1])
    return edited(schedule, columns)


MUTATIONS: dict[str, Mutation] = {
    mutate.__name__: mutate
    for mutate in (
        drop,
        earlier,
        later,
        reroute,
        duplicate,
        swap_chunk,
        destination,
        root,
        overlap,
        flip_op,
        break_batch,
        rate,
        slot,
    )
}


def writable(schedule: Schedule) -> Columns:
    """Copies of all columns."""
    return {name: np.array(values) for name, values in schedule.columns().items()}


def edited(
    schedule: Schedule, columns: Columns | None = None, keep: np.ndarray | None = None, routes: Any = None
) -> Schedule:
    """A schedule with other columns, some rows left out, or other routes."""
    columns = writable(schedule) if columns is None else columns
    if keep is not None:
        columns = {name: values[keep] for name, values in columns.items()}
    table = schedule.routes if routes is None else routes
    return Schedule.build(schedule.collective, schedule.topology, schedule.size_bytes, table, **columns)


def moved(schedule: Schedule, message: int, start_s: float) -> Schedule:
    """The schedule with one message at another time."""
    columns = writable(schedule)
    columns["start_s"][schedule.messages.rows[message]] = start_s
    return edited(schedule, columns)


def _fellows(schedule: Schedule, row: int) -> np.ndarray:
    """All rows of the message that a row travels in."""
    return np.array([row]) if schedule.batch[row] < 0 else np.flatnonzero(schedule.batch == schedule.batch[row])


def _pick(rng: np.random.Generator, candidates: np.ndarray) -> int | None:
    return int(rng.choice(candidates)) if len(candidates) else None


def _equal(a: Schedule, b: Schedule) -> bool:
    same_goal = a.collective.spec == b.collective.spec and a.routes.tuples() == b.routes.tuples()
    return same_goal and all(
        np.array_equal(x, y) for x, y in zip(a.columns().values(), b.columns().values(), strict=True)
    )
