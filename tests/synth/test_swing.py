"""Swing and Bine: rounds, loads of links, what they refuse, and their plans on real data."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from collsyn.check.verify import verify_schedule
from collsyn.lower.lower import lower
from collsyn.model.schedule import Schedule
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from tests.support.mutate import check_mutants
from tests.support.running import assert_runs

SIZE = 1 << 20


def solve(name: str, kind: str, preset: str, size_bytes: int = SIZE, **rest: int) -> Schedule:
    """The verified schedule of an accepted problem."""
    problem = Problem(kind, load_topology(preset), size_bytes, **rest)
    assert method(name).accepts(problem) is None
    schedule = method(name).synthesize(problem, Options())
    verify_schedule(schedule).raise_if_bad()
    return schedule


def link_bytes(schedule: Schedule) -> np.ndarray:
    """Bytes over every link."""
    lengths = schedule.collective.chunk_bytes(schedule.size_bytes)[schedule.chunk]
    loads = np.zeros(schedule.topology.num_links)
    for route, num_bytes in zip(schedule.route.tolist(), lengths.tolist(), strict=True):
        loads[schedule.routes[route]] += num_bytes
    return loads


@pytest.mark.parametrize(
    ("preset", "alphas"),
    [("ring:4", 2), ("ring:8", 5), ("ring:16", 10), ("torus:8x8", 10), ("torus:4x2", 3), ("torus:4x4x4", 6)],
)
def test_a_small_allgather_takes_the_distances_of_all_rounds(preset: str, alphas: int) -> None:
    # Rounds of distance 1, 1, 3, 5 along every dimension, half a microsecond a hop.
    schedule = solve("swing", "allgather", preset, size_bytes=64)
    assert schedule.finish_s == pytest.approx(alphas * 0.5e-6, rel=0.02)


@pytest.mark.parametrize("preset", ["ring:4", "torus:4x4", "torus:4x4x4", "hypercube:4"])
def test_every_link_carries_the_same(preset: str) -> None:
    schedule = solve("swing", "allgather", preset)
    n = schedule.topology.num_ranks
    received = (n - 1) / n * SIZE
    loads = link_bytes(schedule)
    assert loads.sum() == pytest.approx(n * received)
    assert loads.max() == pytest.approx(received * n / schedule.topology.num_links)


@pytest.mark.parametrize(("preset", "rounds"), [("ring:2", 1), ("ring:8", 3), ("torus:4x8", 5), ("hypercube:4", 4)])
def test_partial_sums_join_once_a_round(preset: str, rounds: int) -> None:
    schedule = solve("swing-latency", "allreduce", preset, chunks_per_rank=1)
    joins = Counter()
    for src, dst, chunk, op in zip(schedule.src, schedule.dst, schedule.chunk, schedule.op, strict=True):
        assert op == 1 or src != dst
        joins[int(dst), int(chunk)] += int(op)
    assert set(joins.values()) == {rounds}
    assert len(joins) == schedule.topology.num_ranks * schedule.collective.num_chunks


def test_swing_beats_both_rings_on_a_torus() -> None:
    for size_bytes in (1 << 10, 1 << 16, 1 << 26):
        swing = solve("swing", "allreduce", "torus:4x4", size_bytes).finish_s
        for ring in ("ring", "two-way-ring"):
            assert swing < 0.6 * solve(ring, "allreduce", "torus:4x4", size_bytes).finish_s


@pytest.mark.parametrize("preset", ["ring:6", "ring:10", "ring:18", "torus:6x4", "torus:2x6", "torus:4x2x2"])
@pytest.mark.parametrize("chunks", [1, 5])
def test_other_even_sizes_are_served(preset: str, chunks: int) -> None:
    for kind in ("allgather", "reducescatter", "allreduce"):
        solve("swing", kind, preset, chunks_per_rank=chunks)
    for kind in ("broadcast", "reduce", "scatter", "gather", "allreduce"):
        solve("bine", kind, preset, chunks_per_rank=chunks)


def test_rows_of_a_torus_as_groups() -> None:
    topology = load_topology("torus:8x4")
    rows = tuple(tuple(range(8 * row, 8 * row + 8)) for row in range(4))
    for name, kind in (("swing", "allgather"), ("swing-latency", "allreduce"), ("bine", "broadcast")):
        grouped = Problem(kind, topology, SIZE, root=3 if kind == "broadcast" else None, groups=rows)
        schedule = method(name).synthesize(grouped, Options())
        verify_schedule(schedule).raise_if_bad()
        alone = solve(name, kind, "ring:8", SIZE, **({"root": 3} if kind == "broadcast" else {}))
        # Rows have links of their own.
        assert schedule.finish_s == pytest.approx(alone.finish_s, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "kind", "preset", "reason"),
    [
        ("swing", "allgather", "mesh:4x4", "needs ranks that are joined as a ring or torus"),
        ("swing", "allreduce", "torus:4x3", "needs an even number of ranks along every dimension, not 3"),
        ("swing", "broadcast", "ring:4", "makes no broadcast"),
        ("swing-latency", "allreduce", "ring:6", "needs a power of two of ranks along every dimension, not 6"),
        ("swing-latency", "allreduce", "ring:512", "needs fewer ranks along a dimension than 512"),
        ("swing-latency", "allreduce", "switch:4", "needs ranks that are joined as a ring or torus"),
        ("bine", "broadcast", "ring:5", "needs an even number of ranks along every dimension of the torus, not 5"),
        ("bine", "broadcast", "switch:5", "needs an even number of ranks in every process group, not 5"),
        ("bine", "allgather", "mesh:4x4", "needs a link or a way through switches from rank 0 to"),
    ],
)
def test_reasons(name: str, kind: str, preset: str, reason: str) -> None:
    refused = method(name).accepts(Problem(kind, load_topology(preset), SIZE))
    assert refused is not None
    assert refused.startswith(reason)


@pytest.mark.parametrize("root", range(8))
@pytest.mark.parametrize("preset", ["hypercube:3", "switch:8", "torus:4x2"])
def test_any_root_takes_the_same_time(preset: str, root: int) -> None:
    for kind in ("broadcast", "scatter", "reduce"):
        first, other = (solve("bine", kind, preset, root=r) for r in (0, root))
        assert other.finish_s == pytest.approx(first.finish_s, rel=1e-9)


def test_a_bine_tree_sends_to_every_rank_once() -> None:
    schedule = solve("bine", "broadcast", "switch:16", root=5, chunks_per_rank=1)
    assert sorted(schedule.dst.tolist()) == [rank for rank in range(16) if rank != 5]
    # Those that have it double in each of four rounds: the root sends in all, half of the ranks in none.
    assert sorted(Counter(schedule.src.tolist()).values()) == [1, 1, 1, 1, 2, 2, 3, 4]


def test_a_large_broadcast_is_scattered_and_gathered() -> None:
    n, beta = 8, 1 / 50e9
    large = solve("bine", "broadcast", "switch:8", 1 << 26).finish_s
    assert large == pytest.approx(2 * (n - 1) / n * (1 << 26) * beta, rel=0.01)
    small = solve("bine", "broadcast", "switch:8", 1 << 10).finish_s
    assert small == pytest.approx(3 * (1e-6 + (1 << 10) * beta), rel=1e-6)


def test_reversed_boxes_bring_cards_of_one_switch_together() -> None:
    # Even and odd ranks have fabric switches of their own; partners are an odd number of places apart.
    schedule = solve("bine", "allgather", "dgx-a100:2")
    crossing = {(s, d) for s, d in zip(schedule.src.tolist(), schedule.dst.tolist(), strict=True) if s // 8 != d // 8}
    assert crossing
    assert all(s % 2 == d % 2 for s, d in crossing)


def served() -> Iterator[tuple[str, str, str]]:
    for preset in ("ring:8", "torus:4x2"):
        for kind in ("allgather", "reducescatter", "allreduce"):
            yield "swing", kind, preset
        for kind in ("broadcast", "reduce", "scatter", "gather", "allreduce"):
            yield "bine", kind, preset
        yield "swing-latency", "allreduce", preset


@pytest.mark.parametrize(("name", "kind", "preset"), list(served()))
def test_plans_run_right(name: str, kind: str, preset: str) -> None:
    for size_bytes in (1 << 10, 1 << 24):
        schedule = solve(name, kind, preset, size_bytes)
        assert_runs(lower(schedule), 3 * schedule.collective.total_units)
    assert_runs(lower(solve(name, kind, preset)), 37)


@pytest.mark.parametrize(
    ("name", "kind", "preset"), [case for case in served() if case[1] in ("allreduce", "broadcast")]
)
def test_mutants_are_rejected(name: str, kind: str, preset: str) -> None:
    assert sum(check_mutants(solve(name, kind, preset, chunks_per_rank=1), seed=0, per_kind=1).values())
