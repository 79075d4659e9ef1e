"""Which rule serves which call."""

import json
from math import inf

import pytest

import collsyn
from collsyn.comm.algorithms import LAST_RESORT, AlgorithmSet
from collsyn.errors import InputError, VerificationError


def schedule(kind, ranks, size, method="direct", **options):
    """A schedule on a full mesh."""
    return collsyn.synthesize(kind, f"full:{ranks}", size, method=method, **options)


def test_the_first_rule_that_serves_comes_first():
    tuned = schedule("allreduce", 4, 1 << 20)
    chosen = AlgorithmSet.of(
        [
            ("allreduce", 0, 100, "ring"),
            ("allreduce", 0, 1000, "auto"),
            ("allreduce", 1000, inf, tuned),
        ]
    )
    assert chosen.choices("allreduce", 4, None, 99)[:2] == ["ring", "auto"]
    assert chosen.choices("allreduce", 4, None, 100)[0] == "auto"
    assert chosen.choices("allreduce", 4, None, 1000)[0] is tuned
    assert tuned not in chosen.choices("allreduce", 5, None, 1000)
    assert chosen.choices("allgather", 4, None, 1000) == [LAST_RESORT]
    assert chosen.choices("allreduce", 4, None, 1)[-1] == LAST_RESORT


def test_a_schedule_serves_its_root_and_no_counts():
    rooted = AlgorithmSet.of([("broadcast", 0, inf, schedule("broadcast", 3, 1024, root=1))])
    assert rooted.choices("broadcast", 3, 1, 10) != [LAST_RESORT]
    assert rooted.choices("broadcast", 3, 0, 10) == [LAST_RESORT]
    shards = AlgorithmSet.of([("gather", 0, inf, schedule("gather", 3, 1024))])
    assert shards.choices("gather", 3, 0, 10) != [LAST_RESORT]
    assert shards.choices("gather", 3, 0, 10, has_counts=True) == [LAST_RESORT]
    grouped = schedule("allgather", 4, 1024, groups=[[0, 1], [2, 3]])
    assert AlgorithmSet.of([("allgather", 0, inf, grouped)]).choices("allgather", 4, None, 10) == [LAST_RESORT]


def test_an_inner_method_may_be_named():
    chosen = AlgorithmSet.of([("allreduce", 0, inf, "hierarchical:ring")])
    assert chosen.choices("allreduce", 4, None, 1)[0] == "hierarchical:ring"


def test_a_folder_is_divided_between_its_sizes(tmp_path):
    for size in (1 << 10, 1 << 14, 1 << 20):
        collsyn.write_schedule(schedule("allgather", 4, size), tmp_path / f"{size}.json")
    collsyn.write_schedule(schedule("allgather", 2, 1 << 14), tmp_path / "two.npz")
    (tmp_path / "notes.txt").write_text("not a schedule")
    chosen = AlgorithmSet.from_folder(tmp_path)
    sizes = {
        given: chosen.choices("allgather", 4, None, given)[0].size_bytes
        for given in (1, (1 << 12) - 1, 1 << 12, (1 << 17) - 1, 1 << 17, 1 << 40)
    }
    assert list(sizes.values()) == [1 << 10, 1 << 10, 1 << 14, 1 << 14, 1 << 20, 1 << 20]
    assert chosen.choices("allgather", 2, None, 1)[0].collective.num_ranks == 2


def test_what_cannot_be_a_rule(tmp_path):
    with pytest.raises(InputError, match="'allgrab' is not known"):
        AlgorithmSet.of([("allgrab", 0, 1, "ring")])
    with pytest.raises(InputError, match=r"rule of allgather: 5 \.\. 5 bytes is empty"):
        AlgorithmSet.of([("allgather", 5, 5, "ring")])
    with pytest.raises(InputError, match="method 'circle' is not known"):
        AlgorithmSet.of([("allgather", 0, 5, "circle")])
    with pytest.raises(InputError, match="the schedule is of allgather"):
        AlgorithmSet.of([("allreduce", 0, 5, schedule("allgather", 2, 1024))])
    with pytest.raises(InputError, match="is not a folder"):
        AlgorithmSet.from_folder(tmp_path / "none")
    with pytest.raises(InputError, match="holds no schedule"):
        AlgorithmSet.from_folder(tmp_path)


def test_a_wrong_schedule_in_a_folder_is_refused(tmp_path):
    collsyn.write_schedule(schedule("allgather", 2, 1024), tmp_path / "bad.json")
    document = json.loads((tmp_path / "bad.json").read_text())
    # Nobody sends the other chunk any more.
    document["sends"]["chunk"] = [0 for _ in document["sends"]["chunk"]]
    (tmp_path / "bad.json").write_text(json.dumps(document))
    with pytest.raises(VerificationError, match=r"bad\.json"):
        AlgorithmSet.from_folder(tmp_path)
