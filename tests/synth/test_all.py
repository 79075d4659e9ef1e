"""What holds for every method of the table, on the zoo and on random topologies; a row suffices to be tested here."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from collsyn.bounds import avoids_overhead, chunk_bound, fluid_bound
from collsyn.check.verify import verify_schedule
from collsyn.lower.lower import lower
from collsyn.model.schedule import Schedule
from collsyn.model.schedule_file import schedule_text
from collsyn.model.topology_file import topology_digest
from collsyn.synth import (
    alltoall,
    bfb_timed,
    exact_epoch_search,
    greedy_search,
    milp,
    milp_improve,
    split,
    trees_search,
)
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import METHODS, method
from tests.support.mutate import check_mutants
from tests.support.problems import all_problems, grouped_problems, random_problems
from tests.support.running import assert_runs
from tests.support.topologies import ZOO, zoo

SOME = ("line", "one-way ring", "unequal star", "two boxes", "lopsided", "torus:3x3", "dgx1")
PROBLEMS = {
    "one chunk": (ZOO, lambda topology: all_problems(topology, chunks=1)),
    "three chunks": (SOME, lambda topology: all_problems(topology, chunks=3)),
    "chunks of its choice, small": (SOME, lambda topology: all_problems(topology, size_bytes=1000)),
    "groups and counts": (SOME, grouped_problems),
}
CASES = [(problems, topology) for problems, (topologies, _) in PROBLEMS.items() for topology in topologies]


@pytest.fixture(autouse=True, scope="module")
def short_searches() -> Iterator[None]:
    """What is tested here holds for any schedule that a search ends with, so that a short one will do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy_search, "LOOKS", 300_000)
        patch.setattr(alltoall, "WORK", 30_000)
        patch.setattr(split, "WORK", 100_000)
        patch.setattr(trees_search, "MESSAGES", 5_000)
        patch.setattr(bfb_timed, "VARIANTS", 20)
        patch.setattr(exact_epoch_search, "WORK", 10_000)
        patch.setattr(milp, "QUICK", milp.Effort(rows=400, coarse_rows=150, fine_rows=150, choices=200, branches=5))
        patch.setattr(milp_improve, "WHOLE_NODES", 5)
        yield


def solve(name: str, problem: Problem, seed: int = 0) -> Schedule | None:
    """The method's schedule, verified and no faster than the bounds; None where it does not serve the problem."""
    if method(name).accepts(problem) is not None:
        return None
    schedule = method(name).synthesize(problem, Options(seed=seed))
    assert (schedule.topology, schedule.size_bytes) == (problem.topology, problem.size_bytes)
    assert schedule.collective.spec == problem.collective(schedule.collective.chunks_per_rank).spec
    if problem.chunks_per_rank is not None:
        assert schedule.collective.chunks_per_rank == problem.chunks_per_rank
    verify_schedule(schedule).raise_if_bad()
    assert schedule.finish_s >= least_s(schedule) * (1 - 1e-9)
    return schedule


KNOWN_LEAST_S: dict[tuple[object, ...], float] = {}


def least_s(schedule: Schedule) -> float:
    """The larger of both bounds, computed once for all methods."""
    asked = schedule.collective, schedule.topology, schedule.size_bytes
    alike = avoids_overhead(schedule)
    key = (str(schedule.collective.spec), topology_digest(schedule.topology), schedule.size_bytes, alike)
    if key not in KNOWN_LEAST_S:
        KNOWN_LEAST_S[key] = max(fluid_bound(*asked).time_s, chunk_bound(*asked, alike).time_s)
    return KNOWN_LEAST_S[key]


@pytest.mark.parametrize(("problems", "topology"), CASES)
@pytest.mark.parametrize("name", METHODS)
def test_schedules_are_right(name: str, problems: str, topology: str) -> None:
    for problem in PROBLEMS[problems][1](zoo(topology)):
        schedule = solve(name, problem)
        if schedule is not None:
            assert schedule.provenance["method"] == name
            assert schedule.provenance["seed"] == 0


@pytest.mark.parametrize("name", METHODS)
@given(problem=random_problems())
def test_schedules_of_random_problems_are_right(name: str, problem: Problem) -> None:
    solve(name, problem, seed=3)


@pytest.mark.parametrize("name", METHODS)
@given(problem=random_problems())
@settings(max_examples=8)
def test_same_seed_same_bytes(name: str, problem: Problem) -> None:
    first, again = solve(name, problem, seed=7), solve(name, replace(problem), seed=7)
    assert (first is None) == (again is None)
    if first is not None and again is not None:
        assert schedule_text(first) == schedule_text(again)


@pytest.mark.parametrize("name", METHODS)
@given(problem=random_problems(max_ranks=4))
@settings(max_examples=8)
def test_doubling_all_bandwidths_halves_the_byte_time(name: str, problem: Problem) -> None:
    nothing = problem.topology.alpha_s * 0
    topology = replace(problem.topology, alpha_s=nothing, overhead_s=nothing)
    twice = replace(topology, beta_s_per_byte=topology.beta_s_per_byte / 2)
    slow, fast = solve(name, replace(problem, topology=topology)), solve(name, replace(problem, topology=twice))
    assert (slow is None) == (fast is None)
    if slow is not None and fast is not None:
        assert fast.finish_s == pytest.approx(slow.finish_s / 2, rel=1e-9)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("topology", ["line", "two boxes", "star", "occupying ring"])
def test_mutants_of_its_schedules_are_rejected(name: str, topology: str) -> None:
    wrong = 0
    for problem in all_problems(zoo(topology), chunks=1):
        schedule = solve(name, problem)
        if schedule is not None and schedule.num_sends:
            wrong += sum(check_mutants(schedule, seed=0, per_kind=1).values())
    assert wrong or all(method(name).accepts(problem) for problem in all_problems(zoo(topology), chunks=1))


@pytest.mark.parametrize("name", METHODS)
def test_a_single_rank_has_nothing_to_do(name: str) -> None:
    from tests.support.topologies import build

    for problem in all_problems(build(1, [])):
        schedule = solve(name, problem)
        assert schedule is None or schedule.num_sends == 0


def test_every_collective_is_served_everywhere() -> None:
    for topology in ZOO:
        for problem in all_problems(zoo(topology)):
            assert method("paths").accepts(problem) is None


@pytest.mark.parametrize("name", METHODS)
def test_reasons_complete_the_sentence(name: str) -> None:
    reasons = {method(name).accepts(problem) for topology in ZOO for problem in all_problems(zoo(topology))}
    for reason in reasons - {None}:
        assert reason == reason.strip() and not reason.endswith(".") and reason[0].islower()


def test_times_are_finite_and_start_at_zero() -> None:
    for name in METHODS:
        schedule = solve(name, Problem("allgather", zoo("star"), 1 << 20))
        if schedule is not None:
            assert np.isfinite(schedule.start_s).all() and schedule.start_s.min() == 0


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("topology", ["line", "star", "two boxes", "lopsided"])
def test_plans_of_its_schedules_run_right(name: str, topology: str) -> None:
    for problem in [*all_problems(zoo(topology)), *grouped_problems(zoo(topology))]:
        schedule = solve(name, problem)
        if schedule is not None:
            assert_runs(lower(schedule), 3 * schedule.collective.total_units)
            if problem.kind != "custom":
                assert_runs(lower(schedule), 37)
