"""Spread: what enters once goes on to all. By hand, against ways found by enumeration, optima and schedules."""

from dataclasses import replace
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsyn.bounds import avoids_overhead, chunk_bound
from collsyn.bounds.argument import Refused
from collsyn.bounds.bound import _lengths, whole_bounds_by_argument
from collsyn.bounds.case import Case
from collsyn.bounds.cut import ARGUMENT as CUT
from collsyn.bounds.spread import ARGUMENT as SPREAD
from collsyn.model.collective import make_collective
from collsyn.model.kinds import KINDS
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from tests.support.bruteforce import why_invalid
from tests.support.problems import random_problems
from tests.support.topologies import build, random_topologies, zoo

M = 1 << 20
US = 1e-6
# build(): 50 GB/s, 0.5 us, no overhead.
GB_S, ALPHA_S = 50e9, 0.5 * US
FEWER = settings(max_examples=max(settings().max_examples // 2, 1))


def time_of(case, vertices, argument=SPREAD):
    """What an argument shows by a set; None where it shows nothing."""
    try:
        return argument.prove(case, {"vertices": list(vertices)}).time_s
    except Refused:
        return None


def all_sets(topology):
    vertices = range(topology.num_vertices)
    return [chosen for size in range(1, topology.num_vertices) for chosen in combinations(vertices, size)]


def cases_of(collective, topology, size_bytes, shared=False):
    """Any splitting, and whole chunks of every length."""
    return [
        Case(collective, topology, size_bytes),
        *(Case(collective, topology, size_bytes, length, shared) for length in _lengths(collective)),
    ]


# By hand


@pytest.mark.parametrize("boxes, chunks", [(2, 8), (4, 24)])
def test_the_last_message_between_boxes_has_to_go_on(boxes, chunks):
    # 2.6 us and 105 us a message between boxes; the farthest GPU is two links with 0.7 us and 20 or 46 GB/s away.
    collective, topology = make_collective("allgather", 8 * boxes), zoo(f"ndv2:{boxes}@costs=taccl")
    bound = chunk_bound(collective, topology, 8 * boxes * 10**6)
    assert bound.kind == "spread"
    assert bound.time_s == pytest.approx((chunks * 107.6 + 69.6) * US, rel=1e-9)


def test_greedy_meets_it():
    problem = Problem("allgather", zoo("ndv2:2@costs=taccl"), 16 * 10**6, 1)
    finish_s = method("greedy").synthesize(problem, Options()).finish_s
    assert finish_s == pytest.approx(chunk_bound(problem.collective(), problem.topology, 16 * 10**6).time_s, rel=1e-9)


def test_a_set_that_falls_apart_is_entered_twice():
    line = build(3, [(0, 1), (0, 2)], both=True)
    for kind, vertices in (("broadcast", [1, 2]), ("reduce", [0])):
        proof = SPREAD.prove(Case(make_collective(kind, 3), line, M), {"vertices": vertices})
        assert proof.time_s == pytest.approx(ALPHA_S + M / GB_S)
        assert proof.facts["alone"] == 0
        # Each link carries all of it, where the cut lets them share.
        assert time_of(Case(make_collective(kind, 3), line, M), vertices, CUT) == pytest.approx(ALPHA_S + M / GB_S / 2)


@pytest.mark.parametrize("able, alphas", [(False, 3), (True, 2)])
def test_a_switch_serves_one_rank_unless_it_multiplies(able, alphas):
    # From 0 to the switch and a rank; unless the switch copies, two links more to the others.
    star = build(4, [(r, 4) for r in range(4)], switches=1, both=True)
    down = replace(star, multicast=np.arange(5) == 4 if able else np.zeros(5, np.bool_))
    up = replace(star, reduction=down.multicast)
    expected = pytest.approx(M / GB_S + alphas * ALPHA_S)
    assert time_of(Case(make_collective("broadcast", 4), down, M), [1, 2, 3, 4]) == expected
    assert time_of(Case(make_collective("reduce", 4), up, M), [0]) == expected


def test_whole_chunks_are_passed_on_whole():
    # Rank 0 has two links into a ring of four: a chunk must reach the side that is not entered.
    edges = [(0, 1), (0, 3), (1, 2), (2, 3), (3, 4), (4, 1)]
    topology, chunk_s = build(5, edges, both=True), M / GB_S
    case = cases_of(make_collective("broadcast", 5), topology, M)[1]
    # Alone: from 1 or 3 two more hops, 3 in all. Else twice, which takes one link until alpha + chunk, both at once.
    assert time_of(case, [1, 2, 3, 4]) == pytest.approx(ALPHA_S + chunk_s)
    many = cases_of(make_collective("broadcast", 5, 2), topology, 2 * M)[1]
    # Of two chunks one goes over each link in one step and is everywhere two hops later; or three transfers in two.
    assert time_of(many, [1, 2, 3, 4]) == pytest.approx(ALPHA_S + 2 * chunk_s)
    # A chain behind the entry: the only transfer ends as much earlier as the way on takes.
    chain = cases_of(make_collective("broadcast", 4), zoo("line"), M)[1]
    assert time_of(chain, [1, 2, 3]) > time_of(chain, [1, 2, 3], CUT)


def test_machines_beyond_a_limit_are_left_out(monkeypatch):
    monkeypatch.setattr("collsyn.bounds.spread.MAX_RANKS", 3)
    assert SPREAD.propose(Case(make_collective("allgather", 4), zoo("line"), M)) == []


# Against enumeration


def links_once_and_often(case, inside):
    """(bandwidth, A, a) of the links into a set of ranks, on a topology without switches, fluid."""
    t, collective = case.topology, case.collective

    def graph_of(members):
        graph = nx.DiGraph()
        graph.add_nodes_from(members)
        for a, b, alpha in zip(t.src.tolist(), t.dst.tolist(), t.alpha_s.tolist(), strict=True):
            if a in members and b in members:
                graph.add_edge(a, b, weight=alpha)
        return dict(nx.all_pairs_dijkstra_path_length(graph))

    everywhere, outside = set(range(t.num_ranks)), set(range(t.num_ranks)) - inside
    free, within, without = graph_of(everywhere), graph_of(inside), graph_of(outside)
    crossing, amount = [], 0
    for chunk in range(collective.num_chunks):
        pre, post = set(collective.contributors(chunk).tolist()), set(collective.receivers(chunk).tolist())
        if post & inside and (pre - inside if collective.reduces else not pre & inside):
            crossing.append((pre - inside, post & inside))
            amount += int(collective.units[chunk])
    far = max if collective.reduces else min
    inf = float("inf")
    rows = []
    for a, b, alpha, rate in zip(t.src.tolist(), t.dst.tolist(), t.alpha_s.tolist(), t.bandwidth.tolist(), strict=True):
        if a in outside and b in inside and crossing:
            often = (
                alpha
                + min(free[p].get(a, inf) for pre, _ in crossing for p in pre)
                + min(free[b].get(q, inf) for _, post in crossing for q in post)
            )
            once = (
                alpha
                + min(far(without[p].get(a, inf) for p in pre) for pre, _ in crossing)
                + min(max(within[b].get(q, inf) for q in post) for _, post in crossing)
            )
            rows.append((rate, once, often))
    return rows, amount * case.size_bytes / collective.total_units


@FEWER
@given(random_topologies(max_ranks=5, max_switches=0), st.sampled_from(KINDS[:8]), st.sampled_from([1, 1000, M]))
def test_the_time_is_that_of_enumerated_ways(topology, kind, size_bytes):
    case = Case(make_collective(kind, topology.num_ranks), topology, size_bytes)
    for vertices in all_sets(topology):
        rows, num_bytes = links_once_and_often(case, set(vertices))
        time_s = time_of(case, vertices)
        assert (time_s is None) == (not rows)
        if rows:
            carried = sum(rate * (max(0, time_s - once) + max(0, time_s - often)) for rate, once, often in rows)
            assert carried == pytest.approx(2 * num_bytes, rel=1e-6)


@FEWER
@given(random_problems(), st.data())
def test_it_is_never_weaker_than_the_cut(problem, data):
    topology = problem.topology
    flags = st.lists(st.booleans(), min_size=topology.num_vertices, max_size=topology.num_vertices)
    topology = replace(topology, multicast=np.array(data.draw(flags)), reduction=np.array(data.draw(flags)))
    for case in cases_of(problem.collective(), topology, problem.size_bytes, data.draw(st.booleans())):
        for vertices in data.draw(st.lists(st.sampled_from(all_sets(topology)), max_size=12)):
            spread_s, cut_s = time_of(case, vertices), time_of(case, vertices, CUT)
            assert (spread_s is None) == (cut_s is None)
            assert cut_s is None or spread_s >= cut_s * (1 - 1e-12)


# Against optima and schedules


def optimum_s(collective, topology, size_bytes):
    """Least finish of whole chunks over single links, no reduction: all orders of starts, each as early as it can."""
    lengths = collective.chunk_bytes(size_bytes).tolist()
    ends = list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    alpha, beta, busy = (v.tolist() for v in (topology.alpha_s, topology.beta_s_per_byte, topology.overhead_s))
    wanted = {(q, c) for c in range(collective.num_chunks) for q in collective.receivers(c).tolist()}
    first = {(p, c): 0.0 for c in range(collective.num_chunks) for p in collective.contributors(c).tolist()}
    graph = nx.DiGraph()
    graph.add_weighted_edges_from(
        (a, b, cost + min(lengths) * inverse) for (a, b), cost, inverse in zip(ends, alpha, beta, strict=True)
    )
    away = dict(nx.all_pairs_dijkstra_path_length(graph))
    best = float("inf")

    def extend(held, free, last, finish):
        nonlocal best
        missing = wanted - held.keys()
        least = [min(t + away[p][q] for (p, c), t in held.items() if c == chunk) for q, chunk in missing]
        if max([finish, *least]) >= best * (1 - 1e-12):
            return
        if not missing:
            best = finish
            return
        options = []
        for (rank, chunk), time in held.items():
            for link in topology.out_links[rank].tolist():
                begin = max(time, free[link])
                if (ends[link][1], chunk) not in held and (begin, link) >= last:
                    options.append((begin + alpha[link] + lengths[chunk] * beta[link], begin, link, chunk))
        for done, begin, link, chunk in sorted(options):
            until = begin + busy[link] + lengths[chunk] * beta[link]
            later = [*free[:link], until, *free[link + 1 :]]
            extend({**held, (ends[link][1], chunk): done}, later, (begin, link), max(finish, done))

    extend(first, [0.0] * topology.num_links, (0.0, -1), 0.0)
    return best


ASKED = st.sampled_from([("broadcast", 4, 2), ("broadcast", 3, 4), ("scatter", 4, 1), ("allgather", 3, 1)])


@given(ASKED, st.sampled_from([1, 30_000, M]), st.data())
def test_no_set_exceeds_the_optimum(asked, size_bytes, data):
    kind, ranks, chunks = asked
    topology = data.draw(random_topologies(min_ranks=ranks, max_ranks=ranks, max_switches=0))
    least_s = optimum_s(make_collective(kind, ranks, chunks), topology, size_bytes)
    # A reduction is a gather backwards in time on the links turned round.
    turned = {"broadcast": "reduce", "scatter": "gather", "allgather": "reducescatter"}[kind]
    for name, machine in ((kind, topology), (turned, topology.reversed())):
        for case in cases_of(make_collective(name, ranks, chunks), machine, size_bytes):
            assert all((time_of(case, v) or 0) <= least_s * (1 + 1e-9) for v in all_sets(topology))


def assert_no_set_exceeds(schedule, sets):
    problem = schedule.collective, schedule.topology, schedule.size_bytes
    for case in cases_of(*problem, avoids_overhead(schedule)):
        for vertices in sets:
            assert (time_of(case, vertices) or 0) <= schedule.finish_s * (1 + 1e-9), vertices


METHODS = (
    "direct",
    "paths",
    "greedy",
    "trees",
    "ring",
    "one-shot",
    "one-phase",
    "hierarchical",
    "bfb",
    "split",
    "flow",
)


@given(random_problems(max_ranks=5), st.sampled_from(METHODS), st.data())
def test_no_set_exceeds_a_synthesized_schedule(problem, name, data):
    synthesizer = method(name)
    if synthesizer.accepts(problem) is None:
        schedule = synthesizer.synthesize(problem, Options())
        sets = st.lists(st.sampled_from(all_sets(problem.topology)), min_size=1, max_size=20)
        assert_no_set_exceeds(schedule, data.draw(sets))


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "reducescatter"])
@pytest.mark.parametrize("size_bytes", [4, 1000, M, 1 << 26])
def test_no_set_exceeds_what_switches_copy_and_reduce(kind, size_bytes):
    boxes = [(r, 4 + r // 2, 100, 0.35, 0.3) for r in range(4)], [(0, 2, 25, 1, 0.3), (1, 3, 25, 1, 0.3)]
    for plain in (zoo("star"), build(4, [*boxes[0], *boxes[1]], switches=2, both=True)):
        switches = np.arange(plain.num_vertices) >= 4
        able = replace(plain, multicast=switches, reduction=switches)
        schedule = method("in-network").synthesize(Problem(kind, able, size_bytes), Options())
        assert why_invalid(schedule) is None
        assert_no_set_exceeds(schedule, all_sets(able))


@pytest.mark.parametrize("machine", ["dgx-h100:1", "dgx-h100:2@overhead=none"])
@pytest.mark.parametrize("kind", ["allreduce", "allgather", "reducescatter"])
def test_no_bound_exceeds_in_network_collectives_of_machines(machine, kind):
    problem = Problem(kind, zoo(machine), M)
    schedule = method("in-network").synthesize(problem, Options())
    bounds = whole_bounds_by_argument(
        schedule.collective, schedule.topology, schedule.size_bytes, avoids_overhead(schedule)
    )
    found = {bound.kind: bound.time_s for bound in bounds}
    assert 0 < found["spread"] <= schedule.finish_s * (1 + 1e-9)
