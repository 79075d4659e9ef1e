"""Prints what trees reach: optimum, height, parts, rate, and the schedule and plan at one size.

    python scripts/trees_table.py                                   # allgather, 1G, the topologies of docs/trees.md
    python scripts/trees_table.py --collectives reducescatter --topologies dgx-a100:2 mi250:2
    python scripts/trees_table.py --topologies dgx-a100:16 dgx-a100:128 --no-plans

Columns: the exact optimum (GB/s); diameter in hops and the height of the trees; rate of the trees as chosen over the
optimum; optimum's time over the time of the schedule, and of the simulated plan with at most 32 channels a rank; CPU
seconds of the synthesis, after a first small problem. Schedules are verified, and their certificates rechecked.
"""

import argparse
import sys
import time

import numpy as np

from collsyn.bounds import fluid_bound, recheck
from collsyn.check.simulate_plan import simulate_plan
from collsyn.check.verify import verify_schedule
from collsyn.lower.lower import lower
from collsyn.model.topology import Topology
from collsyn.synth.baseline import hops_of
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from collsyn.units import parse_size

TOPOLOGIES = ["dgx-a100:1", "dgx-a100:2", "dgx-a100:4", "mi250:1", "mi250:2", "dgx1", "ndv2:2", "dgx2:2", "torus:4x4"]
TOPOLOGIES += ["bipartite:4x4", "genkautz:4x12", "kautz:4x1", "hypercube:4", "petersen", "mesh:4x4", "mesh:8x8"]


def main() -> int:
    """Print the table; returns the number of rows whose certificate does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES)
    parser.add_argument("--collectives", nargs="+", default=["allgather"])
    parser.add_argument("--size", default="1G")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-plans", action="store_true")
    options = parser.parse_args()
    print("| topology | collective | optimum GB/s | diameter | height | trees | k | rate | schedule | plan | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    wrong = 0
    for collective in options.collectives:
        method("trees").synthesize(Problem(collective, load_topology("ring:4"), 4096), Options())
        for name in options.topologies:
            problem = Problem(collective, load_topology(name), parse_size(options.size))
            text, holds = row(name, problem, options.seed, not options.no_plans)
            wrong += not holds
            print(text, flush=True)
    return wrong


def row(name: str, problem: Problem, seed: int, plans: bool) -> tuple[str, bool]:
    """One row, and whether the certificate of its bound holds."""
    begin_s = time.process_time()
    schedule = method("trees").synthesize(problem, Options(seed=seed))
    cpu_s = time.process_time() - begin_s
    verify_schedule(schedule).raise_if_bad()
    asked = schedule.collective, problem.topology, problem.size_bytes
    bound = fluid_bound(*asked)
    assert bound.algbw_exact is not None
    least_s = problem.size_bytes / float(bound.algbw_exact) * 1e-9
    chosen = schedule.provenance["options"]
    plan = "-"
    if plans:
        plan = f"{least_s / simulate_plan(lower(schedule), problem.topology, problem.size_bytes).finish_s:.3f}"
    rate = _fraction(chosen["algbw_exact"]) / float(bound.algbw_exact) if "algbw_exact" in chosen else float("nan")
    height = f"{diameter(problem.topology)} | {chosen.get('height', '-')} | {chosen.get('trees', '-')}"
    parts = f"{chosen.get('parts', '-')} | {rate:.4f} | {least_s / schedule.finish_s:.3f} | {plan} | {cpu_s:.2f}"
    text = f"| {name} | {problem.kind} | {float(bound.algbw_exact):.2f} | {height} | {parts} |"
    return text, recheck(bound, *asked) is None


def diameter(topology: Topology) -> int:
    """The most hops that any rank is away from any other."""
    n = topology.num_ranks
    near = np.zeros((n, n), dtype=np.float32)
    table = hops_of(topology)
    near[table.src, table.dst] = 1
    reached, hops = np.eye(n, dtype=np.float32), 0
    while not (reached > 0).all():
        reached = ((reached + reached @ near) > 0).astype(np.float32)
        hops += 1
    return hops


def _fraction(text: str) -> float:
    above, _, below = text.partition("/")
    return int(above) / int(below or "1")


if __name__ == "__main__":
    sys.exit(main())
