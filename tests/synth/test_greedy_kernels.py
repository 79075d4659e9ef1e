"""The parts of the compiled loops against plain Python: heap, choice, links shared by flows, blame."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsyn.synth import event_kernels, greedy_kernels
from collsyn.synth.greedy_machine import MachineModel
from collsyn.synth.greedy_relays import with_relays
from collsyn.topology.hops import hops
from collsyn.topology.resolve import load_topology
from tests.support.topologies import build, ring_edges


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 1.5, 2.0]), st.booleans()), max_size=60))
@settings(max_examples=50, deadline=None)
def test_queue_gives_events_by_time_and_then_in_the_order_they_came(steps: list[tuple[float, bool]]) -> None:
    queue, mirror = event_kernels.empty_queue(1, 60), []
    for number, (time_s, take) in enumerate(steps):
        event_kernels.post(queue, time_s, event_kernels.RELEASE, number)
        heapq.heappush(mirror, (time_s, number))
        if take:
            expected = heapq.heappop(mirror)
            assert event_kernels.next_event(queue) == (expected[0], event_kernels.RELEASE, expected[1])
    while mirror:
        expected = heapq.heappop(mirror)
        assert event_kernels.next_event(queue) == (expected[0], event_kernels.RELEASE, expected[1])
    assert queue.state[0] == 0


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0]), max_size=30))
@settings(max_examples=50, deadline=None)
def test_ready_hops_are_sorted_stably(keys: list[float]) -> None:
    queue = event_kernels.empty_queue(30, 1)
    event_kernels.begin_instant(queue)
    event_kernels.make_ready(queue, np.arange(len(keys)))
    queue.keys[: len(keys)] = keys
    event_kernels.sort_ready(queue)
    assert queue.ready[: len(keys)].tolist() == sorted(range(len(keys)), key=lambda hop: keys[hop])


def test_draws_are_spread_over_the_unit_interval() -> None:
    random = event_kernels.generator(7)
    drawn = np.array([event_kernels.draw(random) for _ in range(4000)])
    assert drawn.min() >= 0 and drawn.max() < 1
    assert np.histogram(drawn, bins=4, range=(0, 1))[0] == pytest.approx(1000, abs=150)
    assert event_kernels.draw(event_kernels.generator(7)) == drawn[0] != event_kernels.draw(event_kernels.generator(8))


def test_regions_are_what_fast_links_join() -> None:
    machine = MachineModel.of(load_topology("dgx-a100:2")).machine(False, 0.0, 1.0)
    enters = np.diff(machine.region_ptr)
    other_box = machine.src // 8 != machine.dst // 8
    assert (enters[other_box] == 1).all() and (enters[~other_box] == 0).all()
    box_of_region = {int(machine.member[r]): r // 8 for r in range(16)}
    first = machine.regions[machine.region_ptr[:-1][other_box]]
    assert [box_of_region[int(region)] for region in first] == (machine.dst[other_box] // 8).tolist()


def test_a_ring_has_no_regions_and_full_rates() -> None:
    model = MachineModel.of(load_topology("ring:6"))
    assert not model.has_regions and not model.unequal and not model.has_fitted
    assert model.distance[0].tolist() == [0, 1, 2, 3, 2, 1]
    assert (model.asked_rates(True) == 0).all()


def test_a_link_of_two_flows_takes_two_and_wakes_the_third() -> None:
    # Three ranks with lanes of 10 through one link of 20 to a fourth, whose lane is wide.
    topology = build(4, [(r, 4, 10) for r in range(3)] + [(4, 5, 20), (5, 3, 100)], switches=2)
    model = MachineModel.of(topology)
    machine = model.machine(False, 0.0, 1.0)
    links, queue = event_kernels.free_links(machine), event_kernels.empty_queue(3, 3)
    into_3 = [h for h in range(len(machine.src)) if machine.dst[h] == 3]
    for number, hop in enumerate(into_3[:2]):
        assert event_kernels.can_start(machine, links, queue, hop, 0.0, 0.0)
        event_kernels.start(machine, links, queue, hop, number, 10e9, 0.0)
    assert not event_kernels.can_start(machine, links, queue, into_3[2], 0.0, 0.0)
    assert queue.wake_s[into_3[2]] == pytest.approx(1.0)
    assert event_kernels.can_start(machine, links, queue, into_3[2], 1.0, 1e-9)


def spread_once(
    name: str, limit_s: float = np.inf
) -> tuple[greedy_kernels.Task, tuple[int, float, greedy_kernels.Log, int]]:
    """One run of an allgather of a second's worth of bytes a rank, one chunk each."""
    topology = load_topology(name)
    n = topology.num_ranks
    have = np.eye(n, dtype=np.uint8)
    task = greedy_kernels.Task(np.full(n, 50e9), have, np.ones((n, n), dtype=np.uint8))
    rules = greedy_kernels.Rules(1 << 30, 0.0, 0.0, limit_s, False, 1e-6, 1)
    machine = MachineModel.of(topology).machine(False, 0.0, 1.0)
    return task, greedy_kernels.match(machine, task, rules, np.zeros((0, 0)))


def test_a_limit_leaves_over_what_would_come_later() -> None:
    # In a ring of 6 the farthest chunk takes three steps.
    assert spread_once("ring:6")[1][0] == 0
    left, finish_s, log, _ = spread_once("ring:6", limit_s=2.5)[1]
    assert left == 6 and finish_s <= 2.5 and len(log.rows) == 24


@pytest.mark.parametrize("limit_s", [np.inf, 2.5])
def test_blame_falls_on_what_was_left_over_or_on_all_that_led_to_the_last(limit_s: float) -> None:
    task, (left, finish_s, log, _) = spread_once("ring:6", limit_s)
    machine = MachineModel.of(load_topology("ring:6")).machine(False, 0.0, 1.0)
    bias = np.full((6, 6), 8.0)
    greedy_kernels.blame(machine, task, log, left, finish_s, bias, 4.0, 0.5)
    blamed = {(int(rank), int(chunk)) for rank, chunk in np.argwhere(bias == 8.0)}
    assert set(np.unique(bias).tolist()) == {4.0, 8.0}
    opposite = {(rank, (rank + 3) % 6) for rank in range(6)}
    assert blamed == opposite if left else blamed > opposite


def test_relays_are_added_only_where_members_do_not_reach_each_other() -> None:
    line = hops(build(4, [(0, 1), (1, 2), (2, 3)], both=True))
    have, want = np.zeros((4, 2), dtype=np.uint8), np.zeros((4, 2), dtype=np.uint8)
    have[0, :] = 1
    want[[0, 3], 0] = 1  # chunk 0 goes from 0 to 3 over 1 and 2
    want[[0, 1], 1] = 1  # chunk 1 to a neighbour
    assert with_relays(line, np.ones(2), have, want).T.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]


def test_relays_take_turns() -> None:
    # Two equal ways from 0 to 3, over 1 or over 2.
    square = hops(build(4, [(0, 1), (0, 2), (1, 3), (2, 3), *ring_edges(4)]))
    have, want = np.zeros((4, 2), dtype=np.uint8), np.zeros((4, 2), dtype=np.uint8)
    have[0], want[3] = 1, 1
    relays = with_relays(square, np.full(2, 1e6), have, want)
    assert sorted(relays[1:3].T.tolist()) == [[0, 1], [1, 0]]
