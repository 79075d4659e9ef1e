"""`scripts/gpu_check`: the tables on GPUs that are threads of the host, and one line where there is no GPU."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from collsyn.bench.tuning import Launch
from collsyn.lower.lower import lower
from collsyn.profiling.host import Effort
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from tests.support.host_gpu import HostGpuDriver

ROOT = Path(__file__).parents[1]


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "scripts" / "gpu_check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    small = Effort((8, 1 << 12), (8, 1 << 12), (1 << 10, 1 << 12), repeats=1)
    monkeypatch.setattr(module, "QUICK", small)
    monkeypatch.setattr("collsyn.profiling.gpu._MAX_ROUNDS", 3)
    monkeypatch.setattr("collsyn.bench.gpu.candidates", lambda: [Launch(), Launch(transport="engine")])
    monkeypatch.setattr("collsyn.cuda.cupy_driver.CupyDriver", lambda: HostGpuDriver(1))
    return module


def test_every_collective_is_checked_and_timed(script, capsys, tmp_path: Path) -> None:
    arguments = ["--sizes", "1K:1K", "--ranks", "3", "--copy", "64K", "--iterations", "2", "--limit", "60"]
    missed = script.main([*arguments, "--output", str(tmp_path / "out.json")], HostGpuDriver(1))
    text = capsys.readouterr().out
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["collective"] for row in rows] == list(script.METHODS)
    assert all(row["us"] > 0 and row["of_copies"] > 0 for row in rows)
    assert "profile of 3 ranks: alpha" in text
    assert "allgather of 64 MiB and more, of the copy bandwidth: not measured (at least 0.8 asked for)" in text
    assert missed in (0, 1)


def test_what_time_does_not_allow_is_said(script, capsys) -> None:
    script.main(["--sizes", "1K:4K", "--ranks", "3", "--copy", "64K", "--limit", "0"], HostGpuDriver(1))
    assert "left off for want of time: 17 rows" in capsys.readouterr().out


def test_traffic_counts_what_is_read_and_written(script) -> None:
    topology = load_topology("full:4")
    plan = lower(method("direct").synthesize(Problem("allgather", topology, 4096), Options()), ahead=False)
    # Each rank's quarter goes to three others and to its own output: 16 moves of 1024 bytes, read and written.
    assert script.plan_traffic(plan, 4096) == 2 * 16 * 1024


def test_without_a_gpu_the_script_says_so_and_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "gpu_check.sh"), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
        env={"PATH": f"{ROOT}/.venv/bin:/usr/bin:/bin", "PYTHON": sys.executable, "HOME": str(tmp_path)},
    )
    assert done.returncode != 0
    assert "CuPy" in done.stderr
    assert "Traceback" not in done.stderr
