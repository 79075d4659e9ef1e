"""What a run is held against: limits of rules, a baseline, and a second run of what looked slow."""

from dataclasses import replace

import pytest

from collsyn.bench.gate import assess, merged, those_of
from collsyn.bench.job import BenchOptions
from collsyn.bench.result import BenchResult, Timing
from collsyn.bench.run import Benchmark
from collsyn.bench.sources import on_the_spot
from collsyn.bench.suite import Rule
from collsyn.errors import Regression
from collsyn.synth.problem import Problem
from collsyn.topology.resolve import load_topology
from tests.bench.test_regression import Machine
from tests.bench.test_table import make_row


def result_of(rows):
    """A result of these rows only."""
    return BenchResult(rows, {}, {})


def timed(time_s, **changes):
    """A row whose blocks all took that long."""
    return make_row(out_of_place=Timing(time_s, 0, (time_s,) * 4), **changes)


def test_what_was_noise_does_not_come_twice():
    machine = Machine(0)
    past = machine.baseline()
    asked = []

    def again(rows):
        asked.append([row.benchmark for row in rows])
        return result_of([row for row in machine.run(c1=1.3) if row.benchmark in asked[-1]])

    found = assess(result_of(machine.run(c0=1.3, c1=1.3)), past, (), again=again)
    assert asked == [["c0", "c1"]]
    assert [verdict.regressed for verdict in found.verdicts] == [False, True, False, False]
    assert [bool(lines) for lines in found.complaints] == [False, True, False, False]
    assert found.result.rows[0].launches == 2 * found.result.rows[2].launches
    with pytest.raises(Regression, match=r"^runs: c1 1048576 bytes float32 sum on 4 ranks: takes 1\.\d+ times"):
        found.raise_if_regressed("runs")


def test_without_suspects_nothing_runs_again():
    machine = Machine(1)
    found = assess(result_of(machine.run()), machine.baseline(), (), again=lambda rows: pytest.fail("ran again"))
    assert found.regressions == []
    found.raise_if_regressed("runs")


def test_without_a_baseline_there_are_limits_only():
    rules = [
        Rule(name="floor", min_bytes=1 << 20, min_busbw_gb_s=2.0),
        Rule(name="model", benchmarks=("allreduce",), max_over_simulated=1.25),
    ]
    rows = [
        timed(1e-3, simulated_s=0.9e-3),
        timed(0.5e-3, simulated_s=0.3e-3),
        timed(1.0, asked_bytes=1024, collective="broadcast", simulated_s=1e-6),
        make_row(out_of_place=Timing(None, 7)),
    ]
    found = assess(result_of(rows), [], rules)
    assert found.verdicts == []
    floor, model, none, wrong = found.complaints
    assert floor == ("bus bandwidth 1.57 GB/s; rule floor wants 2",)
    assert model == ("500.0 us are 1.67 times the simulated time; rule model allows 1.25",)
    assert none == ()
    assert wrong == ("7 wrong elements out of place",)
    # Wrong bytes have an exit code of their own.
    assert len(found.regressions) == 2
    with pytest.raises(Regression, match=r"and 1 more"):
        found.raise_if_regressed("suite")


def test_two_runs_of_a_row_become_one():
    first, second = timed(1.0, launches=2), timed(3.0, launches=2)
    both = merged(first, second)
    assert (both.launches, both.out_of_place.time_s, len(both.out_of_place.blocks_s)) == (4, 2.0, 8)
    wrong = make_row(out_of_place=Timing(None, 1))
    assert merged(first, wrong) is wrong
    assert merged(wrong, first) is wrong


def test_benchmarks_of_rows():
    problem = Problem("allgather", load_topology("full:2"), 1024)
    source = on_the_spot(problem, "direct")
    options = BenchOptions(sizes=(1024, 2048, 4096))
    benchmarks = [Benchmark(source, options, name) for name in ("a", "b")]
    row = timed(1.0, collective="allgather", source="direct", benchmark="b")
    chosen = those_of(benchmarks, [replace(row, asked_bytes=1024), replace(row, asked_bytes=4096)])
    assert [(one.name, one.options.sizes) for one in chosen] == [("b", (1024, 4096))]
