"""Collectives against what the words mean: whose bytes stand where, for any ranks, roots, groups, counts and chunks."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from collsyn.errors import InputError
from collsyn.model.collective import custom_collective, make_collective
from collsyn.model.collective_file import collective_document, collective_from_fields, read_collective, read_counts
from collsyn.model.fields import Fields
from collsyn.model.kinds import KINDS, REDUCING, ROOTED

NAMED = KINDS[:-1]
MATRIX = [[0, 2, 1], [3, 0, 0], [1, 1, 1]]


@st.composite
def collectives(draw, kinds=NAMED):
    """Any named collective over all ranks or groups, with counts where it takes some."""
    kind = draw(st.sampled_from(kinds))
    n = draw(st.integers(1, 6))
    members, groups = [tuple(range(n))], None
    if draw(st.booleans()):
        order = draw(st.permutations(range(n)))
        cut = draw(st.integers(0, n - 1))
        groups = members = [tuple(part) for part in (order[:cut], order[cut:]) if part]
    smallest = min(map(len, members))
    root = draw(st.integers(0, smallest - 1)) if kind in ROOTED and draw(st.booleans()) else None
    counts = None
    equal = len({len(group) for group in members}) == 1
    number = st.integers(0, 4)
    if kind == "alltoallv":
        assume(equal)
        counts = draw(
            st.lists(st.lists(number, min_size=smallest, max_size=smallest), min_size=smallest, max_size=smallest)
        )
        assume(np.any(counts))
    elif kind in ("allgather", "reducescatter", "gather", "scatter") and equal and draw(st.booleans()):
        counts = draw(st.lists(number, min_size=smallest, max_size=smallest))
        assume(any(counts))
    return make_collective(kind, n, draw(st.integers(1, 3)), root, groups, counts)


def shares(collective):
    """Per group its members and counts, as the spec has them."""
    for group in collective.groups:
        yield group, collective.spec.get("counts") or [1] * len(group)


def flows(collective):
    """Who must give how much to whom, in sizes, from the meaning of the words: {(givers, takers): amount}."""
    kind, found = collective.kind, {}

    def add(givers, takers, amount):
        if amount:
            key = (tuple(sorted(givers)), tuple(sorted(takers)))
            found[key] = found.get(key, 0) + amount

    for group, counts in shares(collective):
        n, root = len(group), group[collective.root or 0]
        if kind in ("alltoall", "alltoallv"):
            matrix = counts if kind == "alltoallv" else [[1] * n] * n
            biggest = max(sum(row) for row in matrix)
            for i, a in enumerate(group):
                for j, b in enumerate(group):
                    add([a], [b], Fraction(matrix[i][j], biggest))
        elif kind == "sendrecv":
            for i, a in enumerate(group):
                add([a], [group[(i + 1) % n]], Fraction(1))
        elif kind in ("allreduce", "broadcast", "reduce"):
            ends = {"allreduce": (group, group), "broadcast": ([root], group), "reduce": (group, [root])}[kind]
            add(*ends, Fraction(1))
        else:
            for i, rank in enumerate(group):
                amount = Fraction(counts[i], sum(counts))
                ends = {
                    "allgather": ([rank], group),
                    "gather": ([rank], [root]),
                    "reducescatter": (group, [rank]),
                    "scatter": ([root], [rank]),
                }[kind]
                add(*ends, amount)
    return found


@given(collectives())
def test_chunks_carry_what_the_words_say(collective):
    found = {}
    for chunk in range(collective.num_chunks):
        key = (tuple(collective.contributors(chunk).tolist()), tuple(collective.receivers(chunk).tolist()))
        found[key] = found.get(key, 0) + Fraction(int(collective.units[chunk]), collective.total_units)
    assert found == flows(collective)
    assert collective.reduces == (collective.kind in REDUCING)


@given(collectives())
def test_chunks_of_a_buffer_follow_each_other_without_holes(collective):
    for rank in range(collective.num_ranks):
        for chunks, offsets in (
            (collective.held_by(rank), collective.in_offset),
            (collective.wanted_by(rank), collective.out_offset),
        ):
            order = chunks[np.argsort(offsets[chunks], kind="stable")]
            ends = np.cumsum(collective.units[order])
            assert offsets[order].tolist() == [0, *ends[:-1].tolist()][: len(order)]


@given(collectives())
def test_held_and_wanted_are_the_sets_turned_round(collective):
    for rank in range(collective.num_ranks):
        chunks = range(collective.num_chunks)
        assert collective.held_by(rank).tolist() == [c for c in chunks if rank in collective.contributors(c)]
        assert collective.wanted_by(rank).tolist() == [c for c in chunks if rank in collective.receivers(c)]


@given(collectives(), st.integers(1, 200))
def test_whole_elements_differ_by_at_most_one_and_fill_the_rounded_buffer(collective, num_elements):
    lengths = collective.element_lengths(num_elements)
    exact = collective.units * (num_elements / collective.total_units)
    assert (np.abs(lengths - exact) < 1).all()
    for rank in range(collective.num_ranks):
        mine = collective.held_by(rank) if collective.rounded_by_input else collective.wanted_by(rank)
        total = int(collective.units[mine].sum())
        assert int(lengths[mine].sum()) == total * num_elements // collective.total_units


@given(collectives(), st.integers(1, 10**9))
def test_bytes_of_chunks_are_shares_of_the_size(collective, size_bytes):
    expected = [units * size_bytes / collective.total_units for units in collective.units.tolist()]
    assert collective.chunk_bytes(size_bytes).tolist() == pytest.approx(expected)


@given(collectives())
def test_documents_make_the_same_collective(collective):
    again = collective_from_fields(Fields(collective_document(collective), "a.json"))
    assert again.spec == collective.spec
    for name in ("units", "in_offset", "out_offset", "pre", "post"):
        assert getattr(again, name).tolist() == getattr(collective, name).tolist()
    assert again.sets.tuples() == collective.sets.tuples()
    assert (again.kind, again.groups, again.root) == (collective.kind, collective.groups, collective.root)


@given(collectives())
def test_in_place_the_inner_buffer_lies_where_the_outer_one_has_the_same_chunks(collective):
    for rank in range(collective.num_ranks):
        inside, first = collective.in_place_chunk(rank)
        held, wanted = collective.held_by(rank), collective.wanted_by(rank)
        if inside == "same":
            assert collective.kind in ("allreduce", "broadcast", "reduce")
            both = np.intersect1d(held, wanted)
            assert collective.in_offset[both].tolist() == collective.out_offset[both].tolist()
        elif inside == "input":
            base = collective.out_offset[first]
            assert set(held) <= set(wanted)
            assert (collective.out_offset[held] == collective.in_offset[held] + base).all()
        elif inside == "output":
            base = collective.in_offset[first]
            assert set(wanted) <= set(held)
            assert (collective.in_offset[wanted] == collective.out_offset[wanted] + base).all()
        else:
            assert inside == "apart"
            assert first is None


def test_which_kinds_run_in_place():
    kinds = {
        kind for kind in NAMED if make_collective(kind, 3, counts=MATRIX if kind == "alltoallv" else None).has_in_place
    }
    assert kinds == set(NAMED) - {"alltoall", "alltoallv", "sendrecv"}


def test_spellings_of_reducescatter():
    for kind in ("reduce-scatter", "reduce_scatter", "reducescatter"):
        assert make_collective(kind, 4).kind == "reducescatter"
    assert make_collective("all-gather", 4).kind == "allgather"


def test_numbers_of_chunks():
    numbers = {
        "allgather": 8,
        "reducescatter": 8,
        "allreduce": 8,
        "broadcast": 2,
        "reduce": 2,
        "gather": 8,
        "scatter": 8,
        "alltoall": 32,
        "sendrecv": 8,
    }
    assert {kind: make_collective(kind, 4, 2).num_chunks for kind in numbers} == numbers
    # Pairs that exchange nothing have no chunk.
    assert make_collective("alltoallv", 3, 2, counts=MATRIX).num_chunks == 12


def test_roots_are_counted_inside_groups():
    collective = make_collective("broadcast", 6, root=1, groups=[(5, 3, 1), (0, 2)])
    assert collective.contributors(0).tolist() == [3]
    assert collective.contributors(1).tolist() == [2]


@pytest.mark.parametrize(
    "given_, message",
    [
        (("gossip", 4), "collective 'gossip' is not known"),
        (("custom", 4), "collective 'custom' is not known"),
        (("allgather", 4, 0), "chunks: is 0"),
        (("allgather", 4, 1, 0), "root: allgather has no root"),
        (("broadcast", 4, 1, 4), "root: is 4; expected 0 .. 3"),
        (("broadcast", 4, 1, -1), "root: is -1"),
        (("broadcast", 4, 1, 2, [(0, 1, 2), (3,)]), "root: is 2; expected 0 .. 0"),
        (("allgather", 4, 1, None, [(0, 4)]), "groups: rank 4 is not there"),
        (("allgather", 4, 1, None, [(0, 1), (1, 2)]), "groups: rank 1 stands in two"),
        (("allgather", 4, 1, None, [(0, 1), ()]), "groups: a group is empty"),
        (("allgather", 4, 1, None, []), "groups: a group is empty"),
        (("allgather", 2, 1, None, None, [1]), "counts: expected 2 whole numbers"),
        (("allgather", 2, 1, None, None, [1, -1]), "counts: expected 2 whole numbers"),
        (("allgather", 2, 1, None, None, [1, True]), "counts: expected 2 whole numbers"),
        (("allgather", 2, 1, None, None, [0, 0]), "all counts are 0"),
        (("allreduce", 2, 1, None, None, [1, 1]), "counts: allreduce takes none"),
        (("alltoallv", 2), "counts: alltoallv needs a 2 x 2 matrix"),
        (("alltoallv", 2, 1, None, None, [1, 2]), "counts: expected 2 rows"),
        (("alltoallv", 2, 1, None, None, [[1, 2]]), "counts: expected 2 rows"),
        (
            ("alltoallv", 2, 1, None, None, [[0, 10**29], [0, 0]]),
            "counts: sums and chunks a rank come to more than 2^96",
        ),
        (("alltoallv", 2, 1, None, None, [[2**52, 2**52 + 1], [0, 0]]), "expected at most 2^53"),
    ],
)
def test_what_makes_no_collective(given_, message):
    with pytest.raises(InputError) as error:
        make_collective(*given_)
    assert message in str(error.value)


CUSTOM = """\
schema: collsyn-collective/1
kind: custom
ranks: 3
reduces: true
chunks:
  - {length: 1/2, from: [0, 1], to: [2]}
  - {length: 1/3, in_offset: 1/2, out_offset: 1/6, from: [2], to: [0, 1]}
"""


def test_a_custom_collective_from_yaml(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(CUSTOM)
    collective = read_collective(path)
    assert (collective.kind, collective.reduces, collective.total_units) == ("custom", True, 6)
    assert collective.units.tolist() == [3, 2]
    assert collective.in_offset.tolist() == [0, 3]
    assert collective.out_offset.tolist() == [0, 1]
    assert [collective.contributors(c).tolist() for c in range(2)] == [[0, 1], [2]]
    assert [collective.receivers(c).tolist() for c in range(2)] == [[2], [0, 1]]
    again = collective_from_fields(Fields(collective_document(collective), "a.json"))
    assert again.spec == collective.spec
    assert again.units.tolist() == collective.units.tolist()


@pytest.mark.parametrize(
    "old, new, key",
    [
        ("ranks: 3", "ranks: 0", "ranks"),
        ("length: 1/2", "length: 0", "chunks[0].length"),
        ("length: 1/2", "length: 1/0", "chunks[0].length"),
        ("in_offset: 1/2", "in_offset: -1/2", "chunks[1].length"),
        ("from: [0, 1]", "from: [0, 3]", "chunks[0].from"),
        ("from: [0, 1]", "from: [0, 0]", "chunks[0].from"),
        ("to: [2]", "to: []", "chunks[0].to"),
        ("to: [2]", "too: [2]", "chunks[0].to"),
        ("schema: collsyn-collective/1", "schema: other", "schema"),
        ("reduces: true", "reduces: maybe", "reduces"),
    ],
)
def test_wrong_custom_collectives_name_file_and_key(old, new, key, tmp_path):
    path = tmp_path / "c.yaml"
    assert old in CUSTOM
    path.write_text(CUSTOM.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        read_collective(path)
    assert str(error.value).startswith(f"{path}:{key}: ")


@pytest.mark.parametrize("old, new", [("1/2", "1/1234567891234567891234567"), ("1/6", "99999999999999999999")])
def test_fractions_without_a_common_unit_are_refused(old, new, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(CUSTOM.replace(old, new, 1))
    with pytest.raises(InputError, match=r"^chunks: lengths and offsets come to more than 2\^\d+ units"):
        read_collective(path)


def test_a_custom_collective_needs_chunks():
    with pytest.raises(InputError, match="chunks: is empty"):
        custom_collective(2, [], False, {})


def test_counts_from_a_file(tmp_path):
    path = tmp_path / "counts.yaml"
    path.write_text("counts: [[0, 2], [1, 0]]\n")
    assert read_counts(path) == [[0, 2], [1, 0]]
    path.write_text("count: [1]\n")
    with pytest.raises(InputError, match="counts: is missing"):
        read_counts(path)


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ("[[0, -1], [1, 0]]", r"counts\[0\]: holds -1; expected whole numbers"),
        ("[[0, 1], [0.5, 0]]", r"counts\[1\]: holds 0.5; expected whole numbers"),
        ("[[0, 1], [1]]", r"counts\[1\]: expected a list of 2 numbers"),
        ("[[0, 1], 1]", r"counts\[1\]: expected a list of 2 numbers"),
        ("[1, [1]]", r"counts\[1\]: holds \[1\]; expected whole numbers"),
    ],
)
def test_wrong_counts_name_file_and_row(tmp_path, counts, told):
    path = tmp_path / "counts.yaml"
    path.write_text(f"counts: {counts}\n")
    with pytest.raises(InputError, match=r"counts\.yaml:" + told):
        read_counts(path)
