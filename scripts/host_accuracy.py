#!/usr/bin/env python3
"""Simulated beside measured times of collectives between processes of this machine, on the machine's own profile.

    python scripts/host_accuracy.py --ranks 2 4 -o collsyn-out/accuracy

A profile is measured for each number of ranks (unless its file is there), schedules are made for it, and run in several
launches. A row is marked where measured and simulated times differ by more than a quarter. The last column is the same
ratio over that of the plain exchange which runs in turn with the collective: where other work made the machine another
one since the profile, both are off, and their ratio is not.
"""

import argparse
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np

from collsyn.bench.job import BenchOptions
from collsyn.bench.result import Row
from collsyn.bench.run import Benchmark, bench_all
from collsyn.bench.sources import on_the_spot
from collsyn.bench.yardstick import exchange
from collsyn.check.simulate_plan import simulate_plan
from collsyn.model.topology import Topology
from collsyn.synth.problem import Problem
from collsyn.topology.resolve import load_topology
from collsyn.units import parse_size

WITHIN = 0.25


def main() -> None:
    """Measure, run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--collectives", nargs="+", default=["allgather", "reducescatter", "allreduce", "alltoall"])
    parser.add_argument("--method", default="auto")
    parser.add_argument("--sizes", type=parse_size, nargs="+", default=[mib << 20 for mib in (1, 4, 16, 64)])
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a quick profile")
    parser.add_argument("-o", "--output", type=Path, default=Path("collsyn-out/accuracy"), help="folder for profiles")
    args = parser.parse_args()
    ratios: list[float] = []
    for ranks in args.ranks:
        machine = load_topology(str(measured(args.output / f"profile-{ranks}.yaml", ranks, args.quick)))
        # Bytes are checked by other tests; here their time would be most of the run.
        options = BenchOptions(
            sizes=tuple(args.sizes), iterations=20, warmup=2, in_place=False, check=False, yardstick=True
        )
        problems = [Problem(kind, machine, args.sizes[0]) for kind in args.collectives]
        benchmarks = [Benchmark(on_the_spot(problem, args.method), options) for problem in problems]
        print(f"ranks {'collective':>13}  size {'method':>10} {'simulated us':>13} {'measured us':>12} ratio /exch.")
        bench_all(benchmarks, partial(show, machine, ratios), launches=args.launches)
    near = sum(abs(np.log(ratio)) <= np.log(1 + WITHIN) for ratio in ratios)
    print(f"within {WITHIN:.0%}: {near} of {len(ratios)}; median ratio {np.median(ratios):.2f}")


def measured(path: Path, ranks: int, quick: bool) -> Path:
    """The file of a profile, which is measured if it is not there."""
    if not path.exists():
        command = [sys.executable, "-m", "collsyn.cli", "profile", "--ranks", str(ranks), "-o", str(path)]
        subprocess.run([*command, *(["--quick"] if quick else [])], check=True, stdout=sys.stderr)
    return path


def show(machine: Topology, ratios: list[float], row: Row) -> None:
    """Print a row; add its measured time over the simulated one to `ratios`."""
    plain = exchange(row.collective, row.group_size)
    plain_ratio = typical(row.yardstick_s, row.launches) / simulate_plan(plain, machine, row.size_bytes).finish_s
    assert row.simulated_s is not None
    measured_s = typical(row.out_of_place.blocks_s, row.launches)
    ratio = measured_s / row.simulated_s
    ratios.append(ratio)
    far = "" if abs(np.log(ratio)) <= np.log(1 + WITHIN) else "  far"
    print(
        f"{row.group_size:>5} {row.collective:>13} {row.size_bytes / 2**20:>4.0f}M {row.method:>10} "
        f"{row.simulated_s * 1e6:>13.1f} {measured_s * 1e6:>12.1f} {ratio:>5.2f} {ratio / plain_ratio:>10.2f}{far}",
        flush=True,
    )


def typical(blocks_s: tuple[float, ...], launches: int) -> float:
    """Median over launches of their median blocks."""
    return float(np.median(np.median(np.reshape(blocks_s, (launches, -1)), axis=1)))


if __name__ == "__main__":
    main()
