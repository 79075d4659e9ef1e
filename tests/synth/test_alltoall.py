"""Pieces with one receiver: balanced paths against independent counts, and schedules against known bounds."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsyn.check.verify import verify_schedule
from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology
from collsyn.synth import alltoall, alltoall_kernels
from collsyn.synth.alltoall import goes_to_one
from collsyn.synth.greedy import GREEDY
from collsyn.synth.greedy_machine import MachineModel
from collsyn.synth.problem import Options, Problem
from collsyn.topology.resolve import load_topology
from tests.support.topologies import random_topologies

M256 = 1 << 28


@pytest.fixture(autouse=True)
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less work than by default is enough for what is tested here."""
    monkeypatch.setattr(alltoall, "WORK", 1_000_000)


def solve(name: str, kind: str, size: int = M256, **more: object) -> Schedule:
    """The verified schedule of greedy."""
    problem = Problem(kind, load_topology(name), size, **more)  # type: ignore[arg-type]
    assert goes_to_one(problem) or kind == "gather"
    schedule = GREEDY.synthesize(problem, Options())
    verify_schedule(schedule).raise_if_bad()
    return schedule


def routed(topology: Topology, seed: int) -> tuple[np.ndarray, list[list[int]], float]:
    """Ends of all pairs, the hops between them, and the highest load that `route` names, for 1 MB a pair."""
    n = topology.num_ranks
    pairs = np.array([(a, b) for a in range(n) for b in range(n) if a != b])
    model = MachineModel.of(topology)
    paths = np.zeros((len(pairs), max(int(model.distance.max()), 1)), np.int32)
    lengths = np.zeros(len(pairs), np.int64)
    machine, num_bytes = model.machine(False, 0.0, 1.0), np.full(len(pairs), 1e6)
    source, target = (np.ascontiguousarray(pairs[:, i]) for i in (0, 1))
    top_s = alltoall_kernels.route(machine, source, target, num_bytes, np.array([4.0, 8.0]), seed, paths, lengths)
    return pairs, [path[:k].tolist() for path, k in zip(paths, lengths.tolist(), strict=True)], float(top_s)


@given(random_topologies(min_ranks=2), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_paths_lead_from_end_to_end_and_their_load_is_what_is_said(topology: Topology, seed: int) -> None:
    pairs, paths, top_s = routed(topology, seed)
    table = MachineModel.of(topology).table
    load_s = np.zeros(topology.num_links)
    for (a, b), path in zip(pairs.tolist(), paths, strict=True):
        ranks = [a, *(int(table.dst[hop]) for hop in path)]
        assert [int(table.src[hop]) for hop in path] == ranks[:-1] and ranks[-1] == b
        for hop in path:
            held = 1e6 + table.overhead_s[hop] / table.beta_s_per_byte[hop]
            load_s[table.routes[hop]] += held / topology.bandwidth[table.routes[hop]]
    assert load_s.max() == pytest.approx(top_s, rel=1e-9)


@pytest.mark.parametrize("name", ["torus:4x4", "mesh:4x4", "hypercube:4", "dgx1"])
def test_no_link_carries_much_more_than_the_mean_of_shortest_ways(name: str) -> None:
    topology = load_topology(name)
    graph = nx.DiGraph(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    total = sum(sum(lengths.values()) for _, lengths in nx.all_pairs_shortest_path_length(graph))
    mean_s = total * 1e6 / topology.bandwidth.sum()
    # Most of it is due to whole pieces: a mesh's middle and a DGX-1's single links are narrower than the mean.
    assert (
        routed(topology, 1)[2] <= {"torus:4x4": 1.26, "hypercube:4": 1.26, "mesh:4x4": 1.51, "dgx1": 2.0}[name] * mean_s
    )


# Seconds for pairs of m bytes, 50 GB/s a link: half the ranks send to the other half over the links between (torus,
# mesh), a port passes all that its rank sends (switch), and a fluid optimum of 9.375 GB/s a pair (DGX-1).
LEAST = {
    "torus:4x4": lambda m: 8 * 8 * m / (8 * 50e9),
    "torus:8x8": lambda m: 32 * 32 * m / (16 * 50e9),
    "mesh:4x4": lambda m: 8 * 8 * m / (4 * 50e9),
    "switch:8": lambda m: 7 * m / 50e9,
    "full:8": lambda m: m / 50e9,
    "dgx1": lambda m: m / 9.375e9,
}


@pytest.mark.parametrize("name", LEAST)
def test_alltoall_is_within_two_percent_of_the_best_cut(name: str) -> None:
    schedule = solve(name, "alltoall")
    least_s = LEAST[name](M256 / schedule.topology.num_ranks)
    assert least_s <= schedule.finish_s <= 1.02 * least_s


def test_skewed_alltoallv_is_ruled_by_its_largest_row() -> None:
    counts = [[0, 3, 3, 3], [1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0]]
    schedule = solve("switch:4", "alltoallv", counts=counts)
    assert schedule.finish_s <= 1.02 * M256 / 50e9


def test_scatter_and_gather_fill_the_links_of_the_root() -> None:
    for kind in ("scatter", "gather"):
        schedule = solve("torus:4x4", kind, root=5)
        assert schedule.finish_s <= 1.05 * (15 / 16 * M256 / 200e9)


def test_sendrecv_uses_more_than_the_direct_link() -> None:
    # Every rank sends to the next one; a linear program over all ways gives three quarters of the time of direct ones.
    schedule = solve("torus:4x4", "sendrecv")
    assert 0.75 * M256 / 50e9 <= schedule.finish_s <= 0.77 * M256 / 50e9


def test_small_pieces_share_messages_on_the_way() -> None:
    # 15 messages of 0.5 us one after the other on 4 links would take 4 alphas without a relay, and relays more.
    schedule = solve("hypercube:4@overhead=alpha", "alltoall", size=1024)
    assert schedule.finish_s <= 3.1e-6
    assert (schedule.batch >= 0).any()


def test_equal_seeds_give_equal_schedules() -> None:
    first, second = (solve("dgx1", "alltoall", chunks_per_rank=2).columns() for _ in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in first)
