"""Memory that all ranks have alike and flags between them, for kernels of one's own (`device/collsyn.cuh`)."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from collsyn.cuda.layout import FLAG_BYTES
from collsyn.errors import DeviceError, InputError
from collsyn.runtime.arena import PAGE

if TYPE_CHECKING:
    from collsyn.cuda.job import GpuJob

ENDPOINT = np.dtype(
    [
        ("data", "u8"),
        ("flags", "u8"),
        ("failed", "u8"),
        ("base", "u8"),
        ("limit_ns", "u8"),
        ("rank", "u4"),
        ("num_ranks", "u4"),
    ]
)


class Endpoints:
    """`num_bytes` of data and `num_flags` flags at every rank, which all ranks reach; made by `GpuJob.endpoints`.

    A kernel takes `argument(rank)` by value, an `endpoint`. Flags count from `base`: `advance` it after each call, on
    all ranks alike, by what the values of the call came to, and no flag needs to be cleared.
    """

    def __init__(self, job: "GpuJob", num_bytes: int, num_flags: int) -> None:
        """Every process must call it with equal numbers. Raises DeviceError where a peer cannot be reached."""
        if num_bytes < 0 or num_flags < 1:
            raise InputError(f"endpoints: are {num_bytes} bytes and {num_flags} flags; expected at least 0 and 1")
        self.job, self.num_bytes, self.num_flags, self.base = job, num_bytes, num_flags, 0
        flag_bytes = -(-num_flags * FLAG_BYTES // PAGE) * PAGE
        self._own: dict[int, int] = {}
        self._opened: list[tuple[int, int]] = []
        self._others: list[tuple[int, int]] = []
        self._tables: dict[int, dict[str, int]] = {}
        reach = job.reach_all(lambda rank: flag_bytes + num_bytes, self._own, self._opened)
        for rank, device in job.devices.items():
            bases = np.array(reach[device], dtype=np.uint64)
            known = {"flags": bases, "data": bases + np.uint64(flag_bytes), "failed": np.zeros(1, dtype=np.uint64)}
            self._tables[rank] = {name: self._placed(device, table) for name, table in known.items()}
        self._data_at = {rank: address + flag_bytes for rank, address in self._own.items()}

    def argument(self, rank: int, limit_s: float = 60.0) -> npt.NDArray[np.void]:
        """The `endpoint` of a rank of this process, for one launch (pass `argument(rank)[()]`)."""
        if rank not in self._own:
            raise InputError(f"rank {rank} is not of this process; expected one of {sorted(self._own)}")
        made = np.zeros((), dtype=ENDPOINT)
        for name, address in self._tables[rank].items():
            made[name] = address
        made["base"], made["limit_ns"] = self.base, int(limit_s * 1e9)
        made["rank"], made["num_ranks"] = rank, self.job.size
        return made

    def data(self, rank: int, dtype: npt.DTypeLike = np.uint8) -> Any:
        """The data of a rank of this process, as an array of the driver's kind."""
        return self.job.driver.array(self.job.devices[rank], self._data_at[rank], self.num_bytes, np.dtype(dtype))

    def advance(self, values: int) -> None:
        """Let the next call's flags count from above this call's, whose values went up to `values`."""
        self.base += values

    def check(self) -> None:
        """Raise DeviceError if a wait of a kernel was given up; the job has ended then."""
        for rank, device in self.job.devices.items():
            word = np.zeros(1, dtype=np.uint64)
            self.job.driver.read(device, self._tables[rank]["failed"], word)
            if word[0]:
                message = f"rank {rank}: flag {int(word[0]) - 1} was not raised within the time limit"
                self.job.fail(message)
                raise DeviceError(message)

    def close_peers(self) -> None:
        """Unmap memory of other processes."""
        for device, address in self._opened:
            self.job.driver.close(device, address)
        self._opened = []

    def free(self) -> None:
        """Give back what this process owns."""
        for rank, address in self._own.items():
            self.job.driver.free(self.job.devices[rank], address)
        for device, address in self._others:
            self.job.driver.free(device, address)
        self._own, self._others = {}, []

    def abort(self, rank: int) -> None:
        """Kernels of one's own give up by their limits."""

    def give_up(self) -> str | None:
        """Nothing but limits ends a kernel of one's own."""
        return None

    def _placed(self, device: int, table: npt.NDArray[Any]) -> int:
        address = self.job.driver.allocate(device, table.nbytes)
        self._others.append((device, address))
        self.job.driver.write(device, address, table)
        return address
