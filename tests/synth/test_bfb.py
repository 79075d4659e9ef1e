"""Breadth-first broadcast: published steps and bandwidth factors, brute force on small graphs, schedules, refusals."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsyn.bounds import fluid_bound
from collsyn.check.verify import verify_schedule
from collsyn.errors import Infeasible, InputError
from collsyn.lower.lower import lower
from collsyn.model.topology import Topology
from collsyn.synth import bfb_kernels as kernels
from collsyn.synth.bfb import BFB
from collsyn.synth.bfb_cost import bfb_cost
from collsyn.synth.bfb_shares import in_order_of_steps, in_step, shares
from collsyn.synth.problem import Options, Problem
from collsyn.topology.resolve import load_topology
from tests.support.running import assert_runs
from tests.support.topologies import build, random_topologies, ring_edges


def line_graph(topology: Topology) -> Topology:
    """A rank for every link, and a link from each to those that go on where it ends."""
    ends = list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    edges = [(i, j) for i, (_, a) in enumerate(ends) for j, (b, _) in enumerate(ends) if a == b]
    return build(len(ends), edges, name="line graph")


def circulant(num_ranks: int, *offsets: int) -> Topology:
    return build(num_ranks, [(i, (i + o) % num_ranks) for i in range(num_ranks) for o in offsets], both=True)


# Steps, bandwidth factor in M / B, and the exact optimum of that machine, as published.
PUBLISHED = {
    "bipartite:4x4": (2, Fraction(7, 8), Fraction(7, 8)),
    "torus:4x4": (4, Fraction(15, 16), Fraction(15, 16)),
    "torus:8x8": (8, Fraction(63, 64), Fraction(63, 64)),
    "torus:4x4x4": (6, Fraction(63, 64), Fraction(63, 64)),
    "hypercube:4": (4, Fraction(15, 16), Fraction(15, 16)),
    "petersen": (2, Fraction(9, 10), Fraction(9, 10)),
    "circulant": (2, Fraction(11, 12), Fraction(11, 12)),
    "L(K4,4)": (3, Fraction(1), Fraction(31, 32)),
    "genkautz:4x12": (2, Fraction(5, 3), Fraction(11, 9)),
    "genkautz:4x32": (3, Fraction(13, 8), Fraction(31, 24)),
    "kautz:4x1": (2, Fraction(1), Fraction(19, 20)),
    "dgx1": (2, Fraction(9, 8), Fraction(7, 8)),
}


def published(name: str) -> Topology:
    if name == "circulant":
        return circulant(12, 2, 3)
    return line_graph(load_topology("bipartite:4x4")) if name.startswith("L") else load_topology(name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_steps_and_factors(name: str) -> None:
    topology = published(name)
    steps, factor, optimum = PUBLISHED[name]
    cost = bfb_cost(topology)
    assert (cost.steps, cost.factor, len(cost.per_step)) == (steps, factor, steps)
    # The exact bound counts in bytes and GB/s; B is the largest bandwidth into one rank.
    exact = fluid_bound(Problem("allgather", topology, 1 << 30).collective(), topology, 1 << 30).algbw_exact
    most = max(
        sum(topology.exact_bandwidth_gb_s[link] for link in topology.in_links[rank].tolist())
        for rank in range(topology.num_ranks)
    )
    assert exact is not None
    assert most / exact == optimum


def loads_by_sets(topology: Topology) -> list[Fraction]:
    """For every step the worst (sources) / (capacity of all that can bring them) over ranks and sets of sources."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(topology.num_ranks))
    capacity: dict[tuple[int, int], Fraction] = {}
    for pair, gb_s in zip(
        zip(topology.src.tolist(), topology.dst.tolist(), strict=True), topology.exact_bandwidth_gb_s, strict=True
    ):
        capacity[pair] = capacity.get(pair, Fraction(0)) + gb_s
    graph.add_edges_from(capacity)
    hops = dict(nx.all_pairs_shortest_path_length(graph))
    worst: dict[int, Fraction] = {}
    for rank in graph:
        for step in range(1, topology.num_ranks):
            sources = [v for v in graph if hops[v].get(rank) == step]
            for size in range(1, len(sources) + 1):
                for some in combinations(sources, size):
                    bring = {w for w in graph.predecessors(rank) for v in some if hops[v].get(w) == step - 1}
                    load = Fraction(size) / sum(capacity[w, rank] for w in bring)
                    worst[step] = max(worst.get(step, Fraction(0)), load)
    return [worst[step] for step in sorted(worst)]


@given(random_topologies(min_ranks=2, max_ranks=7, max_switches=0))
def test_every_step_is_as_short_as_sets_of_sources_allow(topology: Topology) -> None:
    cost = bfb_cost(topology)
    into = [Fraction(0)] * topology.num_ranks
    for rank, gb_s in zip(topology.dst.tolist(), topology.exact_bandwidth_gb_s, strict=True):
        into[rank] += gb_s
    assert list(cost.per_step) == [load * max(into) / topology.num_ranks for load in loads_by_sets(topology)]


@st.composite
def transports(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    classes, links = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    allowed = np.array(draw(st.lists(st.lists(st.booleans(), min_size=links, max_size=links), min_size=classes,
                                     max_size=classes)))  # fmt: skip
    allowed[np.arange(classes), draw(st.lists(st.integers(0, links - 1), min_size=classes, max_size=classes))] = True
    numbers = st.integers(1, 9)
    count = np.array(draw(st.lists(numbers, min_size=classes, max_size=classes)))
    return count, allowed, np.array(draw(st.lists(numbers, min_size=links, max_size=links)))


def fits(count: np.ndarray, allowed: np.ndarray, room: list[int]) -> bool:
    """By networkx: whether all supplies fit."""
    graph = nx.DiGraph()
    for c, supply in enumerate(count.tolist()):
        graph.add_edge("s", ("c", c), capacity=supply)
        for j in np.flatnonzero(allowed[c]).tolist():
            graph.add_edge(("c", c), ("j", j))
    for j, most in enumerate(room):
        graph.add_edge(("j", j), "t", capacity=most)
    return nx.maximum_flow_value(graph, "s", "t") == count.sum() if "s" in graph else True


@given(transports())
@settings(max_examples=200)
def test_balance_is_least_and_its_flow_is_one(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    count, allowed, capacity = case
    flow = np.empty(allowed.shape, dtype=np.int64)
    above, below = kernels.balance(count, allowed, capacity, flow)
    assert (flow >= 0).all() and (flow[~allowed] == 0).all()
    assert (flow.sum(axis=1) == count * below).all()
    assert (flow.sum(axis=0) <= above * capacity).all()
    # A little less load is too little, by an independent maximum flow.
    less = Fraction(above, below) * Fraction(999_999, 1_000_000)
    scale = less.denominator
    assert not fits(count * scale, allowed, [int(less.numerator * c) for c in capacity.tolist()])


@given(transports(), st.integers(1, 4))
def test_whole_chunks_are_balanced_as_well_as_they_can_be(
    case: tuple[np.ndarray, np.ndarray, np.ndarray], chunks: int
) -> None:
    count, allowed, capacity = case
    flow = np.empty(allowed.shape, dtype=np.int64)
    kernels.whole_balance(count, allowed, capacity, chunks, flow)
    assert (flow >= 0).all() and (flow[~allowed] == 0).all() and (flow.sum(axis=1) == count * chunks).all()
    load = max(Fraction(int(n), int(c)) for n, c in zip(flow.sum(axis=0), capacity, strict=True))
    lower_loads = {Fraction(k, int(c)) for c in capacity for k in range(int(load * int(c)) + 1)} - {load}
    below = max((value for value in lower_loads if value < load), default=Fraction(0))
    assert not fits(count * chunks, allowed, [int(below * c) for c in capacity.tolist()])


def test_one_rank_of_every_orbit_is_enough() -> None:
    for name in ("torus:4x3", "hypercube:3", "kautz:2x2", "bipartite:3x3", "genkautz:3x8", "dgx1"):
        topology = load_topology(name)
        assert bfb_cost(topology) == bfb_cost(replace(topology, symmetries=())), name
        one, all_ranks = shares(topology, 2), shares(replace(topology, symmetries=()), 2)
        assert (one.hops == all_ranks.hops).all()
        assert one.step_seconds(1.0) == pytest.approx(all_ranks.step_seconds(1.0), rel=1e-12)


def test_parallel_links_and_unequal_ones_share() -> None:
    # Two links from 0 to 2 (10 and 30 GB/s), and from 1 to 2 with 20; 3 comes by 0 and 1.
    topology = build(4, [(0, 2, 10), (0, 2, 30), (1, 2, 20), (3, 0), (3, 1), (2, 3, 60), (2, 0), (2, 1)])
    cost = bfb_cost(topology)
    assert cost.steps == 2
    schedule = BFB.synthesize(Problem("allgather", topology, 1 << 20, 12), Options())
    verify_schedule(schedule).raise_if_bad()
    brought = dict.fromkeys(range(3), 0)
    for chunk, route in zip(schedule.chunk.tolist(), schedule.route.tolist(), strict=True):
        link = int(schedule.routes[route][0])
        if chunk // 12 == 3 and link in brought:
            brought[link] += 1
    assert brought == {0: 2, 1: 6, 2: 4}


def all_kinds(topology: Topology, size_bytes: int) -> Iterator[Problem]:
    for kind in ("allgather", "reducescatter", "allreduce", "broadcast", "reduce"):
        yield Problem(kind, topology, size_bytes, root=1 if kind in ("broadcast", "reduce") else None)


@pytest.mark.parametrize("name", ["torus:4x4", "dgx1", "genkautz:4x12", "petersen"])
def test_schedules_take_the_steps_and_bytes_that_the_cost_says(name: str) -> None:
    topology = load_topology(name)
    for size in (1, 1 << 26):
        cost = bfb_cost(topology)
        most = max(topology.bandwidth[topology.in_links[rank]].sum() for rank in range(topology.num_ranks))
        latency = float(topology.alpha_s.max())
        schedule = BFB.synthesize(Problem("allgather", topology, size), Options())
        verify_schedule(schedule).raise_if_bad()
        assert schedule.provenance["options"]["bandwidth_factor"] == str(cost.factor)
        # Whole chunks and overheads cost a little; pipelining may win some.
        assert schedule.finish_s <= (cost.steps * latency + float(cost.factor) * size / most) * (
            1.1 if size == 1 else 1.01
        )
        assert schedule.finish_s >= cost.steps * float(topology.alpha_s.min())


def test_steps_together_and_messages_on_their_own_are_both_right() -> None:
    for name in ("torus:4x3", "genkautz:3x7", "dgx1"):
        problem = Problem("allgather", load_topology(name), 1 << 20)
        found = shares(problem.topology, 2)
        together = in_step(problem, found)
        alone = [in_order_of_steps(problem, found, whole) for whole in (True, False)]
        for schedule in (together, *alone):
            verify_schedule(schedule).raise_if_bad()
            assert schedule.num_sends == 2 * problem.topology.num_ranks * (problem.topology.num_ranks - 1)
        assert alone[0].finish_s <= together.finish_s * (1 + 1e-9)


@pytest.mark.parametrize("name", ["torus:3x3", "genkautz:3x8", "dgx1"])
def test_its_plans_run_right(name: str) -> None:
    for problem in all_kinds(load_topology(name), 1 << 16):
        schedule = BFB.synthesize(problem, Options())
        verify_schedule(schedule).raise_if_bad()
        assert_runs(lower(schedule), 1009)


def test_broadcast_takes_as_many_steps_as_the_farthest_rank_is_away() -> None:
    for name, away in (("torus:4x4", 4), ("hypercube:4", 4), ("kautz:2x2", 3), ("genkautz:4x32", 3)):
        topology = load_topology(name)
        schedule = BFB.synthesize(Problem("broadcast", topology, 1, chunks_per_rank=1), Options())
        assert schedule.finish_s == pytest.approx(away * (0.5e-6 + topology.beta_s_per_byte[0]), rel=1e-9)


def test_what_it_does_not_serve() -> None:
    torus, star = load_topology("torus:3x3"), load_topology("switch:4")
    assert "switches" in str(BFB.accepts(Problem("allgather", star, 1024)))
    assert "groups" in str(BFB.accepts(Problem("allgather", torus, 1024, groups=((0, 1), (2, 3)))))
    assert "equal length" in str(BFB.accepts(Problem("allgather", torus, 1024, counts=[1] * 8 + [2])))
    assert "sends" in str(BFB.accepts(Problem("allgather", load_topology("torus:80x80"), 1 << 20)))
    with pytest.raises(InputError, match="switch:4: has switches"):
        bfb_cost(star)
    one_way = build(3, [(0, 1), (1, 2)])
    with pytest.raises(Infeasible, match="no way leads from rank 1 to rank 0"):
        bfb_cost(one_way)
    for kind in ("allgather", "broadcast"):
        with pytest.raises(Infeasible, match="no way leads from rank"):
            BFB.synthesize(Problem(kind, one_way, 1024, root=2 if kind == "broadcast" else None), Options())


def test_bandwidths_that_no_small_fraction_explains() -> None:
    gb_s = [13.37 + 1e-7 * i * i for i in range(8)]
    topology = build(
        4, [(a, b, gb_s[i]) for i, (a, b) in enumerate(ring_edges(4) + [(b, a) for a, b in ring_edges(4)])]
    )
    assert float(bfb_cost(topology).factor) == pytest.approx(0.75, rel=1e-5)
    verify_schedule(BFB.synthesize(Problem("allgather", topology, 1 << 20), Options())).raise_if_bad()
