"""Shared memory: what cannot be had is refused before the machine runs short of it."""

import pytest

from collsyn.errors import DeviceError
from collsyn.runtime import arena


def test_more_memory_than_is_free_is_refused_at_once(monkeypatch):
    def never(*_):
        raise AssertionError("pages were asked for")

    monkeypatch.setattr(arena.os, "posix_fallocate", never)
    with pytest.raises(DeviceError, match=r"^cannot allocate \d+ bytes of shared memory: \d+ bytes are free$"):
        arena.OwnSegment(1 << 60)


def test_where_the_system_does_not_say_what_is_free_the_pages_are_tried(monkeypatch):
    monkeypatch.setattr(arena, "_free_bytes", lambda: None)
    segment = arena.OwnSegment(1)
    try:
        assert len(segment.bytes) == arena.PAGE
    finally:
        segment.seal()
