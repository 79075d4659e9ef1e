"""Several schedules of one collective become one algorithm set: their order, their ranges of sizes, their names."""

import re
from collections.abc import Sequence
from itertools import pairwise
from math import isqrt
from pathlib import Path

from collsyn.errors import InputError
from collsyn.export.table import Options
from collsyn.model.plan import Plan
from collsyn.model.schedule import Schedule
from collsyn.units import format_size, parse_size

# Of plans, which have no size of their own.
DEFAULT_SIZE = "64M"

Sized = tuple[int, Path, Schedule | Plan]


# Up to these sizes LL and LL128 are the usual choice; they hold less, and need no fences.
_LL_BYTES, _LL128_BYTES = 256 << 10, 4 << 20


def by_protocol(size_bytes: int, names: tuple[str, str, str]) -> str:
    """Which of the names of LL, LL128 and Simple is the usual choice at a size."""
    return names[0 if size_bytes <= _LL_BYTES else 1 if size_bytes <= _LL128_BYTES else 2]


def own_size(source: Schedule | Plan, options: Options) -> int:
    """Bytes that a source is exported for; raises InputError."""
    if isinstance(source, Schedule):
        if options.size_bytes is not None:
            raise InputError("--size: a schedule has one of its own; simulate or synthesize it at another")
        return source.size_bytes
    return options.size_bytes or parse_size(DEFAULT_SIZE)


def by_size(sources: Sequence[tuple[Path, Schedule | Plan]], options: Options) -> list[Sized]:
    """All of a set with their sizes, in ascending order; raises InputError where they are no set."""
    sized = sorted(((own_size(source, options), path, source) for path, source in sources), key=lambda row: row[0])
    for (one, path, a), (other, second, b) in pairwise(sized):
        if (a.collective.kind, a.collective.num_ranks) != (b.collective.kind, b.collective.num_ranks):
            raise InputError(f"{second}: is for another collective or number of ranks than {path}; expected one set")
        if one == other:
            raise InputError(f"{second}: is for {format_size(one)} like {path}; expected one file a size")
    return sized


def borders(sized: Sequence[Sized], options: Options) -> list[int]:
    """Sizes at which one of a set gives way to the next: as given, else half way between them in logarithms."""
    if options.borders is not None:
        return list(options.borders)
    return [isqrt(smaller[0] * larger[0]) for smaller, larger in pairwise(sized)]


def name_of(source: Schedule | Plan, size_bytes: int | None = None) -> str:
    """Collective, method, topology (and size) of a source as a file name without a suffix."""
    where = "" if source.topology is None else source.topology.name
    words = [source.collective.kind, str(source.provenance.get("method") or ""), where]
    if size_bytes is not None:
        words.append(format_size(size_bytes))
    return "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", word).strip("-") for word in words if word)[:120]
