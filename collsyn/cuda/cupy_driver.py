"""The driver of CUDA GPUs, through CuPy (cupy-cuda12x or cupy-cuda13x)."""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.cuda.driver import DeviceFacts
from collsyn.errors import DeviceError
from collsyn.runtime.mpi_library import address_of
from collsyn.runtime.native_loader import DeviceCalls

_TO_DEVICE, _TO_HOST, _ANY_WAY = 1, 2, 4
_LAZY_PEER_ACCESS = 1
_PORTABLE_AND_MAPPED = 1 | 2


class CupyDriver:
    """`driver.Driver` on CuPy. Made where `availability` says that GPUs can be used."""

    def __init__(self) -> None:
        """Load CuPy; raises DeviceError where it or the driver is not there."""
        # A kernel that is loaded only when another one spins would wait for it.
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
        # Streams that wait for flags must not share a queue with those that raise them.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        with _told("CuPy"):
            try:
                import cupy
            except ImportError as error:
                raise DeviceError(f"CuPy cannot be imported ({error}); install cupy-cuda12x or cupy-cuda13x") from None
            self._cupy = cupy
            self._runtime = cupy.cuda.runtime
            self._count = int(self._runtime.getDeviceCount())
        self._aside: dict[int, Any] = {}
        self._calls: dict[int, tuple[DeviceCalls, Any]] = {}
        self._open_access: set[tuple[int, int]] = set()

    @property
    def num_devices(self) -> int:
        """Devices that this process sees."""
        return self._count

    def facts(self, device: int) -> DeviceFacts:
        """What the runtime says of a device."""
        with self._on(device):
            said = self._runtime.getDeviceProperties(device)
        name, uuid = said["name"], said.get("uuid", b"")
        return DeviceFacts(
            name=name.decode() if isinstance(name, bytes) else str(name),
            uuid=uuid.hex() if isinstance(uuid, bytes) else str(uuid),
            architecture=(int(said["major"]), int(said["minor"])),
            multiprocessors=int(said["multiProcessorCount"]),
            memory_bytes=int(said["totalGlobalMem"]),
            bus=f"{said.get('pciDomainID', 0):08x}:{said.get('pciBusID', 0):02x}:{said.get('pciDeviceID', 0):02x}",
        )

    def allocate(self, device: int, num_bytes: int) -> int:
        """Memory outside CuPy's pool, since a handle between processes names a whole allocation."""
        with self._on(device):
            address = int(self._runtime.malloc(max(num_bytes, 1)))
            self._runtime.memset(address, 0, max(num_bytes, 1))
            self._runtime.deviceSynchronize()
        return address

    def free(self, device: int, address: int) -> None:
        """Give memory back."""
        with self._on(device):
            self._runtime.free(address)

    def export(self, device: int, address: int) -> bytes:
        """The IPC handle of an allocation."""
        with self._on(device):
            return bytes(self._runtime.ipcGetMemHandle(address))

    def open(self, device: int, handle: bytes) -> int:
        """The address of another process's allocation here."""
        with self._on(device):
            return int(self._runtime.ipcOpenMemHandle(handle, _LAZY_PEER_ACCESS))

    def close(self, device: int, address: int) -> None:
        """Unmap another process's allocation."""
        with self._on(device):
            self._runtime.ipcCloseMemHandle(address)

    def pinned(self, num_bytes: int) -> int:
        """Memory of the host that every device sees (unified addresses)."""
        with _told("pinned memory"):
            address = int(self._runtime.hostAlloc(max(num_bytes, 1), _PORTABLE_AND_MAPPED))
        ctypes.memset(address, 0, num_bytes)
        return address

    def unpin(self, address: int) -> None:
        """Give it back."""
        with _told("pinned memory"):
            self._runtime.freeHost(address)

    def calls_of(self, device: int) -> int:
        """Calls of the CUDA driver, with this device's context and a stream of their own."""
        if device not in self._calls:
            library, context = _libcuda(), ctypes.c_void_p()
            with self._on(device):
                stream = self._cupy.cuda.Stream(non_blocking=True)
                code = library.cuCtxGetCurrent(ctypes.byref(context))
            if code:
                raise DeviceError(f"GPU {device}: its context cannot be had (CUDA error {code})")
            made = DeviceCalls(
                enter=address_of(library.cuCtxSetCurrent),
                copy=address_of(library.cuMemcpyAsync),
                wait=address_of(library.cuStreamSynchronize),
                context=context.value,
                stream=stream.ptr,
            )
            self._calls[device] = (made, stream)
        return ctypes.addressof(self._calls[device][0])

    def let_access(self, device: int, peer: int) -> None:
        """Enable peer access; DeviceError where there is none."""
        if device == peer or (device, peer) in self._open_access:
            return
        with self._on(device):
            if not self._runtime.deviceCanAccessPeer(device, peer):
                raise DeviceError(f"GPU {device} has no peer access to GPU {peer}; `collsyn doctor` says why")
            try:
                self._runtime.deviceEnablePeerAccess(peer)
            except self._runtime.CUDARuntimeError as error:
                if "AlreadyEnabled" not in str(error):
                    raise
        self._open_access.add((device, peer))

    def write(self, device: int, address: int, data: npt.NDArray[Any]) -> None:
        """A copy to the device."""
        data = np.ascontiguousarray(data)
        if data.nbytes:
            with self._on(device):
                self._runtime.memcpy(address, data.ctypes.data, data.nbytes, _TO_DEVICE)

    def write_aside(self, device: int, address: int, data: npt.NDArray[Any]) -> None:
        """A copy to the device on a stream of its own."""
        data = np.ascontiguousarray(data)
        with self._on(device):
            stream = self._aside.setdefault(device, self._cupy.cuda.Stream(non_blocking=True))
            self._runtime.memcpyAsync(address, data.ctypes.data, data.nbytes, _TO_DEVICE, stream.ptr)
            stream.synchronize()

    def read(self, device: int, address: int, data: npt.NDArray[Any]) -> None:
        """A copy from the device."""
        if data.nbytes:
            with self._on(device):
                self._runtime.memcpy(data.ctypes.data, address, data.nbytes, _TO_HOST)

    def array(self, device: int, address: int, num_bytes: int, dtype: np.dtype[Any]) -> Any:
        """A CuPy array on memory that stays ours."""
        memory = self._cupy.cuda.UnownedMemory(address, max(num_bytes, 1), self, device)
        pointer = self._cupy.cuda.MemoryPointer(memory, 0)
        with self._on(device):
            return self._cupy.ndarray((num_bytes // dtype.itemsize,), dtype=dtype, memptr=pointer)

    def load(self, device: int, source: str, name: str) -> Callable[[str], Any]:
        """A module made by NVRTC for the device's architecture, or the nearest one before it of the same generation."""
        from collsyn.cuda.nvrtc import architectures, compile_kernel

        major, minor = self.facts(device).architecture
        known = [each for each in architectures() if each // 10 == major and each % 10 <= minor]
        if not known:
            raise DeviceError(f"GPU {device}: NVRTC does not compile for compute capability {major}.{minor}")
        image = compile_kernel(source, max(known), name=name)
        with self._on(device):
            module = self._cupy.cuda.function.Module()
            module.load(image)
        # The function keeps the module alive.
        return module.get_function  # type: ignore[no-any-return]

    def resident_blocks(self, device: int, kernel: Any, threads: int) -> int:
        """Blocks a multiprocessor, times multiprocessors. CuPy makes a cooperative grid that does not fit smaller."""
        with self._on(device):
            each = self._cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(kernel.ptr, threads, 0)
        return int(each) * self.facts(device).multiprocessors

    def stream(self, device: int) -> "CupyStream":
        """A stream that does not wait for the default one."""
        with self._on(device):
            return CupyStream(self._cupy.cuda.Stream(non_blocking=True))

    def launch(
        self, device: int, kernel: Any, stream: "CupyStream", blocks: int, threads: int, argument: Any, together: bool
    ) -> None:
        """Launch, by the cooperative call where all blocks must be there at once."""
        with self._on(device):
            kernel(
                (blocks, 1, 1),
                (threads, 1, 1),
                (argument,),
                stream=stream.stream,
                enable_cooperative_groups=together,
            )

    def copy(self, device: int, to: int, source: int, num_bytes: int, stream: "CupyStream") -> None:
        """An asynchronous copy whose direction the driver finds out."""
        with self._on(device):
            self._runtime.memcpyAsync(to, source, num_bytes, _ANY_WAY, stream.stream.ptr)

    def wait_value(self, device: int, stream: "CupyStream", address: int, value: int) -> None:
        """cuStreamWaitValue64, which CuPy does not have."""
        with self._on(device):
            _check(_libcuda().cuStreamWaitValue64_v2, stream, address, value)

    def write_value(self, device: int, stream: "CupyStream", address: int, value: int) -> None:
        """cuStreamWriteValue64, behind a barrier for all memory."""
        with self._on(device):
            _check(_libcuda().cuStreamWriteValue64_v2, stream, address, value)

    def follow(self, device: int, stream: "CupyStream", mark: Any) -> None:
        """A wait for an event."""
        with self._on(device):
            stream.stream.wait_event(mark)

    def mark(self, device: int, stream: "CupyStream") -> Any:
        """An event."""
        with self._on(device):
            event = self._cupy.cuda.Event()
            event.record(stream.stream)
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two events."""
        with _told("CUDA"):
            end.synchronize()
            return float(self._cupy.cuda.get_elapsed_time(begin, end)) * 1e-3

    def record(self, device: int, stream: "CupyStream", work: Callable[[], None]) -> "CupyGraph | None":
        """A CUDA graph; None where the driver refuses to capture."""
        try:
            with self._on(device):
                stream.stream.begin_capture()
                try:
                    work()
                finally:
                    graph = stream.stream.end_capture()
        except DeviceError:
            return None
        return CupyGraph(graph)

    @contextmanager
    def _on(self, device: int) -> Iterator[None]:
        """Calls for one device; what CUDA raises becomes DeviceError."""
        with _told(f"GPU {device}"), self._cupy.cuda.Device(device):
            yield


class CupyStream:
    """`driver.Stream` on a stream of CuPy."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def is_done(self) -> bool:
        """Whether all is done."""
        with _told("CUDA"):
            return bool(self.stream.done)

    def wait(self) -> None:
        """Until all is done."""
        with _told("CUDA"):
            self.stream.synchronize()


class CupyGraph:
    """`driver.Graph` on a graph of CuPy."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def launch(self, stream: CupyStream) -> None:
        """Replay it."""
        with _told("CUDA"):
            self._graph.launch(stream.stream)


@cache
def _libcuda() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(call: Any, stream: CupyStream, address: int, value: int) -> None:
    """Call a stream's operation on a word: at least this value, or this value, with the default flags."""
    code = call(ctypes.c_void_p(stream.stream.ptr), ctypes.c_uint64(address), ctypes.c_uint64(value), 0)
    if code:
        raise DeviceError(f"CUDA error {code} in {call.__name__}; this driver cannot use copy engines for plans")


@contextmanager
def _told(who: str) -> Iterator[None]:
    """Errors of CUDA in one line."""
    try:
        yield
    except (RuntimeError, OSError, MemoryError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise DeviceError(f"{who}: {first}; `collsyn doctor` looks for the cause") from None
