"""Alltoall by maximum concurrent flow: values of the program, and what schedules and plans reach of them.

    python scripts/alltoall_table.py                        # values, published sizes, skewed counts, 128 ranks
    python scripts/alltoall_table.py --sections values
    python scripts/alltoall_table.py --sections host        # 8 to 16 host ranks, every byte checked
    python scripts/alltoall_table.py --sections emulated    # on the links of an emulated ndv2:2, against simulation

Every schedule is verified. `value` is the program's rate of every pair of ranks, in GB/s; `schedule` and `plan` are
the parts that the schedule and its simulated plan (at most 32 channels a rank, pieces of at least 16 KiB) reach of the
larger of the bound and the program's time. CPU seconds are user and system time of `synthesize` alone, after
compilation. The exit code counts rows of `flow` below the mark: 0.97, for the published sizes 1 / 1.02, for skewed
counts 0.95.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from collsyn.bounds import fluid_bound
from collsyn.check.simulate_plan import simulate_plan
from collsyn.check.verify import verify_schedule
from collsyn.lower.lower import lower
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology

G = 1 << 30
# Decimal sizes of the output buffer, as published.
SIZES = {"1GB": 10**9, "256MB": 256 * 10**6, "64MB": 64 * 10**6}
SECTIONS = ("values", "published", "skewed", "rooted", "large", "host", "emulated")
# Plans of more ranks are not made.
PLAN_RANKS = 32
LEAST, OTHER_LEAST = 0.97, {"published": 1 / 1.02, "skewed": 0.95}


def skewed(n: int, exponent: float, seed: int = 0) -> list[list[int]]:
    """Counts by Zipf's law in a random order for every sender; senders and receivers differ by factors of e^0.5."""
    random = np.random.default_rng(seed)
    shares = 1e5 / np.arange(1, n + 1) ** exponent
    table = np.array([shares[random.permutation(n)] for _ in range(n)])
    table *= np.exp(random.normal(0, 0.5, n))[:, None] * np.exp(random.normal(0, 0.5, n))
    counts: list[list[int]] = (table.astype(int) + 1).tolist()
    return counts


def row(label: str, problem: Problem, name: str, least: float) -> bool:
    """Print what a method reaches; whether schedule and plan reach the least part of what is possible."""
    begin_s = time.process_time()
    schedule = method(name).synthesize(problem, Options())
    spent_s = time.process_time() - begin_s
    verify_schedule(schedule).raise_if_bad()
    bound_s = fluid_bound(problem.collective(1), problem.topology, problem.size_bytes).time_s
    flow_s = float(schedule.provenance["options"].get("flow_us", 0.0)) * 1e-6
    parts = [max(bound_s, flow_s) / schedule.finish_s]
    if problem.topology.num_ranks <= PLAN_RANKS:
        plan = simulate_plan(lower(schedule), problem.topology, problem.size_bytes)
        parts.append(max(bound_s, flow_s) / plan.finish_s)
    value = problem.size_bytes / problem.topology.num_ranks / flow_s / 1e9 if flow_s else 0.0
    shown = f"{value:.4f}" if flow_s and problem.kind == "alltoall" else "-"
    cells = [label, problem.kind, name, shown, f"{max(bound_s, flow_s) * 1e6:.1f}", f"{schedule.finish_s * 1e6:.1f}"]
    cells += [f"{parts[0]:.4f}", f"{parts[1]:.4f}" if len(parts) > 1 else "-"]
    cells += [str(schedule.collective.chunks_per_rank), str(schedule.num_sends), f"{spent_s:.2f}"]
    print(f"| {' | '.join(cells)} |", flush=True)
    return min(parts) >= least


def problems(section: str) -> Iterator[tuple[str, Problem, Sequence[str]]]:
    """Label, problem and methods of every row."""
    if section == "values":
        for name in (
            "dgx1",
            "dgx-a100:2",
            "mi250",
            "mi250:2",
            "dgx2:2",
            "dgx-a100:4",
            "random1:16x3x2",
            "genkautz:3x17",
        ):
            yield name, Problem("alltoall", load_topology(name), G), ("greedy", "flow")
    elif section == "published":
        for name in ("ndv2:2@costs=teccl", "dgx2:2@costs=teccl", "dgx1@alpha_us=0.7"):
            for label, size in SIZES.items():
                yield f"{name} {label}", Problem("alltoall", load_topology(name), size), ("flow",)
    elif section == "skewed":
        for name in ("dgx1", "dgx-a100:2", "mi250:2", "ndv2:2", "random1:16x3x2", "genkautz:3x17"):
            topology = load_topology(name)
            counts = skewed(topology.num_ranks, 0.8)
            yield name, Problem("alltoallv", topology, G, counts=counts), ("greedy", "flow")
    elif section == "rooted":
        for kind in ("gather", "scatter"):
            for name in ("dgx1", "mi250", "random1:16x3x2"):
                yield name, Problem(kind, load_topology(name), G), ("greedy", "flow")
    elif section == "large":
        for name in ("random:64x4x1", "random:128x4x1", "mesh:8x16", "dgx-h100:16", "torus:8x8x4"):
            yield name, Problem("alltoall", load_topology(name), G), ("flow",)


def host() -> int:
    """Run schedules between host ranks; how many runs were wrong."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.yaml"
        for name in ("dgx1", "mi250", "random1:16x3x2", "ndv2:2"):
            n = load_topology(name).num_ranks
            counts.write_text(f"counts: {[[(7 * a + 3 * b) % 11 for b in range(n)] for a in range(n)]}\n")
            for kind in ("alltoall", "alltoallv", "gather", "scatter"):
                made = Path(folder) / "made.json"
                more = ["--counts", str(counts)] if kind == "alltoallv" else []
                make = ["synthesize", "--collective", kind, "--topology", name, "--method", "flow", "--size", "96K"]
                done = _collsyn([*make, "--time-limit", "5", "-o", str(made), *more])
                if done.returncode == 0:
                    done = _collsyn(["bench", str(made), "-b", "96K", "-e", "96K", "-n", "1", "-w", "1", "-c", "1"])
                said = [line for line in done.stdout.splitlines() if "Out of bounds" in line]
                good = done.returncode == 0 and bool(said)
                wrong += not good
                print(f"{name} {kind}: {said[0] if good else (done.stderr or done.stdout).strip()[-300:]}", flush=True)
    return wrong


def emulated() -> int:
    """Run an alltoall on the links of an emulated ndv2:2; 1 if it is more than 15% off its simulated plan."""
    run = ["bench", "--collective", "alltoall", "--method", "flow", "--emulate", "ndv2:2", "-b", "64M", "-e", "64M"]
    result = json.loads(_collsyn([*run, "-n", "3", "--json"]).stdout)["results"][0]
    off = result["out_of_place"]["time"] / result["simulated_us"] - 1
    print(f"ndv2:2 64M: {result['out_of_place']['time']:.1f} us, simulated {result['simulated_us']:.1f} us, {off:+.1%}")
    return int(abs(off) > 0.15 or int(result["out_of_place"]["nwrong"]) != 0)


def _collsyn(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "collsyn.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def main() -> int:
    """Print a row for every problem of the sections asked for; returns how many miss the mark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS[:5])
    chosen = parser.parse_args().sections
    missed = 0
    if set(chosen) & set(SECTIONS[:5]):
        for name in ("greedy", "flow"):  # compilation
            method(name).synthesize(Problem("alltoall", load_topology("ring:4"), 1 << 20), Options())
        columns = "topology collective method value bound_us finish_us schedule plan chunks sends CPU_s"
        print("| " + columns.replace(" ", " | ").replace("_", " ") + " |")
        print("|---" * 11 + "|")
    for section in (each for each in SECTIONS[:5] if each in chosen):
        least = OTHER_LEAST.get(section, LEAST)
        for label, problem, names in problems(section):
            for name in names:
                missed += not row(label, problem, name, least) and name == "flow"
    missed += host() if "host" in chosen else 0
    missed += emulated() if "emulated" in chosen else 0
    print(f"{missed} missed the mark")
    return min(missed, 100)


if __name__ == "__main__":
    sys.exit(main())
