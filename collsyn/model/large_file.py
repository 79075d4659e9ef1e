"""Files of schedules too large to list (docs/formats/large-schedule.md): a line of JSON, then arrays as they stand."""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from collsyn.errors import InputError
from collsyn.files import replacing
from collsyn.model.bound import bound_from_fields
from collsyn.model.collective import Collective
from collsyn.model.collective_file import collective_document, collective_from_fields
from collsyn.model.fields import Fields, parse_document
from collsyn.model.orbit import OrbitSchedule, link_routes, part
from collsyn.model.schedule import Schedule
from collsyn.model.steps import MAX_STEPS, PHASES, StepTable
from collsyn.model.topology import Topology
from collsyn.model.topology_file import topology_document, topology_from_fields
from collsyn.units import MAX_SIZE_BYTES

SCHEMA = "collsyn-large-schedule/1"
SUFFIX = ".large"
LargeSchedule = StepTable | OrbitSchedule
# Part of the free memory that a table may take.
SPARE = 0.6

_START = f'{{"schema": "{SCHEMA}"'.encode()
_PAGE = 4096
_MAX_HEADER_BYTES = 1 << 30
_BASE = {"chunk": "<i4", "src": "<i4", "dst": "<i4", "link": "<i4", "start_s": "<f8", "op": "|u1"}
_DTYPES = ("|u1", "<u2", "<u4", "<i4", "<f8")
Arrays = Mapping[str, npt.NDArray[Any]]


class Described(Protocol):
    """What the first line of a file says, beside the arrays."""

    @property
    def collective(self) -> Collective: ...
    @property
    def topology(self) -> Topology: ...
    @property
    def size_bytes(self) -> int: ...


def is_large(path: str | Path) -> bool:
    """Whether a file begins as files of large schedules do."""
    try:
        with open(path, "rb") as stream:
            return stream.read(len(_START)) == _START
    except OSError:
        return False


def write_large(schedule: LargeSchedule, path: str | Path) -> None:
    """Write a schedule, whole or not at all, its tables row by row; raises InputError where that cannot be."""
    arrays = _arrays(schedule)
    with replacing(path) as stream:
        stream.write(_header(schedule, arrays))
        for values in arrays.values():
            # A row at a time: mapped arrays stay out of the memory.
            for row in values if values.ndim > 1 else [values]:
                stream.write(np.ascontiguousarray(row).data)
            stream.write(b"\0" * (-values.nbytes % _PAGE))


def read_large(path: str | Path) -> LargeSchedule:
    """The schedule of a file, its tables mapped and not read; raises InputError that names file and key."""
    file = str(path)
    try:
        with open(path, "rb") as stream:
            line = stream.readline(_MAX_HEADER_BYTES)
            length = os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    if not line.endswith(b"\n"):
        raise InputError(f"{file}: ends inside its first line; is it cut off?")
    fields = parse_document(line, file)
    fields.text("schema", choices=[SCHEMA])
    form = fields.text("form", choices=["steps", "orbit"])
    arrays = _mapped(fields, path, len(line), length)
    size_bytes = fields.integer("size_bytes", minimum=1, maximum=MAX_SIZE_BYTES)
    fields.number("finish_us", minimum=0)
    collective = collective_from_fields(fields.inner("collective"))
    topology = topology_from_fields(fields.inner("topology"))
    if collective.num_ranks != topology.num_ranks:
        fields.fail("collective.ranks", f"is {collective.num_ranks}; the topology has {topology.num_ranks} ranks")
    if collective.kind not in PHASES:
        fields.fail("collective.kind", f"is {collective.kind}; expected one of {', '.join(PHASES)}")
    notes: dict[str, Any] = {
        "bounds": tuple(bound_from_fields(entry) for entry in fields.each("bounds", default=[])),
        "provenance": fields.mapping("provenance", default={}),
    }
    if form == "orbit":
        fields.done()
        return _orbit(fields, arrays, collective, topology, size_bytes, notes)
    lag, num_steps = (fields.integer(name, minimum=1, maximum=MAX_STEPS) for name in ("lag", "num_steps"))
    fields.done()
    shape = (topology.num_ranks, collective.num_chunks)
    _expect(fields, arrays, {"steps": ("<u2", "<u4"), "ports": ("|u1",)}, dict.fromkeys(("steps", "ports"), shape))
    return StepTable(collective, topology, size_bytes, lag, num_steps, arrays["steps"], arrays["ports"], **notes)


def new_table(
    shape: tuple[int, int], num_steps: int, path: str | Path | None, beside_bytes: int = 0
) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Arrays for the steps (of a type that holds `num_steps`) and ports of a table that is to be made.

    They lie in memory if that has room to spare, else in files without a name, in the folder of `path` (None: of
    temporary files), of which nothing stays. `beside_bytes` of memory are needed at the same time. Raises InputError
    where there is no room, or where the disk has none to keep the table in `path` afterwards.
    """
    kinds = (np.uint16 if num_steps < np.iinfo(np.uint16).max else np.uint32, np.uint8)
    num_bytes = prod(shape) * sum(np.dtype(kind).itemsize for kind in kinds)
    folder = (
        Path(tempfile.gettempdir()) if path is None else next(p for p in Path(path).absolute().parents if p.exists())
    )
    in_memory = num_bytes + beside_bytes < available_bytes() * SPARE
    free, need = shutil.disk_usage(folder).free, num_bytes * ((path is not None) + (not in_memory))
    if need > free or beside_bytes > available_bytes() * SPARE:
        room = f"{available_bytes() / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB of the disk of {folder} are free"
        raise InputError(f"the schedule takes {num_bytes / 1e9:.1f} GB and {beside_bytes / 1e9:.1f} GB to make; {room}")
    if in_memory:
        return np.zeros(shape, dtype=kinds[0]), np.zeros(shape, dtype=np.uint8)
    return _nameless(folder, shape, kinds[0]), _nameless(folder, shape, np.uint8)


def _nameless(folder: Path, shape: tuple[int, int], kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """A mapped array in a file that goes with it; the disk is asked for the room now, not when it is written to."""
    try:
        with tempfile.TemporaryFile(dir=folder) as stream:
            os.posix_fallocate(stream.fileno(), 0, prod(shape) * np.dtype(kind).itemsize)
            return np.memmap(stream, kind, "r+", 0, shape)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {(error.strerror or str(error)).lower()}") from None


def available_bytes() -> int:
    """Bytes of memory that a process can still take; very many where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text()
        return int(text.split("MemAvailable:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return 1 << 62


def _arrays(schedule: LargeSchedule) -> dict[str, npt.NDArray[Any]]:
    if isinstance(schedule, StepTable):
        return {"steps": schedule.steps, "ports": schedule.ports}
    base = schedule.base
    columns = {name: getattr(base, name) for name in _BASE if name != "link"}
    columns["link"] = base.routes.data[base.routes.ptr[:-1]][base.route]
    return {
        "generators": np.array(schedule.generators, dtype="<i4"),
        "representatives": schedule.representatives.astype("<i4"),
        **{name: np.asarray(columns[name], dtype=dtype) for name, dtype in _BASE.items()},
    }


def _header(schedule: LargeSchedule, arrays: Arrays) -> bytes:
    listed, offset = [], 0
    for name, values in arrays.items():
        listed.append({"name": name, "dtype": values.dtype.str, "shape": list(values.shape), "offset": offset})
        offset += -(-values.nbytes // _PAGE) * _PAGE
    steps = isinstance(schedule, StepTable)
    document = {
        "schema": SCHEMA,
        "form": "steps" if steps else "orbit",
        "size_bytes": schedule.size_bytes,
        "finish_us": schedule.finish_s * 1e6,
        **({"lag": schedule.lag, "num_steps": schedule.num_steps} if isinstance(schedule, StepTable) else {}),
        "collective": collective_document(schedule.collective),
        "arrays": listed,
        "bounds": [bound.document() for bound in schedule.bounds],
        "provenance": dict(schedule.provenance),
        "topology": topology_document(schedule.topology),
    }
    line = json.dumps(document).encode()
    return line + b" " * (-(len(line) + 1) % _PAGE) + b"\n"


def _mapped(fields: Fields, path: str | Path, begin: int, length: int) -> dict[str, npt.NDArray[Any]]:
    """The arrays that a header lists, mapped; they lie inside the file and do not overlap."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    end = 0
    for entry in fields.each("arrays"):
        name, dtype = entry.text("name"), entry.text("dtype", choices=_DTYPES)
        shape = entry.items("shape")
        offset = entry.integer("offset", minimum=end)
        entry.done()
        if not 1 <= len(shape) <= 2 or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape):
            entry.fail("shape", f"is {shape}; expected one or two whole numbers")
        end = offset + prod(shape) * np.dtype(dtype).itemsize
        if begin + end > length:
            entry.fail("shape", f"needs {begin + end} bytes of the file, which has {length}; is it cut off?")
        if name in arrays:
            entry.fail("name", f"is {name!r} a second time")
        where = begin + offset
        arrays[name] = np.memmap(path, dtype, "r", where, tuple(shape)) if prod(shape) else np.zeros(shape, dtype)
    return arrays


def _expect(fields: Fields, arrays: Arrays, dtypes: Mapping[str, tuple[str, ...]], shapes: Mapping[str, Any]) -> None:
    for name in [*dtypes, *arrays]:
        if name not in arrays:
            fields.fail("arrays", f"have no {name}")
        if name not in dtypes:
            fields.fail("arrays", f"have {name}, which is not known here")
        have, want = arrays[name], shapes[name]
        if have.dtype.str not in dtypes[name]:
            fields.fail(f"arrays.{name}", f"holds {have.dtype}; expected {' or '.join(dtypes[name])}")
        if have.shape != want:
            fields.fail(f"arrays.{name}", f"has the shape {list(have.shape)}; expected {list(want)}")


def _orbit(
    fields: Fields, arrays: Arrays, collective: Collective, topology: Topology, size_bytes: int, notes: dict[str, Any]
) -> OrbitSchedule:
    sends = arrays["chunk"].shape if "chunk" in arrays else (0,)
    shapes: dict[str, Any] = dict.fromkeys(_BASE, sends)
    few = {name: arrays[name].shape if name in arrays else (0,) for name in ("generators", "representatives")}
    shapes["generators"] = (*few["generators"][:1], topology.num_vertices)
    shapes["representatives"] = few["representatives"][:1]
    known = {name: (dtype,) for name, dtype in _BASE.items()}
    _expect(fields, arrays, {"generators": ("<i4",), "representatives": ("<i4",), **known}, shapes)
    limits = {
        "generators": topology.num_vertices,
        "representatives": collective.num_chunks,
        "chunk": len(arrays["representatives"]),
        "src": topology.num_ranks,
        "dst": topology.num_ranks,
        "link": topology.num_links,
        "op": 2,
    }
    for name, limit in limits.items():
        if arrays[name].size and not 0 <= int(arrays[name].min()) <= int(arrays[name].max()) < limit:
            fields.fail(f"arrays.{name}", f"holds numbers outside 0 .. {limit - 1}")
    start = arrays["start_s"]
    if not np.isfinite(start).all() or (start < 0).any():
        fields.fail("arrays.start_s", "holds a time below 0")
    if not len(arrays["representatives"]) or collective.num_chunks % len(arrays["representatives"]):
        fields.fail("arrays.representatives", f"do not divide the {collective.num_chunks} chunks")
    representatives = np.asarray(arrays["representatives"], dtype=np.int64)
    columns = {("route" if name == "link" else name): np.asarray(arrays[name]) for name in _BASE}
    own, routes = part(collective, representatives), link_routes(topology)
    base = Schedule.build(own, topology, size_bytes, routes, None, **columns)
    generators = tuple(tuple(row) for row in arrays["generators"].tolist())
    return OrbitSchedule(collective, generators, representatives, base, **notes)
