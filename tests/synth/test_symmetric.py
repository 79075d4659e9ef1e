"""Schedules by translations: right, as near the bound as known, and the same listed or stored."""

import numpy as np
import pytest

from collsyn.bounds import fluid_bound
from collsyn.check.orbit import verify_orbit
from collsyn.check.verify import verify_schedule
from collsyn.model.topology import Topology
from collsyn.model.translations import Translations, independent
from collsyn.synth import symmetric
from collsyn.synth.problem import Options, Problem
from collsyn.synth.symmetric import SYMMETRIC
from collsyn.topology.presets import preset_topology
from tests.support.bruteforce import why_invalid

KINDS = ("allgather", "reducescatter", "allreduce")
TEXTS = ("ring:5", "torus:3x4", "full:5", "hypercube:3", "mesh:2x4", "petersen", "hetero3d:2x2x3", "bipartite:3x3")


def solved(kind, text, chunks=1, size_bytes=1 << 20):
    return SYMMETRIC.large(Problem(kind, preset_topology(text), size_bytes, chunks), Options())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_stored_and_listed_sends_are_right(kind, text):
    found = solved(kind, text)
    assert verify_orbit(found).ok
    listed = found.excerpt()
    assert why_invalid(listed) is None
    assert listed.num_sends == found.num_sends
    assert listed.finish_s == found.finish_s
    assert found.base.num_sends < found.num_sends


@pytest.mark.parametrize(("text", "steps"), [("torus:4x4", 4), ("torus:4x4x4", 11), ("hypercube:6", 11), ("ring:9", 4)])
def test_known_steps(text, steps):
    found = solved("allgather", f"{text}@overhead=alpha", size_bytes=1 << 26)
    ranks = found.collective.num_ranks
    step_s = 5e-7 + found.topology.beta_s_per_byte[0] * (1 << 26) / ranks
    assert round(found.finish_s / step_s, 6) == steps


@pytest.mark.parametrize("text", ["hetero3d:4x4x4@bandwidth_gb_s=200/100/50", "torus:6x6"])
def test_more_chunks_come_near_the_fluid_bound(text):
    found = SYMMETRIC.large(Problem("allgather", preset_topology(text), 1 << 30), Options())
    bound = fluid_bound(found.collective, found.topology, found.size_bytes)
    assert found.collective.chunks_per_rank > 1
    assert bound.time_s > 0.98 * found.finish_s


def test_a_slow_orbit_takes_nothing_that_others_bring_sooner(monkeypatch):
    text = "torus:5x5@bandwidth_gb_s=100/20"
    found = solved("allgather", text, size_bytes=1 << 26)
    monkeypatch.setattr(symmetric, "HALVINGS", 0)
    assert found.finish_s < 0.8 * solved("allgather", text, size_bytes=1 << 26).finish_s


def test_reduction_takes_its_time():
    topology = preset_topology("torus:3x3")
    slow = Topology(**{**vars(topology), "reduce_s_per_byte": np.full(9, 1e-10)} | {"provenance": {}})
    found = SYMMETRIC.large(Problem("allreduce", slow, 1 << 20, 1), Options())
    assert verify_orbit(found).ok
    assert why_invalid(found.excerpt()) is None
    assert found.finish_s > solved("allreduce", "torus:3x3").finish_s


def test_one_way_links():
    topology = preset_topology("kautz:2x2")
    found = SYMMETRIC.large(Problem("reducescatter", topology, 1 << 20, 1), Options())
    assert verify_schedule(found.excerpt()).ok


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem("alltoall", preset_topology("torus:3x3"), 1024), "not alltoall"),
        (Problem("allgather", preset_topology("mesh:3x3"), 1024), "knows no symmetries"),
        (Problem("allgather", preset_topology("switch:4"), 1024), "links alone"),
        (Problem("allgather", preset_topology("ring:4"), 1024, groups=((0, 1), (2, 3))), "no groups"),
    ],
)
def test_what_it_does_not_serve(problem, reason):
    assert reason in SYMMETRIC.accepts(problem)


def test_translations_of_a_torus():
    topology = preset_topology("torus:4x3")
    group = Translations.of(topology.symmetries, 12)
    assert group is not None and group.size == 12
    everywhere = np.arange(12)
    # Every element moves every rank, and each pair of ranks has exactly one element.
    images = np.array([group.moved(everywhere, element) for element in range(12)])
    assert (images[0] == everywhere).all()
    assert all(sorted(column) == list(everywhere) for column in images.T.tolist())
    assert (group.moved(everywhere[:, None], group.element(everywhere[:, None], everywhere)) == everywhere).all()
    assert len(np.unique(group.link_orbits(topology.src, topology.dst))) == 4


@pytest.mark.parametrize(
    "generators",
    [
        [[1, 0, 2, 3]],  # keeps two vertices
        [[1, 2, 3, 0], [2, 3, 0, 1]],  # depend on each other
        [[1, 0, 3, 2, 4, 5], [0, 1, 2, 3, 5, 4]],  # each keeps some
        [[1, 2, 0, 4, 5, 3], [3, 4, 5, 0, 1, 2], [3, 5, 4, 0, 2, 1]],  # do not commute
        [[0, 0, 1, 2]],  # no permutation
        [[1, 2, 0, 4, 3]],  # cycles of different lengths
        [],
    ],
)
def test_what_makes_no_translations(generators):
    assert Translations.of(generators, len(generators[0]) if generators else 4) is None


def test_independent_generators():
    turn, twice, swap = (1, 2, 3, 0), (2, 3, 0, 1), (1, 0, 3, 2)
    assert independent([turn, twice, swap], 4) == (turn,)
    assert independent([swap, (2, 3, 0, 1)], 4) == (swap, (2, 3, 0, 1))
