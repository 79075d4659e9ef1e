"""Plan files: JSON, one column a line (docs/formats/plan.md)."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from collsyn.files import write_atomic
from collsyn.model.collective_file import collective_document, collective_from_fields
from collsyn.model.fields import Fields, load_document
from collsyn.model.plan import COLUMNS, MOVES, Buffer, Op, Plan
from collsyn.model.topology_file import topology_document, topology_from_fields

SCHEMA = "collsyn-plan/1"
# Columns must not wrap around, nor sums of offsets and lengths overflow, nor flags exceed the memory.
_MAX_INDEX, MAX_UNITS, MAX_FLAGS = (1 << 31) - 1, 1 << 53, 1 << 24
_ROWS = {
    "channel_rank": _MAX_INDEX,
    "channel_ptr": MAX_UNITS,
    "scratch_ptr": MAX_UNITS,
    "scratch_chunk": _MAX_INDEX,
    "scratch_first": MAX_UNITS,
    "scratch_units": MAX_UNITS,
    "num_flags": MAX_FLAGS,
}


def read_plan(path: str | Path) -> Plan:
    """The plan in a JSON file; raises InputError that names file and key."""
    return plan_from_fields(load_document(path))


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan as JSON; equal plans give equal bytes."""
    write_atomic(path, plan_text(plan))


def plan_text(plan: Plan) -> str:
    """The JSON text of a plan."""
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "name": plan.name,
        "collective": collective_document(plan.collective),
        "units_per_chunk_unit": plan.units_per_chunk_unit,
        "provenance": dict(plan.provenance),
        "routes": [list(route) for route in plan.routes.tuples()],
    }
    if plan.runs_ahead:
        head["runs_ahead"] = True
    if plan.topology is not None:
        head["topology"] = topology_document(plan.topology)
    head |= {name: getattr(plan, name).tolist() for name in _ROWS}
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    columns = [f"    {json.dumps(key)}: {json.dumps(values.tolist())}" for key, values in plan.columns.items()]
    return "{\n" + ",\n".join([*lines, '  "instructions": {\n' + ",\n".join(columns) + "\n  }"]) + "\n}\n"


def plan_from_fields(fields: Fields) -> Plan:
    """The plan of a document, with every index in range; raises InputError."""
    fields.text("schema", choices=[SCHEMA])
    collective = collective_from_fields(fields.inner("collective"))
    topology = topology_from_fields(fields.inner("topology")) if fields.has("topology") else None
    rows: dict[str, Any] = {name: fields.integers(name, minimum=-most, maximum=most) for name, most in _ROWS.items()}
    instructions = fields.inner("instructions")
    columns = {}
    for key, dtype in COLUMNS.items():
        most = _MAX_INDEX if dtype == np.int32 else MAX_UNITS
        columns[key] = instructions.integers(key, minimum=-most, maximum=most).astype(dtype)
    instructions.done()
    routes = fields.routes("routes", default=[])
    if collective.num_ranks != (topology.num_ranks if topology else collective.num_ranks):
        fields.fail("collective.ranks", "differs from the topology's number of ranks")
    _check_rows(fields, rows, columns, collective.num_ranks)
    plan = Plan(
        collective=collective,
        num_ranks=collective.num_ranks,
        units_per_chunk_unit=fields.integer(
            "units_per_chunk_unit", minimum=1, maximum=MAX_UNITS // collective.total_units
        ),
        columns=columns,
        routes=routes,
        topology=topology,
        name=fields.text("name", default="plan"),
        provenance=fields.mapping("provenance", default={}),
        runs_ahead=fields.flag("runs_ahead", default=False),
        **rows,
    )
    fields.done()
    _check_instructions(fields, plan)
    return plan


def _check_rows(fields: Fields, rows: dict[str, Any], columns: dict[str, Any], num_ranks: int) -> None:
    lengths = {len(values) for values in columns.values()}
    if len(lengths) != 1:
        fields.fail("instructions", "columns differ in length")
    for pointer, entries, total in (
        ("channel_ptr", len(rows["channel_rank"]), lengths.pop()),
        ("scratch_ptr", num_ranks, len(rows["scratch_chunk"])),
    ):
        ptr = rows[pointer]
        if len(ptr) != entries + 1 or ptr[0] != 0 or ptr[-1] != total or (np.diff(ptr) < 0).any():
            fields.fail(pointer, f"must rise from 0 to {total} in {entries} steps")
    if len({len(rows[name]) for name in ("scratch_chunk", "scratch_first", "scratch_units")}) != 1:
        fields.fail("scratch_chunk", "scratch columns differ in length")
    if len(rows["num_flags"]) != num_ranks or (rows["num_flags"] < 0).any():
        fields.fail("num_flags", f"needs one number of at least 0 for each of {num_ranks} ranks")
    ranks = rows["channel_rank"]
    if len(ranks) and (ranks.min() < 0 or ranks.max() >= num_ranks):
        fields.fail("channel_rank", f"expected ranks 0 .. {num_ranks - 1}")


def _check_instructions(fields: Fields, plan: Plan) -> None:
    """Ranges that an executor would follow blindly: buffers, offsets, peers, flags."""
    c = plan.columns
    op = c["op"]
    owner = np.repeat(plan.channel_rank, np.diff(plan.channel_ptr))
    remote = np.isin(op, [Op.PUT, Op.GET, Op.GET_REDUCE, Op.SIGNAL])
    moves = np.isin(op, list(MOVES))
    flag_rank = np.where(op == Op.SIGNAL, np.clip(c["peer"], 0, plan.num_ranks - 1), owner)
    flagged = np.isin(op, [Op.SIGNAL, Op.WAIT])
    tests = [
        ("op", ~np.isin(op, [int(o) for o in Op]), "no such instruction"),
        ("peer", remote & ((c["peer"] < 0) | (c["peer"] >= plan.num_ranks)), "no such rank"),
        ("flag", flagged & ((c["flag"] < 0) | (c["flag"] >= plan.num_flags[flag_rank])), "no such flag"),
        ("value", flagged & (c["value"] < 1), "expected a value of at least 1"),
        ("length", moves & (c["length"] < 1), "expected at least 1 unit"),
        ("route", (c["route"] < -1) | (c["route"] >= max(len(plan.routes), 0)), "no such route"),
    ]
    extents = plan.buffer_units()
    for which in ("dst", "src", "src2"):
        used = moves if which != "src2" else np.isin(op, [Op.REDUCE, Op.GET_REDUCE])
        away = (op == Op.PUT) if which == "dst" else np.isin(op, [Op.GET, Op.GET_REDUCE]) & (which == "src")
        buffer, offset = c[f"{which}_buffer"], c[f"{which}_offset"]
        bad_buffer = used & ((buffer < 0) | (buffer > Buffer.SCRATCH))
        rank = np.where(away, np.clip(c["peer"], 0, plan.num_ranks - 1), owner)
        extent = extents[rank, np.clip(buffer, 0, Buffer.SCRATCH)]
        tests.append((f"{which}_buffer", bad_buffer, "no such buffer"))
        tests.append((f"{which}_offset", used & ((offset < 0) | (offset + c["length"] > extent)), "outside the buffer"))
    for key, bad, what in tests:
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            fields.fail(f"instructions.{key}[{row}]", f"is {int(c[key][row])}: {what}")
    if (plan.scratch_chunk >= plan.collective.num_chunks).any():
        fields.fail("scratch_chunk", "names a chunk that is not there")
    whole = plan.collective.units[np.maximum(plan.scratch_chunk, 0)] * plan.units_per_chunk_unit
    ends = plan.scratch_first + plan.scratch_units
    if ((plan.scratch_first < 0) | (plan.scratch_units < 0) | ((plan.scratch_chunk >= 0) & (ends > whole))).any():
        fields.fail("scratch_units", "a segment is no part of its chunk")
    if plan.topology is not None and len(plan.routes.data):
        links = plan.routes.data
        if links.min() < 0 or links.max() >= plan.topology.num_links:
            fields.fail("routes", f"names link {int(links.max())}; expected 0 .. {plan.topology.num_links - 1}")
