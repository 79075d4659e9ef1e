"""Work that is shared out gives the same result, whoever does it, in whatever order, and whoever goes down."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

import collsyn
from collsyn.bounds import fluid_bound
from collsyn.model.schedule_file import schedule_text
from collsyn.portfolio import auto, crew
from collsyn.portfolio.auto import best
from collsyn.portfolio.candidates import INTERRUPTED, STOPPED, Candidate, chosen
from collsyn.portfolio.crew import MAKE, PLAN, Beside, perform
from collsyn.portfolio.trial import Trial, least_plan_s, plan_time_s
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import METHODS, method
from collsyn.topology.resolve import load_topology
from tests.support.topologies import zoo

QUICK = ("ring", "two-way-ring", "recursive", "direct", "bine", "bfb", "paths", "trees")
PROBLEMS = [("allgather", "star", 1 << 20), ("allreduce", "two boxes", 1 << 22), ("allgather", "ring", 1 << 24)]


class Shuffled:
    """Does up to `size` tasks at a time in this process, and finishes them in any order."""

    def __init__(self, size, seed):
        self.size, self.random, self.tasks = size, random.Random(seed), {}
        self.trial = None
        self.stopped = []

    def begin(self, trial):
        self.trial, self.tasks = trial, {}

    @property
    def free(self):
        return self.size - len(self.tasks)

    def start(self, number, task):
        self.tasks[number] = task

    def finished(self, wait_s):
        number = self.random.choice(sorted(self.tasks))
        return [(number, perform(self.trial, self.tasks.pop(number)))]

    def stop(self, numbers):
        self.stopped += numbers
        for number in numbers:
            del self.tasks[number]

    def wind_up(self):
        self.tasks = {}
        return []

    def close(self):
        self.tasks = {}


class Pipe:
    """Messages that come, and those that were sent."""

    def __init__(self, messages):
        self.messages, self.sent = list(messages), []

    def recv(self):
        if not self.messages:
            raise EOFError
        return self.messages.pop(0)

    def send(self, message):
        self.sent.append(message)


def outcome(candidates):
    """All that must not depend on who did the work."""
    rows = [(each.method, each.finish_s, each.plan_s, each.refused, each.cut) for each in candidates]
    return rows, schedule_text(chosen(candidates).schedule)


def problem_of(kind, name, size):
    topology = load_topology("ring:6") if name == "ring" else zoo(name)
    return Problem(kind, topology, size)


@pytest.fixture
def at_once(monkeypatch):
    """Crews are called in from the start."""
    monkeypatch.setattr(auto, "FIRST_S", 0.0)


@pytest.mark.parametrize("case", PROBLEMS, ids=lambda case: f"{case[0]} on {case[1]}")
def test_the_order_of_work_changes_nothing(case, at_once):
    problem = problem_of(*case)
    alone = outcome(best(problem, Options(), QUICK))
    for size, seed in [(2, 0), (3, 1), (8, 2), (8, 3)]:
        assert outcome(best(problem, Options(), QUICK, crew=Shuffled(size, seed))) == alone


def test_what_follows_a_method_at_the_bound_is_not_needed(at_once):
    problem = Problem("allgather", load_topology("full:4"), 64 << 20)
    found = best(problem, Options(), ("ring", "direct", "paths", "trees"))
    assert found[0].method == "direct" and found[0].plan_s is not None
    reasons = {each.method: each.refused or each.cut for each in found[1:]}
    assert reasons == {
        "ring": "not simulated: direct is at the bound",
        "paths": "not needed: direct is at the bound",
        "trees": "not needed: direct is at the bound",
    }
    assert found[0].schedule.provenance["chosen_from"] == ["direct", "ring"]
    everything = best(problem, Options(), ("ring", "direct", "paths", "trees"), all_of_them=True)
    assert all(each.served for each in everything)
    # What was begun ahead of its turn is given up.
    ahead = Shuffled(4, 0)
    ahead.random.choice = lambda numbers: 1 if 1 in numbers else numbers[0]
    assert outcome(best(problem, Options(), ("ring", "direct", "paths", "trees"), crew=ahead)) == outcome(found)
    assert ahead.stopped == [2, 3]


@pytest.mark.parametrize("name", [name for name in METHODS if name in QUICK or name == "hierarchical"])
@pytest.mark.parametrize("topology", ["dgx1", "mesh:2x3", "ndv2:1", "torus:4x2", "full:4"])
def test_no_plan_is_quicker_than_its_busiest_link(name, topology):
    problem = Problem("allreduce", load_topology(topology), 1 << 20)
    if method(name).accepts(problem) is None:
        schedule = method(name).synthesize(problem, Options())
        assert 0 < least_plan_s(schedule) <= plan_time_s(schedule) * (1 + 1e-9)


def test_a_plan_that_cannot_win_is_not_made(monkeypatch):
    made = []

    def time_s(schedule):
        made.append(schedule.provenance["method"])
        return plan_time_s(schedule)

    from collsyn.portfolio import trial

    monkeypatch.setattr(trial, "plan_time_s", time_s)
    # The ring's busiest link carries all but one shard; the exchange of both ways half of it.
    found = best(Problem("allgather", load_topology("ring:4"), 1 << 20), Options(), ("ring", "two-way-ring"))
    assert [each.method for each in found] == ["two-way-ring", "ring"]
    assert made == ["two-way-ring"] and found[1].cut is not None


def test_a_method_that_overruns_a_limit_is_ended(problem, monkeypatch, at_once):
    clock = [0.0]
    monkeypatch.setattr(auto.time, "monotonic", lambda: clock[0])

    class Stuck(Shuffled):
        def finished(self, wait_s):
            clock[0] += 1.0
            if any(what == "ring" for _, what, _ in self.tasks.values()):
                others = [number for number, (_, what, _) in self.tasks.items() if what != "ring"]
                return [(others[0], perform(self.trial, self.tasks.pop(others[0])))] if others else []
            return super().finished(wait_s)

    stuck = Stuck(2, 0)
    found = best(problem, Options(time_limit_s=8.0), ("ring", "direct"), crew=stuck)
    assert [(each.method, each.refused) for each in found] == [("direct", None), ("ring", STOPPED)]
    assert found[0].schedule.provenance["not_begun"] == ["ring"]
    assert clock[0] == pytest.approx(8.0 * auto.FOR_METHODS + 8.0 * auto.GRACE + auto.GRACE_S, abs=1.5)


@pytest.fixture
def problem():
    return Problem("allgather", zoo("star"), 1 << 20)


@pytest.fixture
def beside():
    found = Beside(2)
    yield found
    found.close()


def waited(found, limit_s=100.0):
    """What comes from a crew first."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if done := found.finished(0.5):
            return done
    raise AssertionError("nothing came")


def test_processes_give_the_same_result_and_one_that_is_killed_costs_its_method(problem, beside, at_once):
    names = ("ring", "direct", "paths")
    alone = outcome(best(problem, Options(), names))
    assert outcome(best(problem, Options(), names, crew=beside)) == alone
    fluid = fluid_bound(problem.collective(), problem.topology, problem.size_bytes)
    beside.begin(Trial(problem, Options(), fluid, True))
    beside.start(7, (MAKE, "paths", None))
    hand = next(hand for hand in beside._hands if hand.number == 7)
    # Stopped first, so that it cannot be done before it is killed.
    hand.process.send_signal(signal.SIGSTOP)
    hand.process.kill()
    done = waited(beside)
    if done[0][1].served:
        pytest.skip("it was done before")
    assert done == [(7, Candidate("paths", refused="its process was killed by SIGKILL", lost=True))]
    beside.start(8, (MAKE, "paths", None))
    ((number, found),) = waited(beside)
    assert number == 8 and found.served
    # A plan that is lost leaves its candidate as it was.
    beside.start(9, (PLAN, found, None))
    hand = next(hand for hand in beside._hands if hand.number == 9)
    hand.process.send_signal(signal.SIGSTOP)
    hand.process.kill()
    ((_, left),) = waited(beside)
    assert left == replace(found, lost=True, cut=left.cut) or left.plan_s is not None
    hands = [hand.process for hand in beside._hands]
    beside.close()
    assert all(process.poll() is not None for process in hands) and not beside.tasks


def test_the_library_takes_a_number_of_jobs(at_once):
    asked = ("allgather", "full:4", "64M")
    assert schedule_text(collsyn.synthesize(*asked, jobs=2)) == schedule_text(collsyn.synthesize(*asked))


def test_a_defect_in_a_worker_costs_its_method(problem):
    class Broken(Trial):
        def candidate(self, name, limit_s):
            raise ZeroDivisionError("no")

    fluid = fluid_bound(problem.collective(), problem.topology, problem.size_bytes)
    pipe = Pipe([Broken(problem, Options(), fluid, True), (MAKE, "paths", None)])
    crew.serve(pipe)
    assert pipe.sent == [Candidate("paths", refused="internal error: ZeroDivisionError: no", lost=True)]


def test_ctrl_c_brings_back_what_methods_have_at_hand(problem):
    class Keeps(Trial):
        def candidate(self, name, limit_s):
            try:
                signal.raise_signal(signal.SIGINT)
                time.sleep(10)
            except KeyboardInterrupt:
                if name == "forgets":
                    raise
            return super().candidate("paths", None)

    fluid = fluid_bound(problem.collective(), problem.topology, problem.size_bytes)
    pipe = Pipe([Keeps(problem, Options(), fluid, True), (MAKE, "keeps", None), (MAKE, "forgets", None)])
    crew.serve(pipe)
    assert pipe.sent[0].served and pipe.sent[1].refused == INTERRUPTED


def test_what_is_wound_up_counts(problem, at_once):
    class Pressed(Shuffled):
        def finished(self, wait_s):
            raise KeyboardInterrupt

        def wind_up(self):
            number, task = next(iter(self.tasks.items()))
            self.tasks = {}
            return [(number, perform(self.trial, task))]

    found = best(problem, Options(), ("ring", "direct"), crew=Pressed(2, 0))
    assert [(each.method, each.refused) for each in found] == [("ring", None), ("direct", INTERRUPTED)]


def test_workers_are_wound_up_in_time(problem, beside):
    fluid = fluid_bound(problem.collective(), problem.topology, problem.size_bytes)
    beside.begin(Trial(problem, Options(), fluid, True))
    beside.start(0, (MAKE, "paths", None))
    processes = [hand.process for hand in beside._hands]
    processes[0].send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    found = beside.wind_up()
    assert time.monotonic() - begin < 60 and not beside.tasks
    assert len(found) <= 1 and (found or processes[0].poll() is not None)


ORPHAN = """
import os, sys
from collsyn.portfolio.crew import spawn
hand = spawn()
print(hand.process.pid, flush=True)
sys.stdin.read()
"""


def test_workers_end_with_whoever_started_them():
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    os.kill(worker, 0)
    parent.kill()
    parent.wait()
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            with open(f"/proc/{worker}/stat") as stat:
                if stat.read().split()[2] == "Z":
                    return
        except FileNotFoundError:
            return
        time.sleep(0.05)
    raise AssertionError("the worker lives on")
