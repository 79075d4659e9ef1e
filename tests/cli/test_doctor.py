"""`collsyn doctor`: the table, the document, the exit code, on machines that are not there and on this one."""

import json

import pytest

from collsyn.doctor import diagnose
from collsyn.doctor.diagnose import CHECKS
from collsyn.doctor.system import Answer
from tests.support.machines import FakeSystem, gpu_machine

SMALL_SHM = {"spaces": {"/dev/shm": (64 << 20, 64 << 20)}}
BROKEN = {"probes": {("launch", "fork"): Answer({"error": "cannot reach /home/ada/x"})}}


@pytest.fixture
def machine(monkeypatch):
    """Puts a machine in place of this one."""
    return lambda system: monkeypatch.setattr(diagnose, "System", lambda: system)


def test_a_sound_machine_is_ok(machine, run_cli):
    machine(FakeSystem())
    done = run_cli("doctor", "--json")
    document = json.loads(done.stdout)
    assert (done.code, document["ok"], document["problems"], document["warnings"]) == (0, True, [], [])
    assert document["schema"] == "collsyn-doctor/1"
    named = [check["name"] for check in document["checks"] + document["not_made"]]
    assert sorted(named) == sorted(CHECKS)
    assert {one["name"] for one in document["not_made"]} == {"peer-access", "ipc"}
    assert all(check.keys() == {"name", "status", "detail", "remedy", "facts"} for check in document["checks"])


def test_a_machine_with_gpus_has_all_checks(machine, run_cli):
    machine(gpu_machine())
    document = json.loads(run_cli("doctor", "--json").stdout)
    assert [check["name"] for check in document["checks"]] == list(CHECKS)
    assert document["ok"]


def test_warnings_leave_the_code_zero_and_have_remedies(machine, run_cli):
    machine(FakeSystem(**SMALL_SHM))
    done = run_cli("doctor")
    assert done.code == 0
    assert "shm: docker run --shm-size=8g" in done.stdout
    assert "not tried: no GPU that CuPy sees" in done.stdout
    document = json.loads(run_cli("doctor", "--json").stdout)
    assert (document["ok"], document["warnings"]) == (True, ["shm"])


def test_problems_exit_with_6_and_one_line(machine, run_cli):
    machine(FakeSystem(**SMALL_SHM, **BROKEN))
    for arguments in (("doctor",), ("doctor", "--json")):
        done = run_cli(*arguments)
        assert done.code == 6
        assert done.stderr == "collsyn: error: 1 problem on this machine: ranks\n"
    document = json.loads(done.stdout)
    assert (document["ok"], document["problems"], document["warnings"]) == (False, ["ranks"], ["shm"])


def test_the_home_is_not_named(machine, run_cli):
    machine(FakeSystem(**BROKEN))
    for arguments in (("doctor",), ("doctor", "--json")):
        assert "/home/ada" not in run_cli(*arguments).stdout
        assert "~/x" in run_cli(*arguments).stdout


def test_every_warning_and_problem_has_a_remedy_and_every_ok_has_none(machine, run_cli):
    system = gpu_machine()
    system.probes = dict.fromkeys(system.probes, Answer(None, "was ended by SIGSEGV"))
    system.commands = {}
    system.spaces = {}
    machine(system)
    document = json.loads(run_cli("doctor", "--json").stdout)
    assert len(document["problems"]) >= 4
    for check in document["checks"]:
        assert (check["remedy"] is None) == (check["status"] == "ok"), check


def test_this_machine_is_examined(run_cli):
    done = run_cli("doctor", "--json", new_process=True)
    document = json.loads(done.stdout)
    assert done.code == (0 if document["ok"] else 6)
    assert "ranks" in {check["name"] for check in document["checks"] if check["status"] == "ok"}
