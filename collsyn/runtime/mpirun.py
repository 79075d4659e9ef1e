"""Finding an MPI launcher, and the options and variables that its kind needs."""

import functools
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from collsyn.errors import DeviceError, InputError

_NAMES = ("mpirun", "mpiexec")
_VERSION_LIMIT_S = 30


def find_mpirun() -> list[str] | None:
    """The launcher that belongs to this Python environment, else that of the PATH."""
    for name in _NAMES:
        beside = Path(sys.executable).parent / name
        found = str(beside) if os.access(beside, os.X_OK) else shutil.which(name)
        if found:
            return [found]
    return None


def given_mpirun(text: str) -> list[str]:
    """Words of a launcher command that the user gave, such as `srun --mpi=pmix`; InputError where it is not there."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"mpirun: {text!r} is no command that can be run: {str(error).lower()}") from None
    if words and words[0] in _NAMES:
        words = [*(find_mpirun() or words[:1]), *words[1:]]
    if not words or shutil.which(words[0]) is None:
        raise InputError(f"mpirun: {text!r} is no command that can be run")
    return words


def has_mpi() -> bool:
    """Whether mpi4py is installed (it may still find no MPI library)."""
    return importlib.util.find_spec("mpi4py") is not None


def rank_command(mpirun: list[str], num_ranks: int) -> list[str]:
    """The command that starts `num_ranks` of what is appended to it, also as root and with more ranks than cores."""
    options = ["-n", str(num_ranks)]
    if _kind(tuple(mpirun)) == "open mpi":
        options += ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    return [*mpirun, *options]


def rank_environment(mpirun: list[str], num_ranks: int) -> dict[str, str]:
    """Variables to add to the environment; what the user has set already stays."""
    wanted = {}
    if _kind(tuple(mpirun)) == "mpich" and num_ranks > len(os.sched_getaffinity(0)):
        # Ranks that spin for others keep them from running.
        wanted = {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
    return {key: value for key, value in wanted.items() if key not in os.environ}


@functools.cache
def _kind(mpirun: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(
            [mpirun[0], "--version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceError(f"{mpirun[0]} --version does not answer: {error}") from None
    return version_kind(done.stdout + done.stderr)


def version_kind(text: str) -> str:
    """`open mpi`, `mpich` or `other`, by what a launcher prints for `--version`."""
    text = text.lower()
    if "open mpi" in text or "openrte" in text or "prterun" in text or "prrte" in text:
        return "open mpi"
    return "mpich" if "hydra" in text or "mpich" in text else "other"
