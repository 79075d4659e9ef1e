"""Plans that run ahead: nothing is waited for at their begin, and no call disturbs the one before it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.check.races import races
from collsyn.check.simulate_plan import simulate_plan
from collsyn.errors import InputError
from collsyn.export.table import executable
from collsyn.lower.lower import lower
from collsyn.model.fields import parse_document
from collsyn.model.plan import Buffer, Op, Plan
from collsyn.model.plan_file import plan_from_fields, plan_text
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from tests.support.plans import assert_no_races, assert_right, without
from tests.support.topologies import random_topologies
from tests.support.trees import NAMED, any_collective, tree_schedule
from tests.support.unrolled import unrolled

CASES = [
    ("full:4", "allgather", "direct"),
    ("full:4", "allreduce", "one-shot"),
    ("full:4", "alltoall", "direct"),
    ("full:4", "broadcast", "direct"),
    ("full:4", "gather", "direct"),
    ("ring:4", "allreduce", "ring"),
    ("switch:5", "reducescatter", "direct"),
    ("dgx1", "allreduce", "doubling"),
    ("ndv2:2", "allgather", "hierarchical"),
]


def plan_of(topology: str, kind: str, by: str, size_bytes: int = 1 << 10, ahead: bool | None = True) -> Plan:
    problem = Problem(kind, load_topology(topology), size_bytes)
    return lower(method(by).synthesize(problem, Options()), ahead=ahead)


def between_calls(plan: Plan, sets: int) -> list[str]:
    """Races between calls. The first call of all has nobody before it; that others have begun is for `races` to say."""
    found = races(unrolled(plan, 4, sets), limit=1000)
    return [text for text in found if "may not have begun" not in text and "may have ended" not in text]


@pytest.mark.parametrize(("topology", "kind", "by"), CASES)
def test_calls_do_not_disturb_each_other(topology, kind, by):
    plan = plan_of(topology, kind, by)
    assert plan.runs_ahead
    assert_no_races(plan)
    assert_right(plan, sizes=(1, 50))
    assert between_calls(plan, 2) == []


@pytest.mark.parametrize(("topology", "kind", "by"), CASES[:5])
def test_with_one_set_of_scratch_they_would(topology, kind, by):
    assert between_calls(plan_of(topology, kind, by), 1) != []


@given(
    topology=random_topologies(max_switches=0),
    kind=st.sampled_from(NAMED),
    chunks=st.integers(1, 2),
    seed=st.integers(0, 10**6),
    reduce_by=st.sampled_from(["put", "get"]),
)
def test_of_random_trees(topology, kind, chunks, seed, reduce_by):
    schedule = tree_schedule(any_collective(kind, topology.num_ranks, chunks), topology, seed)
    plan = lower(schedule, reduce_by=reduce_by, ahead=True)
    assert_no_races(plan)
    assert_right(plan, sizes=(1, 2 + seed % 50), seeds=(seed, seed + 1))
    assert between_calls(plan, 2) == []


def test_plans_that_wait_at_their_begin_disturb_nobody_either():
    # The oracle has nothing to say of those that are known to be right.
    for topology, kind, by in CASES[:6]:
        plan = plan_of(topology, kind, by, ahead=False)
        assert not plan.runs_ahead and between_calls(plan, 1) == []


@pytest.mark.parametrize(("topology", "kind", "by"), CASES[:3])
def test_a_small_call_takes_the_time_of_its_schedule(topology, kind, by):
    machine = load_topology(topology)
    schedule = method(by).synthesize(Problem(kind, machine, 1 << 10), Options())
    plan, waits = lower(schedule), lower(schedule, ahead=False)
    assert plan.runs_ahead
    assert simulate_plan(plan, machine, 1 << 10).finish_s == pytest.approx(schedule.finish_s)
    assert simulate_plan(waits, machine, 1 << 10).finish_s == pytest.approx(schedule.finish_s + 0.5e-6)


def test_a_large_call_is_not_copied_out_of_scratch():
    assert not plan_of("full:4", "allgather", "direct", 1 << 30, ahead=None).runs_ahead


def test_who_waits_for_a_rank_at_the_end_waits_at_the_begin_no_more():
    # The root of a broadcast hears of nobody; before it ends it must.
    plan = plan_of("full:4", "broadcast", "direct")
    root = plan.columns["op"][: int(plan.channel_ptr[plan.channels_of(0)[-1] + 1])].tolist()
    assert root.index(Op.PUT) < root.index(Op.WAIT)
    waits = [row for row in np.flatnonzero(plan.columns["op"] == Op.WAIT).tolist() if row < len(root)]
    assert len(waits) == 3
    for row in waits:
        found = races(without(plan, row))
        assert any("may not have begun the call when rank 0 ends it" in text for text in found), found


def test_only_scratch_may_be_touched_early():
    plan = plan_of("full:4", "allgather", "direct")
    puts = plan.columns["op"] == Op.PUT
    assert (plan.columns["dst_buffer"][puts] == Buffer.SCRATCH).all()
    found = races(replace(plan, runs_ahead=False))
    assert any("may not have begun the call" in text for text in found)


def test_files_say_so_and_exports_refuse():
    plan = plan_of("full:4", "allgather", "direct")
    read = plan_from_fields(parse_document(plan_text(plan).encode(), "p.json"))
    assert read.runs_ahead and plan_text(read) == plan_text(plan)
    assert "runs_ahead" not in plan_text(plan_of("full:4", "allgather", "direct", ahead=False))
    with pytest.raises(InputError, match=r"runs_ahead, which other runtimes do not; export its schedule"):
        executable(plan)
    document = plan_text(plan).replace('"runs_ahead": true', '"runs_ahead": 2')
    with pytest.raises(InputError, match="runs_ahead"):
        plan_from_fields(parse_document(document.encode(), "p.json"))
