"""The kernels' source text, and programs made from it, kept in the user's cache folder under a hash."""

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from collsyn.errors import DeviceError
from collsyn.files import digest
from collsyn.runtime.native_loader import cache_folder

KERNEL = "execute.cu"
_COMPILE_LIMIT_S = 300
_HOST_FLAGS = ("-std=c++17", "-ffp-contract=off", "-rdynamic", "-pthread")


@cache
def device_sources() -> dict[str, str]:
    """File name to text of everything in `device/`."""
    folder = files("collsyn.cuda") / "device"
    return {entry.name: entry.read_text() for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)}


def headers() -> dict[str, str]:
    """What kernels may include."""
    return {name: text for name, text in device_sources().items() if name.endswith(".cuh")}


def cached(name: str, key: object) -> Path:
    """Where in the cache what was made from `key` (by its repr) stands; `name` is what it ends in."""
    stem, dot, ending = name.partition(".")
    return cache_folder() / f"{stem}-{digest(repr(key))}{dot}{ending}"


def keep(target: Path, content: bytes) -> Path:
    """Write a file of the cache; processes that write the same one do not disturb each other."""
    with tempfile.TemporaryDirectory(prefix=".build-", dir=target.parent) as folder:
        made = Path(folder) / target.name
        made.write_bytes(content)
        os.replace(made, target)
    return target


def host_program(sources: Mapping[str, str] | None = None, kernel: str = KERNEL, sanitize: bool = False) -> Path:
    """A program that runs the entries of `kernel` on host threads (device/emulate.cpp), compiled at first use.

    `sources` are texts beside those of `device/`, or in their place. With `sanitize` the thread sanitizer watches.
    Raises DeviceError without a C++ compiler, and where the kernel does not compile: the compiler's words.
    """
    compiler = _compiler()
    texts = {**device_sources(), **(sources or {})}
    watch = ("-O1", "-g", "-fsanitize=thread") if sanitize else ("-O2",)
    command = [*compiler, *_HOST_FLAGS, *watch, f'-DKERNEL="{kernel}"']
    target = cached("emulate", (texts, command, _version(tuple(compiler))))
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(prefix=".build-", dir=target.parent) as folder:
        for name, text in texts.items():
            (Path(folder) / name).write_text(text)
        made = Path(folder) / "emulate"
        words = [*command, "-o", str(made), str(Path(folder) / "emulate.cpp"), "-ldl"]
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=_COMPILE_LIMIT_S)
        if done.returncode:
            raise DeviceError(f"{kernel}: does not compile for host threads:\n{done.stderr.strip()}")
        os.replace(made, target)
    return target


def _compiler() -> list[str]:
    """Words of the command that compiles C++."""
    if given := os.environ.get("CXX"):
        return shlex.split(given)
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if found is None:
        raise DeviceError("no C++ compiler (c++, g++ or clang++) found; kernels need one to run on host threads")
    return [found]


@cache
def _version(compiler: tuple[str, ...]) -> str:
    try:
        done = subprocess.run([*compiler, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise DeviceError(f"CXX: {shlex.join(compiler)} does not run: {error}") from error
    return done.stdout
