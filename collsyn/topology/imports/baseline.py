"""What another library's benchmark measured: rows of collectives, in the form that `bench --baseline` reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collsyn.model.dtypes import DTYPES
from collsyn.model.metrics import algbw_gb_s, busbw_gb_s
from collsyn.units import rounded, s_to_us

# The version of the JSON of nccl-tests that bench writes and reads.
VERSION = 3


@dataclass(frozen=True)
class Measured:
    """One collective at one size (the size column of nccl-tests): seconds of each run out of place, and in place.

    `root` is -1 where there is none; `op` is empty where nothing is reduced; `dtype` is a name as nccl-tests has it.
    """

    collective: str
    num_ranks: int
    size_bytes: int
    dtype: str
    op: str
    root: int
    times_s: tuple[float, ...]
    in_place_s: float | None = None

    @property
    def time_s(self) -> float:
        """The median of the runs."""
        ordered = sorted(self.times_s)
        return ordered[len(ordered) // 2]

    @property
    def busbw_gb_s(self) -> float:
        """Bus bandwidth of the median."""
        return busbw_gb_s(self.collective, self.num_ranks, self.size_bytes, self.time_s)


@dataclass(frozen=True)
class Baseline:
    """Rows that a log holds, with the kind of the log, the hash of its bytes and what is to be said of it."""

    kind: str
    library: str
    input: str
    rows: tuple[Measured, ...]
    warnings: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The document that `bench --baseline` reads: nccl-tests' JSON with the keys that bench adds."""
        return {
            "version": VERSION,
            "config": {},
            "provenance": {"source": self.kind, "input": self.input, "machine": {}},
            "results": [self._row(row) for row in self.rows],
        }

    def _row(self, row: Measured) -> dict[str, Any]:
        elements = max(1, row.size_bytes // _ITEM_BYTES.get(row.dtype, 1))
        return {
            "size": row.size_bytes,
            "count": elements,
            "type": row.dtype,
            "redop": row.op or "none",
            "root": row.root,
            "out_of_place": _timing(row, row.time_s),
            "in_place": None if row.in_place_s is None else _timing(row, row.in_place_s),
            "collective": row.collective,
            "method": self.library,
            "group_size": row.num_ranks,
            "samples_us": [[rounded(s_to_us(time_s))] for time_s in row.times_s],
        }


_ITEM_BYTES: Mapping[str, int] = {
    **{name: dtype.num_bytes for name, dtype in DTYPES.items()},
    "float": 4,
    "double": 8,
    "half": 2,
}


def _timing(row: Measured, time_s: float) -> dict[str, Any]:
    return {
        "time": rounded(s_to_us(time_s)),
        "alg_bw": algbw_gb_s(row.size_bytes, time_s),
        "bus_bw": busbw_gb_s(row.collective, row.num_ranks, row.size_bytes, time_s),
        "nwrong": None,
    }


def merged(rows: Sequence[Measured]) -> tuple[Measured, ...]:
    """Rows of the same measurement put together, in the order of their first."""
    found: dict[tuple[Any, ...], Measured] = {}
    for row in rows:
        key = (row.collective, row.num_ranks, row.size_bytes, row.dtype, row.op, row.root)
        known = found.get(key)
        times = row.times_s if known is None else (*known.times_s, *row.times_s)
        found[key] = Measured(*key[:3], *key[3:], times, row.in_place_s if known is None else known.in_place_s)
    return tuple(found.values())
