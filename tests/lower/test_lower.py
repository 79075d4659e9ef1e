"""Plans of all kinds of schedules, run on real data in many orders and looked through for races."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.check.simulate import retime
from collsyn.check.simulate_plan import simulate_plan
from collsyn.check.verify import verify_schedule
from collsyn.errors import InputError, VerificationError
from collsyn.lower.lower import lower
from collsyn.model.collective import make_collective
from collsyn.model.dtypes import DTYPES, OPS
from collsyn.model.plan import Buffer, Op
from collsyn.model.plan_file import plan_text, read_plan, write_plan
from collsyn.model.schedule import COPY, REDUCE, Schedule
from tests.support.plans import assert_no_races, assert_right, count, modes, without
from tests.support.schedules import SCHEDULES, SIZE, by_hand, from_rows, full, link_of, ring, star
from tests.support.topologies import random_topologies
from tests.support.trees import NAMED, any_collective, exchanges, late_contributions, tree_schedule

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"reduce_by": "get"},
    {"reduce_by": "get", "instances": 3, "channels_by": "peer"},
    {"max_channels": 1},
    {"instances": 2, "max_channels": 3, "piece_bytes": 30_000, "paced": True},
    {"reduce_by": "get", "piece_bytes": 10_000, "paced": True},
    {"reduce_by": "put", "channels_by": "peer"},
    {"reduce_by": "put", "piece_bytes": 100_000},
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_by_hand(name, options):
    plan = lower(by_hand(name), **options)
    assert_no_races(plan)
    assert_right(plan, sizes=(1, 7, 100))


@pytest.mark.parametrize("dtype_name", DTYPES)
@pytest.mark.parametrize("kind", NAMED)
def test_all_collectives_and_types_at_all_sizes(kind, dtype_name):
    plan = lower(tree_schedule(any_collective(kind), ring(4), 1), piece_bytes=2000)
    assert_right(plan, sizes=(1, 2, 3, 5, 8, 13, 19, 1000, 1001), seeds=(3,), dtype_name=dtype_name)


@pytest.mark.parametrize("op_name", OPS)
@pytest.mark.parametrize("dtype_name", DTYPES)
@pytest.mark.parametrize("kind", ["allreduce", "reducescatter", "reduce"])
def test_all_reductions(kind, dtype_name, op_name):
    plan = lower(tree_schedule(any_collective(kind, 5, 2), full(5), 7))
    assert_right(plan, sizes=(1, 53), seeds=(0, 1), dtype_name=dtype_name, op_name=op_name)


@given(
    topology=random_topologies(max_switches=0),
    kind=st.sampled_from(NAMED),
    chunks=st.integers(1, 3),
    seed=st.integers(0, 10**6),
    options=st.sampled_from(OPTIONS),
)
def test_random_trees_on_random_graphs(topology, kind, chunks, seed, options):
    schedule = tree_schedule(any_collective(kind, topology.num_ranks, chunks), topology, seed)
    verify_schedule(schedule).raise_if_bad()
    plan = lower(schedule, **options)
    assert_no_races(plan)
    assert_right(plan, sizes=(1, 2 + seed % 50), seeds=(seed, seed + 1))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_exchanges_of_values_that_are_being_read(seed, options):
    for schedule in (exchanges(1 + seed % 3, seed, 1 + seed % 2), late_contributions(2 + seed % 3, seed)):
        verify_schedule(schedule).raise_if_bad()
        plan = lower(schedule, **options)
        assert_no_races(plan)
        assert_right(plan, sizes=(1, 50), seeds=range(4))


@pytest.mark.parametrize("groups", [[[0, 2], [3, 1]], [[0, 1, 4], [2, 3]], [[1, 3]]])
@pytest.mark.parametrize("kind", ["allgather", "allreduce", "alltoall", "broadcast", "reducescatter"])
def test_process_groups(kind, groups):
    collective = make_collective(kind, 5, 2, groups=groups)
    plan = lower(tree_schedule(collective, ring(5), 2))
    assert_no_races(plan)
    assert_right(plan, sizes=(1, 12, 31))


@pytest.mark.parametrize("kind", ["allgather", "reducescatter", "gather", "scatter"])
def test_shards_of_unequal_and_no_length(kind):
    collective = make_collective(kind, 4, counts=[3, 0, 1, 5])
    plan = lower(tree_schedule(collective, ring(4), 3), piece_bytes=1000)
    assert_no_races(plan)
    assert_right(plan, sizes=(1, 9, 10, 100))


@pytest.mark.parametrize("kind", NAMED)
def test_a_single_rank(kind):
    collective = any_collective(kind, 1)
    nothing = {name: np.zeros(0) for name in ("chunk", "src", "dst", "route", "start_s")}
    if kind == "alltoallv" or kind == "sendrecv":
        collective = make_collective(kind, 1, counts=[[2]] if kind == "alltoallv" else None)
    plan = lower(Schedule.build(collective, full(2).subset([0]), 1 << 20, [[]], **nothing), instances=2)
    assert_no_races(plan)
    assert_right(plan)
    assert count(plan, Op.COPY) in (1, 2)
    assert plan.num_instructions == count(plan, Op.COPY)


@pytest.mark.parametrize("options", ({}, {"piece_bytes": 300_000}, {"max_channels": 1}, {"reduce_by": "put"}), ids=str)
@pytest.mark.parametrize("name", SCHEDULES)
def test_no_wait_is_superfluous(name, options):
    plan = lower(by_hand(name), **{"piece_bytes": 1 << 20, "reduce_by": "get", "paced": False, **options})
    for wait in np.flatnonzero(plan.columns["op"] == Op.WAIT).tolist():
        shorter = without(plan, wait)
        with pytest.raises(AssertionError):
            assert_no_races(shorter)


@pytest.mark.parametrize("name", ["doubling allreduce", "ring allgather", "tree reduce"])
def test_every_signal_is_waited_for(name):
    plan = lower(by_hand(name))
    c = plan.columns
    owner = np.repeat(plan.channel_rank, np.diff(plan.channel_ptr))
    signalled = {
        (p, f, v) for o, p, f, v in zip(c["op"], c["peer"], c["flag"], c["value"], strict=True) if o == Op.SIGNAL
    }
    waited = {(r, f, v) for o, r, f, v in zip(c["op"], owner, c["flag"], c["value"], strict=True) if o == Op.WAIT}
    assert signalled == waited


def direct_allgather(n: int) -> Schedule:
    """Everyone puts its shard to everyone at once."""
    topology, collective = full(n), make_collective("allgather", n)
    rows = [
        {"chunk": a, "src": a, "dst": b, "route": link_of(topology, a, b), "start_s": 0.0}
        for a in range(n)
        for b in range(n)
        if a != b
    ]
    return from_rows(collective, topology, rows)


@pytest.mark.parametrize("channels", [1, 32])
def test_a_direct_allgather_waits_twice_a_peer(channels):
    plan = lower(direct_allgather(4), max_channels=channels, ahead=False)
    assert count(plan, Op.WAIT) == count(plan, Op.SIGNAL) == 4 * 3 * 2
    assert count(plan, Op.PUT) == 4 * 3
    assert count(plan, Op.COPY) == 4
    assert plan.num_instructions == 4 * (2 * 6 + 3 + 1)
    assert plan.max_channels() == min(channels, 3)
    assert not plan.scratch_units.any()


def test_one_that_runs_ahead_waits_once_a_peer():
    plan = lower(direct_allgather(4), ahead=True)
    assert count(plan, Op.WAIT) == count(plan, Op.SIGNAL) == count(plan, Op.PUT) == 4 * 3
    assert count(plan, Op.COPY) == 4 * (3 + 1)


def test_channels_take_peers_in_turn_beginning_behind_their_rank():
    plan = lower(direct_allgather(5), max_channels=1)
    for rank in range(5):
        puts = plan.columns["op"][plan.channel_ptr[rank] : plan.channel_ptr[rank + 1]] == Op.PUT
        peers = plan.columns["peer"][plan.channel_ptr[rank] : plan.channel_ptr[rank + 1]][puts]
        assert peers.tolist() == [(rank + i) % 5 for i in range(1, 5)]


def test_an_in_tree_adds_where_values_stand():
    plan = lower(by_hand("tree reduce"), max_channels=1, reduce_by="get")
    assert count(plan, Op.PUT) == count(plan, Op.REDUCE) == count(plan, Op.COPY) == 0
    # The inner ranks 1 and 2 add up in scratch, the root in its output.
    assert [
        int(plan.scratch_units[a:b].sum()) for a, b in zip(plan.scratch_ptr, plan.scratch_ptr[1:], strict=False)
    ] == [
        0,
        plan.units_per_chunk_unit,
        plan.units_per_chunk_unit,
        *[0] * 4,
    ]


def test_putting_reductions_land_in_scratch():
    plan = lower(by_hand("tree reduce"), reduce_by="put", piece_bytes=1 << 20)
    assert count(plan, Op.GET_REDUCE) == 0
    assert count(plan, Op.PUT) == count(plan, Op.REDUCE) == 6


def test_a_batch_is_one_put_and_one_signal():
    plan = lower(by_hand("star broadcast"))
    assert count(plan, Op.PUT) == 4
    assert count(plan, Op.SIGNAL) == 8


def test_neighbouring_moves_without_flags_between_become_one():
    assert count(lower(by_hand("shared gather"), piece_bytes=1 << 14), Op.PUT) == 4


def test_relays_of_a_batch_lie_together():
    """0 sends the chunks of 2 and 3 to 1 in one message; 1 passes them on one by one."""
    topology, collective = full(4), make_collective("scatter", 4)
    hop = 1e-3
    rows = [
        {"chunk": c, "src": 0, "dst": 1, "route": link_of(topology, 0, 1), "start_s": 0.0, "batch": 1}
        for c in (1, 2, 3)
    ]
    rows += [{"chunk": c, "src": 1, "dst": c, "route": link_of(topology, 1, c), "start_s": hop * c} for c in (2, 3)]
    plan = lower(from_rows(collective, topology, rows, 60_000))
    # Chunk 1 goes to the output of rank 1, the others to its scratch.
    lengths = plan.columns["length"][(plan.columns["op"] == Op.PUT) & (plan.columns["peer"] == 1)]
    assert sorted(lengths.tolist()) == [plan.units_per_chunk_unit, 2 * plan.units_per_chunk_unit]
    assert_right(plan)
    assert_no_races(plan)


def test_instances_run_over_channels_of_their_own():
    plan = lower(by_hand("ring allgather"), instances=4, ahead=False)
    assert plan.max_channels() == 4
    assert plan.units_per_chunk_unit % 4 == 0
    assert lower(by_hand("ring allgather"), instances=4, max_channels=3).max_channels() == 3


@pytest.mark.parametrize("name", SCHEDULES)
def test_lowering_is_repeatable_and_files_hold_all(name, tmp_path):
    plan = lower(by_hand(name), piece_bytes=100_000)
    assert plan_text(plan) == plan_text(lower(by_hand(name), piece_bytes=100_000))
    write_plan(plan, tmp_path / "plan.json")
    assert plan_text(read_plan(tmp_path / "plan.json")) == plan_text(plan)


def test_moves_know_their_routes():
    schedule = by_hand("star broadcast")
    plan = lower(schedule)
    puts = plan.columns["op"] == Op.PUT
    owner = np.repeat(plan.channel_rank, np.diff(plan.channel_ptr))
    for rank, peer, route in zip(owner[puts], plan.columns["peer"][puts], plan.columns["route"][puts], strict=True):
        links = plan.routes[int(route)]
        assert schedule.topology.src[links[0]] == rank
        assert schedule.topology.dst[links[-1]] == peer
    assert (plan.columns["route"][~puts] == -1).all()


def test_flags_are_counted_and_rise():
    plan = lower(by_hand("doubling allreduce"), piece_bytes=50_000)
    c = plan.columns
    for channel in range(plan.num_channels):
        part = slice(plan.channel_ptr[channel], plan.channel_ptr[channel + 1])
        for flag in np.unique(c["flag"][part][c["op"][part] == Op.SIGNAL]):
            for peer in range(plan.num_ranks):
                chosen = (c["op"][part] == Op.SIGNAL) & (c["flag"][part] == flag) & (c["peer"][part] == peer)
                values = c["value"][part][chosen]
                assert values.tolist() == list(range(1, len(values) + 1))
    for rank in range(plan.num_ranks):
        flags = c["flag"][(c["op"] == Op.SIGNAL) & (c["peer"] == rank)]
        assert set(flags.tolist()) == set(range(plan.num_flags[rank]))


def test_ranks_whose_time_reducing_takes_read_values_where_they_stand():
    schedule = by_hand("doubling allreduce")
    busy = retime(schedule, SIZE, replace(schedule.topology, reduce_s_per_byte=np.full(4, 1e-10)))
    assert lower(busy).provenance["lowering"]["reduce_by"] == "get"
    assert count(lower(busy), Op.REDUCE) == 0


def shared_port(n: int) -> Schedule:
    """Over a switch, every rank sends everyone a chunk, all in the same order, so that they take turns at each port."""
    topology, collective = star(n), make_collective("alltoall", n)
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    routes = [[link_of(topology, a, n), link_of(topology, n, b)] for a, b in pairs]
    step = float(topology.overhead_s[0] + SIZE / n * topology.beta_s_per_byte[0])
    rows = [
        {"chunk": a * n + b, "src": a, "dst": b, "route": i, "start_s": step * (a + b - 1)}
        for i, (a, b) in enumerate(pairs)
    ]
    return from_rows(collective, topology, rows, routes=routes)


def test_pacing_keeps_the_order_on_shared_links():
    schedule = shared_port(6)
    verify_schedule(schedule).raise_if_bad()
    finish_s = {}
    for paced in (False, True):
        plan = lower(schedule, channels_by="link", paced=paced)
        assert_no_races(plan)
        assert_right(plan)
        finish_s[paced] = simulate_plan(plan, schedule.topology, schedule.size_bytes).finish_s
    assert finish_s[True] < 0.9 * finish_s[False]
    best = lower(schedule)
    assert simulate_plan(best, schedule.topology, schedule.size_bytes).finish_s <= min(finish_s.values()) * 1.01


def test_channels_by_link_follow_the_schedule_where_messages_do():
    schedule = by_hand("star broadcast")
    assert lower(schedule, channels_by="link").max_channels() == 1
    assert lower(schedule, channels_by="peer").max_channels() == 4


def test_messages_at_once_on_a_link_have_channels_of_their_own():
    """Four messages at a quarter of the bandwidth each."""
    n = 5
    topology, collective = star(n), make_collective("scatter", n)
    routes = [[link_of(topology, 0, n), link_of(topology, n, b)] for b in range(1, n)]
    rate = float(topology.bandwidth[0]) / (n - 1)
    rows = [{"chunk": b, "src": 0, "dst": b, "route": b - 1, "start_s": 0.0, "rate": rate} for b in range(1, n)]
    assert lower(from_rows(collective, topology, rows, routes=routes), channels_by="link").max_channels() == 4


def test_in_place_modes_are_both_tried():
    assert modes(lower(by_hand("ring allgather"))) == [False, True]
    assert modes(lower(by_hand("direct alltoall"))) == [False]


@pytest.mark.parametrize(
    "options", ({"instances": 0}, {"max_channels": 0}, {"piece_bytes": 0}, {"reduce_by": "it"}, {"channels_by": "it"})
)
def test_wrong_options_are_refused(options):
    with pytest.raises(InputError, match=f"^{next(iter(options))}: is"):
        lower(by_hand("ring allgather"), **options)


def test_a_send_of_what_is_not_there_is_refused():
    topology, collective = full(3), make_collective("broadcast", 3)
    row = {"chunk": 0, "src": 1, "dst": 2, "route": link_of(topology, 1, 2), "start_s": 0.0}
    with pytest.raises(VerificationError, match="rank 1 sends what it does not hold"):
        lower(from_rows(collective, topology, [row]))


def test_a_missing_result_is_refused():
    topology, collective = full(3), make_collective("broadcast", 3)
    row = {"chunk": 0, "src": 0, "dst": 1, "route": link_of(topology, 0, 1), "start_s": 0.0}
    with pytest.raises(VerificationError, match="chunk 0 at rank 2 at the end: is missing"):
        lower(from_rows(collective, topology, [row]))


def test_what_a_copy_replaces_unread_is_not_moved():
    topology, collective = full(3), make_collective("broadcast", 3)
    rows = [
        {"chunk": 0, "src": 0, "dst": b, "route": link_of(topology, 0, b), "start_s": s, "op": COPY}
        for b, s in ((1, 0.0), (1, 1.0), (2, 2.0))
    ]
    plan = lower(from_rows(collective, topology, rows))
    assert count(plan, Op.PUT) == 2
    assert_right(plan)


def test_results_that_cannot_be_written_yet_wait_in_scratch():
    """Partners swap in place: nothing may enter an output that is an input which is still to be read."""
    topology, collective = full(2), make_collective("allreduce", 2)
    rows = [
        {"chunk": c, "src": a, "dst": 1 - a, "route": link_of(topology, a, 1 - a), "start_s": 0.0, "op": REDUCE}
        for a in (0, 1)
        for c in (0, 1)
    ]
    plan = lower(from_rows(collective, topology, rows), reduce_by="get")
    direct = np.isin(plan.columns["op"], [Op.PUT, Op.GET_REDUCE])
    assert (plan.columns["dst_buffer"][direct] == Buffer.SCRATCH).all()
    assert_no_races(plan)
    assert_right(plan, seeds=range(6))


def test_chunks_that_come_together_land_together():
    """Chunk 1 comes to rank 1 by itself, then with its neighbours, which have had nothing land before."""
    topology, collective = full(3), make_collective("reduce", 3, 3, root=1)
    alone = [{"chunk": 1, "src": 0, "dst": 1, "route": link_of(topology, 0, 1), "start_s": 0.0, "op": REDUCE}]
    rest = [
        {"chunk": c, "src": 2, "dst": 1, "route": link_of(topology, 2, 1), "start_s": 1.0, "op": REDUCE, "batch": 0}
        for c in range(3)
    ]
    late = [
        {"chunk": c, "src": 0, "dst": 1, "route": link_of(topology, 0, 1), "start_s": 2.0, "op": REDUCE, "batch": 1}
        for c in (0, 2)
    ]
    plan = lower(from_rows(collective, topology, alone + rest + late), reduce_by="put", piece_bytes=1 << 40)
    assert count(plan, Op.PUT) == 4
    assert_no_races(plan)
    assert_right(plan)


def test_trees_are_lowered_to_about_a_move_for_a_message():
    from collsyn.synth.problem import Options, Problem
    from collsyn.synth.table import method
    from collsyn.topology.resolve import load_topology

    problem = Problem("reducescatter", load_topology("dgx-a100:2"), 1 << 26)
    schedule = method("trees").synthesize(problem, Options())
    assert count(lower(schedule, reduce_by="put"), Op.PUT) <= 1.1 * len(schedule.messages)
