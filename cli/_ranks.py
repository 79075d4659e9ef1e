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


def loopback_option() -> Callable[[F], F]:
    """`--loopback N`; the command gets `loopback: int | None`."""
    return click.option(
        "--loopback",
        type=click.IntRange(2, MAX_RANKS),
        metavar="N",
        help="N ranks on one GPU, in this process; what is timed is its own memory.",
    )


def chosen_backend(backend: str, loopback: int | None = None, emulate: str | None = None, needed: int = 2) -> str:
    """`host` or `cuda`; raises DeviceError where there is none of the kind asked for.

    `auto` is cuda where `needed` GPUs can be used and nothing else asks for the host.
    """
    if loopback is not None and (backend == "host" or emulate):
        raise click.UsageError("--loopback puts ranks on a GPU; it goes with neither --backend host nor --emulate")
    if backend == "cuda" and emulate:
        raise click.UsageError("--emulate runs on host ranks; leave --backend cuda out")
    if backend == "host" or emulate:
        return "host"
    if backend == "auto" and loopback is None and not _has_cupy():
        return "host"
    from collsyn.cuda.availability import why_no_gpus

    if backend == "auto" and loopback is None:
        return "host" if why_no_gpus(needed) else "cuda"
    reason = why_no_gpus()
    if reason:
        raise DeviceError(f"backend cuda: {reason}; use --backend host")
    return "cuda"


def _has_cupy() -> bool:
    from importlib.util import find_spec

    return find_spec("cupy") is not None


def launcher_of(
    backend: str, launcher: str | None, mpirun: str | None, loopback: int | None = None, needs_mpi: bool = False
) -> str:
    """What starts the ranks of a backend: GPUs of this machine need no processes of their own unless asked for."""
    from collsyn.bench.job import HERE
    from collsyn.runtime.bootstrap import inside_mpi

    if backend == "host":
        return chosen_launcher(launcher, mpirun, needs_mpi)
    if loopback is not None and (launcher or mpirun):
        raise click.UsageError("--loopback starts no processes; leave --launcher and --mpirun out")
    if loopback is not None or (launcher is None and mpirun is None and not inside_mpi()):
        return HERE
    return chosen_launcher(launcher, mpirun)


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
