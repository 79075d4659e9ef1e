"""The JSON of nccl-tests (version 3), as its -J and `bench --output` write it."""

import re

from collsyn.model.fields import Fields, parse_document
from collsyn.model.metrics import busbw_factor
from collsyn.topology.imports.baseline import Baseline, Measured, merged
from collsyn.topology.imports.nccl_log import COLLECTIVES, MAX_RANKS
from collsyn.topology.imports.text import Paste
from collsyn.units import MAX_SIZE_BYTES, us_to_s

KIND = "nccl-tests JSON"
VERSION = 3


def matches(paste: Paste) -> bool:
    """Whether it is such a document."""
    text = paste.text
    return text.lstrip()[:1] == "{" and re.search(r'"(alg_bw|average_bus_bandwidth)"', text) is not None


def read(paste: Paste, num_ranks: int | None = None, collective: str | None = None) -> Baseline:
    """All rows that have a time and no wrong element; raises InputError.

    `num_ranks` and `collective` say what the document does not.
    """
    fields = parse_document(paste.text.encode(), paste.file)
    if fields.raw("version", default=None) != VERSION:
        fields.fail("version", f"is not {VERSION}; expected the JSON of nccl-tests or of bench --output")
    config = fields.inner("config", default={})
    devices = len(config.items("devices", default=[])) or None
    rows, left_out, library = [], 0, "nccl"
    for row in fields.each("results"):
        found = _row(row, num_ranks, devices, collective)
        library = row.text("method", default=library)
        if found is None:
            left_out += 1
        else:
            rows.append(found)
    if not rows:
        fields.fail("results", "has no row with a time; expected at least one")
    warnings = (f"{left_out} rows without a time, or with wrong results, are left out",) if left_out else ()
    return Baseline(KIND, library, paste.hash, merged(rows), warnings)


def _row(row: Fields, num_ranks: int | None, devices: int | None, collective: str | None) -> Measured | None:
    timing = row.inner("out_of_place")
    time_us = timing.raw("time", default=None)
    if (
        not isinstance(time_us, int | float)
        or time_us <= 0
        or timing.raw("nwrong", default=None) not in (None, 0, "0", "N/A")
    ):
        return None
    named = row.text("collective", default="") or COLLECTIVES.get(
        row.text("experiment_name", default="").removesuffix("_perf"), collective or ""
    )
    if not named:
        row.fail("experiment_name", "does not name a collective, like all_reduce_perf; add --collective C")
    ranks = num_ranks or row.raw("group_size", default=None) or devices or _by_ratio(named, timing)
    if not isinstance(ranks, int) or not 1 <= ranks <= MAX_RANKS:
        row.fail("group_size", "is missing, and the bandwidths leave it open; add --num-ranks N")
    op = row.text("redop", default="none")
    return Measured(
        collective=named,
        num_ranks=ranks,
        size_bytes=row.integer("size", minimum=1, maximum=MAX_SIZE_BYTES),
        dtype=row.text("type", default="float"),
        op="" if op == "none" else op,
        root=row.integer("root", default=-1),
        times_s=(us_to_s(time_us),),
    )


def _by_ratio(collective: str, timing: Fields) -> int | None:
    """The number of ranks that busbw / algbw leaves, if it is one."""
    algbw, busbw = (timing.raw(key, default=None) for key in ("alg_bw", "bus_bw"))
    if not isinstance(algbw, int | float) or not isinstance(busbw, int | float) or algbw < 1:
        return None
    fits = [n for n in range(2, 129) if abs(busbw_factor(collective, n) * algbw - busbw) <= 0.006]
    return fits[0] if len(fits) == 1 else None
