"""Emulated machines: bookings of links, moments of signals, right bytes, nothing too early, and an end in trouble."""

import json
import os
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.check.interleave import owners
from collsyn.check.simulate_plan import simulate_plan
from collsyn.errors import DeviceError, InputError
from collsyn.model.bind import bind
from collsyn.model.collective import make_collective
from collsyn.model.plan import Op, Plan
from collsyn.runtime import native_loader
from collsyn.runtime.emulation import BOOK_BYTES, Costs, Emulation, Moments
from collsyn.runtime.host import HostContext
from collsyn.runtime.launch import launch
from collsyn.topology.resolve import load_topology
from tests.runtime import plans

needs_compiler = pytest.mark.skipif(native_loader.native_library() is None, reason="needs a C compiler")
BUILDERS = {"put_allgather": plans.put_allgather, "ring_allreduce": plans.ring_allreduce}


def start(name, num_ranks, **arguments):
    """Launch a function of this file on forked ranks."""
    return launch(f"tests.runtime.test_emulation:{name}", arguments, num_ranks, "fork", 60)


@needs_compiler
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=14))
def test_a_booking_takes_the_first_free_time(bookings):
    book = np.zeros(BOOK_BYTES, dtype=np.uint8)
    is_taken = np.zeros(1000, dtype=bool)
    for begin, need in bookings:
        over = native_loader.native_library().collsyn_book(book.ctypes.data, begin, need)
        free = begin + np.flatnonzero(~is_taken[begin:])[:need]
        is_taken[free] = True
        assert over == (free[-1] + 1 if need else begin)


@needs_compiler
def test_a_link_with_many_gaps_forgets_the_oldest():
    book = np.zeros(BOOK_BYTES, dtype=np.uint8)
    library = native_loader.native_library()
    ends = [library.collsyn_book(book.ctypes.data, 10 * turn, 5) for turn in range(1, 41)]
    assert ends == [10 * turn + 5 for turn in range(1, 41)]
    # Each leaves a gap of 5; of 40 the last 15 are known.
    assert library.collsyn_book(book.ctypes.data, 0, 5) == 10 * 26
    assert library.collsyn_book(book.ctypes.data, 0, 5 * 14 + 1) == 10 * 40 + 5 + 1


def test_moments_are_those_of_the_signal_that_a_wait_needs():
    signal, wait = plans.signal, plans.wait
    channels = [
        (0, [signal(1, 0, 1), signal(1, 0, 4), signal(1, 1, 2), {"op": Op.NOP}]),
        (1, [wait(0, 0, 1), wait(0, 0, 2), wait(0, 0, 4), wait(0, 1, 1), wait(0, 1, 3), signal(0, 0, 1)]),
        (0, [wait(1, 0, 1), wait(1, 1, 1)]),
    ]
    plan = Plan.build(make_collective("allgather", 2), channels, [[], []], [2, 2])
    moments = Moments.of(plan)
    assert moments.number.tolist() == [0, 1, 2, -1, 0, 1, 1, 2, -1, 0, 0, -1]
    assert moments.counts.tolist() == [1, 3]
    addresses = moments.addresses([1000, 2000]).tolist()
    assert addresses == [2000, 2016, 2032, 0, 2000, 2016, 2016, 2032, 0, 1000, 1000, 0]


def test_moments_of_a_plan_without_signals():
    plan = Plan.build(make_collective("allgather", 2), [(0, [plans.wait(1, 0, 1)])], [[], []], [1, 1])
    assert Moments.of(plan).number.tolist() == [-1]
    assert Moments.of(plan).counts.tolist() == [0, 0]


@needs_compiler
@pytest.mark.parametrize(("builder", "topology"), [("put_allgather", "switch:4"), ("ring_allreduce", "ring:4")])
def test_bytes_are_right_and_nothing_is_early(builder, topology):
    found = start("run_emulated", 4, builder=builder, topology=topology, elements=40_000, run_s=0.05, calls=3)
    assert all(wrong == 0 for wrong, _, _ in found)
    for call in range(3):
        took_s = max(ends[call] for _, _, ends in found) - min(begins[call] for _, begins, _ in found)
        assert took_s >= 0.05 * 0.999


def run_emulated(bootstrap, builder, topology, elements, run_s, calls):
    """Wrong elements over all calls, which follow each other after barriers, and when each of them began and ended."""
    machine, plan = load_topology(topology), BUILDERS[builder](bootstrap.size)
    factor = run_s / simulate_plan(plan, machine, 4 * elements).finish_s
    wrong, begins, ends = 0, [], []
    with HostContext(bootstrap) as context:
        prepared = context.prepare(bind(plan, elements, 4), "int32", "sum", emulation=Emulation(machine, factor))
        for call in range(calls):
            prepared.input[...] = np.arange(len(prepared.input)) % 1000 + 1000 * bootstrap.rank + call
            context.barrier()
            begins.append(time.monotonic())
            prepared.run(20)
            ends.append(time.monotonic())
            wrong += int((prepared.output != _wanted(builder, bootstrap.size, elements, call)).sum())
    return [wrong, begins, ends]


def _wanted(builder, size, elements, call):
    inputs = elements if builder == "ring_allreduce" else elements // size
    parts = [np.arange(inputs) % 1000 + 1000 * rank + call for rank in range(size)]
    return np.sum(parts, axis=0) if builder == "ring_allreduce" else np.concatenate(parts)


@needs_compiler
def test_plans_of_two_emulations_by_turns_without_a_barrier():
    assert start("alternate", 3, turns=20) == [[]] * 3


def alternate(bootstrap, turns):
    """Two plans on one emulated machine, one on another and one on none, by turns; what is wrong."""
    gather, wrong = bind(plans.put_allgather(bootstrap.size), 8 * bootstrap.size, 4), []
    slow, slower = Emulation(load_topology("full:3"), 100), Emulation(load_topology("switch:3"), 300)
    with HostContext(bootstrap) as context:
        prepared = [context.prepare(gather, "int32", emulation=e) for e in (slow, slow, slower, None)]
        for turn in range(turns):
            for number, plan in enumerate(prepared):
                plan.input[...] = turn * 100 + number * 10 + bootstrap.rank
                plan.run(20)
                want = [turn * 100 + number * 10 + rank for rank in range(bootstrap.size) for _ in range(8)]
                if plan.output.tolist() != want:
                    wrong.append([turn, number])
    return wrong


@needs_compiler
def test_a_lost_rank_ends_the_others():
    with pytest.raises(DeviceError, match=r"rank 1 "):
        start("lose_one", 3)


def lose_one(bootstrap):
    """Rank 1 ends in the middle of a job whose transfers take long."""
    with HostContext(bootstrap) as context:
        emulation = Emulation(load_topology("full:3"), 1e5)
        prepared = context.prepare(bind(plans.put_allgather(3), 3000, 4), emulation=emulation)
        for turn in range(1000):
            if bootstrap.rank == 1 and turn == 2:
                os._exit(0)
            prepared.run(60)


@needs_compiler
@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        ("ranks", InputError, "topology full:4 has 4 ranks; the plan needs 3"),
        ("factor", DeviceError, "ranks 0 and 1 disagree about the plan to prepare: .* slower by 2"),
    ],
)
def test_requests_that_cannot_be_emulated_are_refused(what, kind, message):
    with pytest.raises(kind, match=message):
        start("misuse", 3, what=what)


def misuse(bootstrap, what):
    """An emulation of another size, or of another pace on one rank."""
    with HostContext(bootstrap) as context:
        factor = 2.0 + (what == "factor" and bootstrap.rank == 1)
        emulation = Emulation(load_topology("full:4" if what == "ranks" else "full:3"), factor)
        context.prepare(bind(plans.put_allgather(3), 3, 4), emulation=emulation)


def test_the_numpy_executor_emulates_nothing(monkeypatch):
    monkeypatch.setenv("COLLSYN_NATIVE", "0")
    native_loader.native_library.cache_clear()
    try:
        with pytest.raises(DeviceError, match="emulation needs the compiled executor"):
            start("misuse", 3, what="nothing")
    finally:
        native_loader.native_library.cache_clear()


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_factors_that_are_none(factor):
    with pytest.raises(InputError, match="expected a number above 0"):
        Emulation(load_topology("full:2"), factor)


def test_bytes_take_the_time_that_their_messages_length_has():
    """On a link with rates by length, and on a machine with rates by working set."""
    machine = replace(load_topology("full:2"), size_rates=(((1024.0, 1e9), (65536.0, 4e9)), ()))
    plan = plans.put_allgather(2)
    for size, rate in ((1024, 1e9), (65536, 4e9)):
        bound = bind(plan, 2 * size, 1)
        costs = Costs.of(bound, SimpleNamespace(rows=np.arange(plan.num_instructions)), Emulation(machine, 1e3))
        puts = plan.columns["op"] == Op.PUT
        mine = costs.costs["route"][puts & (owners(plan) == 0)]
        (entry,) = set(costs.route_ptr[mine].tolist())
        assert costs.ns_per_byte[entry] == pytest.approx(1e12 / rate)
    bent = replace(load_topology("full:2"), working_set_rates=(((1024.0, 1e9), (65536.0, 4e9)), ()))
    costs = Costs.of(
        bind(plan, 2 * 65536, 1), SimpleNamespace(rows=np.arange(plan.num_instructions)), Emulation(bent, 1.0)
    )
    assert costs.ns_per_byte[np.flatnonzero(costs.route_link == 0)] == pytest.approx(0.25)


def test_a_run_takes_a_second_or_longer_where_much_is_moved():
    plan, machine = plans.put_allgather(4), load_topology("full:4")
    assert Emulation.of_run(machine, plan, 4000, 1e-6).factor == pytest.approx(1e6)
    # Each of 4 ranks copies or puts a fourth 4 times: 4 x 4 x 1 GB at 400 MB/s.
    assert Emulation.of_run(machine, plan, 4 * 10**9, 1.0).factor == pytest.approx(40)


@needs_compiler
def test_bench_reports_times_of_the_emulated_machine(run_cli):
    args = ("--collective", "allgather", "--method", "direct", "--emulate", "switch:3", "-b", "48K", "-e", "48K")
    result = run_cli("bench", *args, "-n", 1, "--json")
    assert result.code == 0, result.stderr
    found = json.loads(result.stdout)
    (row,) = found["results"]
    assert found["provenance"]["emulated"] == "switch:3"
    assert row["emulation_factor"] == pytest.approx(1e6 / row["simulated_us"])
    assert row["out_of_place"]["nwrong"] == row["in_place"]["nwrong"] == 0
    # The longest of all ranks; noise only adds to it.
    assert row["out_of_place"]["time"] >= 0.95 * row["simulated_us"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--against", "mpi"), "--against and --emulate exclude each other"),
        (("--topology", "full:4"), "topology switch:3 has 3 ranks; the plan needs 4"),
    ],
)
def test_bench_refuses_what_cannot_be_emulated(run_cli, args, message):
    result = run_cli("bench", "--collective", "allgather", "--method", "direct", "--emulate", "switch:3", *args)
    assert result.code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "kind", "method", "size_bytes"),
    [
        ("dgx1", "allgather", "greedy", 1 << 20),
        ("mesh:4x4", "allgather", "greedy", 1 << 16),
        ("ndv2:2", "allreduce", "ring", 1 << 16),
        ("ndv2:2", "allgather", "direct", 1 << 20),
    ],
)
def test_measured_times_are_those_of_the_simulation(run_cli, topology, kind, method, size_bytes):
    args = ("--collective", kind, "--method", method, "--emulate", topology, "-b", size_bytes, "-e", size_bytes)
    result = run_cli("bench", *args, "--json", timeout_s=300)
    assert result.code == 0, result.stderr
    (row,) = json.loads(result.stdout)["results"]
    best = min(row["out_of_place"]["time"], row["in_place"]["time"])
    assert best == pytest.approx(row["simulated_us"], rel=0.15)
