"""Retiming keeps schedules right and in order, meets closed forms and makes none later; utilisation and timeline."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.check import simulate as simulating
from collsyn.check.loads import Occupancy
from collsyn.check.replay import time_tolerance
from collsyn.check.simulate import retime, timeline, utilisation
from collsyn.check.verify import verify_schedule
from collsyn.errors import Infeasible, InputError
from collsyn.model.collective import custom_collective, make_collective
from collsyn.model.schedule import REDUCE
from tests.support.bruteforce import why_invalid
from tests.support.mutate import edited, writable
from tests.support.schedules import SCHEDULES, SIZE, by_hand, from_rows, link_of, random_schedules, ring, ring_allgather
from tests.support.topologies import build

SIZES = [1, 1000, SIZE, 1 << 30]


def other_costs(topology, seed):
    """The same wiring at random costs."""
    rng = np.random.default_rng(seed)
    alpha = topology.alpha_s * np.exp(rng.normal(0, 1, topology.num_links))
    return replace(
        topology,
        name="other",
        alpha_s=alpha,
        overhead_s=alpha * rng.choice([0.0, 0.5, 1.0]),
        beta_s_per_byte=topology.beta_s_per_byte * np.exp(rng.normal(0, 1, topology.num_links)),
    )


def assert_right(schedule):
    """Checker and brute force accept it."""
    report = verify_schedule(schedule)
    assert report.ok, report
    assert why_invalid(schedule) is None


def late(schedule, factor):
    """The schedule with all starts spread out, and so still right."""
    return edited(schedule, writable(schedule) | {"start_s": schedule.start_s * factor})


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_retimed_schedules_are_right(name, size_bytes):
    schedule = by_hand(name)
    assert_right(retime(schedule, size_bytes))
    assert_right(retime(schedule, size_bytes, other_costs(schedule.topology, size_bytes)))


@given(random_schedules(), st.sampled_from(SIZES), st.integers(0, 2**32 - 1))
def test_retimed_random_schedules_are_right_and_not_later(schedule, size_bytes, seed):
    same = retime(schedule, schedule.size_bytes)
    assert_right(same)
    assert same.finish_s <= schedule.finish_s
    again = retime(same, same.size_bytes)
    assert same.finish_s * (1 - 1e-6) <= again.finish_s <= same.finish_s
    elsewhere = retime(same, size_bytes, other_costs(schedule.topology, seed))
    assert_right(elsewhere)
    assert elsewhere.size_bytes == size_bytes
    assert elsewhere.num_sends == schedule.num_sends


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_late_schedule_is_pulled_together(name):
    schedule = retime(by_hand(name), SIZE)
    pulled = retime(late(schedule, 3.0), SIZE)
    assert pulled.finish_s == pytest.approx(schedule.finish_s, rel=1e-7)


@given(random_schedules(), st.integers(0, 2**32 - 1))
def test_messages_keep_their_turns_on_links_and_wait_for_the_same_data(schedule, seed):
    retimed = retime(schedule, 12345, other_costs(schedule.topology, seed))
    name = [tuple(row) for row in zip(*(schedule.columns()[k].tolist() for k in ("chunk", "src", "dst")), strict=True)]
    new_name = [
        tuple(row) for row in zip(*(retimed.columns()[k].tolist() for k in ("chunk", "src", "dst")), strict=True)
    ]

    def turns(timed, names):
        occupancy, order = Occupancy.of(timed), {}
        for m, link, begin, end in zip(
            occupancy.message, occupancy.link.tolist(), occupancy.begin_s, occupancy.end_s, strict=True
        ):
            order.setdefault(link, []).append((begin, end, names[timed.messages.rows[m][0]]))
        return {link: sorted(uses) for link, uses in order.items()}

    tol = time_tolerance(schedule)
    before, after = turns(schedule, name), turns(retimed, new_name)
    assert before.keys() == after.keys()
    for link, uses in before.items():
        if all(end <= begin + tol for (_, end, _), (begin, _, _) in pairwise(uses)):
            assert [who for *_, who in uses] == [who for *_, who in after[link]]


def test_closed_forms():
    n, size = 6, 3_000_000
    topology = ring(n, 40, 0.7)
    schedule = retime(ring_allgather(n, 1), size, topology)
    assert schedule.finish_s == pytest.approx((n - 1) * (0.7e-6 + size / n / 40e9), rel=1e-12)
    # Through the switch every message takes overhead and bytes of the root's link in turn, the last one both alphas.
    broadcast = retime(by_hand("star broadcast"), size)
    assert broadcast.finish_s == pytest.approx(3 * (0.3e-6 + size / 100e9) + 0.7e-6 + size / 100e9, rel=1e-12)
    # Two levels of a tree: both take the whole size, one after the other.
    assert retime(by_hand("tree reduce"), size).finish_s == pytest.approx(2 * (0.5e-6 + size / 50e9), rel=1e-12)
    gather = retime(by_hand("shared gather"), size)
    assert gather.finish_s == pytest.approx(0.7e-6 + size / 5 / 25e9, rel=1e-12)


def test_time_spent_reducing_is_waited_for():
    schedule = by_hand("tree reduce")
    slow = replace(schedule.topology, reduce_s_per_byte=np.full(7, 1e-12))
    retimed = retime(schedule, SIZE, slow)
    assert_right(retimed)
    step = 0.5e-6 + SIZE / 50e9 + SIZE * 1e-12
    assert retimed.finish_s == pytest.approx(2 * step, rel=1e-12)


@given(random_schedules(), st.sampled_from([2.0, 8.0]))
def test_more_bandwidth_divides_the_time_of_the_bytes(schedule, factor):
    topology = schedule.topology
    bare = replace(topology, alpha_s=topology.alpha_s * 0, overhead_s=topology.overhead_s * 0)
    fast = replace(bare, beta_s_per_byte=bare.beta_s_per_byte / factor)
    slow_s, fast_s = (retime(schedule, SIZE, costs).finish_s for costs in (bare, fast))
    assert slow_s == pytest.approx(fast_s * factor, rel=1e-12)


@given(random_schedules())
def test_scaling_all_costs_scales_all_times(schedule):
    slow = replace(
        schedule.topology,
        **{name: getattr(schedule.topology, name) * 4 for name in ("alpha_s", "overhead_s", "beta_s_per_byte")},
    )
    once, twice = retime(schedule, SIZE), retime(schedule, SIZE, slow)
    assert twice.finish_s == pytest.approx(4 * once.finish_s, rel=1e-6)


def test_shared_links_stay_within_bandwidth_when_only_they_become_slower():
    schedule = by_hand("shared gather")
    topology = schedule.topology
    down = link_of(topology, 5, 0)
    beta = topology.beta_s_per_byte.copy()
    beta[down] *= 2
    retimed = retime(schedule, SIZE, replace(topology, beta_s_per_byte=beta))
    assert_right(retimed)
    assert retimed.rate.tolist() == pytest.approx([12.5e9] * 4)
    beta[down] /= 4
    assert retime(schedule, SIZE, replace(topology, beta_s_per_byte=beta)).rate.tolist() == pytest.approx([25e9] * 4)


def test_flows_that_filled_a_trunk_slow_down_with_it():
    schedule = by_hand("tapered gather")
    assert schedule.rate.tolist() == [0.0] * 8
    for factor, rate in ((2, 12.5e9), (1, 0.0), (0.5, 0.0)):
        beta = schedule.topology.beta_s_per_byte.copy()
        beta[0] *= factor
        retimed = retime(schedule, SIZE, replace(schedule.topology, beta_s_per_byte=beta))
        assert_right(retimed)
        assert retimed.rate.tolist() == pytest.approx([rate] * 8)


def test_a_message_alone_uses_what_its_route_now_carries():
    topology = build(2, [(0, 2, 10), (2, 1, 100)], switches=1)
    collective = make_collective("broadcast", 2)
    row = {"chunk": 0, "src": 0, "dst": 1, "route": 0, "start_s": 0.0}
    schedule = from_rows(collective, topology, [row], routes=[[0, 1]])
    faster = replace(topology, beta_s_per_byte=np.array([1e-11, 1e-10]))
    retimed = retime(schedule, SIZE, faster)
    assert retimed.rate.tolist() == [0.0]
    assert retimed.finish_s == pytest.approx(1e-6 + SIZE * 1e-10)


def test_topologies_wired_otherwise_are_refused_by_name():
    schedule = ring_allgather(5, 1)
    with pytest.raises(InputError) as error:
        retime(schedule, SIZE, ring(6))
    assert "topology ring 6" in str(error.value)
    assert "ring 5" in str(error.value)


def crossing(alpha_us):
    """Two ranks swap and join contributions over one link that both directions share."""
    edges = [
        (0, 2, 10, alpha_us),
        (1, 2, 10, alpha_us),
        (2, 3, 10, alpha_us),
        (3, 0, 10, alpha_us),
        (3, 1, 10, alpha_us),
    ]
    topology = build(2, edges, switches=2)
    collective = custom_collective(2, [(1, 0, 0, [0, 1], [0, 1])], True, {"kind": "custom"})
    transfer = 1000 / 10e9
    rows = [
        {"chunk": 0, "src": 0, "dst": 1, "route": 0, "start_s": 0.0, "op": REDUCE},
        {"chunk": 0, "src": 1, "dst": 0, "route": 1, "start_s": transfer, "op": REDUCE},
    ]
    return from_rows(collective, topology, rows, 1000, [[0, 2, 4], [1, 2, 3]])


def test_data_that_no_longer_crosses_in_flight_is_told():
    schedule = crossing(1.0)
    assert_right(schedule)
    assert_right(retime(schedule, 1 << 20))
    with pytest.raises(Infeasible, match="data that crossed in flight would meet"):
        retime(schedule, 1000, crossing(0.0).topology)


def overtaking():
    """Two messages share two links; the one that is first on the one is second on the other, by a shorter way."""
    # 0 -> 4, 1 -> 4, 4 -> 5 shared, 5 -> 6 -> 7 long or 5 -> 7 short, 7 -> 8 shared, 8 -> 2, 8 -> 3
    edges = [(0, 4), (1, 4), (4, 5), (5, 6, 50, 9.0), (6, 7), (5, 7), (7, 8), (8, 2), (8, 3)]
    topology = build(4, edges, switches=5)
    collective = custom_collective(4, [(1, 0, 0, [0], [2]), (1, 0, 0, [1], [3])], False, {"kind": "custom"})
    rows = [
        {"chunk": 0, "src": 0, "dst": 2, "route": 0, "start_s": 0.0},
        {"chunk": 1, "src": 1, "dst": 3, "route": 1, "start_s": 1e-6},
    ]
    return from_rows(collective, topology, rows, 1000, [[0, 2, 3, 4, 6, 7], [1, 2, 5, 6, 8]])


def test_turns_that_no_times_can_keep_become_the_order_of_starts():
    schedule = overtaking()
    assert_right(schedule)
    small = retime(schedule, 1000)
    first, second = Occupancy.of(small).only(Occupancy.of(small).link == 6).begin_s
    assert second < first
    large = retime(schedule, 1 << 24)
    assert_right(large)
    first, second = Occupancy.of(large).only(Occupancy.of(large).link == 6).begin_s
    assert first < second


def test_messages_come_to_a_shared_link_just_as_the_one_before_leaves():
    # Heads take 1 and 4 us to the link into rank 2; the second message may start before the first.
    topology = build(3, [(0, 3, 10, 1.0), (1, 3, 10, 4.0), (3, 2, 10, 1.0)], switches=1)
    collective = custom_collective(3, [(1, 0, 0, [0], [2]), (1, 0, 0, [1], [2])], False, {"kind": "custom"})
    rows = [
        {"chunk": 0, "src": 0, "dst": 2, "route": 0, "start_s": 0.0},
        {"chunk": 1, "src": 1, "dst": 2, "route": 1, "start_s": 1.0},
    ]
    transfer = 50_000 / 10e9
    retimed = retime(from_rows(collective, topology, rows, 50_000, [[0, 2], [1, 2]]), 50_000)
    assert_right(retimed)
    assert retimed.start_s.tolist() == pytest.approx([0.0, 1e-6 + transfer - 4e-6])


def test_a_copy_stays_before_what_joins_it():
    schedule = by_hand("collected reduce")
    alpha = schedule.topology.alpha_s.copy()
    alpha[link_of(schedule.topology, 1, 0)] = 50e-6
    assert_right(retime(schedule, SIZE, replace(schedule.topology, alpha_s=alpha)))


def test_a_copy_stays_behind_what_it_replaces():
    # Rank 2 gets a part from 0, and later from 1 the whole that replaces it.
    topology = build(3, [(0, 1), (0, 2), (1, 2)])
    collective = custom_collective(3, [(1, 0, 0, [0, 1], [2])], True, {"kind": "custom"})
    step = 0.5e-6 + SIZE / 50e9
    rows = [
        {"chunk": 0, "src": 0, "dst": 2, "route": 1, "start_s": 0.0},
        {"chunk": 0, "src": 0, "dst": 1, "route": 0, "start_s": 0.0, "op": REDUCE},
        {"chunk": 0, "src": 1, "dst": 2, "route": 2, "start_s": step},
    ]
    schedule = from_rows(collective, topology, rows)
    assert_right(schedule)
    assert_right(retime(schedule, SIZE, replace(topology, alpha_s=np.array([0.5e-6, 90e-6, 0.5e-6]))))


def test_merges_that_follow_each_other_at_a_rank_keep_their_order():
    # Slot 2 goes into slot 1 and that into the value, later; rows of one instant would go by slot, the other way.
    topology = build(2, [(1, 0)])
    collective = custom_collective(2, [(1, 0, 0, [0, 1], [0])], True, {"kind": "custom"})
    step = 0.5e-6 + SIZE / 50e9
    local = {"chunk": 0, "src": 0, "dst": 0, "route": 1}
    rows = [
        {"chunk": 0, "src": 1, "dst": 0, "route": 0, "start_s": 0.0, "dst_slot": 2},
        {**local, "start_s": step, "src_slot": 2, "dst_slot": 1},
        {**local, "start_s": 2 * step, "src_slot": 1, "op": REDUCE},
        {**local, "start_s": 3 * step},
    ]
    schedule = from_rows(collective, topology, rows, routes=[[0], []])
    assert_right(schedule)
    retimed = retime(schedule, SIZE)
    assert_right(retimed)
    assert retimed.finish_s == pytest.approx(step, rel=1e-7)


@given(random_schedules(), st.sampled_from(SIZES), st.integers(0, 2**32 - 1))
def test_the_order_of_starts_gives_right_schedules_too(schedule, size_bytes, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulating, "_settled", lambda *given: None)
        assert_right(retime(schedule, size_bytes, other_costs(schedule.topology, seed)))


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_order_of_starts_holds_back_what_must_not_be_done_early(name, monkeypatch):
    schedule = by_hand(name)
    monkeypatch.setattr(simulating, "_settled", lambda *given: None)
    spread = np.random.default_rng(0).permutation(np.geomspace(0.05, 20, schedule.topology.num_links))
    uneven = replace(schedule.topology, beta_s_per_byte=schedule.topology.beta_s_per_byte * spread)
    assert_right(retime(schedule, 1 << 30, uneven))


def test_utilisation_is_busy_time_over_the_finish():
    schedule = ring_allgather(5, 1)
    used = utilisation(schedule)
    byte_time = 4 * SIZE / 5 / 50e9
    right = [link_of(schedule.topology, r, (r + 1) % 5) for r in range(5)]
    assert used[right].tolist() == pytest.approx([byte_time / schedule.finish_s] * 5)
    assert used.sum() == pytest.approx(5 * byte_time / schedule.finish_s)
    gather = by_hand("shared gather")
    down, up = link_of(gather.topology, 5, 0), link_of(gather.topology, 1, 5)
    busy = 0.3e-6 + SIZE / 5 / 25e9
    assert utilisation(gather)[[down, up]].tolist() == pytest.approx(np.array([1, 0.25]) * busy / gather.finish_s)


@given(random_schedules())
def test_no_link_is_used_more_than_always(schedule):
    used = utilisation(schedule)
    assert (used >= 0).all()
    # Overhead on the last link may end a little after the last arrival.
    assert (used <= 1 + schedule.topology.overhead_s.max() / max(schedule.finish_s, 1e-12)).all()


def test_utilisation_without_messages():
    schedule = from_rows(make_collective("broadcast", 1), build(2, [(0, 1)]), [])
    assert utilisation(schedule).tolist() == [0.0]


def test_timeline_shows_who_sends_which_chunk_when():
    schedule = ring_allgather(4, 1)
    text = timeline(schedule, [0, 3], width=12)
    us = schedule.finish_s * 1e6
    assert text.splitlines() == [
        f"     |0 us{f'{us:.4g} us':>8}|",
        "0->1 |000033332222|",
        "3->0 |333322221111|",
    ]


def test_timeline_of_a_window_batches_and_overlaps():
    schedule = by_hand("star broadcast")
    step = (schedule.start_s.max()) / 3
    lines = timeline(schedule, [0], (step, 1.99 * step), width=10).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["0->1", "0->2"]
    assert lines[2].endswith("|++++++++++|")
    assert lines[1].startswith("0->1 |+")
    assert lines[1].endswith(".|")


def test_timeline_leaves_out_what_stays_at_its_rank():
    assert "0->0" not in timeline(by_hand("one shot allreduce"))
