"""Pieces along shortest ways: the program against brute force, whole chunks, schedules and their plans."""

from itertools import pairwise, product

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from collsyn.bounds import fluid_bound
from collsyn.check.verify import verify_schedule
from collsyn.lower.lower import lower
from collsyn.model.topology import Topology
from collsyn.synth import bfb_paths
from collsyn.synth import bfb_paths_kernels as kernels
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from tests.support.running import assert_runs
from tests.support.topologies import random_topologies

BFB = method("bfb")


def all_shortest(topology: Topology) -> dict[tuple[int, int], list[list[int]]]:
    """Links of every shortest way between two ranks, by networkx (no parallel links)."""
    ends = list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    graph = nx.DiGraph(ends)
    return {
        (a, b): [[ends.index(pair) for pair in pairwise(way)] for way in nx.all_shortest_paths(graph, a, b)]
        for a, b in product(range(topology.num_ranks), repeat=2)
        if a != b
    }


def least_time(topology: Topology, amounts: dict[tuple[int, int], float]) -> float:
    """Busiest link of every step, and of all together, added up; one variable for every way of every pair."""
    ways = [(pair, way) for pair, some in all_shortest(topology).items() if pair in amounts for way in some]
    steps, links, pairs = max((len(way) for _, way in ways), default=0), topology.num_links, list(amounts)
    loads, sums = np.zeros(((steps + 1) * links, len(ways) + steps + 1)), np.zeros((len(pairs), len(ways) + steps + 1))
    for i, (pair, way) in enumerate(ways):
        sums[pairs.index(pair), i] = 1
        for step, link in enumerate(way):
            for row in (step, steps):
                loads[row * links + link, i] += amounts[pair] / (topology.bandwidth[link] / 1e9)
    for row in range(steps + 1):
        loads[row * links : (row + 1) * links, len(ways) + row] = -1
    cost = np.concatenate([np.zeros(len(ways)), np.ones(steps + 1)])
    solved = linprog(cost, loads, np.zeros(len(loads)), sums, np.ones(len(pairs)))
    assert solved.status == 0
    return float(solved.fun)


@given(random_topologies(min_ranks=2, max_ranks=6, max_switches=0), st.integers(1, 3))
@settings(max_examples=25)
def test_flows_are_balanced_and_chunks_follow_them(topology: Topology, chunks: int) -> None:
    problem = Problem("alltoall", topology, 1 << 20)
    ground = bfb_paths._ground(problem)
    pieces = bfb_paths._pieces(problem.collective(1), ground)
    flow = bfb_paths._balanced(ground, pieces)
    n, arcs = topology.num_ranks, ground.arcs
    unit = float(topology.bandwidth[arcs.link[0]] / 1e9 / arcs.capacity[0])
    steps = int(ground.hops_from.max())
    busy = np.zeros((steps, len(ground.weight)))
    source, arc = np.nonzero(flow > 1e-12)
    loads = (flow * ground.weight[ground.orbit])[source, arc]
    np.add.at(busy, (ground.hops_from[source, arcs.dst[arc]] - 1, ground.orbit[arc]), loads)
    least = least_time(topology, {(a, b): 1.0 for a, b in product(range(n), repeat=2) if a != b})
    assert kernels.time_of(busy) / unit == pytest.approx(least, rel=1e-6)
    path = bfb_paths._whole(ground, pieces, flow, chunks)
    ways = all_shortest(topology)
    for row, piece in zip(path, np.repeat(np.arange(len(pieces.source)), chunks), strict=True):
        pair = int(ground.sources[pieces.source[piece]]), int(pieces.target[piece])
        assert arcs.link[row[row >= 0]].tolist() in ways[pair]


@pytest.mark.parametrize("name", ["torus:4x4", "hypercube:3", "dgx1", "bipartite:3x3"])
def test_alltoall_on_machines_without_a_bottleneck_is_near_the_bound(name: str) -> None:
    problem = Problem("alltoall", load_topology(name), 1 << 28)
    schedule = BFB.synthesize(problem, Options())
    verify_schedule(schedule).raise_if_bad()
    assert schedule.finish_s <= 1.02 * fluid_bound(schedule.collective, problem.topology, 1 << 28).time_s


@pytest.mark.parametrize("kind", ["alltoall", "alltoallv", "scatter", "gather", "sendrecv"])
@pytest.mark.parametrize("name", ["torus:3x3", "dgx1", "genkautz:3x8"])
def test_its_plans_run_right(kind: str, name: str) -> None:
    topology = load_topology(name)
    n = topology.num_ranks
    counts = [[(2 * i + j) % 3 for j in range(n)] for i in range(n)] if kind == "alltoallv" else None
    schedule = BFB.synthesize(Problem(kind, topology, 1 << 18, counts=counts), Options())
    verify_schedule(schedule).raise_if_bad()
    assert_runs(lower(schedule), schedule.collective.total_units)


def test_how_much_it_takes_on() -> None:
    assert "256 ranks" in str(BFB.accepts(Problem("alltoall", load_topology("torus:20x20"), 1 << 20)))
    part = load_topology("torus:12x12").subset(range(140))
    assert "without symmetries" in str(BFB.accepts(Problem("alltoall", part, 1 << 20)))
    assert BFB.accepts(Problem("scatter", load_topology("torus:12x12"), 1 << 20)) is None
