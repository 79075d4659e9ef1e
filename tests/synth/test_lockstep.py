"""Tables of steps: meshes by construction, other equal links by matching; right, and near the bound."""

import numpy as np
import pytest

from collsyn.bounds import chunk_bound
from collsyn.check.steps import verify_steps
from collsyn.errors import InputError
from collsyn.model.steps import SPREAD, lag_of, never
from collsyn.synth.grid import class_of_sum, class_shares, fill_mesh
from collsyn.synth.lockstep import LOCKSTEP
from collsyn.synth.lockstep_greedy import fill_greedily
from collsyn.synth.problem import Options, Problem
from collsyn.topology.grid_shape import mesh_sizes
from collsyn.topology.presets import preset_topology
from tests.support.bruteforce import why_invalid

MESHES = ("mesh:2", "mesh:7", "mesh:4x4", "mesh:5x3", "mesh:3x2x4", "mesh:2x2x2x3", "hypercube:3")
KINDS = ("allgather", "reducescatter", "allreduce")


def table(kind, text, size_bytes=1 << 20, chunks=1):
    return LOCKSTEP.large(Problem(kind, preset_topology(text), size_bytes, chunks), Options())


@pytest.mark.parametrize("text", MESHES)
def test_sizes_of_a_mesh_are_told_from_its_links(text):
    kind, _, dims = text.partition(":")
    expected = tuple(map(int, dims.split("x"))) if kind == "mesh" else (2,) * int(dims)
    assert mesh_sizes(preset_topology(text)) == expected


@pytest.mark.parametrize("text", ["torus:4x4", "ring:5", "full:4", "switch:4", "petersen", "kautz:2x2"])
def test_what_is_no_mesh(text):
    assert mesh_sizes(preset_topology(text)) is None


def test_a_mesh_that_lacks_a_link_is_none():
    topology = preset_topology("mesh:4x3")
    links = np.arange(topology.num_links - 1)
    columns = topology.link_columns(links, np.arange(topology.num_ranks))
    assert mesh_sizes(type(topology)("lacking", topology.num_ranks, **columns)) is None


@pytest.mark.parametrize("overhead", ["none", "alpha"])
@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("text", MESHES)
def test_meshes_by_construction_are_right(text, chunks, overhead):
    topology = preset_topology(f"{text}@overhead={overhead}")
    problem = Problem("allgather", topology, 1000, chunks)
    made = LOCKSTEP.large(problem, Options())
    steps, ports = np.zeros_like(made.steps), np.zeros_like(made.ports)
    end = fill_mesh(topology, mesh_sizes(topology), chunks, made.lag, steps, ports)
    built = type(made)(made.collective, topology, 1000, made.lag, end, steps, ports)
    assert verify_steps(built).ok
    assert why_invalid(built.expand()) is None
    assert made.num_steps <= end


@pytest.mark.parametrize("text", ["mesh:12x12", "mesh:20x10", "mesh:6x6x6"])
def test_links_of_corners_are_busy_to_the_end(text):
    topology = preset_topology(f"{text}@overhead=alpha")
    ranks, sizes = topology.num_ranks, mesh_sizes(topology)
    steps, ports = np.zeros((ranks, ranks), np.uint16), np.zeros((ranks, ranks), np.uint8)
    end = fill_mesh(topology, sizes, 1, 1, steps, ports)
    assert end <= np.ceil((ranks - 1) / len(sizes)) + len(sizes)


def test_shares_balance_the_links_of_a_corner():
    sizes = (30, 12, 5)
    shares = class_shares(sizes)
    grid = np.indices(sizes).reshape(3, -1)
    load = np.zeros(3)
    for first, share in enumerate(shares):
        order = [(first + i) % 3 for i in range(3)]
        for place in grid.T[1:]:
            load[next(d for d in reversed(order) if place[d])] += share
    assert np.ptp(load) < 1e-9 * load.sum()
    counts = np.bincount(class_of_sum(sizes, 1)) / (sum(sizes) - 2)
    assert np.abs(counts - shares).max() < 0.05


@pytest.mark.parametrize("text", ["torus:5x4", "full:6", "petersen", "kautz:2x2", "mesh:4x3", "ring:7", "hypercube:4"])
@pytest.mark.parametrize("chunks", [1, 2])
def test_matching_is_right(text, chunks):
    topology = preset_topology(text)
    problem = Problem("allgather", topology, 1 << 16, chunks)
    total = topology.num_ranks * chunks
    lag = lag_of(topology, 2.0**16 / total, False)
    steps, ports = np.zeros((topology.num_ranks, total), np.uint16), np.zeros((topology.num_ranks, total), np.uint8)
    end = fill_greedily(topology, SPREAD, chunks, lag, steps, ports)
    made = table("allgather", text, 1 << 16, chunks)
    matched = type(made)(problem.collective(), topology, 1 << 16, lag, end, steps, ports)
    assert verify_steps(matched).ok
    assert why_invalid(matched.expand()) is None


@pytest.mark.parametrize("text", ["torus:16x16", "mesh:16x16"])
def test_matching_is_within_some_steps_of_the_bound(text):
    made = table("allgather", f"{text}@overhead=alpha", 1 << 30)
    bound = chunk_bound(made.collective, made.topology, made.size_bytes)
    assert made.finish_s <= bound.time_s + 6 * made.step_s


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["mesh:4x3", "torus:3x3", "ring:4@overhead=alpha"])
def test_all_kinds(kind, text):
    made = table(kind, text)
    assert verify_steps(made).ok
    listed = made.expand()
    assert why_invalid(listed) is None
    assert listed.finish_s == pytest.approx(made.finish_s, rel=1e-12)
    assert listed.num_sends == made.num_sends
    assert LOCKSTEP.synthesize(Problem(kind, made.topology, 1 << 20, 1), Options()).num_sends == made.num_sends


def test_one_way_links_serve_a_reduce_scatter_but_no_allreduce():
    topology = preset_topology("kautz:2x2")
    assert verify_steps(table("reducescatter", "kautz:2x2")).ok
    assert LOCKSTEP.accepts(Problem("allreduce", topology, 1024)) == "an allreduce needs links both ways"


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem("broadcast", preset_topology("mesh:3x3"), 1024), "not broadcast"),
        (Problem("allgather", preset_topology("mesh:3x3@bandwidth_gb_s=100/50"), 1024), "the links are unequal"),
        (Problem("allgather", preset_topology("switch:4"), 1024), "links alone"),
        (Problem("allgather", preset_topology("mesh:2x2"), 1024, groups=((0, 1), (2, 3))), "no groups"),
    ],
)
def test_what_it_does_not_serve(problem, reason):
    assert reason in LOCKSTEP.accepts(problem)


def test_too_many_sends_are_not_listed():
    with pytest.raises(InputError, match=r"sends are too many to be listed; write them to a file NAME\.large"):
        LOCKSTEP.synthesize(Problem("allgather", preset_topology("mesh:70x70"), 1 << 20, 1), Options())


def test_a_root_has_no_step():
    made = table("allgather", "mesh:3x3")
    assert (made.steps == never(made.steps)).sum() == 9
