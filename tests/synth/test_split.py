"""Allreduce from split links: both parts hold all that the program says, phases overlap, and it beats two in turn."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from collsyn.bounds.joint import even_split, joint_split
from collsyn.check.verify import verify_schedule
from collsyn.model.schedule import COPY, REDUCE
from collsyn.synth import split as split_module
from collsyn.synth.problem import Options, Problem
from collsyn.synth.split import SPLIT, Phase, owners
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from tests.support.mutate import check_mutants
from tests.support.topologies import build, zoo

G = 1 << 30
# Both ways round three ranks, one way wider, and a spur both ways: no link has one that goes back with the same width.
LOPSIDED = [(0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2), (2, 3), (3, 2)]


@pytest.fixture(autouse=True)
def few_attempts(monkeypatch):
    monkeypatch.setattr(split_module, "WORK", 500_000)


def lopsided():
    topology = build(4, LOPSIDED)
    slower = np.array([1, 1, 1, 2, 2, 2, 1.5, 1])
    return replace(topology, beta_s_per_byte=topology.beta_s_per_byte * slower)


def solved(topology, size_bytes=G, chunks=None, **options):
    problem = Problem("allreduce", topology, size_bytes, chunks)
    assert SPLIT.accepts(problem) is None
    schedule = SPLIT.synthesize(problem, Options(**options))
    verify_schedule(schedule).raise_if_bad()
    return schedule


@pytest.mark.parametrize("name", ["mesh:3x3", "mesh:4x4", "mesh:5x2", "mesh:8x8"])
def test_equal_roots_are_as_good_as_the_best_on_meshes(name):
    topology = load_topology(name)
    assert even_split(topology).rate * 1e-9 == pytest.approx(float(joint_split(topology).algbw_exact), rel=1e-6)


@pytest.mark.parametrize("topology", [load_topology("mesh:4x3"), lopsided()], ids=["mesh", "lopsided"])
def test_each_part_brings_all_data_to_every_rank(topology):
    split = even_split(topology)
    assert (split.down + split.up <= topology.bandwidth * (1 + 1e-9)).all()
    for part, turned in ((split.down, False), (split.up, True)):
        graph = nx.DiGraph()
        for source, end, width in zip(topology.src.tolist(), topology.dst.tolist(), part.tolist(), strict=True):
            graph.add_edge(*((end, source) if turned else (source, end)), capacity=width / split.rate)
        for rank in range(topology.num_ranks):
            graph.add_edge("all", rank, capacity=1 / topology.num_ranks)
        for rank in range(topology.num_ranks):
            assert nx.maximum_flow_value(graph, "all", rank) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", ["mesh:3x3", "mesh:4x4", "mesh:5x3@overhead=alpha", "mesh:8x8"])
def test_it_is_near_the_program_and_beats_two_phases(name):
    topology = load_topology(name)
    schedule = solved(topology)
    composed = method("greedy").synthesize(Problem("allreduce", topology, G, chunks_per_rank=4), Options())
    assert schedule.finish_s < composed.finish_s / 1.2
    assert schedule.finish_s <= G / (0.9 * even_split(topology).rate)
    assert schedule.bounds


@pytest.mark.slow
def test_256_ranks_are_served_in_millions_of_sends():
    topology = load_topology("mesh:16x16")
    schedule = solved(topology)
    assert schedule.finish_s <= G / (0.94 * even_split(topology).rate)


def test_links_of_different_widths_each_way():
    topology = lopsided()
    schedule = solved(topology)
    assert G / (0.9 * even_split(topology).rate) >= schedule.finish_s


def test_sums_and_results_move_at_the_same_time_at_the_rates_of_their_parts():
    topology = load_topology("mesh:4x4")
    schedule, split = solved(topology, chunks=20), even_split(topology)
    for op, part in ((REDUCE, split.up), (COPY, split.down)):
        rows = schedule.op == op
        assert schedule.rate[rows] == pytest.approx(part[schedule.route[rows]], rel=1e-6)
    copies, sums = schedule.start_s[schedule.op == COPY], schedule.start_s[schedule.op == REDUCE]
    assert copies.min() < sums.max() * 0.3


@pytest.mark.parametrize("backwards", [False, True])
def test_chunks_wait_for_their_release_and_go_over_a_link_one_after_another(backwards):
    topology = replace(lopsided(), overhead_s=np.full(8, 1e-6), alpha_s=np.full(8, 3e-6))
    split = even_split(topology)
    phase = Phase.of(topology, split.up if backwards else split.down, split.rate, backwards)
    owner, chunk_bytes = owners(topology, 5), 1e5
    release_s = np.arange(20) * chunk_bytes / split.rate
    run = phase.spread(owner, release_s, chunk_bytes, seed=3)
    assert run is not None
    assert len(run.chunk) == 3 * 20
    have = {(int(rank), chunk): float(release_s[chunk]) for chunk, rank in enumerate(owner)}
    free_s = np.zeros(len(phase.link))
    for link, chunk, start_s in zip(run.over.tolist(), run.chunk.tolist(), run.start_s.tolist(), strict=True):
        assert start_s >= have[int(phase.src[link]), chunk] * (1 - 1e-9)
        assert start_s >= free_s[link] * (1 - 1e-9)
        transfer_s = chunk_bytes / phase.rate[link]
        free_s[link] = start_s + 1e-6 + transfer_s
        end = int(phase.dst[link]), chunk
        assert end not in have
        have[end] = start_s + 3e-6 + transfer_s
    assert run.finish_s == pytest.approx(max(have.values()))


def test_every_rank_owns_a_chunk_a_turn_and_the_middle_the_last_ones():
    topology = load_topology("mesh:5x5")
    turns = owners(topology, 3).reshape(3, 25)
    assert (np.sort(turns, axis=1) == np.arange(25)).all()
    assert turns[0, 0] == turns[2, -1] == 12
    assert turns[2, 0] in (0, 4, 20, 24)
    assert sorted(owners(topology, 1).tolist()) == list(range(25))


def test_small_buffers_are_split_less():
    chunks = [solved(load_topology("mesh:3x3"), size).collective.chunks_per_rank for size in (9, 9 << 14, G)]
    assert chunks[0] == 1
    assert chunks == sorted(chunks)


def test_a_schedule_comes_however_short_the_time_is():
    assert solved(load_topology("mesh:4x4"), time_limit_s=1e-3).num_sends > 0


@pytest.mark.parametrize(
    ("topology", "change", "why"),
    [
        (load_topology("torus:4x4"), {}, "no faster"),
        (zoo("star"), {}, "links from rank to rank"),
        (load_topology("mesh:3x3"), {"kind": "allgather"}, "makes no allgather"),
        (load_topology("mesh:3x3"), {"groups": ((0, 1, 2), (3, 4, 5))}, "one process group"),
        (load_topology("mesh:16x16"), {"chunks_per_rank": 400}, "too many sends"),
        (replace(load_topology("mesh:2x2"), reduce_s_per_byte=np.full(4, 1e-12)), {}, "take no time"),
        (build(3, [(0, 1), (1, 0), (0, 2)]), {}, "reach each other"),
    ],
)
def test_what_it_does_not_serve(topology, change, why):
    problem = Problem(**{"kind": "allreduce", "topology": topology, "size_bytes": G, **change})
    assert why in SPLIT.accepts(problem)


def test_links_that_are_wide_for_what_a_rank_is_the_root_of_still_serve_it():
    line = build(40, [(a + turn, a + 1 - turn) for a in range(39) for turn in (0, 1)])
    ends = (line.src == 0) | (line.dst == 0)
    wide = replace(line, beta_s_per_byte=np.where(ends, line.beta_s_per_byte / 1000, line.beta_s_per_byte))
    problem = Problem("allreduce", wide, G, 1)
    verify_schedule(SPLIT.synthesize(problem, Options())).raise_if_bad()


def test_mutants_of_its_schedules_are_rejected():
    schedule = solved(load_topology("mesh:3x3"), 1 << 20, chunks=3)
    assert sum(check_mutants(schedule, seed=0, per_kind=2).values())
