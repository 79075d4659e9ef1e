"""Sketch files: what they can say of a topology, those that ship, and one line for each mistake."""

from pathlib import Path

import pytest

from collsyn.data import data_names
from collsyn.errors import InputError
from collsyn.model.fields import parse_document
from collsyn.model.sketch import Sketch
from collsyn.topology.resolve import load_topology
from collsyn.topology.sketch_file import load_sketch, sketch_from_fields

HEAD = "schema: collsyn-sketch/1\n"


def sketch(text: str, topology: str = "ndv2:2") -> Sketch:
    return sketch_from_fields(parse_document((HEAD + text).encode(), "s.yaml"), load_topology(topology))


def test_pairs_are_those_inside_and_across_boxes() -> None:
    found = sketch("gpus_per_box: 8\ninside: 0-1 2>3\nacross: 0..1>7", "ndv2:3")
    boxes = [range(8), range(8, 16), range(16, 24)]
    inside = {(b[x], b[y]) for b in boxes for x, y in ((0, 1), (1, 0), (2, 3))}
    across = {(b[x], c[7]) for b in boxes for c in boxes if b is not c for x in (0, 1)}
    assert found.pairs == inside | across
    assert not found.allows(3, 2)


def test_what_is_not_said_is_allowed() -> None:
    found = sketch("gpus_per_box: 8")
    assert found.pairs is None
    assert found.allows(3, 12)
    assert sketch("gpus_per_box: 8\nacross: 0>1").allows(3, 6)
    assert sketch("gpus_per_box: 8\ninside: none").allows(3, 12)
    assert not sketch("gpus_per_box: 8\ninside: none").allows(3, 6)


def test_relays_are_those_of_every_box() -> None:
    found = sketch("gpus_per_box: 8\nrelays: 0..1>0 1>2\nreceivers: 7>6")
    assert found.carriers == {0: {0}, 1: {0, 2}, 8: {8}, 9: {8, 10}}
    assert found.receivers == {7: {6}, 15: {14}}
    assert found.reversed().carriers == found.receivers


def test_symmetries_are_written_in_three_ways() -> None:
    text = "gpus_per_box: 8\nsymmetry: ['(0 2)(1 3)(4 6)(5 7)', boxes, {shift: 8, within: 16}]"
    cycles, boxes, shift = sketch(text, "ndv2:2").permutations
    assert cycles[:10] == (2, 3, 0, 1, 6, 7, 4, 5, 10, 11)
    assert boxes == shift == (*range(8, 16), *range(8))


def test_a_switch_is_meant_in_every_box() -> None:
    found = sketch("gpus_per_box: 16\nswitches: {nvswitch: few, box1.nic0: many}", "dgx2:2")
    assert found.peers == {"box0.nvswitch": "few", "box1.nvswitch": "few", "box1.nic0": "many"}


@pytest.mark.parametrize("name", [n.removeprefix("sketches/") for n in data_names("configs") if "sketches/" in n])
@pytest.mark.parametrize("boxes", [1, 2, 4])
def test_those_that_ship_fit_their_machine(name: str, boxes: int) -> None:
    topology = load_topology(f"{name.partition('-')[0]}:{boxes}")
    found = load_sketch(name, topology)
    assert found.name == name
    assert found.size_bytes is not None
    assert len(found.permutations) == ("dgx2" in name) + (boxes > 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus_per_box: 4", "s.yaml:gpus_per_box: is 4; topology ndv2:2 has a box of 8"),
        ("gpus_per_box: 8\nmax_boxes: 1", "s.yaml:max_boxes: is 1; topology ndv2:2 has 2"),
        ("gpus_per_box: 8\nmin_boxes: 3", "s.yaml:min_boxes: is 3; topology ndv2:2 has 2"),
        ("gpus_per_box: 8\nacross: 0-1", "s.yaml:across: holds '0-1'; expected ends with > between them"),
        ("gpus_per_box: 8\nacross: 0>8", "s.yaml:across: names '8'; expected a rank 0 .. 7"),
        ("gpus_per_box: 8\nacross: ''", "s.yaml:across: is empty; expected all, none, or pairs"),
        ("gpus_per_box: 8\ninside: 0>0", "s.yaml:inside: lets 0 send to itself"),
        ("gpus_per_box: 8\nrelays: '0'", "s.yaml:relays: holds '0'; expected ends with >"),
        ("gpus_per_box: 8\nswitches: {nvswitch: few}", "s.yaml:switches.nvswitch: is no switch of topology ndv2:2"),
        ("gpus_per_box: 8\nswitches: {nic: some}", "s.yaml:switches.nic: is 'some'; expected one of few, many"),
        ("gpus_per_box: 8\nsymmetry: [rows]", "s.yaml:symmetry[0]: holds 'rows'; expected cycles of ranks"),
        ("gpus_per_box: 8\nsymmetry: [3]", "s.yaml:symmetry[0]: is 3; expected cycles like (0 1)(2 3), boxes"),
        ("gpus_per_box: 8\nsymmetry: [{shift: 1, within: 6}]", "s.yaml:symmetry[0].within: is 6; expected a divisor"),
        ("gpus_per_box: 8\nsymmetry: ['(0 1)']", "s.yaml:symmetry: number 1 moves 0->4 to 1->4, which costs"),
        ("gpus_per_box: 8\nacross: 0>1\nsymmetry: ['(0 2)(1 3)(4 6)(5 7)']", "to 2->11, which may not send"),
        ("gpus_per_box: 8\nrelays: 0>0\nsymmetry: ['(0 2)(1 3)(4 6)(5 7)']", "does not keep the relays of rank 0"),
        ("gpus_per_box: 8\nchunks_per_rank: 0", "s.yaml:chunks_per_rank: is 0; expected at least 1"),
        ("gpus_per_box: 8\nextra_hop: 1", "s.yaml:extra_hop: is not a key that is known here"),
        ("across: 0>1", "s.yaml:gpus_per_box: is missing"),
    ],
)
def test_mistakes_are_one_line_that_names_the_key(text: str, message: str) -> None:
    with pytest.raises(InputError) as failure:
        sketch(text)
    assert message in str(failure.value)
    assert "\n" not in str(failure.value)


def test_a_name_that_is_not_there_lists_those_that_are() -> None:
    with pytest.raises(InputError, match=r"neither a file nor one that ships \(dgx2-sk1, dgx2-sk2, ndv2-sk1"):
        load_sketch("ndv2-sk9", load_topology("ndv2:2"))


def test_the_example_of_the_page_is_read() -> None:
    page = (Path(__file__).parents[2] / "docs/formats/sketch.md").read_text()
    text = page.partition("```yaml\n")[2].partition("```")[0]
    found = sketch_from_fields(parse_document(text.encode(), "page"), load_topology("dgx2:2"))
    assert (found.extra_hops, found.chunks, found.size_bytes, len(found.permutations)) == (1, 2, 64_000_000, 2)
