"""The topology type: checks, names, parts and reversals."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.errors import InputError
from collsyn.model.topology import Cut, Topology
from collsyn.topology.resolve import load_topology
from collsyn.topology.symmetry import is_symmetry
from tests.support.topologies import ZOO, build, random_topologies, zoo

COLUMNS = ("src", "dst", "alpha_s", "beta_s_per_byte", "overhead_s", "count")


def links(topology, names=None):
    """Sorted rows (source, destination, costs ...), ends renamed."""
    names = names or list(range(topology.num_vertices))
    columns = [getattr(topology, name).tolist() for name in COLUMNS]
    return sorted((names[src], names[dst], *costs) for src, dst, *costs in zip(*columns, strict=True))


WRONG = [
    ({"num_ranks": 0}, "has 0 ranks"),
    ({"src": [0, 5]}, "a link ends at vertex 5; there are 3"),
    ({"dst": [1, -1]}, "a link ends at vertex"),
    ({"dst": [0, 2]}, "link 0->0 joins a vertex to itself"),
    ({"beta_s_per_byte": [1e-11, 0]}, "link 1->s0 needs a bandwidth above 0"),
    ({"beta_s_per_byte": [np.nan, 1e-11]}, "link 0->1 needs a bandwidth above 0"),
    ({"beta_s_per_byte": [1e-11, np.inf]}, "needs a bandwidth above 0"),
    ({"beta_s_per_byte": [-1e-11, 1e-11]}, "needs a bandwidth above 0"),
    ({"beta_s_per_byte": [1e-317, 1e-11]}, "link 0->1 needs a bandwidth of at most 1e15 GB/s"),
    ({"beta_s_per_byte": [1e-11, 1e291]}, "link 1->s0 needs a bandwidth of at least 1e-12 GB/s"),
    ({"alpha_s": [1e294, 0]}, "link 0->1 needs an alpha of at most 1e12 us"),
    ({"alpha_s": [-1e-9, 0]}, "link 0->1 needs an alpha of at least 0"),
    ({"alpha_s": [np.nan, 0]}, "needs an alpha"),
    ({"alpha_s": [np.inf, 0]}, "needs an alpha"),
    ({"overhead_s": [2e-6, 0]}, "link 0->1 has an overhead outside 0 .. alpha"),
    ({"overhead_s": [-1e-9, 0]}, "has an overhead outside"),
    ({"count": [0, 1]}, "needs a count of at least 1"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_topology_that_makes_no_sense_is_refused(change, message):
    good = build(2, [(0, 1, 25, 1), (1, 2, 25, 1)], switches=1, name="bad")
    with pytest.raises(InputError, match="topology bad: ") as caught:
        replace(good, **change)
    assert message in str(caught.value)


def test_a_topology_may_have_no_links():
    topology = build(1, [])
    assert (topology.num_links, topology.overhead_model) == (0, "none")


def test_columns_are_typed_and_read_only():
    topology = zoo("dgx1")
    for name in COLUMNS:
        column = getattr(topology, name)
        assert column.dtype == (np.float64 if "_" in name else np.int32)
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0


def test_the_caller_s_arrays_are_left_writable():
    mine = np.array([0, 1], dtype=np.int32)
    Topology("t", 2, mine, mine[::-1], np.zeros(2), np.full(2, 1e-9), np.zeros(2), np.ones(2, dtype=np.int32))
    mine[0] = 5


@given(random_topologies())
def test_out_and_in_links_are_those_of_their_vertex(topology):
    for vertex in range(topology.num_vertices):
        assert topology.out_links[vertex].tolist() == [
            i for i in range(topology.num_links) if topology.src[i] == vertex
        ]
        assert topology.in_links[vertex].tolist() == [i for i in range(topology.num_links) if topology.dst[i] == vertex]


def test_names():
    topology = build(2, [(0, 2), (2, 3), (3, 1)], switches=2)
    assert [topology.vertex_name(v) for v in range(4)] == ["0", "1", "s0", "s1"]
    assert [topology.is_switch(v) for v in range(4)] == [False, False, True, True]
    assert topology.link_name(1) == "s0->s1"
    assert topology.route_name((0, 1, 2)) == "0->s0->s1->1"
    assert topology.route_name(()) == ""


@pytest.mark.parametrize(
    ("alphas_and_overheads", "model"),
    [
        ([(1, 0), (2, 0)], "none"),
        ([(0, 0), (0, 0)], "none"),
        ([(1, 1), (2, 2)], "alpha"),
        ([(1, 1), (0, 0)], "alpha"),
        ([(1, 0.3), (2, 0.3)], "0.3us"),
        ([(1, 0.3), (0.2, 0.2)], "0.3us"),
        ([(1, 0.3), (0, 0)], "0.3us"),
        ([(1, 0.3), (2, 0)], "mixed"),
        ([(1, 0.3), (2, 0.4)], "mixed"),
        ([(1, 1), (2, 0)], "mixed"),
    ],
)
def test_the_overhead_model_has_a_name(alphas_and_overheads, model):
    pairs = [(0, 1), (1, 0)]
    topology = build(2, [(*p, 10, *costs) for p, costs in zip(pairs, alphas_and_overheads, strict=True)])
    assert topology.overhead_model == model


def test_bandwidths_are_exact_fractions():
    topology = load_topology("ndv2:2@costs=taccl")
    found = dict(zip(map(topology.link_name, range(topology.num_links)), topology.exact_bandwidth_gb_s, strict=True))
    assert found["0->1"] == Fraction(1000, 23)
    assert found["0->2"] == Fraction(1000, 46)
    assert found["0->9"] == Fraction(1000, 105)
    assert topology.bandwidth.tolist() == pytest.approx([1e9 * float(f) for f in topology.exact_bandwidth_gb_s])


@given(random_topologies())
def test_reversing_twice_gives_the_same_links(topology):
    back = topology.reversed()
    assert links(back) == sorted((dst, src, *costs) for src, dst, *costs in links(topology))
    assert links(back.reversed()) == links(topology)
    assert back.wiring != topology.wiring or back.src.tolist() == topology.src.tolist()


@given(random_topologies(), st.data())
def test_a_subset_has_the_links_among_its_ranks_and_the_switches(topology, data):
    chosen = data.draw(st.lists(st.integers(0, topology.num_ranks - 1), min_size=1, unique=True))
    part = topology.subset(chosen)
    vertices = [*chosen, *range(topology.num_ranks, topology.num_vertices)]
    assert part.num_ranks == len(chosen)
    assert part.switch_names == topology.switch_names
    assert links(part, vertices) == [row for row in links(topology) if row[0] in vertices and row[1] in vertices]


@pytest.mark.parametrize("name", ZOO)
def test_the_subset_of_all_ranks_is_the_topology(name):
    topology = zoo(name)
    whole = topology.subset(range(topology.num_ranks))
    assert links(whole) == links(topology)
    assert whole.boxes == tuple(tuple(sorted(box)) for box in topology.boxes)
    assert set(whole.symmetries) == set(topology.symmetries)
    assert [cut.name for cut in whole.cuts] == [cut.name for cut in topology.cuts]


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("dgx1", (0, 2, 4, 6)),
        ("dgx1", (7, 3, 0, 4)),
        ("mesh:4x4", (5, 6, 9, 10)),
        ("torus:3x3", (0, 3, 6)),
        ("hypercube:3", (0, 1, 2, 3)),
        ("dgx2:2", (0, 1, 16, 17)),
        ("dgx-a100:2", (1, 3, 5, 7, 9, 11, 13, 15)),
        ("bipartite:3x3", (0, 1, 3, 4)),
    ],
)
def test_symmetries_that_survive_in_a_subset_hold_there(text, ranks):
    part = load_topology(text).subset(ranks)
    assert all(is_symmetry(part, permutation) for permutation in part.symmetries)


def test_a_symmetry_that_maps_a_subset_to_itself_survives():
    assert load_topology("hypercube:3").subset((0, 1, 2, 3)).symmetries == ((1, 0, 3, 2), (2, 3, 0, 1))
    assert load_topology("dgx1").subset((0, 4, 2, 6)).symmetries == ((1, 0, 3, 2), (2, 3, 0, 1))


def test_a_subset_keeps_what_its_ranks_are():
    base = build(3, [(0, 1), (1, 2), (2, 0)], name="base")
    topology = replace(
        base,
        reduce_s_per_byte=np.array([1e-12, 2e-12, 3e-12]),
        boxes=((0, 1), (2,)),
        cuts=(Cut("pair", (0, 2)), Cut("one", (1,))),
        min_piece_bytes=4096,
    )
    part = topology.subset((2, 0))
    assert part.name == "base[2,0]"
    assert part.reduce_s_per_byte.tolist() == [3e-12, 1e-12]
    assert part.boxes == ((1,), (0,))
    assert part.cuts == (Cut("pair", (0, 1)),)
    assert part.min_piece_bytes == 4096


@pytest.mark.parametrize(
    ("ranks", "message"),
    [((0, 9), "rank 9 is not in topology"), ((-1,), "rank -1"), ((1, 1), "twice"), ((), "no rank")],
)
def test_a_wrong_subset_is_refused(ranks, message):
    with pytest.raises(InputError, match=f"subset: .*{message}"):
        zoo("dgx1").subset(ranks)


def test_wiring_names_what_is_joined_whatever_it_costs():
    assert load_topology("dgx1").wiring == load_topology("dgx1@bandwidth_gb_s=3,overhead=alpha").wiring
    texts = ("dgx1", "ring:8", "full:8", "switch:7", "hypercube:3")
    assert len({load_topology(text).wiring for text in texts}) == len(texts)
