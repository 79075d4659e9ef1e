"""Rates that depend on the length of a message: what was measured is what is simulated."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.bounds import fluid_bound
from collsyn.check.simulate import retime
from collsyn.check.simulate_plan import simulate_plan
from collsyn.check.verify import verify_schedule
from collsyn.lower.lower import lower
from collsyn.model.collective import make_collective
from collsyn.model.plan import Op, Plan
from collsyn.model.profile import Estimate, LinkFit, Profile
from collsyn.model.size_rates import from_times, rates_at
from collsyn.model.topology import Topology
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import METHODS, method
from collsyn.synth.timing import Sends
from collsyn.topology.hops import hops

# A protocol that switches at 64 KiB, and caches that end at 4 MiB.
POINTS = ((1, 2e-6), (4096, 4e-6), (65536, 14e-6), (262144, 19e-6), (4 << 20, 190e-6), (16 << 20, 1.6e-3))


def exactly(value: float) -> Estimate:
    return Estimate(value, value, value)


def bent(num_ranks: int = 3, linear_src: int = -1) -> Topology:
    """A machine whose pairs take the times of POINTS, those of one source by a line."""
    links = tuple(
        LinkFit(src, dst, exactly(2e-6), exactly(1e-10), exactly(0.0), 0.1, src == linear_src, POINTS)
        for src in range(num_ranks)
        for dst in range(num_ranks)
        if src != dst
    )
    return Profile("bent", "host", num_ranks, links).topology()


def alone_s(topology: Topology, num_bytes: int) -> float:
    """Simulated time of one message from rank 0 to rank 1."""
    plan = Plan.build(
        make_collective("sendrecv", topology.num_ranks, 1),
        [(0, [{"op": Op.PUT, "peer": 1, "length": 1}])],
        [[]] * topology.num_ranks,
        [0] * topology.num_ranks,
    )
    return simulate_plan(plan, topology, num_bytes).finish_s


@pytest.mark.parametrize(("num_bytes", "seconds"), POINTS)
def test_a_message_alone_takes_what_was_measured(num_bytes: int, seconds: float) -> None:
    assert alone_s(bent(), num_bytes) == pytest.approx(seconds, rel=1e-9)


@given(st.integers(1, 1 << 26), st.integers(1, 1 << 26))
def test_longer_messages_take_longer(one: int, other: int) -> None:
    topology = bent()
    shorter, longer = sorted((one, other))
    assert alone_s(topology, shorter) <= alone_s(topology, longer) * (1 + 1e-12)


def test_between_lengths_logarithms_are_interpolated_and_ends_stay() -> None:
    assert rates_at(((100.0, 1e9), (10000.0, 4e9)), [1, 100, 1000, 10000, 1e6]) == pytest.approx(
        [1e9, 1e9, 2e9, 4e9, 4e9]
    )
    latency_s, rates = from_times([(1, 1e-6), (1000, 3e-6)], 5e-6)
    assert latency_s == pytest.approx(0.999e-6)
    assert [latency_s + size / rate for size, rate in rates] == pytest.approx([1e-6, 3e-6])


def test_a_machine_of_straight_lines_has_no_rates_by_size() -> None:
    assert bent(2, linear_src=0).size_rates == ()
    assert len(bent().size_rates) == 6


def test_parts_and_mirrors_of_a_topology_keep_their_rates() -> None:
    topology = bent(4)
    for other in (topology.subset([1, 3]), topology.reversed()):
        assert len(other.size_rates) == other.num_links
        assert set(other.size_rates) == set(topology.size_rates)


@pytest.mark.parametrize("kind", ["allgather", "reducescatter", "allreduce", "alltoall", "broadcast"])
@pytest.mark.parametrize("size", [1 << 10, 1 << 17, 1 << 23])
def test_every_method_makes_right_schedules_that_are_not_quicker_than_the_bound(kind: str, size: int) -> None:
    problem = Problem(kind, bent(4), size)
    for name in METHODS:
        synthesizer = method(name)
        if synthesizer.accepts(problem) is not None:
            continue
        schedule = synthesizer.synthesize(problem, Options(time_limit_s=2))
        verify_schedule(schedule).raise_if_bad()
        bound_s = fluid_bound(schedule.collective, problem.topology, size).time_s
        planned_s = simulate_plan(lower(schedule), problem.topology, size).finish_s
        assert min(schedule.finish_s, planned_s) >= bound_s * (1 - 1e-9)


def test_direct_exchanges_take_what_their_messages_take() -> None:
    topology = bent(4)
    schedule = method("direct").synthesize(Problem("alltoall", topology, 4 * 65536), Options())
    assert schedule.finish_s == pytest.approx(14e-6)
    again = retime(schedule, 4 * (16 << 20))
    verify_schedule(again).raise_if_bad()
    assert again.finish_s == pytest.approx(1.6e-3)
    assert np.all(again.messages.rate < topology.bandwidth.max())


def two_at_once(topology: Topology, num_bytes: int) -> float:
    """Simulated time of two messages from rank 0 to rank 1 that share its link."""
    puts = [{"op": Op.PUT, "peer": 1, "length": 1, "src_offset": at, "dst_offset": at} for at in range(2)]
    collective = make_collective("alltoallv", 2, counts=[[0, 2], [0, 0]])
    plan = Plan.build(collective, [(0, [put]) for put in puts], [[]] * 2, [0] * 2)
    return simulate_plan(plan, topology, 2 * num_bytes).finish_s


@pytest.mark.parametrize(("num_bytes", "seconds"), POINTS[1:])
def test_two_messages_at_once_load_their_link_as_one_after_the_other(num_bytes: int, seconds: float) -> None:
    topology = bent(2)
    latency_s = float(topology.alpha_s[0])
    finish_s = two_at_once(topology, num_bytes)
    assert finish_s == pytest.approx(latency_s + 2 * (seconds - latency_s), rel=1e-9)


def test_a_schedule_may_not_send_two_messages_at_once_that_load_more_than_a_link() -> None:
    topology = bent(2)
    schedule = method("direct").synthesize(Problem("alltoall", topology, 2 * 65536, chunks_per_rank=2), Options())
    verify_schedule(schedule).raise_if_bad()
    # Neither asks for more than its length lets it have, but both together load the link twice.
    together = schedule.with_times(np.zeros(schedule.num_sends), schedule.size_bytes)
    alone = replace(together, batch=np.full(schedule.num_sends, -1, np.int32))
    assert not verify_schedule(alone).ok


def test_synthesis_sends_messages_that_fill_a_link_one_after_the_other() -> None:
    topology = bent(2)
    latency_s = float(topology.alpha_s[0])
    sends = Sends(hops(topology).routes)
    collective = make_collective("alltoall", 2, 2)
    hop = int(np.flatnonzero(hops(topology).src == 0)[0])
    mine = [c for c in range(collective.num_chunks) if collective.contributors(c)[0] == 0 != collective.receivers(c)[0]]
    for chunk in mine:
        sends.add([chunk], 0, 1, hop)
    size_bytes = 4 * 65536
    schedule = sends.timed(collective, topology, size_bytes)
    lengths = collective.chunk_bytes(size_bytes)[mine]
    each_s = lengths / np.minimum(rates_at(topology.size_rates[0], lengths), topology.bandwidth[0])
    assert len(mine) == 2
    assert schedule.finish_s == pytest.approx(latency_s + each_s.sum())
