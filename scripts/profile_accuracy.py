"""Profiles of emulated machines against what they are: costs of every pair, and the links that pairs share.

    python scripts/profile_accuracy.py                      # dgx1, ndv2:2 and the trees of examples/topologies
    python scripts/profile_accuracy.py dgx1 --quick

One row a machine: the worst relative error of alpha and beta, over all pairs as measured and as the profile's topology
has them, and of the bandwidth of shared links; how many shared links there are, were found, and were invented. A link
counts as shared if its pairs, with all else at their service, could ask for 15% more than it has: others never show.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from collsyn.model.profile import Profile
from collsyn.model.topology import Topology
from collsyn.profiling.host import EMULATED, EMULATED_QUICK, profile_host
from collsyn.solver import Status, solve_pulp
from collsyn.topology.hops import chains, hops
from collsyn.topology.resolve import load_topology

Pair = tuple[int, int]
TREES = Path(__file__).parent.parent / "examples" / "topologies"
MACHINES = ["dgx1", "ndv2:2", *(str(TREES / f"{name}.yaml") for name in ("pcie_tree", "shared_card", "uneven_tree"))]
LONG_BYTES = 1 << 24


def ways(topology: Topology) -> dict[Pair, tuple[int, ...]]:
    """Links of every pair's way: one hop, else the quickest chain of hops."""
    table = hops(topology)
    found: dict[Pair, tuple[int, ...]] = {}
    for source in range(topology.num_ranks):
        for target, chain in chains(table, LONG_BYTES, source).items():
            found[source, target] = tuple(link for hop in chain for link in table.routes[hop].tolist())
    for pair, hop in table.best(LONG_BYTES).items():
        found[pair] = tuple(table.routes[hop].tolist())
    return found


def costs(topology: Topology, way: tuple[int, ...]) -> tuple[float, float]:
    """Alpha and beta of a way."""
    links = list(way)
    return float(topology.alpha_s[links].sum()), float(topology.beta_s_per_byte[links].max())


def shared_links(topology: Topology) -> dict[frozenset[Pair], float]:
    """Bandwidth of every link that pairs share through switches, by the pairs; those in a row are one."""
    table = hops(topology)
    of_link: dict[int, set[Pair]] = {}
    for hop, pair in enumerate(zip(table.src.tolist(), table.dst.tolist(), strict=True)):
        for link in table.routes[hop].tolist():
            of_link.setdefault(link, set()).add(pair)
    found: dict[frozenset[Pair], float] = {}
    for link, pairs in of_link.items():
        key = frozenset(pairs)
        found[key] = min(found.get(key, np.inf), float(topology.bandwidth[link]))
    return {pairs: rate for pairs, rate in found.items() if len(pairs) > 1 and _most(pairs, found) > 1.15 * rate}


def _most(pairs: frozenset[Pair], links: dict[frozenset[Pair], float]) -> float:
    """The most that pairs could send if the link that only they share were endless, all other pairs silent."""
    import pulp

    unit = max(links.values())
    rate = {pair: pulp.LpVariable(f"rate_{pair[0]}_{pair[1]}", lowBound=0) for pair in sorted(pairs)}
    problem = pulp.LpProblem("rates", pulp.LpMaximize)
    problem += pulp.lpSum(rate.values())
    for crossing, most in links.items():
        if crossing != pairs and crossing & pairs:
            problem += pulp.lpSum(rate[pair] for pair in sorted(crossing & pairs)) <= most / unit
    answer = solve_pulp(problem)
    return float("inf") if answer.status is Status.UNBOUNDED else answer.objective * unit


def found_links(profile: Profile) -> dict[frozenset[Pair], float]:
    """Bandwidth of every shared link of a profile that was seen to be the limit, by its pairs."""
    pairs = [(link.src, link.dst) for link in profile.links if link.shares]
    found: dict[frozenset[Pair], float] = {}
    for one in profile.shared:
        crossing = frozenset(
            pair for pair in pairs if (pair[not one.out] in one.ranks) and (pair[one.out] not in one.ranks)
        )
        if one.full:
            found[crossing] = min(found.get(crossing, np.inf), 1 / one.beta_s_per_byte.value)
    return found


def row(name: str, quick: bool) -> tuple[str, ...]:
    """Profile a machine and compare."""
    machine, begin = load_topology(name), time.monotonic()
    profile = profile_host(machine.num_ranks, EMULATED_QUICK if quick else EMULATED, "fork", emulate=machine)
    seconds = time.monotonic() - begin
    written = profile.topology()
    measured = {(link.src, link.dst): (link.alpha_s.value, link.beta_s_per_byte.value) for link in profile.links}
    as_written = {pair: costs(written, way) for pair, way in ways(written).items()}
    truth = {pair: costs(machine, way) for pair, way in ways(machine).items()}
    errors = np.array(
        [[abs(of[pair][i] / truth[pair][i] - 1) for i in range(2)] for of in (measured, as_written) for pair in truth]
    ).max(axis=0)
    planted, found = shared_links(machine), found_links(profile)
    rates = max((abs(found[pairs] / planted[pairs] - 1) for pairs in planted if pairs in found), default=0.0)
    both = len(planted.keys() & found.keys())
    return (
        machine.name, str(machine.num_ranks), *(f"{error:.1%}" for error in (*errors, rates)),
        str(len(planted)), str(both), str(len(found) - both), f"{seconds:.0f}",
    )  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machines", nargs="*", default=MACHINES)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    columns = ("machine", "ranks", "alpha", "beta", "shared GB/s", "shared", "found", "invented", "seconds")
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|", flush=True)
    for name in asked.machines:
        print("| " + " | ".join(row(name, asked.quick)) + " |", flush=True)


if __name__ == "__main__":
    main()
