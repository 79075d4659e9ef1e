"""Printing: what goes to stdout, what to stderr, and in which form."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np

from cli import _output


def test_json_is_one_document_of_plain_values(capsys):
    _output.emit_json(
        {
            "gap": float("inf"),
            "exact": Fraction(25, 2),
            "file": Path("a/b.json"),
            "row": (1, np.float64(2.5), np.int64(3), np.nan),
            "links": np.array([[1, 2], [3, 4]]),
            "ok": np.bool_(True),
            "none": None,
            7: "seven",
        }
    )
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out) == {
        "gap": None,
        "exact": "25/2",
        "file": "a/b.json",
        "row": [1, 2.5, 3, None],
        "links": [[1, 2], [3, 4]],
        "ok": True,
        "none": None,
        "7": "seven",
    }


def test_infinities_inside_arrays_become_null(capsys):
    _output.emit_json({"times": np.array([1.0, np.inf])})
    assert json.loads(capsys.readouterr().out) == {"times": [1.0, None]}


def test_notes_go_to_stderr_and_text_to_stdout(capsys):
    _output.note("watch this")
    _output.text("a result")
    assert capsys.readouterr() == ("a result\n", "watch this\n")


def test_a_table_is_never_cut_off_terminal_and_shows_brackets_as_they_are(capsys):
    long = "x" * 300
    _output.table("ring:8 [bold]", ["method", "time us"], [["[red]greedy", 12.34567], [long, None], ["n", 3]])
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = [line.split() for line in captured.out.splitlines()]
    assert lines[0] == ["ring:8", "[bold]"]
    assert ["[red]greedy", "12.35"] in lines
    assert [long, "-"] in lines
    assert ["n", "3"] in lines


def test_progress_is_silent_where_nobody_watches(capsys):
    with _output.progress("searching", total=10) as update:
        update(3, "best 12 us, gap 4%")
        update(10)
    assert capsys.readouterr() == ("", "")


def test_progress_shows_the_detail_on_a_terminal(capsys, monkeypatch):
    import sys

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with _output.progress("searching [all]", total=2) as update:
        update(1, "best 12 us")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "searching [all]" in captured.err
    assert "best 12 us" in captured.err
