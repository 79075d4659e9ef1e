"""Alltoall by symmetry: orbits against brute force, finishes against what links carry."""

import numpy as np
import pytest

from collsyn.bounds import fluid_bound
from collsyn.check.verify import verify_schedule
from collsyn.model.schedule import Schedule
from collsyn.synth.problem import Options, Problem
from collsyn.synth.translated import TRANSLATED, orbits_of
from collsyn.topology.resolve import load_topology
from collsyn.topology.symmetry import group_elements
from tests.support.topologies import build

REGULAR = ("ring:5", "torus:3x4", "hypercube:3", "full:4", "switch:6", "hetero3d:2x2x3", "dgx-a100:2", "dgx-h100:2")


def solved(name: str, size: int = 1 << 26, chunks: int | None = None) -> Schedule:
    problem = Problem("alltoall", load_topology(name), size, chunks)
    assert TRANSLATED.accepts(problem) is None
    schedule = TRANSLATED.synthesize(problem, Options())
    verify_schedule(schedule).raise_if_bad()
    return schedule


@pytest.mark.parametrize("name", REGULAR)
def test_orbits_of_hops_are_those_of_the_whole_group(name: str) -> None:
    topology = load_topology(name)
    orbits, elements = orbits_of(topology), group_elements(topology)
    assert orbits is not None and elements is not None
    # One element moves rank 0 to each rank, and hops that leave the same rank are moved to hops of the same orbits.
    assert sorted(element[0] for element in elements) == list(range(topology.num_ranks))
    joined = {}
    for rank in range(topology.num_ranks):
        for orbit, hop in enumerate(orbits.moved[rank].tolist()):
            joined[rank, orbit] = hop
    from collsyn.topology.hops import hops

    table = hops(topology)
    for element in elements:
        for orbit in range(orbits.moved.shape[1]):
            here, there = joined[0, orbit], joined[element[0], orbit]
            assert element[int(table.dst[here])] == table.dst[there]


@pytest.mark.parametrize("name", ["mesh:2x3", "dgx1", "petersen", "ndv2:2"])
def test_other_topologies_are_refused(name: str) -> None:
    reason = TRANSLATED.accepts(Problem("alltoall", load_topology(name), 1 << 20))
    assert reason is not None and "symmetries" in reason


def test_two_rings_side_by_side_are_refused() -> None:
    assert TRANSLATED.accepts(Problem("alltoall", build(4, [(0, 1), (1, 0), (2, 3), (3, 2)]), 1 << 20)) is not None


@pytest.mark.parametrize(
    ("name", "share"),
    [("ring:8", 0.99), ("torus:4x4", 0.99), ("torus:3x5", 0.99), ("hypercube:4", 0.99), ("switch:8", 0.99),
     ("hetero3d:2x2x4@bandwidth_gb_s=200/100/50", 0.97), ("dgx-h100:4", 0.97)],
)  # fmt: skip
def test_the_bound_is_nearly_reached(name: str, share: float) -> None:
    schedule = solved(name)
    bound_s = fluid_bound(schedule.collective, schedule.topology, schedule.size_bytes).time_s
    assert schedule.finish_s <= bound_s / share


@pytest.mark.parametrize("name", ["ring:6", "torus:3x3", "dgx-a100:2"])
def test_every_rank_does_what_rank_0_does(name: str) -> None:
    schedule = solved(name, chunks=1)
    starts = [np.sort(schedule.start_s[schedule.src == rank]) for rank in range(schedule.topology.num_ranks)]
    for found in starts[1:]:
        assert np.array_equal(found, starts[0])


def test_messages_of_several_chunks_pay_overhead_once() -> None:
    schedule = solved("torus:4x4@alpha_us=5,overhead=alpha", size=4096)
    assert (schedule.batch >= 0).any()
