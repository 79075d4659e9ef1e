"""A plan in the memory of GPUs: its buffers, the tables of its launches, and calls."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from collsyn.cuda.between import Between
from collsyn.cuda.engine import Engine
from collsyn.cuda.far import LANE_BYTES
from collsyn.cuda.layout import (
    DEFAULT_THREADS,
    DIVIDE_ENTRY,
    ENTRY,
    MAX_THREADS,
    REPORT,
    SLOTS,
    DeviceProgram,
    Outcome,
    buffer_table,
    rank_memory,
)
from collsyn.cuda.pack import pack
from collsyn.cuda.specialise import specialised_source
from collsyn.errors import DeviceError, InputError
from collsyn.model.bind import BoundPlan
from collsyn.model.dtypes import dtype_of
from collsyn.model.plan import Buffer

if TYPE_CHECKING:
    from collsyn.cuda.job import GpuJob

DEFAULT_LIMIT_S = 60.0
# Who moves bytes: the kernel that reads a plan's instructions, one made for the plan, or copy engines.
KERNEL, SPECIALISED, ENGINE = TRANSPORTS = ("kernel", "specialised", "engine")
# Blocks and threads of the kernel that divides sums into averages.
_DIVIDE = (32, 256)


@dataclass(eq=False)
class Placed:
    """What runs the ranks of one device; `engine` where copy engines do."""

    device: int
    program: DeviceProgram
    kernel: Any
    divide: Any
    stream: Any
    addresses: dict[str, int]
    table: npt.NDArray[np.uint64]
    engine: Engine | None = None


class GpuPlan:
    """A prepared plan: fill `input(rank)`, `run`, read `output(rank)`.

    Both are arrays of the driver's kind (CuPy) in the storage type of the elements, valid until `close`. Buffers of a
    user take their place with `register`.
    """

    def __init__(
        self,
        job: "GpuJob",
        bound: BoundPlan,
        dtype_name: str,
        op_name: str,
        threads: int | None,
        blocks_per_channel: int,
        transport: str = KERNEL,
    ) -> None:
        """Made by `GpuJob.prepare`."""
        if transport not in TRANSPORTS:
            raise InputError(f"transport: is {transport!r}; expected one of {', '.join(TRANSPORTS)}")
        self.job, self.bound, self.dtype = job, bound, dtype_of(dtype_name)
        self.threads = DEFAULT_THREADS if threads is None else threads
        if not 32 <= self.threads <= MAX_THREADS or self.threads % 32:
            raise InputError(f"threads: is {self.threads}; expected a multiple of 32 up to {MAX_THREADS}")
        self._own: dict[int, int] = {}
        self._opened: list[tuple[int, int]] = []
        self._elsewhere: dict[tuple[int, Buffer], int] = {}
        self._launches: list[Placed] = []
        self._others: list[tuple[int, int]] = []
        self._pinned: list[int] = []
        self._region: int | None = None
        programs: dict[int, DeviceProgram] = {}

        def pack_all() -> dict[str, Any]:
            if transport == ENGINE and not job.has_one_box:
                raise InputError(f"transport: is {transport!r}, which reaches no other boxes; expected {KERNEL!r}")
            beyond = None if job.between is None else job.between.beyond
            for device in sorted(set(job.devices.values())):
                ranks = [rank for rank, of_rank in job.devices.items() if of_rank == device]
                programs[device] = pack(bound, dtype_name, op_name, ranks, blocks_per_channel, beyond)
            return {}

        try:
            job.exchange(pack_all)
            room = max(program.room for program in programs.values())
            bases = job.reach_all(lambda rank: rank_memory(bound, rank).size + room, self._own, self._opened)
            for device, program in programs.items():
                placed = self._placed(device, program, bases[device], transport == SPECIALISED)
                self._launches.append(placed)
                if transport == ENGINE:
                    placed.engine = Engine(job.driver, placed, partial(self._allocated, device))
            if job.between is not None:
                self._offer(job.between)
                # Nobody may send before all have offered.
                job.exchange(dict)
        except BaseException:
            self.close_peers()
            self.free()
            raise

    @property
    def grid(self) -> int:
        """Blocks of all launches of this process."""
        return sum(launch.program.grid for launch in self._launches)

    @property
    def can_record(self) -> bool:
        """Whether calls are alike, so that a graph of them can be replayed: copy engines count flags on the host."""
        return all(launch.engine is None for launch in self._launches)

    def input(self, rank: int) -> Any:
        """The input of a rank of this process."""
        return self._array(rank, Buffer.INPUT)

    def output(self, rank: int) -> Any:
        """The output of a rank of this process."""
        return self._array(rank, Buffer.OUTPUT)

    def address(self, device: int, rank: int, buffer: Buffer) -> int:
        """Where a device of this process reaches a buffer of any rank."""
        return int(self._table(device)[SLOTS * rank + buffer])

    def fill(self, rank: int, buffer: Buffer, data: npt.NDArray[Any]) -> None:
        """Copy an array into a buffer of a rank of this process, and wait."""
        device = self.job.devices[rank]
        self.job.driver.write(device, self.address(device, rank, buffer), data)

    def fetch(self, rank: int, buffer: Buffer) -> npt.NDArray[np.uint8]:
        """The bytes of a buffer of a rank of this process."""
        device = self.job.devices[rank]
        data = np.empty(int(self.bound.buffer_bytes[rank, buffer]), dtype=np.uint8)
        self.job.driver.read(device, self.address(device, rank, buffer), data)
        return data

    def _table(self, device: int) -> npt.NDArray[np.uint64]:
        return next(launch.table for launch in self._launches if launch.device == device)

    def register(self, addresses: Mapping[int, tuple[int, int]]) -> None:
        """Let the next calls work on users' input and output of ranks of this process, in place of our own.

        The plan must be bound with lent buffers (peers never touch them). Copies two words a rank, and waits.
        """
        if not self.bound.is_lent:
            raise InputError(f"plan {self.bound.plan.name}: is bound with buffers of its own; bind it with lent ones")
        for rank, (first, second) in addresses.items():
            self._elsewhere[rank, Buffer.INPUT] = first
            self._elsewhere[rank, Buffer.OUTPUT] = second
        for launch in self._launches:
            for (rank, buffer), address in self._elsewhere.items():
                launch.table.reshape(-1, self.bound.plan.num_ranks, SLOTS)[:, rank, buffer] = address
            self.job.driver.write(launch.device, launch.addresses["buffers"], launch.table)

    def run(self, limit_s: float = DEFAULT_LIMIT_S) -> None:
        """One call, waited for. Raises DeviceError where a wait of the plan took longer than `limit_s` (the message
        names rank, channel and instruction) or another rank failed; the job has ended then."""
        self.job.check()
        self.enqueue(limit_s)
        self.wait(limit_s)

    def enqueue(self, limit_s: float = DEFAULT_LIMIT_S) -> None:
        """Give one call to the plan's streams and return at once."""
        for launch in self._launches:
            self._enqueue(launch, limit_s)

    def enqueue_on(self, device: int, calls: int = 1, limit_s: float = DEFAULT_LIMIT_S) -> None:
        """Give calls of the ranks of one device to its stream; the other devices must get as many."""
        for launch in self._launches:
            if launch.device == device:
                for _ in range(calls):
                    self._enqueue(launch, limit_s)

    def _enqueue(self, launch: Placed, limit_s: float) -> None:
        driver, program = self.job.driver, launch.program
        if launch.engine is not None:
            launch.engine.enqueue()
        argument = program.launch(launch.addresses, limit_s)[()]
        if launch.engine is None and program.grid:
            driver.launch(launch.device, launch.kernel, launch.stream, program.grid, self.threads, argument, True)
        if len(program.divisions):
            driver.launch(launch.device, launch.divide, launch.stream, *_DIVIDE, argument, False)

    def wait(self, limit_s: float = DEFAULT_LIMIT_S) -> None:
        """Return when all calls that were given to the streams are done; raises what `run` raises."""
        self.job.wait(self, self.streams(), limit_s)
        failures = []
        for launch in self._launches:
            report = np.zeros(1, dtype=REPORT)
            self.job.driver.read(launch.device, launch.addresses["report"], report)
            words = launch.program.failure(report[0])
            if words is not None:
                failures.append((report[0]["code"] == Outcome.ABORTED, words))
        if failures:
            # Whoever gave up for another one's sake knows less.
            message = min(failures)[1]
            self.job.fail(message)
            raise DeviceError(message)

    def give_up(self) -> str | None:
        """Let streams of copy engines end although flags have not come; the first wait in words."""
        engines = [launch.engine for launch in self._launches if launch.engine is not None]
        words = [engine.stuck() for engine in engines]
        for engine in engines:
            engine.release()
        return next(filter(None, words), None)

    def streams(self) -> dict[int, Any]:
        """The plan's own stream of every device."""
        return {launch.device: launch.stream for launch in self._launches}

    def abort(self, rank: int) -> None:
        """End the waits of this process's ranks, for that rank is lost."""
        word = np.array([rank + 1], dtype=np.uint32)
        for own, address in self._own.items():
            self.job.driver.write_aside(self.job.devices[own], address, word)

    def close_peers(self) -> None:
        """Unmap memory of other processes."""
        for device, address in self._opened:
            self.job.driver.close(device, address)
        self._opened = []

    def free(self) -> None:
        """Give back what this process owns."""
        if self._region is not None and self.job.between is not None:
            self.job.between.withdraw(self._region)
            self._region = None
        for rank, address in self._own.items():
            self.job.driver.free(self.job.devices[rank], address)
        for device, address in self._others:
            self.job.driver.free(device, address)
        for address in self._pinned:
            self.job.driver.unpin(address)
        self._own, self._others, self._pinned, self._launches = {}, [], [], []

    def _offer(self, between: Between) -> None:
        """Let the ranks of other boxes name this rank's memory, and its kernel ask for theirs."""
        (launch,), ((rank, address),) = self._launches, self._own.items()
        num_lanes = len(launch.program.channels)
        launch.addresses["lanes"] = self.job.driver.pinned(max(num_lanes, 1) * LANE_BYTES)
        self._pinned.append(launch.addresses["lanes"])
        size = rank_memory(self.bound, rank).size
        self._region = between.offer(address, size, launch.addresses["lanes"], num_lanes)

    def _placed(self, device: int, program: DeviceProgram, bases: list[int], specialised: bool) -> Placed:
        driver = self.job.driver
        module = self.job.module(device)
        if specialised:
            module = self.job.module_of(device, specialised_source(program), "specialised.cu")
        kernel = module(ENTRY)
        room = driver.resident_blocks(device, kernel, self.threads)
        if program.grid > room:
            raise DeviceError(
                f"plan {self.bound.plan.name}: needs {program.grid} blocks of {self.threads} threads at once on GPU "
                f"{device}, which holds {room}; use fewer channels, blocks a channel or threads"
            )
        table = buffer_table(self.bound, bases, self._elsewhere)
        arrays = {
            "instructions": program.instructions,
            "channels": program.channels,
            "divisions": program.divisions,
            "buffers": table,
        }
        addresses = {}
        for name, array in arrays.items():
            addresses[name] = self._allocated(device, array.nbytes)
            driver.write(device, addresses[name], array)
        for name, size in program.work_sizes().items():
            addresses[name] = self._allocated(device, size)
        return Placed(device, program, kernel, module(DIVIDE_ENTRY), driver.stream(device), addresses, table)

    def _allocated(self, device: int, num_bytes: int) -> int:
        address = self.job.driver.allocate(device, num_bytes)
        self._others.append((device, address))
        return address

    def _array(self, rank: int, buffer: Buffer) -> Any:
        if rank not in self._own:
            raise InputError(f"rank {rank} is not of this process; expected one of {sorted(self._own)}")
        if self.bound.is_lent:
            raise InputError(f"plan {self.bound.plan.name}: works on buffers of the user")
        memory, size = rank_memory(self.bound, rank), int(self.bound.buffer_bytes[rank, buffer])
        address = self._own[rank] + memory.offsets[buffer]
        return self.job.driver.array(self.job.devices[rank], address, size, self.dtype.storage)
