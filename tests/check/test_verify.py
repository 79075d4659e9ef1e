"""The judge of schedules: every rule has a schedule that breaks it alone, and what is right passes however it looks."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.check import replay as replaying
from collsyn.check.replay import time_tolerance
from collsyn.check.verify import SCHEDULE_CHECKS, verify_schedule
from collsyn.errors import VerificationError
from collsyn.model.bound import Bound
from collsyn.model.collective import custom_collective, make_collective
from collsyn.model.schedule import COPY, OWN, REDUCE, Schedule
from tests.support.bruteforce import why_invalid
from tests.support.mutate import edited, mutants, writable
from tests.support.schedules import (
    SCHEDULES,
    SIZE,
    by_hand,
    from_rows,
    full,
    hop_s,
    link_of,
    random_schedules,
    ring,
    ring_allgather,
    star,
)
from tests.support.topologies import ZOO, build, random_topologies, zoo


def failed(schedule):
    """Names of the checks that fail, and the report."""
    report = verify_schedule(schedule)
    assert [check.name for check in report.checks] == list(SCHEDULE_CHECKS)
    assert report.ok == all(check.ok for check in report.checks) == (not report.problems)
    return [check.name for check in report.checks if not check.ok], report


def changed(schedule, row, **values):
    """The schedule with some values of one row replaced."""
    columns = writable(schedule)
    for name, value in values.items():
        columns[name][row] = value
    return edited(schedule, columns)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_written_by_hand_are_right(name):
    assert failed(by_hand(name))[0] == []


@given(random_schedules())
def test_random_schedules_are_right(schedule):
    assert why_invalid(schedule) is None
    assert failed(schedule)[0] == []


@given(random_schedules(), st.integers(0, 2**32 - 1))
def test_checker_and_brute_force_agree_on_mutants_of_random_schedules(schedule, seed):
    if schedule.num_sends:
        for kind, mutant in mutants(schedule, seed, per_kind=1):
            assert verify_schedule(mutant).ok == (why_invalid(mutant) is None), kind


@pytest.mark.parametrize("table", [0, replaying.TABLE_PER_WRITE])
@pytest.mark.parametrize("name", ["ring allgather", "star broadcast", "shared gather", "direct alltoall"])
def test_quick_and_full_replay_agree_where_chunks_are_only_copied(name, table, monkeypatch):
    monkeypatch.setattr(replaying, "TABLE_PER_WRITE", table)
    for seed in range(3):
        for kind, mutant in mutants(by_hand(name), seed):
            report = verify_schedule(mutant)
            if all(check.ok for check in report.checks[:3]):
                plain = (mutant.op == COPY).all() and not mutant.dst_slot.any() and (mutant.src_slot <= 0).all()
                if plain and (mutant.src != mutant.dst).all():
                    tol = time_tolerance(mutant)
                    quick, whole = replaying._replay_copies(mutant, tol), replaying._replay_slots(mutant, tol)
                    assert (quick.held[1] > 0, quick.ok) == (whole.held[1] > 0, whole.ok), kind


# One rule at a time


def test_a_send_too_early_names_chunk_ranks_time_have_and_want():
    schedule = ring_allgather(4, 1)
    row = int(np.flatnonzero(schedule.start_s > 0)[0])
    start = float(schedule.start_s[row])
    names, report = failed(changed(schedule, row, start_s=start * 0.5))
    problem = next(p for p in report.problems if "does not hold" in p.what)
    chunk, src, dst = (int(getattr(schedule, name)[row]) for name in ("chunk", "src", "dst"))
    assert "held" in names
    assert problem.where == f"chunk {chunk}, {src}->{dst} at {start * 0.5e6:.9g} us"
    assert problem.what == f"rank {src} sends what it does not hold"
    assert problem.expected == f"there at {start * 0.5e6:.9g} us"
    assert problem.found == f"there from {start * 1e6:.9g} us on"


def test_a_chunk_that_never_comes():
    schedule = ring_allgather(4, 1)
    names, report = failed(edited(schedule, keep=schedule.start_s > 0))
    assert names == ["held", "result"]
    assert report.problems[0].found == "never there"
    missing = {(p.where, p.what, p.expected, p.found) for p in report.problems if "end" in p.where}
    assert ("chunk 0 at rank 1 at the end", "is missing", "the chunk", "nothing") in missing


def test_times_may_be_off_by_a_billionth_of_the_finish():
    schedule = ring_allgather(5, 1)
    last = schedule.num_sends - 1
    start, slack = float(schedule.start_s[last]), 1e-9 * schedule.finish_s
    assert failed(changed(schedule, last, start_s=start - 0.9 * slack))[0] == []
    assert failed(changed(schedule, last, start_s=start - 2 * slack))[0] == ["held"]


def test_link_loads_may_be_off_by_a_billionth_of_the_finish():
    schedule = by_hand("star broadcast")
    rows = np.flatnonzero(schedule.start_s == schedule.start_s.max())
    start, slack = float(schedule.start_s[rows[0]]), 1e-9 * schedule.finish_s
    assert failed(changed(schedule, rows, start_s=start - 0.9 * slack))[0] == []
    names, report = failed(changed(schedule, rows, start_s=start - 2 * slack))
    assert names == ["loads"]
    assert report.problems[0].where.startswith("link 0->s0 at ")
    assert (report.problems[0].expected, report.problems[0].found) == ("at most 100 GB/s", "200 GB/s")


def test_shared_links_may_be_off_by_a_billionth_of_the_finish():
    topology, collective = star(3), make_collective("gather", 3, 2)
    down = link_of(topology, 3, 0)
    routes, rate = [[link_of(topology, rank, 3), down] for rank in (1, 2)], float(topology.bandwidth[down]) / 2
    busy = 0.3e-6 + SIZE / 6 / rate

    def two_rounds(second_start):
        rows = [
            {
                "chunk": 2 * rank + piece,
                "src": rank,
                "dst": 0,
                "route": rank - 1,
                "start_s": second_start * piece,
                "rate": rate,
            }
            for rank in (1, 2)
            for piece in (0, 1)
        ]
        return from_rows(collective, topology, rows, routes=routes)

    slack = 1e-9 * two_rounds(busy).finish_s
    assert failed(two_rounds(busy - 0.9 * slack))[0] == []
    assert failed(two_rounds(busy - 2 * slack))[0] == ["loads"]


def test_the_slack_in_time_does_not_swallow_short_messages():
    # A billionth of the long message is a thousand times the short one.
    topology = build(4, [(0, 1, 50, 0), (1, 2, 50, 0), (3, 2, 50, 0)])
    chunks = [(1, 0, 0, [3], [2]), (Fraction(1, 10**12), 0, 0, [0], [2]), (Fraction(1, 10**12), 0, 0, [0], [1])]
    collective = custom_collective(4, chunks, False, {"kind": "custom"})
    transfer = 1 / 50e9

    def passed_on(after, second):
        rows = [
            {"chunk": 0, "src": 3, "dst": 2, "route": 2, "start_s": 0.0},
            {"chunk": 1, "src": 0, "dst": 1, "route": 0, "start_s": 0.0},
            {"chunk": 1, "src": 1, "dst": 2, "route": 1, "start_s": after},
            {"chunk": 2, "src": 0, "dst": 1, "route": 0, "start_s": second},
        ]
        return from_rows(collective, topology, rows, 10**12)

    assert failed(passed_on(transfer, transfer))[0] == []
    assert failed(passed_on(transfer / 2, transfer))[0] == ["held"]
    assert failed(passed_on(transfer, transfer / 2))[0] == ["loads"]


def test_shared_links_carry_just_their_bandwidth():
    schedule = by_hand("shared gather")
    assert failed(edited(schedule, {**writable(schedule), "rate": schedule.rate * (1 + 1e-10)}))[0] == []
    names, report = failed(edited(schedule, {**writable(schedule), "rate": schedule.rate * 1.01}))
    assert names == ["loads"]
    assert report.problems[0].found == "101 GB/s"


def test_load_is_counted_where_the_head_of_the_message_is():
    # 0 -> s0 -> 2 and 1 -> s0 -> 2 share the last link only: they clash there if both heads arrive at once.
    topology = build(3, [(0, 3, 10, 1.0), (1, 3, 10, 4.0), (3, 2, 10, 1.0)], switches=1)
    collective = custom_collective(3, [(1, 0, 0, [0], [2]), (1, 0, 0, [1], [2])], False, {"kind": "custom"})
    transfer = SIZE * float(topology.beta_s_per_byte[0])

    def both(second_start):
        rows = [
            {"chunk": 0, "src": 0, "dst": 2, "route": 0, "start_s": 3e-6},
            {"chunk": 1, "src": 1, "dst": 2, "route": 1, "start_s": second_start},
        ]
        return from_rows(collective, topology, rows, routes=[[0, 2], [1, 2]])

    assert failed(both(0.0))[0] == ["loads"]
    assert failed(both(transfer))[0] == []
    assert failed(both(transfer * 0.999))[0] == ["loads"]


def test_overhead_occupies_every_link_of_the_route():
    topology = star(3)
    collective = make_collective("gather", 3)
    routes = [[link_of(topology, rank, 3), link_of(topology, 3, 0)] for rank in (1, 2)]
    transfer = SIZE / 3 * float(topology.beta_s_per_byte[0])
    rows = [{"chunk": r, "src": r, "dst": 0, "route": r - 1, "start_s": (r - 1) * transfer} for r in (1, 2)]
    assert failed(from_rows(collective, topology, rows, routes=routes))[0] == ["loads"]
    rows[1]["start_s"] += 0.3e-6
    assert failed(from_rows(collective, topology, rows, routes=routes))[0] == []


@pytest.mark.parametrize(
    "route, what",
    [
        ([0], "joins other vertices"),
        ([], "needs the empty route"),
        ([1, 3, 1], "not a path"),
        ([0, 5], "joins other vertices"),
        ([0, 2], "not a path"),
    ],
)
def test_routes_that_lead_nowhere(route, what):
    # 0 -- s0 -- 1 and 2; up and down links of rank r are 2 r and 2 r + 1.
    topology = star(3)
    collective = make_collective("broadcast", 3)
    rows = [{"chunk": 0, "src": 0, "dst": dst, "route": dst - 1, "start_s": dst * 1e-3} for dst in (1, 2)]
    assert failed(from_rows(collective, topology, rows, routes=[[0, 3], [0, 5]]))[0] == []
    names, report = failed(from_rows(collective, topology, rows, routes=[route, [0, 5]]))
    assert names[0] == "routes"
    assert what in report.problems[0].what


@pytest.mark.parametrize(
    "stops", [[(0, 4), (6, 5), (4, 1)], [(0, 4), (4, 6), (6, 4), (4, 1)]], ids=["with a gap", "twice through a switch"]
)
def test_routes_through_switches_that_are_no_path(stops):
    topology = zoo("two boxes")
    collective = custom_collective(4, [(1, 0, 0, [0], [1])], False, {"kind": "custom"})
    row = {"chunk": 0, "src": 0, "dst": 1, "route": 0, "start_s": 0.0}
    path = [link_of(topology, 0, 4), link_of(topology, 4, 1)]
    assert failed(from_rows(collective, topology, [row], routes=[path]))[0] == []
    names, report = failed(from_rows(collective, topology, [row], routes=[[link_of(topology, a, b) for a, b in stops]]))
    assert names[0] == "routes"
    assert report.problems[0].what == "its route is not a path through switches"


def test_a_route_through_a_rank_is_refused():
    topology = zoo("line")
    collective = make_collective("sendrecv", 4)
    rows = [{"chunk": 0, "src": 0, "dst": 2, "route": 0, "start_s": 0.0}]
    route = [link_of(topology, 0, 1), link_of(topology, 1, 2)]
    names, report = failed(from_rows(collective, topology, rows, routes=[route]))
    assert names[0] == "routes"
    assert report.problems[0].found == "0->1, 1->2"


@pytest.mark.parametrize("name", ["start_s", "rate", "route", "dst"])
def test_a_batch_travels_together(name):
    schedule = by_hand("star broadcast")
    row = int(np.flatnonzero(schedule.batch == 1)[-1])
    values = {"start_s": schedule.finish_s, "rate": 1e9, "route": 0, "dst": 4}
    names, report = failed(changed(schedule, row, **{name: values[name]}))
    assert names[0] in ("batches", "routes")
    assert any(f"its {name} is not that of the batch" in problem.what for problem in report.problems)


def test_no_rate_above_the_slowest_link():
    schedule = by_hand("direct alltoall")
    assert failed(changed(schedule, 3, rate=50e9))[0] == []
    names, report = failed(changed(schedule, 3, rate=51e9))
    assert "rates" in names
    assert report.problems[0].expected == "at most 50 GB/s"
    assert report.problems[0].found == "51 GB/s"


@pytest.mark.parametrize(
    "name, value",
    [
        ("chunk", 99),
        ("chunk", -1),
        ("src", 5),
        ("dst", -2),
        ("route", 1000),
        ("start_s", -1e-9),
        ("start_s", np.nan),
        ("start_s", np.inf),
        ("rate", -1.0),
        ("op", 2),
        ("src_slot", -2),
        ("dst_slot", -1),
    ],
)
def test_values_out_of_range_are_answered_not_followed(name, value):
    schedule = by_hand("ring allgather")
    columns = writable(schedule)
    columns[name][4] = value
    broken = replace(schedule, **columns)
    names, report = failed(broken)
    assert names == list(SCHEDULE_CHECKS)
    assert report.problems[0].what == f"{name} is out of range"
    assert report.checks[-1].detail == "not checked: values are out of range"


def test_topology_of_another_size():
    schedule = replace(by_hand("ring allgather"), topology=ring(6))
    assert failed(schedule)[1].problems[0].expected == "5 ranks"


# Reductions


def test_a_contribution_must_not_be_added_twice():
    schedule = by_hand("tree reduce")
    row = int(np.flatnonzero(schedule.dst == 0)[0])
    columns = {name: np.append(values, values[row]) for name, values in writable(schedule).items()}
    columns["start_s"][-1] += schedule.finish_s
    names, report = failed(edited(schedule, columns))
    assert names == ["reductions"]
    assert report.problems[0].what == "adds to rank 0 what is already there"
    child = int(schedule.src[row])
    assert report.problems[0].found == f"ranks {child},{2 * child + 1}-{2 * child + 2} twice"


def test_a_lost_contribution_is_named():
    schedule = by_hand("tree reduce")
    row = int(np.flatnonzero(schedule.src == 6)[0])
    names, report = failed(edited(schedule, keep=np.arange(schedule.num_sends) != row))
    assert names == ["result"]
    assert report.problems[0].expected == "contributions of ranks 0-6"
    assert report.problems[0].found == "contributions of ranks 0-5"


def two_ranks(rows, kind="reduce"):
    """A schedule on a pair of ranks of which 0 is the root."""
    topology = zoo("pair")
    named = [{"route": link_of(topology, int(r["src"]), int(r["dst"])), **r} for r in rows]
    return from_rows(make_collective(kind, 2), topology, named)


def test_what_counts_is_what_is_there_at_the_end():
    step = hop_s(zoo("pair"), 0, SIZE)
    good = {"chunk": 0, "src": 1, "dst": 0, "op": REDUCE, "start_s": 0.0}
    back = {"chunk": 0, "src": 0, "dst": 1, "op": COPY, "start_s": step}
    assert failed(two_ranks([good]))[0] == []
    # A copy of less over the whole value ruins it, a copy of the whole value does not.
    spoil = {"chunk": 0, "src": 1, "dst": 0, "op": COPY, "start_s": 2 * step}
    assert failed(two_ranks([good, {**spoil, "src_slot": OWN}]))[0] == ["result"]
    assert failed(two_ranks([good, back, spoil]))[0] == []
    assert failed(two_ranks([good, back], "allreduce"))[0] == ["result"]


def test_what_is_sent_is_what_was_there_at_the_start():
    topology, collective = full(2), make_collective("allreduce", 2)
    each = hop_s(topology, 0, SIZE / 2)

    def swap(start_of_second):
        rows = [
            {"chunk": c, "src": a, "dst": 1 - a, "op": REDUCE, "route": link_of(topology, a, 1 - a)}
            for c in range(2)
            for a in range(2)
        ]
        for row in rows:
            row["start_s"] = row["chunk"] * each + (start_of_second if row["src"] == 1 else 0.0)
        return from_rows(collective, topology, rows)

    assert failed(swap(0.0))[0] == []
    assert failed(swap(0.9 * each))[0] == []
    assert failed(swap(each))[0] == ["reductions"]


def test_a_copy_and_another_write_must_not_come_in_one_instant():
    topology, collective = full(3), make_collective("reduce", 3)
    rows = [
        {"chunk": 0, "src": 1, "dst": 0, "route": link_of(topology, 1, 0), "start_s": 0.0, "op": REDUCE},
        {"chunk": 0, "src": 2, "dst": 0, "route": link_of(topology, 2, 0), "start_s": 0.0, "op": REDUCE},
    ]
    assert failed(from_rows(collective, topology, rows))[0] == []
    rows[0]["op"] = COPY
    names, report = failed(from_rows(collective, topology, rows))
    assert "reductions" in names
    assert report.problems[0].expected == "an order between a copy and another write"


@pytest.mark.parametrize("sources, wrong", [((1, 2), ["reductions"]), ((1, 1), [])])
def test_copies_in_one_instant_must_be_equal(sources, wrong):
    topology = build(3, [(1, 0), (2, 0), (1, 0), (1, 2), (2, 1)])
    collective = make_collective("reduce", 3)
    step = hop_s(topology, 0, SIZE)
    rows = [{"chunk": 0, "src": r, "dst": 0, "route": r - 1, "start_s": 0.0, "op": REDUCE} for r in (1, 2)]
    links = {1: (0, 2), 2: (1,)}
    for which, src in enumerate(sources):
        route = links[src][which if src == 1 and sources == (1, 1) else 0]
        rows.append({"chunk": 0, "src": src, "dst": 0, "route": route, "start_s": step, "dst_slot": 1})
    assert failed(from_rows(collective, topology, rows))[0] == wrong


def test_slots_of_one_rank_are_merged_in_the_order_of_rows_before_messages_leave():
    schedule = by_hand("one shot allreduce")
    local = np.flatnonzero(schedule.src == schedule.dst)
    assert failed(edited(schedule, keep=~np.isin(np.arange(schedule.num_sends), local[:1])))[0] == ["result"]
    # Merged before the messages are in: too little is there.
    assert failed(changed(schedule, local[:1], start_s=0.0))[0] == ["held", "result"]


def test_the_own_contribution_is_never_changed():
    topology, collective = zoo("pair"), make_collective("reduce", 2)
    step = hop_s(topology, 0, SIZE)
    there, back = (link_of(topology, a, 1 - a) for a in range(2))
    rows = [
        {"chunk": 0, "src": 0, "dst": 1, "route": there, "start_s": 0.0, "op": COPY},
        {"chunk": 0, "src": 1, "dst": 0, "route": back, "start_s": step, "op": REDUCE, "src_slot": OWN},
    ]
    assert failed(from_rows(collective, topology, rows))[0] == []
    rows[1]["src_slot"] = 0
    assert failed(from_rows(collective, topology, rows))[0] == ["reductions", "result"]


def test_holders_of_equal_bytes_may_all_send():
    topology = full(3)
    collective = custom_collective(3, [(1, 0, 0, [0, 1], [0, 1, 2])], False, {"kind": "custom"})
    for holder, wrong in ((0, []), (1, []), (2, ["held", "result"])):
        dst = 2 if holder != 2 else 0
        row = {"chunk": 0, "src": holder, "dst": dst, "route": link_of(topology, holder, dst), "start_s": 0.0}
        assert failed(from_rows(collective, topology, [row]))[0] == wrong


def test_reduction_time_delays_the_result():
    schedule = by_hand("tree reduce")
    slow = replace(schedule.topology, reduce_s_per_byte=np.full(7, 1e-12))
    assert failed(replace(schedule, topology=slow))[0] == ["result"]


# Bounds


def test_a_bound_must_hold_and_not_be_beaten():
    from collsyn.bounds import fluid_bound

    schedule = by_hand("ring allgather")
    bound = fluid_bound(schedule.collective, schedule.topology, schedule.size_bytes)
    assert failed(schedule.with_notes([bound]))[0] == []
    inflated = replace(bound, time_s=bound.time_s * 3)
    names, report = failed(schedule.with_notes([inflated]))
    assert names == ["bounds"]
    assert report.problems[0].where.startswith("fluid bound of ")


def test_a_bound_of_no_known_kind_is_refused():
    schedule = by_hand("ring allgather")
    assert failed(schedule.with_notes([Bound(0.0, "hope", "fluid", {"kind": "hope"})]))[0] == ["bounds"]


def test_a_schedule_that_beats_a_proven_bound_is_wrong(monkeypatch):
    import collsyn.bounds

    schedule = by_hand("ring allgather")
    monkeypatch.setattr(collsyn.bounds, "recheck", lambda *given: None)
    bound = Bound(schedule.finish_s, "cut", "fluid", {})
    assert failed(schedule.with_notes([bound]))[0] == []
    names, report = failed(schedule.with_notes([replace(bound, time_s=schedule.finish_s * 1.001)]))
    assert names == ["bounds"]
    assert report.problems[0].what == "is beaten by the schedule itself"


# The report


def test_the_report_raises_its_first_problem_in_one_line():
    schedule = ring_allgather(4, 1)
    verify_schedule(schedule).raise_if_bad()
    broken = edited(schedule, keep=np.arange(schedule.num_sends) != schedule.num_sends - 1)
    with pytest.raises(VerificationError) as error:
        verify_schedule(broken).raise_if_bad("a.json")
    message = str(error.value)
    assert message.startswith("a.json: schedule is wrong (result): chunk ")
    assert message.endswith("is missing; expected the chunk, found nothing")
    assert "\n" not in message


def test_many_problems_are_counted_but_not_all_listed():
    schedule = ring_allgather(6, 2)
    report = verify_schedule(edited(schedule, keep=np.zeros(schedule.num_sends, dtype=bool)))
    result = next(check for check in report.checks if check.name == "result")
    assert result.detail == "60 problems"
    assert len(report.problems) == 10


# Properties


def reversed_in_time(schedule, kind):
    """The same routes backwards, from the finish to the start: an allgather becomes a reduce-scatter."""
    messages = schedule.messages
    start = np.empty(schedule.num_sends)
    start[messages.rows.data] = np.repeat(schedule.finish_s - messages.arrival_s, messages.rows.lengths())
    columns = writable(schedule) | {"src": schedule.dst, "dst": schedule.src, "start_s": np.maximum(start, 0.0)}
    columns["op"] = np.full(schedule.num_sends, REDUCE)
    collective = make_collective(kind, schedule.topology.num_ranks, schedule.collective.chunks_per_rank)
    routes = [route[::-1] for route in schedule.routes.tuples()]
    return Schedule.build(collective, schedule.topology.reversed(), schedule.size_bytes, routes, **columns)


@given(random_schedules(["allgather"], random_topologies(equal=True)))
def test_a_right_allgather_backwards_is_a_right_reducescatter(schedule):
    backwards = reversed_in_time(schedule, "reducescatter")
    assert failed(backwards)[0] == []
    assert backwards.finish_s == pytest.approx(schedule.finish_s - schedule.start_s.min(), rel=1e-12)


@pytest.mark.parametrize("name", ["star broadcast", "ring allgather"])
def test_reversal_keeps_equal_overheads_right(name):
    kinds = {"star broadcast": "reduce", "ring allgather": "reducescatter"}
    assert failed(reversed_in_time(by_hand(name), kinds[name]))[0] == []


@pytest.mark.parametrize("by", [1, 2, 4])
def test_relabelling_by_a_symmetry_keeps_a_schedule_right(by):
    schedule = ring_allgather(5, 2)
    n, topology = 5, schedule.topology
    turn = (np.arange(n) + by) % n
    columns = writable(schedule)
    for end in ("src", "dst"):
        columns[end] = turn[columns[end]]
    columns["chunk"] = turn[columns["chunk"] // 2] * 2 + columns["chunk"] % 2
    routes = [
        [link_of(topology, turn[topology.src[link]], turn[topology.dst[link]]) for link in route]
        for route in schedule.routes.tuples()
    ]
    turned = edited(schedule, columns, routes=routes)
    assert failed(turned)[0] == []
    assert turned.finish_s == schedule.finish_s
    mixed = edited(schedule, columns)
    assert "routes" in failed(mixed)[0]


@pytest.mark.parametrize("name", ZOO)
def test_every_topology_of_the_zoo_can_be_judged(name):
    topology = zoo(name)
    schedule = from_rows(make_collective("allgather", topology.num_ranks), topology, [])
    assert failed(schedule)[0] == (["result"] if topology.num_ranks > 1 else [])
