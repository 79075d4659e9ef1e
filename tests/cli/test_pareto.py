"""`collsyn pareto`: the set, what was tried in vain, and one line for what is too large."""

import json

from tests.conftest import RunCli


def test_the_set_of_a_ring_with_its_proofs(run_cli: RunCli) -> None:
    done = run_cli("pareto", "--collective", "allgather", "--topology", "ring:4", "--json")
    assert done.code == 0, done.stderr
    document = json.loads(done.stdout)
    assert [(one["chunks"], one["steps"], one["rounds"]) for one in document["instances"]] == [(2, 2, 3)]
    assert document["instances"][0]["guarantee"] == "fewest rounds a chunk in 2 steps, for any number of chunks"
    assert document["complete"] is True
    assert document["bytes_ratio"] == ["3/2"]


def test_the_table_says_what_is_proven(run_cli: RunCli) -> None:
    done = run_cli("pareto", "--collective", "alltoall", "--topology", "dgx1", "--max-chunks", "1")
    assert done.code == 0, done.stderr
    assert "(1,2,3)" in done.stdout
    assert "rounds a chunk that the links need in any number of steps: 8/3" in done.stderr


def test_impossible_and_too_large_are_one_line(run_cli: RunCli) -> None:
    asked = ["--collective", "alltoall", "--topology", "dgx1"]
    done = run_cli("synthesize", *asked, "--method", "exact:1/2/2", "-o", "none")
    assert done.code == 3
    assert "(1,2,2) of alltoall is impossible: 2 steps need at least 8/3 rounds a chunk" in done.stderr
    done = run_cli("pareto", "--collective", "allgather", "--topology", "ndv2:2")
    assert done.code == 2
    assert "more than 800" in done.stderr
