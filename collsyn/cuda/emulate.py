"""Runs kernels where there is no GPU: on threads of the host, several a block, in a process of their own.

What runs is the kernels' own text, so a wait that is missing, a barrier or an order of accesses shows here, in wrong
data or in reports of the thread sanitizer. What only GPUs have (peer access, a memory model of their own) does not.
"""

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.cuda.layout import DIVIDE_ENTRY, ENTRY, REPORT, DeviceProgram, buffer_table, rank_memory
from collsyn.cuda.pack import pack
from collsyn.cuda.sources import host_program
from collsyn.errors import DeviceError, InputError
from collsyn.model.bind import BoundPlan, layout
from collsyn.model.dtypes import dtype_of
from collsyn.model.plan import Buffer
from collsyn.runtime.arena import PAGE

Array = npt.NDArray[Any]
_JOB = np.dtype([("argument", "u8"), ("blocks", "u8"), ("turn", "u8"), ("entry", "S64")])
_GARBAGE = 0xA5


class Image:
    """Memory for kernels, filled before they run and read afterwards; addresses are offsets from its begin."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, Array]] = []
        self._places: list[int] = []
        self._jobs: list[tuple[int, int, int, str]] = []
        self._size = PAGE

    def add(self, content: Array, addresses: Sequence[str] = (), align: int = 64) -> int:
        """Put an array into the image; the address it gets. Fields named in `addresses` hold addresses (of an array
        without fields: `*` says that all elements do), 0 among them stays 0."""
        at = -(-self._size // align) * align
        data = np.ascontiguousarray(content)
        for name in addresses:
            offset = 0 if name == "*" else int(data.dtype.fields[name][1])  # type: ignore[index]
            self._places += [at + i * data.dtype.itemsize + offset for i in range(data.size)]
        self._parts.append((at, data))
        self._size = at + max(data.nbytes, 1)
        return at

    def launch(self, entry: str, argument: int, blocks: int, turn: int = 0) -> None:
        """Run a kernel on the argument at an address; launches of a turn run at once."""
        self._jobs.append((argument, blocks, turn, entry))

    def run(self, program: Path, threads: int = 4, repeats: int = 1, limit_s: float = 60) -> Array:
        """The memory as all launches left it, run `repeats` times. Raises DeviceError with what the program said where
        it failed, reports of the sanitizer too, and where it does not end."""
        memory = np.zeros(self._size, dtype=np.uint8)
        for at, data in self._parts:
            memory[at : at + data.nbytes] = data.reshape(-1).view(np.uint8)
        jobs = np.array(sorted(self._jobs, key=lambda job: job[2]), dtype=_JOB)
        head = np.array([self._size, len(self._places), len(jobs)], dtype=np.uint64)
        places = np.array(self._places, dtype=np.uint64)
        with tempfile.TemporaryDirectory(prefix="collsyn-emulate-") as folder:
            file = Path(folder) / "image"
            file.write_bytes(head.tobytes() + places.tobytes() + jobs.tobytes() + memory.tobytes())
            try:
                done = subprocess.run(
                    [str(program), str(file), str(threads), str(repeats)],
                    check=False,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=limit_s,
                )
            except subprocess.TimeoutExpired as late:
                raise DeviceError(f"the emulated kernel did not end within {limit_s:g} s") from late
            if done.returncode:
                raise DeviceError(f"the emulated kernel failed ({done.returncode}): {done.stderr.strip()}")
            return np.frombuffer(file.read_bytes()[-self._size :], dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class Emulated:
    """Outputs and inputs of all ranks after a run, and what went wrong in words, None if nothing did."""

    outputs: list[Array]
    inputs: list[Array]
    failure: str | None


def emulate(
    bound: BoundPlan,
    dtype_name: str,
    op_name: str,
    inputs: Sequence[Array],
    *,
    threads: int = 4,
    blocks_per_channel: int = 1,
    apart: bool = False,
    calls: int = 1,
    limit_s: float = 20,
    program: Path | None = None,
    entry: str = ENTRY,
) -> Emulated:
    """Run a bound plan with `threads` threads a block: all ranks in one launch, as on one GPU, or `apart`, each in a
    launch of its own.

    Several calls follow each other on the same flags; in place, the second one takes what the first one left, so those
    with more than one call should be out of place. Raises DeviceError where the kernel crashes or does not end.
    """
    if bound.is_lent:
        raise InputError(f"plan {bound.plan.name}: its buffers are lent, and nobody lends any here")
    image = Image()
    num_ranks = bound.plan.num_ranks
    bases = [image.add(_memory(bound, rank, dtype_name, inputs[rank]), align=PAGE) for rank in range(num_ranks)]
    table = buffer_table(bound, bases)
    groups = [[rank] for rank in range(num_ranks)] if apart else [None]
    programs = [pack(bound, dtype_name, op_name, group, blocks_per_channel) for group in groups]
    reports = []
    for made in programs:
        launch, report = _place(image, made, table, limit_s)
        reports.append(report)
        image.launch(entry, launch, made.grid)
        if len(made.divisions):
            image.launch(DIVIDE_ENTRY, launch, 2, turn=1)
    memory = image.run(program or host_program(), threads, calls, limit_s + 60)
    failures = [
        made.failure(memory[at : at + REPORT.itemsize].view(REPORT)[0])
        for made, at in zip(programs, reports, strict=True)
    ]
    words = sorted(filter(None, failures), key=lambda text: "given up" in text)
    dtype = dtype_of(dtype_name).storage

    def buffers(which: Buffer) -> list[Array]:
        sizes = bound.buffer_bytes[:, which].tolist()
        begins = [bases[rank] + rank_memory(bound, rank).offsets[which] for rank in range(num_ranks)]
        return [memory[begin : begin + size].copy().view(dtype) for begin, size in zip(begins, sizes, strict=True)]

    return Emulated(buffers(Buffer.OUTPUT), buffers(Buffer.INPUT), words[0] if words else None)


def _memory(bound: BoundPlan, rank: int, dtype_name: str, given: Array) -> Array:
    """A rank's allocation before the call: its input, and garbage where the plan must write."""
    memory = rank_memory(bound, rank)
    made = np.full(memory.size, _GARBAGE, dtype=np.uint8)
    made[: memory.control_bytes] = 0
    places = layout(bound.plan.collective, bound.num_elements)
    chunks, _, size = places.output[rank]
    if int(places.lengths[chunks].sum()) < size:
        begin = memory.offsets[Buffer.OUTPUT]
        made[begin : begin + int(bound.buffer_bytes[rank, Buffer.OUTPUT])] = 0
    size = int(bound.buffer_bytes[rank, Buffer.INPUT])
    storage = dtype_of(dtype_name).storage
    if given.dtype != storage or given.nbytes != size:
        expected = f"{storage}[{size // storage.itemsize}]"
        raise InputError(f"inputs: that of rank {rank} is {given.dtype}{list(given.shape)}; expected {expected}")
    begin = memory.offsets[Buffer.INPUT]
    made[begin : begin + size] = given.view(np.uint8)
    return made


def _place(image: Image, made: DeviceProgram, table: Array, limit_s: float) -> tuple[int, int]:
    """Put all that a launch needs into an image; addresses of its argument and of its report."""
    addresses: Mapping[str, int] = {
        "instructions": image.add(made.instructions),
        "channels": image.add(made.channels),
        "divisions": image.add(made.divisions),
        "buffers": image.add(table, ["*"]),
        **{name: image.add(np.zeros(size, dtype=np.uint8)) for name, size in made.work_sizes().items()},
    }
    launch = made.launch(addresses, limit_s)
    return image.add(launch.reshape(1), list(addresses)), addresses["report"]
