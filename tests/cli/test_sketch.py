"""`synthesize --sketch`: rules from a file or by name, the size they are for, and what cannot be."""

import json
from pathlib import Path

import pytest

from collsyn.model.schedule_file import read_schedule

FAST = ["--collective", "allgather", "--topology", "ndv2:2", "--method", "paths"]


def test_a_sketch_by_name_rules_sends_and_gives_the_size(run_cli, tmp_path: Path) -> None:
    result = run_cli("synthesize", *FAST, "--sketch", "ndv2-sk1", "-o", "a.json", "--json", cwd=tmp_path)
    assert result.code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["size_bytes"] == 16_000_000
    assert "which sketch ndv2-sk1 is for" in result.stderr
    schedule = read_schedule(tmp_path / "a.json")
    ends = {(a, b) for a, b in zip(schedule.src.tolist(), schedule.dst.tolist(), strict=True) if a // 8 != b // 8}
    assert ends == {(0, 9), (8, 1)}
    assert run_cli("verify", "a.json", cwd=tmp_path).code == 0


def test_a_size_that_is_given_counts(run_cli, tmp_path: Path) -> None:
    result = run_cli("synthesize", *FAST, "--sketch", "ndv2-sk1", "--size", "1M", "-o", "none", "--json", cwd=tmp_path)
    assert json.loads(result.stdout)["size_bytes"] == 1 << 20


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--sketch", "no-such"], 2, "sketch 'no-such' is neither a file nor one that ships"),
        (["--sketch", "dgx2-sk1"], 2, "gpus_per_box: is 16; topology ndv2:2 has a box of 8"),
        (["--sketch", "walled.yaml"], 3, "sketch walled: data of rank 0 cannot reach rank 8 (and 127 more pairs)"),
        (["--sketch", "ndv2-sk1", "-o", "x.large"], 2, "--sketch goes with neither --warm-start nor -o FILE.large"),
    ],
)
def test_what_cannot_be_is_one_line(arguments, code: int, message: str, run_cli, tmp_path: Path) -> None:
    (tmp_path / "walled.yaml").write_text("schema: collsyn-sketch/1\ngpus_per_box: 8\nacross: none\n")
    result = run_cli("synthesize", *FAST, *arguments, cwd=tmp_path)
    assert result.code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "collsyn-out").exists()
