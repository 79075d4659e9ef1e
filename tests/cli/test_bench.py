"""`collsyn bench`: the table and JSON it prints, the files it finds, and what it refuses."""

import json

import click
import pytest

from cli import bench
from collsyn.model.plan_file import write_plan
from collsyn.model.schedule_file import write_schedule
from collsyn.portfolio.auto import best_schedule
from collsyn.runtime.mpirun import find_mpirun, has_mpi
from collsyn.synth.problem import Options, Problem
from collsyn.topology.resolve import load_topology
from tests.runtime.plans import put_allgather

SMALL = ("-b", "4K", "-e", "16K", "-f", 4, "-n", 4)

needs_mpi = pytest.mark.skipif(not has_mpi() or find_mpirun() is None, reason="needs mpi4py and an mpirun")


@pytest.fixture
def schedules(tmp_path):
    """A folder with the schedules of an allgather and a broadcast from rank 1, where `bench` looks for them."""
    folder = tmp_path / "collsyn-out" / "schedules"
    for kind, root in (("allgather", None), ("broadcast", 1)):
        problem = Problem(kind, load_topology("full:3"), 1 << 16, root=root)
        schedule = best_schedule(problem, Options(), "direct" if root is None else "binomial")
        write_schedule(schedule, folder / f"{kind}.json")
    return folder


def rows(stdout):
    """Lines of numbers, as words."""
    return [line.split() for line in stdout.splitlines() if line and not line.startswith("#")]


def test_a_file_gives_the_table_of_nccl_tests(run_cli, schedules):
    result = run_cli("bench", schedules / "allgather.json", "-d", "half", *SMALL)
    assert result.code == 0, result.stderr
    found = rows(result.stdout)
    assert [row[:5] for row in found] == [
        ["4092", "682", "half", "none", "-1"],
        ["16380", "2730", "half", "none", "-1"],
    ]
    for row in found:
        assert len(row) == 15
        assert (row[8], row[12]) == ("0", "0")
        assert all(float(cell) >= 0 for cell in row[5:])
    assert "# Out of bounds values : 0 OK" in result.stdout
    assert "# Avg bus bandwidth    :" in result.stdout
    assert "4096, 16384 bytes rounded down" in result.stdout


def test_without_arguments_the_newest_of_every_collective_run(run_cli, schedules, tmp_path):
    result = run_cli("bench", *SMALL, "-o", "max", cwd=tmp_path)
    assert result.code == 0, result.stderr
    assert "taking collsyn-out/schedules/allgather.json, collsyn-out/schedules/broadcast.json" in result.stderr
    assert [row[4] for row in rows(result.stdout)] == ["-1", "-1", "1", "1"]
    assert result.stdout.count("out-of-place") == 2
    assert result.stdout.count("Out of bounds") == 1


def test_json_and_output_file_are_the_same_document(run_cli, schedules, tmp_path):
    output = tmp_path / "rows.json"
    result = run_cli("bench", schedules / "broadcast.json", "--json", "--output", output, *SMALL)
    assert result.code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document == json.loads(output.read_text())
    assert [row["size"] for row in document["results"]] == [4096, 16384]
    for row in document["results"]:
        assert (row["collective"], row["method"], row["root"]) == ("broadcast", "binomial", 1)
        assert row["simulated_us"] >= row["bound_us"] * (1 - 1e-9) > 0
        assert row["out_of_place"]["nwrong"] == row["in_place"]["nwrong"] == 0
    assert document["provenance"]["launcher"] == "fork"
    assert [device["rank"] for device in document["config"]["devices"]] == [0, 1, 2]


def test_a_plan_file_runs_without_a_model(run_cli, tmp_path):
    write_plan(put_allgather(2), tmp_path / "plan.json")
    result = run_cli("bench", tmp_path / "plan.json", "-c", 0, *SMALL)
    assert result.code == 0, result.stderr
    assert {(row[8], row[12]) for row in rows(result.stdout)} == {("N/A", "N/A")}
    assert all(row[13:] == ["N/A", "N/A"] for row in rows(result.stdout))


def test_a_collective_is_made_on_the_spot(run_cli, tmp_path):
    arguments = ("bench", "--collective", "scatter", "--method", "direct", "--topology", "full:4", "--subset", "0,2,3")
    result = run_cli(*arguments, "-r", 2, "--json", *SMALL, cwd=tmp_path)
    assert result.code == 0, result.stderr
    found = json.loads(result.stdout)["results"]
    assert [(row["collective"], row["root"], row["count"]) for row in found] == [
        ("scatter", 2, 341),
        ("scatter", 2, 1365),
    ]
    assert {row["method"] for row in found} == {"direct"}


def test_the_table_names_what_auto_chose(run_cli):
    result = run_cli("bench", "--collective", "allreduce", "--topology", "full:2", "--launcher", "fork", *SMALL)
    assert result.code == 0, result.stderr
    assert "# allreduce of auto, 2 ranks" in result.stdout
    named = [line.split()[2] for line in result.stdout.splitlines() if line.startswith("# method ")]
    assert 1 <= len(named) <= len(rows(result.stdout))
    assert "auto" not in named


@needs_mpi
def test_against_mpi(run_cli, schedules):
    result = run_cli("bench", schedules / "allgather.json", "--against", "mpi", "-a", "3", *SMALL)
    assert result.code == 0, result.stderr
    assert "x ours" in result.stdout
    for row in rows(result.stdout):
        assert len(row) == 18
        low, high = (float(end) for end in row[17].split(".."))
        assert low <= float(row[16]) <= high


@needs_mpi
def test_inside_the_users_own_job(schedules, tmp_path):
    import os
    import subprocess
    import sys

    from tests.conftest import REPOSITORY

    command = [*find_mpirun(), "-n", "3", sys.executable, "-m", "cli", "bench", "collsyn-out/schedules/allgather.json"]
    done = subprocess.run(
        [*command, *map(str, SMALL)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Rank 0 alone speaks.
    assert len(rows(done.stdout)) == 2
    assert done.stdout.count("Out of bounds") == 1


@pytest.mark.parametrize(
    "arguments, code, told",
    [
        (("--backend", "cuda"), 6, "cuda"),
        (("allgather.json", "--ranks", 4), 2, "is for 3 ranks"),
        (("allgather.json", "-r", 1), 2, "no root"),
        (("broadcast.json", "-r", 0), 2, "has root 1"),
        (("allgather.json", "-b", "1M", "-e", "1K"), 2, "larger than the largest"),
        (("allgather.json", "-f", 1), 2, "stepfactor"),
        (("allgather.json", "-b", 1, "-e", 4), 2, "whole element"),
        (("allgather.json", "-d", "float8"), 2, "float8"),
        (("allgather.json", "-o", "xor"), 2, "xor"),
        (("allgather.json", "--against", "nccl"), 2, "nccl"),
        (("allgather.json", "--against", "mpi", "--launcher", "fork"), 2, "fork"),
        (("allgather.json", "--collective", "allgather"), 2, "exclude"),
        (("allgather.json", "--method", "ring"), 2, "--collective"),
        (("missing.json",), 2, "missing.json"),
        (("--collective", "allgather"), 2, "collsyn profile"),
        (("--collective", "allgather", "--topology", "full:3", "--method", "magic"), 2, "magic"),
        (("--collective", "broadcast", "--topology", "full:3", "-r", 3), 2, "root"),
        ((), 2, "collsyn synthesize"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(run_cli, schedules, arguments, code, told):
    result = run_cli("bench", *arguments, cwd=schedules)
    assert result.code == code, result
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.stderr
    assert not rows(result.stdout)


def test_a_wrong_result_is_exit_code_5(run_cli, schedules, monkeypatch):
    from collsyn.bench import data

    counted = data.Pattern.wrong_elements
    monkeypatch.setattr(
        data.Pattern, "wrong_elements", lambda self, rank, output: counted(self, rank, output) + (rank == 1)
    )
    result = run_cli("bench", schedules / "allgather.json", *SMALL)
    assert result.code == 5
    assert "wrong elements" in result.stderr
    assert "# Out of bounds values : 4 FAILED" in result.stdout
    assert all(row[5:9] == ["N/A", "N/A", "N/A", "1"] for row in rows(result.stdout))


@pytest.mark.parametrize("given, name", [("float", "float32"), ("HALF", "float16"), ("bfloat16", "bfloat16")])
def test_names_of_types(given, name):
    assert bench.dtype_name(given) == name


@pytest.mark.parametrize("given, how", [("0", "rank0"), ("1", "avg"), ("2", "min"), ("3", "max"), ("max", "max")])
def test_averages(given, how):
    assert bench.average(given) == how


@pytest.mark.parametrize("given", ["4", "-1", "median", ""])
def test_unknown_averages(given):
    with pytest.raises(click.BadParameter):
        bench.average(given)
