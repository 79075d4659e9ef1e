"""Finds CUDA's run-time compiler and compiles a kernel with it; no GPU and no driver are needed."""

import ctypes
import ctypes.util
import glob
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

_SOURCE = b'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }'
_MAJORS = (13, 12, 11)


def _candidates() -> Iterator[str]:
    """Libraries that may be there, the Python environment's wheels first, as CuPy finds them."""
    for folder in sys.path:
        for pattern in ("nvidia/cuda_nvrtc/lib/libnvrtc.so.*", "nvidia/cu*/lib/libnvrtc.so.*"):
            yield from sorted(glob.glob(os.path.join(folder or ".", pattern)), reverse=True)
    for major in _MAJORS:
        yield f"libnvrtc.so.{major}"
    roots = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    for root in filter(None, roots):
        yield from sorted(glob.glob(f"{root}/lib64/libnvrtc.so.*"), reverse=True)
    yield from sorted(glob.glob("/usr/local/cuda-*/lib64/libnvrtc.so.*"), reverse=True)


def main() -> dict[str, Any]:
    """Version, architectures, and whether a kernel compiles; `found` is false where there is no library."""
    for path in _candidates():
        if "builtins" in path or ".alt." in path:
            continue
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        return {"found": True, "path": path, **_tried(library)}
    return {"found": False}


def _tried(library: ctypes.CDLL) -> dict[str, Any]:
    major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    architectures = (ctypes.c_int * max(count.value, 1))()
    library.nvrtcGetSupportedArchs(architectures)
    known = sorted(set(architectures[: count.value]))
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), _SOURCE, b"twice.cu", 0, None, None)
    option = f"--gpu-architecture=sm_{known[0] if known else 0}".encode()
    code = library.nvrtcCompileProgram(program, 1, (ctypes.c_char_p * 1)(option))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    reason = library.nvrtcGetErrorString(code).decode(errors="replace")
    return {
        "version": f"{major.value}.{minor.value}",
        "architectures": known,
        "compiles": code == 0,
        "reason": "" if code == 0 else reason,
    }


if __name__ == "__main__":
    print(json.dumps(main()))
