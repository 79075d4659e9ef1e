"""From the times of ranks to a profile: with synthetic times, and with two real ranks."""

import numpy as np
import pytest

from collsyn.model.profile import Estimate, LinkFit, Profile, profile_text
from collsyn.profiling.host import QUICK, THOROUGH, Effort, fit_profile, profile_host, with_sharing
from collsyn.profiling.measure import LOAD, MESSAGE, REDUCE, STREAM, matchings, tasks, waves
from collsyn.runtime.facts import machine_facts
from collsyn.runtime.native_loader import native_library
from collsyn.topology.hops import hops

SIZES, LOADS, REDUCED = (1, 1024, 1 << 20), (1, 1 << 16, 1 << 18, 1 << 20), (1 << 16, 1 << 18)


def exactly(value):
    """An estimate without doubt."""
    return Estimate(value, value, value)


def alpha(src, dst):
    """Seconds of latency of a made-up machine."""
    return (1 + src + 2 * dst) * 1e-6


def beta(src, dst):
    """Seconds per byte of a made-up machine."""
    return 1e-10 * (1 + src + dst)


def times_of(rank, num_ranks):
    """What `measure` would return on a rank of that machine; rank 1 is twice as slow under load."""
    entries = []
    for task in tasks(num_ranks, SIZES, LOADS, REDUCED):
        n, slow = task.size_bytes, 2 if rank == 1 else 1
        if task.kind == MESSAGE and task.src == rank:
            seconds = alpha(task.src, task.dst) + n * beta(task.src, task.dst)
        elif task.kind == STREAM and task.src == rank:
            seconds = 0.25e-6 + n * beta(task.src, task.dst)
        elif task.kind == LOAD:
            seconds = slow * (20e-6 + num_ranks * n * 4e-10)
        elif task.kind == REDUCE:
            seconds = slow * (20e-6 + (num_ranks - 1) * n * (4e-10 + 0.5e-10))
        else:
            continue
        entries.append([task.kind, task.src, task.dst, n, [seconds] * 4])
    return entries


def test_a_profile_has_the_costs_that_times_were_made_from():
    profile = fit_profile([times_of(rank, 3) for rank in range(3)], 3, "made-up", 0, {"a": 1}, {"b": 2})
    assert [(link.src, link.dst) for link in profile.links] == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    for link in profile.links:
        assert link.alpha_s.value == pytest.approx(alpha(link.src, link.dst), rel=1e-6)
        assert link.beta_s_per_byte.value == pytest.approx(beta(link.src, link.dst), rel=1e-6)
        assert link.overhead_s.value == pytest.approx(0.25e-6, rel=1e-6)
        assert link.linear
        assert [size for size, _ in link.points] == list(SIZES)
    # Under load the slowest rank counts, in the port as in the rate of reductions.
    assert [port.beta_s_per_byte.value for port in profile.ports] == pytest.approx([8e-10] * 3)
    idle_s = np.median([alpha(src, dst) for src in range(3) for dst in range(3) if src != dst]) + 0.25e-6
    assert [port.alpha_s.value for port in profile.ports] == pytest.approx([40e-6 - idle_s] * 3)
    assert profile.reduce_s_per_byte == pytest.approx(1e-10, rel=1e-3)
    assert [size for size, _ in profile.reduce_points] == [2 * size for size in REDUCED]
    assert all(port.linear for port in profile.ports)
    assert (profile.method, profile.facts) == ({"a": 1}, {"b": 2})


def test_reductions_of_other_lengths_than_messages_are_told_by_lines():
    found = [times_of(rank, 3) for rank in range(3)]
    some = [[entry for entry in of_rank if entry[0] != LOAD or entry[3] in (1, 1 << 20)] for of_rank in found]
    profile = fit_profile(some, 3, "made-up", 0, {}, {})
    assert profile.reduce_points == ()
    assert profile.reduce_s_per_byte == pytest.approx(1e-10, rel=1e-3)


@pytest.mark.parametrize("num_ranks", [2, 3, 6])
@pytest.mark.parametrize("effort", [QUICK, THOROUGH])
def test_every_ordered_pair_is_timed_at_every_size(num_ranks, effort):
    found = tasks(num_ranks, effort.sizes, effort.load_sizes, effort.reduce_sizes)
    pairs = {(a, b) for a in range(num_ranks) for b in range(num_ranks) if a != b}
    timed = {(task.src, task.dst, task.size_bytes) for task in found if task.kind == MESSAGE}
    assert timed == {(*pair, size) for pair in pairs for size in effort.sizes}
    assert {(task.src, task.dst) for task in found if task.kind == STREAM} == pairs
    assert len(found) == len(set(found))


def test_waves_keep_all_tasks_within_their_memory():
    everything = tasks(6, THOROUGH.sizes, THOROUGH.load_sizes, THOROUGH.reduce_sizes)
    found = waves(everything, 6, np.random.default_rng(0))
    assert sorted(map(repr, (task for wave in found for task in wave))) == sorted(map(repr, everything))
    assert len(found) > 1
    for wave in found:
        plans = {task.plan_key(6): task.memory_bytes(6) for task in wave}
        assert len(plans) <= 64
        assert len(plans) == 1 or sum(plans.values()) <= 512 << 20


def test_no_plan_is_in_two_waves():
    found = waves(tasks(5, QUICK.sizes, (), ()), 5, np.random.default_rng(3))
    keys = [{task.plan_key(5) for task in wave} for wave in found]
    assert sum(map(len, keys)) == len(set().union(*keys))


@pytest.mark.parametrize("num_ranks", range(2, 18))
def test_matchings_hold_every_pair_once_and_no_rank_twice(num_ranks):
    lists, number = matchings(num_ranks)
    pairs = [(a, b) for a in range(num_ranks) for b in range(num_ranks) if a != b]
    assert sorted(pair for members in lists for pair in members) == pairs
    assert all(pair in lists[number[pair]] for pair in pairs)
    for members in lists:
        ranks = [rank for pair in members for rank in pair]
        assert len(ranks) == len(set(ranks))


def test_joint_runs_make_shared_links_and_latencies_make_switches():
    far = {(a, b): (a < 3) != (b < 3) for a in range(6) for b in range(6) if a != b}
    links = tuple(
        LinkFit(*pair, exactly(2e-6 if is_far else 1e-6), exactly(1e-10), exactly(0), 0, True, ())
        for pair, is_far in far.items()
    )
    fans = [[pair for pair in far if pair[end] == rank] for rank in range(6) for end in (0, 1)]
    runs = [[[*pair, 1e10 / 5, True] for pair in fan] for fan in fans] * 2
    profile = with_sharing(Profile("six", "host", 6, links), {"relays": [], "runs": runs})
    assert {(one.ranks, one.out) for one in profile.shared if one.full} == {
        ((r,), out) for r in range(6) for out in (0, 1)
    }
    assert {one.ranks for one in profile.shared if not one.full} <= {(0, 1, 2), (3, 4, 5)}
    found = hops(profile.topology())
    for src, dst, alpha_s in zip(found.src.tolist(), found.dst.tolist(), found.alpha_s.tolist(), strict=True):
        assert alpha_s == pytest.approx(2e-6 if far[src, dst] else 1e-6, rel=0.03)
    assert profile.method == {"joint_runs": 24, "unexplained": 0}


def test_a_relay_is_written_beside_the_pair_it_relays():
    links = tuple(
        LinkFit(a, b, exactly(1e-6), exactly(1e-10), exactly(0), 0, True, ())
        for a in range(3)
        for b in range(3)
        if a != b
    )
    profile = with_sharing(Profile("three", "host", 3, links), {"relays": [[0, 2, 1]], "runs": []})
    assert {(link.src, link.dst): link.via for link in profile.links if link.via is not None} == {(0, 2): 1}
    assert profile.topology().num_links == 5


@pytest.fixture(params=["1", "0"])
def native(request, monkeypatch):
    """With the compiled executor, and with that of NumPy."""
    monkeypatch.setenv("COLLSYN_NATIVE", request.param)
    native_library.cache_clear()
    yield request.param
    native_library.cache_clear()


def test_two_real_ranks(native):
    shares = []
    effort = Effort(sizes=(1, 4096, 1 << 18), load_sizes=(1, 1 << 16), reduce_sizes=(1 << 12, 1 << 16), repeats=5)
    profile = profile_host(2, effort, "fork", seed=7, name="two", on_progress=shares.append)
    assert [(link.src, link.dst) for link in profile.links] == [(0, 1), (1, 0)]
    for link in profile.links:
        assert [size for size, _ in link.points] == [1, 4096, 1 << 18]
        assert 0 <= link.overhead_s.value <= link.alpha_s.value
        for estimate in (link.alpha_s, link.beta_s_per_byte, link.overhead_s):
            assert estimate.low <= estimate.value <= estimate.high
        assert link.beta_s_per_byte.value > 0
    assert shares
    assert all(0 <= share <= 1 for share in shares)
    assert np.all(np.diff(shares) > 0)
    assert profile.method["seed"] == 7
    assert profile.method["executor"] == ("numpy" if native == "0" else "compiled")
    assert profile.topology().num_ranks == 2
    assert "two" in profile_text(profile)


def test_facts_name_nobody():
    import getpass
    import platform

    told = repr(machine_facts())
    assert platform.node() not in told
    assert getpass.getuser() not in told
