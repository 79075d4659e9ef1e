"""The portfolio keeps the best of what was verified, whatever the methods do."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from collsyn.check.verify import verify_schedule
from collsyn.errors import Infeasible, InputError, SolverFailed, VerificationError
from collsyn.model.schedule import Schedule
from collsyn.model.schedule_file import schedule_text
from collsyn.portfolio import auto, trial
from collsyn.portfolio.auto import best, best_schedule
from collsyn.portfolio.candidates import INTERRUPTED, OUT_OF_TIME, chosen, ranked
from collsyn.synth import greedy_search
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import METHODS, method
from collsyn.topology.resolve import load_topology
from tests.support.topologies import build, zoo

SIZE = 1 << 20
SERVING = ("ring", "direct", "paths")


@dataclass(frozen=True)
class Fake:
    """A method that does as it is told."""

    name: str
    act: Callable[[Problem, Options], Schedule]

    def accepts(self, problem: Problem) -> str | None:
        return None

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        return self.act(problem, options) if problem.topology.name != "pair" else paths(problem, options)


def paths(problem: Problem, options: Options) -> Schedule:
    return method("paths").synthesize(problem, options)


@pytest.fixture
def add_method(monkeypatch):
    """Adds a method of that name for the test."""
    fakes: dict[str, Fake] = {}
    monkeypatch.setattr(trial, "method", lambda name: fakes.get(name) or method(name))
    trial.warm_up.cache_clear()

    def add(name: str, act: Callable[[Problem, Options], Schedule]) -> str:
        fakes[name] = Fake(name, act)
        return name

    yield add
    trial.warm_up.cache_clear()


@pytest.fixture
def problem() -> Problem:
    return Problem("allgather", zoo("star"), SIZE)


def test_all_methods_are_run_and_the_best_comes_first(problem: Problem) -> None:
    found = best(problem, Options())
    assert sorted(candidate.method for candidate in found) == sorted(METHODS)
    for candidate in found:
        assert (candidate.schedule is None) == (candidate.refused is not None)
        if candidate.schedule is not None:
            verify_schedule(candidate.schedule).raise_if_bad()
            assert {bound.scope for bound in candidate.schedule.bounds} == {"fluid", "chunk"}
            assert candidate.gap is not None and candidate.gap >= -1e-9
            assert candidate.plan_s is not None or candidate.finish_s > 2 * found[0].finish_s
    assert found[0].schedule is not None and found[-1].schedule is None
    plans = [candidate.plan_s for candidate in found if candidate.plan_s is not None]
    assert plans == sorted(plans)


def test_the_winner_says_what_it_was_chosen_from(problem: Problem) -> None:
    schedule = best_schedule(problem, Options())
    served = [name for name in METHODS if method(name).accepts(problem) is None]
    assert schedule.provenance["chosen_from"] == sorted(served)
    assert "not_begun" not in schedule.provenance


def test_same_problem_same_bytes(monkeypatch) -> None:
    monkeypatch.setattr(greedy_search, "LOOKS", 300_000)
    texts = {
        schedule_text(best_schedule(Problem("allreduce", zoo("two boxes"), SIZE), Options(seed=4))) for _ in range(2)
    }
    assert len(texts) == 1


def test_a_wrong_schedule_never_leaves(problem: Problem, add_method) -> None:
    def too_early(asked: Problem, options: Options) -> Schedule:
        schedule = paths(asked, options)
        return schedule.with_times(schedule.start_s * 0, schedule.size_bytes)

    name = add_method("hasty", too_early)
    found = best(problem, Options(), ["paths", name])
    assert found[0].method == "paths"
    assert found[1].refused is not None and "schedule is wrong" in found[1].refused
    with pytest.raises(VerificationError):
        best_schedule(problem, Options(), name)


def test_a_method_that_fails_is_passed_over(problem: Problem, add_method) -> None:
    def fail(asked: Problem, options: Options) -> Schedule:
        raise SolverFailed("no answer")

    name = add_method("failing", fail)
    found = best(problem, Options(), [name, "paths"])
    assert [(each.method, each.refused) for each in found] == [("paths", None), (name, "no answer")]
    with pytest.raises(SolverFailed, match="no answer"):
        best(problem, Options(), [name])


def in_a_kernel() -> SystemError:
    """What Ctrl-C becomes where it falls into a compiled kernel."""
    error = SystemError("send returned a result with an exception set")
    error.__cause__ = KeyboardInterrupt()
    return error


@pytest.mark.parametrize("reason", [KeyboardInterrupt(), in_a_kernel()], ids=["python", "kernel"])
def test_an_interruption_keeps_what_was_found(problem: Problem, add_method, reason: BaseException) -> None:
    def interrupt(asked: Problem, options: Options) -> Schedule:
        raise reason

    name = add_method("interrupted", interrupt)
    found = best(problem, Options(), ["paths", name, "direct"])
    assert chosen(found).method == "paths"
    assert [each.refused for each in found] == [None, INTERRUPTED, INTERRUPTED]
    assert chosen(found).schedule.provenance["not_begun"] == ["direct", name]
    with pytest.raises(KeyboardInterrupt):
        best_schedule(problem, Options(), name)


@pytest.mark.parametrize("reason", [KeyboardInterrupt(), in_a_kernel()], ids=["python", "kernel"])
def test_an_interruption_while_plans_are_made_keeps_all_schedules(
    problem: Problem, monkeypatch, reason: BaseException
) -> None:
    def interrupt(schedule: Schedule) -> float:
        raise reason

    monkeypatch.setattr(trial, "plan_time_s", interrupt)
    found = best(problem, Options(), ["paths", "direct"])
    assert [each.method for each in found] == ["direct", "paths"]
    assert all(each.plan_s is None for each in found)
    assert [each.interrupted for each in found] == [True, False]


def test_no_method_is_begun_after_the_time_limit(problem: Problem, add_method, monkeypatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(auto.time, "monotonic", lambda: clock[0])

    def slow(asked: Problem, options: Options) -> Schedule:
        clock[0] += 20.0
        assert options.time_limit_s == pytest.approx(15.0 * auto.FOR_METHODS * auto.OF_LEFT)
        return paths(asked, replace(options, time_limit_s=None))

    name = add_method("slow", slow)
    found = best(problem, Options(time_limit_s=15.0), [name, "direct"])
    assert [(each.method, each.refused) for each in found] == [(name, None), ("direct", OUT_OF_TIME)]
    assert found[0].schedule.provenance["not_begun"] == ["direct"]
    assert found[0].synthesis_s == pytest.approx(20.0)


def test_the_last_method_comes_first_once_time_grows_short(problem: Problem, add_method, monkeypatch) -> None:
    clock, begun = [0.0], []
    monkeypatch.setattr(auto.time, "monotonic", lambda: clock[0])

    def slow(name: str) -> Callable[[Problem, Options], Schedule]:
        def act(asked: Problem, options: Options) -> Schedule:
            begun.append(name)
            clock[0] += auto.TIME_LIMIT_S * 0.4
            return paths(asked, options)

        return act

    names = [add_method(name, slow(name)) for name in ("first", "second", "last")]
    best(problem, Options(), names)
    assert begun == ["first", "last", "second"]


@pytest.mark.parametrize(
    ("plan_us", "winner"),
    [
        ({"ring": 9.0, "direct": 7.0, "paths": 3.0}, "paths"),
        # One that cannot be lowered has no plan to compare, so that all are compared as schedules.
        ({"ring": 1.0, "direct": None, "paths": 3.0}, "direct"),
    ],
)
def test_plans_are_compared_where_all_can_be_lowered(
    plan_us: dict[str, float | None], winner: str, problem: Problem, monkeypatch
) -> None:
    def plan_s(schedule: Schedule) -> float:
        time_us = plan_us[schedule.provenance["method"]]
        if time_us is None:
            raise InputError("cannot be lowered")
        return time_us

    monkeypatch.setattr(trial, "plan_time_s", plan_s)
    assert best(problem, Options(), list(SERVING))[0].method == winner
    assert best(problem, Options(), list(SERVING), plans=False)[0].method == "direct"


def test_a_schedule_whose_plan_takes_far_longer_keeps_no_other_from_being_tried() -> None:
    # Small messages beside each other occupy a card in a plan, though hardly in the schedule.
    asked = Problem("alltoall", load_topology("ndv2:2"), 1 << 10)
    found = {each.method: each for each in best(asked, Options(), ["at-once", "direct", "paths", "ring"])}
    first = found["at-once"]
    assert first.plan_s is not None and first.plan_s > 4 * first.finish_s
    for name in ("direct", "paths"):
        assert 2 * first.finish_s < found[name].finish_s < 2 * first.plan_s
        assert found[name].plan_s is not None
    least_s = min(each.plan_s for each in found.values() if each.plan_s is not None)
    assert ranked(list(found.values()))[0].plan_s == pytest.approx(least_s, rel=0.01)


def test_large_plans_are_made_on_request_only(monkeypatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(trial, "plan_time_s", lambda schedule: made.append("plan") or 1.0)
    monkeypatch.setattr(auto, "MAX_PLAN_RANKS", 3)
    problem = Problem("broadcast", zoo("star"), SIZE)
    assert best(problem, Options(), ["paths"])[0].plan_s is None
    assert best(problem, Options(), ["paths"], plans=True)[0].plan_s == 1.0
    assert made == ["plan"]


def test_ranks_that_cannot_reach_each_other_are_named() -> None:
    split = build(4, [(0, 1), (2, 3)], both=True, name="split")
    with pytest.raises(Infeasible, match=r"rank 0 cannot reach rank 2.*split"):
        best(Problem("allgather", split, SIZE), Options())
    # Process groups inside the parts are served all the same.
    inside = best_schedule(Problem("allgather", split, SIZE, groups=((0, 1), (2, 3))), Options())
    assert np.isfinite(inside.finish_s)


def test_a_named_method_says_why_it_does_not_serve(problem: Problem) -> None:
    with pytest.raises(InputError, match=r"method doubling: makes no allgather"):
        best_schedule(problem, Options(), "doubling")
    with pytest.raises(InputError, match=r"method 'nonesuch' is not known"):
        best_schedule(problem, Options(), "nonesuch")


def test_nobody_serves() -> None:
    found = best(Problem("alltoall", zoo("line"), SIZE), Options(), ["ring", "doubling"])
    with pytest.raises(
        Infeasible, match=r"no method serves this problem \(ring: makes no alltoall; doubling: makes no"
    ):
        chosen(found)


def test_progress_tells_the_best_so_far(problem: Problem) -> None:
    seen: list[tuple[float, str]] = []
    best(problem, Options(progress=lambda share, detail: seen.append((share, detail))), list(SERVING))
    assert [share for share, _ in seen] == [0, 1 / 3, 2 / 3]
    assert seen[0][1] == "" and seen[1][1].startswith("best so far ring: ") and "over the bound" in seen[1][1]


@pytest.mark.parametrize(("limit_s", "late"), [(None, False), (10.0, True)])
def test_what_compiles_at_first_use_takes_time_from_given_limits_only(problem, monkeypatch, limit_s, late) -> None:
    now_s = [0.0]
    monkeypatch.setattr(auto.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(trial, "warm_up", lambda name, kind: now_s.__setitem__(0, now_s[0] + 100))
    found = best(problem, Options(time_limit_s=limit_s), ["ring", "direct"])
    assert [candidate.refused == OUT_OF_TIME for candidate in found if candidate.method == "direct"] == [late]


@pytest.mark.parametrize("alone", [True, False])
def test_what_a_method_saves_from_an_interruption_is_marked(problem: Problem, add_method, alone: bool) -> None:
    def saved(problem: Problem, options: Options) -> Schedule:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            return paths(problem, options)
        raise AssertionError("nothing was raised")

    name = add_method("saving", saved)
    found = best(problem, Options(), [name] if alone else [name, "ring"])
    assert found[0].schedule is not None
    assert [each.interrupted for each in found if each.method == name] == [True]
