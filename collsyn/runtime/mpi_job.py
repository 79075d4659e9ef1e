"""Ranks as processes of mpirun (or srun), which report through named pipes in a private folder."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collsyn.errors import DeviceError
from collsyn.runtime.forked import exit_text
from collsyn.runtime.mpirun import rank_command, rank_environment
from collsyn.runtime.native_loader import debugging
from collsyn.runtime.worker import JOB_FILE, pipe_name

_OUTPUT = "output"
_LAST_LINES = 3
_TERMINATE_S = 3.0


class MpiJob:
    """Ranks under one launcher process in a session of their own."""

    def __init__(
        self, mpirun: list[str], target: str, arguments: Mapping[str, Any], num_ranks: int, limit_s: float
    ) -> None:
        self._name = os.path.basename(mpirun[0])
        command = [*rank_command(mpirun, num_ranks), sys.executable, "-m", "mpi4py", "-m", "collsyn.runtime.worker"]
        environment = {**os.environ, **rank_environment(mpirun, num_ranks)}
        # Ranks must find what this process can import, an uninstalled tree and the caller's own modules included.
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self._folder = Path(tempfile.mkdtemp(prefix="collsyn-job-"))
        self._pids: list[int] = []
        self.fds: list[int] = []
        try:
            job = {"target": target, "arguments": dict(arguments), "limit_s": limit_s}
            (self._folder / JOB_FILE).write_text(json.dumps(job))
            for rank in range(num_ranks):
                pipe = self._folder / pipe_name(rank)
                os.mkfifo(pipe, 0o600)
                self.fds.append(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            with open(self._folder / _OUTPUT, "wb") as output:
                self._process = subprocess.Popen(
                    [*command, str(self._folder), str(num_ranks)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            self._remove()
            raise DeviceError(f"{self._name} cannot be started: {error.strerror}") from None

    def how_ended(self, rank: int | None) -> str:
        """What the launcher ended with, and its last words where they are all there is to say."""
        code = self._process.poll()
        if rank is not None:
            return "was lost" if code is None else f"was lost, {self._name} {exit_text(code)}"
        return f"{self._name} {exit_text(code or 0)}: {self._last_words()}"

    def note(self, rank: int, message: Mapping[str, Any]) -> None:
        """A rank's process."""
        self._pids.append(message["pid"])

    def is_running(self) -> bool:
        """Whether the launcher is still there."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the launcher, which ends its ranks, and whatever it leaves."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_TERMINATE_S)
            self._process.kill()
            self._process.wait()
        for pid in self._pids:
            # Ranks are in sessions of their own; one that is left by now has lost its launcher.
            if _is_worker(pid, self._folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Remove the folder, and pass on what ranks printed to standard error where nothing failed or all is wanted."""
        if not self._process.returncode or debugging():
            sys.stderr.write(self._output())
        self._remove()

    def _remove(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []
        shutil.rmtree(self._folder, ignore_errors=True)

    def _output(self) -> str:
        try:
            return (self._folder / _OUTPUT).read_text(errors="replace")
        except OSError:
            return ""

    def _last_words(self) -> str:
        lines = [line.strip(" =-\t") for line in self._output().splitlines()]
        return " / ".join([line for line in lines if line][-_LAST_LINES:]) or "it printed nothing"


def _is_worker(pid: int, folder: Path) -> bool:
    """Whether the process is still the rank that it was when it reported (numbers are used again)."""
    try:
        return os.fsencode(folder) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
