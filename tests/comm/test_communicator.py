"""Communicators on real ranks: right results everywhere, and one end for all when something fails."""

import ast
import time
from pathlib import Path

import pytest

import collsyn
from collsyn.errors import DeviceError
from collsyn.runtime import native_loader
from collsyn.runtime.launch import launch
from collsyn.runtime.mpirun import find_mpirun, has_mpi

LIMIT_S = 100


def start(name, num_ranks=3, timeout_s=LIMIT_S, **arguments):
    """Launch a function of targets.py on forked ranks."""
    return launch(f"tests.comm.targets:{name}", arguments, num_ranks, "fork", timeout_s)


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_all_collectives_against_numpy(num_ranks):
    found = start("check_all", num_ranks, elements=[0, 1, 103], dtypes=["float32", "int64"], ops=["sum", "avg", "max"])
    assert found == [[]] * num_ranks


def test_all_collectives_by_the_numpy_executor(monkeypatch):
    monkeypatch.setenv("COLLSYN_NATIVE", "0")
    native_loader.native_library.cache_clear()
    try:
        assert start("check_all", 3, elements=[12], dtypes=["float64", "uint8"], ops=["min", "prod"]) == [[]] * 3
    finally:
        native_loader.native_library.cache_clear()


def test_large_arrays():
    assert start("check_all", 2, elements=[1_000_003], dtypes=["float32"]) == [[]] * 2


def check_mix(calls):
    """Many asynchronous calls; all are right and the two groups share the work."""
    found = start("mix", 8, timeout_s=500, calls=calls, seed=calls)
    assert [wrong for _, wrong in found] == [[]] * 8
    issued = [number for number, _ in found]
    assert issued[3] == issued[4] == calls
    assert issued[0] + issued[7] == calls


def test_a_hundred_mixed_calls_over_two_overlapping_groups():
    check_mix(100)


@pytest.mark.slow
def test_a_thousand_mixed_calls_over_two_overlapping_groups():
    check_mix(1000)


def test_a_killed_rank_reaches_every_other_rank(tmp_path):
    shared = set(Path("/dev/shm").iterdir())
    with pytest.raises(DeviceError, match="rank 3 was killed by SIGKILL"):
        start("lose_one", 8, victim=3, marks=str(tmp_path))
    for rank in set(range(8)) - {3}:
        met = ast.literal_eval((tmp_path / f"rank-{rank}").read_text())
        assert met["error"].startswith("rank 3 (process "), met
        assert met["kind"] == "PeerFailed"
        assert met["seconds"] < 10
        assert met["at_once"]
        assert met["again"] == [met["error"]] * len(met["again"])
        assert len(met["again"]) == (3 if rank in range(1, 7) else 2)
    assert set(Path("/dev/shm").iterdir()) <= shared


def test_a_rank_that_does_not_come_is_named():
    begin = time.monotonic()
    with pytest.raises(DeviceError, match=r"rank [02] failed: .*wait.* \(of rank 1\) for 0\.5 s"):
        start("come_late", 3, limit_s=0.5)
    assert time.monotonic() - begin < LIMIT_S / 2


def test_ranks_that_disagree_are_told():
    with pytest.raises(DeviceError, match=r"ranks 0 and 1 disagree about the plan to prepare: .* of 8 .* of 7 "):
        start("disagree", 3)


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("roots", "the call: broadcast with root 0 and broadcast with root 1"),
        ("calls", "the call: alltoall and broadcast with root 0"),
        (
            "plans",
            r"(the plan to prepare: allreduce .* of 8 float32 .* and|the call: allreduce .* of 8 .* and) allreduce",
        ),
    ],
)
def test_ranks_that_call_different_things_are_told(case, told):
    with pytest.raises(DeviceError, match=f"ranks 0 and 1 disagree about {told}"):
        start("disagree_about_calls", case=case)


def test_an_error_that_leaves_the_block_reaches_all():
    with pytest.raises(DeviceError, match="no more ideas"):
        start("fail_in_block")


def test_a_store_brings_ranks_together(tmp_path):
    assert start("use_store", 4, folder=str(tmp_path)) == [6] * 4


@pytest.mark.skipif(not has_mpi() or find_mpirun() is None, reason="no MPI here")
def test_mpi_brings_ranks_together():
    found = launch("tests.comm.targets:use_mpi", {}, 4, "mpirun", LIMIT_S)
    assert found == [[[0, 1, 2, 3], [1, 3]] if rank % 2 else [[0, 1, 2, 3]] for rank in range(4)]


def test_a_store_without_the_other_ranks(tmp_path):
    said = start("lack_a_key", 1, folder=str(tmp_path))[0]
    assert said == "rank 0: the key-value store failed: no x/0/1"


def test_counts_for_every_pair():
    same = [[2, 0, 1], [1, 3, 0], [4, 4, 2]]
    lopsided = [[0, 0, 9000], [0, 0, 0], [1, 0, 0]]
    nothing = [[0] * 3] * 3
    found = start("exchange", tables=[same, lopsided, nothing, same])
    assert found == [["out: of rank 1 has 4 elements; 3 arrive there"]] * 3


def test_shards_of_any_length():
    assert start("shards_of_any_length", 4) == [[]] * 4


def test_layouts_and_buffers():
    assert start("layouts", 2) == [[]] * 2


def test_what_is_refused():
    for said, after in start("refuse", 2):
        assert after == [2.0] * 4
        expected = ["op 'median'", "dtype: int16", "out: has 5", "out: has elements of float64", "array: is a str"]
        expected += ["array: holds Python", "root: is 2", "array: has 4 elements; expected 5", "array: 3 elements"]
        expected += ["counts: expected 2", "is not another one", "group: a rank is named twice", "group: rank"]
        assert len(said) == len(expected)
        for text, beginning in zip(said, expected, strict=True):
            assert text is not None, beginning
            assert beginning in text


def test_pairs():
    assert start("talk_in_pairs", 3, rounds=10) == [[]] * 3


def test_close_finishes_what_was_issued():
    said = ["this communicator is closed"] * 2
    assert start("leave_early") == [[True, [[3, 3, 3], None], said, []]] * 3


def test_groups_come_and_go():
    results = start("close_one_group", 3)
    # Ranks 1 and 2 of the group [2, 1, 0], named in reverse.
    assert results[0] == [3, 3, 3, 3]
    for rank in (1, 2):
        *sums, (mine, ranks, gathered) = results[rank]
        assert sums == [3, 3, 3, 3]
        assert ranks == gathered
        assert ranks[mine] == rank


def test_plans_are_dropped_and_made_again():
    kept = start("evict", 3)
    assert kept == [kept[0]] * 3
    assert kept[0][:6] == [1, 2, 3, 3, 3, 3]
    # The last but one is larger than all memory that is allowed, and kept alone.
    assert kept[0][8] == kept[0][9] == 1


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_prepared_collectives_on_shared_memory(num_ranks):
    assert start("prepare", num_ranks) == [[]] * num_ranks


def test_schedules_of_a_folder_serve_their_sizes(tmp_path):
    for size, method in (("1K", "direct"), ("1M", "ring")):
        schedule = collsyn.synthesize("allgather", "full:3", size, method=method)
        collsyn.write_schedule(schedule, tmp_path / f"{method}.json")
    assert start("follow_folder", 3, folder=str(tmp_path)) == [["direct", "ring"]] * 3


def test_messages_with_different_tags_do_not_wait_for_each_other():
    assert start("tags", 2) == [None, [[tag] * 3 for tag in (2, 0, 1)]]


def test_an_exchange_that_brings_other_parts_than_expected_fails_everywhere_and_only_once():
    text = "counts: rank 1 expects 1 elements of rank 0, which sends 2"
    assert start("expect_parts", 2) == [[text, [0, 1, 0, 1]], [text, [2, 3, 2, 3]]]
