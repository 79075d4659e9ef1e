"""Problems for tests of synthesizers: every collective on a topology, and Hypothesis strategies of random ones.

@pytest.mark.parametrize("name", ZOO)
def test_something(name):
    for problem in all_problems(zoo(name)): ...

@given(random_problems())
def test_property(problem): ...
"""

from collections.abc import Iterator
from fractions import Fraction

from hypothesis import strategies as st

from collsyn.model.collective import Collective, custom_collective
from collsyn.model.kinds import KINDS, ROOTED
from collsyn.model.topology import Topology
from collsyn.synth.problem import Problem
from tests.support.topologies import random_topologies

SIZE = 1 << 20


def all_problems(topology: Topology, size_bytes: int = SIZE, chunks: int | None = None) -> Iterator[Problem]:
    """One problem of every collective over all ranks, rooted ones at the last rank, counts skewed."""
    n = topology.num_ranks
    for kind in KINDS:
        if kind == "custom":
            if chunks is None:
                for spec in (exchange(n), corner_sums(n)):
                    yield Problem("custom", topology, size_bytes, spec=spec)
            continue
        root = n - 1 if kind in ROOTED else None
        counts = [[(3 * i + j + 1) % 4 for j in range(n)] for i in range(n)] if kind == "alltoallv" else None
        yield Problem(kind, topology, size_bytes, chunks, root=root, counts=counts)


def grouped_problems(topology: Topology, size_bytes: int = SIZE) -> Iterator[Problem]:
    """Every collective in two process groups of unequal size at once, and the sharded ones with counts (also 0)."""
    n = topology.num_ranks
    if n < 4:
        return
    ranks = [*range(0, n, 2), *range(1, n, 2)]
    groups = (tuple(ranks[: n - n // 3]), tuple(ranks[n - n // 3 :]))
    for kind in KINDS:
        if kind not in ("custom", "alltoallv"):
            root = len(groups[1]) - 1 if kind in ROOTED else None
            yield Problem(kind, topology, size_bytes, 2, root=root, groups=groups)
    for kind in ("allgather", "reducescatter", "gather", "scatter"):
        yield Problem(kind, topology, size_bytes, counts=[rank % 3 for rank in range(n)])


def exchange(num_ranks: int) -> Collective:
    """Custom: every rank's part goes to the next two ranks; the first part is held by two ranks at the start."""
    part = Fraction(1, num_ranks)
    rows = [
        (part, 0 * part, r * part, [r] if r else [0, num_ranks - 1], sorted({(r + 1) % num_ranks, (r + 2) % num_ranks}))
        for r in range(num_ranks)
    ]
    return _custom(num_ranks, rows, reduces=False)


def corner_sums(num_ranks: int) -> Collective:
    """Custom: half the ranks sum one half of the buffer at the first and last rank, all ranks the other at the last."""
    half, last = Fraction(1, 2), num_ranks - 1
    rows = [
        (half, 0 * half, 0 * half, list(range((num_ranks + 1) // 2)), sorted({0, last})),
        (half, half, half, list(range(num_ranks)), [last]),
    ]
    return _custom(num_ranks, rows, reduces=True)


def _custom(
    num_ranks: int, rows: list[tuple[Fraction, Fraction, Fraction, list[int], list[int]]], reduces: bool
) -> Collective:
    entries = [
        {"from": pre, "to": post, "length": str(length), "in_offset": str(a), "out_offset": str(b)}
        for length, a, b, pre, post in rows
    ]
    spec = {"kind": "custom", "ranks": num_ranks, "reduces": reduces, "chunks": entries}
    return custom_collective(num_ranks, rows, reduces, spec)


@st.composite
def random_problems(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS, max_ranks: int = 6) -> Problem:
    """A collective of any kind, with root, groups, counts or a custom spec, on a random topology at a random size."""
    topology = draw(random_topologies(max_ranks=max_ranks))
    n = topology.num_ranks
    kind = draw(st.sampled_from(kinds))
    size_bytes = draw(st.sampled_from((1, 1000, 1 << 16, 1 << 24)))
    if kind == "custom":
        return Problem(kind, topology, size_bytes, spec=draw(_random_custom(n)))
    chunks = draw(st.sampled_from((None, 1, 2, 3)))
    groups = draw(_random_groups(n)) if kind != "alltoallv" and draw(st.booleans()) else None
    smallest = min(map(len, groups)) if groups else n
    root = draw(st.integers(0, smallest - 1)) if kind in ROOTED else None
    counts = None
    if kind == "alltoallv":
        rows = st.lists(st.integers(0, 3), min_size=n, max_size=n)
        counts = draw(st.lists(rows, min_size=n, max_size=n).filter(lambda matrix: any(map(any, matrix))))
    elif kind in ("allgather", "reducescatter", "gather", "scatter") and not groups and draw(st.booleans()):
        counts = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n).filter(any))
    return Problem(kind, topology, size_bytes, chunks, root, groups, counts)


@st.composite
def _random_groups(draw: st.DrawFn, num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Disjoint groups of some of the ranks."""
    ranks = draw(st.permutations(range(num_ranks)))
    used = draw(st.integers(1, num_ranks))
    cut = draw(st.integers(1, used))
    return tuple(group for group in (tuple(ranks[:cut]), tuple(ranks[cut:used])) if group)


@st.composite
def _random_custom(draw: st.DrawFn, num_ranks: int) -> Collective:
    some = st.lists(st.integers(0, num_ranks - 1), min_size=1, unique=True).map(sorted)
    rows = []
    for place in range(draw(st.integers(1, 4))):
        length = Fraction(draw(st.integers(1, 3)), 4)
        rows.append((length, Fraction(place), Fraction(place), draw(some), draw(some)))
    return _custom(num_ranks, rows, reduces=draw(st.booleans()))
