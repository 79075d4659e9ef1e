"""Methods under a sketch, and why none serves: checked by counting sends and by breadth-first search of networkx."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from collsyn.check.verify import verify_schedule
from collsyn.errors import Infeasible
from collsyn.model.fields import parse_document
from collsyn.model.sketch import Sketch
from collsyn.portfolio.auto import best
from collsyn.synth.problem import Options, Problem
from collsyn.synth.sketch_reasons import require_feasible
from collsyn.synth.sketched import Sketched, broken_rule, fewest_hops, links_left, narrowed
from collsyn.synth.table import method
from collsyn.topology.hops import hops
from collsyn.topology.resolve import load_topology
from collsyn.topology.sketch_file import load_sketch, sketch_from_fields

# Three sketches that nothing keeps to.
RELAY_AGAINST_FEWEST_HOPS = """
schema: collsyn-sketch/1
name: dgx2-fewest
gpus_per_box: 16
across: 1>0 3>2 5>4 7>6 9>8 11>10 13>12 15>14
relays: 0..1>1 2..3>3 4..5>5 6..7>7 8..9>9 10..11>11 12..13>13 14..15>15
extra_hops: 0
"""
SYMMETRY_AGAINST_ROOT = """
schema: collsyn-sketch/1
name: turned
gpus_per_box: 8
symmetry: ['(0 4)(1 5)(2 6)(3 7)']
"""
NO_WAY_OUT = """
schema: collsyn-sketch/1
name: walled
gpus_per_box: 8
inside: 0-1 0-2 0-3 4-5 5-6 6-7
across: 0>1
"""


def problem(kind: str, topology: str, **more: object) -> Problem:
    return Problem(kind, load_topology(topology), 1 << 20, **more)  # type: ignore[arg-type]


def sketch(text: str, asked: Problem) -> Sketch:
    return sketch_from_fields(parse_document(text.encode(), "s.yaml"), asked.topology)


def why(asked: Problem, text: str) -> str:
    with pytest.raises(Infeasible) as failure:
        require_feasible(asked, sketch(text, asked))
    assert failure.value.exit_code == 3
    return str(failure.value)


def test_a_relay_against_the_fewest_hops_is_explained_by_pair_and_rule() -> None:
    # Even sources: 7 even GPUs of the other box are two hops away without their relay and three with it. 2 x 8 x 7.
    line = why(problem("alltoall", "dgx2:2"), RELAY_AGAINST_FEWEST_HOPS)
    assert "data of rank 0 cannot reach rank 18 (and 111 more pairs)" in line
    assert "relays let it leave the box of rank 0 by rank 1 only, which takes 3 hops" in line
    assert "extra_hops 0 allows 2" in line
    assert "set extra_hops to 1" in line
    asked = problem("alltoall", "dgx2:2")
    require_feasible(asked, replace(sketch(RELAY_AGAINST_FEWEST_HOPS, asked), extra_hops=1))


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "gather", "scatter"])
def test_a_symmetry_that_moves_the_root_is_explained(kind: str) -> None:
    line = why(problem(kind, "dgx1", root=1), SYMMETRY_AGAINST_ROOT)
    assert f"symmetry number 1 moves the root, rank 1, to rank 5, but the one root of a {kind}" in line
    assert "leave symmetry out" in line
    require_feasible(problem("allgather", "dgx1"), sketch(SYMMETRY_AGAINST_ROOT, problem("allgather", "dgx1")))


def test_a_symmetry_against_groups_or_counts_is_explained() -> None:
    assert "moves rank 0 to rank 4, which has other data, groups or counts" in why(
        problem("allgather", "dgx1", groups=((0, 1, 2), (3, 4), (5, 6, 7))), SYMMETRY_AGAINST_ROOT
    )
    counts = [1, 1, 1, 1, 2, 1, 1, 1]
    assert "groups or counts" in why(problem("allgather", "dgx1", counts=counts), SYMMETRY_AGAINST_ROOT)


def test_pairs_that_leave_no_way_are_explained_by_their_key() -> None:
    line = why(problem("allgather", "ndv2:2"), NO_WAY_OUT)
    assert "data of rank 0 cannot reach rank 4 (and " in line
    assert "inside leaves no way between them; allow more pairs in inside" in line
    closed = NO_WAY_OUT.replace("inside: 0-1 0-2 0-3 4-5 5-6 6-7\nacross: 0>1", "across: none")
    assert "across leaves no way between them" in why(problem("allgather", "ndv2:2"), closed)


def test_relays_that_nothing_leads_on_from_are_explained_both_ways() -> None:
    text = "schema: collsyn-sketch/1\nname: s\ngpus_per_box: 8\nacross: 0>1\n"
    line = why(problem("allgather", "ndv2:2"), text + "relays: 2>3")
    assert "data of rank 2 cannot reach rank 8 (and 15 more pairs)" in line
    assert "relays let it leave the box of rank 2 by rank 3 only, and no allowed pair leads from there" in line
    for kind in ("reducescatter", "allreduce"):
        line = why(problem(kind, "ndv2:2"), text + "receivers: 2>3")
        assert "partial sums of rank 8 cannot reach rank 2" in line
        assert "receivers let it enter the box of rank 2 by rank 3 only" in line


@pytest.mark.parametrize("kind", ["allgather", "reducescatter", "allreduce", "alltoall"])
@pytest.mark.parametrize(
    ("name", "topology"),
    [
        *((name, "ndv2:2") for name in ("paths", "ring", "trees", "direct")),
        *((name, "ndv2:2@costs=teccl") for name in ("greedy", "trees")),
    ],
)
def test_methods_keep_to_the_pairs_or_are_refused(name: str, topology: str, kind: str) -> None:
    asked, rules = problem(kind, topology), "ndv2-sk1"
    held = load_sketch(rules, asked.topology)
    sketched = Sketched(method(name), held)
    if sketched.accepts(asked) is not None:
        return
    try:
        schedule = sketched.synthesize(asked, Options())
    except Infeasible as refusal:
        assert f"sketch {rules}: {name} sends" in str(refusal)
        return
    verify_schedule(schedule).raise_if_bad()
    assert schedule.topology is asked.topology
    assert schedule.provenance["sketch"] == rules
    crossing = {(a, b) for a, b in zip(schedule.src.tolist(), schedule.dst.tolist(), strict=True) if a // 8 != b // 8}
    assert crossing == {(0, 9), (8, 1)}


def test_auto_keeps_to_a_sketch_and_takes_its_chunks() -> None:
    asked = problem("allgather", "ndv2:2")
    held = replace(load_sketch("ndv2-sk1", asked.topology), chunks=3)
    found = best(asked, Options(sketch=held), ["paths", "trees"], plans=False)
    assert found[0].schedule is not None
    assert found[0].schedule.collective.chunks_per_rank == 3
    assert broken_rule(found[0].schedule, held) is None
    assert "does not allow" in next(each.refused or "" for each in found if each.method == "trees")


def test_each_broken_rule_is_seen() -> None:
    asked = problem("allgather", "ndv2:2")
    schedule = method("paths").synthesize(asked, Options())
    crossing = next(
        (a, b) for a, b in zip(schedule.src.tolist(), schedule.dst.tolist(), strict=True) if a // 8 != b // 8
    )
    free = Sketch("s", 16)
    assert broken_rule(schedule, free) is None
    every = frozenset((a, b) for a in range(16) for b in range(16) if a != b)
    assert "which the sketch does not allow" in str(broken_rule(schedule, replace(free, pairs=every - {crossing})))
    leaver = [
        (int(schedule.collective.contributors(c)[0]), a)
        for c, a, b in zip(schedule.chunk.tolist(), schedule.src.tolist(), schedule.dst.tolist(), strict=True)
        if a // 8 != b // 8
    ]
    owner, by = next((owner, by) for owner, by in leaver if owner // 8 == by // 8)
    other = frozenset(rank for rank in range(owner // 8 * 8, owner // 8 * 8 + 8) if rank != by)
    assert f"leave its box by rank {by}" in str(broken_rule(schedule, replace(free, carriers={owner: other})))
    ring = method("ring").synthesize(problem("allgather", "full:6"), Options())
    assert "takes 2 hops" in str(broken_rule(ring, Sketch("s", 6, extra_hops=0)))
    assert broken_rule(ring, Sketch("s", 6, extra_hops=4)) is None
    sums = method("ring").synthesize(problem("reducescatter", "ndv2:2@costs=teccl"), Options())
    assert "enter its box by" in str(broken_rule(sums, Sketch("s", 16, receivers={r: frozenset() for r in range(16)})))


@pytest.mark.parametrize("rules", ["dgx2-sk1", "dgx2-sk2"])
def test_a_narrowed_topology_has_the_allowed_hops_at_the_same_costs(rules: str) -> None:
    topology = load_topology("dgx2:2")
    held = load_sketch(rules, topology)
    left = narrowed(topology, held)
    whole, kept = hops(topology), hops(left)
    pairs = zip(
        whole.src.tolist(), whole.dst.tolist(), whole.alpha_s.tolist(), whole.beta_s_per_byte.tolist(), strict=True
    )
    expected = {row for row in pairs if held.allows(row[0], row[1])}
    columns = (kept.src, kept.dst, kept.alpha_s, kept.beta_s_per_byte)
    assert set(zip(*(column.tolist() for column in columns), strict=True)) == expected
    graph = nx.DiGraph([(a, b) for a, b, *_ in expected])
    distance = dict(nx.all_pairs_shortest_path_length(graph))
    assert np.array_equal(fewest_hops(left), [[distance[a][b] for b in range(32)] for a in range(32)])
    assert np.array_equal(topology.src[links_left(topology, held)], left.src)


def test_links_that_no_allowed_pair_needs_are_gone_and_reversal_turns_pairs() -> None:
    topology = load_topology("switch:4")
    pairs = frozenset({(0, 1), (1, 2), (2, 0)})
    left = narrowed(topology, Sketch("s", 4, pairs=pairs))
    assert sorted(left.link_name(link) for link in range(left.num_links)) == sorted(
        [*(f"{rank}->switch" for rank in range(3)), *(f"switch->{rank}" for rank in range(3))]
    )
    assert left.reversed().allowed_pairs == {(b, a) for a, b in pairs}
    assert left.subset([2, 0]).allowed_pairs == {(0, 1)}
