"""Measures the greedy synthesizer at scale: seconds and finish over the size of the machine, with fitted exponents.

    python scripts/bench_scale.py                 # all tables of docs/greedy.md, Scale
    python scripts/bench_scale.py equal unequal   # some of: equal, unequal, optima, small, growth
    python scripts/bench_scale.py growth --plot docs/pictures/greedy-growth.svg

Every schedule is verified, and its finish is the simulated one. CPU seconds are user and system time of this process:
`kernel` is the compiled matching alone, `synthesis` the call from problem to schedule; compilation comes before.
Exits with the number of rows that miss what is asked. Tables are Markdown.
"""

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np

from collsyn.bounds import chunk_bound, fluid_bound
from collsyn.check.simulate import retime
from collsyn.check.verify import verify_schedule
from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology
from collsyn.synth.greedy_direct import Links, match
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from collsyn.units import parse_size

COSTS = "@bandwidth_gb_s=53.6870912,alpha_us=0.5,overhead=alpha"
HETERO = "hetero3d:4x8x16@bandwidth_gb_s=200/100/50,alpha_us=0.5"

# Topology: the best finish that other programs reach with one chunk a rank of 1 GiB in all, microseconds.
EQUAL = {
    "mesh:4x4": 10004,
    "mesh:8x8": 10016,
    "mesh:16x16": 10064,
    "mesh:32x16": 10128,
    "mesh:32x32": 10256,
    "torus:4x4": 6252,
    "torus:8x8": 5321,
    "torus:16x16": 5111,
    "torus:32x16": 5143,
    "torus:32x32": 5168,
    "torus:4x4x4": 3443,
    "torus:8x8x4": 3381,
    "torus:8x8x8": 3402,
    "torus:16x8x8": 3425,
    "hypercube:4": 6252,
    "hypercube:6": 3443,
    "hypercube:8": 2516,
    "hypercube:9": 2255,
    "hypercube:10": 2063,
}
MOST_CPU_S = {512: 0.1, 1024: 0.4}
MICROSECOND = 1e-6


def main() -> int:
    """Print the tables; returns the number of rows that miss what is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE")
    parser.add_argument("--plot", metavar="FILE", help="draw the growth into a file (.svg, .png)")
    chosen = parser.parse_args()
    tables: dict[str, Callable[[], int]] = {
        "equal": equal,
        "unequal": unequal,
        "optima": optima,
        "small": small,
        "growth": lambda: growth(chosen.plot),
    }
    unknown = sorted(set(chosen.tables) - set(tables))
    if unknown:
        parser.error(f"table {unknown[0]!r} is not known; expected {', '.join(tables)}")
    for warm in ("torus:4x4" + COSTS, "torus:4x4", "mesh:4x4@bandwidth_gb_s=100/50,overhead=alpha"):
        for kind in ("allgather", "allreduce"):
            solved(Problem(kind, load_topology(warm), 1 << 24, 1))
    return sum(tables[name]() for name in chosen.tables or tables)


def solved(problem: Problem, time_limit_s: float | None = None) -> tuple[Schedule, float]:
    """A verified schedule of greedy, and the CPU seconds it took."""
    begin_s = time.process_time()
    schedule = method("greedy").synthesize(problem, Options(time_limit_s=time_limit_s))
    cpu_s = time.process_time() - begin_s
    verify_schedule(schedule).raise_if_bad()
    again_s = retime(schedule, schedule.size_bytes).finish_s
    assert abs(again_s - schedule.finish_s) <= 1e-9 * schedule.finish_s, (again_s, schedule.finish_s)
    return schedule, cpu_s


def equal() -> int:
    """Equal links, one chunk a rank."""
    print("\n| topology | ranks | finish us | others us | chunk bound us | CPU s | asked | |\n" + "|---" * 8 + "|")
    failures, seconds = 0, []
    for name, others_us in EQUAL.items():
        problem = Problem("allgather", load_topology(name + COSTS), 1 << 30, 1)
        schedule, cpu_s = solved(problem)
        ranks, finish_us = problem.topology.num_ranks, schedule.finish_s / MICROSECOND
        bound_us = chunk_bound(schedule.collective, problem.topology, 1 << 30).time_s / MICROSECOND
        asked_s = MOST_CPU_S.get(ranks)
        failed = round(finish_us) > others_us or (asked_s is not None and cpu_s > asked_s)
        failures += failed
        seconds.append((ranks, cpu_s))
        limit = "" if asked_s is None else f"{asked_s}"
        row = f"{name} | {ranks} | {finish_us:.1f} | {others_us} | {bound_us:.1f} | {cpu_s:.3f} | {limit}"
        print(f"| {row} | {'missed' if failed else 'met'} |", flush=True)
    large = [pair for pair in seconds if pair[0] >= 256]
    print(f"\nCPU seconds grow with ranks to the power {exponent(large):.2f} from 256 ranks on; sends to the power 2.")
    return failures


def unequal() -> int:
    """Unequal links, and two boxes joined by rails."""
    print("\n| problem | finish us | chunks | of chunk bound | of fluid bound | CPU s | asked | |\n" + "|---" * 8 + "|")
    mesh = load_topology("mesh:32x16@bandwidth_gb_s=107.3741824/53.6870912,alpha_us=0.5,overhead=alpha")
    hetero, rails = load_topology(HETERO), two_boxes()
    return sum(
        [
            _row("mesh:32x16 with x links twice as fast", mesh, 1, cpu_s=0.2, finish_us=6805),
            _row("hetero3d:4x8x16", hetero, 4, cpu_s=0.5, of_chunk=0.95),
            _row("hetero3d:4x8x16", hetero, None, cpu_s=2.0, of_fluid=0.97),
            _row("hetero3d:4x8x16", hetero, None, kind="allreduce", cpu_s=1.0, of_fluid=0.95),
            _row("two boxes of 8, rails, 256M", rails, None, size="256M", of_fluid=0.95),
        ]
    )


def _row(
    label: str,
    topology: Topology,
    chunks: int | None,
    *,
    kind: str = "allgather",
    size: str = "1G",
    cpu_s: float | None = None,
    finish_us: float | None = None,
    of_chunk: float = 0.0,
    of_fluid: float = 0.0,
) -> int:
    """One row of the table of unequal links; whether it misses what is asked."""
    schedule, taken_s = solved(Problem(kind, topology, parse_size(size), chunks))
    whole_s = chunk_bound(schedule.collective, topology, schedule.size_bytes, batched=bool((schedule.batch >= 0).any()))
    fluid_s = fluid_bound(schedule.collective, topology, schedule.size_bytes)
    shares = whole_s.time_s / schedule.finish_s, fluid_s.time_s / schedule.finish_s
    failed = (cpu_s is not None and taken_s > cpu_s) or shares[0] < of_chunk or shares[1] < of_fluid
    failed |= finish_us is not None and schedule.finish_s / MICROSECOND > finish_us
    asked = [f"{cpu_s} s" if cpu_s else "", f"{finish_us} us" if finish_us else ""]
    asked += [f"{of_chunk} of chunk" if of_chunk else "", f"{of_fluid} of fluid" if of_fluid else ""]
    given = f"{label}, {kind} | {schedule.finish_s / MICROSECOND:.2f} | {schedule.collective.chunks_per_rank}"
    print(
        f"| {given} | {shares[0]:.4f} | {shares[1]:.4f} | {taken_s:.3f} | {', '.join(filter(None, asked))} "
        f"| {'missed' if failed else 'met'} |",
        flush=True,
    )
    return failed


def two_boxes() -> Topology:
    """Two boxes of 8 ranks: 300 GB/s a rank to the others of its box, 12.5 to its twin; 1.7 us, which occupy a link."""
    inside = [(box + a, box + b) for box in (0, 8) for a in range(8) for b in range(8) if a != b]
    rails = [(rank, (rank + 8) % 16) for rank in range(16)]
    beta = [7 / 300e9] * len(inside) + [1 / 12.5e9] * len(rails)
    src, dst = np.array(inside + rails).T
    alpha = np.full(len(src), 1.7e-6)
    return Topology(
        "two boxes of 8 with rails", 16, src, dst, alpha, np.array(beta), alpha, np.ones(len(src), dtype=np.int32)
    )


def optima() -> int:
    """Schedules of one chunk a rank that cannot be beaten."""
    print("\n| topology | size | finish us | optimum us | CPU s | |\n" + "|---" * 6 + "|")
    failures = 0
    for name, size, steps, shard_s in (
        ("torus:4x4" + COSTS, "1G", 4, (1 << 26) / 53.6870912e9),
        ("torus:6x6" + COSTS, "1G", 9, (1 << 30) / 36 / 53.6870912e9),
        ("mesh:4x2x2" + COSTS, "1G", 5, (1 << 26) / 53.6870912e9),
        ("dgx1@bandwidth_gb_s=25,alpha_us=0.7,overhead=alpha", "256M", 3, (1 << 25) / 50e9),
    ):
        topology = load_topology(name)
        schedule, cpu_s = solved(Problem("allgather", topology, parse_size(size), 1))
        optimum_s = steps * (float(topology.alpha_s[0]) + shard_s)
        failed = schedule.finish_s > optimum_s * (1 + 1e-9)
        failures += failed
        times = f"{schedule.finish_s / MICROSECOND:.1f} | {optimum_s / MICROSECOND:.1f} | {cpu_s:.3f}"
        print(f"| {name} | {size} | {times} | {'missed' if failed else 'met'} |", flush=True)
    return failures


def small() -> int:
    """Several chunks in one message."""
    topology = load_topology("mesh:8x8" + COSTS)
    schedule, cpu_s = solved(Problem("allgather", topology, 1 << 16))
    failed = schedule.finish_s > 9 * MICROSECOND
    verdict, finish_us = "missed" if failed else "met", schedule.finish_s / MICROSECOND
    carried = f"{schedule.num_sends} chunks in {len(schedule.messages)} messages"
    print(f"\nmesh:8x8, 64K: {finish_us:.2f} us (asked 9): {verdict}; {carried}, {cpu_s:.1f} CPU s")
    return failed


def growth(plot: str | None) -> int:
    """The compiled matching alone, from 1,000 to 10,000 ranks."""
    print("\n| topology | ranks | sends | steps | least steps | kernel CPU s | ns a send |\n" + "|---" * 7 + "|")
    failures, drawn = 0, {}
    for family, names in {
        "torus": ("torus:32x32", "torus:48x48", "torus:64x64", "torus:80x80", "torus:100x100"),
        "mesh": ("mesh:32x32", "mesh:48x48", "mesh:64x64", "mesh:80x80", "mesh:100x100"),
        "3D torus": ("torus:10x10x10", "torus:16x16x16", "torus:20x20x25"),
    }.items():
        points = []
        for name in names:
            links = Links.of(load_topology(name))
            ranks = links.topology.num_ranks
            begin_s = time.process_time()
            sent = match(links, np.arange(ranks), 1, 0)
            cpu_s = time.process_time() - begin_s
            assert sent is not None
            sends, least = ranks * (ranks - 1), links.least_steps(ranks - 1)
            points.append((ranks, cpu_s))
            each = f"{cpu_s:.2f} | {1e9 * cpu_s / sends:.1f}"
            print(f"| {name} | {ranks} | {sends} | {len(sent)} | {least} | {each} |", flush=True)
        each_s = [cpu_s / (ranks * (ranks - 1)) for ranks, cpu_s in points]
        failed = max(each_s) > 2 * each_s[0]
        failures += failed
        print(
            f"\n{family}: CPU seconds grow with ranks to the power {exponent(points):.2f}, "
            f"time a send by {max(each_s) / each_s[0]:.2f} at most (asked 2): {'missed' if failed else 'met'}\n"
        )
        drawn[family] = points
    if plot is not None:
        draw(drawn, plot)
    return failures


def exponent(points: list[tuple[int, float]]) -> float:
    """The slope of a line through the logarithms."""
    ranks, seconds = np.array(points).T
    return float(np.polyfit(np.log(ranks), np.log(seconds), 1)[0])


def draw(families: dict[str, list[tuple[int, float]]], path: str) -> None:
    """Nanoseconds a send over ranks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5))
    for family, points in families.items():
        ranks, seconds = np.array(points).T
        axes.plot(ranks, 1e9 * seconds / ranks / (ranks - 1), marker="o", label=family)
    axes.set(xscale="log", xlabel="ranks", ylabel="CPU ns a send", ylim=(0, None), title="Greedy allgather in lockstep")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


if __name__ == "__main__":
    sys.exit(main())
