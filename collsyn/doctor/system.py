"""The one door through which checks see the machine, so that tests can put another one behind it."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from collsyn.runtime.bootstrap import launched_size
from collsyn.runtime.mpirun import find_mpirun

# After a kill, processes that the kernel holds (a driver that hangs) are left to it.
_REAP_LIMIT_S = 5.0
_LAST_WORDS = 300


@dataclass(frozen=True)
class Ran:
    """A command that ran: its exit code (None: ended at its time limit) and what it printed."""

    code: int | None
    out: str
    err: str

    def trouble(self, limit_s: float) -> str:
        """In words why the command is no success; empty if it is one."""
        if self.code == 0:
            return ""
        if self.code is None:
            return f"did not end within {limit_s:g} s"
        ended = f"was ended by {_signal_name(-self.code)}" if self.code < 0 else f"ended with code {self.code}"
        lines = [line.strip() for line in (self.err + "\n" + self.out).splitlines() if line.strip()]
        # Of a traceback the last line says it, of most tools the first.
        words = lines[-1 if any(line.startswith("Traceback") for line in lines) else 0] if lines else ""
        return f"{ended}: {words[:_LAST_WORDS]}" if words else ended


@dataclass(frozen=True)
class Answer:
    """What a probe found: facts, or in words why there are none."""

    facts: Mapping[str, Any] | None
    trouble: str = ""


class System:
    """This machine. Nothing here raises for what a machine may lack, and no command outlives its limit."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, ...], Answer] = {}

    def read(self, path: str) -> str | None:
        """Text of a file, None where it cannot be read."""
        try:
            return Path(path).read_text(errors="replace")
        except OSError:
            return None

    def entries(self, folder: str) -> tuple[str, ...]:
        """Names in a folder, sorted; none where it cannot be read."""
        try:
            return tuple(sorted(os.listdir(folder)))
        except OSError:
            return ()

    def space(self, folder: str) -> tuple[int, int] | None:
        """Size of a file system and what is free of it for this user, in bytes; None where there is none."""
        try:
            found = os.statvfs(folder)
        except OSError:
            return None
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def command(self, *names: str) -> str | None:
        """Path of the first of these commands that is there."""
        return next(filter(None, map(shutil.which, names)), None)

    def mpirun(self) -> str | None:
        """The MPI launcher that collsyn would take."""
        found = find_mpirun()
        return found[0] if found else None

    def is_rank(self) -> bool:
        """Whether an MPI launcher started this process, whose variables would mislead MPI in another one."""
        return launched_size() is not None

    def variable(self, name: str) -> str | None:
        """Value of an environment variable."""
        return os.environ.get(name)

    def cores(self) -> tuple[int, ...]:
        """Hardware threads that this process may use."""
        return tuple(sorted(os.sched_getaffinity(0)))

    def limit(self, name: str) -> int | None:
        """A soft resource limit, such as `NOFILE`; None for unlimited."""
        value = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]
        return None if value == resource.RLIM_INFINITY else value

    def version(self, distribution: str) -> str | None:
        """Version of an installed Python distribution."""
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            return None

    def requirements(self) -> list[str]:
        """What the installed collsyn requires, as its metadata has it; nothing for a tree that is not installed."""
        try:
            return metadata.requires("collsyn") or []
        except metadata.PackageNotFoundError:
            return []

    def run(self, words: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None) -> Ran | None:
        """Run a command without input for at most `limit_s` seconds; None where it cannot be started."""
        try:
            process = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        except (OSError, ValueError):
            return None
        code: int | None = None
        out = err = ""
        try:
            out, err = process.communicate(timeout=limit_s)
            code = process.returncode
        except subprocess.TimeoutExpired:
            _kill_group(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                out, err = process.communicate(timeout=_REAP_LIMIT_S)
        finally:
            # Also what the command left behind, or what Ctrl-C interrupted.
            _kill_group(process)
        return Ran(code, out, err)

    def probe(self, name: str, *arguments: str, limit_s: float) -> Answer:
        """What `collsyn.doctor.probes.NAME` says, run once by this Python in a process of its own."""
        key = (name, *arguments)
        if key not in self._answers:
            self._answers[key] = self._ask(key, limit_s)
        return self._answers[key]

    def _ask(self, key: Sequence[str], limit_s: float) -> Answer:
        # The probe must find what this process can import, an uninstalled tree included.
        path = os.pathsep.join(part or os.getcwd() for part in sys.path)
        words = [sys.executable, "-m", f"collsyn.doctor.probes.{key[0]}", *key[1:]]
        ran = self.run(words, limit_s, {"PYTHONPATH": path})
        if ran is None:
            return Answer(None, "Python cannot be started again")
        return answer(ran, limit_s)


def answer(ran: Ran, limit_s: float) -> Answer:
    """The facts that a probe printed on its last line, or what became of it."""
    if ran.code != 0:
        return Answer(None, ran.trouble(limit_s))
    lines = ran.out.splitlines()
    try:
        facts = json.loads(lines[-1]) if lines else None
    except ValueError:
        facts = None
    return Answer(facts) if isinstance(facts, dict) else Answer(None, "printed no answer")


def _kill_group(process: "subprocess.Popen[str]") -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
