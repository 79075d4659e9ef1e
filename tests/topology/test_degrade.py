"""Failures: which links and ranks remain, under which numbers, and one clear line for what cannot be."""

import networkx as nx
import numpy as np
import pytest

from collsyn.errors import Infeasible, InputError
from collsyn.model.topology import Topology
from collsyn.topology.degrade import Failures, degrade, kept_ranks
from collsyn.topology.resolve import load_topology
from collsyn.topology.symmetry import is_symmetry


def named_links(topology: Topology, numbers: list[int] | None = None) -> dict[tuple[str, str], float]:
    """GB/s from name to name, ranks under the given numbers."""

    def name(vertex: int) -> str:
        return str(numbers[vertex]) if numbers and vertex < topology.num_ranks else topology.vertex_name(vertex)

    ends = zip(topology.src.tolist(), topology.dst.tolist(), (topology.bandwidth / 1e9).tolist(), strict=True)
    return {(name(a), name(b)): gb_s for a, b, gb_s in ends}


def test_dropped_links_are_gone_both_ways_or_one_way() -> None:
    whole = load_topology("torus:4x4")
    expected = {*named_links(whole)}
    found = degrade(whole, Failures(("0-1", "5->6")))
    assert {*named_links(found)} == expected - {("0", "1"), ("1", "0"), ("5", "6")}
    assert "0-1" in found.name and found.num_ranks == 16


def test_slow_links_keep_their_share() -> None:
    whole = load_topology("dgx-a100:2")
    found = degrade(whole, Failures((), (("box0.nvswitch-3", 0.5), ("3->odd", 0.25))))
    before, after = named_links(whole), named_links(found)
    changed = {ends: after[ends] / before[ends] for ends in before if after[ends] != pytest.approx(before[ends])}
    assert changed == pytest.approx({("box0.nvswitch", "3"): 0.5, ("3", "box0.nvswitch"): 0.5, ("3", "odd"): 0.25})


def test_ranks_that_remain_are_renumbered_in_order() -> None:
    whole = load_topology("mesh:3x3")
    found = degrade(whole, Failures((), (), (4, 2)))
    numbers = [0, 1, 3, 5, 6, 7, 8]
    assert kept_ranks(found, 9) == numbers and found.num_ranks == 7
    graph = nx.DiGraph(named_links(whole).keys())
    graph.remove_nodes_from(["2", "4"])
    assert {*named_links(found, numbers)} == {*graph.edges}


def test_a_degraded_topology_that_fails_again_remembers_all_numbers() -> None:
    once = degrade(load_topology("torus:3x3"), Failures((), (), (4,)))
    twice = degrade(degrade(once, Failures(("0-1",))), Failures((), (), (5,)))
    # 5 after the first failure is 6 before it.
    assert kept_ranks(twice, 8) == [0, 1, 2, 3, 4, 6, 7]
    assert kept_ranks(twice, 9) == [0, 1, 2, 3, 5, 7, 8]
    assert kept_ranks(twice, 10) is None and kept_ranks(load_topology("torus:3x3"), 9) is None


def test_only_symmetries_that_survive_are_kept() -> None:
    whole = load_topology("torus:4x4")
    for failures in (Failures(("0-1",)), Failures((), (("0-1", 0.5),)), Failures((), (), (3,))):
        found = degrade(whole, failures)
        assert all(is_symmetry(found, perm) for perm in found.symmetries)
        assert len(found.symmetries) < len(whole.symmetries)


def test_rates_by_length_shrink_with_the_link() -> None:
    from dataclasses import replace

    whole = load_topology("ring:3")
    whole = replace(whole, size_rates=tuple(((1024.0, 1e9),) for _ in range(whole.num_links)))
    found = degrade(whole, Failures((), (("0->1", 0.5),)))
    link = int(np.flatnonzero((found.src == 0) & (found.dst == 1))[0])
    assert found.size_rates[link] == ((1024.0, 0.5e9),)


@pytest.mark.parametrize(
    ("failures", "words"),
    [
        (Failures(("0-5",)), "no link joins 0 and 5"),
        (Failures(("0-99",)), "does not name two vertices"),
        (Failures(("x",)), "expected A-B or A->B"),
        (Failures((), (("0-1", 0.0),)), "above 0"),
        (Failures((), (("0-1", 0.5), ("1-0", 0.5))), "named twice"),
        (Failures(("0-1",), (("0-1", 0.5),)), "is dropped, too"),
        (Failures((), (), (9,)), "expected 0 .. 8"),
        (Failures((), (), (3, 3)), "names rank 3 twice"),
        (Failures((), (), tuple(range(9))), "names all ranks"),
    ],
)
def test_what_is_not_there_is_told(failures: Failures, words: str) -> None:
    with pytest.raises(InputError, match=r"^--(drop|slow)-") as caught:
        degrade(load_topology("mesh:3x3"), failures)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "failures", "words"),
    [
        ("mesh:2x3", Failures(("0-1", "0-2")), "rank 0 is cut off from the other 5"),
        ("ring:6", Failures((), (), (1, 4)), "ranks 2, 3 are cut off from the other 2"),
        ("ring:4", Failures(("0->1", "0->3")), "rank 0 is cut off"),
        ("dgx-h100:2", Failures(("3-box0.nvswitch", "3-rail3")), "rank 3 is cut off from the other 15"),
    ],
)
def test_who_is_cut_off_is_named(name: str, failures: Failures, words: str) -> None:
    with pytest.raises(Infeasible) as caught:
        degrade(load_topology(name), failures)
    assert words in str(caught.value)
