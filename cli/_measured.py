"""What other libraries measured, for tables beside our own times: logs of their benchmarks, or files of `bench`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Measured:
    """Seconds by size in bytes of one collective, and who measured them."""

    library: str
    times_s: Mapping[int, float]


def is_measurement(path: Path) -> bool:
    """Whether a file is of a benchmark: JSON with results, or text that is no document; else it is a schedule."""
    from collsyn.files import read_bytes

    head = read_bytes(path)[: 1 << 16]
    if head[:2] == b"PK":
        return False
    return b'"results"' in head if head.lstrip()[:1] == b"{" else b"schema:" not in head


def read_measured(path: Path, collective: str, num_ranks: int) -> Measured:
    """Times of a collective between so many ranks; raises InputError where the file has none."""
    from collsyn.errors import InputError
    from collsyn.files import read_bytes

    raw = read_bytes(path)
    rows = _of_document(path) if raw.lstrip()[:1] == b"{" else _of_log(raw, path, num_ranks)
    found = {
        size: (library, time_s)
        for library, kind, ranks, size, time_s in rows
        if (kind, ranks) == (collective, num_ranks)
    }
    if not found:
        held = ", ".join(sorted({f"{kind} of {ranks} ranks" for _, kind, ranks, _, _ in rows})) or "nothing"
        raise InputError(f"{path}: holds {held}; expected {collective} of {num_ranks} ranks")
    library = next(iter(found.values()))[0]
    return Measured(library, {size: time_s for size, (_, time_s) in found.items()})


def _of_log(raw: bytes, path: Path, num_ranks: int) -> list[tuple[str, str, int, int, float]]:
    from collsyn.errors import InputError
    from collsyn.topology.imports.baseline import Baseline
    from collsyn.topology.imports.recognise import read_content

    kind, content, _ = read_content(raw, str(path))
    if not isinstance(content, Baseline):
        raise InputError(f"{path}: is {kind}; expected a schedule, or times of collectives")
    return [(content.library, row.collective, row.num_ranks, row.size_bytes, row.time_s) for row in content.rows]


def _of_document(path: Path) -> list[tuple[str, str, int, int, float]]:
    from collsyn.model.fields import load_document
    from collsyn.units import us_to_s

    rows = []
    for row in load_document(path).each("results"):
        us = row.inner("out_of_place").raw("time", default=None)
        if isinstance(us, int | float) and us > 0:
            facts = row.text("collective"), row.integer("group_size"), row.integer("size"), us_to_s(us)
            rows.append((row.text("method", default="bench"), *facts))
    return rows
