"""Bounds never exceed what is possible: exact cuts, flow programs, gossip, verified schedules; and how they scale."""

from collections import deque
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collsyn.bounds import avoids_overhead, chunk_bound, fluid_bound
from collsyn.bounds.bound import bounds_by_argument, whole_bounds_by_argument
from collsyn.bounds.case import Case
from collsyn.bounds.parts import _messages
from collsyn.errors import Infeasible
from collsyn.model.collective import custom_collective, make_collective
from collsyn.model.kinds import KINDS, REDUCING
from collsyn.model.schedule import COPY, Schedule
from collsyn.synth.transform import reverse
from tests.support.bruteforce import why_invalid
from tests.support.problems import all_problems, grouped_problems, random_problems
from tests.support.schedules import SCHEDULES, by_hand
from tests.support.topologies import ZOO, build, random_topologies, zoo

M = 1 << 20
# Half of the usual examples where each takes many milliseconds.
FEWER = settings(max_examples=max(settings().max_examples // 2, 1), suppress_health_check=[HealthCheck.too_slow])
PLAIN = ("allgather", "broadcast", "gather", "scatter", "alltoall", "sendrecv")


def must_enter(collective, inside):
    """Part of the size that has to enter a vertex set, from the words of the collective."""
    total = Fraction(0)
    for chunk in range(collective.num_chunks):
        pre, post = set(collective.contributors(chunk).tolist()), set(collective.receivers(chunk).tolist())
        crosses = post & inside and (pre - inside if collective.reduces else not pre & inside)
        total += Fraction(int(collective.units[chunk]), collective.total_units) if crosses else 0
    return total


def tightest_cut(collective, topology):
    """Exact algorithm bandwidth of the tightest of all vertex sets."""
    best, vertices = None, range(topology.num_vertices)
    ends = list(zip(topology.src.tolist(), topology.dst.tolist(), topology.exact_bandwidth_gb_s, strict=True))
    for size in range(1, topology.num_vertices):
        for chosen in combinations(vertices, size):
            inside = set(chosen)
            need = must_enter(collective, inside)
            if need:
                gb_s = sum(b for a, z, b in ends if a not in inside and z in inside) / need
                best = gb_s if best is None or gb_s < best else best
    return best


@FEWER
@given(random_topologies(max_ranks=5, max_switches=2), st.sampled_from((*PLAIN, *sorted(REDUCING))))
def test_candidate_sets_are_never_tighter_than_the_tightest_of_all(topology, kind):
    collective = make_collective(kind, topology.num_ranks)
    exact = tightest_cut(collective, topology)
    found = [b for b in bounds_by_argument(collective, topology, M) if b.kind in ("cut", "degree")]
    assert found
    assert all(bound.algbw_exact >= exact for bound in found)
    # Nor are the amounts that their certificates quote other than what the collective's words say.
    for bound in found:
        if bound.kind == "cut":
            assert Fraction(bound.certificate["crossing"]) == must_enter(collective, set(bound.certificate["vertices"]))


@pytest.mark.parametrize("name", ["pair", "line", "one-way ring", "unequal ring", "star", "two boxes", "lopsided"])
@pytest.mark.parametrize("kind", ["allgather", "reducescatter"])
def test_on_small_machines_the_tightest_set_is_a_candidate(name, kind):
    topology = zoo(name)
    collective = make_collective(kind, topology.num_ranks)
    cut = min(b.algbw_exact for b in bounds_by_argument(collective, topology, M) if b.kind == "cut")
    assert cut == tightest_cut(collective, topology)


def flow_program_s(collective, topology):
    """Seconds of the best flow without latencies: every receiver draws a flow from what its chunk puts on each link."""
    from scipy.optimize import linprog

    links, chunks = topology.num_links, collective.num_chunks
    flows = [(c, q) for c in range(chunks) for q in collective.receivers(c).tolist()]
    flows = [(c, q) for c, q in flows if q not in collective.contributors(c)]
    loads, width = chunks * links, chunks * links + len(flows) * links + 1
    lengths = collective.chunk_bytes(M)
    balance, supply, limit = [], [], []
    for index, (chunk, target) in enumerate(flows):
        at = loads + index * links
        for vertex in range(topology.num_vertices):
            if vertex in collective.contributors(chunk):
                continue
            row = np.zeros(width)
            row[at + topology.in_links[vertex]] = 1
            row[at + topology.out_links[vertex]] = -1
            balance.append(row)
            supply.append(1.0 if vertex == target else 0.0)
        for link in range(links):
            row = np.zeros(width)
            row[at + link], row[chunk * links + link] = 1, -1
            limit.append(row)
    for link in range(links):
        row = np.zeros(width)
        row[link:loads:links] = lengths / M
        row[-1] = -topology.bandwidth[link] / M
        limit.append(row)
    cost = np.zeros(width)
    cost[-1] = 1e6
    found = linprog(cost, np.array(limit), np.zeros(len(limit)), np.array(balance), np.array(supply), method="highs")
    return found.fun / 1e6


@FEWER
@given(random_topologies(max_ranks=4, max_switches=0), st.sampled_from(PLAIN))
def test_throughput_arguments_stay_below_the_flow_program(topology, kind):
    collective = make_collective(kind, topology.num_ranks)
    optimum_s = flow_program_s(collective, topology)
    for bound in bounds_by_argument(collective, topology, M):
        if bound.algbw_exact is not None:
            assert M / float(bound.algbw_exact) * 1e-9 <= optimum_s * (1 + 1e-6), bound


def gossip(num_parts, pre, post, reduces):
    """Fewest one-way messages after which all of `post` know what they must, by breadth-first search over knowledge."""
    goal = sum(1 << p for p in pre) if reduces else 1

    def first(p):
        return (1 << p if reduces else 1) if p in pre else 0

    start = tuple(first(p) for p in range(num_parts))
    queue, seen = deque([(start, 0)]), {start}
    while queue:
        state, steps = queue.popleft()
        if all(state[q] == goal for q in post):
            return steps
        for a in range(num_parts):
            for b in range(num_parts):
                following = (*state[:b], state[a] | state[b], *state[b + 1 :])
                if following not in seen:
                    seen.add(following)
                    queue.append((following, steps + 1))
    raise AssertionError


@pytest.mark.parametrize("reduces", [False, True])
def test_messages_between_parts_are_those_of_gossip(reduces):
    n = 4
    subsets = [list(c) for size in range(1, n + 1) for c in combinations(range(n), size)]
    rows = [(Fraction(1), Fraction(i), Fraction(i), pre, post) for i, (pre, post) in
            enumerate((a, b) for a in subsets[::2] for b in subsets)]  # fmt: skip
    collective = custom_collective(n, rows, reduces, {})
    case = Case(collective, zoo("line"), M)
    counted = _messages(case, np.arange(n))
    pre, post, _ = case.pairs
    for p, q, count in zip(pre.tolist(), post.tolist(), counted.tolist(), strict=True):
        givers, takers = collective.sets[p].tolist(), collective.sets[q].tolist()
        assert count == gossip(n, givers, takers, reduces), (givers, takers)


def early_schedule(collective, topology, size_bytes):
    """Chunks without reduction over single links, each time the send that arrives first: exclusive and causal."""
    held = {(r, c): 0.0 for c in range(collective.num_chunks) for r in collective.contributors(c).tolist()}
    free, lengths, rows = np.zeros(topology.num_links), collective.chunk_bytes(size_bytes), []
    wanted = {(r, c) for c in range(collective.num_chunks) for r in collective.receivers(c).tolist()}
    while wanted - held.keys():
        best = None
        for (rank, chunk), since in held.items():
            for link in topology.out_links[rank].tolist():
                target, begin = int(topology.dst[link]), max(since, free[link])
                arrival = begin + topology.alpha_s[link] + lengths[chunk] * topology.beta_s_per_byte[link]
                if (target, chunk) not in held and (best is None or arrival < best[0]):
                    best = arrival, begin, link, chunk, rank, target
        arrival, begin, link, chunk, rank, target = best
        held[target, chunk] = arrival
        free[link] = begin + topology.overhead_s[link] + lengths[chunk] * topology.beta_s_per_byte[link]
        rows.append((chunk, rank, target, link, begin))
    chunk, src, dst, route, start_s = zip(*rows, strict=True)
    routes = [[link] for link in range(topology.num_links)]
    columns = {"chunk": chunk, "src": src, "dst": dst, "route": route, "start_s": start_s}
    return Schedule.build(collective, topology, size_bytes, routes, {}, op=np.full(len(rows), COPY), **columns)


def assert_not_beaten(schedule):
    problem = schedule.collective, schedule.topology, schedule.size_bytes
    shared = avoids_overhead(schedule)
    for bound in (*bounds_by_argument(*problem), *whole_bounds_by_argument(*problem, shared)):
        assert bound.time_s <= schedule.finish_s * (1 + 1e-9), bound
    assert fluid_bound(*problem).time_s <= chunk_bound(*problem, shared).time_s <= schedule.finish_s * (1 + 1e-9)


@given(
    random_topologies(max_switches=0), st.sampled_from(PLAIN), st.integers(1, 3), st.sampled_from([1, 1000, M, 1 << 28])
)
def test_no_bound_exceeds_an_early_schedule(topology, kind, chunks, size_bytes):
    schedule = early_schedule(make_collective(kind, topology.num_ranks, chunks), topology, size_bytes)
    assert why_invalid(schedule) is None
    assert_not_beaten(schedule)


@FEWER
@given(random_topologies(max_switches=0, equal=True), st.integers(1, 3), st.sampled_from([1000, M]))
def test_no_bound_exceeds_an_early_schedule_turned_round(topology, chunks, size_bytes):
    n = topology.num_ranks
    gathered = early_schedule(make_collective("allgather", n, chunks), topology.reversed(), size_bytes)
    schedule = reverse(gathered, make_collective("reducescatter", n, chunks))
    assert why_invalid(schedule) is None
    assert_not_beaten(schedule)


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_bound_exceeds_a_schedule_by_hand(name):
    assert_not_beaten(by_hand(name))


@given(random_problems(), st.sampled_from(["direct", "paths"]))
def test_no_bound_exceeds_a_synthesized_schedule(problem, name):
    from collsyn.synth.problem import Options
    from collsyn.synth.table import method

    synthesizer = method(name)
    if synthesizer.accepts(problem) is None:
        schedule = synthesizer.synthesize(problem, Options())
        assert why_invalid(schedule) is None
        assert_not_beaten(schedule)


@FEWER
@given(random_topologies(), st.sampled_from(KINDS[:8]), st.data())
def test_more_capacity_never_worsens_the_bound(topology, kind, data):
    collective = make_collective(kind, topology.num_ranks)
    factor = np.array(data.draw(st.lists(st.sampled_from([1.0, 1.0, 2.0]), min_size=topology.num_links,
                                         max_size=topology.num_links)))  # fmt: skip
    wider = replace(topology, beta_s_per_byte=topology.beta_s_per_byte / factor)
    before, after = (list(bounds_by_argument(collective, t, M)) for t in (topology, wider))
    # Lengths are chosen by the bandwidths, and so may change for worse or better; the others may not.
    for kind_of in ("cut", "degree", "distance", "parts"):
        was, now = (max((b.time_s for b in found if b.kind == kind_of), default=0.0) for found in (before, after))
        assert now <= was * (1 + 1e-9)


@FEWER
@given(random_topologies(), st.sampled_from(KINDS[:8]))
def test_doubling_bandwidth_halves_the_part_of_the_bytes(topology, kind):
    collective = make_collective(kind, topology.num_ranks, 2)
    silent = replace(topology, alpha_s=topology.alpha_s * 0, overhead_s=topology.overhead_s * 0)
    double = replace(silent, beta_s_per_byte=silent.beta_s_per_byte / 2)
    for bound in (fluid_bound, chunk_bound):
        assert bound(collective, double, M).time_s == pytest.approx(bound(collective, silent, M).time_s / 2)
    assert fluid_bound(collective, double, M).algbw_exact == 2 * fluid_bound(collective, silent, M).algbw_exact


@FEWER
@given(random_topologies(), st.sampled_from(KINDS[:8]))
def test_time_is_measured_in_any_unit(topology, kind):
    """Twice the latencies and twice the bytes take twice the time."""
    collective = make_collective(kind, topology.num_ranks, 2)
    slow = replace(topology, alpha_s=topology.alpha_s * 2, overhead_s=topology.overhead_s * 2)
    for bound in (fluid_bound, chunk_bound):
        assert bound(collective, slow, 2 * M).time_s == pytest.approx(2 * bound(collective, topology, M).time_s)


@FEWER
@given(random_topologies(), st.sampled_from(["allgather", "allreduce", "reducescatter", "alltoall"]), st.randoms())
def test_names_of_ranks_do_not_matter(topology, kind, random):
    collective = make_collective(kind, topology.num_ranks)
    order = list(range(topology.num_ranks))
    random.shuffle(order)
    renamed = topology.induced([*order, *range(topology.num_ranks, topology.num_vertices)], "renamed")
    for bound in (fluid_bound, chunk_bound):
        assert bound(collective, renamed, M).time_s == pytest.approx(bound(collective, topology, M).time_s)


@pytest.mark.parametrize("name", ZOO)
def test_every_problem_of_the_zoo_has_bounds(name):
    # Of grouped problems every third on each topology, another third on the next one.
    grouped = list(grouped_problems(zoo(name)))[ZOO.index(name) % 3 :: 3]
    for problem in (*all_problems(zoo(name)), *grouped):
        bound = chunk_bound(problem.collective(), problem.topology, problem.size_bytes)
        assert bound.time_s > 0
        assert bound.algbw_exact is not None


def test_large_machines_are_looked_at_in_samples(monkeypatch):
    monkeypatch.setattr("collsyn.bounds.case.ALL_RANKS", 4)
    monkeypatch.setattr("collsyn.bounds.case.SAMPLED_RANKS", 3)
    monkeypatch.setattr("collsyn.bounds.lengths.ALL_RANKS", 4)
    topology = zoo("unequal ring")
    # Two ranks of five take part, neither at an end of the numbering.
    pair = custom_collective(5, [(Fraction(1), Fraction(0), Fraction(0), [1], [3])], False, {})
    for collective in (pair, make_collective("allgather", 5), make_collective("allreduce", 5)):
        bound = fluid_bound(collective, topology, M)
        assert bound.time_s > 0
        assert bound.algbw_exact >= tightest_cut(collective, topology)


def test_a_pair_that_only_another_chunk_joins_is_found():
    chunks = [(Fraction(1), Fraction(0), Fraction(0), [0], [1]), (Fraction(1), Fraction(1), Fraction(1), [1], [0])]
    one_way = build(2, [(0, 1)])
    with pytest.raises(Infeasible, match="rank 1 cannot reach rank 0"):
        fluid_bound(custom_collective(2, chunks, False, {}), one_way, M)
