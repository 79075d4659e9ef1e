"""Benchmarks on GPUs, here threads of the host: rows, checks, both ways to place ranks, and results that are wrong."""

from dataclasses import asdict

import numpy as np
import pytest

from collsyn.bench.gpu import run_here
from collsyn.bench.job import HERE, BenchOptions
from collsyn.bench.run import bench, raise_if_wrong
from collsyn.bench.sources import on_the_spot
from collsyn.bench.tuning import Launch
from collsyn.cuda.prepared import GpuPlan
from collsyn.errors import DeviceError, VerificationError
from collsyn.synth.problem import Problem
from collsyn.topology.resolve import load_topology
from tests.support.fake_nccl import install
from tests.support.host_gpu import HostGpuDriver


@pytest.fixture(autouse=True)
def gpus(monkeypatch):
    made = []

    def driver():
        made.append(HostGpuDriver(4))
        return made[-1]

    monkeypatch.setattr("collsyn.cuda.cupy_driver.CupyDriver", driver)
    return made


def options(**more) -> BenchOptions:
    chosen = {"sizes": (1 << 10, 1 << 14), "iterations": 3, "warmup": 1, "backend": "cuda", "launcher": HERE}
    return BenchOptions(**{**chosen, **more})


def source(kind: str = "allreduce", topology: str = "full:3", by: str = "direct"):
    return on_the_spot(Problem(kind, load_topology(topology), 1 << 10), by)


@pytest.mark.parametrize("loopback", [True, False])
def test_rows_are_those_of_a_benchmark(loopback: bool, gpus) -> None:
    seen = []
    result = bench([source()], options(loopback=loopback), seen.append)
    assert seen == result.rows
    for row in result.rows:
        assert row.out_of_place.wrong == 0
        assert row.in_place.wrong == 0
        assert row.out_of_place.time_s > 0
        assert row.iterations >= 3
        assert row.simulated_s > 0
    assert [device["device"] for device in result.devices] == ([0, 0, 0] if loopback else [0, 1, 2])
    assert result.provenance["backend"] == "cuda"
    assert all(driver.memory == {} for driver in gpus)
    assert {device for driver in gpus for device, _, _ in driver.launches} == ({0} if loopback else {0, 1, 2})


def test_a_process_a_rank_finds_the_same_as_all_in_one(monkeypatch) -> None:
    monkeypatch.setattr("collsyn.cuda.cupy_driver.CupyDriver", lambda: HostGpuDriver(1))
    monkeypatch.setattr("collsyn.bench.gpu.candidates", lambda: [Launch(), Launch(256, 2), Launch(transport="engine")])
    row = bench([source()], options(launcher="fork", sizes=(1200,), tune=True)).rows[0]
    assert row.out_of_place.wrong == 0
    assert row.in_place.wrong == 0
    assert row.gpu == "host threads"
    assert row.launch in [asdict(one) for one in (Launch(), Launch(256, 2), Launch(transport="engine"))]


def test_types_and_averages(gpus) -> None:
    result = bench([source()], options(loopback=True, dtype="bfloat16", op="avg", sizes=(1200,)))
    assert result.rows[0].out_of_place.wrong == 0


def test_a_driver_that_cannot_record_is_timed_by_launches(monkeypatch) -> None:
    monkeypatch.setattr(HostGpuDriver, "record", lambda *given: None)
    result = bench([source("allgather")], options(loopback=True, sizes=(1200,)))
    assert result.rows[0].out_of_place.time_s > 0


def test_a_wrong_result_has_no_time(monkeypatch) -> None:
    whole = GpuPlan.run

    def spoilt(self, *given, **named):
        whole(self, *given, **named)
        self.output(1)[3] += 1

    monkeypatch.setattr(GpuPlan, "run", spoilt)
    result = bench([source()], options(loopback=True, sizes=(1200,)))
    assert result.rows[0].out_of_place.wrong == 1
    assert result.rows[0].out_of_place.time_s is None
    with pytest.raises(VerificationError, match="left 1 wrong elements"):
        raise_if_wrong(result)


def test_without_checks_nothing_is_checked() -> None:
    arguments = {"plans": [], "cases": []}
    assert run_here(HostGpuDriver(1), 2, True, arguments, lambda rank, message: None) == [[], []]
    result = bench([source("allgather")], options(loopback=True, sizes=(1200,), check=False))
    assert result.rows[0].out_of_place.wrong is None
    assert np.isfinite(result.rows[0].out_of_place.time_s)


KINDS = ["allgather", "reducescatter", "allreduce", "broadcast", "reduce", "gather", "scatter", "alltoall"]


@pytest.mark.parametrize("kind", KINDS)
def test_nccl_runs_in_turn_on_the_same_gpus(kind: str, monkeypatch, gpus) -> None:
    install(monkeypatch)
    by = "binomial" if kind in ("broadcast", "reduce", "gather", "scatter") else "direct"
    result = bench([source(kind, by=by)], options(against=("nccl",), sizes=(1200,), in_place=False))
    compared = result.rows[0].against["nccl"]
    assert compared.reason is None
    assert compared.time_s > 0
    assert len(compared.blocks_s) == 3
    assert result.rows[0].out_of_place.wrong == 0
    assert all(driver.memory == {} for driver in gpus)


def test_nccl_that_cannot_be_compared_says_why(monkeypatch) -> None:
    fake = install(monkeypatch)
    row = bench([source()], options(against=("nccl",), sizes=(1200,), loopback=True)).rows[0]
    assert row.against["nccl"].reason == "NCCL refuses several ranks on one GPU"
    row = bench([source()], options(against=("nccl",), sizes=(1200,), op="avg")).rows[0]
    assert row.against["nccl"].reason == "NCCL's avg is not compared"
    fake.spoil = True
    row = bench([source()], options(against=("nccl",), sizes=(1200,))).rows[0]
    assert row.against["nccl"].reason == "NCCL's own result is wrong"
    assert row.out_of_place.time_s > 0


def test_without_nccl_one_line_says_so() -> None:
    with pytest.raises(DeviceError, match="NCCL cannot be loaded by CuPy"):
        bench([source()], options(against=("nccl",), sizes=(1200,)))
