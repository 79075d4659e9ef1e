"""Gloo's collectives beside ours: what can be compared, and that their results are right."""

from dataclasses import replace

import pytest

from collsyn.bench.gloo import gloo_not_comparable
from collsyn.bench.job import BenchOptions
from collsyn.bench.run import bench
from collsyn.bench.sources import on_the_spot
from collsyn.model.collective import make_collective
from collsyn.synth.problem import Problem
from collsyn.topology.resolve import load_topology

KINDS = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce", "gather", "scatter", "alltoall")
QUICK = BenchOptions(sizes=(1 << 12,), iterations=2, warmup=1, against=("gloo",), launcher="fork", in_place=False)


def test_what_gloo_does_not_do_is_said():
    assert gloo_not_comparable(make_collective("allreduce", 3), "sum") is None
    assert gloo_not_comparable(make_collective("allreduce", 3), "avg") == "gloo has no reduction avg"
    assert "sendrecv" in gloo_not_comparable(make_collective("sendrecv", 3), "sum")
    assert "groups" in gloo_not_comparable(make_collective("allgather", 4, groups=[[0, 1], [2, 3]]), "sum")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_gloos_results_are_right_and_timed(kind):
    pytest.importorskip("torch")
    root = 1 if kind in ("broadcast", "reduce", "gather", "scatter") else None
    source = on_the_spot(Problem(kind, load_topology("full:3"), 1 << 12, root=root), "direct")
    (row,) = bench([source], replace(QUICK, op="max")).rows
    assert row.against["gloo"].reason is None
    assert row.against["gloo"].ratio > 0
