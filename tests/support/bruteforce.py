"""A second, slow opinion on schedules: straight from the words of the model, with sets, recursion and pairwise loops.

It shares no code with the checker, so that a mutant which happens to be right is known by its own merit.
"""

from collections import defaultdict
from functools import cache
from itertools import pairwise

from collsyn.model.schedule import Schedule

REL = 1e-9


class Wrong(Exception):
    """Why a schedule is not valid."""


def why_invalid(schedule: Schedule) -> str | None:
    """A reason, or None for a schedule that is right (bounds are not looked at)."""
    try:
        _judge(schedule)
    except Wrong as reason:
        return str(reason)
    return None


def _require(condition, reason):
    if not condition:
        raise Wrong(reason)


def _judge(schedule):
    topology, collective = schedule.topology, schedule.collective
    columns = {name: values.tolist() for name, values in schedule.columns().items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    routes = schedule.routes.tuples()
    for row in rows:
        _require(row["start_s"] >= 0 and row["rate"] >= 0, "time or rate below 0")
        _walk(topology, routes[row["route"]], row["src"], row["dst"])
    messages = defaultdict(list)
    for index, row in enumerate(rows):
        messages["batch", row["batch"]].append(row) if row["batch"] >= 0 else messages["row", index].append(row)
    for members in messages.values():
        for key in ("src", "dst", "route", "start_s", "rate"):
            _require(len({row[key] for row in members}) == 1, f"batch differs in {key}")
        _travel(schedule, members, routes[members[0]["route"]])
    finish = max((row["done"] for row in rows), default=0.0)
    shortest = min((row["transfer"] for row in rows if row["src"] != row["dst"]), default=float("inf"))
    tol = min(REL * finish, shortest / 4)
    for members in messages.values():
        members[0]["carries"] = sorted(row["chunk"] for row in members)
    _check_loads(topology, [members[0] for members in messages.values()], routes, tol)
    _check_data(collective, rows, tol)


def _walk(topology, route, src, dst):
    if src == dst or not route:
        _require(src == dst and not route, "empty route")
        return
    vertices = [int(topology.src[route[0]])]
    for link in route:
        _require(int(topology.src[link]) == vertices[-1], "links do not follow each other")
        vertices.append(int(topology.dst[link]))
    _require(vertices[0] == src and vertices[-1] == dst, "route of other ranks")
    _require(all(v >= topology.num_ranks for v in vertices[1:-1]), "through a rank")
    _require(len(set(vertices)) == len(vertices), "vertex twice")


def _travel(schedule, members, route):
    """Fills in transfer, done, occupied and the rate of each send of a message."""
    topology, unit = schedule.topology, schedule.size_bytes / schedule.collective.total_units
    num_bytes = sum(int(schedule.collective.units[row["chunk"]]) * unit for row in members)
    slowest = min((1 / float(topology.beta_s_per_byte[link]) for link in route), default=float("inf"))
    rate = members[0]["rate"] or slowest
    _require(rate <= slowest * (1 + REL), "rate above the slowest link")
    transfer = num_bytes / rate if route else 0.0
    reduce_s = float(topology.reduce_s_per_byte[members[0]["dst"]]) * num_bytes
    start = members[0]["start_s"]
    arrival = start + sum(float(topology.alpha_s[link]) for link in route) + transfer
    overhead = max((float(topology.overhead_s[link]) for link in route), default=0.0)
    for row in members:
        row["transfer"], row["rate"] = transfer, rate
        row["done"] = arrival + (reduce_s if any(other["op"] for other in members) else 0.0)
        row["occupied"] = overhead + transfer


def _is_one(topology, routes, link, a, b):
    """Whether two messages that use a link alike are one there: one switch copies them later or reduced them before."""
    if a["carries"] != b["carries"]:
        return False
    one, two = routes[a["route"]], routes[b["route"]]
    here, there = one.index(link), two.index(link)
    if (a["src"], a["src_slot"], a["start_s"]) == (b["src"], b["src_slot"], b["start_s"]):
        ends = [n for n in range(here + 1, len(one)) if topology.multicast[topology.src[one[n]]]]
        if any(one[:n] == two[:n] for n in ends):
            return True
    if a["op"] and b["op"] and (a["dst"], a["dst_slot"]) == (b["dst"], b["dst_slot"]):
        begins = [n for n in range(1, here + 1) if topology.reduction[topology.src[one[n]]]]
        return any(one[n:] == two[there - (here - n) :] for n in begins if there - (here - n) > 0)
    return False


def _check_loads(topology, messages, routes, tol):
    on_link, joined = defaultdict(list), defaultdict(list)
    for message in messages:
        head = message["start_s"]
        for link in routes[message["route"]]:
            use = (head, head + message["occupied"] - tol, message["rate"])
            known = joined[link, use]
            if not any(_is_one(topology, routes, link, message, other) for other in known):
                on_link[link].append(use)
            known.append(message)
            head += float(topology.alpha_s[link])
    for link, uses in on_link.items():
        for begin, _, _ in uses:
            load = sum(rate for a, b, rate in uses if a <= begin < b)
            _require(load * float(topology.beta_s_per_byte[link]) <= 1 + REL, f"link {link} overloaded at {begin}")


def _check_data(collective, rows, tol):
    """Content of a slot at a moment = the writes up to then, in order, each with the content of its own source."""
    writers = defaultdict(list)
    for index, row in enumerate(rows):
        row["local"] = row["src"] == row["dst"]
        row["seen_at"] = row["start_s"] + tol
        row["at_once"] = row["local"] and row["done"] <= row["seen_at"]
        # A write stands at (time, 0 arrivals | 1 merges in row order, row); a read sees what stands before it.
        row["write"] = (row["seen_at"], 1, index, 1) if row["at_once"] else (row["done"], 0, index, 1)
        row["read"] = (row["seen_at"], 1 if row["local"] else 2, index, 0)
        writers[row["dst"], row["chunk"], row["dst_slot"]].append(index)
    for indexes in writers.values():
        indexes.sort(key=lambda i: rows[i]["write"])
    givers = [set(collective.contributors(c).tolist()) for c in range(collective.num_chunks)]
    whole = [frozenset(g) if collective.reduces else frozenset({"bytes"}) for g in givers]

    def given(rank, chunk):
        if rank not in givers[chunk]:
            return frozenset()
        return frozenset({rank}) if collective.reduces else frozenset({"bytes"})

    @cache
    def sent(index):
        row = rows[index]
        if row["src_slot"] == -1:
            return given(row["src"], row["chunk"])
        return content(row["src"], row["chunk"], row["src_slot"], row["read"])

    def content(rank, chunk, slot, before):
        here = given(rank, chunk) if slot == 0 else frozenset()
        for index in writers[rank, chunk, slot]:
            if rows[index]["write"] < before:
                here = sent(index) | here if rows[index]["op"] else sent(index)
        return here

    for index, row in enumerate(rows):
        _require(sent(index), f"row {index} sends nothing")
        if row["op"]:
            before = content(row["dst"], row["chunk"], row["dst_slot"], row["write"])
            _require(not before & sent(index), f"row {index} joins twice")
    for indexes in writers.values():
        travelled = [i for i in indexes if not rows[i]["local"]]
        for a, b in pairwise(travelled):
            if rows[b]["done"] - rows[a]["done"] <= tol and not (rows[a]["op"] and rows[b]["op"]):
                same = not rows[a]["op"] and not rows[b]["op"] and sent(a) == sent(b)
                _require(same, f"rows {a} and {b} race")
    for chunk in range(collective.num_chunks):
        for rank in collective.receivers(chunk).tolist():
            end = content(rank, chunk, 0, (float("inf"),))
            _require(end == whole[chunk], f"rank {rank} ends with {set(end)} of chunk {chunk}")
