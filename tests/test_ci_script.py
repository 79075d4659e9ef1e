"""`scripts/ci_regression.sh` collects a baseline, compares with it, and fails where something is slower."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

SUITE = """\
schema: collsyn-suite/1
launches: 2
iterations: 4
benchmarks:
  - {collective: allgather, method: direct, sizes: [4K]}
rules:
  - {name: any, max_slowdown: 9}
"""


@pytest.mark.slow
def test_a_baseline_then_a_comparison(tmp_path):
    (tmp_path / "tiny.yaml").write_text(SUITE)
    state = tmp_path / "state"

    def run():
        return subprocess.run(
            ["bash", REPOSITORY / "scripts" / "ci_regression.sh"],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(REPOSITORY),
                "PYTHON": sys.executable,
                "SUITE": "tiny.yaml",
                "TOPOLOGY": "full:2",
                "STATE": str(state),
                "RUNS": "2",
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    for number in (1, 2):
        done = run()
        assert done.returncode == 0, done.stderr
        assert f"run {number} of the 2 that a baseline needs" in done.stdout
    done = run()
    assert done.returncode == 0, done.stderr
    assert "Against" in done.stdout
    history = state / "runs.jsonl"
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert len(lines) == 3
    for line in lines:
        line["results"][0]["samples_us"] = [[1e-3] * 4] * 2
    history.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = run()
    assert done.returncode == 7, done.stderr
    assert "slower than before" in done.stderr
    assert (state / "bench.xml").read_text().count("<failure") == 1
