"""Switches that copy and reduce: what counts as one message, times in closed form, bounds, mutants, and real data."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsyn.bounds import fluid_bound
from collsyn.check.loads import Occupancy
from collsyn.check.simulate import retime
from collsyn.check.verify import verify_schedule
from collsyn.lower.lower import lower
from collsyn.model.schedule import COPY, REDUCE, Schedule
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from tests.support.mutate import check_mutants
from tests.support.running import assert_runs
from tests.support.topologies import build

KINDS = ("allreduce", "reducescatter", "allgather")


def star(ranks=4, multicast=True, reduction=True, boxes=1):
    """Boxes of ranks on a switch of 100 GB/s each, ranks of equal number joined by direct links of 25 GB/s."""
    n = ranks * boxes
    links = [(r, n + r // ranks, 100, 0.35, 0.3) for r in range(n)]
    links += [(r, s, 25, 1.0, 0.3) for r in range(n) for s in range(r + ranks, n, ranks)]
    able = [False] * n + [True] * boxes
    topology = build(n, links, switches=boxes, both=True)
    return replace(topology, multicast=np.array(able) & multicast, reduction=np.array(able) & reduction)


def solve(problem):
    """The verified schedule of an accepted problem."""
    assert method("in-network").accepts(problem) is None
    schedule = method("in-network").synthesize(problem, Options())
    verify_schedule(schedule).raise_if_bad()
    return schedule


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("boxes", [1, 2, 3])
def test_schedules_are_right_and_so_are_their_plans(kind, boxes):
    schedule = solve(Problem(kind, star(3, boxes=boxes), 1 << 16))
    assert sum(check_mutants(schedule, seed=boxes, per_kind=2).values())
    assert_runs(lower(schedule), 5 * schedule.collective.total_units)
    assert_runs(lower(schedule), 37)


def test_one_chunk_each_takes_a_round_of_ranks():
    alpha, overhead, beta = 0.7e-6, 0.3e-6, 1 / 100e9
    gathered = solve(Problem("allgather", star(4), 4000, chunks_per_rank=1))
    # Every link but one is busy with every shard: ranks send one after the other.
    assert gathered.finish_s == pytest.approx(3 * (overhead + 1000 * beta) + alpha + 1000 * beta)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("dgx-h100:1", 0.93),
        *(pytest.param(f"dgx-h100:{n}", 0.94, marks=pytest.mark.slow) for n in ("2", "4@overhead=none")),
    ],
)
def test_large_allreduces_come_close_to_the_bound_that_no_others_reach(name, part):
    topology = load_topology(name)
    problem = Problem("allreduce", topology, 1 << 30)
    schedule = solve(problem)
    assert fluid_bound(schedule.collective, topology, 1 << 30).time_s >= part * schedule.finish_s
    # Without copies and sums in switches every byte crosses the links of a box nearly twice.
    plain = replace(topology, multicast=np.zeros(0, np.bool_), reduction=np.zeros(0, np.bool_))
    assert fluid_bound(schedule.collective, plain, 1 << 30).time_s > schedule.finish_s


@pytest.mark.parametrize("able", [{"multicast": False}, {"reduction": False}])
def test_without_able_switches_the_same_sends_overload_links(able):
    schedule = solve(Problem("allreduce", star(4), 1 << 20))
    assert not verify_schedule(replace(schedule, topology=star(4, **able))).ok
    refused = method("in-network").accepts(Problem("allreduce", star(4, **able), 1 << 20))
    assert refused == "needs every rank on the multicast and reduction switches of one box"


def by_hand(op, starts, chunks=(0, 0), slots=(0, 0)):
    """Two messages from rank 0 to ranks 1 and 2 (copies), or the other way round (sums)."""
    topology = star(3)
    up = {r: int(np.flatnonzero((topology.src == r) & (topology.dst == 3))[0]) for r in range(3)}
    down = {r: int(np.flatnonzero((topology.src == 3) & (topology.dst == r))[0]) for r in range(3)}
    problem = Problem("allgather" if op == COPY else "reducescatter", topology, 3000)
    routes = [(up[0], down[1]), (up[0], down[2])] if op == COPY else [(up[1], down[0]), (up[2], down[0])]
    columns = {"chunk": chunks, "route": [0, 1], "start_s": starts, "op": [op, op], "dst_slot": slots}
    columns |= {"src": [0, 0], "dst": [1, 2]} if op == COPY else {"src": [1, 2], "dst": [0, 0]}
    return Schedule.build(problem.collective(1), topology, 3000, routes, **columns)


@pytest.mark.parametrize("op", [COPY, REDUCE])
def test_what_is_one_message(op):
    assert len(Occupancy.of(by_hand(op, [0, 0])).link) == 3
    assert len(Occupancy.of(by_hand(op, [0, 1e-9])).link) == 4
    assert len(Occupancy.of(by_hand(op, [0, 0], chunks=[0, 1])).link) == 4


def test_sums_into_other_slots_and_copies_into_one_are_not_one_message():
    assert len(Occupancy.of(by_hand(REDUCE, [0, 0], slots=[0, 1])).link) == 4
    plain = by_hand(REDUCE, [0, 0])
    assert len(Occupancy.of(replace(plain, op=np.full(2, COPY, np.uint8))).link) == 4


@given(size=st.integers(1, 1 << 24), boxes=st.integers(1, 2), kind=st.sampled_from(KINDS))
@settings(max_examples=15)
def test_retimed_they_stay_together(size, boxes, kind):
    schedule = solve(Problem(kind, star(3, boxes=boxes), 1 << 20))
    other = retime(schedule, size)
    verify_schedule(other).raise_if_bad()
    assert len(Occupancy.in_step(other)[0]) == len(Occupancy.in_step(schedule)[0]) > 0
    assert retime(schedule, 1 << 20).finish_s <= schedule.finish_s


def test_why_it_refuses():
    accepts = method("in-network").accepts
    assert accepts(Problem("alltoall", star(), 100)) == "makes no alltoall"
    assert accepts(Problem("allgather", star(), 100, groups=((0, 1), (2, 3)))) == "serves all ranks with equal parts"
    slower = star()
    beta = slower.beta_s_per_byte.copy()
    beta[0] *= 2
    assert accepts(Problem("allgather", replace(slower, beta_s_per_byte=beta), 100)).startswith("needs links of equal")
