"""Schedules as columns: canonical order, messages and their times against the words of the time model."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.model.arrays import Rows
from collsyn.model.bound import Bound
from collsyn.model.collective import make_collective
from collsyn.model.schedule import COPY, OWN, REDUCE, VALUE, RouteCosts, Schedule
from tests.support.mutate import edited, writable
from tests.support.schedules import SCHEDULES, SIZE, by_hand, from_rows, random_schedules, ring_allgather
from tests.support.topologies import build, random_topologies


def rows_of(schedule):
    """Rows without their batch number, which only says who travels together."""
    columns = [values.tolist() for name, values in schedule.columns().items() if name != "batch"]
    return list(zip(*columns, strict=True))


@given(random_schedules(), st.randoms(use_true_random=False))
def test_rows_in_any_order_make_the_same_schedule(schedule, random):
    order = list(range(schedule.num_sends))
    random.shuffle(order)
    columns = {name: values[order] for name, values in writable(schedule).items()}
    names = {old: new for new, old in enumerate(random.sample(range(schedule.num_sends + 1), schedule.num_sends + 1))}
    columns["batch"] = np.array([names.get(b, -1) if b >= 0 else -1 for b in columns["batch"].tolist()])
    shuffled = edited(schedule, columns)
    assert rows_of(shuffled) == rows_of(schedule)
    ties = len(set(zip(schedule.start_s, schedule.chunk, schedule.dst, schedule.src, strict=True))) < len(order)
    assert ties or shuffled.batch.tolist() == schedule.batch.tolist()


def test_columns_left_out_take_defaults_and_none_can_be_written():
    topology = build(2, [(0, 1)])
    schedule = Schedule.build(
        make_collective("broadcast", 2), topology, 8, [[0]], chunk=[0], src=[0], dst=[1], route=[0], start_s=[0.0]
    )
    defaults = {"rate": 0.0, "op": COPY, "batch": -1, "src_slot": VALUE, "dst_slot": VALUE}
    for name, value in defaults.items():
        assert getattr(schedule, name).tolist() == [value]
    for values in schedule.columns().values():
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1


def test_a_batch_of_one_is_no_batch_and_others_are_numbered_by_appearance():
    schedule = ring_allgather(4, 2)
    batch = np.full(schedule.num_sends, -1)
    batch[[5, 3]], batch[7], batch[[1, 2]] = 40, 30, 50
    built = edited(schedule, writable(schedule) | {"batch": batch})
    assert built.batch[[1, 2, 3, 5, 7]].tolist() == [0, 0, 1, 1, -1]


def message_times(schedule):
    """(rows, bytes, rate, busy, arrival, done) of every message, spelled out."""
    topology, lengths = schedule.topology, schedule.collective.chunk_bytes(schedule.size_bytes)
    found, groups = [], {}
    for row, batch in enumerate(schedule.batch.tolist()):
        groups.setdefault(("alone", row) if batch < 0 else batch, []).append(row)
    for rows in groups.values():
        links = schedule.routes.tuples()[schedule.route[rows[0]]]
        num_bytes = sum(lengths[schedule.chunk[row]] for row in rows)
        bandwidth = min((1 / topology.beta_s_per_byte[link] for link in links), default=np.inf)
        rate = schedule.rate[rows[0]] or bandwidth
        alpha = sum(topology.alpha_s[link] for link in links)
        overhead = max((topology.overhead_s[link] for link in links), default=0)
        transfer = num_bytes / rate
        arrival = schedule.start_s[rows[0]] + alpha + transfer
        reduces = any(schedule.op[row] == REDUCE for row in rows)
        spent = topology.reduce_s_per_byte[schedule.dst[rows[0]]] * num_bytes if reduces else 0
        found.append((rows, num_bytes, rate, overhead + transfer, arrival, arrival + spent))
    return found


@given(random_schedules(), st.booleans())
def test_messages_follow_the_time_model(schedule, reduction_costs):
    if reduction_costs:
        costs = np.full(schedule.topology.num_ranks, 3e-12)
        schedule = replace(schedule, topology=replace(schedule.topology, reduce_s_per_byte=costs))
    messages, expected = schedule.messages, message_times(schedule)
    assert len(messages) == len(expected)
    assert [rows.tolist() for rows in (messages.rows[m] for m in range(len(messages)))] == [e[0] for e in expected]
    for at, name in enumerate(("num_bytes", "rate", "busy_s", "arrival_s", "done_s"), start=1):
        assert getattr(messages, name).tolist() == pytest.approx([e[at] for e in expected], rel=1e-12)
    assert schedule.finish_s == pytest.approx(max((e[5] for e in expected), default=0), rel=1e-12)


@given(random_topologies(max_switches=3), st.randoms(use_true_random=False))
def test_route_costs_of_any_table(topology, random):
    table = [random.choices(range(topology.num_links), k=random.randint(0, 5)) for _ in range(6)]
    costs = RouteCosts.of(topology, Rows.of(table))
    alpha, beta = topology.alpha_s, topology.beta_s_per_byte
    assert costs.alpha_s.tolist() == pytest.approx([alpha[route].sum() for route in table])
    assert costs.overhead_s.tolist() == [topology.overhead_s[route].max(initial=0) for route in table]
    assert costs.rate.tolist() == [1 / beta[route].max() if route else np.inf for route in table]
    assert costs.before_s.tolist() == pytest.approx(
        [alpha[route[:i]].sum() for route in table for i in range(len(route))]
    )


def test_merging_at_a_rank_takes_no_time():
    schedule = by_hand("one shot allreduce")
    local = schedule.messages.src == schedule.messages.dst
    assert (schedule.messages.done_s[local] == schedule.messages.start_s[local]).all()
    assert (schedule.messages.busy_s[local] == 0).all()


def test_an_empty_schedule_finishes_at_once():
    schedule = from_rows(make_collective("broadcast", 1), build(2, [(0, 1)]), [])
    assert (schedule.num_sends, len(schedule.messages), schedule.finish_s) == (0, 0, 0.0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_with_times_changes_times_only(name):
    schedule = by_hand(name)
    moved = schedule.with_times(schedule.start_s + 1e-6, SIZE * 2)
    assert moved.size_bytes == 2 * SIZE
    assert moved.start_s.tolist() == (schedule.start_s + 1e-6).tolist()
    assert moved.chunk.tolist() == schedule.chunk.tolist()
    assert moved.provenance == schedule.provenance


def test_notes_are_added_and_bounds_replaced():
    schedule = by_hand("tree reduce")
    bound = Bound(1e-6, "cut", "fluid", {})
    noted = schedule.with_notes([bound], seed=3)
    assert noted.bounds == (bound,)
    assert dict(noted.provenance) == {**schedule.provenance, "seed": 3}
    assert noted.with_notes(seed=4).bounds == (bound,)
    assert schedule.bounds == ()


def test_slots_and_ops_have_fixed_numbers_in_files():
    assert (COPY, REDUCE, VALUE, OWN) == (0, 1, 0, -1)
