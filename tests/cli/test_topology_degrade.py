"""`collsyn topology degrade` and `synthesize --warm-start`: what fails, what it costs, and one line for mistakes."""

import json

import pytest

from collsyn.topology.resolve import load_topology


def test_a_schedule_survives_a_failure(run_cli, tmp_path):
    whole, rest, repaired = (str(tmp_path / name) for name in ("whole.json", "rest.yaml", "repaired.json"))
    asked = ("synthesize", "--collective", "allgather", "--size", "1M")
    assert run_cli(*asked, "--topology", "torus:3x3", "--method", "paths", "-o", whole).code == 0
    done = run_cli("topology", "degrade", "torus:3x3", "--drop-link", "0-1", "--drop-rank", "4", "-o", rest, "--json")
    document = json.loads(done.stdout)
    assert done.code == 0 and document["kept_ranks"] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert document["num_links"] == {"before": 36, "after": load_topology(rest).num_links}
    assert all(row["after_us"] >= row["before_us"] * 0.8 for row in document["bounds"])
    done = run_cli(*asked, "--topology", rest, "--warm-start", whole, "-o", repaired, "--json")
    cost = json.loads(done.stdout)["warm_start"]
    assert done.code == 0 and cost["kept_sends"] > 0 and cost["bound_us"] > 0
    assert run_cli("verify", repaired).code == 0
    again = run_cli(*asked, "--topology", rest, "--warm-start", whole, "-o", "none")
    assert "the failure costs: bound" in again.stderr


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("mesh:2x2",), 2, "nothing fails"),
        (("mesh:2x2", "--drop-link", "0-3"), 2, "0 is joined to 1, 2"),
        (("mesh:2x2", "--slow-link", "0-1=2"), 2, "a part above 0 and up to 1"),
        (("mesh:2x2", "--slow-link", "0-1"), 2, "expected A-B=0.5"),
        (("ring:6", "--drop-rank", "1,4"), 3, "ranks 2, 3 are cut off"),
    ],
)
def test_mistakes_are_one_line(run_cli, tmp_path, words, code, told):
    done = run_cli("topology", "degrade", *words, "-o", str(tmp_path / "rest.yaml"))
    assert (done.code, done.stdout) == (code, "") and told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "rest.yaml").exists()


def test_a_warm_start_needs_a_schedule_of_the_problem(run_cli, tmp_path):
    whole = str(tmp_path / "whole.json")
    asked = ("synthesize", "--topology", "ring:3", "--size", "1M")
    assert run_cli(*asked, "--collective", "allgather", "--method", "ring", "-o", whole).code == 0
    for more, told in (
        (("--collective", "broadcast", "--warm-start", whole), "is a schedule of allgather, not of broadcast"),
        (("--collective", "allgather", "--warm-start", whole, "--method", "ring"), "leave out --method"),
        (("--collective", "allgather", "--warm-start", str(tmp_path / "none.json")), "cannot be read"),
        (("--collective", "allgather", "--warm-start", whole, "-o", "x.large"), "does not end in .large"),
    ):
        done = run_cli(*asked, *more)
        assert done.code == 2 and told in done.stderr
