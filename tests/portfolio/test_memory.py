"""What is kept answers the same problem only, and is believed only after it was verified again."""

import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from collsyn.model.schedule_file import schedule_bytes, schedule_text
from collsyn.portfolio import memory as module
from collsyn.portfolio.auto import best
from collsyn.portfolio.memory import Memory
from collsyn.synth.problem import Options, Problem
from collsyn.topology.resolve import load_topology

NAMES = ("ring", "two-way-ring", "doubling")


@pytest.fixture
def problem():
    return Problem("allgather", load_topology("ring:4"), 1 << 16)


@pytest.fixture
def memory(tmp_path):
    return Memory(tmp_path / "results")


@pytest.fixture
def kept(problem, memory):
    """A result in the folder, and its file."""
    found = best(problem, Options(), NAMES)
    file = memory.file(problem, Options(), "auto", None)
    assert memory.keep(file, found) is None
    return found, file


def test_a_result_comes_back_as_it_was(problem, memory, kept):
    found, file = kept
    again, damage = memory.recall(file, problem)
    assert damage is None
    assert schedule_text(again[0].schedule) == schedule_text(found[0].schedule)
    assert [replace(each, schedule=None, loading_s=0.0) for each in again] == [
        replace(each, schedule=None, loading_s=0.0) for each in found
    ]
    assert [each.gap for each in again] == [each.gap for each in found]


def test_every_part_of_a_problem_counts(problem, memory, monkeypatch):
    asked = [
        (problem, Options(), "auto", None),
        (replace(problem, size_bytes=1 << 17), Options(), "auto", None),
        (replace(problem, kind="allreduce"), Options(), "auto", None),
        (replace(problem, chunks_per_rank=1), Options(), "auto", None),
        (replace(problem, chunks_per_rank=2), Options(), "auto", None),
        (replace(problem, groups=((0, 1), (2, 3))), Options(), "auto", None),
        (replace(problem, topology=load_topology("ring:4@alpha_us=1")), Options(), "auto", None),
        (replace(problem, kind="broadcast"), Options(), "auto", None),
        (replace(problem, kind="broadcast", root=1), Options(), "auto", None),
        (problem, Options(seed=1), "auto", None),
        (problem, Options(time_limit_s=3.0), "auto", None),
        (problem, Options(), "ring", None),
        (problem, Options(), "auto", True),
    ]
    files = [memory.file(*row) for row in asked]
    assert len(set(files)) == len(files)
    assert memory.file(*asked[0]) == files[0]
    # Who watches does not count.
    assert memory.file(problem, Options(progress=lambda share, detail: None), "auto", None) == files[0]
    monkeypatch.setattr(module, "fingerprint", lambda: "other code")
    assert memory.file(*asked[0]) != files[0]


def damaged(file, how):
    content = file.read_bytes()
    if how == "cut off":
        return content[: len(content) // 2]
    if how == "empty":
        return b""
    if how == "text":
        return b"{}"
    if how == "bit":
        at = content.index(b"schedule.npz") + 400
        return content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :]
    raise AssertionError(how)


@pytest.mark.parametrize("how", ["cut off", "empty", "text", "bit"])
def test_what_is_damaged_is_named_and_not_believed(how, problem, memory, kept):
    _, file = kept
    file.write_bytes(damaged(file, how))
    found, damage = memory.recall(file, problem)
    assert found is None and str(file) in damage and damage.endswith("it is made anew") and "\n" not in damage


def rewritten(file, document=None, schedule=None):
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    if document is not None:
        parts["result.json"] = json.dumps(document(json.loads(parts["result.json"]))).encode()
    if schedule is not None:
        parts["schedule.npz"] = schedule_bytes(schedule, "schedule.npz")
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def test_a_wrong_schedule_or_one_of_another_problem_is_not_believed(problem, memory, kept):
    found, file = kept
    right = found[0].schedule
    rewritten(file, schedule=right.with_times(np.zeros(right.num_sends), right.size_bytes))
    assert memory.recall(file, problem)[0] is None
    assert "is wrong" in memory.recall(file, problem)[1]
    for other in (
        replace(problem, size_bytes=1 << 10),
        replace(problem, topology=load_topology("ring:4@alpha_us=1")),
        replace(problem, kind="reducescatter"),
    ):
        rewritten(file, schedule=best(other, Options(), ["ring"])[0].schedule)
        assert "another problem" in memory.recall(file, problem)[1]


@pytest.mark.parametrize(
    "change",
    [
        lambda document: {**document, "schema": "collsyn-result/0"},
        lambda document: {**document, "candidates": []},
        lambda document: {"schema": document["schema"]},
        lambda document: {**document, "candidates": [{}]},
        lambda document: [],
    ],
)
def test_what_says_something_else_is_not_believed(change, problem, memory, kept):
    _, file = kept
    rewritten(file, document=change)
    found, damage = memory.recall(file, problem)
    assert found is None and "is not a whole result" in damage


def test_what_was_cut_short_is_not_kept(problem, memory, kept):
    found, file = kept
    file.unlink()
    for short in ({"interrupted": True}, {"lost": True}):
        assert memory.keep(file, [found[0], replace(found[1], **short), *found[2:]]) is None
        assert not file.exists()


def test_a_folder_that_cannot_be_written_is_said(problem, tmp_path, kept):
    (tmp_path / "file").write_text("")
    memory = Memory(tmp_path / "file" / "results")
    file = memory.file(problem, Options(), "auto", None)
    assert memory.recall(file, problem) == (None, None)
    assert memory.keep(file, kept[0]).startswith("not kept for later: ")


def test_those_not_used_longest_go(problem, memory, kept, monkeypatch):
    import os

    found, file = kept
    size = file.stat().st_size
    monkeypatch.setattr(module, "MAX_BYTES", int(2.5 * size))
    os.utime(file, (1, 1))
    files = []
    for seed in (1, 2):
        files.append(memory.file(problem, Options(seed=seed), "auto", None))
        memory.keep(files[-1], found)
        os.utime(files[-1], (1 + seed, 1 + seed))
    assert not file.exists() and {path for path, _, _ in memory.entries()} == set(files)
    assert memory.clear() == 2 and memory.entries() == []


def test_many_at_once_never_see_half_of_a_result(problem, memory, kept):
    found, file = kept

    def work(number):
        if number % 2:
            memory.keep(file, found)
            return True
        again, damage = memory.recall(file, problem)
        return again is not None and damage is None

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))


def test_nothing_is_kept_where_it_is_off(problem, kept, monkeypatch):
    monkeypatch.setenv("COLLSYN_RESULTS", "off")
    memory = Memory.usual()
    file = memory.file(problem, Options(), "auto", None)
    assert file is None and memory.recall(file, problem) == (None, None) and memory.keep(file, kept[0]) is None
    assert memory.entries() == [] and memory.clear() == 0
