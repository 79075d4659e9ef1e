"""Checks and times collectives of 8 virtual ranks on one GPU, against what the GPU's own memory allows.

    python scripts/gpu_check.py                          # a few minutes; tables on stdout, JSON beside them
    python scripts/gpu_check.py --sizes 1K:4M --output check.json

Every result is checked to the byte before it is timed. The table has, for each collective and size, the time of a call,
the algorithm bandwidth, and the part of the GPU's copy bandwidth that the plan's own reads and writes come to; then the
latency of small allreduces, and a profile of the ranks. Asked for: an allgather of 64 MiB and more at 0.8 of the copy
bandwidth, and an allreduce of 8 KiB in at most 15 us. It leaves off what a limit of time does not allow, and says so.
"""

import argparse
import json
import sys
import time
from typing import Any

import numpy as np

from collsyn.bench.job import HERE, BenchOptions
from collsyn.bench.result import Row
from collsyn.bench.run import bench, raise_if_wrong
from collsyn.bench.sources import Preparation, on_the_spot
from collsyn.cuda.driver import Driver
from collsyn.errors import CollsynError
from collsyn.model.bind import bind
from collsyn.model.plan import Plan
from collsyn.profiling.gpu import QUICK, profile_gpu
from collsyn.runtime.program import KIND_OF_OP, MOVE, REDUCE
from collsyn.synth.problem import Problem
from collsyn.topology.resolve import load_topology
from collsyn.units import format_size, parse_size

RANKS = 8
# What is run, and how its schedule is made: at small sizes, and beyond.
METHODS = {
    "allreduce": ("one-shot", "direct"),
    "allgather": ("direct", "direct"),
    "reducescatter": ("direct", "direct"),
    "alltoall": ("direct", "direct"),
    "broadcast": ("binomial", "direct"),
    "reduce": ("binomial", "direct"),
    "gather": ("direct", "direct"),
    "scatter": ("direct", "direct"),
}
SMALL_BYTES = 64 << 10
COPY_BYTES = 256 << 20
WIDTH = 4


def main(arguments: list[str] | None = None, driver: Driver | None = None) -> int:
    """Print the tables; returns how many of the figures asked for were missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1K:256M", help="first and last size, four times as large each")
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--copy", default="256M", help="bytes of the copy that bandwidth is measured with")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--limit", type=float, default=240, help="seconds after which nothing more is begun")
    parser.add_argument("--output", help="JSON of everything")
    asked = parser.parse_args(arguments)
    begin = time.monotonic()
    if driver is None:
        from collsyn.cuda.cupy_driver import CupyDriver

        driver = CupyDriver()
    facts = driver.facts(0)
    copy = copy_gb_s(driver, parse_size(asked.copy))
    print(f"{facts.name}, compute capability {facts.architecture[0]}.{facts.architecture[1]}")
    print(f"copy bandwidth, read and written: {copy:.0f} GB/s\n")
    print(f"{'collective':<14}{'size':>8}{'us':>12}{'algbw GB/s':>12}{'of copies':>11}  launch")
    rows: list[dict[str, Any]] = []
    left_off = 0
    for kind in METHODS:
        for size in sizes(asked.sizes):
            if time.monotonic() - begin > asked.limit:
                left_off += 1
                continue
            rows.append(measured(kind, size, asked.ranks, asked.iterations, copy))
            print(line(rows[-1]), flush=True)
    print()
    if time.monotonic() - begin <= asked.limit:
        print(profiled(driver, asked.ranks))
    else:
        left_off += 1
    if left_off:
        print(f"left off for want of time: {left_off} rows")
    missed = judged(rows)
    if asked.output:
        with open(asked.output, "w") as file:
            json.dump({"gpu": facts.name, "copy_gb_s": copy, "rows": rows}, file, indent=1)
    print(f"{time.monotonic() - begin:.0f} s in all")
    return missed


def sizes(text: str) -> list[int]:
    """From the first to the last, four times as large each."""
    first, _, last = text.partition(":")
    found = [parse_size(first)]
    while found[-1] * 4 <= parse_size(last or first):
        found.append(found[-1] * 4)
    return found


def copy_gb_s(driver: Driver, num_bytes: int, repeats: int = 10) -> float:
    """What the GPU reads and writes per second when it copies within its memory, in GB/s (bytes counted twice)."""
    source, to, stream = driver.allocate(0, num_bytes), driver.allocate(0, num_bytes), driver.stream(0)
    seconds = []
    for _ in range(repeats):
        begin = driver.mark(0, stream)
        driver.copy(0, to, source, num_bytes, stream)
        end = driver.mark(0, stream)
        stream.wait()
        seconds.append(driver.seconds(begin, end))
    driver.free(0, source)
    driver.free(0, to)
    return 2 * num_bytes / float(np.median(seconds[1:])) * 1e-9


def measured(kind: str, size: int, ranks: int, iterations: int, copy: float) -> dict[str, Any]:
    """A row of the table: the launch that is quickest of all, checked and timed."""
    by = METHODS[kind][size > SMALL_BYTES]
    source = on_the_spot(Problem(kind, load_topology(f"full:{ranks}"), size), by)
    options = BenchOptions(
        sizes=(size,),
        iterations=iterations,
        warmup=2,
        backend="cuda",
        launcher=HERE,
        loopback=True,
        in_place=False,
        tune=True,
    )
    result = bench([source], options)
    raise_if_wrong(result)
    row: Row = result.rows[0]
    time_s = row.out_of_place.time_s
    assert time_s is not None
    traffic = plan_traffic(Preparation(source).at(row.size_bytes).plan, row.size_bytes)
    return {
        "collective": kind,
        "size": row.size_bytes,
        "us": time_s * 1e6,
        "algbw_gb_s": row.algbw(row.out_of_place),
        "of_copies": traffic / time_s * 1e-9 / copy,
        "launch": row.launch,
    }


def plan_traffic(plan: Plan, size: int) -> int:
    """Bytes that the instructions of all ranks read and write."""
    bound = bind(plan, size // WIDTH, WIDTH)
    kind = KIND_OF_OP[bound.columns["op"]]
    times = np.where(kind == MOVE, 2, np.where(kind == REDUCE, 3, 0))
    return int((bound.columns["length"] * times).sum())


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    launch = row["launch"]
    how = f"{launch['blocks_per_channel']} x {launch['threads']}" if launch["transport"] == "kernel" else "copy engines"
    return (
        f"{row['collective']:<14}{format_size(row['size']):>8}{row['us']:>12.1f}{row['algbw_gb_s']:>12.2f}"
        f"{row['of_copies']:>11.2f}  {how}"
    )


def profiled(driver: Driver, ranks: int) -> str:
    """Between which costs the pairs of ranks lie."""
    profile = profile_gpu(driver, min(ranks, 4), QUICK, loopback=True)
    alpha = [link.alpha_s.value * 1e6 for link in profile.links]
    rate = [1e-9 / link.beta_s_per_byte.value for link in profile.links]
    copies = [gb_s for _, _, gb_s in profile.method["copy_engine_gb_s"]]
    return (
        f"profile of {profile.num_ranks} ranks: alpha {min(alpha):.2f} to {max(alpha):.2f} us, by kernels "
        f"{min(rate):.0f} to {max(rate):.0f} GB/s, by copy engines {min(copies):.0f} to {max(copies):.0f} GB/s"
    )


def judged(rows: list[dict[str, Any]]) -> int:
    """Print what was asked for beside what was reached; how many figures were missed."""
    large = [row["of_copies"] for row in rows if row["collective"] == "allgather" and row["size"] >= 64 << 20]
    small = [row["us"] for row in rows if row["collective"] == "allreduce" and 4 << 10 <= row["size"] <= 8 << 10]
    missed = 0
    for what, found, wanted, good in (
        (
            "allgather of 64 MiB and more, of the copy bandwidth",
            max(large, default=None),
            "at least 0.8",
            lambda x: x >= 0.8,
        ),
        ("allreduce of up to 8 KiB, us", min(small, default=None), "at most 15", lambda x: x <= 15),
    ):
        if found is None:
            print(f"{what}: not measured ({wanted} asked for)")
        else:
            missed += not good(found)
            print(f"{what}: {found:.2f} ({wanted} asked for)")
    return missed


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CollsynError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
