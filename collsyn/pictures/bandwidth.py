"""Bandwidth against size: the curves of a benchmark, or of a schedule that was simulated at several sizes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from collsyn.bench.result import BenchResult, Row
from collsyn.model.metrics import algbw_gb_s, busbw_gb_s
from collsyn.units import us_to_s

MEASURED, SIMULATED, BOUND, RIVAL = "measured", "simulated", "bound", "rival"


@dataclass(frozen=True)
class Curve:
    """Bus bandwidth in GB/s at sizes in ascending order.

    `kind` is one of the four above; simulated and measured curves of one `label` belong together. `low` and `high` are
    those of the slowest and the quickest block, empty where nothing was measured. `methods` names what ran at each size
    where that is not what the label says.
    """

    kind: str
    label: str
    size_bytes: tuple[int, ...]
    gb_s: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    methods: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chart:
    """The curves of one collective on a number of ranks (of a group)."""

    collective: str
    group_size: int
    curves: tuple[Curve, ...]


def bench_charts(rows: Sequence[Row]) -> list[Chart]:
    """A chart for each collective: every source measured and simulated, MPI once, and the bounds; all out of place.

    Sources go by their names in a suite or those of their files, or `collsyn` where there is only one.
    """
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row.collective, row.group_size), []).append(row)
    return [Chart(*key, tuple(_curves(of_kind))) for key, of_kind in found.items()]


def bench_title(result: BenchResult) -> str:
    """What a benchmark ran on."""
    emulated = result.provenance.get("emulated")
    return f"collsyn bench, {emulated} emulated" if emulated else "collsyn bench on host ranks"


def sweep_chart(documents: Sequence[Mapping[str, Any]]) -> Chart:
    """The chart of what `simulate --sizes --json` prints for a schedule or plan."""
    first = documents[0]
    factor = first["busbw_gb_s"] / first["algbw_gb_s"] if math.isfinite(first["algbw_gb_s"]) else 1.0
    keys = (("schedule", SIMULATED, "finish_us"), ("plan", SIMULATED, "plan_us"), ("bound", BOUND, "bound_us"))
    curves = []
    for label, kind, key in keys:
        known = [document for document in documents if document[key]]
        gb_s = [algbw_gb_s(document["size_bytes"], us_to_s(document[key])) * factor for document in known]
        curves.append(Curve(kind, label, tuple(document["size_bytes"] for document in known), tuple(gb_s)))
    return Chart(first["collective"], first["num_ranks"], tuple(curve for curve in curves if curve.size_bytes))


def compare_chart(rows: Sequence[Mapping[str, Any]], group_size: int) -> Chart:
    """The chart of what `compare --json` prints: a curve a method that serves the problem, and the bound."""
    kind = str(rows[0]["collective"])
    labels = list(dict.fromkeys(str(row["method"]) for row in rows))
    bounds = {row["size_bytes"]: row["bound_us"] for row in rows if row["bound_us"]}
    curves = []
    for label in labels:
        found = [(r["size_bytes"], us_to_s(r["finish_us"])) for r in rows if r["method"] == label and r["finish_us"]]
        curves.append(_curve(kind, group_size, SIMULATED, label, found))
    curves.append(_curve(kind, group_size, BOUND, "bound", [(size, us_to_s(us)) for size, us in bounds.items()]))
    return Chart(kind, group_size, tuple(curve for curve in curves if curve.size_bytes))


def _curves(rows: Sequence[Row]) -> list[Curve]:
    kind, group_size = rows[0].collective, rows[0].group_size
    sources: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.size_bytes):
        sources.setdefault((row.benchmark, row.source), []).append(row)
    short = [benchmark or Path(source).stem for benchmark, source in sources]
    labels = [name if short.count(name) == 1 else source for name, (_, source) in zip(short, sources, strict=True)]
    if len(labels) == 1:
        labels = ["collsyn"]
    curves: list[Curve] = []
    bounds: list[Curve] = []
    rivals: dict[str, Curve] = {}
    for label, mine in zip(labels, sources.values(), strict=True):
        timed = [row for row in mine if row.out_of_place.time_s]
        if timed:
            curves.append(_measured(MEASURED, label, timed, [row.out_of_place for row in timed]))
        modelled = [(row.size_bytes, row.simulated_s) for row in mine if row.simulated_s]
        curves.append(_curve(kind, group_size, SIMULATED, label, modelled))
        bounds.append(_curve(kind, group_size, BOUND, "bound", [(r.size_bytes, r.bound_s) for r in mine if r.bound_s]))
        for name in dict.fromkeys(name for row in mine for name in row.against):
            compared = [row for row in mine if name in row.against and row.against[name].time_s]
            if compared and name not in rivals:
                rivals[name] = _measured(RIVAL, name.upper(), compared, [row.against[name] for row in compared])
    different = list({curve.gb_s: curve for curve in bounds}.values())
    return [curve for curve in (*curves, *rivals.values(), *different) if curve.size_bytes]


def _measured(curve: str, label: str, rows: Sequence[Row], timings: Sequence[Any]) -> Curve:
    """Times with their blocks, as a curve."""
    row = rows[0]
    blocks = [timing.blocks_s or (timing.time_s,) for timing in timings]
    sizes = [row.size_bytes for row in rows]

    def bandwidths(seconds: Iterable[float]) -> tuple[float, ...]:
        return tuple(map(partial(busbw_gb_s, row.collective, row.group_size), sizes, seconds))

    low, high = bandwidths(map(max, blocks)), bandwidths(map(min, blocks))
    middle = [(size, float(timing.time_s)) for size, timing in zip(sizes, timings, strict=True)]
    methods = tuple(one.method for one in rows) if curve == MEASURED else ()
    plain = _curve(row.collective, row.group_size, curve, label, middle)
    return Curve(curve, label, plain.size_bytes, plain.gb_s, low, high, () if set(methods) == {label} else methods)


def _curve(kind: str, group_size: int, curve: str, label: str, times: Sequence[tuple[int, Any]]) -> Curve:
    """Sizes and seconds as a curve."""
    gb_s = tuple(busbw_gb_s(kind, group_size, size, float(time_s)) for size, time_s in times)
    return Curve(curve, label, tuple(size for size, _ in times), gb_s)
