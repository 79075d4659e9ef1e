"""Compiles the native executor at first use and loads it; where that cannot be, the NumPy executor takes its place.

Environment: `COLLSYN_NATIVE=0` forces the NumPy executor, `CC` names the compiler, `COLLSYN_CACHE` the cache folder
(else `$XDG_CACHE_HOME/collsyn`, else `~/.cache/collsyn`), and `COLLSYN_DEBUG=1` says on stderr what was compiled.
"""

import ctypes
import functools
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from collsyn.files import digest

# In the order of the enumerations of native/reduce.h; an average is a sum that is divided at the end.
_DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
_OPS = ("sum", "prod", "min", "max")
DTYPE_CODES = {name: code for code, name in enumerate(_DTYPES)}
OP_CODES = {name: code for code, name in enumerate(_OPS)} | {"avg": _OPS.index("sum")}

DONE, STALLED, ABORTED = 0, 1, 2

_SOURCES = ("executor.c", "emulate.h", "proxy.h", "device.h", "job.h", "copy.h", "reduce.h")
_BASE_FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=off", "-fno-trapping-math", "-fPIC", "-shared")
_FLAGS = (("-march=native", *_BASE_FLAGS), _BASE_FLAGS)
_COMPILE_LIMIT_S = 120


class DeviceCalls(ctypes.Structure):
    """The `device_calls` of native/device.h."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("enter", "copy", "wait", "context", "stream"))


class Job(ctypes.Structure):
    """What `collsyn_run` takes: the `job` of native/executor.c."""

    _fields_ = (
        ("instructions", ctypes.c_void_p),
        ("end", ctypes.c_void_p),
        ("next", ctypes.c_void_p),
        ("num_channels", ctypes.c_int64),
        ("own", ctypes.c_void_p),
        ("polls", ctypes.c_int64),
        ("dtype", ctypes.c_int64),
        ("op", ctypes.c_int64),
        ("proxy", ctypes.c_void_p),
        ("region", ctypes.c_int64),
        ("generation", ctypes.c_uint64),
        ("asked", ctypes.c_void_p),
        ("answered", ctypes.c_void_p),
    )


@functools.cache
def native_library() -> ctypes.CDLL | None:
    """The compiled executor, or None where the NumPy one is to be used; compiles in about a second at first use."""
    if os.environ.get("COLLSYN_NATIVE") == "0":
        return None
    compiler = _compiler()
    if compiler is None:
        _say("no C compiler (cc, gcc or clang) found; ranks run the slower NumPy executor")
        return None
    try:
        return _declared(ctypes.CDLL(str(_built(compiler))))
    except (OSError, subprocess.SubprocessError) as error:
        _say(f"the native executor is not usable, ranks run the slower NumPy one: {error}")
        return None


def _compiler() -> list[str] | None:
    """Words of the command that compiles C."""
    if given := os.environ.get("CC"):
        try:
            words = shlex.split(given)
        except ValueError:  # a quotation that does not end
            return None
        return words if words and shutil.which(words[0]) else None
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return [found] if found else None


def _built(compiler: list[str]) -> Path:
    """The library in the cache, compiled where it is not there yet; raises OSError or SubprocessError."""
    source = files("collsyn.runtime") / "native"
    texts = {name: (source / name).read_text() for name in _SOURCES}
    version = subprocess.run(
        [*compiler, "--version"], capture_output=True, text=True, timeout=_COMPILE_LIMIT_S, check=True
    ).stdout
    folder = cache_folder()
    targets = {
        flags: folder / f"executor-{digest(repr((texts, compiler, version, flags, _processor())))}.so"
        for flags in _FLAGS
    }
    for target in targets.values():
        if target.exists():
            return target
    failure: subprocess.CalledProcessError | None = None
    for flags, target in targets.items():
        try:
            return _compile([*compiler, *flags], texts, target)
        except subprocess.CalledProcessError as error:
            _say(f"{shlex.join(error.cmd)}: {error.stderr}")
            failure = error
    assert failure is not None
    raise failure


def _compile(command: list[str], texts: dict[str, str], target: Path) -> Path:
    # Ranks may compile at the same time: each in a folder of its own, and the rename is atomic.
    with tempfile.TemporaryDirectory(prefix=".build-", dir=target.parent) as build:
        for name, text in texts.items():
            (Path(build) / name).write_text(text)
        made = Path(build) / target.name
        subprocess.run(
            [*command, "-o", str(made), str(Path(build) / "executor.c")],
            capture_output=True,
            text=True,
            timeout=_COMPILE_LIMIT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        os.replace(made, target)
    _say(f"compiled {target}")
    return target


def cache_folder() -> Path:
    """A folder that this user alone can write to; a new temporary one where the home cannot be written."""
    if given := os.environ.get("COLLSYN_CACHE"):
        wanted = Path(given)
    else:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        wanted = Path(home) / "collsyn"
    try:
        wanted.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=wanted):
            return wanted
    except OSError:
        return Path(_temporary_cache().name)


@functools.cache
def _temporary_cache() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="collsyn-cache-")


def _processor() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "features", "isa", "cpu part")
    first: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip().lower() in wanted:
            first.setdefault(key.strip(), value.strip())
    return f"{platform.machine()} {first}"


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    address, integer = ctypes.c_void_p, ctypes.c_int64
    library.collsyn_run.argtypes = [ctypes.POINTER(Job), ctypes.c_uint64, integer]
    library.collsyn_run.restype = ctypes.c_int
    library.collsyn_emulate.argtypes = [address, ctypes.c_uint64, integer]
    library.collsyn_emulate.restype = ctypes.c_int
    library.collsyn_book.argtypes = [address, integer, integer]
    library.collsyn_book.restype = integer
    library.collsyn_proxy_new.argtypes, library.collsyn_proxy_new.restype = [address], address
    library.collsyn_proxy_words.argtypes, library.collsyn_proxy_words.restype = [address], ctypes.c_char_p
    library.collsyn_proxy_region.argtypes = [address, integer, ctypes.c_uint64, address, ctypes.c_uint64]
    library.collsyn_proxy_region.restype = ctypes.c_int
    for name, arguments in (
        ("collsyn_ring", [address]),
        ("collsyn_copy", [address, address, integer, integer]),
        ("collsyn_reduce", [integer, integer, address, address, address, integer]),
        ("collsyn_divide", [integer, address, integer, integer]),
        ("collsyn_proxy_run", [address]),
        ("collsyn_proxy_free", [address]),
        ("collsyn_proxy_lanes", [address, integer, address, integer]),
        ("collsyn_proxy_abort", [address, integer, ctypes.c_char_p]),
        ("collsyn_proxy_leave", [address, integer]),
        ("collsyn_proxy_state", [address, address]),
    ):
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return library


def debugging() -> bool:
    """Whether the user asked for all there is to say."""
    return os.environ.get("COLLSYN_DEBUG", "0") not in ("", "0")


def _say(message: str) -> None:
    if debugging():
        print(f"collsyn: {message.strip()}", file=sys.stderr)
