"""Curves of bandwidth hold the numbers of the rows they come from, and labels keep apart."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.bench.result import BenchResult, Comparison, Row, Timing
from collsyn.pictures.bandwidth import (
    BOUND,
    MEASURED,
    RIVAL,
    SIMULATED,
    bench_charts,
    bench_title,
    compare_chart,
    sweep_chart,
)
from collsyn.pictures.spread import spread

K = 1 << 10


def row(size_bytes, **changes):
    """An allreduce on 4 ranks, ten times its bytes in nanoseconds."""
    time_s = size_bytes * 1e-8
    values = {
        "collective": "allreduce",
        "group_size": 4,
        "source": "auto",
        "method": "ring",
        "asked_bytes": size_bytes,
        "size_bytes": size_bytes,
        "count": size_bytes // 4,
        "dtype": "float32",
        "op": "sum",
        "root": -1,
        "out_of_place": Timing(time_s, 0, (0.5 * time_s, time_s, 2 * time_s)),
        "in_place": None,
        "iterations": 3,
        "simulated_s": 0.8 * time_s,
        "bound_s": 0.4 * time_s,
    }
    return Row(**{**values, **changes})


def of_kind(chart, kind):
    """The curves of a kind."""
    return [curve for curve in chart.curves if curve.kind == kind]


def test_a_row_becomes_a_point_of_each_curve():
    rival = Comparison(3e-5, 1.5, 1.4, 1.6, blocks_s=(2e-5, 4e-5))
    rows = [row(4 * K, method="greedy", against={"mpi": rival}), row(K)]
    (chart,) = bench_charts(rows)
    (measured,), (simulated,), (bound,), (mpi,) = (of_kind(chart, kind) for kind in (MEASURED, SIMULATED, BOUND, RIVAL))
    assert (chart.collective, chart.group_size) == ("allreduce", 4)
    assert measured.size_bytes == simulated.size_bytes == bound.size_bytes == (K, 4 * K)
    assert measured.gb_s == pytest.approx([row(K).busbw(row(K).out_of_place)] * 2)
    assert measured.gb_s == pytest.approx([0.15, 0.15])
    assert measured.low == pytest.approx([0.075, 0.075])
    assert measured.high == pytest.approx([0.3, 0.3])
    assert measured.methods == ("ring", "greedy")
    assert simulated.gb_s == pytest.approx([0.15 / 0.8] * 2)
    assert bound.gb_s == pytest.approx([0.15 / 0.4] * 2)
    assert (mpi.label, mpi.size_bytes) == ("MPI", (4 * K,))
    assert (mpi.low[0], mpi.gb_s[0], mpi.high[0]) == pytest.approx([1.5 * 4 * K / t / 1e9 for t in (4e-5, 3e-5, 2e-5)])


def test_what_was_wrong_or_not_known_has_no_point():
    (chart,) = bench_charts([row(K, out_of_place=Timing(None, 7)), row(4 * K, simulated_s=None, bound_s=None)])
    assert [(curve.kind, curve.size_bytes) for curve in chart.curves] == [
        (MEASURED, (4 * K,)),
        (SIMULATED, (K,)),
        (BOUND, (K,)),
    ]


def test_sources_have_curves_of_their_own_and_share_an_equal_bound():
    sources = ("a/ring.json", "b/ring.json", "c/direct.json")
    rows = [row(size, source=source, method="ring") for source in sources for size in (K, 2 * K)]
    charts = bench_charts([*rows, row(K, collective="allgather")])
    assert [chart.collective for chart in charts] == ["allreduce", "allgather"]
    assert [curve.label for curve in of_kind(charts[0], MEASURED)] == ["a/ring.json", "b/ring.json", "direct"]
    assert len(of_kind(charts[0], BOUND)) == 1
    assert len(of_kind(bench_charts([*rows, row(K, source="d", bound_s=1e-9)])[0], BOUND)) == 2


def test_benchmarks_of_a_suite_have_curves_of_their_own():
    (chart,) = bench_charts([row(K, benchmark=name) for name in ("allreduce float", "allreduce half")])
    assert [curve.label for curve in of_kind(chart, MEASURED)] == ["allreduce float", "allreduce half"]


def test_a_method_is_named_where_the_label_does_not_say_it():
    (chart,) = bench_charts([row(K, source=source, method=source) for source in ("ring", "direct")])
    assert [(curve.label, curve.methods) for curve in of_kind(chart, MEASURED)] == [("ring", ()), ("direct", ())]
    (alone,) = bench_charts([row(K, source="a/b.json", method="ring")])
    assert [(curve.label, curve.methods) for curve in of_kind(alone, MEASURED)] == [("collsyn", ("ring",))]


def test_a_sweep_has_a_curve_for_schedule_plan_and_bound():
    documents = [
        {
            "collective": "allgather",
            "num_ranks": 8,
            "size_bytes": size,
            "finish_us": size / 2e3,
            "plan_us": None if size == K else size / 1e3,
            "bound_us": size / 4e3,
            "algbw_gb_s": 2.0,
            "busbw_gb_s": 1.5,
        }
        for size in (K, 2 * K)
    ]
    chart = sweep_chart(documents)
    assert [(curve.kind, curve.label, curve.size_bytes) for curve in chart.curves] == [
        (SIMULATED, "schedule", (K, 2 * K)),
        (SIMULATED, "plan", (2 * K,)),
        (BOUND, "bound", (K, 2 * K)),
    ]
    assert [curve.gb_s[-1] for curve in chart.curves] == pytest.approx([1.5, 0.75, 3.0])


def test_a_comparison_has_a_curve_for_each_method_that_serves_and_one_bound():
    times = {("ring", K): 2.0, ("ring", 2 * K): 4.0, ("greedy", K): 1.0, ("greedy", 2 * K): None, ("swing", K): None}
    rows = [
        {"collective": "allreduce", "method": name, "size_bytes": size, "finish_us": us, "bound_us": size / 4e3}
        for (name, size), us in times.items()
    ]
    chart = compare_chart(rows, 4)
    assert [(curve.kind, curve.label, curve.size_bytes) for curve in chart.curves] == [
        (SIMULATED, "ring", (K, 2 * K)),
        (SIMULATED, "greedy", (K,)),
        (BOUND, "bound", (K, 2 * K)),
    ]
    assert [curve.gb_s[0] for curve in chart.curves] == pytest.approx([1.5 * K / 2e3, 1.5 * K / 1e3, 6.0])


def test_the_title_says_what_the_ranks_ran_on():
    assert bench_title(BenchResult([], {}, {"emulated": "dgx1"})) == "collsyn bench, dgx1 emulated"
    assert bench_title(BenchResult([], {}, {"emulated": None})) == "collsyn bench on host ranks"


@given(st.lists(st.floats(0, 1), max_size=8).map(sorted), st.floats(0.001, 0.2))
def test_labels_lie_apart_and_move_no_more_than_they_must(heights, apart):
    moved = spread(heights, apart)
    assert len(moved) == len(heights)
    assert all(b - a >= apart * (1 - 1e-9) - 1e-12 for a, b in pairwise(moved))
    assert sum(moved) == pytest.approx(sum(heights))
    if all(b - a > apart for a, b in pairwise(heights)):
        assert moved == pytest.approx(heights)
