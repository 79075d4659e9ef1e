"""Finish of methods on topologies at some sizes, beside the fluid bound: a table for docs/synthesizers.md.

    python scripts/method_table.py
    python scripts/method_table.py --collective allgather --topologies torus:4x4x4 --sizes 1M --methods ring swing

Times are those of verified schedules in microseconds; `-` is what a method does not serve.
"""

import argparse

from collsyn.portfolio.auto import best
from collsyn.synth.problem import Options, Problem
from collsyn.topology.resolve import load_topology
from collsyn.units import parse_size

METHODS = ["ring", "two-way-ring", "recursive", "doubling", "binomial", "double-binary-tree", "hierarchical"]
METHODS += ["swing", "swing-latency", "bine", "greedy"]
TOPOLOGIES = ["torus:4x4", "torus:8x8", "dgx-a100:2", "mi300x"]


def main() -> None:
    """Print one row a topology and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collective", default="allreduce")
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES)
    parser.add_argument("--sizes", nargs="+", default=["1K", "64K", "64M"])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    options = parser.parse_args()
    print(f"| {options.collective} | size | bound | {' | '.join(options.methods)} |")
    print("|---" * (3 + len(options.methods)) + "|")
    for name in options.topologies:
        topology = load_topology(name)
        for size in options.sizes:
            problem = Problem(options.collective, topology, parse_size(size))
            found = {each.method: each for each in best(problem, Options(), options.methods, plans=False)}
            times = [figure(found[method].finish_s) for method in options.methods]
            bound_s = next((each.bound_s for each in found.values() if each.bound_s is not None), None)
            print(f"| {name} | {size} | {figure(bound_s or 0.0)} | {' | '.join(times)} |", flush=True)


def figure(seconds: float) -> str:
    """Microseconds, or - for what there is not."""
    return "-" if seconds == float("inf") else f"{seconds * 1e6:.4g}"


if __name__ == "__main__":
    main()
