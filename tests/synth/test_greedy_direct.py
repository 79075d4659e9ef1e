"""Greedy on links that nothing shares: bounds it must meet, causality by a plain replay, and its compiled parts."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsyn.bounds import chunk_bound
from collsyn.check.verify import verify_schedule
from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology
from collsyn.synth import greedy_direct, greedy_rate_kernels, greedy_step_kernels, greedy_tail_kernels
from collsyn.synth.greedy import GREEDY
from collsyn.synth.greedy_blocks import match_in_blocks
from collsyn.synth.greedy_direct import DirectSearch, Links
from collsyn.synth.problem import Options, Problem
from collsyn.topology.resolve import load_topology
from tests.support.topologies import build

GIB = 1 << 30
COSTS = "@bandwidth_gb_s=53.6870912,alpha_us=0.5,overhead=alpha"


def solve(topology: Topology | str, kind: str = "allgather", size: int = GIB, **more: object) -> Schedule:
    """The verified schedule of the direct search alone."""
    machine = load_topology(topology) if isinstance(topology, str) else topology
    schedule, _ = greedy_direct.solve(Problem(kind, machine, size, **more), Options())  # type: ignore[arg-type]
    assert schedule is not None
    verify_schedule(schedule).raise_if_bad()
    return schedule


@pytest.mark.parametrize("name", ["mesh:8x8", "torus:8x8", "torus:6x6", "torus:4x4x4", "hypercube:6", "hypercube:8"])
def test_one_chunk_a_rank_meets_the_bound_of_whole_chunks_on_equal_links(name: str) -> None:
    schedule = solve(name + COSTS, chunks_per_rank=1)
    bound = chunk_bound(schedule.collective, schedule.topology, GIB)
    assert schedule.finish_s == pytest.approx(bound.time_s, rel=1e-9)


def test_links_of_two_speeds_meet_the_bound_of_whole_chunks() -> None:
    schedule = solve("mesh:8x6@bandwidth_gb_s=107.3741824/53.6870912,alpha_us=0.5,overhead=alpha", chunks_per_rank=1)
    bound = chunk_bound(schedule.collective, schedule.topology, GIB)
    assert schedule.finish_s <= bound.time_s * 1.03


@pytest.mark.parametrize("kind", ["reducescatter", "allreduce"])
@pytest.mark.parametrize("name", ["torus:4x4", "mesh:4x3@bandwidth_gb_s=100/50,overhead=alpha"])
def test_reductions_are_as_quick_as_their_allgathers(name: str, kind: str) -> None:
    once_s = solve(name, chunks_per_rank=2).finish_s
    phases = 2 if kind == "allreduce" else 1
    assert solve(name, kind, chunks_per_rank=2).finish_s == pytest.approx(phases * once_s, rel=1e-9)


def test_a_reduction_on_one_way_links_goes_with_them() -> None:
    # Turned round, the links are others, so that each phase is solved for itself.
    topology = build(4, [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)])
    for kind in ("reducescatter", "allreduce"):
        solve(topology, kind, size=1 << 20, chunks_per_rank=2)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_random_networks_are_served_and_rows_stand_in_order(data: st.DataObject) -> None:
    ranks = data.draw(st.integers(2, 7))
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b and b != (a + 1) % ranks]
    chosen = data.draw(st.lists(st.sampled_from(pairs), max_size=8)) if pairs else []
    speeds = data.draw(st.sampled_from([[50.0], [100.0, 25.0], [100.0, 40.0, 7.0]]))
    edges = [(a, (a + 1) % ranks) for a in range(ranks)] + chosen
    widths = [data.draw(st.sampled_from(speeds)) for _ in edges]
    overhead = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    topology = build(ranks, [(a, b, width, 0.7) for (a, b), width in zip(edges, widths, strict=True)])
    topology = replace(topology, overhead_s=overhead * topology.alpha_s)
    kind = data.draw(st.sampled_from(["allgather", "reducescatter", "allreduce"]))
    size = data.draw(st.sampled_from([1 << 10, 1 << 26]))
    schedule = solve(topology, kind, size=size, chunks_per_rank=data.draw(st.sampled_from([None, 1, 3])))
    again = Schedule.build(
        schedule.collective, topology, schedule.size_bytes, schedule.routes, schedule.provenance, **schedule.columns()
    )
    assert all(np.array_equal(a, b) for a, b in zip(again.columns().values(), schedule.columns().values(), strict=True))


@pytest.mark.parametrize("lag", [1, 2])
def test_blocks_lose_at_most_a_few_steps_and_keep_to_what_is_known(lag: int) -> None:
    links, ranks = Links.of(load_topology("torus:16x16")), 256
    sent = match_in_blocks(links.into, links.src, np.arange(ranks), lag, 0)
    assert sent is not None and len(sent) <= 64 + 6
    check_steps(links, sent, lag)


@pytest.mark.parametrize("name", ["torus:8x8", "hypercube:6", "mesh:5x4", "torus:4x4x4"])
@pytest.mark.parametrize("lag", [1, 2])
def test_a_repaired_end_is_still_causal(name: str, lag: int) -> None:
    links = Links.of(load_topology(name))
    ranks = links.topology.num_ranks
    sent = np.full((200, len(links.src)), greedy_step_kernels.NOTHING, dtype=np.uint16)
    steps = greedy_step_kernels.match_steps(links.into, links.src, np.arange(ranks), lag, 3, sent)
    check_steps(links, sent[:steps], lag)
    ways = links.into, links.src, links.out_of, links.out_links
    for aim in range(-(-(ranks - 1) // int(np.diff(links.into).min())), steps):
        shorter = sent[:aim].copy()
        if greedy_tail_kernels.repair_tail(*ways, np.arange(ranks), lag, shorter):
            check_steps(links, shorter, lag)
            return


def check_steps(links: Links, sent: npt.NDArray[np.uint16], lag: int) -> None:
    """A plain replay: nothing is sent before it is there, nothing comes twice, all comes."""
    ranks = links.topology.num_ranks
    there = {(rank, rank): 0 for rank in range(ranks)}
    for step, row in enumerate(sent.tolist()):
        for link, chunk in enumerate(row):
            if chunk != greedy_step_kernels.NOTHING:
                source, end = int(links.src[link]), int(links.dst[link])
                assert there.get((source, chunk), step + 1) <= step
                assert (end, chunk) not in there
                there[end, chunk] = step + lag
    assert len(there) == ranks * ranks


def test_a_cut_off_rank_is_left_to_others() -> None:
    # Rank 2 hears of nobody; 0 and 1 of each other only.
    nothing = build(3, [(0, 1), (1, 0), (2, 0)])
    pairs = build(4, [(0, 1), (2, 3)], both=True)
    for topology in (nothing, pairs):
        links, ranks = Links.of(topology), topology.num_ranks
        sent = np.full((20, len(links.src)), greedy_step_kernels.NOTHING, dtype=np.uint16)
        assert greedy_step_kernels.match_steps(links.into, links.src, np.arange(ranks), 1, 0, sent) == -2
        assert match_in_blocks(links.into, links.src, np.arange(ranks), 1, 0) is None


def test_sends_are_put_in_order_by_start_chunk_and_link() -> None:
    random = np.random.default_rng(5)
    start_s = np.sort(random.integers(0, 6, 200) / 4)
    chunk, link = random.integers(0, 9, 200).astype(np.uint16), random.integers(0, 7, 200).astype(np.int32)
    order = greedy_rate_kernels.order_of_sends(start_s, chunk, link, 7, 9)
    assert order.tolist() == np.lexsort((np.arange(200), link, chunk, start_s)).tolist()


def test_the_bound_of_whole_chunks_counts_links_of_each_speed() -> None:
    # Rank 1 has links that take 1 s and 4 s a chunk: 8 and 2 come in 8 s, before that 7 and 1; 9 and 2 in 9 s.
    topology = build(2, [(0, 1, 1, 0.0), (0, 1, 0.25, 0.0), (1, 0, 100, 0.0)])
    links = Links.of(topology)
    assert links.bound_s(9, 1e9) == pytest.approx(8.0, rel=1e-9)
    assert links.bound_s(11, 1e9) == pytest.approx(9.0, rel=1e-9)
    assert links.fluid_bound_s(10e9) == pytest.approx(8.0)


@pytest.mark.parametrize(
    "problem",
    [
        Problem("broadcast", load_topology("ring:4"), 64),
        Problem("allgather", load_topology("switch:4"), 64),
        Problem("allgather", load_topology("ring:4"), 64, groups=((0, 1), (2, 3))),
        Problem("allgather", load_topology("ring:4"), 64, counts=[1, 2, 3, 4]),
        Problem("reducescatter", replace(load_topology("ring:4"), reduce_s_per_byte=np.full(4, 1e-10)), 64),
    ],
    ids=lambda problem: f"{problem.kind} on {problem.topology.name}",
)
def test_what_it_does_not_serve(problem: Problem) -> None:
    assert greedy_direct.obstacle(problem) is not None


def test_more_work_finds_no_worse_a_run() -> None:
    problem = Problem("allgather", load_topology("hetero3d:2x2x4@bandwidth_gb_s=200/100/50"), GIB)
    search = DirectSearch(problem, Options())
    run = search.solve()
    assert run is not None and run.finish_s >= search.links.fluid_bound_s(GIB / 16 * 15) * (1 - 1e-9)
    fixed = DirectSearch(replace(problem, chunks_per_rank=1), Options()).solve()
    assert fixed is not None and run.finish_s <= fixed.finish_s


def test_what_is_compiled_at_first_use_can_be_prepared() -> None:
    GREEDY.prepare("allgather")
    GREEDY.prepare("broadcast")
    for kernel in (greedy_step_kernels.match_steps, greedy_rate_kernels.match_rates, greedy_tail_kernels.repair_tail):
        assert len(kernel.signatures) == 1, "a second signature would be compiled in the middle of a search"
