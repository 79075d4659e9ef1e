"""Use of links over time: against the simulator's own numbers, slow sums, and shares found by brute force."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.check.loads import Occupancy
from collsyn.check.simulate import utilisation
from collsyn.check.simulate_plan import Transfers, simulate_plan
from collsyn.lower.lower import lower
from collsyn.pictures.link_use import link_rows, plan_use, row_means, schedule_use
from collsyn.topology.resolve import load_topology
from tests.check.test_simulate_plan import pair, plan_of, put, random_plans
from tests.support.hand_plans import swap_plan
from tests.support.schedules import SCHEDULES, by_hand, full, random_schedules
from tests.support.topologies import ZOO, random_topologies, zoo

M = 1 << 20


def slow_bins(schedule, num_bins, span_s):
    """Average load of every link in every bin, by the overlap of each occupied time with each bin."""
    occupancy = Occupancy.of(schedule)
    edges = np.linspace(0, span_s, num_bins + 1)
    busy = np.zeros((schedule.topology.num_links, num_bins))
    for link, begin, end, share in zip(
        occupancy.link, occupancy.begin_s, occupancy.end_s, occupancy.share, strict=True
    ):
        overlap = np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin)
        busy[link] += share * np.maximum(overlap, 0) / (span_s / num_bins)
    return busy


@given(random_schedules(), st.integers(1, 50))
def test_bins_of_a_schedule_hold_what_its_messages_occupy(schedule, num_bins):
    use = schedule_use(schedule, num_bins)
    assert use.finish_s == schedule.finish_s
    assert use.span_s >= use.finish_s
    if use.span_s:
        assert use.busy == pytest.approx(slow_bins(schedule, num_bins, use.span_s), abs=1e-8)
    assert use.per_link == pytest.approx(utilisation(schedule), abs=1e-8)


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_bin_is_more_than_full(name):
    schedule = by_hand(name)
    assert schedule_use(schedule).busy.max() <= 1 + 1e-9
    assert schedule_use(schedule).busy.min() >= 0


def fair_rates(routes, bandwidth):
    """Max-min fair rates: the link with the least room for each of its users fills first."""
    rates, room = {}, dict(enumerate(bandwidth))
    while len(rates) < len(routes):
        rest = {flow: links for flow, links in routes.items() if flow not in rates}
        level, tight = min(
            (room[link] / sum(link in links for links in rest.values()), link)
            for link in {link for links in rest.values() for link in links}
        )
        for flow, links in rest.items():
            if tight in links:
                rates[flow] = level
                for link in links:
                    room[link] -= level
    return rates


def slow_plan_bins(plan, topology, times, size_bytes, num_bins):
    """The same for a plan: transfers begin when the simulator says, and last until their bytes and overhead passed."""
    num_bytes = plan.columns["length"] * (size_bytes / plan.total_units)
    transfers = Transfers.of(plan, topology, num_bytes)
    rest, links = {}, {}
    for row in transfers.rows.tolist():
        links[row] = transfers.routes[transfers.route[row]].tolist()
        slowest = topology.beta_s_per_byte[links[row]].max()
        rest[row] = num_bytes[row] + topology.overhead_s[links[row]].max() / slowest
    waiting = sorted(rest, key=lambda row: times.start_s[row])
    edges = np.linspace(0, times.finish_s, num_bins + 1)
    busy, under_way, now = np.zeros((topology.num_links, num_bins)), {}, 0.0
    while waiting or under_way:
        while waiting and times.start_s[waiting[0]] <= now * (1 + 1e-12):
            row = waiting.pop(0)
            under_way[row] = links[row]
        rates = fair_rates(under_way, topology.bandwidth.tolist())
        moments = [now + rest[row] / rate for row, rate in rates.items()]
        following = min(moments + [times.start_s[row] for row in waiting[:1]])
        overlap = np.maximum(np.minimum(edges[1:], following) - np.maximum(edges[:-1], now), 0) / edges[1]
        for row, rate in rates.items():
            rest[row] -= rate * (following - now)
            for link in links[row]:
                busy[link] += rate * topology.beta_s_per_byte[link] * overlap
        under_way = {row: way for row, way in under_way.items() if rest[row] > 1e-6}
        now = following
    return busy


@given(random_plans(), st.integers(1, 40))
def test_bins_of_a_plan_hold_fair_shares(drawn, num_bins):
    plan, topology, size_bytes = drawn
    times = simulate_plan(plan, topology, size_bytes)
    use = plan_use(plan, times, size_bytes, num_bins)
    assert use.busy.max(initial=0) <= 1 + 1e-8
    if times.finish_s:
        assert use.busy == pytest.approx(slow_plan_bins(plan, topology, times, size_bytes, num_bins), abs=1e-6)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_plan_uses_each_link_as_much_as_the_simulator_says(name):
    schedule = by_hand(name)
    plan = lower(schedule)
    times = simulate_plan(plan, schedule.topology, M)
    use = plan_use(plan, times, M)
    assert (use.per_link >= times.utilisation - 1e-9).all()
    if not schedule.topology.overhead_s.any():
        assert use.per_link == pytest.approx(times.utilisation, rel=1e-9)


def test_a_transfer_that_shares_has_half_the_link_and_then_all_of_it():
    topology = pair(gb_s=1, alpha_us=0)
    plan = plan_of(2, [(0, [put(1, 3)]), (0, [put(1, 1)])], chunks=4)
    times = simulate_plan(plan, topology, 4000)
    use = plan_use(plan, times, 4000, 4)
    assert times.finish_s == pytest.approx(4e-6)
    assert use.busy == pytest.approx(np.array([[1, 1, 1, 1], [0, 0, 0, 0]]))
    slower = plan_of(2, [(0, [put(1, 1), {"op": 0}]), (1, [put(0, 4)])], chunks=4)
    use = plan_use(slower, simulate_plan(slower, topology, 4000), 4000, 4)
    assert use.busy == pytest.approx(np.array([[1, 0, 0, 0], [1, 1, 1, 1]]))


def test_a_plan_that_sends_nothing_uses_nothing():
    plan = plan_of(2, [(0, [{"op": 0}])])
    assert not plan_use(plan, simulate_plan(plan, pair(), M), M).busy.any()


@given(random_topologies(), st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_rows_hold_every_link_once_and_the_busiest_first(topology, seed, max_rows):
    per_link = np.random.default_rng(seed).integers(0, 5, topology.num_links) / 4
    rows = link_rows(topology, per_link, max_rows)
    assert sorted(link for row in rows for link in row.links) == list(range(topology.num_links))
    assert len(rows) <= max_rows
    groups = [row.group for row in rows]
    assert len(set(groups)) == 1 + sum(a != b for a, b in pairwise(groups)) or not rows
    for group in set(groups):
        use = [per_link[link] for row in rows if row.group == group for link in row.links]
        assert use == sorted(use, reverse=True)


@pytest.mark.parametrize("name", ZOO)
def test_links_of_a_row_are_alike(name):
    topology = zoo(name)
    for row in link_rows(topology, np.zeros(topology.num_links), 12):
        if row.group != "others":
            assert np.ptp(topology.bandwidth[list(row.links)]) < 1e-3 * topology.bandwidth[row.links[0]]
            assert len({topology.is_switch(int(topology.src[link])) for link in row.links}) == 1


def test_links_that_fit_have_names_and_others_are_counted_by_kind():
    assert [row.group for row in link_rows(full(3), np.arange(6))][:2] == ["2->1", "2->0"]
    rows = link_rows(load_topology("dgx-a100:2"), np.zeros(64))
    assert {len(row.links) for row in rows} == {2}
    assert rows[0].group == "rank to nvswitch, 300 GB/s"


def test_rows_show_the_mean_of_their_links():
    plan = swap_plan()
    topology = load_topology("full:2")
    use = plan_use(plan, simulate_plan(plan, topology, M), M, 5)
    (row,) = link_rows(topology, use.per_link, 1)
    assert row_means([row], use.busy) == pytest.approx(use.busy.mean(axis=0, keepdims=True))
