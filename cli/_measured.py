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
    """Whether a file is of a benchmark: JSON with results, or text that is no document; else it is a schedule, or a
    program of another runtime."""
    from collsyn.files import read_bytes

    head = read_bytes(path)[: 1 << 16]
    if head[:2] == b"PK" or b"<algo" in head:
        return False
    return b'"results"' in head if head.lstrip()[:1] == b"{" else b"schema:" not in head


def read_measured(path: Path, collective: str, num_ranks: int) -> Measured:
    """Times of a collective between so many ranks; raises InputError where the file has none."""
    from collsyn.errors import InputError
    from collsyn.files import read_bytes
    from collsyn.topology.imports.baseline import Baseline
    from collsyn.topology.imports.recognise import read_content

    kind, content, _ = read_content(read_bytes(path), str(path))
    if not isinstance(content, Baseline):
        raise InputError(f"{path}: is {kind}; expected a schedule, or times of collectives")
    rows = [row for row in content.rows if (row.collective, row.num_ranks) == (collective, num_ranks)]
    if not rows:
        held = ", ".join(sorted({f"{row.collective} of {row.num_ranks} ranks" for row in content.rows}))
        raise InputError(f"{path}: holds {held}; expected {collective} of {num_ranks} ranks")
    return Measured(content.library, {row.size_bytes: row.time_s for row in rows})
