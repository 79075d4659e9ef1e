"""Benchmarks from sources to rows on real ranks: small, fast, and honest about what is wrong."""

from dataclasses import replace

import numpy as np
import pytest

from collsyn.bench.job import BenchOptions, Case, Job
from collsyn.bench.run import bench, prepare, raise_if_wrong
from collsyn.bench.sources import Prepared, Source
from collsyn.errors import InputError, VerificationError
from collsyn.model.collective import make_collective
from collsyn.model.kinds import REDUCING
from collsyn.model.plan import Op, Plan
from collsyn.model.plan_file import plan_text
from collsyn.runtime.mpirun import find_mpirun, has_mpi
from tests.runtime.plans import put_allgather, ring_allreduce

QUICK = BenchOptions(sizes=(4096,), iterations=4, warmup=1)

needs_mpi = pytest.mark.skipif(not has_mpi() or find_mpirun() is None, reason="needs mpi4py and an mpirun")


def of_plan(plan):
    """A plan without a topology as a source."""
    return Source("by hand", "hand", plan.collective, None, plan=plan)


def run_once(job):
    """Rows of a job after its only launch."""
    job.launch()
    return job.rows()


def damaged(plan):
    """The plan with its first PUT or GET writing to another place: it runs, and its results are wrong."""
    columns = {key: np.array(values) for key, values in plan.columns.items()}
    row = int(np.flatnonzero(np.isin(columns["op"], [Op.PUT, Op.GET]))[0])
    columns["dst_offset"][row] = (columns["dst_offset"][row] + 1) % plan.num_ranks
    return replace(plan, columns=columns)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
@pytest.mark.parametrize("make", [put_allgather, ring_allreduce])
def test_rows_of_a_sweep(make, dtype):
    seen = []
    options = replace(QUICK, sizes=(96, 4096, 10_000), dtype=dtype)
    result = bench([of_plan(make(3))], options, on_row=seen.append)
    assert list(result.rows) == seen
    assert result.wrong == 0
    kind = make(3).collective.kind
    width = {"float32": 4, "bfloat16": 2, "uint8": 1}[dtype]
    for row, asked in zip(result.rows, options.sizes, strict=True):
        shards = 3 if kind == "allgather" else 1
        assert (row.collective, row.asked_bytes) == (kind, asked)
        assert row.size_bytes == asked // width // shards * shards * width
        assert row.count * shards * width == row.size_bytes
        assert (row.dtype, row.op, row.root) == (dtype, "sum" if kind in REDUCING else "", -1)
        assert row.iterations >= options.iterations
        for timing in (row.out_of_place, row.in_place):
            assert timing.wrong == 0
            assert timing.time_s > 0
            assert min(timing.blocks_s) <= timing.time_s <= max(timing.blocks_s)
        assert (row.simulated_s, row.bound_s, row.against) == (None, None, {})
    raise_if_wrong(result)


def test_a_wrong_result_has_no_time_and_raises():
    plan = damaged(put_allgather(3))
    case = Case(of_plan(plan), 3072, 768, Prepared(plan, plan_text(plan), "hand", None, None))
    (row,) = run_once(Job(case.source, [case], QUICK))
    for timing in (row.out_of_place, row.in_place):
        assert timing.wrong >= 256
        assert timing.time_s is None
    from collsyn.bench.result import BenchResult

    with pytest.raises(VerificationError, match=r"by hand: allgather of 3072 bytes out of place left \d+ wrong"):
        raise_if_wrong(BenchResult([row], {}, {}))


def test_a_wrong_plan_is_refused_before_it_runs():
    with pytest.raises(VerificationError, match="by hand"):
        prepare(of_plan(damaged(put_allgather(3))), QUICK)


def test_without_checks_nothing_is_said_about_results():
    result = bench([of_plan(put_allgather(2))], replace(QUICK, check=False))
    assert [timing.wrong for timing in result.rows[0].timings] == [None, None]
    assert all(timing.time_s > 0 for timing in result.rows[0].timings)


def test_a_collective_without_an_in_place_form_has_none():
    collective = make_collective("sendrecv", 2)
    channels = []
    for rank in range(2):
        peer = 1 - rank
        ready = [{"op": Op.SIGNAL, "peer": peer, "flag": 0, "value": 1}, {"op": Op.WAIT, "flag": 0, "value": 1}]
        put = {"op": Op.PUT, "peer": peer, "length": 1, "dst_buffer": 1}
        done = [{"op": Op.SIGNAL, "peer": peer, "flag": 0, "value": 2}, {"op": Op.WAIT, "flag": 0, "value": 2}]
        channels.append((rank, [*ready, put, *done]))
    plan = Plan.build(collective, channels, [[], []], [1, 1], name="exchange")
    (row,) = bench([of_plan(plan)], QUICK).rows
    assert row.in_place is None
    assert row.out_of_place.wrong == 0


def test_sizes_that_are_too_small_are_left_out_and_told():
    notes = []
    cases = prepare(of_plan(put_allgather(3)), replace(QUICK, sizes=(4, 11, 12, 100)), notes.append)
    assert [(case.asked_bytes, case.elements) for case in cases] == [(12, 3), (100, 24)]
    assert any("100" in note and "rounded" in note for note in notes)
    assert any("4, 11" in note and "left out" in note for note in notes)
    with pytest.raises(InputError, match="sizes"):
        bench([of_plan(put_allgather(3))], replace(QUICK, sizes=(4,)))


@pytest.mark.parametrize("change", [{"dtype": "float8"}, {"op": "xor"}])
def test_unknown_types_and_reductions_are_refused(change):
    with pytest.raises(InputError, match=next(iter(change.values()))):
        bench([of_plan(put_allgather(2))], replace(QUICK, **change))


@needs_mpi
def test_a_wrong_result_is_not_compared():
    plan = damaged(put_allgather(2))
    case = Case(of_plan(plan), 2048, 512, Prepared(plan, plan_text(plan), "hand", None, None))
    (row,) = run_once(Job(case.source, [case], replace(QUICK, against=("mpi",), launcher="mpirun")))
    assert row.out_of_place.wrong > 0
    assert row.against["mpi"].reason == "our own result is wrong"


@needs_mpi
def test_against_mpi_in_one_job():
    options = replace(QUICK, sizes=(4096, 65536), iterations=10, against=("mpi",), launcher="mpirun")
    result = bench([of_plan(ring_allreduce(3))], options)
    for row in result.rows:
        comparison = row.against["mpi"]
        assert comparison.reason is None
        assert comparison.time_s > 0
        assert min(comparison.blocks_s) <= comparison.time_s <= max(comparison.blocks_s)
        assert comparison.low <= comparison.ratio <= comparison.high
    reduced = bench([of_plan(ring_allreduce(2))], replace(options, sizes=(4096,), dtype="bfloat16"))
    assert "bfloat16" in reduced.rows[0].against["mpi"].reason


def test_against_mpi_needs_its_ranks():
    result = bench([of_plan(ring_allreduce(2))], replace(QUICK, against=("mpi",)))
    assert "MPI" in result.rows[0].against["mpi"].reason
