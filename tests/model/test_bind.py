"""Plans bound to sizes, against rational arithmetic: where every chunk and every piece stands in bytes."""

from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.errors import InputError
from collsyn.model.bind import bind, divisions, layout
from collsyn.model.collective import Collective, custom_collective, make_collective
from collsyn.model.kinds import KINDS
from collsyn.model.plan import Buffer, Op, Plan

NAMED = tuple(kind for kind in KINDS if kind != "custom")


def collective_of(kind: str, n: int, chunks: int, counts: bool) -> Collective:
    if kind == "alltoallv":
        given = [[(a + 2 * b) % 3 for b in range(n)] for a in range(n)]
        return make_collective(kind, n, chunks, counts=given if n > 1 else [[1]])
    if counts and kind in ("allgather", "reducescatter", "gather", "scatter"):
        return make_collective(kind, n, chunks, counts=[(rank + 1) % 4 for rank in range(n)])
    return make_collective(kind, n, chunks)


collectives = st.builds(collective_of, st.sampled_from(NAMED), st.integers(1, 5), st.integers(1, 4), st.booleans())


@given(collectives, st.integers(1, 200))
def test_chunks_follow_each_other_in_whole_elements(collective, elements):
    places = layout(collective, elements)
    fluid = [Fraction(int(units) * elements, collective.total_units) for units in collective.units]
    assert all(abs(length - exact) < 1 for length, exact in zip(places.lengths.tolist(), fluid, strict=True))
    for buffers, offsets in ((places.input, collective.in_offset), (places.output, collective.out_offset)):
        for chunks, first, size in buffers:
            assert (np.diff(offsets[chunks]) > 0).all()
            ends = first + places.lengths[chunks]
            # The named collectives leave no holes.
            assert first.tolist() == [0, *ends.tolist()][: len(chunks)]
            assert size == (ends[-1] if len(chunks) else 0)


@given(collectives, st.integers(1, 200))
def test_full_buffers_have_the_users_size(collective, elements):
    places = layout(collective, elements)
    kind, root = collective.kind, collective.root
    if kind in ("allgather", "allreduce", "broadcast", "sendrecv"):
        assert {size for _, _, size in places.output} == {elements}
    if kind in ("allreduce", "reducescatter", "alltoall", "reduce", "sendrecv"):
        assert {size for _, _, size in places.input} == {elements}
    if kind in ("broadcast", "scatter"):
        assert places.input[root][2] == elements
    if kind in ("reduce", "gather"):
        assert places.output[root][2] == elements


@given(collectives, st.integers(1, 4), st.integers(1, 60), st.integers(1, 4))
def test_pieces_of_a_chunk_tile_it_and_are_alike_everywhere(collective, factor, elements, width):
    """COPY of every unit of every chunk that a rank holds into scratch, bound, against floor(i e / u)."""
    rows, scratch, want = [], [[] for _ in range(collective.num_ranks)], []
    lengths = layout(collective, elements).lengths.tolist()
    for rank in range(collective.num_ranks):
        at = filled = 0
        for chunk in collective.held_by(rank).tolist():
            units = int(collective.units[chunk]) * factor
            scratch[rank].append((chunk, 0, units))
            for unit in range(units):
                source = int(collective.in_offset[chunk]) * factor + unit
                piece = {"dst_buffer": Buffer.SCRATCH, "dst_offset": at + unit, "src_offset": source, "length": 1}
                rows.append((rank, {"op": Op.COPY, **piece}))
                begin, end = (floor(Fraction(i * lengths[chunk], units)) for i in (unit, unit + 1))
                want.append((filled + begin, end - begin))
            at += units
            filled += lengths[chunk]
    channels = [(rank, [row for owner, row in rows if owner == rank]) for rank in range(collective.num_ranks)]
    plan = Plan.build(collective, channels, scratch, [0] * collective.num_ranks, factor)
    bound = bind(plan, elements, width)
    assert bound.columns["length"].tolist() == [width * length for _, length in want]
    assert bound.columns["dst_offset"].tolist() == [width * first for first, _ in want]
    places = layout(collective, elements)
    for rank in range(collective.num_ranks):
        assert bound.buffer_bytes[rank].tolist() == [
            places.input[rank][2] * width,
            places.output[rank][2] * width,
            int(places.lengths[collective.held_by(rank)].sum()) * width,
        ]


def copy_plan(collective: Collective, scratch=None, **columns: int) -> Plan:
    row = {"op": Op.COPY, "dst_buffer": Buffer.OUTPUT, "length": 1, **columns}
    none = [[] for _ in range(collective.num_ranks)]
    return Plan.build(collective, [(0, [row])], scratch or none, [0] * collective.num_ranks)


def test_a_range_over_several_chunks_has_their_lengths_together():
    collective = make_collective("allgather", 3, 2)
    plan = copy_plan(collective, length=2, dst_offset=2, src_offset=2, src_buffer=Buffer.OUTPUT)
    bound = bind(plan, 8, 1)
    # Chunks of 8 elements in 6 parts: 1 1 2 1 1 2.
    assert layout(collective, 8).lengths.tolist() == [1, 1, 2, 1, 1, 2]
    assert (bound.columns["dst_offset"].tolist(), bound.columns["length"].tolist()) == ([2], [3])


def test_in_place_one_buffer_lies_inside_the_other():
    n, elements = 4, 10

    def alias(kind: str, **options: int) -> list[tuple[Buffer, Buffer, int] | None]:
        return list(bind(copy_plan(make_collective(kind, n, **options)), elements, 4, in_place=True).alias)

    assert alias("allreduce") == [(Buffer.INPUT, Buffer.OUTPUT, 0)] * n
    assert alias("broadcast", root=2) == [None, None, (Buffer.INPUT, Buffer.OUTPUT, 0), None]
    # 10 elements in 4 shards begin at 0, 2, 5 and 7.
    assert alias("allgather") == [(Buffer.INPUT, Buffer.OUTPUT, 4 * first) for first in (0, 2, 5, 7)]
    assert alias("reducescatter") == [(Buffer.OUTPUT, Buffer.INPUT, 4 * first) for first in (0, 2, 5, 7)]
    assert alias("gather", root=1) == [None, (Buffer.INPUT, Buffer.OUTPUT, 8), None, None]
    assert alias("scatter", root=3) == [None, None, None, (Buffer.OUTPUT, Buffer.INPUT, 28)]
    assert bind(copy_plan(make_collective("allreduce", n)), elements, 4).alias == (None,) * n


def test_collectives_without_an_in_place_form_refuse_it():
    with pytest.raises(InputError, match="alltoall cannot run in place"):
        bind(copy_plan(make_collective("alltoall", 2)), 4, 4, in_place=True)


def test_no_elements_are_refused():
    with pytest.raises(InputError, match="size: is 0 elements"):
        bind(copy_plan(make_collective("allgather", 2)), 0, 4)


def test_scratch_of_no_chunk_needs_a_size_that_divides():
    plan = copy_plan(make_collective("allgather", 2), [[(-1, 0, 1)], []], dst_buffer=Buffer.SCRATCH)
    assert bind(plan, 4, 1).buffer_bytes[0].tolist() == [2, 4, 2]
    with pytest.raises(InputError, match="5 elements do not divide into the 2 chunks"):
        bind(plan, 5, 1)


def test_unequal_ranges_are_refused():
    plan = copy_plan(make_collective("allgather", 2), dst_offset=1)
    bind(plan, 4, 1)
    with pytest.raises(InputError, match=r"instruction 0 \(copy .*\) has ranges of unequal length at 5 elements"):
        bind(plan, 5, 1)


def test_chunks_that_overlap_need_a_size_that_divides():
    half = Fraction(1, 2)
    chunks = [(half, Fraction(0), Fraction(0), (0,), (1,)), (half, Fraction(1, 4), half, (0,), (1,))]
    collective = custom_collective(2, chunks, False, {})
    places = layout(collective, 8)
    assert [part.tolist() for part in places.input[0][:2]] == [[0, 1], [0, 2]]
    assert places.input[0][2] == 6
    with pytest.raises(InputError, match="6 elements do not divide into 4 parts"):
        layout(collective, 6)


def test_space_that_no_chunk_covers_is_kept():
    quarter = Fraction(1, 4)
    chunks = [(quarter, quarter, Fraction(0), (0,), (1,)), (quarter, 3 * quarter, quarter, (0,), (1,))]
    places = layout(custom_collective(2, chunks, False, {}), 8)
    assert [part.tolist() for part in places.input[0][:2]] == [[0, 1], [2, 6]]
    assert places.input[0][2] == 8


def test_averages_divide_each_part_by_its_contributors():
    def parts(collective: Collective, rank: int, elements: int) -> list[tuple[int, int, int]]:
        return divisions(bind(copy_plan(collective), elements, 4), rank)

    assert parts(make_collective("allreduce", 3, 2), 1, 10) == [(0, 40, 3)]
    assert parts(make_collective("reducescatter", 3), 2, 10) == [(0, 16, 3)]
    assert parts(make_collective("reduce", 3), 1, 10) == []
    assert parts(make_collective("allgather", 3), 1, 10) == []
    assert parts(make_collective("allreduce", 1), 0, 10) == []
    half = Fraction(1, 2)
    rows = [
        (half, Fraction(0), Fraction(0), (0, 1), (0,)),
        (half, half, half, (0, 1, 2), (0,)),
        (half, half, Fraction(1), (1,), (0,)),
    ]
    assert parts(custom_collective(3, rows, True, {}), 0, 10) == [(0, 20, 2), (20, 20, 3)]
