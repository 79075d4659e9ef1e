"""Rows for NCCL's tuner: only where its own algorithms are as good, and without gaps between sizes of one answer."""

import csv
import itertools
from pathlib import Path

import pytest

from collsyn import lower, synthesize
from collsyn.errors import InputError
from collsyn.export.table import Options
from collsyn.export.tuner_csv import export

GOLDEN = Path(__file__).parent / "golden"


def exported(schedules, **options):
    """Rows of the file, as the plugin reads them, and all of its text."""
    [file] = export([(Path(f"{i}.json"), schedule) for i, schedule in enumerate(schedules)], Options(**options))
    text = file.content.decode()
    rows = list(csv.reader(line for line in text.splitlines() if line and not line.startswith("#")))
    return rows, text


def test_a_ring_that_is_best_becomes_a_row_for_all_sizes():
    [row], _ = exported([synthesize("allgather", "ring:4", "64M", method="ring")])
    assert row[:2] == ["allgather", "0"]
    assert row[3:] == ["ring", "simple", "-1", "1", "4"]
    assert int(row[2]) >= 1 << 40


def test_sizes_meet_half_way_and_protocols_follow_them():
    schedules = [synthesize("allreduce", "ring:4", size, method="ring") for size in ("64K", "1M", "64M")]
    rows, _ = exported(schedules)
    assert [row[4] for row in rows] == ["ll", "ll128", "simple"]
    for left, right in itertools.pairwise(rows):
        assert int(left[2]) + 1 == int(right[1])
    assert [int(row[1]) <= schedule.size_bytes <= int(row[2]) for row, schedule in zip(rows, schedules, strict=True)]
    assert exported(schedules, protocol="Simple")[0][0][4] == "simple"


def test_a_tree_is_taken_where_it_beats_the_ring():
    [row], _ = exported([synthesize("allreduce", "switch:16", "1K", method="double-binary-tree")])
    assert row[3] == "tree"


def test_where_another_method_is_faster_there_is_no_row_but_a_reason():
    fast = synthesize("allgather", "full:8", "64K", method="direct")
    slow = synthesize("allgather", "ring:4", "64K", method="ring")
    rows, text = exported([fast, slow])
    assert [row[7] for row in rows] == ["4"]
    assert "# allgather of 64K on full:8: direct takes" in text
    with pytest.raises(
        InputError, match=r"no row is left: allgather of 64K on full:8: direct takes .* NCCL's ring takes"
    ):
        exported([fast])


def test_boxes_are_nodes():
    [row], _ = exported([synthesize("broadcast", "dgx-a100:2", "1G", method="ring")])
    assert row[6:] == ["2", "16"]


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (lambda: synthesize("alltoall", "full:4", "64K", method="direct"), {}, "NCCL's tuner knows no alltoall"),
        (lambda: lower(synthesize("allgather", "full:4", "64K", method="ring")), {}, "is a plan; expected schedules"),
        (lambda: synthesize("allgather", "ring:4", "64K", method="ring"), {"protocol": "x"}, "--proto: is 'x'"),
        (
            lambda: synthesize("allgather", "ring:4", "64K", method="ring"),
            {"dialect": "x"},
            "--dialect: tuner-csv has none",
        ),
        (
            lambda: synthesize("allgather", "ring:4", "64K", method="ring", groups=[[0, 1], [2, 3]]),
            {},
            "is for process groups or counts",
        ),
    ],
)
def test_what_the_tuner_cannot_say(make, options, words):
    with pytest.raises(InputError, match=words):
        exported([make()], **options)


def test_golden_file_and_two_files_of_one_size():
    schedules = [synthesize("allgather", "ring:4", size, method="ring") for size in ("64K", "64M")]
    assert exported(schedules)[1] == (GOLDEN / "allgather-ring-4.tuner.csv").read_text()
    with pytest.raises(InputError, match=r"1\.json: is for 64K like another"):
        exported([schedules[0], schedules[0]])
