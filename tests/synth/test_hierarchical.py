"""Hierarchical: only peers cross between boxes, each byte enters a box once, any inner method, and clear refusals."""

from collections import Counter

import pytest

from collsyn.check.verify import verify_schedule
from collsyn.errors import InputError
from collsyn.lower.lower import lower
from collsyn.model.schedule import Schedule
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from tests.support.running import assert_runs
from tests.support.topologies import zoo

SIZE = 1 << 20
KINDS = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce")


def solve(problem: Problem, name: str = "hierarchical") -> Schedule:
    """The verified schedule of an accepted problem."""
    assert method(name).accepts(problem) is None
    schedule = method(name).synthesize(problem, Options())
    verify_schedule(schedule).raise_if_bad()
    return schedule


def crossing(schedule: Schedule, ranks_per_box: int) -> Counter:
    """Bytes that enter every box from others; all sends between boxes join equal places."""
    lengths = schedule.collective.chunk_bytes(schedule.size_bytes)[schedule.chunk]
    entered: Counter = Counter()
    for src, dst, num_bytes in zip(schedule.src.tolist(), schedule.dst.tolist(), lengths.tolist(), strict=True):
        if src // ranks_per_box != dst // ranks_per_box:
            assert src % ranks_per_box == dst % ranks_per_box
            entered[dst // ranks_per_box] += num_bytes
    return entered


@pytest.mark.parametrize("preset", ["dgx-a100:2", "dgx-h100:3", "ndv2:2"])
@pytest.mark.parametrize("size_bytes", [1 << 12, 1 << 26])
def test_every_shard_enters_every_other_box_once(preset: str, size_bytes: int) -> None:
    topology = load_topology(preset)
    boxes = len(topology.boxes)
    for kind, share in (("allgather", (boxes - 1) / boxes), ("reducescatter", (boxes - 1) / boxes)):
        entered = crossing(solve(Problem(kind, topology, size_bytes)), topology.num_ranks // boxes)
        assert entered == pytest.approx(dict.fromkeys(range(boxes), share * size_bytes))


@pytest.mark.parametrize("root", [0, 11])
@pytest.mark.parametrize("size_bytes", [1 << 10, 1 << 26])
def test_a_broadcast_enters_every_other_box_once(root: int, size_bytes: int) -> None:
    topology = load_topology("dgx-h100:3")
    entered = crossing(solve(Problem("broadcast", topology, size_bytes, root=root)), 8)
    assert entered == pytest.approx({box: size_bytes for box in range(3) if box != root // 8})


def test_cards_bound_a_large_allgather_that_overlaps_its_phases() -> None:
    # Half of 64M over eight cards of 25 GB/s is 168 us; a box takes 98 us for the half that it has, and again after it.
    finish_s = solve(Problem("allgather", load_topology("dgx-a100:2"), 1 << 26)).finish_s
    assert 192e-6 < finish_s < 168e-6 + 98e-6


@pytest.mark.parametrize("name", ["hierarchical:ring", "hierarchical:direct", "hierarchical:bine+ring"])
@pytest.mark.parametrize("kind", KINDS)
def test_named_inner_methods(name: str, kind: str) -> None:
    schedule = solve(Problem(kind, load_topology("mi300x:2"), SIZE), name)
    assert schedule.provenance["method"] == name


def test_inner_methods_shape_the_traffic() -> None:
    # A ring of 8 has each rank send to one other rank of its box; direct to all seven.
    for name, partners in (("hierarchical:ring", 1), ("hierarchical:direct", 7)):
        schedule = solve(Problem("allgather", load_topology("mi300x:2"), SIZE), name)
        inside = {(s, d) for s, d in zip(schedule.src.tolist(), schedule.dst.tolist(), strict=True) if s // 8 == d // 8}
        assert set(Counter(s for s, _ in inside).values()) == {partners}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("topology", "size_bytes"), [("two boxes", 1 << 10), ("two boxes", 1 << 26), ("ndv2:2", 1 << 20)]
)
def test_plans_run_right(kind: str, topology: str, size_bytes: int) -> None:
    root = 1 if kind in ("broadcast", "reduce") else None
    schedule = solve(Problem(kind, zoo(topology), size_bytes, root=root))
    assert_runs(lower(schedule), 3 * schedule.collective.total_units)


@pytest.mark.parametrize("kind", KINDS)
def test_groups_chunks_and_counts(kind: str) -> None:
    topology = load_topology("mi300x:2")
    groups = ((0, 1, 2, 8, 9, 10), (15, 14, 7, 6))
    root = 3 if kind in ("broadcast", "reduce") else None
    solve(Problem(kind, topology, SIZE, 3, root=root))
    if kind in ("allgather", "reducescatter"):
        solve(Problem(kind, topology, SIZE, counts=[rank % 3 for rank in range(16)]))
        refused = method("hierarchical").accepts(Problem(kind, topology, SIZE, 2, groups=groups))
        assert refused == "needs as many ranks in every box, not 2 and 3"
    solve(Problem(kind, topology, SIZE, 2, root=root, groups=(groups[1], (8, 0, 9, 1))))


@pytest.mark.parametrize(
    ("preset", "ranks", "reason"),
    [
        ("ring:8", None, "needs boxes, and the topology does not say which ranks form one"),
        ("dgx-a100", None, "needs ranks in two boxes or more"),
        ("dgx-a100:2", (0, 1, 2, 8), "needs as many ranks in every box, not 1 and 3"),
        ("dgx-a100:2", (0, 8), "needs two ranks or more in every box"),
        ("ndv2:2@costs=teccl", None, "across boxes: ring found no ring of hops through all ranks"),
    ],
)
def test_reasons(preset: str, ranks: tuple[int, ...] | None, reason: str) -> None:
    topology = load_topology(preset)
    topology = topology if ranks is None else topology.subset(ranks)
    assert method("hierarchical").accepts(Problem("allgather", topology, SIZE)) == reason


def test_an_inner_method_that_cannot_is_named() -> None:
    problem = Problem("allgather", load_topology("dgx-a100:2").subset([0, 1, 2, 8, 9, 10]), SIZE)
    refused = method("hierarchical:recursive").accepts(problem)
    assert refused == "inside boxes: recursive needs a power of two of ranks, not 3"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hierarchical:rings", "'rings' is no inner method; expected one of ring, "),
        ("hierarchical:hierarchical", "'hierarchical' is no inner method"),
        ("hierarchical:ring+ring+ring", "expected hierarchical:INNER or hierarchical:INNER+ACROSS"),
        ("hierarchical:", "'' is no inner method"),
        ("ring:direct", "ring takes nothing behind a colon; hierarchical:INNER and exact:C/S/R do"),
    ],
)
def test_wrong_names(name: str, message: str) -> None:
    with pytest.raises(InputError, match="method") as caught:
        method(name)
    assert message in str(caught.value)
