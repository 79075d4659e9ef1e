"""`bench` and `profile` on GPUs, here threads of the host: which backend is taken, and one line for what cannot be."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from collsyn.bench.tuning import Launch, read_tuning, write_tuning
from collsyn.profiling.host import Effort
from tests.support.host_gpu import HostGpuDriver

BENCH = ["bench", "--collective", "allreduce", "--topology", "full:3", "--method", "direct", "-b", "1200", "-e", "1200"]


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.setattr("collsyn.cuda.availability.why_no_gpus", lambda needed=1: None if needed <= 4 else "too few")
    monkeypatch.setattr("collsyn.cuda.availability.num_gpus", lambda: 3)
    monkeypatch.setattr("collsyn.cuda.cupy_driver.CupyDriver", lambda: HostGpuDriver(4))
    monkeypatch.setattr("cli._ranks._has_cupy", lambda: True)
    monkeypatch.setattr("collsyn.cli._ranks._has_cupy", lambda: True, raising=False)


@pytest.mark.parametrize("how", [["--loopback", "3"], ["--backend", "cuda"], []])
def test_bench_runs_on_gpus(how, gpus, run_cli) -> None:
    done = run_cli(*BENCH, "-n", "2", *how, "--json")
    assert done.code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["provenance"]["backend"] == "cuda"
    assert document["results"][0]["out_of_place"]["nwrong"] in (0, "0")


def test_profile_of_gpus_is_a_topology(gpus, run_cli, tmp_path: Path, monkeypatch) -> None:
    small = Effort((8, 1 << 12), (8, 1 << 12), (1 << 10, 1 << 12), repeats=1, runs_per_rank=1)
    monkeypatch.setattr("collsyn.profiling.gpu.QUICK", small)
    monkeypatch.setattr("collsyn.profiling.gpu._MAX_ROUNDS", 3)
    monkeypatch.setattr("collsyn.profiling.gpu._TOGETHER_BYTES", 1 << 12)
    done = run_cli("profile", "--backend", "cuda", "--quick", "-o", "gpus.yaml", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert "gpus: 3 cuda ranks, each pair alone" in done.stdout
    assert run_cli("topology", "show", "gpus.yaml", cwd=tmp_path).code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--backend", "cuda"], 6, "backend cuda: GPUs cannot be used"),
        (["--loopback", "3"], 6, "use --backend host"),
        (["--loopback", "3", "--backend", "host"], 2, "--loopback puts ranks on a GPU"),
        (["--loopback", "3", "--emulate", "full:3"], 2, "it goes with neither --backend host nor --emulate"),
        (["--backend", "cuda", "--emulate", "full:3"], 2, "--emulate runs on host ranks"),
        (["--against", "nccl"], 2, "--against nccl needs GPUs (--backend cuda)"),
    ],
)
def test_without_gpus_one_line_says_why(arguments, code: int, message: str, run_cli) -> None:
    done = run_cli(*BENCH, *arguments)
    assert done.code == code
    assert message in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--loopback", "4"], 2, "is for 3 ranks; --loopback says 4"),
        (["--loopback", "3", "--launcher", "fork"], 2, "--loopback starts no processes"),
        (["--backend", "cuda", "--against", "mpi"], 2, "--against mpi needs host ranks (--backend host)"),
    ],
)
def test_what_does_not_go_together_on_gpus(arguments, code: int, message: str, gpus, run_cli) -> None:
    done = run_cli(*BENCH, *arguments)
    assert done.code == code
    assert message in done.stderr


def test_tuning_is_kept_and_taken_by_the_next_run(gpus, run_cli, tmp_path: Path, monkeypatch) -> None:
    tried = [Launch(), Launch(256, 2), Launch(transport="engine")]
    monkeypatch.setattr("collsyn.bench.gpu.candidates", lambda: tried)
    done = run_cli(*BENCH, "-n", "2", "--loopback", "3", "--tune", "--json", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert "wrote collsyn-out/tuning.yaml" in done.stderr
    (entry,) = read_tuning(tmp_path / "collsyn-out/tuning.yaml")
    assert (entry.gpu, entry.collective, entry.num_ranks, entry.loopback) == ("host threads", "allreduce", 3, True)
    assert entry.launch in tried
    odd = replace(entry, launch=Launch(64, 1, "engine"))
    write_tuning(tmp_path / "collsyn-out/tuning.yaml", [odd])
    done = run_cli(*BENCH, "-n", "2", "--loopback", "3", "--json", cwd=tmp_path)
    assert "launches as tuned in collsyn-out/tuning.yaml" in done.stderr
    assert json.loads(done.stdout)["results"][0]["launch"] == asdict(odd.launch)
    assert run_cli(*BENCH, "-n", "2", "--backend", "host", "--tune").code == 2
