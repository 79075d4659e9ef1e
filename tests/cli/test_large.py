"""Files NAME.large from the command line: made, verified, timed, drawn in part; and what is refused in one line."""

import json

import numpy as np
import pytest

from collsyn.model import large_file
from collsyn.model.large_file import read_large
from collsyn.portfolio import large


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def document(result):
    assert result.code == 0, result.stderr
    return json.loads(result.stdout)


def make(run_cli, method="lockstep", topology="mesh:4x4", collective="allgather", *rest):
    asked = ("--collective", collective, "--topology", topology, "--size", "1M", "--method", method, "--chunks", "1")
    return run_cli("synthesize", *asked, "-o", "a.large", *rest)


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "allreduce"])
@pytest.mark.parametrize(("method", "topology"), [("lockstep", "mesh:4x4"), ("symmetric", "torus:4x4")])
def test_made_and_verified(run_cli, method, topology, collective):
    found = document(make(run_cli, method, topology, collective, "--json"))
    assert (found["method"], found["file"], found["chunks_per_rank"]) == (method, "a.large", 1)
    assert found["num_sends"] == 240 * (2 if collective == "allreduce" else 1)
    assert found["finish_us"] >= found["chunk_bound_us"] >= found["bound_us"] > 0
    assert document(run_cli("verify", "a.large", "--json"))["ok"]
    timed = document(run_cli("simulate", "a.large", "--json"))
    for key in ("finish_us", "chunk_bound_us", "steps", "num_sends", "method"):
        assert timed[key] == found[key], key


def test_a_person_sees_a_table(run_cli):
    result = make(run_cli)
    assert result.code == 0 and "lockstep" in result.stdout and "240 sends; wrote a.large" in result.stderr


def test_other_sizes(run_cli):
    make(run_cli)
    found = document(
        run_cli("simulate", "a.large", "--sizes", "1K:1M:32", "--topology", "mesh:4x4@alpha_us=9", "--json")
    )
    assert [entry["size_bytes"] for entry in found] == [1024, 32768, 1 << 20]
    assert found[0]["finish_us"] < found[1]["finish_us"] < found[2]["finish_us"]


@pytest.mark.parametrize(("method", "topology"), [("lockstep", "mesh:4x4"), ("symmetric", "torus:4x4")])
def test_drawings_show_some_ranks_in_a_window(run_cli, method, topology):
    make(run_cli, method, topology)
    lines = document(run_cli("simulate", "a.large", "--show-ranks", "0,1", "--window", "1us:3us", "--json"))["timeline"]
    assert "1 us" in lines[0] and "3 us" in lines[0]
    assert {line.split("->")[0].strip() for line in lines[1:]} == {"0", "1"}


def test_many_sends_choose_the_form(run_cli, monkeypatch):
    monkeypatch.setattr(large, "MANY_SENDS", 100)
    asked = ("synthesize", "--collective", "allgather", "--size", "1M", "--topology")
    found = document(run_cli(*asked, "mesh:5x3", "--json"))
    assert found["file"].endswith("allgather-mesh-5x3-1M.large") and found["method"] == "lockstep"
    assert document(run_cli(*asked, "torus:4x4", "-o", "none", "--json"))["file"] is None
    assert document(run_cli(*asked, "torus:4x4", "--method", "ring", "--json"))["file"].endswith(".json")


def test_what_can_only_be_listed_needs_the_memory(run_cli, monkeypatch):
    monkeypatch.setattr(large, "MANY_SENDS", 100)
    monkeypatch.setattr(large, "available_bytes", lambda: 5_000)
    result = run_cli("synthesize", "--collective", "allgather", "--topology", "switch:16", "-o", "none")
    assert result.code == 2 and "method auto: lists at least 240 sends, 0.0 GB" in result.stderr
    result = run_cli("synthesize", "--collective", "allgather", "--topology", "mesh:40x40", "--method", "ring")
    assert result.code == 2 and "Methods that need not: symmetric, lockstep" in result.stderr
    monkeypatch.setattr(large, "available_bytes", lambda: 500_000)
    asked = ("--collective", "allgather", "--topology", "switch:16", "--method", "direct", "-o", "none", "--json")
    assert document(run_cli("synthesize", *asked))["method"] == "direct"


def test_a_wrong_file_is_rejected(run_cli):
    make(run_cli)
    found = read_large("a.large")
    steps = np.array(found.steps)
    steps[2, 5] = 0
    large_file.write_large(type(found)(**{**vars(found), "steps": steps}), "a.large")
    result = run_cli("verify", "a.large")
    assert result.code == 5 and "at rank 2: takes a link that carries another chunk" in result.stderr
    result = run_cli("simulate", "a.large")
    assert result.code == 5


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("simulate a.large --plot x.svg", "too many here"),
        ("simulate a.large --show-ranks 99", "rank 99 is not there"),
        ("simulate a.large --window 3us:1us", "must rise"),
        ("simulate a.large --topology mesh:2x8", "wired differently"),
        ("synthesize --collective broadcast --topology mesh:4x4 -o b.large", "not broadcast"),
        ("synthesize --collective allgather --topology mesh:4x4 --method ring -o b.large", "has no form"),
        ("synthesize --collective allgather --topology switch:4 -o b.large", "links alone"),
    ],
)
def test_wrong_inputs_are_one_line(run_cli, command, message):
    make(run_cli)
    result = run_cli(*command.split())
    assert result.code == 2
    assert message in result.stderr and "Traceback" not in result.stderr


def test_small_ones_serve_where_schedules_do(run_cli):
    make(run_cli)
    result = run_cli("export", "a.large", "--format", "chrome-trace", "-o", "trace.json")
    assert result.code == 0, result.stderr
    assert document(
        run_cli(
            "compare",
            "--collective",
            "allgather",
            "--topology",
            "mesh:4x4",
            "--sizes",
            "1M:1M",
            "--methods",
            "ring",
            "--with",
            "a.large",
            "--json",
        )
    )


def test_a_small_one_is_repaired(run_cli):
    make(run_cli)
    asked = ("--collective", "allgather", "--topology", "mesh:4x4", "--size", "1M")
    result = run_cli("synthesize", *asked, "--warm-start", "a.large", "-o", "b.json", "--json")
    cost = document(result)["warm_start"]
    assert cost["kept_sends"] + cost["new_sends"] == 16 * 15 and run_cli("verify", "b.json").code == 0


def test_no_room_is_one_line(run_cli, monkeypatch):
    monkeypatch.setattr(large_file, "available_bytes", lambda: 0)
    monkeypatch.setattr(large_file.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10}))
    result = make(run_cli)
    assert result.code == 2 and "GB of memory and" in result.stderr
