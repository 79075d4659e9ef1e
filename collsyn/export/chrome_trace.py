"""`collsyn export --format chrome-trace`: a simulated schedule or plan for Perfetto and chrome://tracing.

A process a rank and one for the links; a lane (thread) for everything that happens one after the other; an arrow (flow)
from what sends to what waits for it (docs/formats/chrome-trace.md).
"""

import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from collsyn.check.interleave import flag_ids, owners
from collsyn.check.simulate_plan import Transfers, simulate_plan
from collsyn.errors import InputError
from collsyn.export.sets import name_of, own_size
from collsyn.export.table import Exported, Options
from collsyn.model.plan import Op, Plan
from collsyn.model.schedule import REDUCE, RouteCosts, Schedule
from collsyn.model.topology import Topology
from collsyn.units import s_to_us

# The size of a plan that is timed, where none is asked for.

# Chunks named in the title of a message; the arguments have them all.
_NAMED = 4
_PS_PER_US = 1_000_000


@dataclass(frozen=True)
class Slice:
    """Something that takes time, in whole picoseconds: which process and group of lanes show it, and what it is."""

    process: int
    group: str
    name: str
    start_ps: int
    end_ps: int
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trace:
    """Slices, the names of processes, and arrows (from slice, at, to slice, at)."""

    slices: list[Slice]
    processes: list[str]
    flows: list[tuple[int, int, int, int]]


def export(sources: Sequence[tuple[Path, Schedule | Plan]], options: Options) -> list[Exported]:
    """A trace for every source: a schedule at its own times, a plan as it simulates at a size. Raises InputError."""
    refused = ("dialect", "protocol", "in_place", "min_bytes", "max_bytes", "instances", "max_channels")
    options.refuse("chrome-trace", *refused)
    made = []
    for path, source in sources:
        size_bytes = own_size(source, options)
        if isinstance(source, Schedule):
            finish_s, trace = source.finish_s, schedule_trace(source)
        else:
            if source.topology is None:
                raise InputError(f"{path}: the plan names no topology, so that it has no times")
            finish_s, trace = plan_trace(source, source.topology, size_bytes)
        facts = {
            "format": "chrome-trace",
            "collective": source.collective.kind,
            "num_ranks": source.collective.num_ranks,
            "size_bytes": size_bytes,
            "finish_us": s_to_us(finish_s),
            "slices": len(trace.slices),
            "flows": len(trace.flows),
        }
        made.append(Exported(f"{name_of(source, size_bytes)}.trace.json", trace_text(trace, facts).encode(), facts))
    return made


def schedule_trace(schedule: Schedule) -> Trace:
    """Messages as they leave, as they arrive, and on every link of their routes. O(n log n) for n messages."""
    messages, topology = schedule.messages, schedule.topology
    costs = RouteCosts.of(topology, schedule.routes)
    slices: list[Slice] = []
    flows: list[tuple[int, int, int, int]] = []
    for m in range(len(messages)):
        rows, src, dst = messages.rows[m], int(messages.src[m]), int(messages.dst[m])
        route, start_s, busy_s = int(messages.route[m]), float(messages.start_s[m]), float(messages.busy_s[m])
        chunks = schedule.chunk[rows].tolist()
        verb = "reduce" if (schedule.op[rows] == REDUCE).any() else "copy"
        title = _title(chunks)
        args = {"chunks": chunks, "bytes": float(messages.num_bytes[m]), "op": verb, "from": src, "to": dst}
        done_ps, start_ps = _ps(float(messages.done_s[m])), _ps(start_s)
        if src == dst:
            slices.append(Slice(src, "local", f"{title} {verb}", start_ps, done_ps, args))
            continue
        args["route"] = topology.route_name(schedule.routes[route])
        head_ps = _ps(start_s + float(costs.alpha_s[route]))
        begin = len(slices)
        slices.append(Slice(src, "send", f"{title} to {dst}", start_ps, _ps(start_s + busy_s), args))
        slices.append(Slice(dst, "receive", f"{title} from {src}", head_ps, max(done_ps, head_ps), args))
        flows.append((begin, start_ps, begin + 1, head_ps))
        first = int(schedule.routes.ptr[route])
        for place, link in enumerate(schedule.routes[route].tolist()):
            at_s = start_s + float(costs.before_s[first + place])
            ends = (_ps(at_s), _ps(at_s + busy_s))
            slices.append(Slice(topology.num_ranks, _link(topology, link), f"{title} {src}->{dst}", *ends, args))
    return Trace(slices, _processes(topology), flows)


def plan_trace(plan: Plan, topology: Topology, size_bytes: int) -> tuple[float, Trace]:
    """Finish in seconds, and instructions of every channel, transfers on every link, arrows from signals to waits."""
    times = simulate_plan(plan, topology, size_bytes)
    num_bytes = plan.columns["length"] * (size_bytes / plan.total_units)
    op, owner = plan.columns["op"], owners(plan).tolist()
    channel = np.repeat(np.arange(plan.num_channels), np.diff(plan.channel_ptr)).tolist()
    first = {rank: int(plan.channels_of(rank)[0]) for rank in set(owner)}
    slices: list[Slice] = []
    of_row: dict[int, int] = {}
    for i in np.flatnonzero(op != Op.NOP).tolist():
        kind, rank = Op(int(op[i])), owner[i]
        name = kind.name.lower()
        if kind not in (Op.WAIT, Op.COPY, Op.REDUCE):
            name += f" {int(plan.columns['peer'][i])}"
        args: dict[str, Any] = {"instruction": plan.describe(i)}
        if num_bytes[i] and kind not in (Op.WAIT, Op.SIGNAL):
            args["bytes"] = float(num_bytes[i])
        of_row[i] = len(slices)
        ends = (_ps(float(times.start_s[i])), _ps(float(times.end_s[i])))
        slices.append(Slice(rank, f"channel {channel[i] - first[rank]}", name, *ends, args))
    transfers = Transfers.of(plan, topology, num_bytes)
    costs = RouteCosts.of(topology, transfers.routes)
    for i in transfers.rows.tolist():
        route, peer = int(transfers.route[i]), int(plan.columns["peer"][i])
        ends_of = (owner[i], peer) if op[i] == Op.PUT else (peer, owner[i])
        last_s = float(times.arrival_s[i] - costs.alpha_s[route])
        args = {"bytes": float(num_bytes[i]), "instruction": plan.describe(i)}
        begin = int(transfers.routes.ptr[route])
        for place, link in enumerate(transfers.routes[route].tolist()):
            before_s = float(costs.before_s[begin + place])
            span = (_ps(float(times.start_s[i]) + before_s), _ps(last_s + before_s))
            slices.append(
                Slice(topology.num_ranks, _link(topology, link), "{}->{}".format(*ends_of), span[0], max(span), args)
            )
    flows = [(of_row[s], slices[of_row[s]].start_ps, of_row[w], slices[of_row[w]].end_ps) for s, w in _wakes(plan)]
    return times.finish_s, Trace(slices, _processes(topology), flows)


def _wakes(plan: Plan) -> Iterator[tuple[int, int]]:
    """Every wait with the signal that first raises its flag far enough."""
    op, value = plan.columns["op"], plan.columns["value"].tolist()
    flags = flag_ids(plan)
    raised: dict[int, list[int]] = {}
    for i in np.flatnonzero(op == Op.SIGNAL).tolist():
        raised.setdefault(flags[i], []).append(i)
    for i in np.flatnonzero(op == Op.WAIT).tolist():
        signal = next((s for s in raised.get(flags[i], ()) if value[s] >= value[i]), None)
        if signal is not None and value[i] > 0:
            yield signal, i


def trace_text(trace: Trace, facts: dict[str, Any]) -> str:
    """The file: one event a line, times in microseconds, lanes numbered within their process."""
    lanes = _lanes(trace.slices)
    names: dict[tuple[int, tuple[int, str, int]], int] = {}
    for process, group, number in sorted(
        {(s.process, s.group, lane) for s, lane in zip(trace.slices, lanes, strict=True)}, key=_lane_order
    ):
        # Numbers begin at 1: viewers take process 0 and thread 0 for the idle ones of the system.
        names[process, (process, group, number)] = 1 + sum(1 for known, _ in names if known == process)
    events: list[dict[str, Any]] = []
    for process in sorted({s.process for s in trace.slices}):
        events.append(_meta("process_name", process, 1, {"name": trace.processes[process]}))
        events.append(_meta("process_sort_index", process, 1, {"sort_index": process}))
    for (process, (_, group, number)), lane in names.items():
        events.append(
            _meta("thread_name", process, lane, {"name": group if number == 0 else f"{group} ({number + 1})"})
        )
        events.append(_meta("thread_sort_index", process, lane, {"sort_index": lane}))
    where = [
        (s.process, names[s.process, (s.process, s.group, lane)]) for s, lane in zip(trace.slices, lanes, strict=True)
    ]
    for item, (process, lane) in zip(trace.slices, where, strict=True):
        span = {"ts": _us(item.start_ps), "dur": _us(item.end_ps - item.start_ps)}
        event = {"name": item.name, "cat": item.group.split(" ")[0], "ph": "X", "pid": process + 1, "tid": lane}
        events.append({**event, **span, "args": item.args})
    for number, (source, left_ps, target, there_ps) in enumerate(trace.flows):
        for phase, (process, lane), at in (("s", where[source], left_ps), ("f", where[target], there_ps)):
            event = {"name": "data", "cat": "flow", "ph": phase, "id": number, "pid": process + 1, "tid": lane}
            events.append({**event, "ts": _us(at), **({"bp": "e"} if phase == "f" else {})})
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    return f'{{"displayTimeUnit":"ns","otherData":{json.dumps(facts)},"traceEvents":[\n{lines}\n]}}\n'


def _lanes(slices: Sequence[Slice]) -> list[int]:
    """A lane of its group for every slice, so that no two of a lane overlap; as few as possible."""
    groups: dict[tuple[int, str], list[int]] = {}
    for i, item in enumerate(slices):
        groups.setdefault((item.process, item.group), []).append(i)
    lane = [0] * len(slices)
    for members in groups.values():
        free: list[int] = []
        busy: list[tuple[int, int]] = []
        count = 0
        for i in sorted(members, key=lambda i: (slices[i].start_ps, slices[i].end_ps, i)):
            while busy and busy[0][0] <= slices[i].start_ps:
                heapq.heappush(free, heapq.heappop(busy)[1])
            if not free:
                free.append(count)
                count += 1
            lane[i] = heapq.heappop(free)
            heapq.heappush(busy, (slices[i].end_ps, lane[i]))
    return lane


def _lane_order(key: tuple[int, str, int]) -> tuple[int, list[tuple[int, int, str]], int]:
    """Lanes by process, then by name with numbers as numbers."""
    process, group, number = key
    words = group.replace("->", " ").split(" ")
    return process, [(0, int(word), "") if word.isdigit() else (1, 0, word) for word in words], number


def _meta(name: str, process: int, lane: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": process + 1, "tid": lane, "args": args}


def _processes(topology: Topology) -> list[str]:
    return [*(f"rank {rank}" for rank in range(topology.num_ranks)), "links"]


def _link(topology: Topology, link: int) -> str:
    """Lanes of a link: its name, with its number where other links join the same two."""
    name = topology.link_name(link)
    alike = np.flatnonzero((topology.src == topology.src[link]) & (topology.dst == topology.dst[link]))
    return name if len(alike) == 1 else f"{name} link {link}"


def _title(chunks: list[int]) -> str:
    shown = ",".join(map(str, chunks[:_NAMED])) + ("" if len(chunks) <= _NAMED else f" and {len(chunks) - _NAMED} more")
    return f"chunk {shown}" if len(chunks) == 1 else f"chunks {shown}"


def _ps(time_s: float) -> int:
    return round(time_s * 1e12)


def _us(time_ps: int) -> float:
    return time_ps / _PS_PER_US
