"""Models as MPS files: the same model again, one file for equal ones, and one line where they cannot be written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collsyn.errors import InputError
from collsyn.solver import ArrayModel, Status, loaded, new_highs, solve
from collsyn.solver.export import VARIABLE, use_folder, write_model
from tests.conftest import RunCli
from tests.support.programs import INF, knapsacks, program


def read(path: Path) -> Any:
    """A solver that holds a file's model."""
    highs = new_highs("read")
    highs.readModel(str(path))
    return highs


def solved(path: Path) -> float:
    """The least objective of a file's model."""
    highs = read(path)
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.run()
    return float(highs.getInfo().objective_function_value)


@pytest.mark.parametrize(
    "model",
    [
        knapsacks(20, 8, seed=1, share=0.5),
        knapsacks(20, 8, seed=1, share=0),
        program(
            [[1 / 3, 2, -1], [0.1, 0.2, 0.3], [1, 1, 1]], [-1, 0.5, 2], [1 / 7, INF, 2],
            [-INF, -5, 0], [INF, 5, 9], [1 / 3, -1, 0.1], [False, True, False],
        ),
    ],
)  # fmt: skip
def test_a_file_is_the_model(model: ArrayModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "new" / "models"))
    answer = solve(model)
    monkeypatch.setenv(VARIABLE, "")
    (path,) = (tmp_path / "new" / "models").iterdir()
    assert path.name.startswith("tiny-") and path.suffix == ".mps"
    assert answer.status is Status.OPTIMAL
    assert solved(path) == pytest.approx(answer.objective, abs=1e-9)
    lp, whole = read(path).getLp(), model.integer if model.is_mixed else np.zeros(len(model.cost), dtype=bool)
    for name, values in (("row_lower_", model.row_low), ("row_upper_", model.row_high), ("col_cost_", model.cost)):
        assert getattr(lp, name) == pytest.approx(values, abs=1e-12), name
    assert lp.col_lower_ == pytest.approx(model.low) and lp.col_upper_ == pytest.approx(model.high)
    assert [str(kind).endswith("kInteger") for kind in lp.integrality_] == whole.tolist() or not whole.any()


def test_a_program_that_grows_is_written_at_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    highs, nothing = new_highs("trees of 2/3 parts"), (np.zeros(0, np.int32), np.zeros(0))
    highs.addCol(1.0, 0.0, INF, 0, *nothing)
    least = []
    for side in (1.0, 2.0, 2.0):
        highs.addRow(side, INF, 1, np.zeros(1, np.int32), np.ones(1))
        for _ in range(2):
            highs.run()
        least.append(highs.getInfo().objective_function_value)
    paths = sorted(tmp_path.iterdir())
    assert {path.name.rsplit("-", 1)[0] for path in paths} == {"trees-of-2-3-parts"}
    assert sorted(solved(path) for path in paths) == least == [1.0, 2.0, 2.0]


def test_nothing_is_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE)
    solve(knapsacks(5, 2, seed=1))
    use_folder(None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["file", "file/inside", "/proc/nothing/here"])
def test_an_unwritable_folder_is_one_line(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = tmp_path / place
    monkeypatch.setenv(VARIABLE, str(folder))
    model = knapsacks(5, 2, seed=1)
    for attempt in (lambda: use_folder(folder), lambda: use_folder(None), lambda: solve(model)):
        with pytest.raises(InputError) as caught:
            attempt()
        assert str(caught.value).startswith(f"{folder}: models cannot be written: ")
        assert "\n" not in str(caught.value)


def test_a_model_that_is_cut_off_leaves_nothing(tmp_path: Path) -> None:
    class Full:
        """A solver on a full disk."""

        def writeModel(self, path: str) -> None:  # noqa: N802
            """The first lines."""
            Path(path).write_text("NAME\nROWS\n")

    with pytest.raises(InputError, match="could not write all of it"):
        write_model(Full(), "x", tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert write_model(loaded(knapsacks(5, 2, seed=1)), "x", tmp_path).parent == tmp_path


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("bound --collective allreduce --topology mesh:3x3", {"joint-bound"}),
        ("pareto --collective allgather --topology ring:4", {"exact-instance", "exact-rounds"}),
        ("synthesize --collective alltoall --topology ring:4 --method flow -o none", {"flow"}),
        # In worker processes.
        ("synthesize --collective broadcast --topology ring:4 --jobs 2 -o none", {"trees", "exact-instance"}),
    ],
)
def test_commands_write_what_they_solve(command: str, names: set[str], tmp_path: Path, run_cli: RunCli) -> None:
    done = run_cli(*command.split(), "--write-model", tmp_path / "models")
    assert done.code == 0, done.stderr
    written = {path.name.rsplit("-", 1)[0] for path in (tmp_path / "models").iterdir()}
    assert names <= written
    done = run_cli(*command.split(), "--write-model", "/proc/nothing/here")
    assert (done.code, done.stderr.count("\n")) == (2, 1)
    assert "/proc/nothing/here: models cannot be written" in done.stderr


def test_a_result_that_is_known_is_solved_again(tmp_path: Path, run_cli: RunCli) -> None:
    asked = ["synthesize", "--collective", "alltoall", "--topology", "ring:4", "--method", "flow", "-o", "none"]
    known = {"COLLSYN_RESULTS": str(tmp_path / "results")}
    assert run_cli(*asked, env=known).code == 0
    assert run_cli(*asked, "--write-model", tmp_path / "models", env=known).code == 0
    assert list((tmp_path / "models").glob("*.mps"))
