"""Repair: schedules carried over to what failures leave, all kinds, against bounds, and one line for what cannot be."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsyn.bounds import fluid_bound
from collsyn.check.verify import verify_schedule
from collsyn.errors import Infeasible
from collsyn.lower.lower import lower
from collsyn.model.kinds import KINDS
from collsyn.model.schedule import Schedule
from collsyn.synth.problem import Options, Problem
from collsyn.synth.repair import Repair
from collsyn.synth.table import method
from collsyn.topology.degrade import Failures, degrade
from collsyn.topology.resolve import load_topology
from tests.support.running import assert_runs

FAILURES = {
    "link": Failures(("0-1",)),
    "one way": Failures(("1->0",)),
    "slow": Failures((), (("0-1", 0.5), ("1-2", 0.25))),
    "rank": Failures((), (), (5,)),
    "all": Failures(("0-1",), (("6-7", 0.5),), (5,)),
}
ALL_KINDS = tuple(kind for kind in KINDS if kind not in ("custom", "alltoallv"))
G = 1 << 30


def repaired(old: Schedule, problem: Problem) -> Schedule:
    """The verified repair, no quicker than the bound, the same every time."""
    repair = Repair(old)
    assert repair.accepts(problem) is None
    schedule = repair.synthesize(problem, Options())
    verify_schedule(schedule).raise_if_bad()
    bound_s = fluid_bound(schedule.collective, problem.topology, problem.size_bytes).time_s
    assert schedule.finish_s >= bound_s * (1 - 1e-9)
    options = schedule.provenance["options"]
    assert 0 <= options["kept_sends"] <= schedule.num_sends
    return schedule


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_kind_survives_every_failure(kind: str, failure: str) -> None:
    whole = load_topology("torus:3x4")
    old = method("greedy" if kind in ("allgather", "alltoall") else "paths").synthesize(
        Problem(kind, whole, 1 << 20, 2), Options()
    )
    problem = Problem(kind, degrade(whole, FAILURES[failure]), 1 << 20)
    first, again = repaired(old, problem), repaired(old, problem)
    assert first.collective.chunks_per_rank == 2
    assert all(np.array_equal(a, b) for a, b in zip(first.columns().values(), again.columns().values(), strict=True))


@pytest.mark.parametrize(
    ("kind", "failures"),
    [
        ("allgather", Failures(("0-1",))),
        ("allgather", Failures((), tuple((f"{i}-{i + 1}", 0.5) for i in range(7)))),
        ("allgather", Failures((), (), (5,))),
        ("allgather", Failures(("0-1", "8-9"), (("16-17", 0.5),), (36,))),
        ("reducescatter", Failures(("0-1",))),
        ("reducescatter", Failures((), (), (5,))),
        ("scatter", Failures(("0-1",))),
    ],
)
def test_a_torus_is_repaired_to_a_twentieth_of_the_bound(kind: str, failures: Failures) -> None:
    whole = load_topology("torus:8x8")
    old = method("greedy").synthesize(Problem(kind, whole, G, 4), Options())
    problem = Problem(kind, degrade(whole, failures), G)
    schedule = repaired(old, problem)
    assert schedule.finish_s <= fluid_bound(problem.collective(1), problem.topology, G).time_s / 0.95
    assert schedule.provenance["options"]["kept_sends"] > 0.5 * schedule.num_sends


def test_nothing_failed_nothing_changes_but_times() -> None:
    whole = load_topology("mesh:3x3")
    old = method("greedy").synthesize(Problem("allgather", whole, G, 2), Options())
    schedule = repaired(old, Problem("allgather", whole, 1 << 20))
    assert schedule.provenance["options"] | {"chunks_per_rank": 2} == {
        "chunks_per_rank": 2,
        "kept_sends": old.num_sends,
        "new_sends": 0,
    }
    assert sorted(zip(old.chunk, old.src, old.dst, strict=True)) == sorted(
        zip(schedule.chunk, schedule.src, schedule.dst, strict=True)
    )


def test_switches_keep_their_names_and_parallel_links_their_order() -> None:
    whole = load_topology("dgx-a100:2")
    old = method("paths").synthesize(Problem("allgather", whole, 1 << 24, 2), Options())
    repaired(old, Problem("allgather", degrade(whole, Failures(("3-odd",))), 1 << 24))
    pair = load_topology("ring:3")
    doubled = replace(
        pair,
        **{
            name: np.concatenate([getattr(pair, name)] * 2)
            for name in ("src", "dst", "alpha_s", "beta_s_per_byte", "overhead_s", "count")
        },
    )
    twice = method("paths").synthesize(Problem("allgather", doubled, 1 << 20, 2), Options())
    repaired(twice, Problem("allgather", pair, 1 << 20))


def test_the_root_may_fail() -> None:
    whole = load_topology("torus:3x3")
    old = method("greedy").synthesize(Problem("broadcast", whole, 1 << 20, 4), Options())
    schedule = repaired(old, Problem("broadcast", degrade(whole, Failures((), (), (0,))), 1 << 20))
    assert schedule.provenance["options"]["kept_sends"] == 0


def test_counts_may_change_with_the_ranks() -> None:
    whole = load_topology("mesh:2x3")
    counts = [[0 if a == b else 1 + a + b for b in range(6)] for a in range(6)]
    old = method("paths").synthesize(Problem("alltoallv", whole, 1 << 20, 2, counts=counts), Options())
    rest = [row[:4] + row[5:] for i, row in enumerate(counts) if i != 4]
    repaired(old, Problem("alltoallv", degrade(whole, Failures((), (), (4,))), 1 << 20, counts=rest))


@pytest.mark.parametrize(
    ("kind", "chunks", "topology", "words"),
    [
        ("allreduce", None, "mesh:2x3", "is a schedule of allgather, not of allreduce"),
        ("allgather", 3, "mesh:2x3", "has 2 chunks a rank, not 3"),
        ("allgather", None, "mesh:2x2", "does not say which of them"),
    ],
)
def test_what_does_not_fit_is_told(kind: str, chunks: int | None, topology: str, words: str) -> None:
    old = method("greedy").synthesize(Problem("allgather", load_topology("mesh:2x3"), 1 << 20, 2), Options())
    reason = Repair(old).accepts(Problem(kind, load_topology(topology), 1 << 20, chunks))
    assert reason is not None and words in reason


def test_other_process_groups_are_told() -> None:
    whole = load_topology("full:6")
    groups = ((0, 1, 2), (3, 4, 5))
    old = method("greedy").synthesize(Problem("allgather", whole, 1 << 20, 2, groups=groups), Options())
    rest = degrade(whole, Failures((), (), (1,)))
    repaired(old, Problem("allgather", rest, 1 << 20, groups=((0, 1), (2, 3, 4))))
    for asked in (None, ((0, 1, 2), (3, 4))):
        reason = Repair(old).accepts(Problem("allgather", rest, 1 << 20, groups=asked))
        assert reason is not None and "the groups 0,1,2 / 3,4,5, not for" in reason


def test_several_partial_results_are_refused() -> None:
    whole = load_topology("full:4")
    old = method("doubling").synthesize(Problem("allreduce", whole, 1 << 20), Options())
    assert "partial results" in str(Repair(old).accepts(Problem("allreduce", whole, 1 << 20)))


def test_a_group_that_cannot_relay_is_told() -> None:
    whole = load_topology("ring:6")
    groups = ((0, 1, 2), (3, 4, 5))
    old = method("greedy").synthesize(Problem("allgather", whole, 1 << 20, 1, groups=groups), Options())
    problem = Problem("allgather", degrade(whole, Failures(("0-1",))), 1 << 20, groups=groups)
    with pytest.raises(Infeasible, match="through ranks that want it"):
        Repair(old).synthesize(problem, Options())


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_random_failures(seed: int) -> None:
    random = np.random.default_rng(seed)
    whole = load_topology(["torus:3x3", "hypercube:3", "mesh:2x4", "full:5"][seed % 4])
    links = [whole.link_name(int(i)) for i in random.choice(whole.num_links, 3, replace=False)]
    ranks = (int(random.integers(whole.num_ranks)),) if seed % 3 == 0 else ()
    failures = Failures((links[0],), ((links[1], 0.3), (links[2], 0.6)), ranks)
    kind = ["allgather", "reducescatter", "allreduce", "alltoall", "broadcast"][seed % 5]
    try:
        problem = Problem(kind, degrade(whole, failures), 1 << 20)
    except Infeasible:
        return
    old = method("paths").synthesize(Problem(kind, whole, 1 << 20, 2), Options())
    repaired(old, problem)


@pytest.mark.parametrize("kind", ["allgather", "allreduce", "alltoall"])
def test_repaired_schedules_run(kind: str) -> None:
    whole = load_topology("torus:3x3")
    old = method("paths").synthesize(Problem(kind, whole, 1 << 20, 1), Options())
    schedule = repaired(old, Problem(kind, degrade(whole, Failures(("0-1",), (), (4,))), 1 << 20))
    assert_runs(lower(schedule), 8 * 3 * 60)
