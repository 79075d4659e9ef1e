"""Small topologies for tests: a named zoo, a builder, and Hypothesis strategies of random ones.

@pytest.mark.parametrize("name", ZOO)
def test_something(name):
    topology = zoo(name)

@given(random_topologies())
def test_property(topology): ...
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from collsyn.model.topology import Topology

# (from, to) or (from, to, gb_s) or (from, to, gb_s, alpha_us) or (from, to, gb_s, alpha_us, overhead_us); directed.
Edge = Sequence[float]

DEFAULTS = (50.0, 0.5, 0.0)


def build(
    num_ranks: int, edges: Iterable[Edge], switches: int = 0, name: str = "built", both: bool = False
) -> Topology:
    """A topology from directed edges (and their mirror images if `both`); vertices from num_ranks on are switches."""
    rows = [(int(e[0]), int(e[1]), *e[2:], *DEFAULTS[len(e) - 2 :]) for e in edges]
    if both:
        rows = [row for a, b, *costs in rows for row in ((a, b, *costs), (b, a, *costs))]
    return Topology(
        name=name,
        num_ranks=num_ranks,
        src=np.array([row[0] for row in rows]),
        dst=np.array([row[1] for row in rows]),
        alpha_s=np.array([row[3] for row in rows]) * 1e-6,
        beta_s_per_byte=1e-9 / np.array([row[2] for row in rows]),
        overhead_s=np.array([row[4] for row in rows]) * 1e-6,
        count=np.ones(len(rows), dtype=np.int32),
        switch_names=tuple(f"s{i}" for i in range(switches)),
    )


def ring_edges(n: int) -> list[tuple[int, int]]:
    """0-1, 1-2, ..., n-1 to 0."""
    return [(i, (i + 1) % n) for i in range(n)]


_HAND_MADE = {
    "pair": lambda: build(2, [(0, 1)], both=True),
    "line": lambda: build(4, [(0, 1), (1, 2), (2, 3)], both=True),
    "one-way ring": lambda: build(4, ring_edges(4)),
    "unequal ring": lambda: build(5, [(a, b, 10 + 15 * a, (3 + 4 * b) / 10) for a, b in ring_edges(5)], both=True),
    "occupying ring": lambda: build(4, [(a, b, 25, 0.7, 0.7) for a, b in ring_edges(4)], both=True),
    "star": lambda: build(4, [(r, 4, 100, 0.35, 0.3) for r in range(4)], switches=1, both=True),
    "unequal star": lambda: build(4, [(r, 4, 25 * (r + 1), 0.3) for r in range(4)], switches=1, both=True),
    # Two boxes of two ranks with a direct link inside and one slow network card each to a common switch.
    "two boxes": lambda: replace(
        build(
            4,
            [
                (0, 1, 100, 0.7),
                (2, 3, 100, 0.7),
                *((r, 4 + r // 2, 25, 0.7) for r in range(4)),
                (4, 6, 12.5, 1.3),
                (5, 6, 12.5, 1.3),
            ],
            switches=3,
            both=True,
        ),
        boxes=((0, 1, 4), (2, 3, 5)),
    ),
    # Rank 0 is fast to 1, slow to 2; one direction of 1-2 is missing.
    "lopsided": lambda: build(3, [(0, 1, 100), (1, 0, 10), (0, 2, 5, 3), (2, 0, 50), (1, 2, 20)]),
}

# Add a preset here and every test that runs over the zoo takes it in.
_PRESETS: tuple[str, ...] = (
    "ring:4",
    "ring:8",
    "full:4",
    "switch:4@overhead=alpha",
    "mesh:3x2@bandwidth_gb_s=100/50,alpha_us=0.5,overhead=alpha",
    "torus:3x3",
    "torus:4x2",
    "hypercube:3",
    "hetero3d:3x2x2@bandwidth_gb_s=200/100/50",
    "kautz:2x1",
    "genkautz:3x7",
    "bipartite:2x3",
    "petersen",
    "dgx1",
    "ndv2:2",
    "ndv2:2@costs=teccl",
    "dgx-a100:2",
)

ZOO: tuple[str, ...] = (*_HAND_MADE, *_PRESETS)


@cache
def zoo(name: str) -> Topology:
    """The topology of that name in the zoo; at most 20 ranks."""
    if name in _HAND_MADE:
        return _HAND_MADE[name]()
    from collsyn.topology.resolve import load_topology

    return load_topology(name)


def as_graph(topology: Topology) -> nx.MultiDiGraph:
    """The topology for networkx: vertices with `rank`, links with `gb_s`, `alpha_us`, `overhead_us` and `lanes`."""
    graph = nx.MultiDiGraph()
    for vertex in range(topology.num_vertices):
        graph.add_node(vertex, rank=vertex < topology.num_ranks)
    names = ("src", "dst", "beta_s_per_byte", "alpha_s", "overhead_s", "count")
    for src, dst, beta, alpha, overhead, lanes in zip(*(getattr(topology, n).tolist() for n in names), strict=True):
        costs = {"gb_s": 1e-9 / beta, "alpha_us": alpha * 1e6, "overhead_us": overhead * 1e6}
        graph.add_edge(src, dst, **{key: round(value, 9) for key, value in costs.items()}, lanes=lanes)
    return graph


BANDWIDTHS_GB_S = (5.0, 10.0, 12.5, 25.0, 50.0, 100.0, 300.0)
ALPHAS_US = (0.0, 0.35, 0.5, 0.7, 1.3, 2.6)


@st.composite
def random_topologies(
    draw: st.DrawFn, min_ranks: int = 2, max_ranks: int = 6, max_switches: int = 3, equal: bool = False
) -> Topology:
    """Strongly connected random topologies, direct or with switches, one-way links among them.

    Links have unequal bandwidths, alphas and overheads (none, all of alpha, or half) unless `equal`; no two links have
    the same ends. Every switch lies on a way from rank to rank.
    """
    num_ranks = draw(st.integers(min_ranks, max_ranks))
    switches = draw(st.integers(0, max_switches))
    order = draw(st.permutations(range(num_ranks + switches)))
    pairs = dict.fromkeys((a, b) for a, b in zip(order, order[1:] + order[:1], strict=True) if a != b)
    vertices = st.integers(0, num_ranks + switches - 1)
    for a, b in draw(st.lists(st.tuples(vertices, vertices), max_size=3 * num_ranks)):
        if a != b:
            pairs[a, b] = None
    if draw(st.booleans()):
        pairs |= dict.fromkeys((b, a) for a, b in pairs)
    share = draw(st.sampled_from((0.0, 0.5, 1.0)))

    def edge(a: int, b: int) -> Edge:
        if equal:
            return (a, b)
        alpha_us = draw(st.sampled_from(ALPHAS_US))
        return a, b, draw(st.sampled_from(BANDWIDTHS_GB_S)), alpha_us, alpha_us * share

    return build(num_ranks, [edge(a, b) for a, b in pairs], switches, name="random")
