"""Chunks that travel together get neighbouring numbers; nothing else changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.check.verify import verify_schedule
from collsyn.model.arrays import Rows
from collsyn.model.collective import make_collective
from collsyn.model.schedule import Schedule
from collsyn.synth.neighbours import numbered_by_company
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from tests.support.topologies import zoo

SIZE = 1 << 20


def runs(schedule: Schedule) -> int:
    """Stretches of neighbouring chunks in all messages together."""
    chunks = [np.sort(schedule.chunk[list(rows)]) for rows in schedule.messages.rows.tuples()]
    return sum(1 + int((np.diff(of_message) > 1).sum()) for of_message in chunks)


def two_trees(chunks: int, seed: int) -> Schedule:
    """A broadcast on full:4: two halves of the chunks, drawn at random, go two ways, each as one message a hop."""
    topology = zoo("full:4")
    collective = make_collective("broadcast", 4, chunks_per_rank=chunks)
    shuffled = np.random.default_rng(seed).permutation(collective.num_chunks)
    hop = {(int(src), int(dst)): link for link, (src, dst) in enumerate(zip(topology.src, topology.dst, strict=True))}
    columns: dict[str, list[int]] = {name: [] for name in ("chunk", "src", "dst", "route", "batch")}
    starts: list[float] = []
    ways = [((0, 1), (1, 2), (2, 3)), ((0, 3), (3, 2), (2, 1))]
    for number, (half, way) in enumerate(zip(np.array_split(shuffled, 2), ways, strict=True)):
        for step, (src, dst) in enumerate(way):
            columns["chunk"] += half.tolist()
            for name, value in (("src", src), ("dst", dst), ("route", hop[src, dst]), ("batch", 3 * number + step)):
                columns[name] += [value] * len(half)
            starts += [float(step)] * len(half)
    routes = Rows.of([[link] for link in range(topology.num_links)])
    return Schedule.build(collective, topology, SIZE, routes, {}, start_s=starts, **columns)


@given(chunks=st.integers(2, 24), seed=st.integers(0, 99))
def test_two_groups_that_keep_apart_become_two_stretches(chunks: int, seed: int) -> None:
    schedule = two_trees(chunks, seed)
    verify_schedule(schedule).raise_if_bad()
    numbered = numbered_by_company(schedule)
    verify_schedule(numbered).raise_if_bad()
    assert runs(numbered) == 6


@pytest.mark.parametrize("kind", ["allgather", "broadcast", "alltoall", "reducescatter", "allreduce"])
def test_greedy_schedules_keep_their_times_and_stay_right(kind: str) -> None:
    schedule = method("greedy").synthesize(Problem(kind, zoo("two boxes"), SIZE), Options(time_limit_s=1))
    again = numbered_by_company(schedule)
    verify_schedule(again).raise_if_bad()
    assert again.finish_s == schedule.finish_s
    assert np.array_equal(again.start_s, schedule.start_s)


def test_schedules_of_single_chunks_stay_as_they_are() -> None:
    schedule = method("ring").synthesize(Problem("allgather", zoo("full:4"), SIZE), Options())
    assert numbered_by_company(schedule) is schedule
