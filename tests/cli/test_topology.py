"""`collsyn topology list | show | diff`: tables for people, JSON for programs, one line for mistakes."""

import json

import pytest

from collsyn.model.topology_file import read_topology, topology_digest, topology_text, write_topology
from collsyn.topology.presets import preset_names
from collsyn.topology.resolve import load_topology
from tests.support.topologies import ZOO, build, zoo


@pytest.fixture
def as_json(run_cli):
    """Runs a command with --json and returns the document; nothing else may be printed."""

    def run(*args):
        done = run_cli("topology", *args, "--json")
        assert (done.code, done.stderr) == (0, "")
        return json.loads(done.stdout)

    return run


@pytest.fixture
def lines(run_cli):
    """Runs a command and returns the lines of its output, spaces squeezed."""

    def run(*args):
        done = run_cli("topology", *args)
        assert (done.code, done.stderr) == (0, "")
        return [" ".join(line.split()) for line in done.stdout.splitlines()]

    return run


def test_list_has_every_preset(lines, as_json):
    text = "\n".join(lines("list"))
    entries = as_json("list")["presets"]
    assert [entry["name"] for entry in entries] == preset_names()
    for entry in entries:
        assert entry["form"] in text
        assert entry["kind"] in ("formula", "construction", "machine")
    assert "costs=taccl,sketch=2" in text


def test_show_tells_the_properties(lines):
    shown = lines("show", "torus:4x4@overhead=alpha")
    for line in (
        "ranks 16",
        "links 64 (one direction each)",
        "overhead alpha",
        "degree 4 links, 200 GB/s each way",
        "diameter 4 hops, 2 us",
        "bisection 400 GB/s one way (all halves tried)",
        "symmetry group of order 16, all ranks alike",
        "half of dimension 1 8 400 400",
        "14 15 <-> 1 50 0.5 0.5",
    ):
        assert line in shown
    assert sum("<->" in line for line in shown) == 32


def test_show_as_json(as_json):
    document = as_json("show", "dgx1")
    assert document["num_ranks"] == 8
    assert document["model"] == "0.3us"
    assert document["degree"]["out"] == {"links": [4, 4], "lanes": [6, 6], "gb_s": [150, 150]}
    assert (document["diameter_hops"], document["diameter_alpha_us"]) == (2, 1.4)
    assert document["bisection"] == {"gb_s": 150, "exact": True, "cut": "ranks 0, 1, 2, 3"}
    assert document["symmetry"] == {"generators": 2, "order": 4, "kinds_of_ranks": 2}
    assert document["unreachable"] is None
    assert document["digest"] == topology_digest(load_topology("dgx1"))
    assert {cut["name"]: cut["out_gb_s"] for cut in document["cuts"]} == {"box0 socket 0": 150, "box0 socket 1": 150}


@pytest.mark.parametrize("name", [name for name in ZOO if ":" in name or name in ("dgx1", "petersen")])
def test_the_json_holds_the_topology_itself(as_json, name, tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(as_json("show", name)["topology"]))
    assert topology_text(read_topology(path)) == topology_text(load_topology(name))


def test_a_file_is_shown_like_a_preset(lines, tmp_path):
    write_topology(zoo("lopsided"), tmp_path / "t.yaml")
    shown = lines("show", tmp_path / "t.yaml")
    assert "degree out 1..2 links, 30..105 GB/s" in shown
    assert "degree in 1..2 links, 25..100 GB/s" in shown
    assert "symmetry none recorded" in shown
    assert "0 1 -> 1 100 0.5 0" in shown
    assert "1 0 -> 1 10 0.5 0" in shown


def test_many_links_are_counted_by_kind_unless_asked(lines):
    kinds = lines("show", "dgx-a100:4")
    for name, gb_s, alpha in (("nvswitch", 300, 0.35), ("even", 25, 1.3)):
        number = 32 if name == "nvswitch" else 16
        assert f"{number} rank {name} -> 1 {gb_s} {alpha} 0.3" in kinds
        assert f"{number} {name} rank -> 1 {gb_s} {alpha} 0.3" in kinds
    every = lines("show", "dgx-a100:4", "--links")
    assert sum("<->" in line for line in every) == 64
    assert "31 box3.nvswitch <-> 1 300 0.35 0.3" in every


def test_parallel_links_are_all_shown(lines, tmp_path):
    edges = [(0, 1, 10), (0, 1, 10), (0, 1, 20), (1, 0, 10), (1, 0, 10)]
    write_topology(build(2, edges), tmp_path / "t.yaml")
    shown = lines("show", tmp_path / "t.yaml")
    assert shown.count("0 1 <-> 1 10 0.5 0") == 2
    assert shown.count("0 1 -> 1 20 0.5 0") == 1


def test_a_subset_is_shown(lines, as_json):
    assert "ranks 3" in lines("show", "dgx1", "--subset", "0,3,4")
    assert as_json("show", "dgx1", "--subset", "0-3")["topology"]["ranks"] == 4


def test_a_disconnected_topology_is_shown_as_one(lines, as_json, tmp_path):
    write_topology(build(3, [(0, 1), (1, 0)]), tmp_path / "t.yaml")
    assert "diameter none: no links lead from rank 0 to rank 2" in lines("show", tmp_path / "t.yaml")
    document = as_json("show", tmp_path / "t.yaml")
    assert (document["unreachable"], document["diameter_hops"]) == ([0, 2], None)


def test_a_large_topology_is_shown_at_once(as_json, lines):
    assert "diameter 64 hops, 32 us" in lines("show", "torus:64x64")
    assert as_json("show", "torus:64x64")["symmetry"] == {"generators": 2, "order": None, "kinds_of_ranks": 1}


def test_a_single_rank_is_shown(as_json, tmp_path):
    write_topology(build(1, []), tmp_path / "t.yaml")
    document = as_json("show", tmp_path / "t.yaml")
    assert (document["diameter_hops"], document["bisection"]) == (0, None)


def test_diff_says_what_differs(lines, as_json):
    rows = lines("diff", "dgx1", "dgx1@overhead=alpha")
    assert "link 0<->1 2 x 25 GB/s, 0.7 us, occupied 0.3 us 2 x 25 GB/s, 0.7 us, occupied 0.7 us" in rows
    document = as_json("diff", "ring:4", "full:4")
    assert document["same"] is False
    assert document["differences"] == [
        {"what": f"link {pair}", "left": "-", "right": "50 GB/s, 0.5 us"} for pair in ("0<->2", "1<->3")
    ]


def test_diff_of_equals(lines, as_json):
    assert lines("diff", "torus:2x2x2", "torus:2x2x2") == ["torus:2x2x2 and torus:2x2x2 are the same"]
    assert as_json("diff", "hypercube:3", "torus:2x2x2") == {
        "left": "hypercube:3",
        "right": "torus:2x2x2",
        "same": True,
        "differences": [],
    }


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("show", "rign:8"), "rign:8: preset 'rign' is not known; did you mean ring?"),
        (("show", "ring:8@bandwidth_gb_s=-1"), "bandwidth_gb_s is '-1'; expected a number above 0"),
        (("show", "absent.yaml"), "absent.yaml: cannot be read"),
        (("show", "tab.yaml"), "tab.yaml:line 2: is not valid YAML"),
        (("show", "dgx1", "--subset", "0,8"), "rank 8 is not in topology dgx1"),
        (("show", "dgx1", "--subset", "0-"), "is not a rank or a range"),
        (("show",), "TOPO"),
        (("diff", "ring:4"), "RIGHT"),
        (("diff", "ring:4", "ring:x"), "ring:x: dimensions are 'x'"),
        (("draw", "ring:4"), "draw"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(run_cli, tmp_path, args, told):
    (tmp_path / "tab.yaml").write_text("schema: collsyn-topology/1\n\tranks: 2\n")
    done = run_cli("topology", *args, cwd=tmp_path)
    assert (done.code, done.stdout) == (2, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("args", [(), ("list",), ("show",), ("diff",)])
def test_help_has_an_example(run_cli, args):
    done = run_cli("topology", *args, "--help")
    assert done.code == 0
    assert "collsyn topology" in done.stdout.split("Example")[1]
