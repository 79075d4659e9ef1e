"""A stand-in for CuPy, so that what is around calls of CUDA runs without a GPU; says nothing about GPUs themselves.

Memory of devices is files under FAKE_CUDA_FOLDER, which other processes can map. FAKE_CUDA is JSON: `devices`, and the
faults to have, as lists of [from, to] (`no_access`, `wrong_stores`, `wrong_copies`) or texts (`count_error`, ...).
"""

import ctypes
import json
import mmap
import os
from types import SimpleNamespace

from numpy import uint64  # noqa: F401

__version__ = "13.99.0"
_ASKED = json.loads(os.environ["FAKE_CUDA"])

if "import_error" in _ASKED:
    raise ImportError(_ASKED["import_error"])


class CUDARuntimeError(RuntimeError):
    """As CuPy has it."""


class _Runtime:
    CUDARuntimeError = CUDARuntimeError

    def __init__(self):
        self.device = 0
        self.mapped = {}
        self.enabled = set()

    def runtimeGetVersion(self):  # noqa: N802
        return _ASKED.get("runtime", 12090)

    def driverGetVersion(self):  # noqa: N802
        return _ASKED.get("driver", 13000)

    def getDeviceCount(self):  # noqa: N802
        if "count_error" in _ASKED:
            raise CUDARuntimeError(_ASKED["count_error"])
        return _ASKED["devices"]

    def getDeviceProperties(self, index):  # noqa: N802
        return {"name": b"Fake GPU", "major": 9, "minor": 0, "totalGlobalMem": 80 << 30}

    def setDevice(self, index):  # noqa: N802
        self.device = index

    def deviceCanAccessPeer(self, device, peer):  # noqa: N802
        return int([device, peer] not in _ASKED.get("no_access", []))

    def deviceEnablePeerAccess(self, peer):  # noqa: N802
        if (self.device, peer) in self.enabled:
            raise CUDARuntimeError("cudaErrorPeerAccessAlreadyEnabled: peer access is already enabled")
        self.enabled.add((self.device, peer))

    def malloc(self, size):
        path = os.path.join(os.environ["FAKE_CUDA_FOLDER"], f"{os.getpid()}-{len(self.mapped)}-{self.device}")
        with open(path, "wb") as file:
            file.truncate(size)
        return self._map(path)

    def _map(self, path):
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        pointer = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.mapped[pointer] = (memory, path)
        return pointer

    def free(self, pointer):
        assert pointer in self.mapped

    def memcpy(self, to, source, size, kind):
        assert kind in (1, 2)
        ctypes.memmove(to, source, size)

    def memcpyPeer(self, to, target, source, device, size):  # noqa: N802
        ctypes.memmove(to, source, size)
        if [device, target] in _ASKED.get("wrong_copies", []):
            ctypes.memset(to + 7, 255, 3)

    def deviceSynchronize(self):  # noqa: N802
        pass

    def ipcGetMemHandle(self, pointer):  # noqa: N802
        return os.fsencode(os.path.basename(self.mapped[pointer][1])).ljust(64, b"\0")

    def ipcOpenMemHandle(self, handle, flags):  # noqa: N802
        if "ipc_error" in _ASKED:
            raise CUDARuntimeError(_ASKED["ipc_error"])
        return self._map(os.path.join(os.environ["FAKE_CUDA_FOLDER"], os.fsdecode(handle.rstrip(b"\0"))))

    def ipcCloseMemHandle(self, pointer):  # noqa: N802
        assert pointer in self.mapped


cuda = SimpleNamespace(runtime=_Runtime())


class RawKernel:
    """Does what the kernel `put` of the peer probe does."""

    def __init__(self, source, name):
        assert f"void {name}(" in source

    def __call__(self, blocks, threads, arguments):
        to, source, count = map(int, arguments)
        ctypes.memmove(to, source, count * 16)
        target = int(cuda.runtime.mapped[to][1].rpartition("-")[2])
        if [cuda.runtime.device, target] in _ASKED.get("wrong_stores", []):
            ctypes.memset(to + (1 << 20) - 1, 255, 1)
