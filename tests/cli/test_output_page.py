"""docs/formats/output.md names every key of the documents that commands print."""

import json
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "formats" / "output.md").read_text()
NAMED = set(re.findall(r"`([a-z0-9_]+)`", PAGE))
SMALL = ("--collective", "allgather", "--topology", "full:4", "--size", "64K")


def keys_of(document):
    """Keys of a document and of the rows of its lists; those of a list of documents."""
    if isinstance(document, list):
        return {key for one in document for key in keys_of(one)}
    rows = [row for rows in document.values() if isinstance(rows, list) for row in rows if isinstance(row, dict)]
    return {*document, *(key for row in rows for key in row)}


@pytest.fixture
def schedule(run_cli, tmp_path):
    """File of a small schedule."""
    file = tmp_path / "allgather.json"
    assert run_cli("synthesize", *SMALL, "--method", "direct", "-o", file).code == 0
    return file


@pytest.mark.parametrize(
    "args",
    [
        ("synthesize", *SMALL, "--method", "direct", "-o", "none"),
        ("compare", *SMALL, "--methods", "ring,swing"),
        ("bound", "--collective", "allreduce", "--topology", "mesh:2x3"),
        ("topology", "show", "dgx1", "--subset", "0,1,4"),
        ("topology", "find", "--num-ranks", "4", "--degree", "3", "-o", "none"),
        ("topology", "diff", "full:3", "ring:4"),
        ("topology", "list"),
    ],
    ids=lambda args: " ".join(args[:2]),
)
def test_keys_of_documents_are_named(args, run_cli):
    keys = keys_of(json.loads(run_cli(*args, "--json").stdout))
    assert keys
    assert keys <= NAMED, sorted(keys - NAMED)


@pytest.mark.parametrize("command", ["simulate", "verify", "export"])
def test_keys_of_documents_of_files_are_named(command, schedule, run_cli):
    more = ("--format", "json", "-o", schedule.with_suffix(".out")) if command == "export" else ()
    keys = keys_of(json.loads(run_cli(command, schedule, *more, "--json").stdout))
    assert keys
    assert keys <= NAMED, sorted(keys - NAMED)


def test_keys_of_a_degraded_topology_are_named(run_cli, tmp_path):
    done = run_cli("topology", "degrade", "full:4", "--drop-link", "0-1", "-o", tmp_path / "rest.yaml", "--json")
    assert keys_of(json.loads(done.stdout)) <= NAMED
