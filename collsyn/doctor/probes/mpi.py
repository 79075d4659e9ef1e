"""Loads mpi4py and asks its MPI library what it is."""

import ctypes
import json
from pathlib import Path
from typing import Any

_LEVELS = ("single", "funneled", "serialized", "multiple")


def main() -> dict[str, Any]:
    """Library, thread level, and whether it takes device pointers (None where it has no call that says so)."""
    import mpi4py
    from mpi4py import MPI

    levels = (MPI.THREAD_SINGLE, MPI.THREAD_FUNNELED, MPI.THREAD_SERIALIZED, MPI.THREAD_MULTIPLE)
    names = dict(zip(levels, _LEVELS, strict=True))
    # MPICH has a page of this, Open MPI one line.
    library = " ".join(MPI.Get_library_version().replace("\0", " ").partition("\n")[0].split())
    return {
        "mpi4py": mpi4py.__version__,
        "library": library.replace(" Version:", ""),
        "standard": ".".join(map(str, MPI.Get_version())),
        "thread_level": names.get(MPI.Query_thread(), "unknown"),
        "cuda_aware": _cuda_aware(),
    }


def _cuda_aware() -> bool | None:
    """MPIX_Query_cuda_support of the library that this process has loaded; Open MPI, MPICH and its kin have it."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if "/libmpi" in line}
    for path in sorted(paths):
        try:
            return bool(ctypes.CDLL(path).MPIX_Query_cuda_support())
        except (OSError, AttributeError):
            continue
    return None


if __name__ == "__main__":
    print(json.dumps(main()))
