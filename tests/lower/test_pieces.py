"""Into how many pieces chunks are cut."""

from dataclasses import replace
from typing import Any

import pytest

from collsyn.lower.lower import lower
from collsyn.model.collective import make_collective
from collsyn.model.schedule import REDUCE, Schedule
from tests.support.schedules import from_rows, full, hop_s, link_of
from tests.support.topologies import build

MIB = 1 << 20


def chain(hops: int, size_bytes: int, *costs: float) -> Schedule:
    """A broadcast along a line, whole."""
    topology = build(hops + 1, [(i, i + 1, *costs) for i in range(hops)], name="line")
    step = hop_s(topology, 0, size_bytes)
    rows = [{"chunk": 0, "src": i, "dst": i + 1, "route": i, "start_s": i * step} for i in range(hops)]
    return from_rows(make_collective("broadcast", hops + 1), topology, rows, size_bytes)


def direct_reducescatter(n: int, size_bytes: int, *costs: float) -> Schedule:
    """Everyone sends everyone its part at once."""
    topology = build(n, [(a, b, *costs) for a in range(n) for b in range(n) if a != b])
    rows = [
        {"chunk": b, "src": a, "dst": b, "route": link_of(topology, a, b), "start_s": 0.0, "op": REDUCE}
        for a in range(n)
        for b in range(n)
        if a != b
    ]
    return from_rows(make_collective("reducescatter", n), topology, rows, size_bytes)


def pieces(schedule: Schedule, **options: Any) -> int:
    return lower(schedule, **options).provenance["lowering"]["pieces"]


@pytest.mark.parametrize("hops", [2, 7])
def test_chains_are_cut_near_the_optimum(hops):
    overhead_s, transfer_s = 3e-7, 64 * MIB / 50e9
    chosen = pieces(chain(hops, 64 * MIB, 50, 0.5, 0.3))

    def time_s(count):
        return (hops + count - 1) * (overhead_s + transfer_s / count)

    assert chosen > 1
    assert time_s(chosen) <= 1.031 * min(time_s(2**k) for k in range(11))


def test_one_hop_is_not_cut():
    assert pieces(chain(1, 64 * MIB)) == 1


def test_small_chunks_are_not_cut_below_16_kib():
    assert pieces(chain(5, 31 << 10)) == 1
    assert 1 < pieces(chain(5, 32 << 10)) <= 2
    assert pieces(chain(5, MIB)) <= 64


def test_the_topologys_smallest_piece_counts():
    schedule = chain(5, 4 * MIB)
    coarse = replace(schedule, topology=replace(schedule.topology, min_piece_bytes=MIB))
    assert pieces(schedule) > 4
    assert pieces(coarse) <= 4


def test_full_links_gain_nothing_from_pieces():
    n = 6
    topology = build(n, [(i, (i + 1) % n) for i in range(n)])
    step = hop_s(topology, 0, 16 * MIB)
    rows = [
        {"chunk": (r - hop) % n, "src": r, "dst": (r + 1) % n, "route": r, "start_s": hop * step}
        for hop in range(n - 1)
        for r in range(n)
    ]
    assert pieces(from_rows(make_collective("allgather", n), topology, rows, n * 16 * MIB)) == 1


def test_several_operands_are_added_in_pieces_that_stay_in_the_cache():
    schedule = direct_reducescatter(4, 64 * MIB, 5, 1, 0.5)
    assert 16 * MIB / pieces(schedule, reduce_by="get") <= 256 << 10


def test_piece_bytes_is_the_longest_piece():
    assert pieces(chain(3, 10_000), piece_bytes=3000) == 4
    assert pieces(chain(3, 10_000), piece_bytes=10_000) == 1
    assert pieces(chain(3, 10_000), piece_bytes=2500, instances=2) == 2


def test_plans_stay_short():
    n = 64
    topology = full(n)
    rows = [
        {"chunk": b, "src": a, "dst": b, "route": link_of(topology, a, b), "start_s": 0.0, "op": REDUCE}
        for a in range(n)
        for b in range(n)
        if a != b
    ]
    plan = lower(from_rows(make_collective("reducescatter", n), topology, rows, 1 << 30))
    moves = n * (n - 1) * plan.provenance["lowering"]["pieces"]
    assert moves <= 100_000
