"""Which launcher is taken, what its kind needs, and what launchers leave in the environment of ranks."""

import os

import pytest

from collsyn.errors import InputError
from collsyn.runtime import mpirun
from collsyn.runtime.bootstrap import inside_mpi, launched_size

VARIABLES = (
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",
    "SLURM_STEP_ID",
    "SLURM_STEPID",
)


def launcher(folder, version, name="mpirun"):
    """A launcher that says which one it is."""
    script = folder / name
    script.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}"\n')
    script.chmod(0o755)
    return [str(script)]


@pytest.mark.parametrize(
    ("version", "root", "options"),
    [
        ("mpirun (Open MPI) 4.1.4", True, ["--oversubscribe", "--allow-run-as-root"]),
        ("mpirun (Open MPI) 5.0.11", False, ["--oversubscribe"]),
        ("HYDRA build details:", True, []),
        ("slurm 23.02.1", True, []),
    ],
)
def test_options_of_every_kind(tmp_path, monkeypatch, version, root, options):
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    command = launcher(tmp_path, version)
    assert mpirun.rank_command(command, 7) == [*command, "-n", "7", *options]


def test_mpich_with_more_ranks_than_cores_must_not_spin(tmp_path, monkeypatch):
    command, cores = launcher(tmp_path, "HYDRA build details:"), len(os.sched_getaffinity(0))
    monkeypatch.delenv("MPIR_CVAR_POLLS_BEFORE_YIELD", raising=False)
    monkeypatch.setenv("MPIR_CVAR_ENABLE_HEAVY_YIELD", "0")
    assert mpirun.rank_environment(command, cores) == {}
    assert mpirun.rank_environment(command, cores + 1) == {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}


def test_the_launcher_beside_the_interpreter_wins(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "path").mkdir()
    on_path = launcher(tmp_path / "path", "HYDRA", "mpiexec")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(mpirun.sys, "executable", str(tmp_path / "here" / "python"))
    assert mpirun.find_mpirun() == on_path
    beside = launcher(tmp_path / "here", "HYDRA", "mpiexec")
    assert mpirun.find_mpirun() == beside
    assert mpirun.given_mpirun("mpirun --verbose") == [*beside, "--verbose"]
    assert mpirun.given_mpirun(f"{on_path[0]} -x 'a b'") == [*on_path, "-x", "a b"]
    with pytest.raises(InputError, match="is no command that can be run"):
        mpirun.given_mpirun("srun --mpi=pmix")


@pytest.mark.parametrize(
    ("environment", "size"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, 4),
        ({"PMI_SIZE": "1"}, 1),
        # mpirun inside of an allocation of another size.
        ({"PMI_SIZE": "4", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"}, 4),
        ({"SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"}, 8),
        ({"SLURM_NTASKS": "8", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}, 2),
        # A batch script, where srun has not started anything yet.
        ({"SLURM_NTASKS": "8"}, None),
        ({"SLURM_NTASKS": "8", "SLURM_STEPID": "4294967291"}, None),
        ({"PMI_SIZE": "many"}, None),
    ],
)
def test_number_of_ranks_that_a_launcher_started(monkeypatch, environment, size):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert launched_size() == size
    assert inside_mpi() == (size is not None and size > 1)
