"""Options of the commands that start ranks, and what they decide."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from collsyn.errors import DeviceError

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_RANKS = 4
MAX_RANKS = 1024


def rank_options(function: F, /) -> F:
    """`--backend`, `--ranks`, `--launcher`, `--mpirun`; the command gets `backend`, `ranks`, `launcher`, `mpirun`."""
    options = [
        click.option(
            "--backend",
            type=click.Choice(["auto", "cuda", "host"]),
            default="auto",
            show_default=True,
            help="Where ranks keep their data.",
        ),
        click.option("--ranks", type=click.IntRange(1, MAX_RANKS), metavar="N", help="Number of processes to start."),
        click.option(
            "--launcher",
            metavar="fork|mpirun|CMD",
            help="How to start them: fork, the mpirun that belongs to this Python, or a command of your own.",
        ),
        click.option("--mpirun", metavar="CMD", help="The same as --launcher CMD, such as 'srun --mpi=pmix'."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def chosen_backend(backend: str) -> str:
    """The backend to run on; raises DeviceError where this version has none of that kind."""
    if backend == "cuda":
        raise DeviceError("backend: cuda is not available in this version; use --backend host")
    return "host"


def chosen_launcher(launcher: str | None, mpirun: str | None, needs_mpi: bool = False) -> str:
    """What `launch` takes: as asked, the job that this process is a rank of, mpirun where MPI is needed, else fork."""
    if launcher is not None and mpirun is not None:
        raise click.UsageError("--launcher and --mpirun exclude each other")
    from collsyn.runtime.bootstrap import inside_mpi

    asked = launcher or mpirun
    if asked is not None:
        return asked
    if inside_mpi():
        return "auto"
    return "mpirun" if needs_mpi else "fork"


def world_size(launcher: str) -> int | None:
    """Ranks of the job that this process is a rank of, where the launcher takes it as it is; else None."""
    from collsyn.runtime.bootstrap import inside_mpi, launched_size

    return launched_size() if launcher == "auto" and inside_mpi() else None


def is_speaker(launcher: str) -> bool:
    """Whether this process is the one that prints and writes files: the only one, or rank 0 of the user's own job."""
    if world_size(launcher) is None:
        return True
    from collsyn.runtime.bootstrap import MpiBootstrap

    return MpiBootstrap().rank == 0
