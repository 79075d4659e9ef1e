"""Schedule files: JSON for people and small schedules, .npz columns for large ones (docs/formats/schedule.md)."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.errors import InputError
from collsyn.files import read_bytes, write_atomic
from collsyn.model.arrays import Rows
from collsyn.model.bound import bound_from_fields
from collsyn.model.collective import Collective
from collsyn.model.collective_file import collective_document, collective_from_fields
from collsyn.model.fields import Fields, parse_document
from collsyn.model.schedule import Schedule, column_dtypes, is_default
from collsyn.model.topology import MAX_BETA_S_PER_BYTE, Topology
from collsyn.model.topology_file import topology_document, topology_from_fields
from collsyn.units import MAX_SIZE_BYTES

SCHEMA = "collsyn-schedule/1"
# As slow as the slowest link; what is slower takes longer than floats can say.
MIN_RATE_BYTES_PER_S = 1 / MAX_BETA_S_PER_BYTE
# What an algorithm set, which is an archive, too, has in it (set_file.py).
SET_HEADER = "set.json"


def read_schedule(path: str | Path) -> Schedule:
    """The schedule in a file of either form, told apart by content; raises InputError that names file and key."""
    return schedule_from_bytes(read_bytes(path), str(path))


def schedule_from_bytes(content: bytes, file: str) -> Schedule:
    """The schedule that a file of either form holds; raises InputError that names file and key."""
    if content[:2] == b"PK":
        return _from_npz(content, file)
    return schedule_from_fields(parse_document(content, file))


def write_schedule(schedule: Schedule, path: str | Path) -> None:
    """Write the columnar form if the name ends in .npz, else JSON; equal schedules give equal bytes."""
    write_atomic(path, schedule_bytes(schedule, path))


def schedule_bytes(schedule: Schedule, path: str | Path) -> bytes:
    """The content of a file of that name."""
    return _npz_bytes(schedule) if str(path).endswith(".npz") else schedule_text(schedule).encode()


def schedule_text(schedule: Schedule) -> str:
    """The JSON text of a schedule, one key or column a line."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in _header(schedule).items()]
    columns = [
        f"    {json.dumps(name)}: {json.dumps(values.tolist())}"
        for name, values in schedule.columns().items()
        if not is_default(name, values)
    ]
    return "{\n" + ",\n".join([*lines, '  "sends": {\n' + ",\n".join(columns) + "\n  }"]) + "\n}\n"


def schedule_from_fields(fields: Fields) -> Schedule:
    """The schedule of a JSON document; raises InputError."""
    sends = fields.inner("sends")
    columns: dict[str, npt.NDArray[Any]] = {}
    for name, dtype in column_dtypes().items():
        if sends.has(name) or name in ("chunk", "src", "dst", "route", "start_s"):
            whole = np.issubdtype(dtype, np.integer)
            columns[name] = sends.integers(name, **_limits(dtype)) if whole else sends.numbers(name)
    sends.done()
    return _assemble(fields, fields.routes("routes"), columns)


def _header(schedule: Schedule) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "size_bytes": schedule.size_bytes,
        "finish_us": schedule.finish_s * 1e6,
        "collective": collective_document(schedule.collective),
        "bounds": [bound.document() for bound in schedule.bounds],
        "provenance": dict(schedule.provenance),
        "topology": topology_document(schedule.topology),
        "routes": [list(route) for route in schedule.routes.tuples()],
    }


def _assemble(fields: Fields, routes: Rows, columns: dict[str, npt.NDArray[Any]]) -> Schedule:
    fields.text("schema", choices=[SCHEMA])
    size_bytes = fields.integer("size_bytes", minimum=1, maximum=MAX_SIZE_BYTES)
    fields.number("finish_us", minimum=0)
    collective = collective_from_fields(fields.inner("collective"))
    topology = topology_from_fields(fields.inner("topology"))
    bounds = tuple(bound_from_fields(entry) for entry in fields.each("bounds", default=[]))
    provenance = fields.mapping("provenance", default={})
    fields.done()
    _check_columns(fields, collective, topology, routes, columns)
    schedule = Schedule.build(collective, topology, size_bytes, routes, provenance, **columns)
    return schedule.with_notes(bounds)


def _check_columns(
    fields: Fields, collective: Collective, topology: Topology, routes: Rows, columns: dict[str, npt.NDArray[Any]]
) -> None:
    """Everything that later code indexes with must be in range; the rest is for the checker to judge."""
    if collective.num_ranks != topology.num_ranks:
        fields.fail("collective.ranks", f"is {collective.num_ranks}; the topology has {topology.num_ranks} ranks")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        fields.fail("sends", f"columns differ in length: {', '.join(f'{k} {v}' for k, v in lengths.items())}")
    limits = {
        "chunk": collective.num_chunks,
        "src": topology.num_ranks,
        "dst": topology.num_ranks,
        "route": len(routes),
    }
    for name, limit in limits.items():
        bad = (columns[name] < 0) | (columns[name] >= limit)
        if bad.any():
            fields.fail(f"sends.{name}", f"holds {int(columns[name][bad][0])}; expected 0 .. {limit - 1}")
    if len(routes.data) and (routes.data.min() < 0 or routes.data.max() >= topology.num_links):
        fields.fail("routes", f"names link {int(routes.data.max())}; expected 0 .. {topology.num_links - 1}")
    if not np.isfinite(columns["start_s"]).all() or (columns["start_s"] < 0).any():
        fields.fail("sends.start_s", "holds a time below 0")
    rate = columns.get("rate", np.zeros(1))
    if (rate < 0).any() or ((rate > 0) & (rate < MIN_RATE_BYTES_PER_S)).any():
        fields.fail(
            "sends.rate", f"holds a rate that is neither 0 nor at least {MIN_RATE_BYTES_PER_S:g} bytes per second"
        )
    for name, low, high in (("op", 0, 1), ("src_slot", -1, 127), ("dst_slot", 0, 127)):
        values = columns.get(name, np.zeros(1))
        if (values < low).any() or (values > high).any():
            fields.fail(f"sends.{name}", f"holds a value outside {low} .. {high}")


def _limits(dtype: npt.DTypeLike) -> dict[str, int]:
    info = np.iinfo(np.dtype(dtype))
    return {"minimum": int(info.min), "maximum": int(info.max)}


def _npz_bytes(schedule: Schedule) -> bytes:
    """Uncompressed zip of .npy columns with the header as JSON bytes (fixed dates, so equal bytes)."""
    header = {key: value for key, value in _header(schedule).items() if key != "routes"}
    stream = io.BytesIO()
    arrays: dict[str, Any] = {name: v for name, v in schedule.columns().items() if not is_default(name, v)}
    arrays |= {"route_ptr": schedule.routes.ptr, "route_links": schedule.routes.data}
    np.savez(stream, header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8), **arrays)
    return stream.getvalue()


def _from_npz(content: bytes, file: str) -> Schedule:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as error:
        # Damaged bytes reach zipfile, zlib, the tokenizer and the allocator, each with errors of its own.
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{file}: is not a whole .npz file ({reason}); is it damaged or cut off?") from None
    if SET_HEADER in arrays:
        raise InputError(f"{file}: is an algorithm set; expected one schedule")
    missing = [
        k for k in ("header", "route_ptr", "route_links", "chunk", "src", "dst", "route", "start_s") if k not in arrays
    ]
    if missing:
        raise InputError(f"{file}:{missing[0]}: is missing")
    dtypes = {"header": np.uint8, "route_ptr": np.int64, "route_links": np.int32, **column_dtypes()}
    for name, values in arrays.items():
        if name not in dtypes:
            raise InputError(f"{file}:{name}: is not a column that is known here")
        # A member without the name's .npy comes as bytes.
        shape = f"{values.ndim} dimensions of {values.dtype}" if isinstance(values, np.ndarray) else "no array"
        if shape != f"1 dimensions of {np.dtype(dtypes[name])}":
            raise InputError(f"{file}:{name}: holds {shape}; expected 1 dimension of {np.dtype(dtypes[name])}")
    fields = parse_document(arrays.pop("header").tobytes(), file)
    ptr, links = arrays.pop("route_ptr"), arrays.pop("route_links")
    if len(ptr) < 1 or ptr[0] != 0 or ptr[-1] != len(links) or (np.diff(ptr) < 0).any():
        raise InputError(f"{file}:route_ptr: does not divide route_links into rows")
    return _assemble(fields, Rows(ptr, links), arrays)
