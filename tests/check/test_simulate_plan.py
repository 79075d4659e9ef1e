"""Simulated times of plans: by hand, against a slow simulator straight from the words, and against the lower bound."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.bounds import fluid_bound
from collsyn.check.simulate_plan import simulate_plan
from collsyn.errors import Infeasible, InputError, VerificationError
from collsyn.lower.lower import lower
from collsyn.model.arrays import Rows
from collsyn.model.collective import make_collective
from collsyn.model.plan import Op, Plan
from collsyn.topology.hops import hops
from tests.support.schedules import SCHEDULES, by_hand, link_of
from tests.support.topologies import ZOO, build, random_topologies, ring_edges, zoo

M = 1 << 20
US = 1e-6


def put(peer, length=1, **more):
    return {"op": Op.PUT, "peer": peer, "length": length, **more}


def get(peer, length=1, **more):
    return {"op": Op.GET, "peer": peer, "length": length, **more}


def signal(peer, flag=0, value=1):
    return {"op": Op.SIGNAL, "peer": peer, "flag": flag, "value": value}


def wait(flag=0, value=1):
    return {"op": Op.WAIT, "flag": flag, "value": value}


def plan_of(num_ranks, channels, routes=None, num_flags=8, chunks=1):
    """A plan of `sendrecv`, whose size is a rank's buffer of `chunks` units; only lengths and peers matter here."""
    collective = make_collective("sendrecv", num_ranks, chunks)
    table = None if routes is None else Rows.of(routes)
    return Plan.build(collective, channels, [[]] * num_ranks, [num_flags] * num_ranks, routes=table)


def cheapest(topology, src, dst, num_bytes):
    """Alpha, overhead, beta of the cheapest hop from rank to rank."""
    table = hops(topology)
    here = np.flatnonzero((table.src == src) & (table.dst == dst))
    best = here[np.argmin(table.seconds(num_bytes)[here])]
    return table.alpha_s[best], table.overhead_s[best], table.beta_s_per_byte[best]


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("op", [Op.PUT, Op.GET])
def test_a_transfer_alone_takes_what_a_message_takes(name, op):
    topology = zoo(name)
    table = hops(topology)
    for src, dst in sorted(set(zip(table.src.tolist(), table.dst.tolist(), strict=True)))[:6]:
        alpha, overhead, beta = cheapest(topology, src, dst, M)
        owner, peer = (src, dst) if op == Op.PUT else (dst, src)
        times = simulate_plan(
            plan_of(topology.num_ranks, [(owner, [{"op": op, "peer": peer, "length": 1}])]), topology, M
        )
        assert times.start_s[0] == 0
        assert times.arrival_s[0] == pytest.approx(alpha + M * beta, rel=1e-12)
        assert times.finish_s == times.arrival_s[0]
        free = overhead + M * beta
        assert times.end_s[0] == pytest.approx(free if op == Op.PUT else alpha + M * beta, rel=1e-12)


def pair(gb_s=50, alpha_us=0.5, overhead_us=0.0):
    return build(2, [(0, 1, gb_s, alpha_us, overhead_us)], both=True)


def copy(length=1):
    return {"op": Op.COPY, "length": length}


def ports(gb_s, copies_take_port):
    """Two ranks, each with one link out to a common switch and one back."""
    star = build(2, [(0, 2, gb_s, 0), (1, 2, gb_s, 0)], switches=1, both=True)
    return replace(star, copies_take_port=copies_take_port)


@pytest.mark.parametrize(("takes_port", "times"), [(False, 1), (True, 2)])
def test_copies_share_the_port_of_their_rank_where_the_topology_says_so(takes_port, times):
    plan = plan_of(2, [(0, [put(1)]), (0, [copy()])])
    found = simulate_plan(plan, ports(10, takes_port), M)
    assert found.finish_s == pytest.approx(times * M / 10e9)
    assert sorted(found.link_bytes.tolist()) == [0, 0, M, times * M]
    other = simulate_plan(plan_of(2, [(0, [put(1)]), (1, [copy()])]), ports(10, takes_port), M)
    assert other.finish_s == pytest.approx(M / 10e9)


def test_ranks_with_several_links_out_copy_for_nothing():
    plan = plan_of(3, [(0, [copy()])])
    topology = replace(build(3, [(0, 1), (0, 2)], both=True), copies_take_port=True)
    assert simulate_plan(plan, topology, M).finish_s == 0


def test_a_channel_goes_on_when_its_transfer_is_sent():
    topology = pair(overhead_us=0.2)
    times = simulate_plan(plan_of(2, [(0, [put(1), put(1), get(1), put(1)])]), topology, M)
    busy, arrives = M / 50e9 + 0.2 * US, M / 50e9 + 0.5 * US
    assert times.start_s == pytest.approx([0, busy, 2 * busy, 2 * busy + arrives])
    assert times.arrival_s == pytest.approx([arrives, busy + arrives, 2 * busy + arrives, 2 * busy + 2 * arrives])


def test_transfers_on_one_link_share_it():
    topology = pair(alpha_us=0.5, overhead_us=0.5)
    times = simulate_plan(plan_of(2, [(0, [put(1)]), (0, [put(1)])]), topology, M)
    assert times.arrival_s == pytest.approx([2 * M / 50e9 + 0.5 * US] * 2)
    # Together they occupy the link as long as one behind the other.
    assert times.end_s == pytest.approx([2 * M / 50e9 + 2 * 0.5 * US] * 2)


def test_the_longer_transfer_has_the_link_to_itself_in_the_end():
    times = simulate_plan(plan_of(2, [(0, [put(1, 1)]), (0, [put(1, 3)])], chunks=4), pair(alpha_us=0), M)
    quarter = M / 4 / 50e9
    assert times.end_s == pytest.approx([2 * quarter, 4 * quarter])


def test_sharing_is_max_min_fair():
    # Three senders meet at rank 3, whose link is 100; the first has a link of 10, the second one of 30.
    topology = build(4, [(0, 4, 10, 0), (1, 4, 30, 0), (2, 4, 90, 0), (4, 3, 100, 0)], switches=1)
    times = simulate_plan(plan_of(4, [(r, [put(3)]) for r in range(3)]), topology, M)
    # 10, 30 and the rest, 60, which grows to 70 once the second is done.
    third = M / 60e9
    assert third < M / 30e9
    assert times.end_s == pytest.approx([M / 10e9, M / 30e9, third])
    crowded = simulate_plan(plan_of(4, [(2, [put(3)]) for _ in range(9)] + [(1, [put(3)])]), topology, M)
    # Ten alike would get 10 each, and rank 2's nine do not fit 90 less: all ten get exactly that.
    assert crowded.end_s == pytest.approx([M / 10e9] * 10)


def test_both_directions_are_apart():
    times = simulate_plan(plan_of(2, [(0, [put(1)]), (1, [put(0)]), (0, [get(1)])]), pair(alpha_us=0), M)
    assert times.end_s == pytest.approx([M / 50e9, 2 * M / 50e9, 2 * M / 50e9])


def test_signals_take_the_latency_and_wait_for_the_data():
    topology = build(3, [(0, 1, 50, 0.5), (1, 2, 50, 0.7)], both=True)
    data = M / 50e9
    channels = [
        (0, [signal(1, 0), put(1), signal(1, 1), signal(2, 0), signal(0, 0)]),
        (1, [wait(0), wait(1)]),
        (2, [wait(0)]),
        (0, [wait(0)]),
        (0, [signal(0, 1)]),
    ]
    times = simulate_plan(plan_of(3, channels), topology, M)
    arrives = data + 0.5 * US
    # Alone; after the data, whoever is told of it (even the own rank); and at once where nothing was sent.
    assert times.arrival_s[[0, 2, 4, 9]] == pytest.approx([0.5 * US, arrives, arrives, 0])
    assert times.arrival_s[3] == pytest.approx(max(data + 1.2 * US, arrives))
    assert times.end_s[5:9] == pytest.approx([0.5 * US, arrives, data + 1.2 * US, arrives])
    assert times.end_s[[2, 3, 4]] == pytest.approx([data] * 3)


def test_overhead_that_two_transfers_share_holds_up_their_signals():
    topology = pair(alpha_us=0.5, overhead_us=0.5)
    channels = [(0, [put(1), signal(1, r)]) for r in (0, 1)] + [(1, [wait(r)]) for r in (0, 1)]
    alone = simulate_plan(plan_of(2, channels[::2]), topology, M)
    assert alone.end_s[-1] == pytest.approx(M / 50e9 + 0.5 * US)
    together = simulate_plan(plan_of(2, channels), topology, M)
    assert together.arrival_s[[0, 2]] == pytest.approx([2 * M / 50e9 + 0.5 * US] * 2)
    assert together.end_s[-2:] == pytest.approx([2 * M / 50e9 + 1.0 * US] * 2)


def test_signals_go_back_where_data_cannot():
    topology = build(3, [(0, 1, 50, 0.5), (1, 2, 50, 0.7)])
    times = simulate_plan(plan_of(3, [(2, [signal(0)])]), topology, M)
    assert times.arrival_s == pytest.approx([1.2 * US])
    into_one = build(3, [(0, 3, 50, 0.5), (1, 3, 50, 0.7), (3, 2, 50, 0.3)], switches=1)
    times = simulate_plan(plan_of(3, [(0, [signal(1)]), (0, [signal(2)])]), into_one, M)
    assert times.arrival_s == pytest.approx([1.2 * US, 0.8 * US])


def test_waiters_for_different_values_of_one_flag():
    channels = [(0, [wait(0, v)]) for v in (3, 1, 2, 1)]
    channels.append((1, [signal(0, 0, 1), put(0), signal(0, 0, 2), put(0), signal(0, 0, 5)]))
    times = simulate_plan(plan_of(2, channels), pair(), M)
    step = M / 50e9
    assert times.end_s[:4] == pytest.approx([2 * step + 0.5 * US, 0.5 * US, step + 0.5 * US, 0.5 * US])


def test_work_inside_a_rank():
    topology = replace(pair(), reduce_s_per_byte=np.array([1e-11, 3e-11]))
    channels = [
        (0, [{"op": Op.COPY, "length": 1}, {"op": Op.REDUCE, "length": 1}, {"op": Op.NOP}, put(0), get(0)]),
        (1, [{"op": Op.GET_REDUCE, "peer": 0, "length": 1}, {"op": Op.GET_REDUCE, "peer": 1, "length": 1}]),
    ]
    times = simulate_plan(plan_of(2, channels), topology, M)
    arrives = M / 50e9 + 0.5 * US
    assert times.end_s[:5] == pytest.approx([0, 1e-11 * M, 1e-11 * M, 1e-11 * M, 1e-11 * M])
    assert times.end_s[5:] == pytest.approx([arrives + 3e-11 * M, arrives + 6e-11 * M])
    assert times.arrival_s[5] == pytest.approx(arrives)


def test_the_plan_may_name_the_route():
    # Two links from 0 to 1; the plan chooses the slow one, which is cheaper for nothing.
    topology = build(2, [(0, 1, 50), (0, 1, 5), (1, 0)])
    times = simulate_plan(plan_of(2, [(0, [put(1, route=0)]), (0, [put(1)])], routes=[[1]]), topology, M)
    assert times.end_s == pytest.approx([M / 5e9, M / 50e9])
    assert times.link_bytes.tolist() == [M, M, 0]
    assert times.utilisation == pytest.approx([M / 50e9 / times.finish_s, M / 5e9 / times.finish_s, 0])


def test_ranks_that_no_hop_joins_are_joined_by_a_chain():
    topology = zoo("line")
    times = simulate_plan(plan_of(4, [(0, [put(3)]), (2, [put(3)])]), topology, M)
    assert times.link_bytes[link_of(topology, 2, 3)] == 2 * M
    assert times.end_s == pytest.approx([2 * M / 50e9] * 2)
    assert times.arrival_s == pytest.approx([2 * M / 50e9 + 1.5 * US, 2 * M / 50e9 + 0.5 * US])


def ring_allgather(n):
    """Every rank passes on what came last; a chunk a rank."""
    collective = make_collective("allgather", n)
    channels = []
    for rank in range(n):
        body = []
        for step in range(n - 1):
            if step:
                body.append(wait(0, step))
            body += [put((rank + 1) % n), signal((rank + 1) % n, 0, step + 1)]
        channels.append((rank, [*body, wait(0, n - 1)]))
    return Plan.build(collective, channels, [[]] * n, [1] * n)


@pytest.mark.parametrize("overhead_us", [0.0, 0.5])
def test_a_ring_allgather_takes_its_textbook_time(overhead_us):
    n = 6
    topology = build(n, [(a, b, 50, 0.5, overhead_us) for a, b in ring_edges(n)])
    times = simulate_plan(ring_allgather(n), topology, M)
    # Exactly that of its schedule, since a signal does not wait for the overhead of the data that it follows.
    assert times.finish_s == pytest.approx((n - 1) * (0.5 * US + M / n / 50e9))
    assert times.link_bytes == pytest.approx([M * (n - 1) / n] * n)


def test_a_deadlock_says_who_waits_for_whom():
    channels = [(0, [wait(0), signal(1)]), (1, [wait(0), signal(0)])]
    with pytest.raises(VerificationError, match=r"deadlock, 2 channels wait: rank 0 channel 0 .* rank 1 channel 0"):
        simulate_plan(plan_of(2, channels), pair(), M)


@pytest.mark.parametrize(
    "plan, error, words",
    [
        (plan_of(3, [(0, [put(1)])]), InputError, "needs 3"),
        (plan_of(2, [(0, [put(2)])]), VerificationError, "no such rank"),
        (plan_of(2, [(0, [put(-1)])]), VerificationError, "no such rank"),
        (plan_of(2, [(0, [signal(1, 8)])]), VerificationError, "no such flag"),
        (plan_of(2, [(0, [put(1, route=0)])], routes=[[1]]), InputError, "route 0 does not lead from rank 0 to rank 1"),
        (plan_of(2, [(0, [put(1, route=0)])], routes=[[7]]), InputError, "route 0 does not lead"),
        (plan_of(2, [(0, [put(1, route=0)])], routes=[[]]), InputError, "route 0 does not lead"),
        (plan_of(2, [(0, [put(1, route=3)])], routes=[[0]]), InputError, "route 3 does not lead"),
    ],
)
def test_what_cannot_run_is_refused(plan, error, words):
    with pytest.raises(error, match=words):
        simulate_plan(plan, pair(), M)


def test_no_way_and_no_size():
    with pytest.raises(Infeasible, match="rank 1 cannot reach rank 0"):
        simulate_plan(plan_of(2, [(1, [put(0)])]), build(2, [(0, 1)]), M)
    with pytest.raises(Infeasible, match="rank 0 cannot signal rank 2"):
        simulate_plan(plan_of(3, [(0, [signal(2)])]), build(3, [(0, 1)]), M)
    with pytest.raises(InputError, match="size"):
        simulate_plan(plan_of(2, [(0, [put(1)])]), pair(), 0)


def test_an_empty_plan_takes_no_time():
    for channels in ([], [(0, [])], [(0, [{"op": Op.NOP}])]):
        times = simulate_plan(plan_of(2, channels), pair(), M)
        assert times.finish_s == 0
        assert not times.utilisation.any()


# The slow simulator: every event looks at every channel and every link again. Transfers that have less than this many
# bytes left are done, which is what rounding leaves of them.
A_BIT = 1e-6


def slowly(plan, topology, size_bytes):
    """End and arrival of every instruction, as dicts."""
    unit = size_bytes / plan.total_units
    columns = {key: values.tolist() for key, values in plan.columns.items()}
    table = hops(topology)
    now, ends, arrivals, flags, signals = 0.0, {}, {}, {}, []
    fresh = {"doing": None, "seen": 0.0, "sent": 0.0}
    parts = zip(plan.channel_rank.tolist(), plan.channel_ptr.tolist(), plan.channel_ptr[1:].tolist(), strict=False)
    channels = [{"rank": rank, "at": first, "end": end, **fresh} for rank, first, end in parts]

    def way(src, dst, num_bytes):
        here = np.flatnonzero((table.src == src) & (table.dst == dst))
        return table.routes[int(here[np.argmin(table.seconds(num_bytes)[here])])].tolist()

    def begin(channel):
        """What the channel's next instruction needs: (kind, amount left, links)."""
        i = channel["at"]
        op, peer, rank = columns["op"][i], columns["peer"][i], channel["rank"]
        num_bytes = columns["length"][i] * unit
        work = topology.reduce_s_per_byte[rank] * num_bytes if op in (Op.REDUCE, Op.GET_REDUCE) else 0.0
        if op in (Op.PUT, Op.GET, Op.GET_REDUCE) and peer != rank:
            ends_of_way = (rank, peer) if op == Op.PUT else (peer, rank)
            return ["bytes", num_bytes, way(*ends_of_way, num_bytes), work]
        if op == Op.WAIT:
            return ["flag", columns["value"][i], (rank, columns["flag"][i]), 0.0]
        if op == Op.SIGNAL:
            latency = topology.alpha_s[way(rank, peer, 0.0)].sum() if peer != rank else 0.0
            arrivals[i] = max(now, channel["sent"] + latency, channel["seen"])
            signals.append((arrivals[i], (peer, columns["flag"][i]), columns["value"][i]))
        return ["until", now + work, [], 0.0]

    def rates():
        under_way = [(c, ch["doing"]) for c, ch in enumerate(channels) if ch["doing"]]
        flows = {c: doing[2] for c, doing in under_way if doing[0] in ("bytes", "tail")}
        room, fixed = dict(enumerate(topology.bandwidth.tolist())), {}
        while len(fixed) < len(flows):
            open_flows = {c: links for c, links in flows.items() if c not in fixed}
            level, tight = min(
                (room[link] / sum(link in links for links in open_flows.values()), link)
                for link in {link for links in open_flows.values() for link in links}
            )
            for c, links in open_flows.items():
                if tight in links:
                    fixed[c] = level
                    for link in links:
                        room[link] -= level
        return fixed

    while True:
        moving = True
        while moving:
            moving = False
            for arrival, flag, value in signals:
                if arrival <= now and flags.get(flag, 0) < value:
                    flags[flag] = value
                    moving = True
            for channel in channels:
                if channel["at"] >= channel["end"]:
                    continue
                if channel["doing"] is None:
                    channel["doing"] = begin(channel)
                kind, amount, what, work = channel["doing"]
                i = channel["at"]
                if kind == "bytes" and amount <= A_BIT:
                    arrivals[i] = now + topology.alpha_s[what].sum()
                    tail = topology.overhead_s[what].max() / topology.beta_s_per_byte[what].max()
                    channel["doing"] = ["tail", tail, what, work]
                    channel["sent"] = now
                    moving = True
                elif kind == "tail" and amount <= A_BIT:
                    if columns["op"][i] == Op.PUT:
                        channel["seen"] = max(channel["seen"], arrivals[i])
                        channel["doing"] = ["until", now, "sent", 0.0]
                    else:
                        channel["doing"] = ["until", max(now, arrivals[i]) + work, [], 0.0]
                    moving = True
                elif (kind == "until" and amount <= now) or (kind == "flag" and flags.get(what, 0) >= amount):
                    ends[i] = now
                    if columns["op"][i] != Op.SIGNAL and what != "sent":
                        channel["sent"] = now
                    channel["at"] += 1
                    channel["doing"] = None
                    moving = True
        found = rates()
        moments = [arrival for arrival, _, _ in signals if arrival > now]
        moments += [ch["doing"][1] for ch in channels if ch["doing"] and ch["doing"][0] == "until"]
        moments += [now + channels[c]["doing"][1] / rate for c, rate in found.items()]
        if not moments:
            return ends, arrivals
        following = min(moments)
        for c, rate in found.items():
            channels[c]["doing"][1] -= rate * (following - now)
        now = following


@st.composite
def random_plans(draw):
    """Plans that cannot get stuck: instructions are drawn in an order that they can run in."""
    topology = draw(random_topologies(min_ranks=2, max_ranks=4))
    n = topology.num_ranks
    table = hops(topology)
    joined = sorted(set(zip(table.src.tolist(), table.dst.tolist(), strict=True)))
    if draw(st.booleans()):
        topology = replace(topology, reduce_s_per_byte=np.full(n, 2e-11))
    owners = sorted(draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=6)))
    bodies: list[list[dict[str, int]]] = [[] for _ in owners]
    raised: dict[tuple[int, int], int] = {}
    for _ in range(draw(st.integers(1, 30))):
        channel = draw(st.integers(0, len(owners) - 1))
        rank = owners[channel]
        op = draw(st.sampled_from([Op.PUT, Op.PUT, Op.PUT, Op.GET, Op.GET_REDUCE, Op.REDUCE, Op.SIGNAL, Op.WAIT]))
        row = {"op": op, "length": draw(st.integers(1, 8))}
        if op in (Op.PUT, Op.SIGNAL):
            row["peer"] = draw(st.sampled_from([rank, *(b for a, b in joined if a == rank)]))
        if op in (Op.GET, Op.GET_REDUCE):
            row["peer"] = draw(st.sampled_from([rank, *(a for a, b in joined if b == rank)]))
        if op == Op.SIGNAL:
            row["flag"] = draw(st.integers(0, 1))
            row["value"] = raised[row["peer"], row["flag"]] = raised.get((row["peer"], row["flag"]), 0) + 1
        if op == Op.WAIT:
            row["flag"] = draw(st.integers(0, 1))
            row["value"] = raised.get((rank, row["flag"]), 0)
            if not row["value"]:
                continue
        bodies[channel].append(row)
    plan = plan_of(n, list(zip(owners, bodies, strict=True)), num_flags=2, chunks=8)
    return plan, topology, draw(st.sampled_from([64, 4096, M]))


@given(random_plans())
def test_the_quick_simulator_and_the_slow_one_agree(drawn):
    plan, topology, size_bytes = drawn
    times = simulate_plan(plan, topology, size_bytes)
    ends, arrivals = slowly(plan, topology, size_bytes)
    assert len(ends) == plan.num_instructions
    assert times.end_s == pytest.approx([ends[i] for i in range(plan.num_instructions)], rel=1e-9, abs=1e-15)
    expected = np.array([arrivals.get(i, np.nan) for i in range(plan.num_instructions)])
    assert times.arrival_s == pytest.approx(expected, rel=1e-9, abs=1e-15, nan_ok=True)
    assert (times.start_s <= times.end_s).all()
    assert (times.utilisation <= 1 + 1e-9).all()


@given(random_plans())
def test_time_is_measured_in_any_unit(drawn):
    plan, topology, size_bytes = drawn
    slow = replace(topology, alpha_s=topology.alpha_s * 2, overhead_s=topology.overhead_s * 2)
    once, twice = simulate_plan(plan, topology, size_bytes), simulate_plan(plan, slow, 2 * size_bytes)
    assert twice.end_s == pytest.approx(2 * once.end_s, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("size_bytes", [1 << 12, 1 << 24])
def test_no_plan_of_a_schedule_is_quicker_than_the_bound(name, size_bytes):
    schedule = by_hand(name)
    times = simulate_plan(lower(schedule), schedule.topology, size_bytes)
    assert times.finish_s >= fluid_bound(schedule.collective, schedule.topology, size_bytes).time_s * (1 - 1e-9)


def test_equal_plans_take_equal_times_to_the_bit():
    schedule = by_hand("doubling allreduce")
    runs = [simulate_plan(lower(schedule), schedule.topology, M) for _ in range(2)]
    assert runs[0].end_s.tobytes() == runs[1].end_s.tobytes()
