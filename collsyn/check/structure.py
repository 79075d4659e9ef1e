"""Checks that need no replay: values in range, routes that exist, batches that agree, rates that links can carry."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from collsyn.check import words
from collsyn.check.report import SHOWN, Problem
from collsyn.model.arrays import Bools, Rows
from collsyn.model.schedule import OWN, RouteCosts, Schedule
from collsyn.model.topology import Topology

# Relative slack for rates and loads, as the time model allows it for times.
RELATIVE = 1e-9


def field_problems(schedule: Schedule) -> list[Problem]:
    """Values that no other check could even look up: indexes out of range, times and rates that are none."""
    collective, topology = schedule.collective, schedule.topology
    if collective.num_ranks != topology.num_ranks:
        expected, found = f"{collective.num_ranks} ranks", f"{topology.num_ranks}"
        return [Problem(f"topology {topology.name}", "is of another size than the collective", expected, found)]
    problems = []
    links = schedule.routes.data
    if len(links) and (links.min() < 0 or links.max() >= topology.num_links):
        worst = int(links.min()) if links.min() < 0 else int(links.max())
        problems.append(
            Problem("routes", "name a link that is not there", f"0 .. {topology.num_links - 1}", f"{worst}")
        )
    limits = {
        "chunk": (0, collective.num_chunks - 1),
        "src": (0, topology.num_ranks - 1),
        "dst": (0, topology.num_ranks - 1),
        "route": (0, len(schedule.routes) - 1),
        "start_s": (0, np.finfo(np.float64).max),
        "rate": (0, np.finfo(np.float64).max),
        "op": (0, 1),
        "src_slot": (OWN, 127),
        "dst_slot": (0, 127),
    }
    for name, (low, high) in limits.items():
        values = getattr(schedule, name)
        bad = np.flatnonzero(~((values >= low) & (values <= high)))
        expected = f"{low} .. {high}" if name not in ("start_s", "rate") else "a finite number of at least 0"
        what = f"{name} is out of range"
        problems += [Problem(f"send {row}", what, expected, f"{values[row]}") for row in bad[:SHOWN].tolist()]
    return problems


def batch_problems(schedule: Schedule) -> tuple[list[Problem], int]:
    """Rows of one batch that do not travel together, and how many there are."""
    rows = schedule.messages.rows
    lead = np.repeat(rows.data[rows.ptr[:-1]], rows.lengths())
    names = ("src", "dst", "route", "start_s", "rate")
    differs = {name: getattr(schedule, name)[rows.data] != getattr(schedule, name)[lead] for name in names}
    bad = np.flatnonzero(np.logical_or.reduce(list(differs.values())))
    problems = []
    for position in bad[:SHOWN].tolist():
        row, first = int(rows.data[position]), int(lead[position])
        name = next(name for name in names if differs[name][position])
        what = f"is in batch {int(schedule.batch[row])} but its {name} is not that of the batch"
        want, have = (getattr(schedule, name)[r].item() for r in (first, row))
        problems.append(Problem(words.send(schedule, row), what, f"{want}", f"{have}"))
    return problems, len(bad)


def route_problems(schedule: Schedule) -> tuple[list[Problem], int]:
    """Sends whose route does not lead from source to destination through switches only, and how many there are."""
    topology, routes = schedule.topology, schedule.routes
    first, last, broken = _route_ends(topology, routes)
    used, src, dst = schedule.route, schedule.src, schedule.dst
    empty = routes.lengths()[used] == 0
    tests: list[tuple[Bools, str, Callable[[int], str], Callable[[int], str]]] = [
        (
            (src == dst) != empty,
            "needs the empty route exactly if it stays at its rank",
            lambda row: "the empty route" if src[row] == dst[row] else "links",
            lambda row: "the empty route" if empty[row] else topology.route_name(routes[int(used[row])]),
        ),
        (
            broken[used],
            "its route is not a path through switches",
            lambda row: "links that follow each other, only switches inside and none twice",
            lambda row: _spell(topology, routes, int(used[row])),
        ),
        (
            ~empty & ((first[used] != src) | (last[used] != dst)),
            "its route joins other vertices",
            lambda row: f"{int(src[row])} to {int(dst[row])}",
            lambda row: topology.route_name(routes[int(used[row])]),
        ),
    ]
    problems: list[Problem] = []
    total = np.zeros(schedule.num_sends, dtype=np.bool_)
    for bad, what, expected, found in tests:
        rows = np.flatnonzero(bad & ~total)
        total |= bad
        for row in rows[:SHOWN].tolist():
            problems.append(Problem(words.send(schedule, row), what, expected(row), found(row)))
    return problems, int(total.sum())


def _route_ends(
    topology: Topology, routes: Rows
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """First and last vertex of every route (-1 for the empty one), and whether it is no path through switches."""
    lengths = routes.lengths()
    num = len(routes)
    first, last, broken = np.full(num, -1), np.full(num, -1), np.zeros(num, dtype=np.bool_)
    full = np.flatnonzero(lengths)
    first[full] = topology.src[routes.data[routes.ptr[:-1][full]]]
    last[full] = topology.dst[routes.data[routes.ptr[1:][full] - 1]]
    owner = np.repeat(np.arange(num), lengths)
    if len(owner):
        # Where one link of a route ends and the next begins.
        inner = np.flatnonzero(owner[1:] == owner[:-1])
        here, there = topology.dst[routes.data[inner]], topology.src[routes.data[inner + 1]]
        broken[owner[inner[(here != there) | (here < topology.num_ranks)]]] = True
        ordered = np.lexsort((topology.dst[routes.data], owner))
        same = owner[ordered][1:] == owner[ordered][:-1]
        twice = same & (np.diff(topology.dst[routes.data[ordered]]) == 0)
        broken[owner[ordered[1:][twice]]] = True
    return first, last, broken


def _spell(topology: Topology, routes: Rows, route: int) -> str:
    return ", ".join(topology.link_name(link) for link in routes[route].tolist())


def rate_problems(schedule: Schedule) -> tuple[list[Problem], int]:
    """Sends that ask for more than the slowest link of their route carries, and how many there are."""
    limit = RouteCosts.of(schedule.topology, schedule.routes).rate[schedule.route]
    bad = np.flatnonzero(schedule.rate > limit * (1 + RELATIVE))
    what = "asks for a rate above that of its slowest link"
    problems = [
        Problem(
            words.send(schedule, row),
            what,
            f"at most {limit[row] / 1e9:.9g} GB/s",
            f"{schedule.rate[row] / 1e9:.9g} GB/s",
        )
        for row in bad[:SHOWN].tolist()
    ]
    return problems, len(bad)
