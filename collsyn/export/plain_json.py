"""`collsyn export --format json`: a schedule spelled out for programs that know nothing of this one.

Every message has its route by name, its bytes, its times, and the messages that it waits for (docs/formats/json.md).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collsyn.check.order import data_order
from collsyn.check.replay import time_tolerance
from collsyn.errors import InputError
from collsyn.export.sets import name_of
from collsyn.export.table import Exported, Options
from collsyn.model.plan import Plan
from collsyn.model.schedule import REDUCE, Schedule
from collsyn.units import beta_to_gb_s, rounded, s_to_us

SCHEMA = "collsyn-sends/1"


def export(sources: Sequence[tuple[Path, Schedule | Plan]], options: Options) -> list[Exported]:
    """A document for every schedule; raises InputError for plans, which are plain JSON already."""
    refused = ("dialect", "protocol", "in_place", "min_bytes", "max_bytes", "size_bytes", "instances", "max_channels")
    options.refuse("json", *refused)
    made = []
    for path, source in sources:
        if isinstance(source, Plan):
            raise InputError(f"{path}: is a plan, which is plain JSON already; expected a schedule")
        document = schedule_document(source)
        facts = {
            "format": "json",
            "collective": source.collective.kind,
            "num_ranks": source.collective.num_ranks,
            "size_bytes": source.size_bytes,
            "finish_us": document["finish_us"],
            "messages": len(document["messages"]),
        }
        name = f"{name_of(source, source.size_bytes)}.sends.json"
        made.append(Exported(name, document_text(document).encode(), facts))
    return made


def schedule_document(schedule: Schedule) -> dict[str, Any]:
    """The schedule as plain values: links, chunks and messages, each with all that is to be known of it."""
    topology, collective = schedule.topology, schedule.collective
    scale = schedule.size_bytes / collective.total_units
    links = [
        {
            "from": topology.vertex_name(int(topology.src[link])),
            "to": topology.vertex_name(int(topology.dst[link])),
            "alpha_us": s_to_us(float(topology.alpha_s[link])),
            "overhead_us": s_to_us(float(topology.overhead_s[link])),
            "bandwidth_gb_s": rounded(beta_to_gb_s(float(topology.beta_s_per_byte[link]))),
        }
        for link in range(topology.num_links)
    ]
    chunks = [
        {
            "bytes": float(collective.units[chunk] * scale),
            "input_offset": float(collective.in_offset[chunk] * scale),
            "output_offset": float(collective.out_offset[chunk] * scale),
            "from": collective.contributors(chunk).tolist(),
            "to": collective.receivers(chunk).tolist(),
        }
        for chunk in range(collective.num_chunks)
    ]
    return {
        "schema": SCHEMA,
        "collective": collective.kind,
        "reduces": collective.reduces,
        "num_ranks": collective.num_ranks,
        "size_bytes": schedule.size_bytes,
        "finish_us": s_to_us(schedule.finish_s),
        "topology": topology.name,
        "links": links,
        "chunks": chunks,
        "messages": _messages(schedule),
    }


def _messages(schedule: Schedule) -> list[dict[str, Any]]:
    messages, topology = schedule.messages, schedule.topology
    order = data_order(schedule, time_tolerance(schedule))
    needs: list[set[int]] = [set() for _ in range(len(messages))]
    for before, after, starts in zip(
        order.before.tolist(), order.after.tolist(), (~order.done_waits.astype(bool)).tolist(), strict=True
    ):
        if starts:
            needs[after].add(before)
    found = []
    for m in range(len(messages)):
        rows = messages.rows[m]
        route = schedule.routes[int(messages.route[m])]
        found.append(
            {
                "chunks": schedule.chunk[rows].tolist(),
                "from": int(messages.src[m]),
                "to": int(messages.dst[m]),
                "op": "reduce" if (schedule.op[rows] == REDUCE).any() else "copy",
                "from_slots": schedule.src_slot[rows].tolist(),
                "to_slots": schedule.dst_slot[rows].tolist(),
                "links": route.tolist(),
                "path": topology.route_name(route).split("->") if len(route) else [],
                "bytes": float(messages.num_bytes[m]),
                "start_us": s_to_us(float(messages.start_s[m])),
                "arrival_us": s_to_us(float(messages.arrival_s[m])),
                "done_us": s_to_us(float(messages.done_s[m])),
                "after": sorted(needs[m]),
            }
        )
    return found


def document_text(document: dict[str, Any]) -> str:
    """The file: one link, chunk or message a line."""
    parts = []
    for key, value in document.items():
        if isinstance(value, list):
            rows = ",\n".join(f"    {json.dumps(row)}" for row in value)
            parts.append(f'  "{key}": [\n{rows}\n  ]' if rows else f'  "{key}": []')
        else:
            parts.append(f'  "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"
