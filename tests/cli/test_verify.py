"""`collsyn verify`: what it prints, and how it ends."""

import json

import numpy as np
import pytest

from collsyn.model.plan_file import write_plan
from collsyn.model.schedule_file import write_schedule
from collsyn.model.topology_file import write_topology
from tests.support.hand_plans import swap_plan
from tests.support.mutate import edited
from tests.support.schedules import by_hand
from tests.support.topologies import zoo


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A right schedule, a right plan and a wrong schedule, in the working directory."""
    monkeypatch.chdir(tmp_path)
    good = by_hand("ring allgather")
    write_schedule(good, "good.json")
    write_plan(swap_plan(), "plan.json")
    write_schedule(edited(good, keep=np.arange(good.num_sends) != good.num_sends - 1), "bad.npz")
    return tmp_path


def test_a_right_schedule(files, run_cli):
    result = run_cli("verify", "good.json")
    assert (result.code, result.stderr) == (0, "")
    assert "good.json: schedule, right" in result.stdout
    assert "WRONG" not in result.stdout


def test_json_of_one_file_and_of_several(files, run_cli):
    one = json.loads(run_cli("verify", "good.json", "--json").stdout)
    assert set(one) == {"file", "kind", "ok", "checks", "problems"}
    assert (one["file"], one["kind"], one["ok"], one["problems"]) == ("good.json", "schedule", True, [])
    assert all(set(check) == {"name", "ok", "detail"} and check["ok"] for check in one["checks"])
    both = run_cli("verify", "good.json", "plan.json", "--json")
    assert both.code == 0
    assert [(doc["file"], doc["kind"]) for doc in json.loads(both.stdout)] == [
        ("good.json", "schedule"),
        ("plan.json", "plan"),
    ]


def test_a_wrong_schedule_ends_with_5_and_says_where(files, run_cli):
    result = run_cli("verify", "good.json", "bad.npz")
    assert result.code == 5
    assert "good.json: schedule, right" in result.stdout
    assert "bad.npz: schedule, WRONG" in result.stdout
    assert "is missing; expected the chunk, found nothing" in result.stdout
    assert result.stderr.startswith("collsyn: error: bad.npz: schedule is wrong (result): chunk ")
    assert result.stderr.count("\n") == 1


def test_json_of_a_wrong_schedule(files, run_cli):
    result = run_cli("verify", "bad.npz", "--json")
    assert result.code == 5
    document = json.loads(result.stdout)
    assert not document["ok"]
    assert [check["name"] for check in document["checks"] if not check["ok"]] == ["result"]
    (problem,) = document["problems"]
    assert set(problem) == {"where", "what", "expected", "found"}


@pytest.mark.parametrize("name, says", [("nowhere.json", "cannot be read"), ("star.yaml", "is collsyn-topology/1")])
def test_what_cannot_be_judged_ends_with_2(files, run_cli, name, says):
    write_topology(zoo("star"), "star.yaml")
    result = run_cli("verify", name)
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"collsyn: error: {name}:")
    assert says in result.stderr


def test_without_files(run_cli):
    result = run_cli("verify")
    assert result.code == 2
    assert "FILE" in result.stderr
