"""This machine, measured quickly once and kept, where none is named but schedules are sought."""

import subprocess
import sys
from pathlib import Path

from collsyn.errors import DeviceError
from collsyn.files import digest
from collsyn.model.topology import Topology
from collsyn.runtime.bootstrap import Bootstrap
from collsyn.runtime.facts import machine_facts
from collsyn.runtime.native_loader import cache_folder
from collsyn.topology.resolve import read_topology_file

_LIMIT_S = 200.0


def measured_machine(bootstrap: Bootstrap) -> Topology:
    """The topology of this machine for the ranks of a bootstrap, all of which call it; takes some seconds at first.

    Raises DeviceError where it cannot be measured.
    """
    answer = b""
    if bootstrap.rank == 0:
        try:
            answer = b"+" + str(_profile(bootstrap.size)).encode()
        except DeviceError as error:
            answer = b"-" + str(error).encode()
    text = bootstrap.allgather(answer)[0].decode()
    if text[0] == "-":
        raise DeviceError(f"this machine cannot be measured: {text[1:]}; name it in COLLSYN_TOPOLOGY")
    return read_topology_file(text[1:])


def _profile(num_ranks: int) -> Path:
    file = cache_folder() / "profiles" / f"{num_ranks}-{digest(repr(machine_facts()))[-16:]}.yaml"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        # In a process of its own: this one may have threads, which do not survive in forked ranks.
        command = [sys.executable, "-m", "collsyn.cli", "profile", "--quick", "--launcher", "fork"]
        try:
            done = subprocess.run(
                [*command, "--ranks", str(num_ranks), "-o", str(file)],
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DeviceError(f"not over after {_LIMIT_S:g} s") from None
        if done.returncode:
            raise DeviceError((done.stderr.strip().splitlines() or ["no reason was given"])[-1])
    return file
