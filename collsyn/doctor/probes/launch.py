"""Starts two ranks as bench does, and lets them write into each other's memory: `... launch fork|mpirun`."""

import ctypes
import json
import os
import sys
from typing import Any

from collsyn.errors import CollsynError
from collsyn.runtime.arena import OwnSegment, attach
from collsyn.runtime.bootstrap import Bootstrap
from collsyn.runtime.launch import launch

_NUM_RANKS = 2
_LIMIT_S = 40.0
_BYTES = 1 << 20
_STRIDE = 251


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def meet(bootstrap: Bootstrap) -> dict[str, Any]:
    """What a rank of two finds: whether the other wrote all bytes where it should, and if it can read the other."""
    import numpy as np

    def pattern(rank: int) -> Any:
        return (np.arange(_BYTES) % _STRIDE + rank).astype(np.uint8)

    own = OwnSegment(_BYTES)
    word = ctypes.create_string_buffer(b"collsyn!")
    place = {"pid": os.getpid(), "fd": own.fd, "word": ctypes.addressof(word)}
    places = [json.loads(text) for text in bootstrap.allgather(json.dumps(place).encode())]
    peer = 1 - bootstrap.rank
    segment = attach(places[peer]["pid"], places[peer]["fd"], _BYTES)
    segment.bytes[:] = pattern(bootstrap.rank)
    refused = _read_from(places[peer]["pid"], places[peer]["word"], len(word.value))
    bootstrap.barrier()
    own.seal()
    verified = bool(np.array_equal(own.bytes[:_BYTES], pattern(peer)))
    return {"verified": verified, "errno": refused}


def _read_from(pid: int, address: int, length: int) -> int:
    """Read another process's memory by process_vm_readv: 0, or the error number."""
    libc = ctypes.CDLL(None, use_errno=True)
    into = ctypes.create_string_buffer(length)
    local = _IoVec(ctypes.addressof(into), length)
    remote = _IoVec(address, length)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    got = libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    return 0 if got == length else ctypes.get_errno() or -1


def main(launcher: str) -> dict[str, Any]:
    """Facts of two ranks that met."""
    # These ranks execute no plan; a compiler that hangs has a check of its own.
    os.environ["COLLSYN_NATIVE"] = "0"
    try:
        found = launch(f"{__spec__.name}:meet", num_ranks=_NUM_RANKS, launcher=launcher, timeout_s=_LIMIT_S)
    except CollsynError as error:
        return {"error": str(error)}
    return {
        "verified": all(rank["verified"] for rank in found),
        "process_vm_errno": max((rank["errno"] for rank in found), key=abs),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
