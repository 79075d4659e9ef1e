"""Machine files: what they can say, and one line for each mistake."""

import pytest

from collsyn.errors import InputError
from collsyn.model.fields import parse_document
from collsyn.topology.machine import machine_topology
from collsyn.topology.machine_file import machine_from_fields
from collsyn.topology.spec import parse_spec
from tests.support.topologies import as_graph

TEXT = """
schema: collsyn-machine/1
name: toy
summary: two GPUs and a switch
overhead_us: 0.3
min_piece: 4K
links:
  fast: {bandwidth_gb_s: 100, alpha_us: 0.5, source: somewhere}
  slow: {beta_us_per_mb: 100, alpha_us: 0.2}
  busy: {bandwidth_gb_s: 10, alpha_us: 2, overhead_us: alpha}
  calm: {bandwidth_gb_s: 10, alpha_us: 2, overhead_us: 0}
box:
  gpus: 4
  switches:
    - {name: hub, multicast: true}
  wires:
    - {link: fast, lanes: 2, pairs: 0-1 2-3}
    - {link: slow, pairs: 0..3-hub}
  symmetries:
    - (0 1)(2 3)
  cuts:
    - {name: left, vertices: 0..1}
fabric:
  - max_boxes: 2
    wires:
      - {link: busy, across: 1>0 3>2}
  - min_boxes: 3
    box_switches:
      - {name: nic}
    switches:
      - {name: spine}
    wires:
      - {link: calm, pairs: 0..3-nic nic-spine}
    symmetries:
      - (0 1)(2 3)
variants:
  - options: {costs: other}
    links:
      fast: {bandwidth_gb_s: 1, alpha_us: 1}
      slow: {bandwidth_gb_s: 1, alpha_us: 1}
      busy: {bandwidth_gb_s: 1, alpha_us: 1}
      calm: {bandwidth_gb_s: 1, alpha_us: 1}
    box:
      gpus: 2
      wires:
        - {link: fast, pairs: 0-1}
    fabric: []
"""


def machine(text=TEXT):
    """The machine of a text."""
    return machine_from_fields(parse_document(text.encode(), "toy.yaml"))


def topology(spec, text=TEXT):
    """A topology of the machine of a text."""
    return machine_topology(machine(text), parse_spec(spec))


def test_a_box():
    box = topology("toy")
    edges = {(a, b): d for a, b, d in as_graph(box).edges(data=True)}
    assert edges.keys() == {(0, 1), (1, 0), (2, 3), (3, 2)} | {e for g in range(4) for e in ((g, 4), (4, g))}
    assert edges[0, 1] == {"gb_s": 200, "alpha_us": 0.5, "overhead_us": 0.3, "lanes": 2}
    assert edges[0, 4] == {"gb_s": 10, "alpha_us": 0.2, "overhead_us": 0.2, "lanes": 1}
    assert (box.switch_names, box.min_piece_bytes) == (("box0.hub",), 4096)
    assert (box.multicast.tolist(), box.reduction.any()) == ([False] * 4 + [True], False)
    assert box.symmetries == ((1, 0, 3, 2, 4),)
    assert [(cut.name, cut.vertices) for cut in box.cuts] == [("box0 left", (0, 1))]


def test_two_boxes_joined_across():
    two = topology("toy:2")
    between = {(a, b): d for a, b, d in as_graph(two).edges(data=True) if {a // 4, b // 4} == {0, 1} and max(a, b) < 8}
    assert between.keys() == {(1, 4), (3, 6), (5, 0), (7, 2)}
    assert all(d["overhead_us"] == d["alpha_us"] == 2 for d in between.values())
    assert two.symmetries == ((4, 5, 6, 7, 0, 1, 2, 3, 9, 8),)
    assert [(cut.name, cut.vertices) for cut in two.cuts] == [("half of the boxes", (0, 1, 2, 3, 8))]


def test_three_boxes_joined_by_a_spine():
    three = topology("toy:3")
    assert three.switch_names == ("box0.hub", "box0.nic", "box1.hub", "box1.nic", "box2.hub", "box2.nic", "spine")
    graph = as_graph(three)
    assert sorted(graph.successors(18)) == [13, 15, 17]
    assert all(d["overhead_us"] == 0 for *_, d in graph.out_edges(18, data=True))
    assert three.boxes == ((0, 1, 2, 3, 12, 13), (4, 5, 6, 7, 14, 15), (8, 9, 10, 11, 16, 17))
    assert three.symmetries[1] == (1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, *range(12, 19))


def test_a_variant_replaces_what_it_names_and_inherits_the_rest():
    variant = topology("toy@costs=other")
    assert (variant.num_ranks, variant.num_links, variant.min_piece_bytes) == (2, 2, 4096)
    assert variant.overhead_model == "none"
    with pytest.raises(InputError, match="expected at most 1"):
        topology("toy:2@costs=other")


WRONG = [
    ("schema: collsyn-machine/1", "schema: collsyn-machine/2", "toy.yaml:schema: is 'collsyn-machine/2'"),
    ("name: toy\n", "nam: toy\n", "toy.yaml:nam: is not a key"),
    ("overhead_us: 0.3", "overhead_us: -1", "toy.yaml:overhead_us: is -1"),
    ("min_piece: 4K", "min_piece: 0", "toy.yaml:min_piece: size 0 must"),
    ("bandwidth_gb_s: 100", "bandwidth_gb_s: 0", "toy.yaml:links.fast.bandwidth_gb_s: is 0"),
    ("alpha_us: 0.5,", "alpha_us: x,", "toy.yaml:links.fast.alpha_us: is 'x'"),
    ("overhead_us: alpha", "overhead_us: 3", "toy.yaml:links.busy.overhead_us: is 3"),
    ("  gpus: 4", "  gpus: 0", "toy.yaml:box.gpus: is 0"),
    ("  gpus: 4\n", "", "toy.yaml:box.gpus: is missing"),
    ("{name: hub, multicast: true}", "{name: 7}", "toy.yaml:box.switches[0].name: is a number"),
    ("{name: hub, multicast: true}", "{name: Hub}", "toy.yaml:box.switches[0].name: is 'Hub'"),
    ("    - {name: hub, multicast: true}", "    - {name: hub}\n    - {name: hub}", "names a switch twice"),
    ("link: fast, lanes: 2", "link: quick, lanes: 2", "toy.yaml:box.wires[0].link: is 'quick'"),
    ("lanes: 2", "lanes: 0", "toy.yaml:box.wires[0].lanes: is 0"),
    ("pairs: 0-1 2-3", "pairs: 0-1 2-9", "toy.yaml:box.wires[0].pairs: names '9'"),
    ("pairs: 0-1 2-3", "pairs: 0>1", "toy.yaml:box.wires[0].pairs: holds '0>1'"),
    ("pairs: 0..3-hub", "pairs: 3..0-hub", "toy.yaml:box.wires[1].pairs: names '3..0'"),
    ("pairs: 0..3-hub", "pairs: 0..3-spine", "toy.yaml:box.wires[1].pairs: names 'spine'"),
    ("pairs: 0-1 2-3", "pairs: 0-0", "joins a vertex to itself"),
    ("across: 1>0 3>2", "across: 1-0", "toy.yaml:fabric[0].wires[0].across: holds '1-0'"),
    ("max_boxes: 2", "max_boxes: 1", "toy.yaml:fabric[0].max_boxes: is 1"),
    ("(0 1)(2 3)\n  cuts", "(0 1)(1 2)\n  cuts", "toy.yaml:box.symmetries: holds '(0 1)(1 2)'"),
    ("(0 1)(2 3)\n  cuts", "0 1\n  cuts", "toy.yaml:box.symmetries: holds '0 1'"),
    ("(0 1)(2 3)\n  cuts", "(0 9)\n  cuts", "toy.yaml:box.symmetries: holds '(0 9)'"),
    ("(0 1)(2 3)\n  cuts", "(0 2)\n  cuts", "does not map links to equal links"),
    ("vertices: 0..1", "vertices: 0..8", "toy.yaml:box.cuts[0].vertices: names '0..8'"),
    ("options: {costs: other}", "options: {}", "toy.yaml:variants[0].options: is empty"),
    ("calm: {bandwidth_gb_s: 10, alpha_us: 2, overhead_us: 0}", "", "toy.yaml:fabric[1].wires[0].link: is 'calm'"),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_a_mistake_is_one_line_that_names_the_key(old, new, message):
    assert old in TEXT
    with pytest.raises(InputError) as caught:
        topology("toy", TEXT.replace(old, new, 1))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_variant_whose_links_lack_a_class_is_refused():
    with pytest.raises(InputError, match=r"toy\.yaml:variants\[0\]"):
        machine(TEXT.replace("      fast: {bandwidth_gb_s: 1, alpha_us: 1}\n", "", 1))


def test_a_variant_may_not_drop_a_class_that_the_inherited_box_uses():
    text = TEXT.partition("    box:\n      gpus: 2")[0].replace("      fast: {bandwidth_gb_s: 1, alpha_us: 1}\n", "")
    with pytest.raises(InputError, match=r"toy\.yaml:variants\[0\]\.links: .*'fast'"):
        machine(text)


MIXED = """
schema: collsyn-machine/1
name: mixed
links:
  lane: {bandwidth_gb_s: 10, alpha_us: 1}
  card: {bandwidth_gb_s: 5, alpha_us: 2}
boxes:
  small:
    count: 2
    gpus: 2
    wires:
      - {link: lane, pairs: 0-1}
    symmetries:
      - (0 1)
  big:
    gpus: 3
    switches:
      - {name: hub}
    wires:
      - {link: lane, pairs: 0..2-hub}
    cuts:
      - {name: two, vertices: 0..1}
fabric:
  - switches:
      - {name: spine}
    boxes:
      small:
        box_switches:
          - {name: nic}
        wires:
          - {link: card, pairs: 0..1-nic nic-spine}
          - {link: card, across: 0>1}
        symmetries: []
      big:
        wires:
          - {link: card, pairs: 0-spine hub-spine}
        cuts:
          - {name: two, vertices: 0..1 hub}
variants:
  - options: {costs: slow}
    links:
      lane: {bandwidth_gb_s: 1, alpha_us: 1}
      card: {bandwidth_gb_s: 1, alpha_us: 1}
"""


def test_kinds_of_boxes_follow_each_other():
    mixed = topology("mixed", MIXED)
    assert mixed.num_ranks == 2 + 2 + 3
    assert mixed.switch_names == ("box0.nic", "box1.nic", "box2.hub", "spine")
    assert mixed.boxes == ((0, 1, 7), (2, 3, 8), (4, 5, 6, 9))
    nic, other, hub, spine = 7, 8, 9, 10
    pairs = {(0, 1), (2, 3), *((r, hub) for r in (4, 5, 6)), (0, nic), (1, nic), (2, other), (3, other)}
    pairs |= {(nic, spine), (other, spine), (4, spine), (hub, spine)}
    # Across goes to boxes of the same kind only.
    expected = pairs | {(b, a) for a, b in pairs} | {(0, 3), (2, 1)}
    assert set(as_graph(mixed).edges()) == expected
    assert mixed.num_links == len(expected)
    assert mixed.symmetries == ((2, 3, 0, 1, 4, 5, 6, 8, 7, 9, 10),)
    assert {cut.name: cut.vertices for cut in mixed.cuts} == {
        "box2 two": (4, 5, 9),
        "half of the boxes": (0, 1, 7),
        "small boxes": (0, 1, 7, 2, 3, 8),
        "big boxes": (4, 5, 6, 9),
    }


def test_a_number_for_every_kind():
    assert topology("mixed:1x2", MIXED).boxes == ((0, 1, 8), (2, 3, 4, 9), (5, 6, 7, 10))
    assert topology("mixed:0x1", MIXED).switch_names == ("box0.hub",)
    alone = topology("mixed:1x0", MIXED)
    assert (alone.num_ranks, alone.symmetries) == (2, ((1, 0),))
    assert topology("mixed:3x0", MIXED).num_ranks == 6
    assert machine(MIXED).form == "mixed:SMALLxBIG"
    for text in ("mixed:2", "mixed:1x1x1", "mixed:0x0"):
        with pytest.raises(InputError, match=f"{text}: expected mixed:SMALLxBIG with at least 1 box"):
            topology(text, MIXED)


def test_a_variant_keeps_the_kinds():
    slow = topology("mixed@costs=slow", MIXED)
    assert slow.boxes == topology("mixed", MIXED).boxes
    assert set(slow.beta_s_per_byte) == {1e-9}


WRONG_KINDS = [
    ("  small:\n    count: 2", "  small:\n    count: 0", "toy.yaml:boxes.small.count: is 0"),
    ("  big:\n    gpus: 3", "  big:\n    gpus: x", "toy.yaml:boxes.big.gpus: is 'x'"),
    ("  big:\n    gpus", "  Big:\n    gpus", "toy.yaml:boxes.Big: is no name of a kind; expected small letters"),
    ("boxes:\n  small:", "box: {gpus: 2, wires: []}\nboxes:\n  small:", "toy.yaml:boxes: stands beside box"),
    (
        "      big:\n        wires",
        "      huge:\n        wires",
        "toy.yaml:fabric[0].boxes.big: is missing; expected how",
    ),
    (
        "      small:\n        box_switches",
        "      tiny: {}\n      small:\n        box_switches",
        "boxes.tiny: is not a key",
    ),
    ("    boxes:\n", "    kinds:\n", "toy.yaml:fabric[0].boxes: is missing"),
    ("0-spine hub-spine", "0-spine nic-spine", "toy.yaml:fabric[0].boxes.big.wires[0].pairs: names 'nic'"),
    ("0-spine hub-spine", "3-spine hub-spine", "toy.yaml:fabric[0].boxes.big.wires[0].pairs: names '3'"),
    ("{name: nic}", "{name: spine}", "toy.yaml:fabric[0].boxes.small.box_switches: names a switch twice"),
    ("    links:\n      lane", "    boxes: {}\n    links:\n      lane", "toy.yaml:variants[0].boxes: is empty"),
    (
        "    links:\n      lane",
        "    box: {gpus: 1, wires: []}\n    links:\n      lane",
        "toy.yaml:variants[0].fabric: is missing; boxes of a variant's own",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG_KINDS)
def test_a_mistake_in_kinds_is_one_line_that_names_the_key(old, new, message):
    assert MIXED.count(old) == 1
    with pytest.raises(InputError) as caught:
        topology("mixed", MIXED.replace(old, new))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
