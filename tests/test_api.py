"""The library's face: what `import collsyn` offers, and the examples that show it."""

import subprocess
import sys
from pathlib import Path

import pytest

import collsyn
from collsyn.errors import InputError

# Those that train need torch, and minutes; tests/cuda runs those that need a GPU on threads of the host.
TRAINING, ON_GPUS = "train_", ("scaled_allreduce.py",)
EXAMPLES = [
    pytest.param(path, marks=pytest.mark.slow if path.name.startswith(TRAINING) else ())
    for path in sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
    if path.name not in ON_GPUS
]


def test_importing_the_package_loads_neither_numpy_nor_solvers() -> None:
    code = "import collsyn, sys; print([m for m in ('numpy', 'scipy', 'numba', 'highspy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there_and_documented() -> None:
    from collsyn import api

    for name in api.__all__:
        assert getattr(collsyn, name).__doc__, name
    assert set(api.__all__) <= set(dir(collsyn))
    with pytest.raises(AttributeError, match="no attribute 'allreduce'"):
        _ = collsyn.allreduce


def test_a_schedule_made_verified_written_and_read_again(tmp_path: Path) -> None:
    schedule = collsyn.synthesize("allgather", "ring:4", "1M", method="ring")
    assert schedule.finish_s >= collsyn.bound("allgather", "ring:4", "1M").time_s
    collsyn.write_schedule(schedule, tmp_path / "ring.json")
    again = collsyn.read_schedule(tmp_path / "ring.json")
    assert collsyn.verify(again).ok
    assert collsyn.verify(tmp_path / "ring.json").ok
    assert again.finish_s == schedule.finish_s
    assert collsyn.verify(collsyn.lower(again)).ok
    assert collsyn.simulate(again, "4M").finish_s > again.finish_s


def test_custom_collectives_and_groups_come_through() -> None:
    grouped = collsyn.synthesize("allgather", "full:4", 4096, groups=[[0, 1], [3, 2]], method="direct")
    assert grouped.collective.groups == ((0, 1), (3, 2))
    with pytest.raises(InputError, match="counts"):
        collsyn.synthesize("alltoallv", "full:4")
    with pytest.raises(InputError, match="expected one of"):
        collsyn.synthesize("allgrab", "full:4")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    if example.name.startswith(TRAINING):
        pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
