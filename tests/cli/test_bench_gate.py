"""`collsyn bench` as a gate: suites, baselines with exit code 7, histories, JUnit."""

import json
from xml.etree import ElementTree

import pytest

SUITE = """\
schema: collsyn-suite/1
name: tiny
topology: full:2
launches: 2
iterations: 4
benchmarks:
  - {collective: allgather, method: direct, sizes: [4K, 16K]}
  - {name: summed, collective: allreduce, method: ring, sizes: [4K]}
rules:
  - {name: any, max_slowdown: 0.05}
"""


@pytest.fixture
def suite(tmp_path):
    """A suite of three rows that runs in no time."""
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE)
    return path


@pytest.fixture
def history(run_cli, suite, tmp_path):
    """Three runs of the suite, as lines of JSON: one, and two that are alike."""
    path = tmp_path / "runs.jsonl"
    result = run_cli("bench", "--suite", suite, "--append", path, env={"COLLSYN_COMMIT": "c0ffee"})
    assert result.code == 0, result.stderr
    path.write_text(path.read_text() * 3)
    return path


def scaled(history, path, factor):
    """The history with other times, as if the machine had been `factor` times as slow."""
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    for line in lines:
        for row in line["results"]:
            row["samples_us"] = [[us * factor for us in launch] for launch in row["samples_us"]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_suite_runs_and_is_appended(history):
    line = json.loads(history.read_text().splitlines()[0])
    assert (line["commit"], line["regressions"]) == ("c0ffee", [])
    assert [(row["benchmark"], row["size"]) for row in line["results"]] == [
        ("allgather", 4096),
        ("allgather", 16384),
        ("summed", 4096),
    ]
    for row in line["results"]:
        assert [len(launch) for launch in row["samples_us"]] == [4, 4]
        assert [len(launch) for launch in row["yardstick_us"]] == [4, 4]
        assert row["in_place"] is None
        assert row["out_of_place"]["nwrong"] == 0


def test_slower_than_the_baseline_is_exit_code_7(run_cli, suite, history, tmp_path):
    past = scaled(history, tmp_path / "quick.jsonl", 1e-3)
    junit, runs = tmp_path / "bench.xml", tmp_path / "out.jsonl"
    result = run_cli("bench", "--suite", suite, "--baseline", past, "--junit", junit, "--append", runs)
    assert result.code == 7, result
    assert result.stderr.splitlines()[-1].startswith(f"collsyn: error: {past}: allgather 4096 bytes")
    assert "rows again, which look slower" in result.stderr
    assert result.stdout.count("SLOWER") == 3
    root = ElementTree.parse(junit).getroot()
    assert (root.get("name"), root.get("tests"), root.get("failures")) == ("tiny", "3", "3")
    (line,) = runs.read_text().splitlines()
    assert len(json.loads(line)["regressions"]) == 3
    # Such a run is no baseline for later ones.
    refused = run_cli("bench", "--suite", suite, "--baseline", runs)
    assert (refused.code, "without a regression" in refused.stderr) == (2, True)


def test_quicker_than_the_baseline_is_fine(run_cli, suite, history, tmp_path):
    past = scaled(history, tmp_path / "slow.jsonl", 1e3)
    junit = tmp_path / "bench.xml"
    result = run_cli("bench", "--suite", suite, "--baseline", past, "--junit", junit)
    assert result.code == 0, result.stderr
    assert result.stdout.count("faster") == 3
    root = ElementTree.parse(junit).getroot()
    assert root.get("failures") == "0"
    assert "earlier runs" in root.findtext(".//system-out")


def test_an_output_file_is_a_baseline_too(run_cli, tmp_path):
    arguments = (
        "bench",
        "--collective",
        "allgather",
        "--method",
        "direct",
        "--topology",
        "full:2",
        "-b",
        "4K",
        "-e",
        "4K",
    )
    output = tmp_path / "base.json"
    assert run_cli(*arguments, "-n", 4, "--launches", 2, "--output", output).code == 0
    document = json.loads(output.read_text())
    assert document["config"]["launches"] == 2
    document["results"][0]["samples_us"] = [[1e9] * 4] * 2
    output.write_text(json.dumps(document))
    assert document["results"][0]["baseline"] is None
    result = run_cli(*arguments, "-n", 4, "--launches", 2, "--baseline", output, "--max-slowdown", 0.5, "--json")
    assert result.code == 0, result.stderr
    (row,) = json.loads(result.stdout)["results"]
    found = row["baseline"]
    assert (found["verdict"], found["runs"], found["max_slowdown"], row["complaints"]) == ("faster", 1, 0.5, [])
    assert found["low"] <= found["ratio"] <= found["high"] < 1


def test_a_baseline_of_another_machine_is_noted(run_cli, suite, history, tmp_path):
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    lines[0]["provenance"]["machine"]["cores"] = 4096
    history.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run_cli("bench", "--suite", suite, "--baseline", history, "--max-slowdown", 10)
    assert "1 of 3 runs were on another kind of machine" in result.stderr


def test_a_baseline_of_something_else_is_refused(run_cli, suite, history):
    suite.write_text(SUITE.replace("[4K, 16K]", "[4K]"))
    result = run_cli("bench", "--suite", suite, "--baseline", history, "--max-slowdown", 10)
    assert "of the rows of the last run there, not run now: 1" in result.stderr
    suite.write_text(SUITE.replace("4K", "8K").replace("16K", "32K"))
    result = run_cli("bench", "--suite", suite, "--baseline", history)
    assert result.code == 2
    assert "has none of the rows that were run" in result.stderr.splitlines()[-1]


def test_two_files_of_a_collective_are_two_measurements(run_cli, tmp_path):
    for method in ("direct", "ring"):
        arguments = ("--collective", "allgather", "--topology", "full:2", "--method", method, "--size", "4K")
        assert run_cli("synthesize", *arguments, "-o", tmp_path / f"{method}.json").code == 0
    output = tmp_path / "both.json"
    sizes = ("-b", "4K", "-e", "4K", "-n", 4)
    assert run_cli("bench", tmp_path / "direct.json", tmp_path / "ring.json", *sizes, "--output", output).code == 0
    assert [row["benchmark"] for row in json.loads(output.read_text())["results"]] == ["direct", "ring"]


def test_limits_of_a_suite_need_no_baseline(run_cli, suite):
    suite.write_text(SUITE + "  - {name: dream, benchmarks: [summed], min_busbw_gb_s: 1000000}\n")
    result = run_cli("bench", "--suite", suite)
    assert result.code == 7
    assert "rule dream wants 1e+06" in result.stderr


@pytest.mark.parametrize(
    "arguments, told",
    [
        (("--suite", "nightly"), "'nightly' is neither a file nor one that ships"),
        (("--suite", "missing.yaml"), "missing.yaml: cannot be read"),
        (("--suite", "suite.yaml", "-b", "1K"), "--suite and -b exclude each other"),
        (("--suite", "suite.yaml", "a.json"), "--suite and FILE exclude each other"),
        (("--suite", "suite.yaml", "--baseline", "missing.jsonl"), "missing.jsonl: cannot be read"),
        (("--suite", "suite.yaml", "--ranks", 3), "is for 2 ranks"),
        (("--suite", "suite.yaml", "--junit", "."), "is a directory"),
        (("--suite", "suite.yaml", "--max-slowdown", 0), "max-slowdown"),
        (("--suite", "suite.yaml", "--launches", 0), "launches"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(run_cli, suite, tmp_path, arguments, told):
    result = run_cli("bench", *arguments, cwd=tmp_path)
    assert result.code == 2, result
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1
