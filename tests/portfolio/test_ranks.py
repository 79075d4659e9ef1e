"""Work shared out among the ranks of an MPI job: the protocol on queues, and once for real."""

import json
import pickle
import queue
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from collsyn.model.schedule_file import schedule_text
from collsyn.portfolio import auto, ranks
from collsyn.portfolio.auto import best
from collsyn.portfolio.crew import Alone
from collsyn.portfolio.ranks import AcrossRanks, follow
from collsyn.synth.problem import Options, Problem
from collsyn.topology.resolve import load_topology
from tests.conftest import REPOSITORY
from tests.support.topologies import zoo

NAMES = ("ring", "two-way-ring", "direct", "bfb", "paths", "trees", "doubling")


class Comm:
    """A rank's end of queues that carry pickled messages, in the order sent, as MPI does."""

    def __init__(self, rank, boxes):
        self.rank, self.boxes = rank, boxes

    def isend(self, message, rank):
        self.boxes[rank].put(pickle.dumps(message))
        return SimpleNamespace(Test=lambda: True, Wait=lambda: None)

    def iprobe(self, source=None):
        return not self.boxes[self.rank].empty()

    def recv(self, source=None):
        return pickle.loads(self.boxes[self.rank].get(timeout=30))


@pytest.fixture
def across(monkeypatch):
    """The crew of rank 0 among three, the others following in threads; each rank's worker is its own thread."""
    monkeypatch.setattr(ranks, "Beside", lambda size: Alone())
    monkeypatch.setattr(auto, "FIRST_S", 0.0)
    boxes = [queue.Queue() for _ in range(3)]
    jobs = [SimpleNamespace(rank=rank, size=3, comm=Comm(rank, boxes)) for rank in range(3)]
    threads = [threading.Thread(target=follow, args=(job,), daemon=True) for job in jobs[1:]]
    for thread in threads:
        thread.start()
    crew = AcrossRanks(jobs[0])
    yield crew
    crew.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_ranks_give_the_same_result(across):
    for problem in (
        Problem("allgather", zoo("star"), 1 << 20),
        Problem("allreduce", zoo("two boxes"), 1 << 22),
        Problem("allgather", load_topology("full:4"), 64 << 20),
    ):
        alone = best(problem, Options(), NAMES)
        shared = best(problem, Options(), NAMES, crew=across)
        assert schedule_text(shared[0].schedule) == schedule_text(alone[0].schedule)
        assert [(c.method, c.plan_s, c.refused, c.cut) for c in shared] == [
            (c.method, c.plan_s, c.refused, c.cut) for c in alone
        ]
        assert across.free == 3 and not across.tasks


def test_what_is_given_up_is_not_taken_for_what_follows(across):
    problem = Problem("allgather", zoo("star"), 1 << 20)
    best(problem, Options(), ("ring", "direct"), crew=across)
    across.start(0, ("make", "paths", None))
    across.stop([0])
    assert not across.tasks and across.free == 3
    across.start(0, ("make", "direct", None))
    found = []
    while not found:
        found = across.finished(0.2)
    assert [(number, each.method) for number, each in found] == [(0, "direct")]


@pytest.mark.slow
def test_under_mpirun_rank_0_speaks_and_the_file_is_the_same(tmp_path):
    mpirun = Path(sys.executable).parent / "mpirun"
    if not mpirun.exists() and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    command = [sys.executable, "-m", "cli", "synthesize", "--collective", "allreduce", "--topology", "dgx1"]
    command += ["--size", "1M", "--json"]
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(REPOSITORY),
        "COLLSYN_RESULTS": "off",
        "HOME": str(Path.home()),
    }
    run = {"env": environment, "cwd": tmp_path, "capture_output": True, "text": True, "timeout": 300}
    shared = subprocess.run([str(mpirun), "-n", "3", *command, "-o", "shared.json"], check=True, **run)
    subprocess.run([*command, "--jobs", "1", "-o", "alone.json"], check=True, **run)
    assert json.loads(shared.stdout)["file"] == "shared.json"
    assert (tmp_path / "shared.json").read_bytes() == (tmp_path / "alone.json").read_bytes()
