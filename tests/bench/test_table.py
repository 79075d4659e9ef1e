"""The table reads as that of nccl-tests does: column by column, with the lines that its users' scripts look for."""

import pytest

from collsyn.bench.result import BenchResult, Comparison, Row, Timing
from collsyn.bench.table import float_text, footer, header, row_text

# Two lines as nccl-tests 2.17 prints them (a published log of 8 GPUs), and what they say.
LOGGED = [
    (
        "          64            16     float     sum      -1"
        "    19.27    0.00    0.01      0    19.21    0.00    0.01      0",
        {"size_bytes": 64, "count": 16, "out": 19.27e-6, "inplace": 19.21e-6},
    ),
    (
        "   134217728      33554432     float     sum      -1"
        "   1916.4   70.04  122.57      0   1907.8   70.35  123.11      0",
        {"size_bytes": 134217728, "count": 33554432, "out": 1916.4e-6, "inplace": 1907.8e-6},
    ),
]


def make_row(**changes):
    """An allreduce of 1 MiB of floats on 4 ranks."""
    values = {
        "collective": "allreduce",
        "group_size": 4,
        "source": "schedule.json",
        "method": "ring",
        "asked_bytes": 1 << 20,
        "size_bytes": 1 << 20,
        "count": 1 << 18,
        "dtype": "float32",
        "op": "sum",
        "root": -1,
        "out_of_place": Timing(1e-3, 0),
        "in_place": Timing(2e-3, 0),
        "iterations": 20,
    }
    return Row(**{**values, **changes})


def columns(line):
    """The words of a line of numbers."""
    return line.split()


@pytest.mark.parametrize("logged, said", LOGGED)
def test_a_row_has_the_columns_of_a_published_log(logged, said):
    row = make_row(
        group_size=8,
        size_bytes=said["size_bytes"],
        count=said["count"],
        out_of_place=Timing(said["out"], 0),
        in_place=Timing(said["inplace"], 0),
    )
    ours = row_text(row)
    assert ours[:52] == logged[:52]
    # Since that version the column of wrong elements is one wider, and times keep two decimals for longer.
    assert len(ours.partition("N/A")[0].rstrip()) == len(logged) + 2
    for mine, theirs in zip(columns(ours)[:13], columns(logged), strict=True):
        assert mine == theirs or float(mine) == pytest.approx(float(theirs), abs=0.06)


def test_a_row_to_the_letter():
    row = make_row(simulated_s=123.456e-6, bound_s=100e-6)
    assert row_text(row) == (
        "     1048576        262144     float     sum      -1"
        "  1000.00    1.05    1.57       0  2000.00    0.52    0.79       0   123.46   100.00"
    )


@pytest.mark.parametrize(
    "value, width, text",
    [
        (0.004, 7, "   0.00"),
        (9.999, 7, "  10.00"),
        (9999.996, 7, "10000.0"),
        (99999.04, 7, "99999.0"),
        (123456.4, 7, " 123456"),
        (1234567.0, 7, "1234567"),
        (12345678.0, 7, "1.2e+07"),
        (999.4, 6, "999.40"),
        (1234.5, 6, "1234.5"),
        (123456.4, 6, "123456"),
        (1.0, 6, "  1.00"),
        (0.0, 6, "  0.00"),
    ],
)
def test_decimals_shrink_as_numbers_grow(value, width, text):
    assert float_text(value, width) == text


def test_header_titles_stand_over_their_columns():
    lines = header()
    assert all(line.startswith("#") for line in lines)
    _, titles, units = lines
    assert titles.split()[1:14] == [
        "size",
        "count",
        "type",
        "redop",
        "root",
        "time",
        "algbw",
        "busbw",
        "#wrong",
        "time",
        "algbw",
        "busbw",
        "#wrong",
    ]
    assert units.split()[1:] == ["(B)", "(elements)", *["(us)", "(GB/s)", "(GB/s)"] * 2, "(us)", "(us)"]
    row = row_text(make_row(simulated_s=1e-3, bound_s=1e-3, against={"mpi": Comparison(2e-3, 2.0, 1.9, 2.1)}))
    titled = header(["mpi"])[1]
    for title in ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "bound", "ratio"):
        end = titled.index(f" {title}") + len(title) + 1
        assert row[end - 1] != " ", f"nothing ends under {title}"
        assert end == len(row) or row[end] == " ", f"the column under {title} is shifted"


def test_not_checked_not_known_and_wrong_are_told_apart():
    unchecked = columns(row_text(make_row(out_of_place=Timing(1e-3, None), in_place=None)))
    assert unchecked[5:13] == ["1000.00", "1.05", "1.57", "N/A", "N/A", "N/A", "N/A", "N/A"]
    wrong = columns(row_text(make_row(out_of_place=Timing(None, 7))))
    assert wrong[5:9] == ["N/A", "N/A", "N/A", "7"]


def test_a_row_without_reduction_says_none():
    assert columns(row_text(make_row(collective="allgather", op="", dtype="float16")))[2:5] == ["half", "none", "-1"]


def test_comparison_columns():
    row = make_row(against={"mpi": Comparison(4e-3, 4.0, 3.5, 4.25)})
    assert columns(row_text(row))[-3:] == ["4000.00", "4.00", "3.50..4.25"]
    refused = make_row(against={"mpi": Comparison(reason="no such type")})
    assert columns(row_text(refused))[-2:] == ["N/A", "N/A"]


def test_footer_counts_failures_and_averages_over_both_ways():
    good = BenchResult([make_row()], {}, {})
    assert footer(good)[:2] == ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.17965 "]
    bad = BenchResult([make_row(), make_row(out_of_place=Timing(None, 3))], {}, {})
    assert footer(bad)[0] == "# Out of bounds values : 1 FAILED"
    assert bad.average_busbw == pytest.approx((1.572864 + 0.786432 + 0.786432) / 3)
