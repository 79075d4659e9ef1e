"""Schedules that are carried along are right by replay, cost what theorems say, and need no solver.

The independent oracle solves each rank's transport problem of each step as a linear program.
"""

from dataclasses import replace
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from collsyn.check.verify import verify_schedule
from collsyn.errors import InputError, VerificationError
from collsyn.finder.carried import Carried, carried, solved, split
from collsyn.finder.design import cost_of
from collsyn.finder.limits import FORTH, least_factor
from collsyn.finder.schedule import carried_schedule
from collsyn.finder.search import copies_cost, line_cost, power_cost
from collsyn.synth.problem import Problem
from collsyn.topology.presets import preset_wiring
from collsyn.topology.resolve import load_topology

# Regular base graphs: balanced, unbalanced, one-way, of parallel links.
BASES = [
    "full:4",
    "ring:5",
    "bipartite:3x3",
    "petersen",
    "circulant:12x2x3",
    "genkautz:2x6",
    "cayley:8x2x7x2x3x9x10",
    "random1:9x3x1",
    "closed-genkautz:4x12",
    "trunk:(full:3)x2",
    "circulant1:4x1x2x3x1",
    "quadrangle:2",
]
# From every rank equally many ranks are at each distance, so that the theorem on powers holds to the letter.
EVEN = [text for text in BASES if text not in ("random1:9x3x1", "closed-genkautz:4x12", "genkautz:2x6")]


def degree_of(wiring):
    """Links into the rank that has most."""
    return int(np.bincount(wiring.dst).max())


def oracle(wiring):
    """Steps and factor of breadth-first broadcast by one linear program a rank and step."""
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(range(wiring.num_ranks))
    graph.add_edges_from(zip(wiring.src.tolist(), wiring.dst.tolist(), strict=True))
    far = dict(nx.all_pairs_shortest_path_length(graph))
    steps = max(max(row.values()) for row in far.values())
    worst = [0.0] * (steps + 1)
    for u in graph:
        ways = [a for a, _, _ in graph.in_edges(u, keys=True)]
        for step in range(1, steps + 1):
            sources = [v for v in graph if far[v][u] == step]
            flows = [(v, j) for v in sources for j, w in enumerate(ways) if far[v].get(w, -1) == step - 1]
            if not flows:
                continue
            whole = np.array([[v == s for v, _ in flows] + [0] for s in sources], dtype=float)
            room = np.array([[j == k for _, j in flows] + [-1] for k in range(len(ways))], dtype=float)
            aim = np.zeros(len(flows) + 1)
            aim[-1] = 1
            found = linprog(aim, A_ub=room, b_ub=np.zeros(len(ways)), A_eq=whole, b_eq=np.ones(len(sources)))
            worst[step] = max(worst[step], found.fun)
    return steps, sum(worst) * degree_of(wiring) / wiring.num_ranks


@pytest.mark.parametrize("text", BASES)
def test_bases_are_solved_as_by_linear_programs(text):
    wiring = preset_wiring(text)
    found = solved(wiring)
    found.check()
    steps, factor = oracle(wiring)
    assert found.cost.steps == steps
    assert float(found.cost.factor) == pytest.approx(factor)
    assert cost_of(wiring, degree_of(wiring), [FORTH]) == found.cost


@pytest.mark.parametrize("text", BASES)
def test_line_graphs_cost_a_step_and_one_part_in_n_more(text):
    base = solved(preset_wiring(text))
    found = carried(f"line:({text})", text)
    found.check()
    assert found.cost == line_cost(base.cost, base.wiring.num_ranks)
    assert found.per_step[1:] == base.per_step
    assert cost_of(found.wiring, degree_of(found.wiring), [FORTH]).covers(found.cost)


@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("text", BASES)
def test_degree_expansions_cost_at_most_a_step_and_what_the_copies_get(text, copies):
    base = solved(preset_wiring(text))
    found = carried(f"expand:({text})x{copies}", text)
    found.check()
    predicted = copies_cost(base.cost, base.wiring.num_ranks, copies)
    assert found.cost.factor == predicted.factor
    # The copies need no step of their own where all neighbours have their data before the last one.
    assert found.cost.steps in (predicted.steps - 1, predicted.steps)


@pytest.mark.parametrize("factors", [2, 3])
@pytest.mark.parametrize("text", EVEN)
def test_powers_cost_as_the_theorem_says(text, factors):
    base = solved(preset_wiring(text))
    if base.wiring.num_ranks**factors > 200:
        return
    found = carried(f"power:({text})x{factors}", text)
    found.check()
    assert found.cost == power_cost(base.cost, base.wiring.num_ranks, factors)


@pytest.mark.parametrize(
    "text",
    [
        "product:(ring:4)x(full:3)",
        "product:(full:3)x(ring:4)",
        "product:(petersen)x(ring:3)",
        "product:(ring:5)x(circulant1:3x1)",
        "product:(bipartite:3x3)x(hypercube:2)",
    ],
)
def test_products_of_graphs_with_the_least_bytes_have_the_least_bytes(text):
    found = carried(text)
    found.check()
    assert found.cost.factor == least_factor(found.wiring.num_ranks)
    steps, factor = oracle(found.wiring)
    assert (found.cost.steps, float(found.cost.factor)) == (steps, pytest.approx(factor))


def test_numbers_that_were_published():
    # L(K4,4): 3 steps and 1.000; L(L(K4,4)), 128 ranks: a step and 1/32 more; Kautz K(4,1) = L(K5): 2 and 1.000.
    assert carried("line:(bipartite:4x4)").cost == replace(carried("line:(full:5)").cost, steps=3)
    twice = carried("line:(line:(bipartite:4x4))")
    twice.check()
    assert (twice.cost.steps, twice.cost.factor) == (4, Fraction(33, 32))


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("line:(bipartite:3x3)", None),
        ("expand:(line:(full:3))x2", None),
        ("power:(ring:3)x3", None),
        ("product:(line:(full:3))x(ring:3)", "line:(full:3)"),
        ("line:(trunk:(full:3)x2)", None),
        ("expand:(random1:9x3x1)x2", None),
    ],
)
@pytest.mark.parametrize("size_bytes", [1 << 12, 1 << 26])
def test_schedules_are_verified_and_end_by_the_predicted_time(text, base, size_bytes):
    topology = load_topology(text)
    schedule = carried_schedule(Problem("allgather", topology, size_bytes), text, base)
    assert verify_schedule(schedule).ok
    cost = carried(text, base).cost
    rank_bandwidth = degree_of(preset_wiring(text)) * 50e9
    assert schedule.finish_s <= cost.time_s(size_bytes, 0.5e-6, rank_bandwidth) * (1 + 1e-9)
    assert schedule.provenance["method"] == "carried"


def test_large_schedules_begin_their_steps_together(monkeypatch):
    monkeypatch.setattr("collsyn.finder.schedule.MAX_ROWS", 10)
    text = "line:(full:4)"
    schedule = carried_schedule(Problem("allgather", load_topology(text), 1 << 20), text)
    assert verify_schedule(schedule).ok
    assert schedule.finish_s == pytest.approx(carried(text).cost.time_s(1 << 20, 0.5e-6, 3 * 50e9))


def test_a_schedule_needs_its_own_wiring_and_an_allgather():
    with pytest.raises(InputError, match="wired otherwise"):
        carried_schedule(Problem("allgather", load_topology("ring:12"), 1 << 20), "line:(full:4)")
    with pytest.raises(InputError, match="is not carried along"):
        carried_schedule(Problem("alltoall", load_topology("line:(full:4)"), 1 << 20), "line:(full:4)")


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_every_slip_is_found(data):
    good = data.draw(st.sampled_from([carried("line:(full:3)"), carried("expand:(ring:3)x2"), carried("petersen")]))
    n = good.wiring.num_ranks
    receiver, owner = data.draw(st.permutations(range(n)))[:2]
    step, link = good.step.copy(), good.link.copy()
    kind = data.draw(st.sampled_from(["early", "elsewhere", "lost", "own"]))
    if kind == "early":
        # Before the one who passes it on has it, or in no step at all.
        tail = int(good.wiring.src[link[receiver, owner, 0]])
        step[receiver, owner] = good.step[tail, owner]
    elif kind == "elsewhere":
        away = np.flatnonzero(good.wiring.dst != receiver)
        link[receiver, owner, 0] = data.draw(st.sampled_from(away.tolist()))
    elif kind == "lost":
        link[receiver, owner, -1] = -1
    else:
        link[owner, owner, 0] = 0
    good.check()
    with pytest.raises(VerificationError):
        Carried(good.wiring, step, link).check()


def test_split_chunks_cost_the_same():
    base = carried("random1:9x3x1")
    assert split(base, 3).cost == base.cost
    split(base, 3).check()


@pytest.mark.parametrize("text", ["product:(petersen)x(ring:3)", "expand:(random1:9x3x1)x2", "power:(ring:4)x3"])
@pytest.mark.parametrize("most", [1, 4])
def test_few_chunks_are_balanced_as_far_as_they_can(text, most):
    rough, fine = carried(text, most_chunks=most), carried(text)
    rough.check()
    assert rough.chunks <= most < fine.chunks
    assert rough.cost.steps == fine.cost.steps
    assert rough.cost.factor >= fine.cost.factor
