"""Topology files: the same bytes after reading and writing, and one line for each mistake."""

import json
from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from collsyn.errors import InputError
from collsyn.model.fields import parse_document
from collsyn.model.topology import Cut
from collsyn.model.topology_file import (
    flow,
    read_topology,
    topology_digest,
    topology_document,
    topology_from_fields,
    topology_text,
    write_topology,
)
from collsyn.topology.resolve import load_topology
from tests.support.topologies import ZOO, build, random_topologies, zoo

COLUMNS = (
    "src",
    "dst",
    "alpha_s",
    "beta_s_per_byte",
    "overhead_s",
    "count",
    "multicast",
    "reduction",
    "reduce_s_per_byte",
)


def parsed(text):
    """The topology of a text."""
    return topology_from_fields(parse_document(text.encode(), "t.yaml"))


def same(left, right):
    """Whether two topologies agree, numbers to what a file holds."""
    plain = (
        "name",
        "num_ranks",
        "switch_names",
        "boxes",
        "symmetries",
        "cuts",
        "min_piece_bytes",
        "copies_take_port",
        "size_rates",
        "working_set_rates",
        "reduce_working_set_rates",
        "provenance",
    )
    return all(getattr(left, name) == getattr(right, name) for name in plain) and all(
        np.allclose(getattr(left, name), getattr(right, name), rtol=1e-13, atol=0) for name in COLUMNS
    )


@st.composite
def decorated(draw):
    """Random topologies with all that a file can hold and numbers of any kind."""
    topology = draw(random_topologies())
    n, v, e = topology.num_ranks, topology.num_vertices, topology.num_links
    positive = st.floats(1e-5, 1e5)
    alphas = np.array(draw(st.lists(positive, min_size=e, max_size=e))) * 1e-6
    shares = np.array(draw(st.lists(st.sampled_from((0, 1 / 3, 1)), min_size=e, max_size=e)))
    text = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=8)
    return replace(
        topology,
        name=draw(
            text | st.sampled_from(("torus:4x4@alpha_us=1", "yes", "1e3", "007", "null", "a: b", "#x", "~", "-"))
        ),
        alpha_s=alphas,
        overhead_s=alphas * shares,
        beta_s_per_byte=1e-9 / np.array(draw(st.lists(positive, min_size=e, max_size=e))),
        count=draw(st.lists(st.integers(1, 4), min_size=e, max_size=e)),
        multicast=np.array([False] * n + draw(st.lists(st.booleans(), min_size=v - n, max_size=v - n))),
        reduction=np.array([False] * n + draw(st.lists(st.booleans(), min_size=v - n, max_size=v - n))),
        reduce_s_per_byte=np.array(draw(st.lists(st.sampled_from((0.0, 1e-12, 3.3e-12)), min_size=n, max_size=n))),
        boxes=draw(st.sampled_from(((), (tuple(range(n)),), ((0,), tuple(range(1, v)))))),
        symmetries=tuple(map(tuple, draw(st.lists(st.permutations(range(v)), max_size=2)))),
        cuts=tuple(Cut(name, (0, v - 1)) for name in draw(st.lists(text, max_size=2))),
        min_piece_bytes=draw(st.sampled_from((1, 16384, 1000, 777))),
        copies_take_port=draw(st.booleans()),
        working_set_rates=draw(st.sampled_from(((), (((65536.0, 1e9), (2e6, 2.5e9)), *[()] * (e - 1)) if e else ()))),
        reduce_working_set_rates=draw(st.sampled_from(((), ((4096.0, 1e10), (2e7, 1e9))))),
        size_rates=draw(st.sampled_from(((), (((1024.0, 1e9), (3e6, 2.5e10)), *[()] * (e - 1)) if e else ()))),
        provenance=draw(
            st.sampled_from(({}, {"source": "preset"}, {"tool": "x 1.0", "seed": 3, "inputs": ["a", "b"]}))
        ),
    )


@given(decorated())
def test_reading_and_writing_again_gives_the_same_bytes(topology):
    text = topology_text(topology)
    again = parsed(text)
    assert topology_text(again) == text
    assert same(again, topology)
    assert topology_digest(again) == topology_digest(topology)


@given(random_topologies())
def test_round_numbers_are_read_back_to_the_last_bit(topology):
    again = parsed(topology_text(topology))
    for name in COLUMNS:
        assert getattr(again, name).tolist() == getattr(topology, name).tolist()


@pytest.mark.parametrize(
    "text",
    [*ZOO, "dgx1@overhead=alpha", "dgx2:2@costs=taccl", "ndv2:4@costs=taccl", "mi250:2", "dgx-h100:2", "kautz:4x1"],
)
def test_presets_survive_files(text, tmp_path):
    topology = load_topology(text) if ":" in text or text.startswith("dgx") else zoo(text)
    path = tmp_path / "t.yaml"
    write_topology(topology, path)
    again = read_topology(path)
    assert same(again, topology)
    for name in COLUMNS:
        assert getattr(again, name).tolist() == getattr(topology, name).tolist()
    write_topology(again, tmp_path / "u.yaml")
    assert path.read_bytes() == (tmp_path / "u.yaml").read_bytes()


@given(decorated())
def test_the_file_is_yaml_that_means_what_it_says(topology):
    document = yaml.safe_load(topology_text(topology))
    assert document == topology_document(topology)
    lanes = sum(link.get("count", 1) * (2 if link.get("both") else 1) for link in document["links"])
    assert lanes == topology.count.sum()


def test_a_rank_alone_has_a_file():
    alone = build(1, [])
    assert topology_text(parsed(topology_text(alone))) == topology_text(alone)


def test_json_is_read_too(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(topology_document(zoo("two boxes"))))
    assert same(read_topology(path), zoo("two boxes"))


def test_the_digest_names_wiring_and_costs_only():
    topology = zoo("dgx1")
    assert topology_digest(topology) == topology_digest(replace(topology, name="other", provenance={"a": 1}))
    for text in ("dgx1@alpha_us=0.8", "dgx1@bandwidth_gb_s=26", "dgx1@overhead=none", "dgx1p"):
        assert topology_digest(load_topology(text)) != topology_digest(topology)
    assert topology_digest(replace(topology, min_piece_bytes=1)) != topology_digest(topology)


def test_the_form_is_one_line_a_link():
    text = topology_text(build(2, [(0, 2, 12.5, 0.7, 0.7), (2, 0, 12.5, 0.7, 0.7), (1, 2, 50, 0.35, 0.3)], switches=1))
    assert text.splitlines() == [
        "schema: collsyn-topology/1",
        "name: built",
        "ranks: 2",
        "switches:",
        "  - {name: s0}",
        "links:",
        "  - {from: 0, to: s0, bandwidth_gb_s: 12.5, alpha_us: 0.7, overhead_us: alpha, both: true}",
        "  - {from: 1, to: s0, bandwidth_gb_s: 50, alpha_us: 0.35, overhead_us: 0.3}",
    ]


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=6),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=8,
    )
)
def test_flow_style_is_read_back_as_it_was(value):
    # JSON's exponents (1e-06) are numbers to this project's reader but text to YAML 1.1; files hold rounded decimals.
    def plain(v):
        if isinstance(v, float):
            return round(v, 3) if abs(v) < 1e9 else 0.0
        if isinstance(v, list):
            return [plain(entry) for entry in v]
        return {k: plain(entry) for k, entry in v.items()} if isinstance(v, dict) else v

    value = plain(value)
    assert yaml.safe_load(flow(value)) == value


GOOD = """
schema: collsyn-topology/1
name: good
ranks: 2
switches:
  - {name: hub}
links:
  - {from: 0, to: hub, bandwidth_gb_s: 50, alpha_us: 0.5, both: true}
  - {from: 1, to: hub, beta_us_per_mb: 20, alpha_us: 0.5, overhead_us: alpha, count: 2}
  - {from: hub, to: 1, bandwidth_gb_s: 25, alpha_us: 0.5, overhead_us: 0.1}
reduce_gb_s: [100, 0]
min_piece: 4K
boxes:
  - [0, hub]
symmetries:
  - [1, 0, hub]
cuts:
  - {name: mine, vertices: [0]}
provenance: {source: me}
"""


def test_what_a_file_says():
    topology = parsed(GOOD)
    assert [topology.link_name(link) for link in range(4)] == ["0->hub", "hub->0", "1->hub", "hub->1"]
    assert topology.beta_s_per_byte.tolist() == pytest.approx([2e-11, 2e-11, 1e-11, 4e-11])
    assert topology.overhead_s.tolist() == pytest.approx([0, 0, 5e-7, 1e-7])
    assert topology.count.tolist() == [1, 1, 2, 1]
    assert topology.reduce_s_per_byte.tolist() == pytest.approx([1e-11, 0])
    assert (topology.min_piece_bytes, topology.boxes) == (4096, ((0, 2),))
    assert (topology.symmetries, topology.cuts) == (((1, 0, 2),), (Cut("mine", (0,)),))


def test_a_file_without_a_name_is_called_after_itself():
    assert parsed(GOOD.replace("name: good\n", "")).name == "t"


WRONG = [
    ("schema: collsyn-topology/1\n", "", "t.yaml:schema: is missing"),
    ("topology/1", "topology/9", "t.yaml:schema: is 'collsyn-topology/9'"),
    ("ranks: 2", "ranks: 0", "t.yaml:ranks: is 0"),
    ("ranks: 2", "ranks: two", "t.yaml:ranks: is 'two'"),
    ("ranks: 2", "ranks: true", "t.yaml:ranks: is True"),
    ("ranks: 2", "ranks: 99999999999", "t.yaml:ranks: is 99999999999"),
    ("ranks: 2\n", "", "t.yaml:ranks: is missing"),
    ("name: good", "nome: good", "t.yaml:nome: is not a key"),
    ("name: good", "name: [1]", "t.yaml:name: is a list"),
    ("{name: hub}", "{name: '3'}", "t.yaml:switches[0].name: is '3'"),
    ("{name: hub}", "{name: ''}", "t.yaml:switches[0].name: is ''"),
    ("{name: hub}", "{name: hub}\n  - {name: hub}", "t.yaml:switches[1].name: is 'hub'"),
    ("{name: hub}", "{name: hub, multicast: 1}", "t.yaml:switches[0].multicast: is 1"),
    ("{name: hub}", "{name: hub, colour: red}", "t.yaml:switches[0].colour: is not a key"),
    ("{name: hub}", "hub", "t.yaml:switches[0]: is text"),
    ("from: 0, to: hub", "from: 7, to: hub", "t.yaml:links[0].from: names 7"),
    ("from: 0, to: hub", "from: -1, to: hub", "t.yaml:links[0].from: names -1"),
    ("from: 0, to: hub", "from: 0, to: hob", "t.yaml:links[0].to: names 'hob'"),
    ("from: 0, to: hub", "from: 0, to: 0", "t.yaml:links[0].to: is the vertex"),
    ("from: 0, to: hub", "from: 0", "t.yaml:links[0].to: is missing"),
    ("from: 0, to: hub", "from: 0, to: [hub]", "t.yaml:links[0].to: names ['hub']"),
    ("from: 0, to: hub", "from: 0.0, to: hub", "t.yaml:links[0].from: names 0.0"),
    ("from: 0, to: hub", "from: true, to: hub", "t.yaml:links[0].from: names True"),
    ("bandwidth_gb_s: 50", "bandwidth_gb_s: -50", "t.yaml:links[0].bandwidth_gb_s: is -50"),
    ("bandwidth_gb_s: 50", "bandwidth_gb_s: 0", "t.yaml:links[0].bandwidth_gb_s: is 0"),
    ("bandwidth_gb_s: 50", "bandwidth_gb_s: .inf", "t.yaml:links[0].bandwidth_gb_s: is inf"),
    ("bandwidth_gb_s: 50, ", "", "t.yaml:links[0].bandwidth_gb_s: is missing"),
    ("beta_us_per_mb: 20", "beta_us_per_mb: 20, bandwidth_gb_s: 1", "t.yaml:links[1].bandwidth_gb_s: is not a key"),
    ("alpha_us: 0.5, both", "alpha_us: -1, both", "t.yaml:links[0].alpha_us: is -1"),
    ("alpha_us: 0.5, both", "alpha_us: .nan, both", "t.yaml:links[0].alpha_us: is nan"),
    ("overhead_us: 0.1", "overhead_us: 0.6", "t.yaml:links[2].overhead_us: is 0.6; expected 0 .. alpha_us (0.5)"),
    ("overhead_us: 0.1", "overhead_us: beta", "t.yaml:links[2].overhead_us: is 'beta'"),
    ("overhead_us: 0.1", "overhead_us: .nan", "t.yaml:links[2].overhead_us: is nan"),
    ("count: 2", "count: 0", "t.yaml:links[1].count: is 0"),
    ("count: 2", "count: 1000000000000000000000", "t.yaml:links[1].count: is 1000000000000000000000; expected at most"),
    ("both: true", "both: maybe", "t.yaml:links[0].both: is 'maybe'"),
    ("50, alpha_us: 0.5, both", "50, alpha_us: 0.5, size_gb_s: {big: 2}, both", "t.yaml:links[0].size_gb_s: has 'b"),
    (
        "50, alpha_us: 0.5, both",
        "50, alpha_us: 0.5, size_gb_s: {64K: 0}, both",
        "t.yaml:links[0].size_gb_s: has 0 at 64K",
    ),
    ("[100, 0]", "[100, 1]\ncopies: core", "t.yaml:copies:"),
    ("[100, 0]", "[100]", "t.yaml:reduce_gb_s: needs one rate"),
    ("[100, 0]", "[100, -1]", "t.yaml:reduce_gb_s: needs one rate"),
    ("[100, 0]", "[100, 1.0e-320]", "t.yaml:reduce_gb_s: holds 9.99989e-321"),
    ("bandwidth_gb_s: 25", "bandwidth_gb_s: 1.0e+300", "t.yaml: topology good: link hub->1 needs"),
    ("[100, 0]", "[100, x]", "t.yaml:reduce_gb_s: holds 'x'"),
    ("min_piece: 4K", "min_piece: 4Q", "t.yaml:min_piece: size '4Q' is not a size"),
    ("min_piece: 4K", "min_piece: 0", "t.yaml:min_piece: size 0"),
    ("[0, hub]", "0", "t.yaml:boxes[0]: expected a list"),
    ("[0, hub]", "[0, 5]", "t.yaml:boxes[0]: names 5"),
    ("[1, 0, hub]", "[1, 0]", "t.yaml:symmetries[0]: is not a permutation"),
    ("[1, 0, hub]", "[1, 1, hub]", "t.yaml:symmetries[0]: is not a permutation"),
    ("vertices: [0]", "vertices: 0", "t.yaml:cuts[0].vertices: is a number"),
    ("vertices: [0]", "vertices: [0], x: 1", "t.yaml:cuts[0].x: is not a key"),
    ("{source: me}", "me", "t.yaml:provenance: is text"),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_a_mistake_is_one_line_that_names_file_and_key(old, new, message):
    assert old in GOOD
    with pytest.raises(InputError) as caught:
        parsed(GOOD.replace(old, new, 1))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@given(st.data())
def test_a_damaged_file_is_read_or_refused_but_never_breaks(data):
    text = topology_text(zoo("two boxes"))
    position = data.draw(st.integers(0, len(text)))
    damaged = text[:position] + data.draw(st.text(max_size=3)) + text[position + data.draw(st.integers(0, 5)) :]
    try:
        parsed(damaged)
    except InputError as error:
        assert "\n" not in str(error)


def test_an_unwritable_place_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_topology(zoo("pair"), tmp_path / "file" / "t.yaml")
