"""Profiles of emulated machines."""

import numpy as np
import pytest

from collsyn.model.profile import read_profile
from collsyn.profiling import host, together
from collsyn.runtime.native_loader import native_library
from collsyn.topology.resolve import load_topology

needs_compiler = pytest.mark.skipif(native_library() is None, reason="needs a C compiler")


@needs_compiler
def test_the_profile_says_what_was_emulated(run_cli, tmp_path, monkeypatch):
    monkeypatch.setattr(host, "EMULATED", host.Effort((1, 65536), (), (4096, 65536), 1))
    monkeypatch.setattr(host, "_MESSAGE_S", 1e-3)
    monkeypatch.setattr(host, "_LATENCY_S", 1e-4)
    file = tmp_path / "two.yaml"
    result = run_cli("profile", "--emulate", "full:2", "-o", file)
    assert result.code == 0, result.stderr
    profile = read_profile(file)
    assert (profile.name, profile.num_ranks, len(profile.links)) == ("full:2 emulated", 2, 2)
    assert profile.method["emulated"].startswith("emulating full:2 with 2 links")


def test_as_many_ranks_as_the_machine_has(run_cli):
    result = run_cli("profile", "--emulate", "full:3", "--ranks", 4)
    assert result.code == 2
    assert "ranks: is 4; topology full:3 has 3" in result.stderr


def test_the_shortest_latency_and_the_largest_message_are_long_against_noise():
    effort = host.Effort((1, 10**6), (1,), (1,), 1)
    # The preset has 0.5 us and 50 GB/s: 1 MB takes 20 us, of which 12 ms would be made; half a microsecond is the more.
    assert host._factor(load_topology("full:3"), effort) == pytest.approx(3000)
    assert host._factor(load_topology("full:3"), host.Effort((10**9,), (1,), (1,), 1)) == pytest.approx(3000)
    assert host._factor(load_topology("full:3"), host.Effort((10**5,), (1,), (1,), 1)) == pytest.approx(6000)


@needs_compiler
@pytest.mark.slow
def test_the_profile_is_that_of_the_machine():
    machine = load_topology("switch:4")
    profile = host.profile_host(4, host.EMULATED, "fork", emulate=machine)
    alpha_s, beta = 2 * machine.alpha_s[0], machine.beta_s_per_byte[0]
    for link in profile.links:
        assert link.alpha_s.value == pytest.approx(alpha_s, rel=0.1)
        assert link.beta_s_per_byte.value == pytest.approx(beta, rel=0.1)
        assert link.shares
    assert {(one.ranks, one.out) for one in profile.shared if one.full} == {
        ((rank,), out) for rank in range(4) for out in (True, False)
    }
    for one in profile.shared:
        assert one.beta_s_per_byte.value == pytest.approx(beta, rel=0.1)


@needs_compiler
@pytest.mark.slow
def test_a_pair_without_links_is_relayed():
    machine = load_topology("mesh:3")
    profile = host.profile_host(3, host.EMULATED, "fork", emulate=machine)
    assert {(link.src, link.dst): link.via for link in profile.links if link.via is not None} == {
        (0, 2): 1,
        (2, 0): 1,
    }
    assert profile.topology().num_links == machine.num_links


@needs_compiler
def test_pairs_run_together_and_the_profile_says_so(monkeypatch):
    monkeypatch.setattr(host, "_MESSAGE_S", 1e-3)
    monkeypatch.setattr(host, "_LATENCY_S", 1e-4)
    monkeypatch.setattr(together, "_MESSAGE_S", 5e-4)
    effort = host.Effort((1, 65536), (), (4096, 65536), 1, runs_per_rank=2)
    shares = []
    profile = host.profile_host(4, effort, "fork", emulate=load_topology("switch:4"), on_progress=shares.append)
    # Four runs a rank with all its pairs at once, two with halves of what it receives, and crossings if any shared.
    assert 16 <= profile.method["joint_runs"] <= 32
    assert profile.ports == ()
    assert {(one.ranks, one.out) for one in profile.shared} <= {
        (ranks, out)
        for ranks in ((0,), (1,), (2,), (3,), (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
        for out in (0, 1)
    }
    assert profile.topology().num_ranks == 4
    assert np.all(np.diff(shares) >= 0)
    assert shares[-1] <= 1
