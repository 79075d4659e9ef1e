"""Prints what breadth-first broadcast costs and reaches (docs/bfb.md).

    python scripts/bfb_table.py                        # steps and exact bandwidth factors
    python scripts/bfb_table.py --large                # CPU seconds of schedules for 1024 and 2500 ranks, verified
    python scripts/bfb_table.py --repaired             # bfb and bfb-repaired at 1M and 1G against the exact bound
    python scripts/bfb_table.py --topologies genkautz:4x64 dgx1 --repaired

Columns of the first table: steps T_L, bandwidth factor T_B in M / B, and the least factor that any schedule has on
that machine, B being the largest bandwidth into one rank. `line-graph` before a topology is its line graph. Exits with
1 where a published value is not met, or a repaired schedule is 1.05 times the bound at 1G or 1.05 times bfb at 1M.
"""

import argparse
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from collsyn.bounds import fluid_bound
from collsyn.check.verify import verify_schedule
from collsyn.model.topology import Topology
from collsyn.synth.bfb_cost import bfb_cost
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from collsyn.units import format_size, parse_size


@dataclass(frozen=True)
class Published:
    """Steps, factor and least factor as published for a topology."""

    steps: int
    factor: Fraction
    least: Fraction


def same(steps: int, factor: str) -> Published:
    """Where nothing is lost."""
    return Published(steps, Fraction(factor), Fraction(factor))


PUBLISHED = {
    "bipartite:4x4": same(2, "7/8"),
    "torus:4x4": same(4, "15/16"),
    "torus:8x8": same(8, "63/64"),
    "torus:4x4x4": same(6, "63/64"),
    "hypercube:4": same(4, "15/16"),
    "circulant 12, offsets 2 3": same(2, "11/12"),
    "petersen": same(2, "9/10"),
    "line-graph bipartite:4x4": Published(3, Fraction(1), Fraction(31, 32)),
    "genkautz:4x12": Published(2, Fraction(5, 3), Fraction(11, 9)),
    "genkautz:4x32": Published(3, Fraction(13, 8), Fraction(31, 24)),
    "kautz:4x1": Published(2, Fraction(1), Fraction(19, 20)),
    "dgx1": Published(2, Fraction(9, 8), Fraction(7, 8)),
}
LARGE = ("hypercube:10", "torus:50x50")
REPAIRED = ("genkautz:4x12", "genkautz:4x32", "dgx1")


def main() -> int:
    """Print one of the tables; returns 1 if a published value or a limit is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topologies", nargs="+")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--large", action="store_true")
    which.add_argument("--repaired", action="store_true")
    parser.add_argument("--size", default="1G", help="of the schedules of --large")
    options = parser.parse_args()
    if options.large:
        return large(options.topologies or LARGE, parse_size(options.size))
    if options.repaired:
        return repaired(options.topologies or REPAIRED)
    return costs(options.topologies or PUBLISHED)


def costs(names: Iterable[str]) -> int:
    """The table of steps and factors."""
    print("| topology | ranks | T_L | T_B | least | T_B over least |\n|---|---|---|---|---|---|")
    wrong = 0
    for name in names:
        topology = resolved(name)
        cost, least = bfb_cost(topology), least_factor(topology)
        over = f"{float(cost.factor / least):.3f}"
        print(f"| {name} | {topology.num_ranks} | {cost.steps} | {cost.factor} | {least} | {over} |", flush=True)
        if name in PUBLISHED and PUBLISHED[name] != Published(cost.steps, cost.factor, least):
            print(f"published: {PUBLISHED[name]}")
            wrong = 1
    return wrong


def large(names: Iterable[str], size_bytes: int) -> int:
    """CPU seconds of synthesis and verification, what is compiled being there already."""
    print("| topology | sends | over T_L alpha + T_B M/B | over the bound | synthesis CPU s | verify CPU s |")
    print("|---|---|---|---|---|---|")
    bfb = method("bfb")
    for name in ("torus:4x4", "torus:24x24"):
        verify_schedule(bfb.synthesize(Problem("allgather", load_topology(name), size_bytes), Options()))
    for name in names:
        problem = Problem("allgather", load_topology(name), size_bytes)
        begin_s = time.process_time()
        schedule = bfb.synthesize(problem, Options())
        made_s = time.process_time()
        report = verify_schedule(schedule)
        checked_s = time.process_time()
        report.raise_if_bad()
        topology, cost = problem.topology, bfb_cost(problem.topology)
        into = max_into(topology)
        said_s = cost.steps * float(topology.alpha_s.max()) + float(cost.factor) * size_bytes / (float(into) * 1e9)
        bound_s = fluid_bound(schedule.collective, topology, size_bytes).time_s
        over = f"{schedule.finish_s / said_s - 1:.2%} | {schedule.finish_s / bound_s - 1:.2%}"
        seconds = f"{made_s - begin_s:.2f} | {checked_s - made_s:.2f}"
        print(f"| {name} | {schedule.num_sends} | {over} | {seconds} |", flush=True)
    return 0


def repaired(names: Iterable[str]) -> int:
    """Both methods at 1M and 1G."""
    print("| topology | size | bound us | bfb us | steps | repaired us | steps | over the bound | over bfb | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    wrong = 0
    method("bfb-repaired").synthesize(Problem("allgather", load_topology("genkautz:3x7"), 1 << 20), Options())
    for name in names:
        for size_bytes in (1 << 20, 1 << 30):
            problem = Problem("allgather", load_topology(name), size_bytes)
            begin_s = time.process_time()
            schedule = method("bfb-repaired").synthesize(problem, Options())
            cpu_s = time.process_time() - begin_s
            verify_schedule(schedule).raise_if_bad()
            plain = method("bfb").synthesize(problem, Options())
            bound_s = fluid_bound(schedule.collective, problem.topology, size_bytes).time_s
            said = schedule.provenance["options"]
            over = schedule.finish_s / bound_s, schedule.finish_s / plain.finish_s
            wrong |= (over[0] if size_bytes == 1 << 30 else over[1]) > 1.05
            times = f"{bound_s * 1e6:.4g} | {plain.finish_s * 1e6:.4g} | {said['bfb_steps']}"
            mine = f"{schedule.finish_s * 1e6:.4g} | {said['steps']} | {over[0]:.3f} | {over[1]:.3f} | {cpu_s:.1f}"
            print(f"| {name} | {format_size(size_bytes)} | {times} | {mine} |", flush=True)
    return wrong


def resolved(name: str) -> Topology:
    """A topology of the table."""
    if name.startswith("circulant "):
        ranks, offsets = name.removeprefix("circulant ").split(", offsets ")
        steps = [sign * int(o) for o in offsets.split() for sign in (1, -1)]
        src = np.repeat(np.arange(int(ranks)), len(steps))
        return equal_links(name, int(ranks), src, (src + np.tile(steps, int(ranks))) % int(ranks))
    if not name.startswith("line-graph "):
        return load_topology(name)
    inner = load_topology(name.removeprefix("line-graph "))
    first, second = np.nonzero(inner.dst[:, None] == inner.src[None, :])
    return equal_links(name, inner.num_links, first, second)


def equal_links(name: str, ranks: int, src: np.ndarray, dst: np.ndarray) -> Topology:
    """Links of 50 GB/s and half a microsecond."""
    one = np.ones(len(src))
    return Topology(name, ranks, src, dst, 0.5e-6 * one, 2e-11 * one, 0 * one, one.astype(np.int32))


def max_into(topology: Topology) -> Fraction:
    """The largest bandwidth into one rank in GB/s."""
    into = [Fraction(0)] * topology.num_ranks
    for rank, gb_s in zip(topology.dst.tolist(), topology.exact_bandwidth_gb_s, strict=True):
        into[rank] += gb_s
    return max(into)


def least_factor(topology: Topology) -> Fraction:
    """What no schedule's bandwidth factor is below, by the exact bound."""
    bound = fluid_bound(Problem("allgather", topology, 1 << 30).collective(), topology, 1 << 30)
    assert bound.algbw_exact is not None
    return max_into(topology) / bound.algbw_exact


if __name__ == "__main__":
    sys.exit(main())
