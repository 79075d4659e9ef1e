"""Ranks on cores of their own, where there are enough."""

import os

import pytest

from collsyn.runtime import cores
from collsyn.runtime.cores import keep_to_core
from collsyn.runtime.host import HostContext
from collsyn.runtime.launch import launch

CORES = sorted(os.sched_getaffinity(0))
needs_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


def where_am_i(bootstrap, own_cores):
    """Cores that a rank may use before, within and after a job."""
    seen = [sorted(os.sched_getaffinity(0))]
    with HostContext(bootstrap, own_cores=own_cores):
        seen.append(sorted(os.sched_getaffinity(0)))
    return [*seen, sorted(os.sched_getaffinity(0))]


def start(num_ranks, own_cores):
    return launch("tests.runtime.test_cores:where_am_i", {"own_cores": own_cores}, num_ranks, "fork", 60)


@needs_cores
def test_ranks_that_are_timed_have_a_core_each_and_give_it_back():
    (before, within, after), (_, other, _) = start(2, own_cores=True)
    assert before == after == CORES
    assert len(within) == len(other) == 1
    assert within != other


@needs_cores
def test_ranks_keep_all_cores_unless_asked():
    assert start(2, own_cores=False) == [[CORES] * 3] * 2


def test_ranks_that_outnumber_cores_share_them():
    found = start(len(CORES) + 1, own_cores=True)
    assert found == [[CORES] * 3] * (len(CORES) + 1)


def test_first_threads_of_cores_come_first(monkeypatch, tmp_path):
    # Cores 0-1 and 2-3 are two threads each; 4 says nothing of itself.
    for core in range(4):
        (tmp_path / str(core)).write_text(f"{core // 2 * 2}-{core // 2 * 2 + 1}\n")
    monkeypatch.setattr(cores, "_SIBLINGS", str(tmp_path / "{}"))
    kept = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, chosen: kept.append(chosen))
    for rank in range(5):
        assert keep_to_core([0, 1, 2, 3, 4], rank) == set(CORES)
    assert kept == [{0}, {2}, {4}, {1}, {3}]
    assert keep_to_core([0, 1], 2) is None
    assert keep_to_core([3], 0) is None


def test_a_system_that_binds_nobody_changes_nothing(monkeypatch):
    def refuse(who, chosen):
        raise OSError("not here")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert keep_to_core([0, 1], 0) is None
