"""MPI's collectives on the buffers of a benchmark: the right call for every kind, and a reason where there is none."""

import pytest

from collsyn.bench.data import Pattern
from collsyn.bench.mpi import MpiCollective, not_comparable
from collsyn.model.collective import make_collective
from collsyn.model.dtypes import DTYPES, OPS
from collsyn.model.kinds import KINDS, REDUCING
from collsyn.runtime.launch import launch
from collsyn.runtime.mpirun import find_mpirun, has_mpi

NAMED = [kind for kind in KINDS if kind != "custom"]
COUNTS = {"alltoallv": [[0, 1, 2], [3, 0, 1], [1, 1, 4]]}
ROOTED = ("broadcast", "reduce", "gather", "scatter")

needs_mpi = pytest.mark.skipif(not has_mpi() or find_mpirun() is None, reason="needs mpi4py and an mpirun")


def collectives():
    """One of every kind on three ranks, rooted ones at rank 2."""
    for kind in NAMED:
        yield make_collective(kind, 3, root=2 if kind in ROOTED else None, counts=COUNTS.get(kind))


def wrong_everywhere(bootstrap, elements):
    """Per kind, type and reduction that MPI knows: wrong elements of this rank after two calls."""
    found = {}
    for collective in collectives():
        for dtype in DTYPES:
            for op in OPS if collective.reduces else ("sum",):
                if not_comparable(collective, dtype, op) is None:
                    theirs = MpiCollective(bootstrap.comm, Pattern(collective, elements, dtype, op), bootstrap.rank)
                    theirs.call()
                    theirs.call()
                    found[f"{collective.kind} {dtype} {op}"] = theirs.wrong_elements()
    return found


@needs_mpi
@pytest.mark.parametrize("elements", [3, 3000])
def test_every_call_leaves_the_right_result(elements):
    of_ranks = launch("tests.bench.test_mpi:wrong_everywhere", {"elements": elements}, 3, "mpirun", 120)
    assert len(of_ranks) == 3
    for found in of_ranks:
        assert {name: wrong for name, wrong in found.items() if wrong} == {}
    names = set(of_ranks[0])
    assert {name.split()[0] for name in names} == set(NAMED)
    assert {name.split()[1] for name in names if name.startswith("allgather")} == set(DTYPES)


@pytest.mark.parametrize("kind", sorted(REDUCING))
def test_reductions_that_mpi_lacks_are_named(kind):
    collective = make_collective(kind, 4)
    assert not_comparable(collective, "float32", "sum") is None
    assert "bfloat16" in not_comparable(collective, "bfloat16", "sum")
    assert "float16" in not_comparable(collective, "float16", "max")
    assert "avg" in not_comparable(collective, "float32", "avg")


def test_copies_of_any_type_are_comparable():
    for kind in set(NAMED) - REDUCING:
        assert not_comparable(make_collective(kind, 3, counts=COUNTS.get(kind)), "bfloat16", "") is None


@pytest.mark.parametrize(
    "collective, told",
    [
        (make_collective("allgather", 3, counts=[1, 2, 1]), "unequal"),
        (make_collective("allreduce", 4, groups=[[0, 1], [2, 3]]), "groups"),
        (make_collective("allreduce", 4, groups=[[0, 1, 2]]), "some of the ranks"),
    ],
)
def test_what_mpi_has_no_single_call_for_is_named(collective, told):
    assert told in not_comparable(collective, "float32", "sum")
