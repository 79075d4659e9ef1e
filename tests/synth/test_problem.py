"""Problems say what is wrong with them; provenance says nothing of time and place."""

import re

import pytest

from collsyn import __version__
from collsyn.errors import Infeasible, InputError
from collsyn.model.topology_file import topology_digest
from collsyn.synth.problem import Options, Problem, provenance
from collsyn.synth.table import method
from tests.support.problems import exchange
from tests.support.topologies import build, zoo

SIZE = 1 << 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "allgather", "chunks_per_rank": 0}, "chunks: is 0; expected at least 1 chunk a rank"),
        ({"kind": "broadcast", "root": 4}, "root: is 4; expected 0 .. 3"),
        ({"kind": "allgather", "root": 0}, "root: allgather has no root; leave it out"),
        ({"kind": "allgather", "size_bytes": 0}, "size: is 0 bytes; expected at least 1"),
        ({"kind": "alltoallv"}, "counts: alltoallv needs a matrix of counts"),
        ({"kind": "custom"}, "spec: a custom collective needs its definition; give --spec FILE"),
        ({"kind": "custom", "spec": exchange(3)}, "spec: is for 3 ranks; topology built has 4"),
        ({"kind": "custom", "spec": exchange(4), "root": 1}, "root: a custom collective takes none"),
        ({"kind": "allgather", "spec": exchange(4)}, "spec: allgather takes none; only custom does"),
        ({"kind": "sing"}, "collective 'sing' is not known; expected one of allgather"),
        ({"kind": "allgather", "groups": ((0, 1), (1, 2))}, "groups: rank 1 stands in two groups"),
        ({"kind": "allgather", "counts": [1, 2]}, "counts: expected 4 whole numbers"),
    ],
)
def test_wrong_problems(arguments: dict, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Problem(**{"topology": zoo("line"), "size_bytes": SIZE, **arguments})


def test_aliases_and_defaults() -> None:
    problem = Problem("reduce-scatter", zoo("line"), SIZE)
    assert problem.kind == "reducescatter" and problem.reduces
    assert problem.collective().chunks_per_rank == 1
    assert problem.collective(3) is problem.collective(3)
    assert problem.reversed.kind == "allgather"
    assert problem.reversed.topology is Problem("reducescatter", problem.topology, 5).reversed.topology
    assert Problem("broadcast", zoo("line"), SIZE, root=1, groups=((0, 1), (3, 2))).roots() == (1, 2)


def test_provenance_names_inputs_and_nothing_else() -> None:
    problem = Problem("allgather", zoo("line"), SIZE)
    origin = provenance(problem, Options(seed=5), "paths", chunks_per_rank=2)
    assert origin == {
        "tool": "collsyn",
        "version": __version__,
        "method": "paths",
        "seed": 5,
        "options": {"chunks_per_rank": 2},
        "topology_digest": topology_digest(problem.topology),
    }
    assert provenance(problem, Options(time_limit_s=3), "paths")["time_limit_s"] == 3


def test_schedules_of_a_reversal_name_the_topology_itself() -> None:
    problem = Problem("reducescatter", zoo("line"), SIZE)
    schedule = method("paths").synthesize(problem, Options())
    assert schedule.provenance["topology_digest"] == topology_digest(problem.topology)


def test_unreachable_ranks_are_named() -> None:
    one_way = build(3, [(0, 1), (1, 2)], name="one way")
    for kind, text in (("broadcast", None), ("allgather", "1 to rank 0"), ("reduce", "0 to rank 1")):
        problem = Problem(kind, one_way, SIZE)
        if text is None:
            method("paths").synthesize(problem, Options())
            continue
        with pytest.raises(Infeasible, match=f"topology one way.*: no way leads from rank {text}"):
            method("paths").synthesize(problem, Options())
