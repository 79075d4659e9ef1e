"""List scheduling against a plain reference, and the sharing of links by flows slower than they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.check.verify import verify_schedule
from collsyn.model.collective import custom_collective, make_collective
from collsyn.model.schedule import OWN, REDUCE, RouteCosts, Schedule
from collsyn.model.topology import Topology
from collsyn.synth.timing import Sends, in_order
from collsyn.topology.hops import hops
from tests.support.topologies import build, random_topologies, zoo

SIZE = 1 << 20


def reference_starts(schedule: Schedule, order: list[int]) -> dict[int, float]:
    """Starts of single-chunk copies in the given order of rows, one message at a time on every link."""
    costs, topology = RouteCosts.of(schedule.topology, schedule.routes), schedule.topology
    num_bytes = schedule.collective.chunk_bytes(schedule.size_bytes)
    free = [0.0] * topology.num_links
    ready: dict[tuple[int, int], float] = {}
    starts = {}
    for row in order:
        route, chunk = int(schedule.route[row]), int(schedule.chunk[row])
        links = schedule.routes[route].tolist()
        ahead = costs.before_s[schedule.routes.ptr[route] :].tolist()
        transfer_s = float(num_bytes[chunk] / costs.rate[route])
        at = ready.get((chunk, int(schedule.src[row])), 0.0)
        for link, before in zip(links, ahead, strict=False):
            at = max(at, free[link] - before)
        for link, before in zip(links, ahead, strict=False):
            free[link] = at + before + float(costs.overhead_s[route]) + transfer_s
        here = (chunk, int(schedule.dst[row]))
        ready[here] = max(ready.get(here, 0.0), at + float(costs.alpha_s[route]) + transfer_s)
        starts[row] = at
    return starts


@given(random_topologies(equal=True), st.randoms(use_true_random=False))
def test_starts_are_the_earliest_of_the_order(topology: Topology, random) -> None:
    table = hops(topology)
    collective = make_collective("allgather", topology.num_ranks)
    sends, held = Sends(table.routes), {(rank, rank) for rank in range(topology.num_ranks)}
    for _ in range(12):
        hop = random.randrange(len(table))
        chunk = random.randrange(topology.num_ranks)
        src, dst = int(table.src[hop]), int(table.dst[hop])
        if (chunk, src) in held and (chunk, dst) not in held:
            held.add((chunk, dst))
            sends.add([chunk], src, dst, hop)
    schedule = sends.timed(collective, topology, SIZE)
    order = _given_order(schedule, sends)
    starts = reference_starts(schedule, order)
    for row, start_s in starts.items():
        assert schedule.start_s[row] == pytest.approx(start_s, rel=1e-12, abs=1e-18)


def _given_order(schedule: Schedule, sends: Sends) -> list[int]:
    """Rows of the schedule in the order in which they were added (each chunk reaches each rank once)."""
    place = {(int(c), int(d)): i for i, (c, d) in enumerate(zip(schedule.chunk, schedule.dst, strict=True))}
    columns = sends._columns
    return [place[chunk, dst] for chunk, dst in zip(columns["chunk"], columns["dst"], strict=True)]


def trunk(lanes: int) -> Topology:
    """Ranks 0 .. lanes send over links of 25 GB/s into a trunk of 100 GB/s to as many receivers."""
    senders = [(i, 2 * lanes, 25, 0.5) for i in range(lanes)]
    receivers = [(2 * lanes + 1, lanes + i, 25, 0.5) for i in range(lanes)]
    return build(2 * lanes, [*senders, (2 * lanes, 2 * lanes + 1, 100, 0.5), *receivers], switches=2)


@pytest.mark.parametrize(("lanes", "rounds"), [(1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_slow_flows_share_a_trunk(lanes: int, rounds: int) -> None:
    topology, table = trunk(lanes), hops(trunk(lanes))
    best, sends = table.best(SIZE), Sends(table.routes)
    from fractions import Fraction

    rows = [(Fraction(1), Fraction(0), Fraction(0), [i], [lanes + i]) for i in range(lanes)]
    collective = custom_collective(2 * lanes, rows, False, {})
    for i in range(lanes):
        sends.add([i], i, lanes + i, best[i, lanes + i])
    schedule = sends.timed(collective, topology, SIZE)
    verify_schedule(schedule).raise_if_bad()
    assert schedule.finish_s == pytest.approx(1.5e-6 + rounds * SIZE / 25e9, rel=1e-12)


def test_what_is_still_read_is_not_overwritten() -> None:
    topology = zoo("line")
    table, collective = hops(topology), make_collective("allreduce", 4)
    best, sends = table.best(SIZE), Sends(table.routes)
    # Rank 1 passes its part to 2 after a long message there; what 0 adds to 1 must not slip in between.
    sends.add([1, 2, 3], 1, 2, best[1, 2], REDUCE)
    sends.add([0], 1, 2, best[1, 2], REDUCE)
    sends.add([0], 0, 1, best[0, 1], REDUCE)
    schedule = sends.timed(collective, topology, SIZE)
    of_chunk = schedule.chunk == 0
    start = dict(zip(schedule.src[of_chunk].tolist(), schedule.start_s[of_chunk].tolist(), strict=True))
    assert start[0] >= start[1] > 0
    # The input as given may be sent at any time.
    sends = Sends(table.routes)
    sends.add([1, 2, 3], 1, 2, best[1, 2], REDUCE)
    sends.add([0], 1, 2, best[1, 2], REDUCE, OWN)
    sends.add([0], 0, 1, best[0, 1], REDUCE)
    schedule = sends.timed(collective, topology, SIZE)
    assert schedule.start_s.min() == 0 and (schedule.start_s[schedule.src == 0] == 0).all()


def test_merging_waits_for_the_copy_it_joins_and_takes_no_time() -> None:
    topology = zoo("pair")
    table, collective = hops(topology), make_collective("allreduce", 2)
    sends = Sends(table.routes)
    sends.add([0, 1], 0, 1, table.best(1.0)[0, 1], src_slot=OWN, dst_slot=1)
    sends.add([0, 1], 1, 1, -1, REDUCE, OWN, 1)
    schedule = sends.timed(collective, topology, SIZE)
    arrival = schedule.messages.arrival_s[schedule.messages.src == 0][0]
    local = schedule.src == schedule.dst
    assert (schedule.start_s[local] == arrival).all() and schedule.finish_s == arrival


def test_a_fixed_start_is_kept_and_occupies() -> None:
    topology = zoo("pair")
    table, collective = hops(topology), make_collective("allgather", 2, 2)
    hop = table.best(1.0)[0, 1]
    columns = {"chunk": [0, 1], "src": [0, 0], "dst": [1, 1], "route": [hop, hop]}
    schedule = in_order(collective, topology, SIZE, table.routes, columns, fixed_s=[3e-6, np.nan])
    assert schedule.start_s.tolist() == pytest.approx([3e-6, 3e-6 + SIZE / 4 / 50e9], rel=1e-12)
