"""Reversal, composition and pruning of schedules."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from collsyn.check.verify import verify_schedule
from collsyn.model.schedule import REDUCE, Schedule
from collsyn.model.topology import Topology
from collsyn.synth.problem import REVERSED, Options, Problem
from collsyn.synth.table import method
from collsyn.synth.transform import by_composition, by_reversal, compose, reverse, useful
from tests.support.topologies import ZOO, build, random_topologies, zoo

SIZE = 1 << 20
FORWARD = ("allgather", "broadcast", "scatter", "gather")


def paths(problem: Problem) -> Schedule:
    return method("paths").synthesize(problem, Options())


@given(random_topologies(equal=True))
def test_reversal_keeps_the_finish_where_overheads_are_equal(topology: Topology) -> None:
    for kind in FORWARD:
        problem = Problem(REVERSED[kind], topology, SIZE)
        forward = paths(problem.reversed)
        backward = reverse(forward, problem.collective(), topology)
        verify_schedule(backward).raise_if_bad()
        assert backward.finish_s == pytest.approx(forward.finish_s, rel=1e-12)


@given(random_topologies())
def test_reversal_is_right_on_any_topology(topology: Topology) -> None:
    for kind in FORWARD:
        schedule = by_reversal(Problem(REVERSED[kind], topology, SIZE), paths)
        verify_schedule(schedule).raise_if_bad()
        assert schedule.topology is topology


@given(random_topologies(equal=True))
def test_reversing_copies_twice_gives_the_schedule_back(topology: Topology) -> None:
    problem = Problem("scatter", topology, SIZE)
    forward = paths(problem)
    turned = topology.reversed()
    back = reverse(reverse(forward, problem.reversed.collective(), turned), problem.collective(), topology)
    for name in ("chunk", "src", "dst"):
        order, same = (np.lexsort((s.dst, s.src, s.chunk)) for s in (forward, back))
        assert (getattr(forward, name)[order] == getattr(back, name)[same]).all()
    assert back.finish_s == pytest.approx(forward.finish_s, rel=1e-12)


def test_reducing_costs_time_where_ranks_say_so() -> None:
    topology = replace(zoo("line"), reduce_s_per_byte=np.full(4, 1e-11))
    problem = Problem("reduce", topology, SIZE)
    free = by_reversal(Problem("reduce", zoo("line"), SIZE), paths)
    slower = by_reversal(problem, paths)
    verify_schedule(slower).raise_if_bad()
    assert slower.finish_s == pytest.approx(free.finish_s + 3 * SIZE * 1e-11, rel=1e-12)


@pytest.mark.parametrize("name", ZOO)
def test_composition_is_no_slower_than_with_a_barrier(name: str) -> None:
    problem = Problem("allreduce", zoo(name), SIZE)
    scatter, gather = paths(problem.as_kind("reducescatter")), paths(problem.as_kind("allgather"))
    both = compose(scatter, gather, problem.collective())
    verify_schedule(both).raise_if_bad()
    assert both.finish_s <= (scatter.finish_s + gather.finish_s) * (1 + 1e-12)
    assert both.num_sends == scatter.num_sends + gather.num_sends


@pytest.mark.parametrize("size_bytes", [1, SIZE])
@given(random_topologies())
def test_composition_waits_for_links_that_overheads_hold(size_bytes: int, topology: Topology) -> None:
    schedule = by_composition(
        Problem("allreduce", topology, size_bytes),
        lambda problem: by_reversal(problem, paths) if problem.kind == "reducescatter" else paths(problem),
    )
    verify_schedule(schedule).raise_if_bad()


def test_phases_overlap_where_links_are_unequal() -> None:
    problem = Problem("allreduce", zoo("genkautz:3x7"), SIZE)
    both = by_composition(problem, paths)
    phases = [paths(problem.as_kind(kind)).finish_s for kind in ("reducescatter", "allgather")]
    assert both.finish_s < 0.99 * sum(phases)


def test_composition_takes_the_chunks_of_its_first_phase() -> None:
    ring = method("two-way-ring")
    schedule = ring.synthesize(Problem("allreduce", zoo("occupying ring"), SIZE), Options())
    assert schedule.collective.chunks_per_rank == 2
    assert schedule.collective.kind == "allreduce"


def test_useful_drops_repetition_and_dead_ends() -> None:
    topology = build(3, [(0, 1), (1, 2), (0, 2)], both=True)
    collective = Problem("gather", topology, SIZE, root=2).collective()
    # Chunk 0 goes to 2 (wanted), to 1 and on to 2 again (too late); chunk 1 to 0, where nobody wants it, and to 2.
    columns = {
        "chunk": [0, 0, 0, 1, 1],
        "src": [0, 0, 1, 1, 1],
        "dst": [2, 1, 2, 0, 2],
        "route": [4, 0, 2, 1, 2],
        "start_s": [0.0, 0.0, 2e-5, 0.0, 0.0],
    }
    schedule = Schedule.build(collective, topology, SIZE, [[link] for link in range(6)], **columns)
    verify_schedule(schedule).raise_if_bad()
    kept = useful(schedule)
    verify_schedule(kept).raise_if_bad()
    assert sorted(zip(kept.chunk.tolist(), kept.src.tolist(), kept.dst.tolist(), strict=True)) == [(0, 0, 2), (1, 1, 2)]
    assert useful(kept) is kept


def test_a_relay_adds_to_nothing() -> None:
    # Ranks 0, 1 and 3 reduce to 3; rank 2, on the way, has no part of its own.
    topology = build(4, [(0, 2), (1, 2, 10), (2, 3)], both=True)
    problem = Problem("reduce", topology, SIZE, groups=((0, 1, 3),), root=2)
    schedule = by_reversal(problem, paths)
    verify_schedule(schedule).raise_if_bad()
    assert (schedule.op == REDUCE).all()
    assert sorted(zip(schedule.src.tolist(), schedule.dst.tolist(), strict=True)) == [(0, 2), (1, 2), (2, 3)]
