"""From descriptions to topologies: costs with what was assumed, PCIe trees, cards, boxes, files combined."""

from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from collsyn.errors import InputError
from collsyn.model.fields import parse_document
from collsyn.model.topology_file import topology_from_fields, topology_text
from collsyn.topology.connect import require_connected
from collsyn.topology.imports import links
from collsyn.topology.imports.assemble import Options, assumed
from collsyn.topology.imports.recognise import import_files
from collsyn.topology.resolve import import_named, load_topology
from collsyn.topology.symmetry import is_symmetry
from tests.support import pastes

RING = {(0, 1): 2, (1, 2): 1, (2, 3): 2, (0, 3): 1}


def build(*texts, **options):
    """The topology of some texts, with these options."""
    files = [(text.encode(), f"file{number}") for number, text in enumerate(texts)]
    return import_files(files[0], files[1:], Options(**options))


def gb_s(topology, a, b):
    """GB/s of all links from one vertex (a rank or a switch's name) to another."""
    ids = {topology.vertex_name(v): v for v in range(topology.num_vertices)}
    chosen = (topology.src == ids[str(a)]) & (topology.dst == ids[str(b)])
    return float(topology.bandwidth[chosen].sum()) / 1e9


def graph(topology):
    """The links without costs."""
    found = nx.DiGraph()
    found.add_nodes_from(range(topology.num_vertices))
    found.add_edges_from(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    return found


ALL = {
    "cube mesh": pastes.tabs(pastes.cube_mesh()),
    "switch": pastes.tabs(pastes.switched(8, 12, 8)),
    "pairs": pastes.tabs(pastes.bridged()),
    "old": pastes.tabs(pastes.old()),
    "all SYS": pastes.tabs(pastes.plain("SYS", 8)),
    "xml ring": pastes.topology_xml(4, pairs=RING),
    "xml switch": pastes.topology_xml(8, switch=18, kind='sm="90"'),
    "xml classes": pastes.topology_xml(8, elements=False),
    "rocm islands": pastes.rocm([["XGMI" if a // 4 == b // 4 else "PCIE" for b in range(8)] for a in range(8)]),
}


@pytest.mark.parametrize("boxes", [1, 2, 3])
@pytest.mark.parametrize("name", ALL)
def test_every_topology_is_connected_symmetric_and_read_back_the_same(name, boxes):
    given = {"nic": 25.0} if boxes > 1 else {}
    topology = build(ALL[name], boxes=boxes, gb_s=given)
    require_connected(topology)
    both = sorted(zip(topology.src.tolist(), topology.dst.tolist(), topology.beta_s_per_byte.tolist(), strict=True))
    assert both == sorted((b, a, beta) for a, b, beta in both)
    assert all(is_symmetry(topology, permutation) for permutation in topology.symmetries)
    assert bool(boxes == 1) or topology.symmetries
    assert len(topology.boxes) == boxes
    text = topology_text(topology)
    assert topology_text(topology_from_fields(parse_document(text.encode(), "x"))) == text
    again = import_named([(text.encode(), "x.yaml")], Options(), None)
    assert topology_text(again) == text
    assert set(topology.provenance) <= {"source", "inputs", "given", "assumed", "warnings", "cards", "fabric"}
    # No switch of the PCIe tree is without use: it joins at least three links, or two GPUs.
    fabric = topology.num_ranks + sum(name.startswith("box") for name in topology.switch_names)
    degrees = dict(graph(topology).out_degree())
    for vertex in range(topology.num_ranks, topology.num_vertices):
        near = set(graph(topology).successors(vertex))
        assert degrees[vertex] > 2 or near <= set(range(topology.num_ranks)) or vertex >= fabric


def test_bandwidths_come_from_the_table_and_are_said_to_be_assumed():
    topology = build(ALL["cube mesh"])
    for (a, b), lanes in pastes.cube_mesh().lanes().items():
        assert gb_s(topology, a, b) == pytest.approx(25 * lanes)
    assert set(topology.provenance["assumed"]) == {"costs", "nvlink"}
    assert "NVLink 2" in topology.provenance["assumed"]["nvlink"]
    (line,) = assumed(topology)
    assert "nvlink" in line
    assert assumed(load_topology("dgx1")) == []


def test_what_the_user_or_the_file_says_is_not_assumed():
    given = build(ALL["cube mesh"], gb_s={"nvlink": 22.5})
    assert gb_s(given, 0, 3) == pytest.approx(45)
    assert set(given.provenance["assumed"]) == {"costs"}
    assert given.provenance["given"] == {"nvlink": 22.5}
    status = "GPU 0: NVIDIA H100\n" + "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))
    said = build(pastes.tabs(pastes.switched(8, 18)) + status)
    assert gb_s(said, 0, "box0.nvswitch") == pytest.approx(18 * 26.562)
    assert "nvlink" not in said.provenance["assumed"]
    xml = build(ALL["xml classes"])
    assert set(xml.provenance["assumed"]) == {"costs", "smp"}


def test_a_bandwidth_of_links_that_are_not_there_is_said_to_change_nothing():
    topology = build(ALL["cube mesh"], gb_s={"xgmi": 3.0, "pcie": 3.0})
    assert any("xgmi and pcie changes nothing" in warning for warning in topology.provenance["warnings"])
    assert "warnings: 1" in assumed(topology)[0]
    assert "warnings" not in build(ALL["old"], gb_s={"pcie": 3.0}).provenance


def test_the_switch_of_new_generations_multicasts_and_reduces():
    new, old = build(ALL["xml switch"]), build(ALL["switch"])
    assert (new.multicast.sum(), new.reduction.sum()) == (1, 1)
    assert "multicast" in new.provenance["assumed"]
    assert not old.multicast.any()


def test_pcie_joins_what_nvlink_does_not():
    topology = build(ALL["pairs"])
    assert topology.switch_names == ("box0.host0", "box0.host1")
    assert gb_s(topology, 0, 2) == pytest.approx(4 * 14.0625)
    assert gb_s(topology, 0, "box0.host0") == pytest.approx(31.51)
    assert gb_s(topology, 0, "box0.host1") == 0
    assert any("in parts [0 2], [1 3]" in warning for warning in topology.provenance["warnings"])
    # What the GPUs of one host bridge send to those of the other shares one link.
    assert gb_s(topology, "box0.host0", "box0.host1") == pytest.approx(31.51)


def test_the_slowest_link_of_a_chain_of_bridges_counts():
    bridge = 'busid="0000:18:00.0" class="0x060400" link_speed="16.0 GT/s PCIe"'
    text = (
        ALL["xml classes"]
        .replace(bridge, bridge.replace("16.0", "8.0"))
        .replace('link_width="16"/>', 'link_width="8"/>')
    )
    topology = build(text)
    assert gb_s(topology, 0, "box0.socket0") == pytest.approx(links.pcie_gb_s(16.0, 8))
    assert gb_s(topology, 0, "box0.socket0") == gb_s(topology, "box0.socket0", 0)
    with_cards = build(text, boxes=2)
    assert gb_s(with_cards, "box0.pcie0", "box0.socket0") == pytest.approx(15.75)


def test_rails_where_every_gpu_has_a_card_else_one_fabric():
    rails = build(ALL["xml switch"], boxes=2)
    assert rails.provenance["fabric"].startswith("8 rails")
    for gpu in range(8):
        assert gb_s(rails, gpu, f"rail{gpu}") == gb_s(rails, 8 + gpu, f"rail{gpu}") == pytest.approx(25)
    one = build(ALL["xml switch"], boxes=2, fabric="one")
    assert one.provenance["fabric"].startswith("one switch")
    assert gb_s(one, 9, "fabric") == pytest.approx(25)
    shared = build(ALL["cube mesh"], boxes=2)
    assert shared.provenance["fabric"].startswith("one switch")
    for bridge in range(4):
        assert gb_s(shared, f"box1.pcie{bridge}", "fabric") == pytest.approx(12.5)
        assert gb_s(shared, 2 * bridge, f"box0.pcie{bridge}") == pytest.approx(15.75)
    assert build(ALL["cube mesh"], boxes=2, fabric="rails").provenance["fabric"].startswith("4 rails")
    assert [card["near"] for card in shared.provenance["cards"]] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_card_that_is_slower_than_its_pcie_or_the_other_way_round():
    fast = build(pastes.topology_xml(4, pairs=RING, mbit_s=800000), boxes=2)
    assert gb_s(fast, 0, "rail0") == pytest.approx(31.51)


def test_cards_that_no_file_names_are_given_by_the_user():
    with pytest.raises(InputError, match="--bandwidth nic"):
        build(ALL["pairs"], boxes=2)
    topology = build(ALL["pairs"], boxes=2, gb_s={"nic": 50.0})
    assert gb_s(topology, 2, "rail2") == pytest.approx(50)
    assert topology.provenance["assumed"]["cards"] == "one a GPU"


def test_files_combine_links_of_one_and_pcie_and_cards_of_the_other():
    alone = build(ALL["xml classes"])
    both = build(pastes.tabs(pastes.switched(8, 12)), ALL["xml classes"], boxes=2)
    assert gb_s(both, 0, "box0.nvswitch") == pytest.approx(300)
    assert both.provenance["source"] == "nvidia-smi topo -m with NCCL topology XML"
    assert len(both.provenance["inputs"]) == 2
    assert len(both.provenance["cards"]) == 8
    assert any("PCI class" in warning for warning in alone.provenance["warnings"])
    assert "warnings" not in both.provenance
    turned = build(ALL["xml classes"], pastes.tabs(pastes.switched(8, 12)), boxes=2)
    assert np.array_equal(np.sort(turned.bandwidth), np.sort(both.bandwidth))
    # A file that names the kind of GPU knows more than a number of links.
    hopper = build(pastes.tabs(pastes.switched(8, 18)), pastes.topology_xml(8, switch=18, kind='sm="100"'))
    assert gb_s(hopper, 0, "box0.nvswitch") == pytest.approx(900)


def test_files_that_do_not_fit_together_are_refused():
    with pytest.raises(InputError, match="file1: has 4 GPUs; expected 8"):
        build(ALL["switch"], ALL["xml ring"])
    with pytest.raises(InputError, match="file1: is p2pBandwidthLatencyTest"):
        build(ALL["switch"], pastes.p2p([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(InputError, match="cannot be combined"):
        build(pastes.p2p([[1.0, 2.0], [2.0, 1.0]]), ALL["switch"])
    with pytest.raises(InputError, match="holds measurements"):
        build(pastes.p2p([[1.0, 2.0], [2.0, 1.0]]), boxes=2)
    differing = build(pastes.tabs(pastes.switched(4, 12)), pastes.topology_xml(4, pairs=RING))
    assert any("differ in links" in warning for warning in differing.provenance["warnings"])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"gb_s": {"nvlnk": 3.0}}, "nvlnk.*expected one of"), ({"boxes": 2}, "names no network card")],
)
def test_options_that_cannot_be_used(options, message):
    with pytest.raises(InputError, match=message):
        build(ALL["pairs"], **options)


def test_more_than_fits_is_refused_at_once():
    with pytest.raises(InputError, match=r"file0: has 1280000 ranks"):
        build(pastes.tabs(pastes.switched(16, 6)), boxes=80000, gb_s={"nic": 1.0})


def test_one_gpu_has_nothing_to_talk_to():
    one = pastes.Matrix(1, {})
    with pytest.raises(InputError, match="one GPU"):
        build(pastes.tabs(one))
    assert build(pastes.tabs(one), boxes=4, gb_s={"nic": 10.0}).num_ranks == 4


def test_gpus_with_fewer_links_to_their_switch_are_said():
    text = ALL["xml switch"].replace('target="0000:c0:00.0" count="9"', 'target="0000:c0:00.0" count="8"', 1)
    topology = build(text)
    assert gb_s(topology, 0, "box0.nvswitch") == pytest.approx(17 * 25)
    assert any("GPU 0 17" in warning for warning in topology.provenance["warnings"])


def test_no_name_of_a_file_host_or_user_gets_into_the_topology():
    text = "alice@node17:~/secret$ nvidia-smi topo -m\n" + ALL["cube mesh"]
    topology = import_files((text.encode(), "/home/alice/secret/m.txt"), (), Options())
    shown = topology_text(topology)
    assert not any(word in shown for word in ("alice", "node17", "secret", "m.txt"))
    assert replace(topology, name="x").name != topology.name


def test_the_page_has_the_table_of_links():
    page = (Path(__file__).resolve().parents[3] / "docs" / "importing.md").read_text()
    for generation in links.GENERATIONS.values():
        assert f"| {generation.title} | {generation.lane_gb_s:g} | {generation.source} |" in page


def test_the_table_of_links_has_a_source_for_every_generation():
    for generation in links.GENERATIONS.values():
        assert generation.source
        assert generation.lane_gb_s > 0
    # Known totals of GPUs, one way: links times lanes.
    totals = {"nvlink1": (4, 80), "nvlink2": (6, 150), "nvlink3": (12, 300), "nvlink4": (18, 450), "nvlink5": (18, 900)}
    for key, (lanes, total) in totals.items():
        assert links.GENERATIONS[key].lane_gb_s * lanes == total
    assert [round(links.pcie_gb_s(rate, 16), 2) for rate in (8.0, 16.0, 32.0)] == [15.75, 31.51, 63.02]
    assert links.pcie_gb_s(7.0, 16) is None
    assert links.pcie_gb_s(8.0, 0) is None
