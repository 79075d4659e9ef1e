#!/usr/bin/env python3
"""Simulated beside measured times of collectives between processes of this machine, on the machine's own profile.

    python scripts/host_accuracy.py --ranks 2 4 -o collsyn-out/accuracy

A profile is measured for each number of ranks (unless its file is there), schedules are made for it, and run in several
launches. A row is marked where measured and simulated times differ by more than a quarter.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np

from collsyn.bench.job import BenchOptions
from collsyn.bench.result import Row
from collsyn.bench.run import Benchmark, bench_all
from collsyn.bench.sources import on_the_spot
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
        options = BenchOptions(sizes=tuple(args.sizes), iterations=20, warmup=2, in_place=False, check=False)
        problems = [Problem(kind, machine, args.sizes[0]) for kind in args.collectives]
        benchmarks = [Benchmark(on_the_spot(problem, args.method), options) for problem in problems]
        print(
            f"ranks {'collective':>13}  size {'method':>10} {'simulated us':>13} {'measured us':>12} ratio", flush=True
        )
        bench_all(benchmarks, lambda row: ratios.append(shown(row)), launches=args.launches)
    near = sum(abs(np.log(ratio)) <= np.log(1 + WITHIN) for ratio in ratios)
    print(f"within {WITHIN:.0%}: {near} of {len(ratios)}; median ratio {np.median(ratios):.2f}")


def measured(path: Path, ranks: int, quick: bool) -> Path:
    """The file of a profile, which is measured if it is not there."""
    if not path.exists():
        command = [sys.executable, "-m", "collsyn.cli", "profile", "--ranks", str(ranks), "-o", str(path)]
        subprocess.run([*command, *(["--quick"] if quick else [])], check=True, stdout=sys.stderr)
    return path


def shown(row: Row) -> float:
    """Print a row; its measured time over the simulated one."""
    of_launches = np.median(np.reshape(row.out_of_place.blocks_s, (row.launches, -1)), axis=1)
    assert row.simulated_s is not None
    ratio = float(np.median(of_launches)) / row.simulated_s
    print(
        f"{row.group_size:>5} {row.collective:>13} {row.size_bytes / 2**20:>4.0f}M {row.method:>10} "
        f"{row.simulated_s * 1e6:>13.1f} {np.median(of_launches) * 1e6:>12.1f} {ratio:>5.2f}"
        f"{'' if abs(np.log(ratio)) <= np.log(1 + WITHIN) else '  far'}",
        flush=True,
    )
    return ratio


if __name__ == "__main__":
    main()
