"""Bounds that paper and pencil give."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from collsyn.bounds import chunk_bound, fluid_bound
from collsyn.errors import Infeasible, InputError
from collsyn.model.collective import make_collective
from tests.support.topologies import build, ring_edges, zoo

M = 1 << 20
US = 1e-6
# build(): 50 GB/s, 0.5 us, no overhead.
GB_S, ALPHA_S = 50e9, 0.5 * US

# NVLink pairs of an 8-GPU DGX-1V: two lanes, then one.
DOUBLE = [(0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)]
SINGLE = [(0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6)]


def ring(n):
    return build(n, ring_edges(n), both=True)


def full(n):
    return build(n, [(a, b) for a in range(n) for b in range(n) if a != b])


def mesh(side):
    at = [(x, y) for y in range(side) for x in range(side)]
    edges = [(i, j) for i, a in enumerate(at) for j, b in enumerate(at) if abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1]
    return build(side * side, edges)


def dgx1(overhead_us=0.0):
    costs = 0.7, overhead_us
    return build(8, [(a, b, 50, *costs) for a, b in DOUBLE] + [(a, b, 25, *costs) for a, b in SINGLE], both=True)


def star(n, gb_s=50):
    return build(n, [(r, n, gb_s, 0.25) for r in range(n)], switches=1, both=True)


@pytest.mark.parametrize(
    "topology, kind, gb_s",
    [
        (ring(8), "allgather", Fraction(800, 7)),  # 7/8 of the size into a rank over two links of 50
        (ring(8), "reducescatter", Fraction(800, 7)),
        (ring(8), "allreduce", Fraction(400, 7)),  # 14 sends of each byte over 16 links
        (ring(8), "broadcast", Fraction(100)),
        (ring(8), "alltoall", Fraction(50)),  # all links busy with 2 hops on average, 16 eighths a rank
        (full(8), "allgather", Fraction(400)),
        (full(8), "allreduce", Fraction(200)),
        (full(8), "alltoall", Fraction(400)),
        (full(8), "gather", Fraction(400)),
        (full(8), "sendrecv", Fraction(200)),  # 50 straight on, 150 over others: two of 350 out of a rank for each byte
        (star(8), "allgather", Fraction(400, 7)),
        (star(8), "allreduce", Fraction(200, 7)),
        (dgx1(), "allgather", Fraction(1200, 7)),  # six lanes of 25 into a GPU
        (dgx1(), "broadcast", Fraction(150)),
        (mesh(4), "allgather", Fraction(1600, 15)),  # into a corner
        (mesh(4), "allreduce", Fraction(80)),  # 30 sends of each byte over 48 links
    ],
    ids=str,
)
def test_algorithm_bandwidth(topology, kind, gb_s):
    bound = fluid_bound(make_collective(kind, topology.num_ranks), topology, M)
    assert bound.algbw_exact == gb_s
    assert bound.time_s >= M / float(gb_s) * 1e-9


def test_boxes_and_cuts_are_looked_at():
    two = zoo("two boxes")
    # Half the buffer of each of two ranks goes to the other box, over 12.5 GB/s.
    assert fluid_bound(make_collective("alltoall", 4), two, M).algbw_exact == Fraction(25, 2)


def test_latency_at_small_sizes_and_bytes_at_large_ones():
    collective, topology = make_collective("allgather", 64), mesh(8)
    small, large = (fluid_bound(collective, topology, size) for size in (64 << 10, 1 << 30))
    # The farthest rank is 14 hops away, and its kilobyte enters over two links.
    assert small.time_s == pytest.approx(14 * ALPHA_S + 1024 / (2 * GB_S), rel=1e-9)
    assert large.time_s == pytest.approx(ALPHA_S + 63 / 64 * 2**30 / (2 * GB_S), rel=1e-9)


def test_a_distant_crowd_counts_more_than_the_one_farthest():
    # A line 0-1-2 with six more ranks behind 2: what they send to 0 passes one link after two more hops.
    topology = build(9, [(0, 1), (1, 2), *((2, r, 300) for r in range(3, 9))], both=True)
    bound = fluid_bound(make_collective("gather", 9), topology, 9 * M)
    assert bound.time_s == pytest.approx(max(hops * ALPHA_S + (9 - hops) * M / GB_S for hops in (1, 2, 3)))
    bound = fluid_bound(make_collective("gather", 9), topology, 9)
    assert bound.time_s == pytest.approx(3 * ALPHA_S + 6 / GB_S)


def test_latency_of_switches_inside_the_set():
    # Both links into the right half carry alike, but behind one of them a slow switch waits.
    quick, slow = [(0, 2, 50, 1), (2, 3, 50, 1), (3, 1, 50, 1)], [(0, 4, 50, 1), (4, 5, 50, 1), (5, 1, 50, 7)]
    topology = build(2, [*quick, *slow, (1, 0)], switches=4)
    bound = fluid_bound(make_collective("broadcast", 2, root=0), topology, M)
    # One way takes 3 us and works alone until the other delivers its first byte after 9 us.
    assert bound.time_s == pytest.approx((M / GB_S + 3 * US + 9 * US) / 2)


@pytest.mark.parametrize("overhead_us, step_s", [(0.0, 0.0), (0.7, 0.7 * US)])
def test_whole_chunks_on_a_dgx1(overhead_us, step_s):
    """One chunk a GPU: seven into each, where two double links bring one a step and two single links half a one."""
    collective, size = make_collective("allgather", 8), 256 << 20
    chunk_s = size / 8 / 50e9
    bound = chunk_bound(collective, dgx1(overhead_us), size)
    three = 3 * (chunk_s + step_s) + 0.7 * US - step_s
    two_hops = 2 * (0.7 * US + chunk_s) + chunk_s if not overhead_us else 0.0
    assert bound.time_s == pytest.approx(max(three, two_hops), rel=1e-9)
    shared = chunk_bound(collective, dgx1(overhead_us), size, batched=True)
    assert shared.time_s == chunk_bound(collective, dgx1(), size).time_s


def test_whole_chunks_cost_their_bytes_at_every_hop():
    bound = chunk_bound(make_collective("broadcast", 8), ring(8), M)
    assert bound.time_s == pytest.approx(4 * (ALPHA_S + M / GB_S))
    assert chunk_bound(make_collective("broadcast", 8, 4), ring(8), M).time_s < bound.time_s


def test_messages_that_share_a_link_avoid_overhead_only_if_they_may():
    topology = build(2, [(0, 1, 50, 0.5, 0.5)], both=True)
    collective = make_collective("sendrecv", 2, 10)
    alone, shared = (chunk_bound(collective, topology, M, batched=b).time_s for b in (False, True))
    assert alone == pytest.approx(10 * ALPHA_S + M / GB_S)
    assert shared == pytest.approx(ALPHA_S + M / GB_S)


def test_long_chunks_among_short_ones_are_not_forgotten():
    topology = build(2, [(0, 1)], both=True)
    collective = make_collective("alltoallv", 2, counts=[[0, 1], [1000, 0]])
    assert chunk_bound(collective, topology, M).time_s == pytest.approx(ALPHA_S + M / GB_S)


@pytest.mark.parametrize("kind", ["allgather", "allreduce", "reducescatter", "alltoall"])
def test_groups_share_the_links(kind):
    groups = [[0, 2], [1, 3]]
    line = zoo("line")
    bound = fluid_bound(make_collective(kind, 4, groups=groups), line, M)
    # Each group needs half of its size (all of it for an allreduce) over the middle link, in both directions.
    assert bound.algbw_exact == (Fraction(25) if kind == "allreduce" else Fraction(50))


def test_in_network_reduction_is_allowed_for():
    plain = star(8)
    able = replace(plain, reduction=np.arange(9) == 8)
    collective = make_collective("allreduce", 8)
    assert fluid_bound(collective, plain, M).algbw_exact == Fraction(200, 7)
    assert fluid_bound(collective, able, M).algbw_exact == 50


def test_nothing_to_do_takes_no_time():
    alone = ring(4).subset([2])
    bound = fluid_bound(make_collective("allreduce", 1), alone, M)
    assert bound.time_s == 0
    assert bound.algbw_exact is None


def test_a_pair_without_a_way_is_named():
    apart = build(4, [(0, 1), (2, 3)], both=True)
    with pytest.raises(Infeasible, match="rank 0 cannot reach rank 2"):
        fluid_bound(make_collective("broadcast", 4), apart, M)
    with pytest.raises(Infeasible, match="rank 2 cannot reach rank 0"):
        fluid_bound(make_collective("reduce", 4), apart, M)
    one_way = build(2, [(0, 1)])
    with pytest.raises(Infeasible, match="rank 1 cannot reach rank 0"):
        chunk_bound(make_collective("allgather", 2), one_way, M)
    # Groups that need no way between each other are fine, and so is a broadcast along one-way links.
    assert fluid_bound(make_collective("allgather", 4, groups=[[0, 1], [2, 3]]), apart, M).time_s > 0
    assert fluid_bound(make_collective("broadcast", 2), one_way, M).time_s > 0


def test_wrong_sizes_are_refused():
    with pytest.raises(InputError, match="8 ranks"):
        fluid_bound(make_collective("allgather", 4), ring(8), M)
    with pytest.raises(InputError, match="size"):
        fluid_bound(make_collective("allgather", 8), ring(8), 0)
