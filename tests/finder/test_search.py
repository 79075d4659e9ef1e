"""The search finds what is known to exist, keeps to the bounds, and answers impossible questions in a line."""

from fractions import Fraction
from math import prod

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsyn.errors import InputError
from collsyn.finder.bases import base_texts, divisors
from collsyn.finder.carried import carried
from collsyn.finder.design import Cost, cost_of, is_regular, pareto
from collsyn.finder.limits import BACK, FORTH, PHASES, least_factor, moore_steps, require_askable
from collsyn.finder.search import Search
from collsyn.synth.bfb_cost import bfb_cost
from collsyn.topology.presets import preset_wiring
from collsyn.topology.resolve import load_topology
from tests.support.topologies import as_graph

# Asked (N, D), and graphs of that size that the result must be no worse than in both coordinates.
KNOWN = {
    (8, 4): ["bipartite:4x4", "genkautz:4x8", "torus:2x4"],
    (12, 4): ["genkautz:4x12", "torus:3x4"],
    (16, 4): ["genkautz:4x16", "torus:4x4", "hypercube:4"],
    (32, 4): ["line:(bipartite:4x4)", "genkautz:4x32", "torus:4x8"],
    (64, 4): ["genkautz:4x64", "torus:8x8"],
    (128, 4): ["line:(line:(bipartite:4x4))", "genkautz:4x128", "torus:8x16"],
    (256, 4): ["genkautz:4x256", "torus:16x16"],
    (1024, 4): ["genkautz:4x1024", "torus:32x32"],
    (1000, 8): ["genkautz:8x1000", "torus:5x5x5x8"],
}
SMALL = [key for key in KNOWN if key[0] <= 64]
LARGE = [key for key in KNOWN if key[0] > 64]


def known_cost(text, degree):
    """Cost of a preset, B being that of the degree asked for."""
    topology = load_topology(text)
    cost = bfb_cost(topology)
    return Cost(cost.steps, cost.factor * Fraction(degree, int(np.bincount(topology.dst).max())))


def check(search, num_ranks, degree):
    """What holds of every answer."""
    designs = search.find(num_ranks, degree)
    assert designs == pareto(designs)
    least = search.least(num_ranks, degree)
    for design in designs:
        wiring = preset_wiring(design.text)
        assert (wiring.num_ranks, wiring.switch_names) == (num_ranks, ())
        assert max(np.bincount(wiring.src).max(), np.bincount(wiring.dst).max()) <= degree
        assert design.cost.steps >= least.steps
        assert design.cost.factor >= least.factor
        if design.base is None:
            assert cost_of(wiring, degree, PHASES[search.collective]) == design.cost
    return designs


@pytest.mark.parametrize("key", [*SMALL, *(pytest.param(key, marks=pytest.mark.slow) for key in LARGE)], ids=str)
def test_no_known_graph_is_better(key):
    designs = check(Search(), *key)
    for text in KNOWN[key]:
        cost = known_cost(text, key[1])
        assert any(design.cost.covers(cost) for design in designs), text


@pytest.mark.parametrize(
    ("num_ranks", "degree", "steps", "factor"),
    # Both bounds are met: K4,4; Petersen; Hoffman-Singleton; Heawood; points and lines of PG(2,3).
    [
        (8, 4, 2, Fraction(7, 8)),
        (10, 3, 2, Fraction(9, 10)),
        (50, 7, 2, Fraction(49, 50)),
        (14, 3, 3, Fraction(13, 14)),
        (26, 4, 3, Fraction(25, 26)),
    ],
)
def test_graphs_that_meet_both_bounds_are_found(num_ranks, degree, steps, factor):
    (design,) = check(Search(two_way=True), num_ranks, degree)
    assert design.cost == Cost(steps, factor)


@pytest.mark.parametrize("collective", PHASES)
@pytest.mark.parametrize("two_way", [False, True])
def test_collectives_and_links_both_ways(collective, two_way):
    for num_ranks, degree in ((12, 3), (18, 4)):
        for design in check(Search(collective, two_way), num_ranks, degree):
            graph = nx.DiGraph(as_graph(load_topology(design.text)))
            if two_way:
                assert all(graph.has_edge(b, a) for a, b in graph.edges)
            if collective == "allreduce":
                wiring = preset_wiring(design.text)
                parts = [cost_of(wiring, degree, [phase]) for phase in (FORTH, BACK)]
                assert design.cost == Cost(sum(p.steps for p in parts), sum(p.factor for p in parts))


@given(st.integers(2, 20), st.integers(1, 6), st.booleans(), st.integers(0, 3))
@settings(deadline=None, max_examples=15)
def test_any_question_is_answered_or_refused(num_ranks, degree, two_way, seed):
    try:
        require_askable(num_ranks, degree, two_way)
    except InputError:
        return
    designs = check(Search(two_way=two_way, seed=seed), num_ranks, degree)
    assert designs
    for design in designs:
        if design.base is not None:
            found = carried(design.text, design.base)
            found.check()
            assert design.cost.covers(found.cost)


def test_the_same_seed_gives_the_same_designs():
    assert Search(seed=3).find(20, 3) == Search(seed=3).find(20, 3)


def test_a_carried_schedule_is_kept_where_it_moves_fewer_bytes():
    search = Search()
    designs = search._with([], "expand:(random1:9x3x1)x2", 18, 6, Cost(4, Fraction(23, 18)), "random1:9x3x1")
    assert [(design.base, design.cost.steps) for design in designs] == [(None, 3), ("random1:9x3x1", 4)]
    assert carried(designs[1].text, designs[1].base).cost == designs[1].cost


@pytest.mark.parametrize("key", [(2, 1), (7, 3), (12, 4), (15, 4), (16, 3), (20, 19), (21, 4), (45, 4), (3, 6), (4, 5)])
def test_base_graphs_have_the_ranks_and_at_most_the_degree_asked_for(key):
    num_ranks, degree = key
    texts = list(base_texts(num_ranks, degree, two_way=False))
    assert texts
    assert len(set(texts)) == len(texts)
    for text in texts:
        wiring = preset_wiring(text)
        assert wiring.num_ranks == num_ranks
        assert max(np.bincount(wiring.dst).max(), np.bincount(wiring.src).max()) <= degree
        assert is_regular(wiring, degree) or text.startswith(("genkautz", "closed", "torus", "twisted"))


def test_divisors():
    for number in range(1, 200):
        assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


@pytest.mark.parametrize(("degree", "two_way"), [(2, False), (3, False), (3, True), (7, True), (1, False), (2, True)])
def test_moore_steps_by_counting(degree, two_way):
    for num_ranks in range(2, 120):
        steps = moore_steps(num_ranks, degree, two_way)

        def reached(k):
            new = [1] + [degree * (degree - 1 if two_way else degree) ** i for i in range(k)]
            return sum(new)

        assert reached(steps) >= num_ranks > reached(steps - 1)


@pytest.mark.parametrize(
    ("num_ranks", "degree", "two_way", "why"),
    [
        (1, 1, False, "num-ranks: is 1"),
        (8, 0, False, "degree: is 0"),
        (8, -2, False, "degree: is -2"),
        (4, 4, False, "only 3 others"),
        (4, 9, False, "only 3 others"),
        (9, 3, True, "both odd"),
        (8, 1, True, "in pairs only"),
        (10**9, 4, False, "at most"),
        (1000, 65, False, "at most"),
    ],
)
def test_impossible_questions(num_ranks, degree, two_way, why):
    with pytest.raises(InputError, match=why):
        Search(two_way=two_way).find(num_ranks, degree)


def test_other_collectives_are_refused():
    with pytest.raises(InputError, match="alltoall is not designed for"):
        Search("alltoall").find(8, 4)


def test_least_factor_is_what_a_rank_receives():
    assert least_factor(8) == 1 - Fraction(1, 8)
    assert prod([least_factor(2)] * 2) == Fraction(1, 4)
