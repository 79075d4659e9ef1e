"""What the command line makes of the portfolio: jobs, sets of sizes, kept results, Ctrl-C, a table that moves."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli import _live
from collsyn.check.verify import verify_schedule, verify_set
from collsyn.comm.algorithms import AlgorithmSet
from collsyn.model.schedule_file import read_schedule
from collsyn.model.set_file import read_set
from collsyn.portfolio.candidates import Candidate
from collsyn.synth.paths import Paths
from tests.conftest import REPOSITORY

ASKED = ("synthesize", "--collective", "allreduce", "--topology", "full:4")


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder of kept results for this test."""
    folder = tmp_path / "results"
    monkeypatch.setenv("COLLSYN_RESULTS", str(folder))
    return folder


def test_the_same_call_again_is_answered_from_what_is_kept(run_cli, tmp_path, results):
    first = run_cli(*ASKED, "--size", "64K", "-o", tmp_path / "a.json", "--json")
    again = run_cli(*ASKED, "--size", "64K", "-o", tmp_path / "b.json", "--json")
    assert first.code == again.code == 0
    one, other = json.loads(first.stdout), json.loads(again.stdout)
    assert (one["cached"], other["cached"]) == (False, True)
    assert {**one, "cached": 0, "file": 0} == {**other, "cached": 0, "file": 0}
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert again.stderr == ""
    shown = run_cli(*ASKED, "--size", "64K", "-o", "none")
    assert "known from an earlier run and verified again" in shown.stderr and "verified, kept" in shown.stdout
    anew = json.loads(run_cli(*ASKED, "--size", "64K", "-o", "none", "--no-cache", "--json").stdout)
    assert not anew["cached"]
    assert len(list(results.iterdir())) == 1
    listed = json.loads(run_cli("cache", "--json").stdout)
    assert listed["folder"] == str(results) and listed["results"] == 1 and listed["num_bytes"] > 1000
    assert "1 results" in run_cli("cache").stdout
    assert json.loads(run_cli("cache", "--clear", "--json").stdout)["removed"] == 1
    assert list(results.iterdir()) == []


def test_damaged_results_are_named_and_made_anew(run_cli, results):
    run_cli(*ASKED, "--size", "64K", "-o", "none")
    (file,) = results.iterdir()
    file.write_bytes(file.read_bytes()[:200])
    done = run_cli(*ASKED, "--size", "64K", "-o", "none", "--json")
    assert done.code == 0 and not json.loads(done.stdout)["cached"]
    assert f"cache: {file}: is not a whole result" in done.stderr
    assert json.loads(run_cli(*ASKED, "--size", "64K", "-o", "none", "--json").stdout)["cached"]


def test_nothing_is_kept_where_it_is_off(run_cli):
    run_cli(*ASKED, "--size", "64K", "-o", "none")
    assert "nothing is kept" in run_cli("cache").stderr
    assert json.loads(run_cli("cache", "--json").stdout)["folder"] is None


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A set of an allreduce, made once."""
    from cli.main import main

    file = tmp_path_factory.mktemp("made") / "allreduce.set"
    assert main([*ASKED, "--sizes", "1K:64M:256", "-o", str(file)]) == 0
    return file


def test_a_set_is_understood_everywhere(run_cli, made, tmp_path):
    schedules = read_set(made)
    verify_set(schedules).raise_if_bad()
    assert len(schedules.schedules) > 1
    assert run_cli("verify", made).code == 0
    first, last = schedules.schedules[0], schedules.schedules[-1]
    shown = run_cli("simulate", made)
    assert "Algorithm set: allreduce on full:4" in shown.stdout
    rows = json.loads(run_cli("simulate", made, "--sizes", "1K:64M:256", "--json").stdout)
    assert [row["method"] for row in rows] == [
        schedules.at(size).provenance["method"] for size in (1 << 10, 1 << 18, 1 << 26)
    ]
    assert rows[0]["finish_us"] == pytest.approx(first.finish_s * 1e6)
    compared = json.loads(
        run_cli(
            "compare", *ASKED[1:], "--sizes", "1K:64M:65536", "--methods", "direct", "--with", made, "--json"
        ).stdout
    )
    assert [row["finish_us"] for row in compared if row["method"] == str(made)] == pytest.approx(
        [rows[0]["finish_us"], rows[-1]["finish_us"]]
    )
    exported = run_cli("export", made, "--format", "msccl-xml", "-o", tmp_path / "xml", "--json")
    documents = json.loads(exported.stdout)
    assert [document["min_bytes"] for document in documents] == list(schedules.from_bytes)
    rules = AlgorithmSet.from_file(made).rules
    assert [rule.min_bytes for rule in rules] == list(schedules.from_bytes)
    assert [rule.min_bytes for rule in AlgorithmSet.from_folder(made.parent).rules] == list(schedules.from_bytes)
    assert AlgorithmSet.from_file(made).choices("allreduce", 4, None, 1 << 30)[0].provenance == last.provenance
    both = run_cli("export", made, made, "--format", "msccl-xml")
    assert both.code == 2 and "is an algorithm set; give it alone" in both.stderr


def test_bench_takes_of_a_set_what_serves_each_size(made):
    from collsyn.bench.sources import Preparation, from_file

    source = from_file(made)
    preparation = Preparation(source)
    schedules = read_set(made)
    for size_bytes in (1 << 10, 1 << 20):
        assert preparation.at(size_bytes).method == schedules.at(size_bytes).provenance["method"]


def test_a_sweep_that_is_interrupted_keeps_the_sizes_that_are_done(run_cli, tmp_path, monkeypatch):
    asked = []

    def interrupt(self, problem, options):
        asked.append(problem.size_bytes)
        if problem.size_bytes > 1 << 15:
            raise KeyboardInterrupt
        return synthesize(self, problem, options)

    synthesize = Paths.synthesize
    monkeypatch.setattr(Paths, "synthesize", interrupt)
    call = ("synthesize", "--collective", "alltoall", "--topology", "ring:4", "--method", "paths")
    done = run_cli(*call, "--sizes", "1K:1M:4", "-o", tmp_path / "a.set", "--json")
    assert done.code == 130 and "this is the best so far" in done.stderr
    assert [row["size_bytes"] for row in json.loads(done.stdout)] == [1 << 10, 1 << 12, 1 << 14]
    verify_set(read_set(tmp_path / "a.set")).raise_if_bad()
    monkeypatch.setattr(Paths, "synthesize", lambda self, problem, options: interrupt(self, *_larger(problem, options)))
    nothing = run_cli(*call, "--sizes", "1K:1M:4", "-o", tmp_path / "b.set", "--json")
    assert nothing.code == 130 and nothing.stdout == "" and not (tmp_path / "b.set").exists()


def _larger(problem, options):
    from dataclasses import replace

    return replace(problem, size_bytes=1 << 20), options


def started(folder: Path, *args: str, options: Sequence[str] = ()) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLLSYN_RESULTS": "off"}
    return subprocess.Popen(
        [sys.executable, *options, "-m", "cli", *args],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def descendants(pid: int) -> list[int]:
    """Processes whose parent is that one."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def test_ctrl_c_leaves_the_best_so_far_and_no_process(tmp_path):
    # Of this machine the search takes far longer than the test, and workers have to do with all of it.
    asked = ("--collective", "allreduce", "--topology", "ndv2:5", "--jobs", "2", "--json")
    process = started(tmp_path, "synthesize", *asked)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert " us, " in line
    until = time.monotonic() + 60
    while len(workers := descendants(process.pid)) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(workers) == 2
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in stderr
    verify_schedule(read_schedule(tmp_path / json.loads(stdout)["file"])).raise_if_bad()
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


@pytest.mark.parametrize("wait_s", [0, 0.003, 0.01, 0.03, 0.1, 0.3])
def test_ctrl_c_while_it_loads_is_one_line(tmp_path, wait_s):
    process = started(tmp_path, *ASKED, options=["-X", "importtime"])
    assert process.stderr is not None
    # What comes before is Python's own start.
    for line in process.stderr:
        if line.rstrip().endswith("collsyn.errors"):
            break
    time.sleep(wait_s)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    said = [line for line in stderr.splitlines() if not line.startswith("import time:")]
    assert process.returncode == 130, said
    assert [line for line in said if line.strip()] == ["collsyn: error: interrupted"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_a_table_moves(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with _live.watched("allreduce on full:4") as watcher:
        watcher.tick(["greedy"])
        watcher.done(Candidate("ring", finish_s=3e-6, bound_s=2e-6), 0.5)
        watcher.done(Candidate("swing", refused="no"), 0.1)
        watcher.done(Candidate("direct", finish_s=2e-6, bound_s=2e-6, plan_s=2.5e-6), 0.25)
        table = watcher.table()
        assert [list(column.cells) for column in table.columns] == [
            ["direct", "ring", "greedy"],
            ["2", "3", "..."],
            ["2.5", "", ""],
            ["0.0%", "50.0%", ""],
            ["0.2", "0.5", "0.0"],
        ]
        assert table.title == "allreduce on full:4 (1 methods do not serve)"
    assert "direct" in screen.getvalue()


def test_elsewhere_every_schedule_is_one_line(monkeypatch):
    lines = io.StringIO()
    monkeypatch.setattr(sys, "stderr", lines)
    with _live.watched("allreduce on full:4") as watcher:
        watcher.tick(["greedy"])
        watcher.done(Candidate("ring", finish_s=3e-6, bound_s=2e-6), 0.5)
        watcher.done(Candidate("swing", refused="no"), 0.1)
        watcher.done(Candidate("ring", finish_s=3e-6, bound_s=2e-6, plan_s=4e-6), 0.5)
    assert lines.getvalue() == "ring: 3 us, 50.0% over the bound, 0.5 s\n"
