"""The JSON of nccl-tests (version 3), with what collsyn adds to it."""

from collections.abc import Sequence
from typing import Any

from collsyn.bench.result import BenchResult, Comparison, Row, Timing
from collsyn.bench.table import NCCL_NAMES
from collsyn.units import rounded, s_to_us

VERSION = 3


def document(result: BenchResult) -> dict[str, Any]:
    """The result as plain values: keys, units (us, GB/s) and names of nccl-tests, with provenance and own keys."""
    return {
        "version": VERSION,
        "config": {**result.config, "devices": [dict(device) for device in result.devices]},
        "provenance": dict(result.provenance),
        "results": [_row(row) for row in result.rows],
        "out_of_bounds": {"count": result.wrong, "okay": result.wrong == 0},
        "average_bus_bandwidth": {"bandwidth": result.average_busbw, "okay": "unchecked"},
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "size": row.size_bytes,
        "count": row.count,
        "type": NCCL_NAMES.get(row.dtype, row.dtype),
        "redop": row.op or "none",
        "root": row.root,
        "out_of_place": _timing(row, row.out_of_place),
        "in_place": None if row.in_place is None else _timing(row, row.in_place),
        "actual_iterations": row.iterations,
        "experiment_name": f"{row.collective}_perf",
        "collective": row.collective,
        "method": row.method,
        "file": row.source,
        "asked_bytes": row.asked_bytes,
        "simulated_us": None if row.simulated_s is None else s_to_us(row.simulated_s),
        "bound_us": None if row.bound_s is None else s_to_us(row.bound_s),
        "emulation_factor": row.emulation_factor,
        "benchmark": row.benchmark,
        **({} if row.launch is None else {"launch": dict(row.launch), "gpu": row.gpu}),
        "group_size": row.group_size,
        "samples_us": _by_launch(row.out_of_place.blocks_s, row.launches),
        "yardstick_us": _by_launch(row.yardstick_s, row.launches),
        "against": {name: _comparison(comparison) for name, comparison in row.against.items()},
    }


def _timing(row: Row, timing: Timing) -> dict[str, Any]:
    return {
        "time": None if timing.time_s is None else s_to_us(timing.time_s),
        "alg_bw": row.algbw(timing),
        "bus_bw": row.busbw(timing),
        "nwrong": timing.wrong,
    }


def _by_launch(blocks_s: Sequence[float], launches: int) -> list[list[float]]:
    """Microseconds of the blocks, a list a launch."""
    per_launch = len(blocks_s) // launches
    blocks_us = [rounded(s_to_us(seconds)) for seconds in blocks_s]
    return [blocks_us[launch * per_launch : (launch + 1) * per_launch] for launch in range(launches)]


def _comparison(comparison: Comparison) -> dict[str, Any]:
    if comparison.reason is not None or comparison.time_s is None:
        return {"time": None, "ratio": None, "ci": None, "reason": comparison.reason}
    return {
        "time": s_to_us(comparison.time_s),
        "ratio": comparison.ratio,
        "ci": [comparison.low, comparison.high],
    }
