"""The cooperative executor, its interleavings and the race detector, on plans written by hand."""

from fractions import Fraction

import numpy as np
import pytest

from collsyn.check.execute import check_ranges, execute, reference, run
from collsyn.check.interleave import interleaving
from collsyn.check.races import races, races_of
from collsyn.check.reference import make_inputs
from collsyn.errors import InputError, VerificationError
from collsyn.model.bind import bind
from collsyn.model.collective import custom_collective, make_collective
from collsyn.model.dtypes import DTYPES, OPS, dtype_of, to_numbers
from collsyn.model.plan import Buffer, Op, Plan

IN, OUT, SCRATCH = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH


def move(op, dst, src, length, peer=-1, src2=(IN, 0)):
    return {
        "op": op,
        "peer": peer,
        "dst_buffer": dst[0],
        "dst_offset": dst[1],
        "src_buffer": src[0],
        "src_offset": src[1],
        "src2_buffer": src2[0],
        "src2_offset": src2[1],
        "length": length,
    }


def signal(peer, flag, value=1):
    return {"op": Op.SIGNAL, "peer": peer, "flag": flag, "value": value}


def wait(peer, flag, value=1):
    return {"op": Op.WAIT, "peer": peer, "flag": flag, "value": value}


def swap_channel(rank):
    """An allgather of two ranks: say that one is there, put, say that it is done."""
    peer = 1 - rank
    return [
        signal(peer, 0),
        move(Op.COPY, (OUT, rank), (IN, 0), 1),
        wait(peer, 0),
        move(Op.PUT, (OUT, rank), (IN, 0), 1, peer),
        signal(peer, 0, 2),
        wait(peer, 0, 2),
    ]


def plan_of(collective, channels, num_flags=1, scratch=None):
    n = collective.num_ranks
    return Plan.build(collective, channels, scratch or [[] for _ in range(n)], [num_flags] * n)


@pytest.fixture
def swap():
    return plan_of(make_collective("allgather", 2), [(0, swap_channel(0)), (1, swap_channel(1))])


def get_allreduce():
    """Two ranks sum by reading each other: the sum waits in scratch until both have read."""

    def channel(rank):
        peer = 1 - rank
        return [
            signal(peer, 0),
            wait(peer, 0),
            move(Op.GET_REDUCE, (SCRATCH, 0), (IN, 0), 1, peer, (IN, 0)),
            signal(peer, 0, 2),
            wait(peer, 0, 2),
            move(Op.COPY, (OUT, 0), (SCRATCH, 0), 1),
        ]

    collective = make_collective("broadcast", 2)
    collective = custom_collective(
        2, [(Fraction(1), Fraction(0), Fraction(0), (0, 1), (0, 1))], True, collective.spec | {"kind": "custom"}
    )
    return plan_of(collective, [(0, channel(0)), (1, channel(1))], scratch=[[(0, 0, 1)]] * 2)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("seed", [None, *range(6)])
@pytest.mark.parametrize("elements", [1, 2, 7, 100])
def test_a_plan_by_hand_gathers(swap, elements, seed, in_place):
    inputs = make_inputs(swap.collective, "int32", "sum", elements)
    done = run(bind(swap, elements, 4, in_place), "int32", "sum", inputs, seed)
    for output in done.outputs:
        assert output.tolist() == [*inputs[0], *inputs[1]]
    assert done.num_executed == 12


@pytest.mark.parametrize("name", list(DTYPES))
@pytest.mark.parametrize("op", OPS)
def test_a_plan_by_hand_reduces(name, op):
    plan = get_allreduce()
    inputs = make_inputs(plan.collective, name, op, 33, seed=3)
    a, b = (to_numbers(name, x).astype(object if "int" in name else np.float64) for x in inputs)
    both = {"sum": a + b, "prod": a * b, "min": np.minimum(a, b), "max": np.maximum(a, b)}
    storage = dtype_of(name).storage
    if op != "avg":
        want = both[op]
    elif "int" in name:
        bits, low = 8 * storage.itemsize, np.iinfo(storage).min
        wrapped = [(int(x) - low) % 2**bits + low for x in both["sum"]]
        want = np.array([abs(x) // 2 * (1 if x >= 0 else -1) for x in wrapped], dtype=object)
    else:
        want = both["sum"] / 2
    if "int" in name:
        want = np.array([int(x) % 2 ** (8 * storage.itemsize) for x in want], dtype=f"u{storage.itemsize}").view(
            storage
        )
    before = [x.tobytes() for x in inputs]
    for output in execute(bind(plan, 33, storage.itemsize), name, op, inputs):
        assert (to_numbers(name, output) == want).all()
    assert [x.tobytes() for x in inputs] == before


def test_without_a_seed_the_order_is_fixed_and_seeds_give_others(swap):
    assert interleaving(swap) == interleaving(swap)
    orders = {tuple(interleaving(swap, seed)) for seed in range(40)}
    assert len(orders) > 10
    for order in orders:
        assert sorted(order) == list(range(12))
        for begin in (0, 6):
            assert [i for i in order if begin <= i < begin + 6] == list(range(begin, begin + 6))


def test_a_deadlock_names_who_waits_for_whom():
    collective = make_collective("allgather", 2)
    channels = [(0, [wait(1, 0), signal(1, 0)]), (1, [wait(0, 0), signal(0, 0)])]
    with pytest.raises(VerificationError) as error:
        interleaving(plan_of(collective, channels))
    lines = [
        f"rank {a} channel 0 instruction 0 (wait flag 0 >= 1 (of rank {b})): the flag is 0 and waits for "
        f"rank {b} channel 0 instruction 1 (signal rank {a} flag 0 = 1), which comes behind "
        f"rank {b} channel 0 instruction 0 (wait flag 0 >= 1 (of rank {a}))"
        for a, b in ((0, 1), (1, 0))
    ]
    assert str(error.value) == f"deadlock, 2 channels wait: {lines[0]}; {lines[1]}"


def test_a_wait_that_nobody_answers_is_a_deadlock():
    plan = plan_of(make_collective("allgather", 2), [(0, [wait(1, 0, 2)]), (1, [signal(0, 0)])])
    with pytest.raises(VerificationError, match="the flag is 1 and nobody raises it that far"):
        interleaving(plan)


@pytest.mark.parametrize(
    ("channel", "message"),
    [
        ([signal(2, 0)], "there is no such rank"),
        ([signal(1, 1)], "there is no such flag"),
        ([signal(1, 0, 2), signal(1, 0, 1)], "the flag falls from 2"),
        ([move(Op.PUT, (OUT, 1), (IN, 0), 2, 1)], "outside its buffer"),
        ([move(Op.COPY, (OUT, 2), (IN, 0), 1)], "dst is outside its buffer"),
        ([move(Op.GET, (OUT, 0), (SCRATCH, 0), 1, 1)], "src is outside its buffer"),
        ([move(Op.REDUCE, (OUT, 0), (IN, 0), 1, src2=(OUT, -1))], "src2 is outside its buffer"),
        ([move(Op.COPY, (3, 0), (IN, 0), 1)], "dst is no buffer"),
        ([{"op": 99}], "is no instruction"),
    ],
)
def test_wrong_instructions_are_named(channel, message):
    collective = make_collective("allgather", 2)
    plan = plan_of(collective, [(0, channel)])
    with pytest.raises(VerificationError, match=message) as error:
        check_ranges(bind(plan, 2, 4))
        interleaving(plan)
    assert "rank 0 channel 0 instruction" in str(error.value)


def test_ranges_that_rounding_makes_unequal_are_refused():
    plan = plan_of(make_collective("allgather", 2), [(0, [move(Op.COPY, (OUT, 1), (IN, 0), 1)])])
    bind(plan, 4, 4)
    with pytest.raises(InputError, match=r"instruction 0 \(copy .*\) has ranges of unequal length at 3 elements"):
        bind(plan, 3, 4)


def test_inputs_must_fit(swap):
    inputs = make_inputs(swap.collective, "float32", "sum", 8)
    bound = bind(swap, 8, 4)
    with pytest.raises(InputError, match="expected one for each of 2 ranks"):
        execute(bound, "float32", "sum", inputs[:1])
    with pytest.raises(InputError, match=r"that of rank 1 is float32\[3\]; expected float32\[4\]"):
        execute(bound, "float32", "sum", [inputs[0], inputs[1][:3]])
    with pytest.raises(InputError, match="dtype float64 has 8 bytes"):
        execute(bound, "float64", "sum", inputs)


@pytest.mark.parametrize("in_place", [False, True])
def test_right_plans_have_no_races(swap, in_place):
    assert races(swap, in_place) == []
    assert races(get_allreduce()) == []


def test_every_wait_is_needed(swap):
    for plan in (swap, get_allreduce()):
        for i in np.flatnonzero(plan.columns["op"] == Op.WAIT):
            assert races_of(bind(without(plan, int(i)), plan.total_units, 1)), plan.describe(int(i))


def without(plan, instruction):
    """The plan with one instruction left out."""
    channel = np.searchsorted(plan.channel_ptr, instruction, side="right") - 1
    ptr = plan.channel_ptr - (np.arange(len(plan.channel_ptr)) > channel)
    columns = {key: np.delete(values, instruction) for key, values in plan.columns.items()}
    return Plan(**{**vars(plan), "channel_ptr": ptr, "columns": columns})


def test_races_are_put_in_words(swap):
    put = "(put 1:output[0+1] = input[0+1]) touches rank 1, which may"
    assert races(without(swap, 2)) == [f"rank 0 channel 0 instruction 2 {put} not have begun the call"]
    assert races(without(swap, 11)) == [f"rank 0 channel 0 instruction 3 {put} have ended the call"]
    channels = [(0, [move(Op.COPY, (OUT, 0), (IN, 0), 1)]), (0, [move(Op.COPY, (OUT, 1), (OUT, 0), 1)])]
    found = races(plan_of(make_collective("allgather", 2), channels))
    assert found == [
        "rank 0 channel 1 instruction 0 (copy output[1+1] = output[0+1]) races with rank 0 channel 0 instruction 0 "
        "(copy output[0+1] = input[0+1])"
    ]


def test_a_flag_of_several_signallers_orders_nothing():
    channels = [
        (0, [move(Op.COPY, (OUT, 0), (IN, 0), 1), signal(0, 0)]),
        (0, [signal(0, 0)]),
        (0, [wait(0, 0), move(Op.COPY, (OUT, 1), (OUT, 0), 1)]),
    ]
    collective = make_collective("allgather", 2)
    assert len(races(plan_of(collective, channels))) == 1
    assert races(plan_of(collective, [channels[0], channels[2]])) == []


def test_reference_of_named_collectives():
    def arrays(*rows):
        return [np.array(row, dtype=np.int32) for row in rows]

    def outputs(kind, inputs, op="sum", **options):
        collective = make_collective(kind, len(inputs), **options)
        return [output.tolist() for output in reference(collective, "int32", op, arrays(*inputs))]

    two = ([1, 2, 3], [10, -20, 30])
    assert outputs("allgather", ([1, 2], [3])) == [[1, 2, 3]] * 2
    assert outputs("gather", ([1, 2], [3]), root=1) == [[], [1, 2, 3]]
    assert outputs("allreduce", two) == [[11, -18, 33]] * 2
    assert outputs("allreduce", two, "avg") == [[5, -9, 16]] * 2
    assert outputs("allreduce", two, "min") == [[1, -20, 3]] * 2
    assert outputs("reduce", two, root=1) == [[], [11, -18, 33]]
    assert outputs("reducescatter", two) == [[11], [-18, 33]]
    assert outputs("scatter", ([1, 2, 3], []), root=0) == [[1], [2, 3]]
    assert outputs("broadcast", ([4, 5], []), root=0) == [[4, 5]] * 2
    assert outputs("alltoall", ([1, 2, 3], [4, 5, 6])) == [[1, 4], [2, 3, 5, 6]]
    assert outputs("alltoallv", ([1, 2, 3], [4]), counts=[[1, 2], [0, 1]]) == [[1], [2, 3, 4]]
    assert outputs("sendrecv", ([1], [2], [3])) == [[3], [1], [2]]
    assert outputs("allgather", ([1], [2], [3], [4]), groups=[[0, 2], [3, 1]]) == [[1, 3], [4, 2], [1, 3], [4, 2]]


def test_reference_of_a_custom_collective():
    half = Fraction(1, 2)
    rows = [(half, Fraction(0), half, (0, 1), (2,)), (half, half, Fraction(0), (1,), (0, 2))]
    inputs = [np.array([1, 2]), np.array([10, 20, 30, 40]), np.array([], dtype=np.int64)]
    total = reference(custom_collective(3, rows, True, {}), "int64", "sum", inputs, 4)
    assert [output.tolist() for output in total] == [[30, 40], [], [30, 40, 11, 22]]


def test_inputs_of_shared_chunks_agree():
    rows = [(Fraction(1), Fraction(0), Fraction(0), (0, 1), (2,))]
    inputs = make_inputs(custom_collective(3, rows, False, {}), "float32", "sum", 50)
    assert inputs[0].tolist() == inputs[1].tolist()
    assert len(set(inputs[0].tolist())) > 1
    assert len(inputs[2]) == 0
