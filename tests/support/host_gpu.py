"""GPUs of this process that are not there: memory is files that processes share, kernels are threads of the host.

What runs is the product's own kernel text, and all of the way to it; what GPUs do by themselves is not tested by it.
"""

import ctypes
import mmap
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from collsyn.cuda.driver import DeviceFacts
from collsyn.cuda.sources import KERNEL, cached, device_sources, headers
from collsyn.errors import DeviceError
from collsyn.runtime.native_loader import DeviceCalls

# However many a launch asks for: threads of the host are dear.
MOST_THREADS = 4
HERE = Path(__file__).parent


class HostGpuDriver:
    """`collsyn.cuda.driver.Driver`; `blocked` are devices without peer access, `room` blocks fit on one at once."""

    def __init__(self, num_devices: int = 1, room: int = 4096, blocked: tuple[tuple[int, int], ...] = ()) -> None:
        self.num_devices, self._room, self._blocked = num_devices, room, blocked
        self.memory: dict[int, tuple[Any, int]] = {}
        self.launches: list[tuple[int, int, bool]] = []
        self._recorded: list[Callable[[], None]] | None = None

    def facts(self, device: int) -> DeviceFacts:
        uuid = f"{os.getpid() if self.num_devices == 1 else 0}-{device}"
        return DeviceFacts("host threads", uuid, (9, 0), self._room, 1 << 34, f"0000:{device:02x}:00")

    def allocate(self, device: int, num_bytes: int) -> int:
        fd = os.memfd_create("gpu")
        os.ftruncate(fd, max(num_bytes, 1))
        return self._map(fd, max(num_bytes, 1))

    def _map(self, fd: int, num_bytes: int) -> int:
        area = mmap.mmap(fd, num_bytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(area))
        self.memory[address] = (area, fd)
        return address

    def free(self, device: int, address: int) -> None:
        _, fd = self.memory.pop(address)
        os.close(fd)

    def export(self, device: int, address: int) -> bytes:
        area, fd = self.memory[address]
        return f"{os.getpid()}:{fd}:{len(area)}".encode()

    def open(self, device: int, handle: bytes) -> int:
        pid, fd, size = map(int, handle.decode().split(":"))
        assert pid != os.getpid(), "an IPC handle is for other processes"
        return self._map(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR), size)

    def close(self, device: int, address: int) -> None:
        self.free(device, address)

    def pinned(self, num_bytes: int) -> int:
        return self.allocate(-1, num_bytes)

    def unpin(self, address: int) -> None:
        self.free(-1, address)

    def calls_of(self, device: int) -> int:
        library = ctypes.CDLL(
            str(_compiled(tuple(sorted({**headers(), KERNEL: device_sources()[KERNEL]}.items())), KERNEL))
        )
        names = {"enter": "host_enter", "copy": "host_copy", "wait": "host_wait"}
        calls = {field: ctypes.cast(getattr(library, name), ctypes.c_void_p) for field, name in names.items()}
        self._calls = DeviceCalls(context=1, stream=2, **{field: call.value for field, call in calls.items()})
        self.copies = ctypes.c_int64.in_dll(library, "host_copies")
        return ctypes.addressof(self._calls)

    def let_access(self, device: int, peer: int) -> None:
        if (device, peer) in self._blocked:
            raise DeviceError(f"GPU {device} has no peer access to GPU {peer}; `collsyn doctor` says why")

    def write(self, device: int, address: int, data: np.ndarray) -> None:
        ctypes.memmove(address, np.ascontiguousarray(data).ctypes.data, data.nbytes)

    write_aside = write

    def read(self, device: int, address: int, data: np.ndarray) -> None:
        ctypes.memmove(data.ctypes.data, address, data.nbytes)

    def array(self, device: int, address: int, num_bytes: int, dtype: np.dtype) -> np.ndarray:
        raw = (ctypes.c_uint8 * num_bytes).from_address(address)
        return np.frombuffer(raw, dtype=np.uint8).view(dtype)

    def load(self, device: int, source: str, name: str) -> Callable[[str], Any]:
        library = ctypes.CDLL(str(_compiled(tuple(sorted({**headers(), name: source}.items())), name)))
        library.host_launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32]
        return lambda entry: (library, ctypes.cast(getattr(library, entry), ctypes.c_void_p).value)

    def resident_blocks(self, device: int, kernel: Any, threads: int) -> int:
        return self._room

    def stream(self, device: int) -> "HostStream":
        return HostStream()

    def launch(
        self, device: int, kernel: Any, stream: "HostStream", blocks: int, threads: int, argument: Any, together: bool
    ) -> None:
        library, entry = kernel
        given = np.array(argument)
        self.launches.append((device, blocks, together))

        def work() -> None:
            if library.host_launch(entry, given.ctypes.data, blocks, min(threads, MOST_THREADS)):
                raise DeviceError("too many threads")

        self._give(stream, work)

    def copy(self, device: int, to: int, source: int, num_bytes: int, stream: "HostStream") -> None:
        self._give(stream, lambda: ctypes.memmove(to, source, num_bytes))

    def wait_value(self, device: int, stream: "HostStream", address: int, value: int) -> None:
        word = ctypes.c_uint64.from_address(address)

        def work() -> None:
            while word.value < value:
                time.sleep(2e-5)

        self._give(stream, work)

    def write_value(self, device: int, stream: "HostStream", address: int, value: int) -> None:
        word = ctypes.c_uint64.from_address(address)
        self._give(stream, lambda: setattr(word, "value", value))

    def follow(self, device: int, stream: "HostStream", mark: Future) -> None:
        self._give(stream, mark.result)

    def mark(self, device: int, stream: "HostStream") -> Future:
        return stream.give(time.perf_counter)

    def seconds(self, begin: Future, end: Future) -> float:
        return end.result() - begin.result()

    def record(self, device: int, stream: "HostStream", work: Callable[[], None]) -> "HostGraph":
        self._recorded = []
        work()
        graph, self._recorded = HostGraph(self._recorded), None
        return graph

    def _give(self, stream: "HostStream", work: Callable[[], Any]) -> None:
        if self._recorded is not None:
            self._recorded.append(work)
        else:
            stream.give(work)


class HostStream:
    """Work in order, on a thread."""

    def __init__(self) -> None:
        # What CuPy's streams have, for libraries that want an address.
        self.stream = SimpleNamespace(ptr=0)
        self._thread = ThreadPoolExecutor(1)
        self._last: Future = self._thread.submit(int)

    def give(self, work: Callable[[], Any]) -> Future:
        self._last = self._thread.submit(work)
        return self._last

    def is_done(self) -> bool:
        if self._last.done():
            self._last.result()
        return self._last.done()

    def wait(self) -> None:
        self._last.result()


class HostGraph:
    """Work that was recorded."""

    def __init__(self, work: list[Callable[[], None]]) -> None:
        self._work = work

    def launch(self, stream: HostStream) -> None:
        for each in self._work:
            stream.give(each)


def _compiled(sources: tuple[tuple[str, str], ...], kernel: str) -> Path:
    launcher = (HERE / "host_gpu.cpp").read_text()
    target = cached("host-gpu.so", (sources, kernel, launcher))
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            for name, text in sources:
                (Path(folder) / name).write_text(text)
            (Path(folder) / "host_gpu.cpp").write_text(launcher)
            flags = ["-std=c++17", "-O2", "-shared", "-fPIC", "-pthread", "-ffp-contract=off", f'-DKERNEL="{kernel}"']
            made = Path(folder) / "made.so"
            words = ["g++", *flags, "-o", str(made), str(Path(folder) / "host_gpu.cpp")]
            subprocess.run(words, check=True, timeout=300)
            os.replace(made, target)
    return target
