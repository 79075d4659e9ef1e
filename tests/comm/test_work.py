"""Order, errors and the end of calls in a lane."""

import threading

import pytest

from collsyn.comm.work import Lane
from collsyn.errors import DeviceError, InputError

LIMIT_S = 20


def test_calls_run_in_the_order_of_issue_whoever_waits():
    lane, seen, gate = Lane("test"), [], threading.Event()
    works = [lane.submit(lambda: gate.wait(LIMIT_S), "first")]
    works += [lane.submit(lambda number=number: seen.append(number), "next") for number in range(50)]
    assert not any(work.test() for work in works)
    threading.Timer(0.05, gate.set).start()
    assert lane.run(lambda: list(seen), "last") == list(range(50))
    assert all(work.test() for work in works)
    assert lane.close(LIMIT_S)


def test_a_free_lane_runs_in_the_calling_thread():
    lane = Lane("test")
    assert lane.run(threading.current_thread, "here") is threading.current_thread()
    assert lane.submit(threading.current_thread, "there").result(LIMIT_S).name == "test"
    assert lane.run(lambda: 5, "again") == 5
    assert lane.close(LIMIT_S)


def test_an_error_belongs_to_its_call():
    def fail():
        raise InputError("not like this")

    lane = Lane("test")
    bad, good = lane.submit(fail, "bad"), lane.submit(lambda: 7, "good")
    assert good.result(LIMIT_S) == 7
    assert str(bad.exception(LIMIT_S)) == "not like this"
    assert good.exception() is None
    for wait in (bad.wait, bad.result):
        with pytest.raises(InputError, match="not like this"):
            wait()
    with pytest.raises(InputError, match="not like this"):
        lane.run(fail, "bad")
    assert lane.run(lambda: 8, "good") == 8


def test_a_wait_has_an_end():
    lane, gate = Lane("test"), threading.Event()
    work = lane.submit(lambda: gate.wait(LIMIT_S), "all_reduce")
    with pytest.raises(DeviceError, match=r"all_reduce is not over after 0\.01 s"):
        work.wait(0.01)
    assert not lane.close(0.01)
    gate.set()
    assert work.result(LIMIT_S)
    assert lane.close(LIMIT_S)


def test_a_closed_lane_finishes_and_takes_nothing_more():
    lane, seen = Lane("test"), []
    works = [lane.submit(lambda: seen.append(1), "call") for _ in range(20)]
    assert lane.close(LIMIT_S)
    assert len(seen) == 20
    assert all(work.test() for work in works)
    for late in (lane.run, lane.submit):
        with pytest.raises(DeviceError, match="closed"):
            late(lambda: 1, "late")


def test_calls_from_several_threads_never_overlap():
    lane, running, most = Lane("test"), [], []

    def task():
        running.append(1)
        most.append(len(running))
        running.pop()

    def issue():
        for number in range(100):
            lane.run(task, "run") if number % 2 else lane.submit(task, "submit")

    threads = [threading.Thread(target=issue) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert lane.close(LIMIT_S)
    assert most == [1] * 400
