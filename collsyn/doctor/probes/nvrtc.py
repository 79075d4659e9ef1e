"""Finds CUDA's run-time compiler and compiles a kernel with it; no GPU and no driver are needed."""

import ctypes
import json
from typing import Any

from collsyn.cuda.nvrtc import candidates

_SOURCE = b'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }'


def main() -> dict[str, Any]:
    """Version, architectures, and whether a kernel compiles; `found` is false where there is no library."""
    for path in candidates():
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
