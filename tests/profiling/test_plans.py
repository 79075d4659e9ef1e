"""The plans that are timed move the bytes that they claim to move, in every order of their channels."""

import numpy as np
import pytest

from collsyn.check.execute import execute
from collsyn.model.bind import bind
from collsyn.model.plan import Op
from collsyn.profiling.plans import all_at_once, flag_ping_pong, local_reduce, ping_pong, stream

SEEDS = [None, 0, 1, 2]


def inputs_of(bound, seed=0):
    """Random bytes for the input of every rank."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, size, dtype=np.uint8) for size in bound.buffer_bytes[:, 0].tolist()]


def count(plan, op):
    """Instructions of one kind."""
    return int((plan.columns["op"] == op).sum())


@pytest.mark.parametrize("make", [ping_pong, stream])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_pairs_message_arrives(make, seed):
    bound = bind(make(4, [(2, 1)], 5), 37, 1)
    inputs = inputs_of(bound)
    outputs = execute(bound, "uint8", "sum", inputs, seed)
    assert len(inputs[2]) == 37
    assert (outputs[1] == inputs[2]).all()
    assert [len(output) for output in outputs] == [0, 37, 0, 0]


@pytest.mark.parametrize("seed", SEEDS)
def test_flags_alone_move_nothing_and_end(seed):
    plan = flag_ping_pong(3, [(0, 2)], 4)
    bound = bind(plan, 8, 1)
    execute(bound, "uint8", "sum", inputs_of(bound), seed)
    assert (count(plan, Op.PUT), count(plan, Op.SIGNAL), count(plan, Op.WAIT)) == (0, 8, 8)


def test_a_stream_does_not_wait_between_its_messages():
    plan = stream(2, [(0, 1)], 6)
    first = slice(int(plan.channel_ptr[0]), int(plan.channel_ptr[1]))
    sender = plan.columns["op"][first].tolist()
    assert sender == [Op.PUT, Op.SIGNAL] * 6 + [Op.WAIT]


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
@pytest.mark.parametrize("seed", SEEDS)
def test_all_at_once_brings_every_message_to_its_place(num_ranks, seed):
    bound = bind(all_at_once(num_ranks, 3), 11 * num_ranks, 1)
    inputs = inputs_of(bound)
    outputs = execute(bound, "uint8", "sum", inputs, seed)
    for rank, output in enumerate(outputs):
        for src in range(num_ranks):
            if src != rank:
                assert (output[11 * src : 11 * (src + 1)] == inputs[src]).all()
    assert count(bound.plan, Op.PUT) == 3 * num_ranks * (num_ranks - 1)


def test_local_reduce_reads_both_buffers():
    bound = bind(local_reduce(2), 9, 4)
    inputs = [np.arange(9, dtype=np.float32) + rank for rank in range(2)]
    assert count(bound.plan, Op.REDUCE) == 2
    outputs = execute(bound, "float32", "sum", inputs)
    assert [len(output) for output in outputs] == [9, 9]
