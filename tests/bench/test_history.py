"""Runs kept in files come back as they were, and damaged files are named in one line."""

import json
import subprocess

import numpy as np
import pytest

from collsyn.bench import history
from collsyn.bench.document import document
from collsyn.bench.history import MAX_RUNS, Key, Sample, append_run, current_commit, read_runs
from collsyn.bench.result import BenchResult, Timing
from collsyn.errors import InputError
from tests.bench.test_table import make_row

BLOCKS = (1e-3, 2e-3, 3e-3, 4e-3)
ROW = make_row(out_of_place=Timing(2.5e-3, 0, BLOCKS), launches=2, yardstick_s=tuple(2 * s for s in BLOCKS))
RESULT = BenchResult([ROW, make_row(out_of_place=Timing(None, 3))], {}, {"machine": {"cores": 2}})


def test_a_run_comes_back(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document(RESULT), indent=2))
    (run,) = read_runs(path)
    assert (run.commit, run.machine) == (None, {"cores": 2})
    # A row without a time is not a sample.
    ((key, sample),) = run.samples.items()
    assert key == Key.of(ROW)
    assert np.allclose(sample.blocks_s, Sample.of(ROW).blocks_s)
    assert np.allclose(sample.yardstick_s, [[2e-3, 4e-3], [6e-3, 8e-3]])


def test_lines_are_added_and_those_with_regressions_are_not_taken(tmp_path):
    path = tmp_path / "new folder" / "runs.jsonl"
    append_run(path, RESULT, [], "abc")
    append_run(path, RESULT, ["slow"], "bad")
    append_run(path, RESULT, [], None)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["commit"] for line in lines] == ["abc", "bad", None]
    assert lines[1]["regressions"] == ["slow"]
    assert [run.commit for run in read_runs(path)] == ["abc", None]


def test_of_many_runs_the_last_count(tmp_path):
    path = tmp_path / "runs.jsonl"
    for number in range(MAX_RUNS + 2):
        append_run(path, RESULT, [], str(number))
    runs = read_runs(path)
    assert (len(runs), runs[0].commit, runs[-1].commit) == (MAX_RUNS, "2", str(MAX_RUNS + 1))


@pytest.mark.parametrize(
    "change", [{"benchmark": "b"}, {"dtype": "int32"}, {"size_bytes": 4}, {"emulation_factor": 9.0}]
)
def test_other_measurements_have_other_keys(change):
    assert Key.of(make_row(**change)) != Key.of(ROW)


def test_emulated_times_are_other_measurements():
    assert Key.of(make_row(emulation_factor=9.0)) != Key.of(ROW)


def test_other_schedules_have_the_same_key():
    assert Key.of(make_row(source="other.json", method="direct", simulated_s=1.0)) == Key.of(ROW)


def changed(**changes):
    """The document with other keys in its first row."""
    whole = document(RESULT)
    whole["results"][0] |= changes
    return whole


@pytest.mark.parametrize(
    "content, told",
    [
        ("", "is empty"),
        ("{", "is not valid JSON"),
        (json.dumps({"version": 2}), "version: is not 3"),
        (json.dumps({**document(RESULT), "regressions": ["x"]}), "holds no run without a regression"),
        (json.dumps(changed(samples_us=[[1.0], [1.0, 2.0]])), "results[0].samples_us: expected a list of microseconds"),
        (json.dumps(changed(yardstick_us=[[1.0]])), "results[0].yardstick_us"),
        (json.dumps(changed(samples_us=[[-1.0]])), "results[0].samples_us: expected numbers above 0"),
        (json.dumps(changed(samples_us=["x"])), "samples_us"),
        (json.dumps(document(RESULT)) + "\n{}\n", "line 2:version"),
    ],
)
def test_damaged_files_are_named(tmp_path, content, told):
    path = tmp_path / "runs.jsonl"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_runs(path)
    assert told in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        append_run(tmp_path, RESULT, [], None)


def test_the_commit_is_that_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.delenv("COLLSYN_COMMIT", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert current_commit() is None
    git = ["git", "-c", "user.name=n", "-c", "user.email=e"]
    (tmp_path / "file").write_text("1")
    for command in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "m"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert current_commit() == head
    (tmp_path / "file").write_text("2")
    assert current_commit() == f"{head}+"
    monkeypatch.setenv("COLLSYN_COMMIT", "v1")
    assert current_commit() == "v1"


def test_without_git_there_is_no_commit(monkeypatch):
    monkeypatch.delenv("COLLSYN_COMMIT", raising=False)
    monkeypatch.setattr(history.subprocess, "run", lambda *a, **k: (_ for _ in ()).throw(OSError("no git")))
    assert current_commit() is None
