"""Schedules searched for while a job runs: in a process of its own, and kept in the cache folder for later jobs.

Run as a module, it is that process: its arguments are in JSON, and it writes one schedule file.
"""

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collsyn import __version__
from collsyn.check.verify import verify_schedule
from collsyn.errors import CollsynError
from collsyn.files import digest
from collsyn.model.fields import Fields
from collsyn.model.schedule import Schedule
from collsyn.model.schedule_file import read_schedule, write_schedule
from collsyn.model.topology import Topology
from collsyn.model.topology_file import topology_document, topology_from_fields
from collsyn.portfolio.auto import best
from collsyn.portfolio.candidates import chosen
from collsyn.runtime.native_loader import cache_folder
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import METHODS

# Each rank adds up in an order of its own there, and gets bits of its own.
_UNLIKE = "one-shot"
# A search may end that much later than its limit: start-up, the method under way, verifying.
_GRACE_S = 60.0


@dataclass(frozen=True)
class Sought:
    """What a schedule is searched for; `size_bytes` is a power of two that the calls it will serve are at most."""

    kind: str
    root: int | None
    size_bytes: int


class Search:
    """Searches of one rank, one process at a time; the other ranks learn the outcome from it."""

    def __init__(self, topology: Topology, limit_s: float) -> None:
        """Schedules are for `topology`; a search takes about `limit_s` seconds at most."""
        self._document, self._limit_s = topology_document(topology), limit_s
        self._running: tuple[Sought, subprocess.Popen[bytes]] | None = None
        self._failed: set[Sought] = set()

    def find(self, sought: Sought, must_wait: bool) -> Schedule | str:
        """The verified schedule; or "later" (never where `must_wait`), or "never" where the search came to nothing."""
        file = self._file(sought)
        schedule = self._read(file)
        if schedule is not None:
            return schedule
        if sought in self._failed:
            return "never"
        if must_wait or self._running is None:
            self._start(sought, file)
        if must_wait:
            self._wait()
            return self._read(file) or "never"
        self._look()
        return "never" if sought in self._failed else "later"

    def close(self) -> None:
        """End what still runs."""
        if self._running is not None:
            self._running[1].kill()
            self._running[1].wait()
            self._running = None

    def _file(self, sought: Sought) -> Path:
        key = json.dumps([__version__, self._document, sought.kind, sought.root, sought.size_bytes], sort_keys=True)
        return cache_folder() / "schedules" / f"{sought.kind}-{digest(key)[-16:]}.json"

    def _read(self, file: Path) -> Schedule | None:
        if not file.is_file():
            return None
        # A cache may hold anything.
        with contextlib.suppress(CollsynError):
            schedule = read_schedule(file)
            verify_schedule(schedule).raise_if_bad(str(file))
            return schedule
        return None

    def _start(self, sought: Sought, file: Path) -> None:
        if self._running is not None:
            self._wait()
        file.parent.mkdir(parents=True, exist_ok=True)
        asked = {"topology": self._document, "limit_s": self._limit_s, "file": str(file), **vars(sought)}
        process = subprocess.Popen(
            [sys.executable, "-m", "collsyn.comm.search"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(asked).encode())
            process.stdin.close()
        self._running = (sought, process)

    def _wait(self) -> None:
        assert self._running is not None
        try:
            self._running[1].wait(self._limit_s + _GRACE_S)
        except subprocess.TimeoutExpired:
            self._running[1].kill()
        self._look()

    def _look(self) -> None:
        """Note the end of what runs, if it has come."""
        if self._running is not None and self._running[1].poll() is not None:
            sought, process = self._running
            if process.returncode:
                self._failed.add(sought)
            self._running = None


def _search(asked: dict[str, Any]) -> None:
    topology = topology_from_fields(Fields(asked["topology"], "topology"))
    problem = Problem(asked["kind"], topology, asked["size_bytes"], root=asked["root"])
    methods = [name for name in METHODS if name != _UNLIKE]
    schedule = chosen(best(problem, Options(time_limit_s=asked["limit_s"]), methods)).schedule
    assert schedule is not None
    write_schedule(schedule, asked["file"])


if __name__ == "__main__":
    # The job's own work comes first.
    os.nice(10)
    try:
        _search(json.loads(sys.stdin.buffer.read()))
    except CollsynError as error:
        sys.exit(str(error))
