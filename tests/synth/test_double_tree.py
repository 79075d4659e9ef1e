"""Double binary trees: shape, colours, and what every rank sends and receives."""

from collections import Counter, defaultdict
from math import ceil, log2

import networkx as nx
import pytest

from collsyn.check.verify import verify_schedule
from collsyn.lower.lower import lower
from collsyn.synth.double_tree import Parents, both_trees, colours
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from tests.support.running import assert_runs

DOUBLE = method("double-binary-tree")


def children(tree: Parents) -> dict[int, list[int]]:
    found = defaultdict(list)
    for child, parent in tree.items():
        found[parent].append(child)
    return found


@pytest.mark.parametrize("n", range(1, 80))
def test_both_are_low_binary_trees_of_all_and_no_rank_is_interior_in_both(n: int) -> None:
    trees = both_trees(n)
    for tree in trees:
        graph = nx.DiGraph((parent, child) for child, parent in tree.items())
        graph.add_nodes_from(range(n))
        assert nx.is_arborescence(graph)
        assert graph.number_of_nodes() == n
        assert graph.out_degree(0) == min(1, n - 1)
        assert max(degree for _, degree in graph.out_degree()) <= 2
        assert nx.dag_longest_path_length(graph) <= ceil(log2(n))
    first, second = ({parent for parent in tree.values() if parent} for tree in trees)
    assert first.isdisjoint(second)


@pytest.mark.parametrize("n", range(2, 80))
def test_colours_keep_two_pieces_from_leaving_or_entering_at_once(n: int) -> None:
    trees = both_trees(n)
    first, second = found = colours(trees)
    assert all({first[node], second[node]} == {0, 1} for node in range(1, n))
    for tree, colour in zip(trees, found, strict=True):
        for below in children(tree).values():
            assert len({colour[child] for child in below}) == len(below)
    root = [colour[children(tree)[0][0]] for tree, colour in zip(trees, found, strict=True)]
    assert sorted(root) == [0, 1]


@pytest.mark.parametrize("n", [2, 3, 5, 8, 13, 16])
@pytest.mark.parametrize("pieces", [2, 8, 32])
def test_a_broadcast_is_at_most_the_published_time(n: int, pieces: int) -> None:
    topology = load_topology(f"switch:{n}@alpha_us=0.5,overhead=alpha")
    schedule = DOUBLE.synthesize(Problem("broadcast", topology, 1 << 20, pieces, root=n - 1), Options())
    verify_schedule(schedule).raise_if_bad()
    step_s = 1e-6 + (1 << 20) / pieces / 50e9
    assert schedule.finish_s <= (pieces + 2 * ceil(log2(n))) * step_s * (1 + 1e-9)
    received = Counter(schedule.dst.tolist())
    assert received == dict.fromkeys(range(n - 1), pieces)
    sent = defaultdict(list)
    for src, chunk in zip(schedule.src.tolist(), schedule.chunk.tolist(), strict=True):
        sent[src].append(chunk)
    for rank, chunks in sent.items():
        # Half of the pieces, to two ranks at most; only the root sends of both halves.
        assert len(chunks) <= pieces
        assert rank == n - 1 or len({chunk % 2 for chunk in chunks}) == 1


def test_nearly_twice_as_fast_as_one_tree_where_a_rank_has_one_port() -> None:
    topology, size_bytes = load_topology("switch:16"), 1 << 28
    least = size_bytes / 50e9
    double = DOUBLE.synthesize(Problem("broadcast", topology, size_bytes), Options()).finish_s
    assert least < double < 1.1 * least
    # In one binary tree a port sends everything twice.
    assert double < 0.55 * 2 * least


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "allreduce"])
@pytest.mark.parametrize(("preset", "size_bytes"), [("switch:6", 1 << 12), ("full:5", 1 << 22)])
def test_plans_run_right(kind: str, preset: str, size_bytes: int) -> None:
    problem = Problem(kind, load_topology(preset), size_bytes)
    schedule = DOUBLE.synthesize(problem, Options())
    verify_schedule(schedule).raise_if_bad()
    assert_runs(lower(schedule), 3 * schedule.collective.total_units)
    assert_runs(lower(schedule), 37)


def test_groups_and_chunks() -> None:
    topology = load_topology("switch:7")
    groups = ((6, 1, 3), (0, 2, 5))
    for kind in ("broadcast", "allreduce"):
        root = 1 if kind == "broadcast" else None
        schedule = DOUBLE.synthesize(Problem(kind, topology, 1 << 16, 3, root=root, groups=groups), Options())
        assert schedule.collective.chunks_per_rank == 3
        verify_schedule(schedule).raise_if_bad()


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem("broadcast", load_topology("ring:8"), 64), "needs a link or a way through switches from rank 0 to"),
        (Problem("allreduce", load_topology("full:5"), 64, groups=((0, 1), (2, 3, 4))), "needs process groups of"),
        (Problem("allgather", load_topology("full:4"), 64), "makes no allgather"),
    ],
)
def test_reasons(problem: Problem, reason: str) -> None:
    refused = DOUBLE.accepts(problem)
    assert refused is not None
    assert refused.startswith(reason)
