"""Rates that depend on what a call works on: what was measured is what is simulated."""

from pathlib import Path

import numpy as np
import pytest

from collsyn.check.simulate import retime
from collsyn.check.simulate_plan import simulate_plan
from collsyn.check.verify import verify_schedule
from collsyn.lower.lower import lower
from collsyn.model.collective import make_collective
from collsyn.model.profile import Estimate, LinkFit, PortFit, Profile
from collsyn.model.schedule_file import read_schedule, write_schedule
from collsyn.model.topology import Topology
from collsyn.model.working_set import at_size, working_set_bytes
from collsyn.portfolio.auto import best_schedule
from collsyn.profiling.plans import all_at_once, reduce_all_at_once
from collsyn.synth.problem import Options, Problem
from collsyn.topology.resolve import load_topology

# Bytes of a message, microseconds of an exchange of all with all: caches end at 4 MiB.
PARTS = (1, 65536, 1 << 20, 4 << 20, 16 << 20)
TIMES_US = {2: (1.0, 9.0, 101.0, 1001.0, 9001.0), 4: (2.0, 30.0, 400.0, 4000.0, 30000.0)}
# What reductions take besides.
BEYOND_US = (2.0, 20.0, 500.0, 5000.0)


def exactly(value: float) -> Estimate:
    return Estimate(value, value, value)


def machine(num_ranks: int) -> Topology:
    """Ranks whose ports take those times, of which their pairs' latency is half a microsecond."""
    links = tuple(
        LinkFit(a, b, exactly(0.5e-6), exactly(1e-12), exactly(0.0), 0.0, True, ((1, 1e-6), (1024, 2e-6)))
        for a in range(num_ranks)
        for b in range(num_ranks)
        if a != b
    )
    points = tuple((num_ranks * part, us * 1e-6) for part, us in zip(PARTS, TIMES_US[num_ranks], strict=True))
    port = PortFit(exactly(points[0][1] - 0.5e-6), exactly(1e-10), 0.5, False, points)
    reduced = tuple(((num_ranks - 1) * part, us * 1e-6) for part, us in zip(PARTS[1:], BEYOND_US, strict=True))
    return Profile("bent", "host", num_ranks, links, (port,) * num_ranks, 1e-10, reduce_points=reduced).topology()


@pytest.mark.parametrize("kind", ["allgather", "reducescatter", "alltoall", "allreduce", "broadcast", "gather"])
@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_a_working_set_is_what_a_rank_holds_and_wants(kind: str, num_ranks: int) -> None:
    collective = make_collective(kind, num_ranks, 3)
    most = max(
        sum(int(collective.units[chunk]) * (int(rank in collective.contributors(chunk))
            + int(rank in collective.receivers(chunk))) for chunk in range(collective.num_chunks))
        for rank in range(num_ranks)
    )  # fmt: skip
    assert working_set_bytes(collective, 600) == pytest.approx(600 * most / collective.total_units)


def test_an_allgather_works_on_its_part_and_the_whole() -> None:
    assert working_set_bytes(make_collective("allgather", 4), 4096) == 5 * 1024
    assert working_set_bytes(make_collective("reducescatter", 4), 4096) == 5 * 1024
    assert working_set_bytes(make_collective("allreduce", 4), 4096) == 8192


def test_machines_of_one_rate_stay_what_they_are() -> None:
    topology = load_topology("dgx1")
    assert at_size(topology, make_collective("allgather", 8), 1 << 20) is topology


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("place", range(1, len(PARTS)))
def test_an_exchange_takes_what_was_measured(num_ranks: int, place: int) -> None:
    size = num_ranks * PARTS[place]
    simulated_s = simulate_plan(all_at_once(num_ranks, 1), machine(num_ranks), size).finish_s
    # Of its messages, the last one's latency is that of a copy within the rank at least.
    assert simulated_s * 1e6 == pytest.approx(TIMES_US[num_ranks][place], rel=0.08 if place == 1 else 0.01)


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("place", range(1, len(PARTS)))
def test_reducing_takes_that_much_longer_than_moving(num_ranks: int, place: int) -> None:
    latency_us = TIMES_US[num_ranks][0]
    moved_us = (TIMES_US[num_ranks][place] - latency_us) * (num_ranks - 1) / num_ranks
    plan = reduce_all_at_once(num_ranks)
    simulated_s = simulate_plan(plan, machine(num_ranks), num_ranks * PARTS[place]).finish_s
    rounds_us = latency_us * num_ranks + 1
    expected_us = moved_us + BEYOND_US[place - 1]
    assert expected_us * (1 - 1e-6) <= simulated_s * 1e6 <= expected_us + rounds_us


def test_a_reduction_holds_its_port_where_copies_do() -> None:
    # Two ranks that reduce and send at once take as long as one after the other.
    topology = machine(2)
    schedule = best_schedule(Problem("allreduce", topology, 8 << 20), Options(), "ring")
    times = simulate_plan(lower(schedule), topology, 8 << 20)
    beta = times.topology.beta_s_per_byte.max()
    work_s = (4 << 20) * (2 * beta + float(times.topology.reduce_s_per_byte[0]))
    assert times.finish_s >= work_s * (1 - 1e-9)


def test_schedules_are_timed_anew_for_what_they_work_on() -> None:
    small = best_schedule(Problem("allgather", machine(4), 4 * 65536), Options(), "direct")
    large = retime(small, 64 << 20)
    verify_schedule(large).raise_if_bad()
    again = retime(large, 4 * 65536)
    assert again.finish_s == pytest.approx(small.finish_s)
    assert large.topology.beta_s_per_byte.max() > 2 * small.topology.beta_s_per_byte.max()
    assert np.array_equal(again.topology.beta_s_per_byte, small.topology.beta_s_per_byte)
    assert large.topology.working_set_rates == machine(4).working_set_rates


def test_parts_and_mirrors_keep_their_rates() -> None:
    topology = machine(4)
    for other in (topology.subset([1, 3]), topology.reversed()):
        assert len(other.working_set_rates) == other.num_links
        assert other.reduce_working_set_rates == topology.reduce_working_set_rates


@pytest.mark.parametrize("kind", ["allgather", "allreduce"])
@pytest.mark.parametrize("size", [3 * 65536, 5 << 20])
def test_what_is_proven_of_a_schedule_holds_of_its_file(tmp_path: Path, kind: str, size: int) -> None:
    schedule = best_schedule(Problem(kind, machine(2), size), Options())
    assert schedule.bounds
    write_schedule(schedule, tmp_path / "s.json")
    again = read_schedule(tmp_path / "s.json")
    verify_schedule(again).raise_if_bad()
    assert retime(again, size).finish_s == pytest.approx(schedule.finish_s, rel=1e-9)
