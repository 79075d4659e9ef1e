"""CUDA's run-time compiler, by ctypes: kernels become cubins where there is neither CuPy nor a driver nor a GPU."""

import ctypes
import glob
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from collsyn.cuda.sources import cached, device_sources, headers, keep
from collsyn.errors import DeviceError

_MAJORS = (13, 12, 11)
_OPTIONS = ("--std=c++17",)


def candidates() -> Iterator[str]:
    """Libraries that may be there, the Python environment's wheels first, as CuPy finds them."""
    return (path for path in _found() if "builtins" not in path and ".alt." not in path)


def _found() -> Iterator[str]:
    for folder in sys.path:
        for pattern in ("nvidia/cuda_nvrtc/lib/libnvrtc.so.*", "nvidia/cu*/lib/libnvrtc.so.*"):
            yield from sorted(glob.glob(os.path.join(folder or ".", pattern)), reverse=True)
    for major in _MAJORS:
        yield f"libnvrtc.so.{major}"
    roots = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    for root in filter(None, roots):
        yield from sorted(glob.glob(f"{root}/lib64/libnvrtc.so.*"), reverse=True)
    yield from sorted(glob.glob("/usr/local/cuda-*/lib64/libnvrtc.so.*"), reverse=True)


@cache
def _library() -> ctypes.CDLL:
    for path in candidates():
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return library
    raise DeviceError("CUDA's run-time compiler (libnvrtc) is not here; pip install nvidia-cuda-nvrtc-cu12 brings it")


def version() -> tuple[int, int]:
    """Of the compiler; raises DeviceError where there is none."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


@cache
def architectures() -> tuple[int, ...]:
    """Compute capabilities that it compiles for, such as 90; raises DeviceError where there is no compiler."""
    count = ctypes.c_int()
    _library().nvrtcGetNumSupportedArchs(ctypes.byref(count))
    found = (ctypes.c_int * max(count.value, 1))()
    _library().nvrtcGetSupportedArchs(found)
    return tuple(sorted(set(found[: count.value])))


def compile_kernel(
    source: str, architecture: int, defines: Mapping[str, str | int] | None = None, name: str = "kernel.cu"
) -> bytes:
    """The cubin of a source that may include the headers of `device/`; the same source is compiled once and kept.

    `architecture` is a compute capability such as 90, `defines` are macros. Raises DeviceError where there is no
    compiler, where it does not know the architecture, and where the source does not compile: the compiler's words.
    """
    if architecture not in architectures():
        known = ", ".join(map(str, architectures()))
        major, minor = version()
        raise DeviceError(f"sm_{architecture}: not known to NVRTC {major}.{minor}; it knows {known}")
    options = [f"--gpu-architecture=sm_{architecture}", *_OPTIONS]
    options += [f"-D{key}={value}" for key, value in (defines or {}).items()]
    target = cached("kernel.cubin", (source, headers(), options, version()))
    if not target.exists():
        keep(target, _compiled(source, name, options))
    return target.read_bytes()


def execute_cubin(architecture: int, dtype: int | None = None, op: int | None = None) -> bytes:
    """The cubin of the interpreter; with codes of type and operation (see native_loader) one for these alone, which is
    smaller and needs fewer registers."""
    defines = {} if dtype is None or op is None else {"COLLSYN_DTYPE": dtype, "COLLSYN_OP": op}
    return compile_kernel(device_sources()["execute.cu"], architecture, defines, "execute.cu")


def _compiled(source: str, name: str, options: Sequence[str]) -> bytes:
    library, program = _library(), ctypes.c_void_p()
    texts = headers()
    included = (ctypes.c_char_p * len(texts))(*[text.encode() for text in texts.values()])
    names = (ctypes.c_char_p * len(texts))(*[key.encode() for key in texts])
    _check(
        library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), len(texts), included, names)
    )
    try:
        words = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        code = library.nvrtcCompileProgram(program, len(options), words)
        if code:
            raise DeviceError(f"{name}: does not compile ({options[0]}):\n{_text(program, 'ProgramLog')}")
        return _bytes(program, "CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _bytes(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(_library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    content = ctypes.create_string_buffer(max(size.value, 1))
    _check(getattr(_library(), f"nvrtcGet{what}")(program, content))
    return content.raw[: size.value]


def _text(program: ctypes.c_void_p, what: str) -> str:
    return _bytes(program, what).rstrip(b"\0").decode(errors="replace").strip()


def _check(code: int) -> None:
    if code:
        raise DeviceError(f"NVRTC: {_library().nvrtcGetErrorString(code).decode(errors='replace')}")
