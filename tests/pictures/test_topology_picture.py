"""Pictures of topologies: every vertex has its place, every link its line, and both are the same each time."""

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given

from collsyn.errors import InputError
from collsyn.pictures.layout import layout
from collsyn.pictures.topology_picture import MAX_LINES, draw_topology, lines
from collsyn.topology.resolve import load_topology
from tests.support.topologies import ZOO, build, random_topologies, zoo

MACHINES = ("dgx1", "ndv2:2", "dgx2:2", "dgx-a100:2", "dgx-h100:9", "mi250:2", "gb200-nvl72")
FORMULAS = (
    "torus:4x4x4",
    "mesh:4x3",
    "hypercube:6",
    "hetero3d:2x3x4",
    "bipartite:3x5",
    "kautz:4x1",
    "ring:8",
    "switch:9",
)


def closest(xy):
    """The least distance between two vertices."""
    distance = np.hypot(*(xy[:, None] - xy[None]).transpose(2, 0, 1))
    return distance[~np.eye(len(xy), dtype=bool)].min(initial=np.inf)


def assert_well_placed(topology):
    """Nothing on top of each other, boxes inside their frames and nothing else there."""
    where = layout(topology)
    assert where.xy.shape == (topology.num_vertices, 2)
    assert closest(where.xy) >= 0.69
    assert where.xy.tobytes() == layout(topology).xy.tobytes()
    boxes = topology.boxes if where.frames else ()
    for box, (left, bottom, right, top) in zip(boxes, where.frames, strict=True):
        inside = (where.xy > (left, bottom)).all(axis=1) & (where.xy < (right, top)).all(axis=1)
        assert set(np.flatnonzero(inside).tolist()) == set(box)
    for number, one in enumerate(where.frames):
        for other in where.frames[:number]:
            assert one[0] >= other[2] or other[0] >= one[2] or one[1] >= other[3] or other[1] >= one[3]


@pytest.mark.parametrize("name", [*MACHINES, *FORMULAS])
def test_presets_are_well_placed(name):
    assert_well_placed(load_topology(name))


@given(random_topologies())
def test_anything_is_well_placed(topology):
    assert_well_placed(topology)


def test_a_grid_is_a_grid_and_a_part_of_it_is_not():
    mesh = load_topology("mesh:4x3")
    step = np.abs(np.diff(layout(mesh).xy.reshape(3, 4, 2), axis=1))
    assert step[..., 0] == pytest.approx(1.3)
    assert step[..., 1] == pytest.approx(0)
    part = layout(mesh.subset([0, 1, 5])).xy
    assert np.ptp(np.hypot(*(part - part.mean(axis=0)).T)) < 1e-9


@pytest.mark.parametrize("name", ZOO)
def test_every_link_is_on_one_line(name):
    topology = zoo(name)
    found = lines(topology)
    bandwidth = {}
    for line in found:
        for ends in (line.ends, line.ends[::-1])[: 1 + line.both_ways]:
            assert ends not in bandwidth
            bandwidth[ends] = line.gb_s
    expected = {}
    for link in range(topology.num_links):
        ends = (int(topology.src[link]), int(topology.dst[link]))
        expected[ends] = expected.get(ends, 0) + topology.bandwidth[link] / 1e9
    assert bandwidth == pytest.approx(expected)


def test_unequal_ways_are_two_lines_and_parallel_links_one():
    topology = build(2, [(0, 1, 10), (1, 0, 20), (1, 0, 5)])
    assert [(line.ends, line.both_ways, line.gb_s) for line in lines(topology)] == [
        ((0, 1), False, pytest.approx(10)),
        ((1, 0), False, pytest.approx(25)),
    ]


@pytest.mark.parametrize("name", [*ZOO, *MACHINES])
def test_any_topology_can_be_drawn(name, tmp_path):
    topology = zoo(name) if name in ZOO else load_topology(name)
    draw_topology(tmp_path / "topology.svg", topology)
    texts = [element.text for element in ElementTree.parse(tmp_path / "topology.svg").iter() if element.text]
    assert topology.name in texts
    assert any(text.startswith(f"{topology.num_ranks} rank") for text in texts)
    assert "GB/s" in " ".join(texts) or not topology.num_links


def test_a_topology_is_drawn_the_same_each_time(tmp_path):
    for name in ("a.svg", "b.svg"):
        draw_topology(tmp_path / name, load_topology("dgx-a100:2"))
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_too_much_for_a_picture_is_said(tmp_path):
    with pytest.raises(InputError, match=rf"full:100 has 4950 lines; a picture has at most {MAX_LINES}"):
        draw_topology(tmp_path / "full.svg", load_topology("full:100"))
    assert not list(tmp_path.iterdir())


def test_a_name_that_promises_a_grid_is_not_believed_blindly():
    assert_well_placed(replace(load_topology("ring:6"), name="mesh:2x2"))


def test_show_draws_and_prints_the_matrix(tmp_path, run_cli):
    result = run_cli("topology", "show", "dgx-a100:2", "--subset", "0,1,8", "--plot", "part.svg", cwd=tmp_path)
    assert result.code == 0
    assert "wrote part.svg" in result.stderr
    assert (tmp_path / "part.svg").stat().st_size > 1000
    matrix = result.stdout.split("Pairs (GB/s)")[1].split("Links")[0]
    rows = [line.split() for line in matrix.splitlines() if line.strip().startswith("from")]
    assert rows == [
        ["from", "0", "-", "300", "25"],
        ["from", "1", "300", "-", "-"],
        ["from", "2", "25", "-", "-"],
    ]
    assert "Pairs" not in run_cli("topology", "show", "ring:17").stdout
