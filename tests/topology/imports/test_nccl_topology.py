"""Topology files of NCCL and RCCL: what was written is what is read; partial, odd and hostile files are answered."""

import re

import pytest

from collsyn.errors import InputError
from collsyn.topology.imports import nccl_graph, nccl_topology
from collsyn.topology.imports.text import paste
from collsyn.topology.imports.xml_tree import MAX_DEPTH
from tests.support.pastes import topology_xml

RING = {(0, 1): 2, (1, 2): 1, (2, 3): 2, (0, 3): 1}


def read(text):
    return nccl_topology.read(paste(text.encode(), "topo.xml"))


def said(described, words):
    """Whether some warning has these words."""
    return any(words in warning for warning in described.warnings)


@pytest.mark.parametrize(("link", "kind"), [("nvlink", 'sm="70"'), ("xgmi", 'sm="104" gcn="910"')])
def test_links_sockets_bridges_and_cards(link, kind):
    described = read(topology_xml(4, link, RING, kind=kind))
    assert dict(described.lanes) == RING
    assert described.family == link
    assert described.generation == {"nvlink": "nvlink2", "xgmi": "gfx90a"}[link]
    assert [described.places[described.root(gpu.place)].name for gpu in described.gpus] == ["socket0"] * 2 + [
        "socket1"
    ] * 2
    assert [card.place for card in described.cards] == [gpu.place for gpu in described.gpus]
    assert [card.gb_s for card in described.cards] == [25.0] * 4
    assert {gpu.gb_s for gpu in described.gpus} == {31.51}
    assert described.processor == "zen4"
    assert described.warnings == ()


def test_links_to_chips_that_are_absent_mean_a_switch():
    described = read(topology_xml(8, switch=18, kind='sm="90"'))
    assert (described.lanes, described.hubs) == ({}, (dict.fromkeys(range(8), 18),))
    assert described.generation == "nvlink4"


def test_a_file_of_classes_only_says_what_it_lacks():
    described = read(topology_xml(8, elements=False))
    assert (described.num_gpus, len(described.cards)) == (8, 8)
    assert [card.gb_s for card in described.cards] == [None] * 8
    assert said(described, "8 GPUs, by their PCI class only")


def test_a_file_without_classes_is_refused():
    with pytest.raises(InputError, match="cannot be told apart"):
        read(re.sub(r' class="\w+"', "", topology_xml(4, elements=False)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ((r'target="0000:20:00.0" count="2"', 'target="0000:10:00.0" count="2"'), "to itself"),
        ((r'target="0000:20:00.0" count="2"', 'target="0000:20:00.0" count="1"'), "not the same both ways"),
        ((r'target="0000:20:00.0"', 'target="0000:ee:00.0"'), "not in the file"),
        (
            (
                r'target="0000:20:00.0" count="2" tclass="0x0302',
                'target="0004:04:00.0" count="2" tclass="0x068001" x="',
            ),
            "processors",
        ),
        ((r'dev="3"(.*)rank="3"', r'dev="7"\1rank="7"'), "rank 0, 1, 2, 7"),
        ((r'speed="200000" port="1"/></nic>', r'speed="1000" port="1"/></nic>'), "slow cards"),
        (
            (r'link_speed="16.0 GT/s PCIe" link_width="16">\n      <', 'link_speed="2.5 GT/s" link_width="16">\n<'),
            "asleep",
        ),
        ((r'speed="200000" port', 'speed="9000000" port'), "outside"),
    ],
)
def test_odd_files_are_read_and_their_oddity_said(change, words):
    described = read(re.sub(*change, topology_xml(4, pairs=RING), count=1))
    assert described.num_gpus == 4
    assert said(described, words), described.warnings


def test_a_network_that_is_too_slow_for_gpus_is_said():
    assert said(read(topology_xml(4, mbit_s=1000)), "perhaps those for messages")


def test_speeds_that_are_empty_are_not_said():
    described = read(topology_xml(2, pairs={(0, 1): 12}, speed=""))
    assert {gpu.gb_s for gpu in described.gpus} == {None}


def test_ranks_rather_than_devices_count():
    text = topology_xml(4, pairs={(0, 1): 1})
    turned = re.sub(r'rank="(\d)"', lambda match: f'rank="{3 - int(match[1])}"', text)
    assert dict(read(turned).lanes) == {(2, 3): 1}


def test_two_gpus_of_one_bus_id_are_refused():
    text = topology_xml(4, pairs=RING).replace('busid="0000:20:00.0"', 'busid="0000:10:00.0"')
    with pytest.raises(InputError, match=r"topo.xml:line \d+: a second GPU"):
        read(text)


def test_two_gpus_of_one_rank_and_device_are_refused():
    text = topology_xml(4).replace('dev="2" sm="80" rank="2"', 'dev="1" sm="80" rank="1"')
    with pytest.raises(InputError, match="a second GPU has rank 1 and dev 1"):
        read(text)


def test_the_file_may_stand_in_a_paste():
    text = "$ cat topo.xml\n<!-- a <system> made\nby hand -->\n" + topology_xml(4, pairs=RING) + "$ exit\n"
    assert dict(read(text).lanes) == RING
    saved = text.replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    assert dict(read(saved).lanes) == RING


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (topology_xml()[:700], "cut off"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><system version="1"><cpu/></system>', "entities"),
        ("<system version='1'>" + "<pci>" * 100 + "</pci>" * 100 + "</system>", f"{MAX_DEPTH} levels"),
        ('<system version="9"/>', "version 9"),
        ("<!-- <system> -->", "outside comments"),
        ('<system version="1"><cpu numaid="0"/></system>', "has no GPU"),
        (topology_xml(2, pairs={(0, 1): 2}).replace('count="2"', 'count="-2"'), "count is '-2'"),
        (
            topology_xml(2).replace("<cpu ", '<cpu host_hash="0x1" ', 1).replace("<cpu n", '<cpu host_hash="0x2" n'),
            "2 hosts",
        ),
    ],
)
def test_files_that_cannot_be_used_are_refused_in_one_line(text, message):
    with pytest.raises(InputError, match=message) as caught:
        read(text)
    assert "\n" not in str(caught.value)


def graph(orders, pattern=4, net=False):
    """A graph file with these orders of GPUs, 20 GB/s a channel."""
    channels = ""
    for order in orders:
        ends = '<net dev="0"/>' if net else ""
        inner = "".join(f'<gpu dev="{gpu}"/>' for gpu in order)
        channels += f"<channel>{ends}{inner}{ends}</channel>"
    head = f'<graph id="0" pattern="{pattern}" nchannels="{len(orders)}" speedintra="20" speedinter="20"'
    return f'<graphs version="1">{head} typeintra="NVL">{channels}</graph></graphs>'


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (graph([[0, 1, 2]]), {(0, 1): 20, (1, 2): 20, (2, 0): 20}),
        (graph([[0, 1, 2], [0, 1, 2]]), {(0, 1): 40, (1, 2): 40, (2, 0): 40}),
        (graph([[0, 1, 2]], net=True), {(0, 1): 20, (1, 2): 20}),
        (graph([[0, 1, 2]], pattern=1), {(0, 1): 20, (1, 2): 20}),
    ],
)
def test_graphs_become_the_links_of_their_channels(text, want):
    described = nccl_graph.read(paste(text.encode(), "graph.xml"))
    assert dict(described.directed_gb_s) == want | {(b, a): rate for (a, b), rate in want.items()}
    assert said(described, "may have others")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<graphs version="1"/>', "no graph"),
        (graph([[0, 2]]), "expected 0 .. 1"),
        (graph([[0, 1], [0, 0]]), "each of 2 once"),
        (graph([[0, 1]]).replace('speedintra="20"', ""), "speedintra"),
        (graph([[0, 1]]).replace('dev="1"', ""), "neither rank nor dev"),
    ],
)
def test_graphs_that_are_incomplete_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        nccl_graph.read(paste(text.encode(), "graph.xml"))
