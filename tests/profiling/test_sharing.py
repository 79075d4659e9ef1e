"""Shared links are found from the rates of pairs that run together, on trees that the tests plant."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsyn.profiling.design import crossings, fans, kinds, near_sets, relay_ways
from collsyn.profiling.sharing import SLOWED, Run, Shared, find_shared, most_across


@dataclass(frozen=True)
class Leg:
    """Costs of a pair."""

    alpha_s: float
    beta_s_per_byte: float


class Tree:
    """Sets of ranks with the rate out of and into each, and pairs beside the tree with a link of their own."""

    def __init__(self, num_ranks, rates, own=()):
        self.num_ranks, self.rates, self.own = num_ranks, rates, dict(own)
        self.pairs = [(a, b) for a in range(num_ranks) for b in range(num_ranks) if a != b]

    def links_of(self, pair):
        if pair in self.own:
            return []
        return [(ranks, out) for ranks, out in self.rates if (pair[not out] in ranks) > (pair[out] in ranks)]

    def alone(self, pair):
        return self.own.get(pair) or min(self.rates[link] for link in self.links_of(pair))

    def costs(self):
        return {pair: Leg(1e-6 * max(1, len(self.links_of(pair))), 1 / self.alone(pair)) for pair in self.pairs}

    def run(self, pairs, rng, noise=0.02):
        """Rates of pairs at once: all rise alike, relative to what they have alone, until a link is full."""
        rates, left = {}, {pair: self.alone(pair) for pair in pairs}
        room = dict(self.rates)
        while left:
            wanted = {link: sum(rate for p, rate in left.items() if link in self.links_of(p)) for link in room}
            level = min([1.0, *(room[link] / wanted[link] for link in room if wanted[link])])
            tight = [link for link in room if wanted[link] and room[link] <= level * wanted[link] * (1 + 1e-9)]
            done = [p for p in left if level >= 1 or any(link in tight for link in self.links_of(p))]
            for pair in done:
                rates[pair] = left.pop(pair) * level
                for link in self.links_of(pair):
                    room[link] -= rates[pair]
        seen = {pair: rate * (1 + noise * rng.uniform(-1, 1)) for pair, rate in rates.items()}
        return Run(seen, frozenset(pair for pair, rate in seen.items() if rate < SLOWED * self.alone(pair)))


def measured(tree, seed=0, runs_per_rank=12):
    """What joint runs of a tree show, in the design that real ones have."""
    rng = np.random.default_rng(seed)
    runs = [tree.run(pairs, rng) for pairs in fans(tree.num_ranks, tree.pairs, rng)]
    sharing = sorted({pair for run in runs for pair in run.slowed})
    others = sorted(set(tree.pairs) - set(sharing))
    design = crossings(tree.num_ranks, sharing, others, kinds(tree.costs()), rng, runs_per_rank * tree.num_ranks)
    return runs + [tree.run(pairs, rng) for pairs in design]


def as_pairs(found, tree):
    """Shared links by the pairs that cross them; what the sets are called does not matter."""
    shared = [pair for pair in tree.pairs if pair not in tree.own]
    return {frozenset(pair for pair in shared if link.carries(pair)): link.bandwidth for link in found.links}


def planted(tree):
    shared = [pair for pair in tree.pairs if pair not in tree.own]
    found = {}
    for (ranks, out), rate in tree.rates.items():
        crossing = frozenset(pair for pair in shared if (ranks, out) in tree.links_of(pair))
        found[crossing] = min(rate, found.get(crossing, rate))
    return found


def both_ways(rates):
    return {(tuple(ranks), out): rate for ranks, rate in rates for out in (True, False)}


def expect_found(tree, seed=0):
    found = find_shared(tree.num_ranks, measured(tree, seed))
    got, wanted = as_pairs(found, tree), planted(tree)
    assert got.keys() == wanted.keys()
    for pairs, rate in wanted.items():
        assert got[pairs] == pytest.approx(rate, rel=0.08)


PORTS = [([rank], 10.0) for rank in range(8)]


def test_a_star_has_the_ports_of_its_ranks_and_nothing_else():
    expect_found(Tree(6, both_ways([([rank], 10.0 + rank) for rank in range(6)])))


def test_a_link_that_two_pairs_cannot_fill_is_found():
    expect_found(Tree(8, both_ways([*PORTS, ([0, 1, 2, 3], 22.0)])))


def test_switches_below_sockets():
    sets = [([2 * i, 2 * i + 1], 14.0) for i in range(4)]
    expect_found(Tree(8, both_ways([*PORTS, *sets, ([4, 5, 6, 7], 18.0)])))


def test_pairs_with_links_of_their_own_share_nothing():
    own = {(a, b): 40.0 for a in range(8) for b in range(8) if a != b and a // 4 == b // 4}
    expect_found(Tree(8, both_ways([*PORTS, ([0, 1, 2, 3], 12.0)]), own))


def test_directions_differ():
    rates = both_ways(PORTS) | {((4, 5, 6, 7), True): 15.0, ((4, 5, 6, 7), False): 24.0, ((0, 1), True): 13.0}
    expect_found(Tree(8, rates))


def test_where_nobody_is_slowed_nothing_is_shared():
    pairs = {(a, b): 10.0 + a for a in range(5) for b in range(5) if a != b}
    tree = Tree(5, {}, pairs)
    found = find_shared(5, measured(tree))
    assert (found.links, found.pairs, found.unexplained) == ((), frozenset(), 0)
    assert find_shared(3, []).links == ()


@st.composite
def trees(draw):
    """Two levels of switches over 6 to 12 ranks, each link scarce enough to be full at some time."""
    groups = draw(st.lists(st.integers(3, 4), min_size=2, max_size=3))
    num_ranks, begin, sets = sum(groups), 0, []
    for size in groups:
        sets.append((list(range(begin, begin + size)), 10.0 * size * draw(st.floats(0.45, 0.6))))
        begin += size
    return Tree(num_ranks, both_ways([*(([rank], 10.0) for rank in range(num_ranks)), *sets]))


@given(trees(), st.integers(0, 2**20))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_random_trees_are_found_and_nothing_is_invented(tree, seed):
    expect_found(tree, seed)


def test_more_ranks_than_can_be_tried_use_latencies():
    sets = [(list(range(6 * i, 6 * i + 6)), 25.0) for i in range(3)]
    tree = Tree(18, both_ways([*(([rank], 10.0) for rank in range(18)), *sets]))
    suggested = near_sets({pair: cost.alpha_s for pair, cost in tree.costs().items()})
    assert {tuple(ranks) for ranks, _ in sets} <= set(suggested)
    found = find_shared(18, measured(tree, runs_per_rank=4), suggested)
    assert as_pairs(found, tree).keys() == planted(tree).keys()


def test_a_slip_of_the_clock_is_no_shared_link():
    pairs = {(a, b): 10.0 for a in range(4) for b in range(4) if a != b}
    runs = measured(Tree(4, {}, pairs))
    slow = next(iter(runs[5].rates))
    runs[5] = Run({**runs[5].rates, slow: 4.0}, frozenset([slow]))
    assert find_shared(4, runs).links == ()


def test_the_most_that_was_seen_across_a_border():
    runs = [Run({(0, 1): 3.0, (0, 2): 4.0, (2, 0): 9.0}, frozenset()), Run({(0, 2): 6.0}, frozenset())]
    assert most_across([0], True, [(0, 1), (0, 2)], runs) == 7.0
    assert most_across([0], False, [(2, 0)], runs) == 9.0
    assert most_across([1], True, [(1, 0)], runs) == 0.0
    assert Shared((0, 1), False, 1.0, 1.0, 1.0, 1).carries((2, 1))


def test_relays_are_ways_whose_latencies_add_up():
    costs = {(0, 1): Leg(1.0, 2.0), (1, 2): Leg(2.0, 3.0), (0, 2): Leg(3.1, 3.0), (2, 0): Leg(3.0, 9.0)}
    costs |= {(1, 0): Leg(1.0, 2.0), (2, 1): Leg(2.0, 3.0)}
    assert relay_ways(costs) == [(0, 1, 2)]
