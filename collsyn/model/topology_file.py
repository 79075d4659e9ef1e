"""Topology files: the YAML form, one line a link, rewritten byte for byte (docs/formats/topology.md)."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collsyn.errors import InputError
from collsyn.files import digest, write_atomic
from collsyn.model.fields import Fields, finite_number, load_document
from collsyn.model.size_rates import SizeRates
from collsyn.model.topology import Cut, Topology
from collsyn.units import beta_to_gb_s, format_size, gb_s_to_beta, parse_size, rounded, s_to_us, us_to_s

SCHEMA = "collsyn-topology/1"
# What copies within a rank cost: nothing, or what messages over its port do.
COPIES = ("free", "port")
# Rates by size of a link: by the length of a message, and by the bytes that a rank works on in a call.
_RATES = {"size_gb_s": "size_rates", "working_set_gb_s": "working_set_rates"}
MAX_VERTICES = 1 << 20
MAX_LANES = 1 << 20


def read_topology(path: str | Path) -> Topology:
    """The topology in a YAML file; raises InputError that names file and key."""
    return topology_from_fields(load_document(path))


def write_topology(topology: Topology, path: str | Path) -> None:
    """Write the YAML form; reading it and writing it again gives the same bytes."""
    write_atomic(path, topology_text(topology))


def topology_digest(topology: Topology) -> str:
    """Names wiring and costs (not name or provenance) in other files' provenance."""
    document = topology_document(topology)
    return digest(json.dumps({k: v for k, v in document.items() if k not in ("name", "provenance")}))


def topology_text(topology: Topology) -> str:
    """The YAML text of a topology."""
    document = topology_document(topology)
    lines = []
    for key, value in document.items():
        if isinstance(value, list) and value and not isinstance(value[0], int | float):
            lines += [f"{key}:", *(f"  - {flow(entry)}" for entry in value)]
        else:
            lines.append(f"{key}: {flow(value)}")
    return "\n".join(lines) + "\n"


def topology_document(topology: Topology) -> dict[str, Any]:
    """The topology as plain values in the order of the file; JSON files embed it."""
    ids = {v: topology.vertex_name(v) if v >= topology.num_ranks else v for v in range(topology.num_vertices)}
    document: dict[str, Any] = {"schema": SCHEMA, "name": topology.name, "ranks": topology.num_ranks}
    if topology.switch_names:
        document["switches"] = [
            {
                "name": name,
                **{k: True for k in ("multicast", "reduction") if getattr(topology, k)[topology.num_ranks + i]},
            }
            for i, name in enumerate(topology.switch_names)
        ]
    document["links"] = _links_document(topology, ids)
    if topology.reduce_s_per_byte.any():
        rates = [0 if beta == 0 else _tidy(beta_to_gb_s(beta)) for beta in topology.reduce_s_per_byte.tolist()]
        document["reduce_gb_s"] = rates
    if topology.reduce_working_set_rates:
        document["reduce_working_set_gb_s"] = _rates_document(topology.reduce_working_set_rates)
    if topology.min_piece_bytes > 1:
        document["min_piece"] = format_size(topology.min_piece_bytes)
    if topology.copies_take_port:
        document["copies"] = "port"
    if topology.boxes:
        document["boxes"] = [[ids[v] for v in box] for box in topology.boxes]
    if topology.symmetries:
        document["symmetries"] = [[ids[v] for v in permutation] for permutation in topology.symmetries]
    if topology.cuts:
        document["cuts"] = [{"name": cut.name, "vertices": [ids[v] for v in cut.vertices]} for cut in topology.cuts]
    if topology.provenance:
        document["provenance"] = dict(topology.provenance)
    return document


def topology_from_fields(fields: Fields) -> Topology:
    """The topology of a document; raises InputError that names file and key."""
    fields.text("schema", choices=[SCHEMA])
    name = fields.text("name", default=Path(fields.file).stem)
    num_ranks = fields.integer("ranks", minimum=1, maximum=MAX_VERTICES)
    switches = _read_switches(fields)
    ids: dict[Any, int] = {rank: rank for rank in range(num_ranks)}
    ids |= {switch["name"]: num_ranks + i for i, switch in enumerate(switches)}
    columns = _read_links(fields, ids)
    reduce_gb_s = fields.numbers("reduce_gb_s", default=[])
    if len(reduce_gb_s) not in (0, num_ranks) or (reduce_gb_s < 0).any():
        fields.fail("reduce_gb_s", f"needs one rate of at least 0 for each of the {num_ranks} ranks (0: free)")
    reduce_rates = _read_rates(fields, "reduce_working_set_gb_s")
    min_piece_bytes = fields.size_bytes("min_piece", default=1)
    copies = fields.text("copies", choices=COPIES, default=COPIES[0])
    boxes = _vertex_lists(fields, "boxes", ids)
    symmetries = _vertex_lists(fields, "symmetries", ids)
    for index, permutation in enumerate(symmetries):
        if sorted(permutation) != list(range(len(ids))):
            fields.fail(f"symmetries[{index}]", "is not a permutation of all ranks and switches")
    cuts = []
    for entry in fields.each("cuts", default=[]):
        cuts.append(Cut(entry.text("name"), _vertices(entry, "vertices", entry.items("vertices"), ids)))
        entry.done()
    provenance = fields.mapping("provenance", default={})
    fields.done()
    with np.errstate(divide="ignore", over="ignore"):
        reduce_s = np.where(reduce_gb_s > 0, 1e-9 / np.where(reduce_gb_s > 0, reduce_gb_s, 1), 0.0)
    if not np.isfinite(reduce_s).all():
        fields.fail("reduce_gb_s", f"holds {reduce_gb_s[~np.isfinite(reduce_s)][0]:g}; expected more, or 0: free")
    with fields.named():
        return Topology(
            name=name,
            num_ranks=num_ranks,
            **columns,
            switch_names=tuple(switch["name"] for switch in switches),
            multicast=np.array([False] * num_ranks + [s["multicast"] for s in switches]),
            reduction=np.array([False] * num_ranks + [s["reduction"] for s in switches]),
            reduce_s_per_byte=reduce_s,
            reduce_working_set_rates=reduce_rates,
            min_piece_bytes=min_piece_bytes,
            copies_take_port=copies == "port",
            boxes=boxes,
            symmetries=symmetries,
            cuts=tuple(cuts),
            provenance=provenance,
        )


def read_link_costs(entry: Fields, count: int = 1) -> tuple[float, float, float]:
    """Take (alpha_s, beta_s_per_byte of the whole trunk, overhead_s) of a link entry with units in its keys.

    `bandwidth_gb_s` (or `beta_us_per_mb`, MB = 10^6) is that of one lane; `overhead_us` is a number or `alpha`.
    """
    if entry.has("beta_us_per_mb"):
        beta = entry.number("beta_us_per_mb", above=0) * 1e-12
    else:
        beta = gb_s_to_beta(entry.number("bandwidth_gb_s", above=0))
    alpha_us = entry.number("alpha_us", default=0, minimum=0)
    overhead = entry.raw("overhead_us", default=0)
    overhead_us = alpha_us if overhead == "alpha" else finite_number(overhead)
    if overhead_us is None or not 0 <= overhead_us <= alpha_us:
        entry.fail("overhead_us", f"is {overhead!r}; expected 0 .. alpha_us ({alpha_us:g}) or the word alpha")
    return us_to_s(alpha_us), beta / count, us_to_s(overhead_us)


def _read_switches(fields: Fields) -> list[dict[str, Any]]:
    switches: list[dict[str, Any]] = []
    for entry in fields.each("switches", default=[]):
        name = entry.text("name")
        if name.isdigit() or not name or any(switch["name"] == name for switch in switches):
            entry.fail("name", f"is {name!r}; expected a name that is no number and not yet taken")
        flags = {key: entry.flag(key, default=False) for key in ("multicast", "reduction")}
        switches.append({"name": name, **flags})
        entry.done()
    return switches


def _read_links(fields: Fields, ids: Mapping[Any, int]) -> dict[str, Any]:
    rows: list[tuple[int, int, float, float, float, int]] = []
    by_size: dict[str, list[SizeRates]] = {key: [] for key in _RATES}
    for entry in fields.each("links"):
        src, dst = (_vertices(entry, key, [entry.raw(key)], ids)[0] for key in ("from", "to"))
        if src == dst:
            entry.fail("to", "is the vertex that the link comes from; expected another one")
        count = entry.integer("count", default=1, minimum=1, maximum=MAX_LANES)
        costs = read_link_costs(entry, count)
        both = entry.flag("both", default=False)
        rows += [(src, dst, *costs, count), (dst, src, *costs, count)][: 1 + both]
        for key, rates in by_size.items():
            rates += [_read_rates(entry, key)] * (1 + both)
        entry.done()
    names = ("src", "dst", "alpha_s", "beta_s_per_byte", "overhead_s", "count")
    columns: dict[str, Any] = dict(zip(names, zip(*rows, strict=True) if rows else ((),) * len(names), strict=True))
    return columns | {_RATES[key]: tuple(rates) if any(rates) else () for key, rates in by_size.items()}


def _read_rates(entry: Fields, key: str) -> SizeRates:
    """Take rates by size: lengths of messages, or working sets, and GB/s."""
    found = []
    for size, gb_s in entry.mapping(key, default={}).items():
        try:
            num_bytes = parse_size(size)
        except InputError:
            entry.fail(key, f"has {size!r} for a size; expected lengths such as 64K, each with its GB/s")
        number = finite_number(gb_s)
        if number is None or number <= 0:
            entry.fail(key, f"has {gb_s!r} at {size}; expected GB/s above 0")
        found.append((float(num_bytes), number * 1e9))
    return tuple(sorted(found))


def _rates_document(rates: SizeRates) -> dict[str, Any]:
    return {format_size(int(size)): _tidy(rate / 1e9) for size, rate in rates}


def _links_document(topology: Topology, ids: Mapping[int, Any]) -> list[dict[str, Any]]:
    """One entry a link; a link and its mirror image that follow each other share one (`both: true`)."""
    columns = [
        getattr(topology, name).tolist() for name in ("src", "dst", "alpha_s", "beta_s_per_byte", "overhead_s", "count")
    ]
    straight = ((),) * topology.num_links
    rates = {key: getattr(topology, name) or straight for key, name in _RATES.items()}
    rows = list(zip(*columns, *rates.values(), strict=True))
    entries, index = [], 0
    while index < len(rows):
        src, dst, alpha_s, beta, overhead_s, count, *by_size = rows[index]
        mirrored = index + 1 < len(rows) and rows[index + 1] == (dst, src, *rows[index][2:])
        entry: dict[str, Any] = {"from": ids[src], "to": ids[dst], **_bandwidth_document(beta, count)}
        entry["alpha_us"] = _tidy(s_to_us(alpha_s))
        if overhead_s > 0:
            entry["overhead_us"] = (
                "alpha" if overhead_s == alpha_s else min(_tidy(s_to_us(overhead_s)), entry["alpha_us"])
            )
        if count > 1:
            entry["count"] = count
        entry |= {key: _rates_document(points) for key, points in zip(_RATES, by_size, strict=True) if points}
        if mirrored:
            entry["both"] = True
        entries.append(entry)
        index += 1 + mirrored
    return entries


def _bandwidth_document(beta: float, count: int) -> dict[str, Any]:
    """The key and number of a lane's bandwidth: GB/s, or the inverse where only that is a short number (23 us/MB)."""
    gb_s, us_per_mb = _tidy(beta_to_gb_s(beta) / count), _tidy(beta * count * 1e12)
    if gb_s_to_beta(gb_s) / count != beta and us_per_mb * 1e-12 / count == beta:
        return {"beta_us_per_mb": us_per_mb}
    return {"bandwidth_gb_s": gb_s}


def _vertex_lists(fields: Fields, key: str, ids: Mapping[Any, int]) -> tuple[tuple[int, ...], ...]:
    return tuple(
        _vertices(fields, f"{key}[{index}]", members, ids)
        for index, members in enumerate(fields.items(key, default=[]))
    )


def _vertices(fields: Fields, key: str, members: Sequence[Any], ids: Mapping[Any, int]) -> tuple[int, ...]:
    if not isinstance(members, list):
        fields.fail(key, "expected a list of ranks and switch names")
    for member in members:
        if isinstance(member, bool) or not isinstance(member, int | str) or member not in ids:
            fields.fail(
                key, f"names {member!r}; expected a rank 0 .. {sum(isinstance(i, int) for i in ids) - 1} or a switch"
            )
    return tuple(ids[member] for member in members)


def _tidy(value: float) -> int | float:
    number = rounded(value)
    return int(number) if number == int(number) and abs(number) < 1e15 else number


def flow(value: object) -> str:
    """One line of YAML flow style; strings are quoted only where YAML would read something else."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow(key)}: {flow(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, float):
        # YAML reads 1e-05 as text, 1.0e-05 as a number.
        return re.sub(r"^(-?\d+)e", r"\1.0e", json.dumps(value))
    if isinstance(value, str):
        plain = value.replace("-", "").replace("_", "").replace("/", "").replace(".", "")
        reserved = value.lower() in ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
        return value if plain.isalnum() and plain.isascii() and value[0].isalpha() and not reserved else _quoted(value)
    return json.dumps(value)


def _quoted(text: str) -> str:
    """A double-quoted YAML scalar in ASCII; unlike JSON it names characters beyond 16 bits by one escape."""
    escaped = (json.dumps(letter)[1:-1] if ord(letter) < 1 << 16 else f"\\U{ord(letter):08x}" for letter in text)
    return f'"{"".join(escaped)}"'
