"""From a bound plan to records of addresses: memory layout, places, and copies past the caches."""

import numpy as np
import pytest

from collsyn.model.bind import bind
from collsyn.model.collective import make_collective
from collsyn.model.plan import Buffer, Op, Plan
from collsyn.runtime import streams
from collsyn.runtime.arena import LINE, Segment
from collsyn.runtime.program import MOVE, RECORD, REDUCE, SIGNAL, WAIT, make_program, peers_of, rank_layout
from collsyn.runtime.streams import past_the_caches
from tests.runtime.plans import IN, OUT, SCRATCH, move, put_allgather, reduce, ring_allreduce, signal, wait


class FakeSegment(Segment):
    """An address without memory."""

    def __init__(self, address):
        self.address = address


def test_buffers_of_a_rank_do_not_overlap_and_have_room():
    bound = bind(ring_allreduce(3), 1000, 8)
    layout = rank_layout(bound, 0)
    spans = sorted((layout.offsets[buffer], int(bound.buffer_bytes[0, buffer])) for buffer in Buffer)
    ends = [start + size for start, size in spans]
    assert spans[0][0] >= LINE * bound.plan.num_flags[0]
    assert all(end <= start for end, (start, _) in zip(ends, spans[1:], strict=False))
    assert ends[-1] <= layout.size


@pytest.mark.parametrize("rank", range(4))
def test_in_place_the_input_lies_in_the_output(rank):
    bound = bind(put_allgather(4), 4003, 2, in_place=True)
    layout = rank_layout(bound, rank)
    before = sum(int(bound.buffer_bytes[r, Buffer.INPUT]) for r in range(rank))
    assert layout.offsets[Buffer.INPUT] == layout.offsets[Buffer.OUTPUT] + before
    assert layout.offsets[Buffer.OUTPUT] + 4003 * 2 <= layout.size


def test_records_hold_addresses_of_the_right_ranks():
    collective = make_collective("allreduce", 2)
    body = [
        move(Op.PUT, OUT, 1, IN, 0, 1, peer=1),
        reduce(Op.GET_REDUCE, SCRATCH, 0, IN, 1, OUT, 0, 1, peer=1),
        signal(1, 2, 9),
        wait(1, 1, 8),
    ]
    plan = Plan.build(collective, [(0, []), (0, body)], [[(0, 0, 1)], []], [2, 3])
    bound = bind(plan, 20, 4)
    bases, bells = [1 << 20, 1 << 30], [1 << 40, 1 << 50]
    assert peers_of(bound, 0) == [0, 1]
    assert peers_of(bound, 1) == [1]
    program = make_program(bound, 0, [FakeSegment(base) for base in bases], bells, 4)
    own, peer = ([base + offset for offset in rank_layout(bound, rank).offsets] for rank, base in enumerate(bases))
    put, get_reduce, raised, awaited = program.records.tolist()
    assert put == (MOVE, peer[OUT] + 40, own[IN], 0, 40, 0)
    assert get_reduce == (REDUCE, own[SCRATCH], peer[IN] + 40, own[OUT], 10, 0)
    assert raised == (SIGNAL, bases[1] + 2 * LINE, bells[1], 0, 0, 9)
    assert awaited == (WAIT, bases[0] + 1 * LINE, 0, 0, 0, 8)
    assert program.highest_value == 9
    assert [program.place_of(record) for record in range(4)] == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert program.records.dtype == RECORD


def test_copies_go_past_the_caches_only_if_memory_exceeds_them_and_no_reduction_reads_them(monkeypatch):
    collective = make_collective("allreduce", 2)
    body = [
        move(Op.COPY, OUT, 0, IN, 0, 1),
        move(Op.COPY, OUT, 1, IN, 0, 1),
        move(Op.PUT, SCRATCH, 0, IN, 0, 1, peer=1),
        move(Op.PUT, SCRATCH, 1, OUT, 0, 1, peer=1),
    ]
    reader = [reduce(Op.REDUCE, OUT, 0, SCRATCH, 0, IN, 0, 1), reduce(Op.GET_REDUCE, OUT, 1, OUT, 1, IN, 0, 1, peer=0)]
    plan = Plan.build(collective, [(0, body), (1, reader)], [[], [(0, 0, 1), (0, 0, 1)]], [0, 0])
    bound = bind(plan, 1000, 4)
    monkeypatch.setattr(streams, "_cache_bytes", lambda: 1 << 20)
    assert not past_the_caches(bound).any()
    monkeypatch.setattr(streams, "_cache_bytes", lambda: 1 << 10)
    assert past_the_caches(bound)[:4].tolist() == [True, False, False, True]


def test_where_reductions_read_agrees_with_a_look_at_all_pairs(monkeypatch):
    rng = np.random.default_rng(3)
    collective = make_collective("allreduce", 2, 50)
    monkeypatch.setattr(streams, "_cache_bytes", lambda: 0)
    for _ in range(20):
        length, places = rng.integers(1, 9, 30), rng.integers(0, 90, (30, 3))
        body = [
            reduce(Op.REDUCE, OUT, place[0], OUT, place[1], IN, place[2], size)
            if number % 3 == 0
            else move(Op.COPY, OUT, place[0], IN, place[1], size)
            for number, (size, place) in enumerate(zip(length.tolist(), places.tolist(), strict=True))
        ]
        plan = Plan.build(collective, [(0, body), (1, [])], [[], []], [0, 0])
        found = past_the_caches(bind(plan, 100, 4))
        for row in range(30):
            span = set(range(places[row, 0], places[row, 0] + length[row]))
            reads = (set(range(places[r, 1], places[r, 1] + length[r])) for r in range(0, 30, 3))
            assert found[row] == (not any(span & read for read in reads))
