"""What GPUs must offer. CuPy is one driver (cupy_driver.py); tests bring one whose kernels are threads of the host."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class DeviceFacts:
    """A GPU: its name and UUID, compute capability, multiprocessors, bytes of memory, and where it sits on the bus."""

    name: str
    uuid: str
    architecture: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    bus: str = ""


class Stream(Protocol):
    """Work of one device in order."""

    def is_done(self) -> bool:
        """Whether all that was given to it is done; raises DeviceError where that failed."""

    def wait(self) -> None:
        """Return when all that was given to it is done; raises DeviceError where that failed."""


class Graph(Protocol):
    """Work of a stream that was recorded and can be given to one again at once."""

    def launch(self, stream: Any) -> None:
        """Give all of it to a stream."""


class Driver(Protocol):
    """Devices of this process, their memory and streams. Addresses are integers; all calls raise DeviceError."""

    @property
    def num_devices(self) -> int:
        """Devices that this process sees."""

    def facts(self, device: int) -> DeviceFacts:
        """What is known of a device."""

    def allocate(self, device: int, num_bytes: int) -> int:
        """Address of new memory of a device, an allocation of its own, all zeros."""

    def free(self, device: int, address: int) -> None:
        """Give memory back; other processes must have closed it."""

    def export(self, device: int, address: int) -> bytes:
        """What another process needs to open an allocation."""

    def open(self, device: int, handle: bytes) -> int:
        """Address under which a device reaches another process's allocation."""

    def close(self, device: int, address: int) -> None:
        """Undo `open`."""

    def pinned(self, num_bytes: int) -> int:
        """Address of new memory of the host, all zeros, that kernels reach under the same address."""

    def unpin(self, address: int) -> None:
        """Give memory of `pinned` back."""

    def calls_of(self, device: int) -> int:
        """Address of what C code needs to copy from and to a device while kernels run there: `device_calls` of
        runtime/native/device.h, there as long as the driver is."""

    def let_access(self, device: int, peer: int) -> None:
        """Let kernels of a device reach memory of another one of this process."""

    def write(self, device: int, address: int, data: npt.NDArray[Any]) -> None:
        """Copy an array to a device, and wait."""

    def write_aside(self, device: int, address: int, data: npt.NDArray[Any]) -> None:
        """The same while kernels run, on a stream that waits for none of them."""

    def read(self, device: int, address: int, data: npt.NDArray[Any]) -> None:
        """Copy from a device into an array, and wait."""

    def array(self, device: int, address: int, num_bytes: int, dtype: np.dtype[Any]) -> Any:
        """An array of the driver's own kind on memory of a device."""

    def load(self, device: int, source: str, name: str) -> Callable[[str], Any]:
        """Compile a source that may include the headers of `device/`; what gives the kernel of each entry's name."""

    def resident_blocks(self, device: int, kernel: Any, threads: int) -> int:
        """Blocks of a kernel that the whole device holds at once."""

    def stream(self, device: int) -> Any:
        """A new stream, which waits for no other."""

    def launch(
        self, device: int, kernel: Any, stream: Any, blocks: int, threads: int, argument: Any, together: bool
    ) -> None:
        """Give a kernel to a stream; `together` asks that all blocks be resident at once (a cooperative launch)."""

    def copy(self, device: int, to: int, source: int, num_bytes: int, stream: Any) -> None:
        """Give a copy between addresses to a stream: the work of a copy engine."""

    def wait_value(self, device: int, stream: Any, address: int, value: int) -> None:
        """Let a stream wait until the 8-byte word at an address is at least a value."""

    def write_value(self, device: int, stream: Any, address: int, value: int) -> None:
        """Let a stream write the 8-byte word at an address, after all that it did before."""

    def follow(self, device: int, stream: Any, mark: Any) -> None:
        """Let a stream wait for a moment in another one."""

    def mark(self, device: int, stream: Any) -> Any:
        """A moment in a stream."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Seconds between two moments that have passed."""

    def record(self, device: int, stream: Any, work: Callable[[], None]) -> Graph | None:
        """What `work` gives to the stream, as a graph; None where this driver cannot record it."""
