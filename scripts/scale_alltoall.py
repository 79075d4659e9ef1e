"""Alltoall of hundreds of ranks: CPU seconds of synthesis, finish, and how near it is to the bound.

    python scripts/scale_alltoall.py                    # 512 ranks: symmetric ones, a mesh, boxes with skewed counts
    python scripts/scale_alltoall.py --sections mesh

Every schedule is verified. CPU seconds are user and system time of `synthesize` alone, after compilation.
"""

import argparse
import time
from collections.abc import Sequence

import numpy as np

from collsyn.bounds import fluid_bound
from collsyn.check.verify import verify_schedule
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology

G = 1 << 30
HETERO = "hetero3d:{}@bandwidth_gb_s=200/100/50,alpha_us=0.5"
SECTIONS = ("symmetric", "mesh", "skewed", "rooted")


def skewed(n: int, exponent: float, seed: int = 0) -> list[list[int]]:
    """Counts by Zipf's law in a random order for every sender; senders and receivers differ by factors of e^0.5."""
    random = np.random.default_rng(seed)
    shares = 1e5 / np.arange(1, n + 1) ** exponent
    table = np.array([shares[random.permutation(n)] for _ in range(n)])
    table *= np.exp(random.normal(0, 0.5, n))[:, None] * np.exp(random.normal(0, 0.5, n))
    counts: list[list[int]] = (table.astype(int) + 1).tolist()
    return counts


def row(label: str, name: str, problem: Problem, small: Problem) -> None:
    """Print what one method does on one problem; the small one is solved before, for compilation."""
    solver = method(name)
    solver.synthesize(small, Options())
    begin_s = time.process_time()
    schedule = solver.synthesize(problem, Options())
    spent_s = time.process_time() - begin_s
    verify_schedule(schedule).raise_if_bad()
    bound = fluid_bound(problem.collective(1), problem.topology, problem.size_bytes)
    print(
        f"| {label} | {problem.kind} | {name} | {spent_s:.2f} | {schedule.num_sends} | {schedule.finish_s * 1e6:.1f} "
        f"| {bound.time_s * 1e6:.1f} ({bound.kind}) | {bound.time_s / schedule.finish_s:.3f} |",
        flush=True,
    )


def symmetric() -> None:
    """Topologies whose symmetries move any rank to any other."""
    small = Problem("alltoall", load_topology("torus:2x2"), 1 << 20)
    for name in ("torus:8x8x8", HETERO.format("4x8x16"), "hypercube:9", "torus:16x32"):
        row(name, "translated", Problem("alltoall", load_topology(name), G), small)


def mesh() -> None:
    """A mesh, which has no such symmetries."""
    small = Problem("alltoall", load_topology("torus:2x2"), 1 << 20)
    row("mesh:16x32", "greedy", Problem("alltoall", load_topology("mesh:16x32"), G), small)


def boxes() -> None:
    """64 boxes of 8 GPUs with skewed counts."""
    small = Problem("alltoallv", load_topology("dgx-h100:2"), 1 << 20, counts=skewed(16, 0.8))
    for name, exponents in (("dgx-h100:64", (0.0, 0.5, 0.8)), ("dgx-a100:64", (0.8,))):
        for exponent in exponents:
            problem = Problem("alltoallv", load_topology(name), G, counts=skewed(512, exponent))
            row(f"{name}, exponent {exponent:g}", "rebalanced", problem, small)


def rooted(topologies: Sequence[str] = ("torus:8x8x8", "mesh:16x32", HETERO.format("4x8x16"))) -> None:
    """Gather, scatter and broadcast."""
    for kind in ("gather", "scatter", "broadcast"):
        small = Problem(kind, load_topology("torus:2x2"), 1 << 20)
        for name in topologies:
            row(name, "greedy", Problem(kind, load_topology(name), G), small)


def main() -> None:
    """Print a row for every problem of the sections asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    chosen = parser.parse_args().sections
    print("| topology | collective | method | CPU s | sends | finish us | bound us | bound / finish |")
    print("|---" * 8 + "|")
    for name, section in zip(SECTIONS, (symmetric, mesh, boxes, rooted), strict=True):
        if name in chosen:
            section()


if __name__ == "__main__":
    main()
