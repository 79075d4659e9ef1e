"""`collsyn export`: files it writes, what it says, and how it ends."""

import json

import pytest

from collsyn.model.schedule_file import write_schedule
from tests.support.mutate import edited
from tests.support.schedules import by_hand


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A schedule in the working directory."""
    monkeypatch.chdir(tmp_path)
    write_schedule(by_hand("ring allgather"), "good.json")
    return tmp_path


def test_a_file_that_verify_and_simulate_take(folder, run_cli):
    result = run_cli("export", "good.json", "--format", "msccl-xml", "-o", "a.xml")
    assert (result.code, result.stderr) == (0, "")
    assert "wrote a.xml" in result.stdout
    verified = json.loads(run_cli("verify", "a.xml", "--json").stdout)
    assert (verified["kind"], verified["ok"]) == ("msccl-xml", True)
    timed = run_cli("simulate", "a.xml", "--topology", "ring:5", "--sizes", "1K:1M:32", "--json")
    assert [doc["plan_us"] > 0 for doc in json.loads(timed.stdout)] == [True] * 3
    alone = run_cli("simulate", "a.xml")
    assert alone.code == 2
    assert "names no topology; give one with --topology" in alone.stderr


def test_a_file_that_is_wrong_is_named_by_gpu_thread_block_and_step(folder, run_cli):
    run_cli("export", "good.json", "--format", "msccl-xml", "-o", "a.xml")
    text = (folder / "a.xml").read_text()
    (folder / "b.xml").write_text(text.replace('type="s"', 'type="cpy"', 1))
    for command in (["verify", "b.xml"], ["simulate", "b.xml", "--topology", "ring:5"]):
        result = run_cli(*command)
        assert result.code == 5
        assert result.stderr.startswith("collsyn: error: b.xml: msccl-xml is wrong (channels): gpu ")
        assert result.stderr.count("\n") == 1


def test_facts_as_json_and_the_default_folder(folder, run_cli):
    document = json.loads(run_cli("export", "good.json", "--format", "msccl-xml", "--dialect", "rccl", "--json").stdout)
    assert (folder / document["file"]).is_file()
    assert document["file"].startswith("collsyn-out/export/allgather-")
    assert (document["dialect"], document["collective"], document["num_ranks"]) == ("rccl", "allgather", 5)


def test_a_folder_for_the_reader_that_wants_a_list(folder, run_cli):
    result = run_cli("export", "good.json", "--format", "msccl-xml", "--dialect", "msccl", "-o", f"{folder}")
    assert result.code == 0
    assert sorted(path.suffix for path in folder.glob("*.xml")) == [".xml"] * 3
    assert (folder / "msccl_config.xml").is_file()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["good.json", "--format", "nothing"], 2, "--format: 'nothing' is not known"),
        (["good.json", "--format", "msccl-xml", "--dialect", "x"], 2, "--dialect: 'x' is not known"),
        (["none.json", "--format", "msccl-xml"], 2, "none.json: cannot be read"),
        (["good.json", "--format", "msccl-xml", "-o", "good.json/a.xml"], 2, "cannot be written"),
        (["good.json", "good.json", "--format", "msccl-xml"], 2, "one file a size"),
        (["bad.json", "--format", "msccl-xml"], 5, "bad.json: schedule is wrong"),
        (["good.json"], 2, "--format"),
    ],
)
def test_what_cannot_be_ends_in_one_line(folder, run_cli, arguments, code, words):
    good = by_hand("ring allgather")
    write_schedule(edited(good, keep=[row > 3 for row in range(good.num_sends)]), "bad.json")
    result = run_cli("export", *arguments)
    assert result.code == code
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
