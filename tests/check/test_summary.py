"""The numbers that scripts rely on, recomputed from their definitions."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from collsyn.check.simulate import retime
from collsyn.check.summary import plan_summary, steps, summary
from collsyn.model.bound import Bound
from collsyn.model.collective import make_collective
from collsyn.model.kinds import KINDS
from collsyn.model.metrics import algbw_gb_s, busbw_factor, busbw_gb_s
from tests.support.hand_plans import swap_plan
from tests.support.schedules import SIZE, by_hand, from_rows, ring_allgather
from tests.support.topologies import build, zoo

KEYS = {
    "schema",
    "collective",
    "topology",
    "num_ranks",
    "size_bytes",
    "method",
    "seed",
    "options",
    "finish_us",
    "plan_us",
    "bound_us",
    "bound_kind",
    "gap",
    "plan_gap",
    "chunk_bound_us",
    "chunk_gap",
    "tree_bound_us",
    "algbw_gb_s",
    "busbw_gb_s",
    "num_chunks",
    "chunks_per_rank",
    "num_sends",
    "steps",
    "synthesis_s",
    "verify_s",
    "model",
    "certificate",
    "file",
}


def with_bounds(schedule, fluid_s, chunk_s, kind="cut"):
    """The schedule with two bounds that need no computing."""
    return schedule.with_notes([Bound(fluid_s, kind, "fluid", {"kind": kind}), Bound(chunk_s, "path", "chunk", {})])


def test_all_keys_are_there_and_agree():
    schedule = with_bounds(ring_allgather(4, 2), 4e-6, 8e-6).with_notes(seed=5, options={"chunks_per_rank": 2})
    found = summary(schedule, plan_s=2e-5, synthesis_s=0.25, verify_s=0.125, file="a.json")
    assert set(found) == KEYS
    us = schedule.finish_s * 1e6
    assert found["finish_us"] == pytest.approx(us)
    assert (found["bound_us"], found["bound_kind"], found["certificate"]) == (pytest.approx(4), "cut", {"kind": "cut"})
    assert found["gap"] == pytest.approx(us / 4 - 1)
    assert found["chunk_bound_us"] == pytest.approx(8)
    assert found["chunk_gap"] == pytest.approx(us / 8 - 1)
    assert (found["plan_us"], found["plan_gap"]) == (pytest.approx(20), pytest.approx(4))
    assert found["algbw_gb_s"] == pytest.approx(SIZE / us * 1e-3)
    assert found["busbw_gb_s"] == pytest.approx(SIZE / us * 1e-3 * 3 / 4)
    assert (found["num_chunks"], found["chunks_per_rank"], found["num_sends"], found["num_ranks"]) == (8, 2, 24, 4)
    assert (found["method"], found["seed"], found["options"]) == ("by hand", 5, {"chunks_per_rank": 2})
    assert (found["collective"], found["topology"], found["model"]) == ("allgather", "ring 4", "none")
    assert (found["synthesis_s"], found["verify_s"], found["file"]) == (0.25, 0.125, "a.json")
    assert found["tree_bound_us"] is None


def test_bounds_are_computed_where_none_are_known():
    from collsyn.bounds import chunk_bound, fluid_bound

    schedule = by_hand("star broadcast")
    problem = (schedule.collective, schedule.topology, schedule.size_bytes)
    found = summary(schedule)
    assert found["bound_us"] == pytest.approx(fluid_bound(*problem).time_s * 1e6)
    assert found["chunk_bound_us"] == pytest.approx(chunk_bound(*problem, batched=True).time_s * 1e6)
    assert found["gap"] >= 0
    assert found["chunk_gap"] >= 0


def test_a_dual_bound_of_an_allreduce_is_the_tree_bound():
    schedule = with_bounds(by_hand("doubling allreduce"), 4e-6, 8e-6, kind="dual")
    assert summary(schedule)["tree_bound_us"] == pytest.approx(4)


def test_unknown_values_are_none():
    schedule = from_rows(make_collective("broadcast", 1), build(2, [(0, 1)]), [])
    schedule = replace(schedule, topology=build(1, [(0, 1)], switches=1))
    found = summary(with_bounds(schedule, 0.0, 0.0))
    assert (found["gap"], found["chunk_gap"], found["plan_us"], found["plan_gap"], found["steps"]) == (None,) * 5


def test_provenance_of_another_writer_may_have_any_shape():
    schedule = replace(by_hand("star broadcast"), provenance={"options": 3, "method": ["mine"]})
    assert summary(schedule)["options"] == {}


def test_steps_count_alpha_and_chunk():
    assert steps(ring_allgather(5, 1)) == pytest.approx(4)
    assert steps(ring_allgather(5, 2)) == pytest.approx(8)
    assert steps(by_hand("tree reduce")) == pytest.approx(2)
    assert steps(by_hand("direct alltoall")) == pytest.approx(1)
    schedule = ring_allgather(5, 1)
    unequal = replace(schedule.topology, alpha_s=schedule.topology.alpha_s * np.linspace(1, 2, 10))
    assert steps(retime(schedule, SIZE, unequal)) is None


def test_a_plan_has_the_same_keys():
    found = plan_summary(swap_plan(), zoo("pair"), 1000, 2e-6, file="p.json")
    assert set(found) == KEYS
    assert (found["finish_us"], found["gap"], found["num_sends"]) == (None, None, None)
    assert found["plan_us"] == pytest.approx(2)
    assert found["plan_gap"] == pytest.approx(2 / found["bound_us"] - 1)
    assert found["algbw_gb_s"] == pytest.approx(0.5)
    assert found["busbw_gb_s"] == pytest.approx(0.25)


def test_groups_count_as_many_ranks_as_they_have():
    topology = zoo("line")
    collective = make_collective("allgather", 4, groups=[(0, 1), (2, 3)])
    rows = [
        {"chunk": c, "src": c, "dst": c ^ 1, "route": 0, "start_s": 0.0} for c in range(4)
    ]  # routes are those of the ring of links 0-1 and 2-3
    for row in rows:
        row["route"] = int(np.flatnonzero((topology.src == row["src"]) & (topology.dst == row["dst"]))[0])
    found = summary(with_bounds(from_rows(collective, topology, rows), 1e-6, 1e-6))
    assert found["busbw_gb_s"] == pytest.approx(found["algbw_gb_s"] / 2)


def test_bandwidths_are_those_of_nccl_tests():
    assert algbw_gb_s(10**9, 0.5) == 2
    assert algbw_gb_s(1, 0.0) == float("inf")
    factors = {kind: Fraction(busbw_factor(kind, 8)).limit_denominator(100) for kind in KINDS}
    assert factors == {
        "allreduce": Fraction(14, 8),
        **dict.fromkeys(["allgather", "reducescatter", "alltoall", "alltoallv", "gather", "scatter"], Fraction(7, 8)),
        **dict.fromkeys(["broadcast", "reduce", "sendrecv", "custom"], Fraction(1)),
    }
    assert busbw_gb_s("allreduce", 4, 10**9, 1.0) == pytest.approx(1.5)
    assert busbw_gb_s("allgather", 1, 10**9, 0.0) == 0
