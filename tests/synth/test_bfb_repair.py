"""Breadth-first broadcast with longer ways: the program, whole chunks, and times between bfb and the bound."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from scipy.optimize import linprog

from collsyn.bounds import fluid_bound
from collsyn.check.verify import verify_schedule
from collsyn.lower.lower import lower
from collsyn.model.topology import Topology
from collsyn.synth import bfb_repair_kernels as kernels
from collsyn.synth.bfb_cost import bfb_cost
from collsyn.synth.bfb_timed import Ground, mixes
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from tests.support.running import assert_runs
from tests.support.topologies import build, random_topologies

BFB, REPAIRED = method("bfb"), method("bfb-repaired")


def all_timed_trees(topology: Topology, steps: int) -> list[tuple[int, list[tuple[int, int]]]]:
    """By enumeration: root and (link, step) of every rank's arrival, over all choices."""
    found = []
    into = [[(i, int(topology.src[i])) for i in topology.in_links[r].tolist()] for r in range(topology.num_ranks)]
    for root in range(topology.num_ranks):
        others = [r for r in range(topology.num_ranks) if r != root]
        for times in product(range(1, steps + 1), repeat=len(others)):
            when = {root: 0, **dict(zip(others, times, strict=True))}
            parents = [[link for link, w in into[r] if when[w] < when[r]] for r in others]
            for links in product(*parents):
                found.append((root, list(zip(links, times, strict=True))))
    return found


def least_time(topology: Topology, steps: int) -> float:
    """The program over all timed trees at once: shards over GB/s, all steps together."""
    trees, n, links = all_timed_trees(topology, steps), topology.num_ranks, topology.num_links
    gb_s = topology.bandwidth / 1e9
    loads, sums = np.zeros((steps * links, len(trees) + steps)), np.zeros((n, len(trees) + steps))
    for i, (root, hops) in enumerate(trees):
        sums[root, i] = 1
        for link, step in hops:
            loads[(step - 1) * links + link, i] += 1 / gb_s[link]
    for step in range(steps):
        loads[step * links : (step + 1) * links, len(trees) + step] = -1
    cost = np.concatenate([np.zeros(len(trees)), np.ones(steps)])
    solved = linprog(cost, loads, np.zeros(steps * links), sums, np.ones(n))
    assert solved.status == 0
    return float(solved.fun)


@given(random_topologies(min_ranks=2, max_ranks=4, max_switches=0))
@settings(max_examples=12)
def test_the_program_finds_the_least_time_of_all_timed_trees(topology: Topology) -> None:
    ground = Ground(topology)
    unit = float(topology.bandwidth[ground.arcs.link[0]] / 1e9 / ground.arcs.capacity[0])
    first = int(ground.hops_from.max())
    for mix in mixes(ground, 0.0, lambda steps, load: False, 0, lambda: False):
        if mix.steps > first + 1:
            break
        assert mix.load / unit == pytest.approx(least_time(topology, mix.steps), rel=2e-3)


def test_mixes_of_known_machines() -> None:
    """The step program of a DGX-1 needs 3/2 of a double link's shards in two steps and 7/6 in three."""
    for name, steps, factors in (
        ("dgx1", 2, (Fraction(9, 8), Fraction(7, 8))),
        ("genkautz:4x12", 2, (Fraction(5, 3), Fraction(11, 9))),
        ("torus:3x3", 2, (Fraction(8, 9),)),
    ):
        topology = load_topology(name)
        ground = Ground(topology)
        scale = ground.arcs.into_most / topology.num_ranks
        found = list(mixes(ground, float(factors[-1]) / scale, lambda steps, load: False, 0, lambda: False))
        assert [mix.steps for mix in found] == list(range(steps, steps + len(factors)))
        assert [mix.load * scale for mix in found] == pytest.approx([float(f) for f in factors], rel=1e-3)
        for mix in found:
            assert np.bincount([tree.source for tree in mix.trees], weights=mix.parts) == pytest.approx(1.0)


def test_annealing_keeps_trees_right_and_counts_their_cost() -> None:
    topology = load_topology("genkautz:3x10")
    ground, random = Ground(replace(topology, symmetries=())), np.random.default_rng(5)
    arcs, state = ground.arcs, np.array([77], dtype=np.uint64)
    for root in range(4):
        price, when = random.uniform(0, 1, (len(arcs.src), 5)), ground.hops_from[root].copy()
        before = sum(
            kernels.cost_of_rank(r, int(when[r]), arcs.ptr, arcs.src, price, when) for r in range(10) if r != root
        )
        cost = kernels.anneal(root, arcs.ptr, arcs.src, *ground.outgoing, price, when, 4000, state)
        arc = kernels.arcs_of_tree(root, arcs.ptr, arcs.src, price, when)
        reached = [rank for rank in range(10) if rank != root]
        assert when[root] == 0 and arc[root] == -1
        assert (when[arcs.src[arc[reached]]] < when[reached]).all() and (when[reached] <= 5).all()
        assert cost == pytest.approx(price[arc[reached], when[reached] - 1].sum())
        assert cost < before


@pytest.mark.parametrize("name", ["genkautz:4x12", "dgx1", pytest.param("genkautz:4x32", marks=pytest.mark.slow)])
def test_near_the_bound_for_large_sizes_and_near_bfb_for_small_ones(name: str) -> None:
    topology = load_topology(name)
    for size in (1024, 1 << 20, 1 << 30):
        problem = Problem("allgather", topology, size)
        schedule, plain = (each.synthesize(problem, Options()) for each in (REPAIRED, BFB))
        verify_schedule(schedule).raise_if_bad()
        said = schedule.provenance["options"]
        assert said["bfb_us"] == pytest.approx(plain.finish_s * 1e6, abs=1e-5)
        assert (said["bfb_steps"], said["bfb_factor"]) == (bfb_cost(topology).steps, str(bfb_cost(topology).factor))
        assert schedule.finish_s <= plain.finish_s * (1 + 1e-9)
        if size == 1 << 30:
            bound = fluid_bound(schedule.collective, topology, size)
            assert schedule.finish_s <= 1.05 * bound.time_s
            assert said["steps"] > bfb_cost(topology).steps
    small = REPAIRED.synthesize(Problem("allgather", topology, 64), Options())
    assert small.provenance["options"]["steps"] == nx.diameter(
        nx.DiGraph(list(zip(topology.src, topology.dst, strict=True)))
    )


def test_where_nothing_is_lost_it_is_bfb() -> None:
    for name in ("torus:3x3", "petersen"):
        problem = Problem("allgather", load_topology(name), 1 << 24)
        schedule, plain = (each.synthesize(problem, Options()) for each in (REPAIRED, BFB))
        assert schedule.finish_s == plain.finish_s
        assert schedule.provenance["options"]["bandwidth_factor"] == pytest.approx(
            float(bfb_cost(problem.topology).factor)
        )


def test_its_plans_run_right_for_all_kinds() -> None:
    for kind in ("allgather", "reducescatter", "allreduce"):
        problem = Problem(kind, load_topology("genkautz:3x8"), 1 << 22)
        schedule = REPAIRED.synthesize(problem, Options())
        verify_schedule(schedule).raise_if_bad()
        assert_runs(lower(schedule), 2003)


def test_what_it_does_not_serve_and_when_time_is_short() -> None:
    dgx1 = load_topology("dgx1")
    assert REPAIRED.accepts(Problem("broadcast", dgx1, 1024)) == "makes no broadcast"
    assert "switches" in str(REPAIRED.accepts(Problem("allgather", load_topology("switch:4"), 1024)))
    assert "links" in str(REPAIRED.accepts(Problem("allgather", load_topology("torus:16x16"), 1024)))
    late = REPAIRED.synthesize(Problem("allgather", dgx1, 1 << 30), Options(time_limit_s=1e-6))
    verify_schedule(late).raise_if_bad()
    pair = build(2, [(0, 1)], both=True)
    assert REPAIRED.synthesize(Problem("allgather", pair, 1 << 20, 1), Options()).num_sends == 2
