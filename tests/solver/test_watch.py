"""Runs that are stopped keep what they have; Ctrl-C without a solution is Ctrl-C as ever."""

import os
import signal
import threading

import pytest

from collsyn.keyboard import Keyboard
from collsyn.solver import Answer, ArrayModel, Limits, Status, solve
from tests.support.programs import keeps_to, knapsacks, market_split

# HiGHS would need minutes.
ENDLESS = knapsacks(100, 40, seed=1)
LINEAR = knapsacks(200, 80, seed=3, share=0)


def press() -> None:
    """Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


def require_kept(model: ArrayModel, answer: Answer) -> None:
    """A solution, and a bound beyond it, of a run that was stopped."""
    assert answer.status is Status.FEASIBLE and answer.interrupted
    assert keeps_to(model, answer.values)
    assert answer.bound < answer.objective == pytest.approx(model.cost @ answer.values)


def test_the_caller_stops_a_run() -> None:
    found: list[float] = []
    answer = solve(
        ENDLESS, progress=lambda objective, _: found.append(objective), interrupted=lambda: min(found, default=0.0) < -1
    )
    require_kept(ENDLESS, answer)
    assert answer.objective <= found[-1] + 1e-9
    at_once = solve(ENDLESS, interrupted=lambda: True)
    assert at_once.interrupted and at_once.status in (Status.UNDECIDED, Status.FEASIBLE)


def test_ctrl_c_keeps_the_solution() -> None:
    answer = solve(ENDLESS, progress=lambda objective, _: press() if objective < -1 else None)
    require_kept(ENDLESS, answer)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_from_outside_ends_a_long_run() -> None:
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    require_kept(ENDLESS, solve(ENDLESS))
    timer.join()


def test_ctrl_c_is_passed_on_to_who_keeps_the_result_of_a_search() -> None:
    with Keyboard() as keyboard:
        answer = solve(ENDLESS, progress=lambda objective, _: press() if objective < -1 else None)
        require_kept(ENDLESS, answer)
        assert keyboard.pressed
        with pytest.raises(KeyboardInterrupt), keyboard.listening():
            raise AssertionError("must not begin")
        # What is done to keep the result is not stopped by what was pressed before.
        rest = solve(ENDLESS, Limits(max_nodes=1))
        assert rest.status is Status.FEASIBLE and not rest.interrupted


@pytest.mark.parametrize("model", [LINEAR, market_split()])
def test_ctrl_c_without_a_solution_is_as_ever(model: ArrayModel) -> None:
    def at_once() -> bool:
        press()
        return False

    with pytest.raises(KeyboardInterrupt):
        solve(model, interrupted=at_once)
    with Keyboard() as keyboard:
        answer = solve(model, interrupted=at_once)
        assert answer.status is not Status.OPTIMAL and answer.interrupted and keyboard.pressed
    with Keyboard() as keyboard, pytest.raises(KeyboardInterrupt), keyboard.listening():
        solve(model, interrupted=at_once)


def test_errors_of_callbacks_come_out() -> None:
    def fails(objective: float, bound: float) -> None:
        raise RuntimeError("in the picture")

    with pytest.raises(RuntimeError, match="in the picture"):
        solve(ENDLESS, progress=fails)


def test_other_threads_run_without_the_keyboard() -> None:
    found: list[Answer] = []
    worker = threading.Thread(target=lambda: found.append(solve(ENDLESS, Limits(max_nodes=3))))
    worker.start()
    worker.join()
    assert found[0].status is Status.FEASIBLE and keeps_to(ENDLESS, found[0].values)
