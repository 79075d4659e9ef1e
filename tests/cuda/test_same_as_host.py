"""The kernel and the host's executor, which is another text, leave the same bits, whatever the data."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from collsyn.cuda.emulate import emulate
from collsyn.lower.lower import lower
from collsyn.model.bind import BoundPlan, bind, divisions
from collsyn.model.dtypes import DTYPES, OPS, dtype_of, first_difference
from collsyn.model.plan import Buffer
from collsyn.runtime.arena import LINE, Segment
from collsyn.runtime.executors import NativeExecutor
from collsyn.runtime.native_loader import DONE, native_library
from collsyn.runtime.program import make_program, rank_layout
from collsyn.synth.problem import Options
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from tests.support.plans import modes
from tests.support.problems import all_problems, grouped_problems

NAMES = ("direct", "ring", "recursive", "binomial", "paths")

pytestmark = pytest.mark.skipif(native_library() is None, reason="there is no C compiler")


class Memory(Segment):
    """Memory of this process at a whole page, as a rank's segment or its control block."""

    def __init__(self, size: int) -> None:
        self._keep = np.zeros(size + 4096, dtype=np.uint8)
        skip = -self._keep.ctypes.data % 4096
        self.bytes = self._keep[skip : skip + size]
        self.address = self.bytes.ctypes.data


@dataclass
class FakeControl:
    """What an executor asks of a control block."""

    address: int


def on_host(bound: BoundPlan, dtype: str, op: str, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Outputs of all ranks, each run by a thread with the compiled executor."""
    ranks, storage = range(bound.plan.num_ranks), dtype_of(dtype).storage
    layouts = [rank_layout(bound, rank) for rank in ranks]
    segments, controls = [Memory(part.size) for part in layouts], [Memory(4096) for _ in ranks]

    def buffer(rank: int, which: Buffer) -> np.ndarray:
        begin = layouts[rank].offsets[which]
        return segments[rank].bytes[begin : begin + int(bound.buffer_bytes[rank, which])]

    for rank in ranks:
        segments[rank].bytes[int(bound.plan.num_flags[rank]) * LINE :] = 0xA5
        buffer(rank, Buffer.OUTPUT)[:] = 0
        buffer(rank, Buffer.INPUT)[:] = inputs[rank].view(np.uint8)

    def run(rank: int) -> int:
        program = make_program(bound, rank, segments, [part.address for part in controls], storage.itemsize)
        control = FakeControl(controls[rank].address)
        executor = NativeExecutor(native_library(), program, control, dtype, op, 64)
        executor.next[:] = np.concatenate([[0], program.end])[:-1]
        code = executor.run(0, 20.0)
        for start, length, divisor in divisions(bound, rank) if op == "avg" else []:
            at = segments[rank].address + layouts[rank].offsets[Buffer.OUTPUT] + start
            executor.divide(at, length // storage.itemsize, divisor)
        return code

    with ThreadPoolExecutor(bound.plan.num_ranks) as pool:
        assert list(pool.map(run, ranks)) == [DONE for _ in ranks]
    return [buffer(rank, Buffer.OUTPUT).copy().view(storage) for rank in ranks]


def any_bits(bound: BoundPlan, dtype: str, seed: int) -> list[np.ndarray]:
    """Inputs of random bits: not-a-numbers, infinities and subnormals among them."""
    rng, storage = np.random.default_rng(seed), dtype_of(dtype).storage
    sizes = bound.buffer_bytes[:, Buffer.INPUT].tolist()
    return [rng.integers(0, 256, size=size, dtype=np.uint8).view(storage) for size in sizes]


def compare(topology: str, elements: int, every: int, **options) -> int:
    machine, runs = load_topology(topology), 0
    for number, problem in enumerate([*all_problems(machine, 40_000), *grouped_problems(machine, 40_000)]):
        names = [name for name in NAMES if method(name).accepts(problem) is None]
        plan = lower(method(names[number % len(names)]).synthesize(problem, Options()), **options)
        # Chunks that overlap in a buffer, as custom collectives may have them, need sizes that they divide.
        size = elements * plan.collective.total_units if plan.collective.kind == "custom" else elements
        for turn, dtype in enumerate(DTYPES):
            op = OPS[(number + turn) % len(OPS)] if plan.collective.reduces else "sum"
            if (number + turn) % every:
                continue
            for in_place in modes(plan):
                bound = bind(plan, size, dtype_of(dtype).num_bytes, in_place)
                inputs = any_bits(bound, dtype, 100 * number + turn)
                done = emulate(bound, dtype, op, inputs, threads=3)
                assert done.failure is None
                for rank, want in enumerate(on_host(bound, dtype, op, inputs)):
                    wrong = first_difference(dtype, done.outputs[rank], want)
                    assert wrong is None, (plan.name, dtype, op, in_place, rank, wrong)
                runs += 1
    return runs


def test_plans_of_all_collectives_leave_the_same_bits() -> None:
    assert compare("ring:3", 101, 7) > 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "options"),
    [
        ("full:4", {}),
        ("ring:4", {"reduce_by": "put", "max_channels": 1}),
        ("switch:5", {"instances": 2, "piece_bytes": 1000}),
    ],
)
def test_all_plans_with_all_types_leave_the_same_bits(topology: str, options: dict) -> None:
    assert compare(topology, 1001, 1, **options) > 50
