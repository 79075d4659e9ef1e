"""Ranks in several boxes: boundaries that are forced on one machine, all bytes by way of MPI, and what goes wrong."""

from types import SimpleNamespace

import numpy as np
import pytest

from collsyn.errors import DeviceError, InputError
from collsyn.lower.lower import lower
from collsyn.model.bind import bind
from collsyn.model.plan_file import write_plan
from collsyn.runtime.boxes import BOX_SIZE, Boxes, box_name
from collsyn.runtime.crossing import AWAIT, FETCH, RAISE, SEND, SEND_DIRECT, cross
from collsyn.runtime.launch import launch
from collsyn.runtime.mpi_library import MpiLibrary
from collsyn.runtime.mpirun import has_mpi
from collsyn.runtime.native_loader import native_library
from collsyn.runtime.transport import STAGING, TRANSPORT, device_direct_from, make_proxy
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from tests.runtime.test_lowered import write_ahead
from tests.support.hand_plans import swap_plan

LIMIT_S = 120
needs_mpi = pytest.mark.skipif(
    not has_mpi() or native_library() is None, reason="needs mpi4py, an mpirun and a compiler"
)


def start(name: str, num_ranks: int, **arguments):
    return launch(f"tests.runtime.targets:{name}", arguments, num_ranks, "mpirun", LIMIT_S)


def test_boxes_are_numbered_by_their_first_ranks() -> None:
    boxes = Boxes.of(["b", "a", "b", "a"])
    assert boxes.of_rank == (0, 1, 0, 1)
    assert boxes.near(2) == {0, 2}
    assert boxes.words(3) == "rank 3 (box 1)"
    assert Boxes.of(["x"] * 3).words(2) == "rank 2"
    # Each box hears the one before it, rank by rank.
    assert [boxes.neighbours(rank) for rank in range(4)] == [(1, 1), (0, 0), (3, 3), (2, 2)]


def planned(boxes: list[list[int]]):
    """A plan for a machine with these boxes."""
    return SimpleNamespace(name="p", topology=SimpleNamespace(boxes=boxes))


def test_boxes_of_unequal_size_and_plans_of_other_boxes_are_refused() -> None:
    with pytest.raises(DeviceError, match=r"unequal numbers of ranks: box 0 has 2, box 1 has 1; start as many in each"):
        Boxes.of(["a", "a", "b"]).check_equal()
    boxes = Boxes.of(["a", "a", "b", "b"])
    boxes.check_equal()
    for fine in ([[0, 1, 4], [2, 3, 5]], [[0], [1], [2], [3]], []):
        boxes.check_against(planned(fine))
    with pytest.raises(
        DeviceError, match=r"plan p: has ranks 0 and 2 in its box 0, but they run as rank 0 \(box 0\) and"
    ):
        boxes.check_against(planned([[0, 2, 4], [1, 3, 5]]))
    # In one box everything runs.
    Boxes.of(["a"] * 4).check_against(planned([[0, 2], [1, 3]]))


def test_a_forced_size_splits_a_machine(monkeypatch) -> None:
    monkeypatch.setenv(BOX_SIZE, "2")
    assert [box_name(rank, "m") for rank in range(4)] == ["m/0", "m/0", "m/1", "m/1"]
    monkeypatch.delenv(BOX_SIZE)
    assert box_name(3, "m") == "m"
    for wrong in ("0", "two", "-1"):
        monkeypatch.setenv(BOX_SIZE, wrong)
        with pytest.raises(InputError, match=r"COLLSYN_BOX_SIZE: is .*expected a number of ranks, at least 1"):
            box_name(0, "m")


def test_a_put_crosses_in_pieces_and_its_signal_behind_it() -> None:
    bound = bind(swap_plan(), 2 << 20, 1)
    rows = np.arange(6)
    steps = cross(bound, rows, np.array([6]), near={0}, direct_from=1 << 40)
    kinds = steps.kind.tolist()
    # signal, local copy, wait, a put of 1 MiB in pieces of 64 KiB, signal, wait.
    assert kinds == [RAISE, -1, -1, *[SEND] * 16, RAISE, -1]
    assert steps.skip[3:19].tolist() == [piece << 16 for piece in range(16)]
    assert steps.length[3:19].sum() == 1 << 20
    assert FETCH not in kinds
    # What is sent from where it is may not change before it has left.
    direct = cross(bound, rows, np.array([6]), near={0}, direct_from=1).kind.tolist()
    assert direct == [RAISE, -1, -1, SEND_DIRECT, AWAIT, RAISE, -1]
    awaited = cross(bound, rows, np.array([6]), near={0}, direct_from=1 << 40, all_await=True).kind.tolist()
    assert awaited == [RAISE, -1, -1, *[SEND] * 16, AWAIT, RAISE, -1]
    inside = cross(bound, rows, np.array([6]), near={0, 1}, direct_from=1)
    assert set(inside.kind.tolist()) == {-1}


@needs_mpi
@pytest.mark.parametrize(("num_ranks", "size"), [(2, "1"), (4, "2"), (4, "1")])
@pytest.mark.parametrize("builder", ["put_allgather", "ring_allreduce"])
def test_all_bytes_cross_right(num_ranks: int, size: str, builder: str, monkeypatch) -> None:
    monkeypatch.setenv(BOX_SIZE, size)
    arguments = {"elements": [1, 301, 50_003], "dtypes": ["float32", "uint8"], "ops": ["sum"]}
    assert start("check_plan", num_ranks, builder=builder, **arguments) == [[]] * num_ranks


@needs_mpi
@pytest.mark.parametrize("staging", ["0", "1"])
def test_data_that_is_staged_and_data_that_is_not(staging: str, monkeypatch) -> None:
    monkeypatch.setenv(BOX_SIZE, "1")
    monkeypatch.setenv(STAGING, staging)
    found = start("check_plan", 3, builder="ring_allreduce", elements=[1, 70_001], dtypes=["float64"], ops=["sum"])
    assert found == [[]] * 3


def written(folder, topology: str, wanted: dict[str, str]) -> list[str]:
    """Plans of collectives by methods, as files."""
    files = []
    for kind, by in wanted.items():
        schedule = method(by).synthesize(Problem(kind, load_topology(topology), 1 << 16), Options())
        files.append(str(folder / f"{kind}-{by}.json"))
        write_plan(lower(schedule), files[-1])
    return files


BY = {"allgather": "trees", "reducescatter": "paths", "allreduce": "hierarchical", "alltoall": "paths"}


@needs_mpi
@pytest.mark.parametrize("topology", ["ndv2:2", pytest.param("dgx-a100:2", marks=pytest.mark.slow)])
def test_plans_of_two_boxes_run_in_two_boxes(topology: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(BOX_SIZE, "8")
    files = written(tmp_path, topology, BY)
    found = start("check_files", 16, files=files, elements=[1, 2003], kinds=[("float32", "sum"), ("uint8", "avg")])
    assert [wrong for wrong, _ in found] == [[]] * 16


@needs_mpi
def test_calls_run_ahead_between_boxes(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(BOX_SIZE, "2")
    file = write_ahead(tmp_path / "plan.json", "allgather", "direct")
    assert start("in_a_row", 4, file=file, turns=50, elements=40_000) == [[]] * 4


@needs_mpi
def test_a_plan_of_other_boxes_is_refused_before_it_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(BOX_SIZE, "4")
    files = written(tmp_path, "dgx1", {"allgather": "trees"})
    with pytest.raises(
        DeviceError, match=r"has ranks 0 and 4 in its box 0, but they run as rank 0 \(box 0\) and rank 4"
    ):
        start("check_files", 8, files=files, elements=[8], kinds=[("uint8", "sum")])


@needs_mpi
@pytest.mark.parametrize("how", ["kill", "exit"])
def test_a_lost_rank_of_another_box_ends_all_and_is_named(how: str, monkeypatch) -> None:
    monkeypatch.setenv(BOX_SIZE, "1")
    # Some launchers end all other ranks before these can say which one was first.
    with pytest.raises(DeviceError, match=r"^rank 1 |^ranks 0, 1, 2 were lost: mpirun ended"):
        start("loop_until_one_dies", 3, victim=1, how=how)


@needs_mpi
def test_a_wait_for_another_box_says_whom_it_is_for(monkeypatch) -> None:
    monkeypatch.setenv(BOX_SIZE, "1")
    with pytest.raises(DeviceError, match=r"rank 1, channel 1, instruction 2: wait flag 3 >= 7 .*rank 0 \(box 0\)"):
        start("be_stuck", 3, limit_s=0.5)


@needs_mpi
@pytest.mark.parametrize(
    ("variable", "value", "num_ranks", "message"),
    [
        (BOX_SIZE, "2", 3, "boxes have unequal numbers of ranks: box 0 has 2, box 1 has 1"),
        (BOX_SIZE, "none", 2, "COLLSYN_BOX_SIZE: is 'none'; expected a number of ranks"),
        (TRANSPORT, "nccl", 2, "COLLSYN_TRANSPORT=nccl: nccl4py is not installed"),
        (TRANSPORT, "rdma", 2, "COLLSYN_TRANSPORT: is 'rdma'; expected mpi or nccl"),
        (STAGING, "maybe", 2, "COLLSYN_STAGING: is 'maybe'; expected 1"),
    ],
)
def test_what_is_asked_for_wrongly_is_one_line(
    variable: str, value: str, num_ranks: int, message: str, monkeypatch
) -> None:
    monkeypatch.setenv(BOX_SIZE, "1")
    monkeypatch.setenv(variable, value)
    with pytest.raises((DeviceError, InputError), match=message):
        start("check_plan", num_ranks, builder="put_allgather", elements=[4], dtypes=["uint8"], ops=["sum"])


def test_forked_ranks_cannot_leave_their_box(monkeypatch) -> None:
    monkeypatch.setenv(BOX_SIZE, "1")
    with pytest.raises(DeviceError, match=r"share no memory, and only ranks that MPI started \(mpirun, srun\) reach"):
        launch("tests.runtime.targets:be_stuck", {"limit_s": 1}, 2, "fork", LIMIT_S)


def test_an_mpi_without_threads_is_refused() -> None:
    mpi = SimpleNamespace(
        Query_thread=lambda: 1,
        THREAD_SINGLE=0,
        THREAD_FUNNELED=1,
        THREAD_SERIALIZED=2,
        THREAD_MULTIPLE=3,
        Get_library_version=lambda: "Some MPI 1.0, of long ago",
    )
    with pytest.raises(DeviceError, match=r"MPI_THREAD_MULTIPLE; Some MPI 1\.0 gives MPI_THREAD_FUNNELED"):
        MpiLibrary(mpi)


def test_memory_of_gpus_goes_to_an_mpi_that_takes_it_and_is_staged_otherwise() -> None:
    assert device_direct_from(SimpleNamespace(is_device_aware=True)) == 1
    assert device_direct_from(SimpleNamespace(is_device_aware=False)) > 1 << 60


def test_without_a_compiler_there_is_no_way_between_boxes(monkeypatch) -> None:
    monkeypatch.setattr("collsyn.runtime.proxy.native_library", lambda: None)
    monkeypatch.setattr("collsyn.runtime.transport.MpiLibrary", lambda: None)
    with pytest.raises(DeviceError, match="ranks in several boxes need a C compiler"):
        make_proxy(0, Boxes.of(["a", "b"]), None, None, 1, False)
