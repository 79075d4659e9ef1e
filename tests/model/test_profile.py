"""Profiles: their files, and the topology that they stand for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.errors import InputError
from collsyn.model.profile import (
    Estimate,
    LinkFit,
    PortFit,
    Profile,
    SharedFit,
    levelled,
    profile_text,
    read_profile,
    write_profile,
)
from collsyn.topology.hops import hops
from collsyn.topology.resolve import load_topology


def exactly(value):
    """An estimate without doubt."""
    return Estimate(value, value, value)


def make_profile(num_ranks=3, ports=True, alpha_us=lambda s, d: 1 + s + d, gb_s=lambda s, d: 10 * (1 + s + 3 * d)):
    """All pairs of some ranks, each with costs of its own."""
    links = tuple(
        LinkFit(
            src=src,
            dst=dst,
            alpha_s=exactly(alpha_us(src, dst) * 1e-6),
            beta_s_per_byte=exactly(1e-9 / gb_s(src, dst)),
            overhead_s=exactly(0.25e-6),
            residual=0.03,
            linear=src != 2,
            points=((1, 1e-6), (1024, 2e-6)),
        )
        for src in range(num_ranks)
        for dst in range(num_ranks)
        if src != dst
    )
    of_ranks = tuple(PortFit(exactly(rank * 1e-6), exactly(1e-9 / (2 + 5 * rank))) for rank in range(num_ranks))
    shares = of_ranks if ports else ()
    return Profile("box", "host", num_ranks, links, shares, 0.5e-10, {"seed": 3}, {"cores": 2})


@pytest.mark.parametrize("ports", [True, False])
def test_a_file_read_and_written_again_is_the_same(tmp_path, ports):
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    write_profile(make_profile(ports=ports), first)
    profile = read_profile(first)
    write_profile(profile, second)
    assert first.read_bytes() == second.read_bytes()
    assert len(profile.ports) == (3 if ports else 0)
    assert [link.linear for link in profile.links] == [True, True, True, True, False, False]
    assert profile.links[0].alpha_s.value == pytest.approx(2e-6)
    assert profile.reduce_s_per_byte == pytest.approx(0.5e-10)


def test_a_message_costs_what_its_pair_and_the_ports_cost():
    profile = make_profile()
    found = hops(profile.topology())
    by_pair = {(link.src, link.dst): link for link in profile.links}
    assert sorted(zip(found.src.tolist(), found.dst.tolist(), strict=True)) == sorted(by_pair)
    for hop in range(len(found)):
        src, dst = int(found.src[hop]), int(found.dst[hop])
        link = by_pair[src, dst]
        if not link.linear:
            continue
        sender, receiver = profile.ports[src], profile.ports[dst]
        assert found.alpha_s[hop] == pytest.approx(link.alpha_s.value + sender.alpha_s.value)
        rates = [one.beta_s_per_byte.value for one in (link, sender, receiver)]
        slowest = max(rates)
        assert found.beta_s_per_byte[hop] == pytest.approx(slowest)
        assert found.overhead_s[hop] == pytest.approx(0.25e-6)


def test_without_ports_every_pair_is_a_direct_link():
    topology = make_profile(ports=False).topology()
    assert topology.num_vertices == 3
    assert topology.num_links == 6


def test_a_profile_file_is_a_topology(tmp_path):
    file = tmp_path / "profile.yaml"
    write_profile(make_profile(), file)
    topology = load_topology(str(file))
    assert (topology.num_ranks, topology.name) == (3, "box")
    assert topology.vertex_name(3) == "send 0"
    assert topology.reduce_s_per_byte.tolist() == pytest.approx([0.5e-10] * 3)


def test_overhead_never_exceeds_alpha():
    profile = make_profile(alpha_us=lambda s, d: 0.1)
    topology = profile.topology()
    assert (topology.overhead_s <= topology.alpha_s).all()


@pytest.mark.parametrize(
    "key, value, told",
    [
        ("ranks", "0", "ranks"),
        ("ranks", "2", "ports"),
        ("backend", "tpu", "backend"),
        ("reduce_gb_s", "-1", "reduce_gb_s"),
        ("schema", "collsyn-profile/9", "schema"),
        ("links", "5", "links"),
    ],
)
def test_a_wrong_value_is_named(tmp_path, key, value, told):
    lines = profile_text(make_profile()).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"{key}:"))
    lines[at] = f"{key}: {value}"
    if key == "links":
        del lines[at + 1 :]
    file = tmp_path / "p.yaml"
    file.write_text("\n".join(lines))
    with pytest.raises(InputError, match=rf"p\.yaml:{told}"):
        read_profile(file)


@pytest.mark.parametrize(
    "old, new, told",
    [
        ("bandwidth_gb_s: 2.0,", "bandwidth_gb_s: 0,", r"ports\[0\]\.bandwidth_gb_s"),
        ("bandwidth_ci_gb_s: [2.0, 2.0]", "bandwidth_ci_gb_s: [0, 2]", r"ports\[0\]\.bandwidth_ci_gb_s"),
        ("to: 1,", "to: 0,", r"links\[0\]\.to"),
        ("points: [[1,", "points: [[0,", r"links\[0\]\.points\[0\]"),
        ("points: [[1,", "points: [[1.5,", r"links\[0\]\.points\[0\]"),
        ("points: [[1, 1.0]", "points: [[1, 0]", r"links\[0\]\.points\[0\]: has 0 microseconds"),
        ("points: [[1, 1.0]", "points: [[1, fast]", r"links\[0\]\.points\[0\]: has 'fast' microseconds"),
        ("points: [[1, 1.0]", "points: [[2048, 1.0]", r"links\[0\]\.points\[1\]"),
        ("residual:", "resdual:", r"ports\[0\]\.resdual"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path, old, new, told):
    text = profile_text(make_profile())
    assert old in text
    file = tmp_path / "p.yaml"
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=rf"p\.yaml:{told}"):
        read_profile(file)


def test_what_cannot_be_told_apart_becomes_equal():
    estimates = [Estimate(1.0, 0.8, 1.4), Estimate(1.3, 1.2, 1.5), Estimate(3.0, 2.9, 3.1), Estimate(3.2, 3.19, 3.3)]
    assert levelled(estimates).tolist() == [1.15, 1.15, 3.1, 3.1]
    apart = [exactly(1.0), exactly(1.5), exactly(3.0)]
    assert levelled(apart).tolist() == [1.0, 1.5, 3.0]
    assert levelled([]).tolist() == []


@given(st.lists(st.tuples(st.floats(1e-9, 1e-3), st.floats(0, 0.5)), min_size=1, max_size=20))
def test_levelling_keeps_the_order_and_the_range(pairs):
    estimates = [Estimate(value, value * (1 - spread), value * (1 + spread)) for value, spread in pairs]
    values = np.array([one.value for one in estimates])
    found = levelled(estimates)
    order = np.argsort(values, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
    assert values.min() <= found.min()
    assert found.max() <= values.max()


def make_tree():
    """Four ranks in two pairs: 0-1 also with a link of their own, the pair 2-3 behind a link of 6 GB/s out."""
    up_us = {0: 0.5, 1: 0.5, 2: 0.3, 3: 0.3}
    links = []
    for src in range(4):
        for dst in range(4):
            if src == dst:
                continue
            own, far = {src, dst} == {0, 1}, (src < 2) != (dst < 2)
            alpha_us = 0.2 if own else up_us[src] + up_us[dst] + (0.4 if far else 0.0)
            links.append(
                LinkFit(
                    src,
                    dst,
                    exactly(alpha_us * 1e-6),
                    exactly(1e-9 / (40 if own else 6 if far and src > 1 else 8)),
                    exactly(0.1e-6),
                    0.0,
                    True,
                    ((1, 1e-6),),
                    shares=not own,
                    repeats=12,
                    outliers=1,
                    warm_up=0.25,
                )
            )
    shared = [SharedFit((rank,), out, exactly(1e-9 / 8), 3) for rank in range(4) for out in (True, False)]
    shared += [SharedFit((2, 3), True, exactly(1e-9 / 6), 5), SharedFit((2, 3), False, exactly(1e-9 / 16))]
    return Profile("tree", "host", 4, tuple(links), shared=tuple(shared))


def test_shared_links_become_the_switches_of_a_tree():
    profile = make_tree()
    topology = profile.topology()
    assert sorted(topology.switch_names) == ["switch of 0-3", "switch of 2-3"]
    found = hops(topology)
    assert len(found) == len(profile.links)
    by_pair = {(link.src, link.dst): link for link in profile.links}
    for hop in range(len(found)):
        link = by_pair[int(found.src[hop]), int(found.dst[hop])]
        assert found.alpha_s[hop] == pytest.approx(link.alpha_s.value, rel=0.02)
        assert found.beta_s_per_byte[hop] == pytest.approx(link.beta_s_per_byte.value)
        assert found.overhead_s[hop] == pytest.approx(0.1e-6)
    names = {topology.link_name(link): 1e-9 * topology.bandwidth[link] for link in range(topology.num_links)}
    assert names["switch of 2-3->switch of 0-3"] == pytest.approx(6)
    assert names["switch of 0-3->switch of 2-3"] == pytest.approx(16)
    assert names["0->1"] == pytest.approx(40)


def test_two_that_share_a_link_share_its_bandwidth_when_a_plan_is_simulated():
    topology = make_tree().topology()
    routes = {
        (int(s), int(d)): set(r)
        for s, d, r in zip(hops(topology).src, hops(topology).dst, map(tuple, hops(topology).routes), strict=True)
    }
    common = routes[2, 0] & routes[3, 1]
    assert [topology.link_name(link) for link in common] == ["switch of 2-3->switch of 0-3"]


def test_a_relayed_pair_has_no_link():
    profile = make_profile(ports=False)
    links = tuple(replace(link, via=1) if {link.src, link.dst} == {0, 2} else link for link in profile.links)
    topology = replace(profile, links=links).topology()
    assert topology.num_links == 4


def test_what_was_shared_is_kept_in_the_file(tmp_path):
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    write_profile(make_tree(), first)
    profile = read_profile(first)
    write_profile(profile, second)
    assert first.read_bytes() == second.read_bytes()
    assert [(one.ranks, one.out, one.full) for one in profile.shared[-2:]] == [((2, 3), True, 5), ((2, 3), False, 0)]
    assert (profile.links[0].shares, profile.links[1].shares) == (False, True)
    assert (profile.links[0].repeats, profile.links[0].outliers, profile.links[0].warm_up) == (12, 1, 0.25)


@pytest.mark.parametrize(
    "old, new, told",
    [
        ("ranks: [2, 3], way: out", "ranks: [3, 2], way: out", r"shared\[8\]\.ranks"),
        ("ranks: [2, 3], way: in", "ranks: [1, 2], way: in", r"shared\[9\]\.ranks"),
        ("ranks: [0], way: out", "ranks: [9], way: out", r"shared\[0\]\.ranks"),
        ("ranks: [0], way: out", "ranks: [0], way: up", r"shared\[0\]\.way"),
    ],
)
def test_a_wrong_shared_link_is_named(tmp_path, old, new, told):
    text = profile_text(make_tree())
    assert old in text
    file = tmp_path / "p.yaml"
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=rf"p\.yaml:{told}"):
        read_profile(file)
