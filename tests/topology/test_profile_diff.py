"""Changes between two profiles."""

import json
from dataclasses import replace

import pytest

from collsyn.model.profile import Estimate, LinkFit, PortFit, Profile, SharedFit, write_profile
from collsyn.topology.profile_diff import profile_changes


def around(value, spread=0.02):
    return Estimate(value, value * (1 - spread), value * (1 + spread))


def link(src, dst, alpha_us=1.0, gb_s=10.0, spread=0.02, **more):
    costs = (around(alpha_us * 1e-6, spread), around(1e-9 / gb_s, spread), around(0.2e-6, spread))
    return LinkFit(src, dst, *costs, residual=0.01, linear=True, points=(), **more)


def machine(*links, **more):
    return Profile("box", "host", 3, links, **more)


def told(left, right):
    return {(one.what, one.unit): one.relative for one in profile_changes(left, right) if one.differs}


BASE = machine(link(0, 1), link(1, 0), reduce_s_per_byte=1e-10)


def test_nothing_has_changed_in_the_same_profile():
    assert told(BASE, BASE) == {}
    assert len(profile_changes(BASE, BASE)) == 7


def test_old_new_and_the_relative_change():
    after = replace(BASE, links=(link(0, 1, alpha_us=1.5, gb_s=8.0), link(1, 0)))
    assert told(BASE, after) == {("0->1 alpha", "us"): pytest.approx(0.5), ("0->1", "GB/s"): pytest.approx(-0.2)}


@pytest.mark.parametrize("alpha_us, spread", [(1.08, 0.0), (1.3, 0.3)])
def test_what_is_close_or_uncertain_has_not_changed(alpha_us, spread):
    after = replace(BASE, links=(link(0, 1, alpha_us=alpha_us, spread=spread), link(1, 0)))
    assert told(BASE, after) == {}


def test_links_that_appear_and_vanish():
    after = machine(link(0, 1), link(1, 2), reduce_s_per_byte=1e-10)
    changes = {one.what: (one.left, one.right) for one in profile_changes(BASE, after) if one.differs}
    assert changes["1->0"] == (pytest.approx(10.0), None)
    assert changes["1->2"] == (None, pytest.approx(10.0))
    assert changes.keys() == {f"{pair}{cost}" for pair in ("1->0", "1->2") for cost in ("", " alpha", " overhead")}


def test_shared_links_ports_and_relays():
    shares = (SharedFit((0, 1), True, around(1e-10), 5), SharedFit((2,), False, around(1e-10), 0))
    left = replace(BASE, shared=shares, ports=(PortFit(around(1e-6), around(1e-10)),) * 3)
    right = replace(BASE, links=(link(0, 1, via=2), link(1, 0)))
    names = {one.what for one in profile_changes(left, right) if one.differs}
    assert {"shared out of 0-1", "port 2", "port 2 alpha", "0->1", "0->1 via 2"} <= names
    assert "shared into 2" not in names


def test_the_command_compares_profiles(run_cli, tmp_path):
    before, after = tmp_path / "a.yaml", tmp_path / "b.yaml"
    write_profile(BASE, before)
    write_profile(replace(BASE, links=(link(0, 1, gb_s=5.0), link(1, 0))), after)
    shown = run_cli("topology", "diff", before, after)
    assert shown.code == 0, shown.stderr
    assert "1 of 7 costs differ" in shown.stdout
    assert "-50%" in shown.stdout
    assert "same 7 costs" in run_cli("topology", "diff", before, before).stdout
    document = json.loads(run_cli("topology", "diff", before, after, "--json").stdout)
    assert document["same"] is False
    assert [one["what"] for one in document["changes"] if one["differs"]] == ["0->1"]
    # A profile and a preset are compared as topologies.
    assert "differences" in run_cli("topology", "diff", before, "full:3").stdout
