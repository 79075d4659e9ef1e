"""Schedules that are searched for while a job runs, and emulated machines, on real ranks."""

import pytest

from collsyn.comm.search import Search, Sought
from collsyn.runtime.launch import launch
from collsyn.topology.resolve import load_topology

SOUGHT = Sought("allgather", None, 1 << 12)
LIMIT_S = 20.0


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLSYN_CACHE", str(tmp_path))
    return tmp_path


def test_a_search_is_kept_for_the_next_one(cache):
    search = Search(load_topology("ring:3"), LIMIT_S)
    first = search.find(SOUGHT, must_wait=True)
    assert not isinstance(first, str)
    (file,) = (cache / "schedules").iterdir()
    again = Search(load_topology("ring:3"), LIMIT_S).find(SOUGHT, must_wait=False)
    assert again.num_sends == first.num_sends
    assert Search(load_topology("ring:4"), LIMIT_S).find(SOUGHT, must_wait=False) == "later"
    file.write_text("{}")
    assert search.find(SOUGHT, must_wait=False) == "later"
    search.close()


def test_what_nobody_can_make_is_not_sought_again(cache):
    search = Search(load_topology("ring:3"), LIMIT_S)
    impossible = Sought("sendrecv-", None, 1 << 12)
    assert search.find(impossible, must_wait=True) == "never"
    assert search.find(impossible, must_wait=False) == "never"


def test_a_schedule_takes_over_on_all_ranks_at_once(cache):
    found = launch("tests.comm.targets:searched", {"must_wait": True}, 3, "fork", 150)
    assert found == [[True, True, True]] * 3


@pytest.mark.slow
def test_a_baseline_serves_until_then(cache):
    found = launch("tests.comm.targets:searched", {"must_wait": False}, 3, "fork", 200)
    assert found == [[True, False, True]] * 3


def test_an_emulated_machine_slows_calls_down():
    slow, fast = (max(launch("tests.comm.targets:emulated", {"factor": f}, 2, "fork", 100)) for f in (1e4, 1.0))
    # 8 KiB at 1 GB/s are 8 us, times 10,000.
    assert slow > 0.08 > fast / 10


def test_emulation_needs_a_machine():
    with pytest.raises(Exception, match="emulation_factor: needs a topology to emulate"):
        launch("tests.comm.targets:emulated", {"factor": 2.0, "topology": None}, 2, "fork", 60)
