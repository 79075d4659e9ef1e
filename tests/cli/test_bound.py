"""`collsyn bound`: its numbers, its certificate, and what it says to mistakes."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from collsyn.bounds import recheck
from collsyn.model.bound import Bound
from collsyn.model.collective import make_collective
from collsyn.model.topology_file import write_topology
from tests.support.topologies import build, ring_edges, zoo

M = 1 << 20


@pytest.fixture
def files(tmp_path):
    """Topology files, and others that options take."""
    for name, topology in {
        "ring": build(8, ring_edges(8), both=True),
        "boxes": zoo("two boxes"),
        "occupied": zoo("occupying ring"),
        "apart": build(4, [(0, 1), (2, 3)], both=True),
    }.items():
        write_topology(topology, tmp_path / f"{name}.yaml")
    (tmp_path / "counts.yaml").write_text("counts: [[0, 1, 1, 1], [9, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]]\n")
    (tmp_path / "custom.yaml").write_text(
        "schema: collsyn-collective/1\nkind: custom\nranks: 4\nchunks:\n  - {from: [0], to: [3], length: 1}\n"
    )
    return tmp_path


@pytest.fixture
def bound(run_cli, files):
    """The JSON document that a run prints."""

    def run(topology, *args):
        result = run_cli("bound", "--topology", files / f"{topology}.yaml", "--json", *args)
        assert (result.code, result.stderr) == (0, "")
        return json.loads(result.stdout)

    return run


def test_an_allgather_on_a_ring(bound):
    document = bound("ring", "--collective", "allgather", "--size", "1M")
    assert document["algbw_exact"] == "800/7"
    assert document["bound_us"] == pytest.approx(M * 7 / 8 / 100e3 + 0.5)
    assert document["chunk_bound_us"] == pytest.approx(4 * (0.5 + M / 8 / 50e3))
    assert document["model"] == "none"
    assert (document["collective"], document["num_ranks"], document["size_bytes"]) == ("allgather", 8, M)
    assert document["algbw_gb_s"] == pytest.approx(M / document["bound_us"] / 1e3)
    assert document["busbw_gb_s"] == pytest.approx(document["algbw_gb_s"] * 7 / 8)


def test_the_certificate_can_be_checked_again(bound):
    document = bound("boxes", "--collective", "all-gather", "--size", "1M")
    said = Bound(
        document["bound_us"] / 1e6,
        document["bound_kind"],
        "fluid",
        document["certificate"],
        Fraction(document["algbw_exact"]),
    )
    problem = make_collective("allgather", 4), zoo("two boxes"), M
    assert recheck(said, *problem) is None
    certificate = document["certificate"]
    assert certificate["kind"] in ("cut", "lengths", "path", "parts")
    arguments = document["arguments"]
    assert max(a["bound_us"] for a in arguments if a["scope"] == "fluid") == document["bound_us"]
    assert max(a["bound_us"] for a in arguments) == document["chunk_bound_us"]


@pytest.mark.parametrize(
    "args, exact",
    [
        (["--collective", "broadcast", "--root", "3"], "100"),
        (["--collective", "allgather", "--subset", "0-3"], "200/3"),
        (["--collective", "allreduce", "--groups", "0-1/2-3"], "100"),
        (["--collective", "reduce-scatter"], "800/7"),
    ],
)
def test_options_reach_the_problem(bound, args, exact):
    assert bound("ring", *args)["algbw_exact"] == exact


def test_counts_and_custom_collectives(bound, files):
    # Rank 1 sends all of the size, which is that of the largest buffer, over two links of 25 GB/s, one of which others
    # need, too (the optimum of a linear program).
    document = bound("occupied", "--collective", "alltoallv", "--counts", files / "counts.yaml")
    assert document["algbw_exact"] == "275/6"
    # All goes from one rank to another, over both links.
    document = bound("occupied", "--collective", "custom", "--spec", files / "custom.yaml")
    assert document["algbw_exact"] == "50"
    assert document["model"] == "alpha"


def test_more_chunks_lower_the_bound_on_whole_chunks(bound):
    one, four = (bound("ring", "--collective", "broadcast", "--chunks", n)["chunk_bound_us"] for n in (1, 4))
    assert four < one


def test_an_allreduce_has_the_bound_on_trees_beside_it(bound, run_cli, files):
    found = bound("boxes", "--collective", "allreduce", "--size", "1M")
    again = Bound(found["tree_bound_us"] * 1e-6, "dual", "tree", found["tree_certificate"])
    exact = Fraction(found["tree_algbw_exact"])
    ranks = found["num_ranks"]
    problem = make_collective("allreduce", ranks), zoo("two boxes"), M
    assert recheck(replace(again, algbw_exact=exact), *problem) is None
    assert exact <= Fraction(found["algbw_exact"])
    assert found["bound_kind"] != "dual"
    shown = run_cli("bound", "--topology", files / "boxes.yaml", "--collective", "allreduce")
    assert "trees up and down" in shown.stdout
    assert bound("boxes", "--collective", "allgather")["tree_bound_us"] is None


def test_the_table_lists_every_argument(run_cli, files):
    result = run_cli("bound", "--collective", "allreduce", "--topology", files / "boxes.yaml")
    assert result.code == 0
    for word in ("cut", "degree", "distance", "parts", "lengths", "spread", "fluid", "chunk", "no schedule is quicker"):
        assert word in result.stdout
    assert "overhead none" in result.stdout


@pytest.mark.parametrize(
    "args, code, words",
    [
        (["--collective", "allgather", "--topology", "apart.yaml"], 3, "rank 0 cannot reach rank 2"),
        (["--collective", "broadcast", "--topology", "ring.yaml", "--root", "8"], 2, "root: is 8; expected 0 .. 7"),
        (["--collective", "allgather", "--topology", "ring.yaml", "--size", "0"], 2, "positive whole number"),
        (["--collective", "allgather", "--topology", "ring.yaml", "--chunks", "0"], 2, "--chunks"),
        (["--collective", "allgather", "--topology", "ring.yaml", "--subset", "7,8"], 2, "rank 8 is not in topology"),
        (["--collective", "alltoallv", "--topology", "ring.yaml"], 2, "counts"),
        (["--collective", "alltoallv", "--topology", "ring.yaml", "--counts", "none.yaml"], 2, "none.yaml: cannot be"),
        (["--collective", "custom", "--topology", "ring.yaml", "--spec", "custom.yaml"], 2, "4 ranks"),
        (["--collective", "custom", "--topology", "ring.yaml"], 2, "--spec"),
        (["--collective", "allgather", "--topology", "nowhere.yaml"], 2, "nowhere.yaml: cannot be read"),
    ],
)
def test_mistakes_are_one_line(run_cli, files, args, code, words):
    result = run_cli("bound", *args, cwd=files)
    assert result.code == code
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert words in result.stderr
