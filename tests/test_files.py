"""Whole files or none, and errors that name the file."""

import stat
from pathlib import Path

import pytest

from collsyn.errors import InputError
from collsyn.files import digest, read_bytes, require_writable, write_atomic


def test_writes_whole_files_with_usual_rights(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.txt"
    write_atomic(path, "first")
    write_atomic(path, b"second")
    assert read_bytes(path) == b"second"
    assert [entry.name for entry in path.parent.iterdir()] == ["a.txt"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o600 == 0o600


@pytest.mark.parametrize("place", ["", "file/inside", "/proc/nothing/here.json"])
def test_an_unwritable_place_is_one_line_and_leaves_nothing(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / place
    for attempt in (lambda: require_writable(path), lambda: write_atomic(path, "x")):
        with pytest.raises(InputError, match="cannot be written") as caught:
            attempt()
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file"]


def test_asking_leaves_nothing_behind(tmp_path: Path) -> None:
    require_writable(tmp_path / "later" / "a.json")
    assert list(tmp_path.iterdir()) == []


def test_reading_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: no such file"):
        read_bytes(tmp_path / "missing")


def test_digest_tells_contents_apart() -> None:
    assert digest("a") == digest(b"a") != digest("b")
    assert len(digest("a")) == 16
