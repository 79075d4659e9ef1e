"""The kernel's own text on threads of the host: right results, and planted faults that must show."""

import re

import numpy as np
import pytest

from collsyn.check.reference import make_inputs, reference
from collsyn.cuda.emulate import Emulated, emulate
from collsyn.cuda.sources import device_sources, host_program
from collsyn.errors import DeviceError
from collsyn.lower.lower import lower
from collsyn.model.bind import bind, layout
from collsyn.model.collective import make_collective
from collsyn.model.dtypes import DTYPES, dtype_of, first_difference
from collsyn.model.plan import Op, Plan
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from tests.support.hand_plans import IN, OUT, SCRATCH, copy, put, signal, wait
from tests.support.plans import without

KINDS = ["allgather", "reducescatter", "allreduce", "broadcast", "reduce", "gather", "scatter", "alltoall"]
REDUCING = {"reducescatter", "allreduce", "reduce"}
BY = {"full:8": "direct", "dgx1": "paths", "ring:4": "paths", "full:3": "direct"}


def plan_of(kind: str, topology: str, ahead: bool | None = None) -> Plan:
    machine = load_topology(topology)
    by = method(BY[topology])
    if by.accepts(Problem(kind, machine, 1 << 12)) is not None:
        by = method("paths")
    return lower(by.synthesize(Problem(kind, machine, 1 << 12), Options()), ahead=ahead)


def wrong_ranks(plan: Plan, dtype: str, op: str, elements: int, seed: int = 0, **how) -> tuple[Emulated, list[int]]:
    """The run, and ranks whose wanted outputs differ from the oracle's."""
    inputs = make_inputs(plan.collective, dtype, op, elements, seed=seed)
    done = emulate(bind(plan, elements, dtype_of(dtype).num_bytes), dtype, op, inputs, **how)
    want = reference(plan.collective, dtype, op, inputs, elements)
    places = layout(plan.collective, elements)
    wrong = []
    for rank, (chunks, first, _) in enumerate(places.output):
        for chunk, begin in zip(chunks.tolist(), first.tolist(), strict=True):
            part = slice(begin, begin + int(places.lengths[chunk]))
            if first_difference(dtype, done.outputs[rank][part], want[rank][part]) is not None:
                wrong.append(rank)
                break
    return done, wrong


def assert_right(plan: Plan, dtype: str, op: str, elements: int, **how) -> None:
    done, wrong = wrong_ranks(plan, dtype, op, elements, **how)
    assert done.failure is None
    assert wrong == [], (plan.collective.kind, dtype, op)


@pytest.mark.parametrize("topology", ["full:8", "dgx1", "ring:4"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_moves_every_type(kind: str, topology: str) -> None:
    plan = plan_of(kind, topology)
    for number, dtype in enumerate(DTYPES):
        op = ("sum", "prod", "min", "max", "avg")[number % 5] if kind in REDUCING else "sum"
        assert_right(plan, dtype, op, 203, seed=number)


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["full:8", "dgx1", "ring:4"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_reduction_of_every_type_by_one_block_and_by_several(kind: str, topology: str) -> None:
    plan = plan_of(kind, topology)
    for dtype in DTYPES:
        for op in ("sum", "prod", "min", "max", "avg") if kind in REDUCING else ("sum",):
            for blocks, apart in ((1, True), (2, False)):
                assert_right(plan, dtype, op, 1003, blocks_per_channel=blocks, apart=apart, calls=2)


@pytest.mark.parametrize(("blocks", "apart"), [(1, True), (3, False), (2, True)])
def test_blocks_share_a_channel_and_ranks_have_launches_of_their_own(blocks: int, apart: bool) -> None:
    assert_right(
        plan_of("allreduce", "full:3"), "float32", "avg", 1001, blocks_per_channel=blocks, apart=apart, calls=3
    )


@pytest.mark.parametrize("elements", [1, 3, 64, 65])
def test_few_elements_and_odd_places(elements: int) -> None:
    assert_right(plan_of("allreduce", "full:3"), "uint8", "sum", elements)
    assert_right(plan_of("alltoall", "full:3"), "float16", "sum", 3 * elements)


def test_a_wait_without_its_signal_ends_and_is_named() -> None:
    plan = plan_of("allgather", "full:3")
    broken = without(plan, int(np.flatnonzero(plan.columns["op"] == Op.SIGNAL)[-1]))
    done, _ = wrong_ranks(broken, "int32", "sum", 30, limit_s=0.3)
    assert re.match(
        r"rank \d, channel \d, instruction \d+: wait.*not within the time limit; the flag was \d", done.failure
    )


def shifted_plan() -> Plan:
    """An allgather of two ranks by way of scratch, from whose middle a copy begins: its threads share the bytes out in
    another way than those that wrote them, so that they must meet in between."""
    channels = [
        (
            rank,
            [
                signal(1 - rank, 1),
                copy((SCRATCH, 0), (IN, 0), 2),
                copy((OUT, 2 * rank + 1), (SCRATCH, 1)),
                copy((OUT, 2 * rank), (SCRATCH, 0)),
                wait(1 - rank, 1),
                put(1 - rank, (OUT, 2 * rank), (SCRATCH, 0), 2),
                signal(1 - rank, 2),
                wait(1 - rank, 2),
            ],
        )
        for rank in range(2)
    ]
    scratch = [[(2 * rank, 0, 1), (2 * rank + 1, 0, 1)] for rank in range(2)]
    return Plan.build(make_collective("allgather", 2, 2), channels, scratch, [1, 1])


# What is taken out of the kernel, and what must then be seen: by the sanitizer, or in the data.
FAULTS = {
    "signal without the meeting before it": (
        "executor.cuh",
        "    meet(r.t);\n    if (r.t.index != 0) return;\n    u32 blocks",
    ),
    "release that is relaxed": ("primitives.cuh", "store_release(flag, value)"),
    "acquire that is relaxed": ("primitives.cuh", "return load_acquire(flag) < value"),
    "wait that is left out": ("executor.cuh", "if (!step_wait(r, i.row, i.dst_slot, i.dst, i.value)) return;"),
    "barrier that is left out": ("executor.cuh", "if (i.barrier && !step_barrier(r, i.row)) return;"),
}
MENDED = {
    "signal without the meeting before it": "    if (r.t.index != 0) return;\n    u32 blocks",
    "release that is relaxed": "store_relaxed(flag, value)",
    "acquire that is relaxed": "return load_relaxed(flag) < value",
    "wait that is left out": "{}",
    "barrier that is left out": "",
}


def seen(sources: dict[str, str], plans: list[Plan]) -> bool:
    """Whether a kernel is found out within some runs under the sanitizer."""
    program = host_program(sources, sanitize=True)
    for plan in plans:
        for seed in range(3):
            try:
                done, wrong = wrong_ranks(plan, "float32", "sum", 501, seed=seed, calls=2, program=program)
            except DeviceError as report:
                assert "data race" in str(report)
                return True
            if wrong or done.failure:
                return True
    return False


@pytest.fixture(scope="module")
def watched() -> list[Plan]:
    """Plans in which every kind of order matters: of ranks, and of instructions of one channel."""
    kept = [plan_of("allreduce", topology, ahead) for topology in ("full:3", "ring:4") for ahead in (False, True)]
    return [*kept, shifted_plan()]


def test_the_sanitizer_has_nothing_to_say_of_the_kernel(watched: list[Plan]) -> None:
    assert not seen({}, watched)
    program = host_program(sanitize=True)
    assert_right(watched[0], "float32", "avg", 501, blocks_per_channel=2, calls=2, program=program)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault: str, watched: list[Plan]) -> None:
    file, text = FAULTS[fault]
    source = device_sources()[file]
    assert text in source
    assert seen({file: source.replace(text, MENDED[fault])}, watched)
