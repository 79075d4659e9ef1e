"""Plans as columns."""

import numpy as np
import pytest

from collsyn.model.collective import make_collective
from collsyn.model.plan import COLUMNS, Buffer, Op, Plan


def small() -> Plan:
    collective = make_collective("gather", 3)
    channels = [
        (
            1,
            [
                {"op": Op.WAIT, "peer": 0, "flag": 1, "value": 2},
                {"op": Op.PUT, "peer": 0, "dst_buffer": 1, "length": 4},
            ],
        ),
        (0, [{"op": Op.SIGNAL, "peer": 1, "flag": 1, "value": 2}]),
        (1, []),
    ]
    return Plan.build(collective, channels, [[], [(0, 0, 4), (2, 1, 2)], []], [0, 2, 0], units_per_chunk_unit=4)


def test_columns_have_their_types_and_defaults():
    plan = small()
    assert {key: values.dtype for key, values in plan.columns.items()} == {k: np.dtype(d) for k, d in COLUMNS.items()}
    assert plan.columns["peer"].tolist() == [0, 0, 1]
    assert plan.columns["route"].tolist() == [-1] * 3
    with pytest.raises(ValueError, match="read-only"):
        plan.columns["op"][0] = 0


def test_counts():
    plan = small()
    assert (plan.num_ranks, plan.num_channels, plan.num_instructions) == (3, 3, 3)
    assert plan.total_units == 12
    assert plan.channels_of(1).tolist() == [0, 2]
    assert plan.channels_of(2).tolist() == []
    assert plan.max_channels() == 2


def test_buffer_lengths_in_units():
    assert small().buffer_units().tolist() == [[4, 12, 0], [4, 0, 6], [4, 0, 0]]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"op": Op.NOP}, "nop"),
        ({"op": Op.SIGNAL, "peer": 2, "flag": 1, "value": 3}, "signal rank 2 flag 1 = 3"),
        ({"op": Op.WAIT, "flag": 1, "value": 3}, "wait flag 1 >= 3"),
        ({"op": Op.WAIT, "peer": 0, "flag": 1, "value": 3}, "wait flag 1 >= 3 (of rank 0)"),
        ({"op": Op.COPY, "dst_buffer": Buffer.OUTPUT, "dst_offset": 2, "length": 4}, "copy output[2+4] = input[0+4]"),
        ({"op": Op.PUT, "peer": 1, "dst_buffer": 2, "length": 1}, "put 1:scratch[0+1] = input[0+1]"),
        ({"op": Op.GET, "peer": 1, "dst_buffer": 2, "length": 1}, "get scratch[0+1] = 1:input[0+1]"),
        (
            {"op": Op.REDUCE, "dst_buffer": 1, "src_buffer": 2, "src_offset": 3, "length": 1},
            "reduce output[0+1] = scratch[3+1] (+) input[0+1]",
        ),
        (
            {"op": Op.GET_REDUCE, "peer": 2, "dst_buffer": 1, "src2_buffer": 1, "length": 1},
            "get_reduce output[0+1] = 2:input[0+1] (+) output[0+1]",
        ),
        ({"op": Op.COPY, "dst_buffer": 7, "length": 1}, "copy buffer 7[0+1] = input[0+1]"),
        ({"op": 99}, "unknown instruction 99"),
    ],
)
def test_instructions_in_words(row, text):
    plan = Plan.build(make_collective("gather", 3), [(0, [row])], [[], [], []], [0, 0, 0])
    assert plan.describe(0) == text
