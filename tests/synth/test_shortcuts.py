"""Short cuts: distances, partners and ways against sums of powers and networkx; tori against their presets."""

from itertools import pairwise
from math import ceil, log2, prod

import networkx as nx
import pytest

from collsyn.synth.shortcuts import Grid, Port, shortcut, spread, torus_sizes
from collsyn.topology.resolve import load_topology
from tests.support.topologies import zoo

TORI = {"ring:3": (3,), "ring:8": (8,), "torus:3x4": (3, 4), "torus:4x3": (4, 3), "torus:4x2x3": (4, 2, 3)}
TORI |= {"hypercube:3": (2, 2, 2), "torus:16x4": (16, 4), "full:3": (3,), "switch:2": (2,)}


def test_distances_are_sums_of_powers_of_minus_two() -> None:
    assert [shortcut(k) for k in range(12)] == [sum((-2) ** i for i in range(k + 1)) for k in range(12)]


@pytest.mark.parametrize(("preset", "sizes"), TORI.items())
def test_tori_are_recognised(preset: str, sizes: tuple[int, ...]) -> None:
    topology = load_topology(preset)
    assert torus_sizes(topology, tuple(range(topology.num_ranks))) == sizes


@pytest.mark.parametrize("preset", ["mesh:3x3", "full:4", "switch:4", "petersen", "kautz:2x1", "dgx1", "bipartite:2x3"])
def test_others_are_not(preset: str) -> None:
    topology = load_topology(preset)
    assert torus_sizes(topology, tuple(range(topology.num_ranks))) is None


def test_one_way_links_and_other_orders_are_no_torus() -> None:
    assert torus_sizes(zoo("one-way ring"), (0, 1, 2, 3)) is None
    ring = load_topology("ring:6")
    assert torus_sizes(ring, (0, 2, 4, 1, 3, 5)) is None
    assert torus_sizes(ring, (3, 2, 1, 0, 5, 4)) == (6,)
    assert torus_sizes(load_topology("torus:4x4"), (4, 5, 6, 7)) == (4,)


def torus_graph(sizes: tuple[int, ...]) -> nx.Graph:
    """Places joined along every dimension, each line closed."""
    graph = nx.Graph()
    for place in range(prod(sizes)):
        graph.add_node(place)
        stride = 1
        for size in sizes:
            at = place // stride % size
            graph.add_edge(place, place + ((at + 1) % size - at) * stride)
            stride *= size
    return graph


@pytest.mark.parametrize("sizes", [(2,), (4,), (6,), (8,), (10,), (16,), (18,), (4, 2), (6, 8), (2, 2, 4), (8, 8)])
def test_partners_exchange_over_shortest_ways(sizes: tuple[int, ...]) -> None:
    n, graph = prod(sizes), torus_graph(sizes)
    grid = Grid(tuple(range(n)), sizes, stepwise=True)
    assert len(grid.ports()) == len(sizes) * (1 if max(sizes) == 2 else 2)
    for port in grid.ports():
        rounds = list(grid.partners(port))
        assert len(rounds) == sum(ceil(log2(size)) for size in sizes)
        for ways in rounds:
            partner = {way[0]: way[-1] for way in ways}
            assert all(partner[partner[place]] == place != partner[place] for place in range(n))
            for way in ways:
                assert all(graph.has_edge(a, b) for a, b in pairwise(way))
                assert len(way) - 1 == nx.shortest_path_length(graph, way[0], way[-1])


@pytest.mark.parametrize("n", range(2, 130, 2))
@pytest.mark.parametrize("mirrored", [False, True])
def test_everyone_is_reached_and_by_powers_of_two_once(n: int, mirrored: bool) -> None:
    grid = Grid(tuple(range(n)), (n,), stepwise=False)
    has = [{place} for place in range(n)]
    for ways in list(grid.partners(Port(0, mirrored)))[::-1]:
        before = [set(some) for some in has]
        for way in ways:
            if not n & (n - 1):
                assert before[way[0]].isdisjoint(before[way[-1]])
            has[way[-1]] |= before[way[0]]
    assert all(len(some) == n for some in has)


def negabinary(rank: int, n: int) -> list[int]:
    """Digits of a rank to the base -2, lowest first; ranks beyond the largest such number stand for rank - n."""
    digits = n.bit_length() - 1
    most = sum(1 << place for place in range(0, digits, 2))
    value = rank if rank <= most else rank - n
    found = []
    for _ in range(digits):
        found.append(value % 2)
        value = (value - value % 2) // -2
    assert value == 0
    return found


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32, 64])
def test_a_tree_from_rank_0_is_the_published_bine_tree(n: int) -> None:
    # A rank gets the data in step log2 n - u, u being how many of its lowest digits are alike (arXiv 2508.17311).
    grid = Grid(tuple(range(n)), (n,), stepwise=False)
    came = {0: -1}
    for step, ways in enumerate(list(grid.partners(Port(0, False)))[::-1]):
        came |= {way[-1]: step for way in ways if way[0] in came and way[-1] not in came and came[way[0]] < step}
    for rank in range(1, n):
        digits = negabinary(rank, n)
        alike = next((i for i, digit in enumerate(digits) if digit != digits[0]), len(digits))
        assert came[rank] == log2(n) - alike


def test_ranks_on_the_way_keep_what_passes_and_nothing_comes_twice() -> None:
    # 0 -> 1 -> 2 -> 3, then 0 -> 1 -> 4: rank 1 has chunk 0 already, and nobody wants it at 4.
    rounds = [[(0, 1, 2, 3)], [(0, 1, 4)]]
    messages, held = spread(rounds, {0: [0, 1]}, {0: {1, 3}, 1: {3, 4}}, lanes=2)
    sent = [(c, m.src, m.dst) for step in messages for m in step for c in m.chunks]
    assert sent == [(0, 0, 1), (1, 0, 1), (0, 1, 2), (1, 1, 2), (0, 2, 3), (1, 2, 3), (1, 1, 4)]
    assert held == {0: {0, 1}, 1: {0, 1}, 2: {0, 1}, 3: {0, 1}, 4: {1}}


def test_what_a_rank_is_spared_is_not_sent_but_sent_on() -> None:
    rounds = [[(0, 1)], [(1, 2)]]
    messages, _ = spread(rounds, {0: [0]}, {0: {1, 2}}, spared={1: {0}})
    assert [(m.src, m.dst) for step in messages for m in step] == [(1, 2)]
