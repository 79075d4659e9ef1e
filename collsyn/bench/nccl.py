"""NCCL's own collectives on the GPUs of this job, through CuPy, to compare with."""

from collections.abc import Callable
from typing import Any

import numpy as np

from collsyn.bench.data import Pattern
from collsyn.cuda.job import GpuJob
from collsyn.errors import DeviceError
from collsyn.model.collective import Collective

_TYPES = {
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
    "float16": "NCCL_FLOAT16",
    "bfloat16": "NCCL_BFLOAT16",
    "int32": "NCCL_INT32",
    "int64": "NCCL_INT64",
    "uint8": "NCCL_UINT8",
}
# An average is a sum here, which is divided as ours is: CuPy has no name for NCCL's.
_OPS = {"sum": "NCCL_SUM", "prod": "NCCL_PROD", "min": "NCCL_MIN", "max": "NCCL_MAX"}
_KINDS = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce", "gather", "scatter", "alltoall")


def nccl_not_comparable(job: GpuJob, collective: Collective, op_name: str) -> str | None:
    """Why NCCL does not do the same on these ranks, or None if it does."""
    if len(set(job.devices.values())) < len(job.devices):
        return "NCCL refuses several ranks on one GPU"
    if collective.kind not in _KINDS or "counts" in collective.spec:
        return f"{collective.kind} is not compared with NCCL"
    if len(collective.groups) > 1 or len(collective.groups[0]) != collective.num_ranks:
        return "groups of some of the ranks are not compared"
    if collective.reduces and op_name not in _OPS:
        return f"NCCL's {op_name} is not compared"
    return None


def communicators(job: GpuJob) -> dict[int, Any]:
    """NCCL's communicator of every rank of this process; every process must call it. DeviceError without NCCL."""
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        raise DeviceError(f"NCCL cannot be loaded by CuPy ({error}); pip install nvidia-nccl-cu12 brings it") from None
    if job.bootstrap is None:
        ranks = sorted(job.devices)
        made = nccl.NcclCommunicator.initAll([job.devices[rank] for rank in ranks])
        return dict(zip(ranks, made, strict=True))
    ((rank, device),) = job.devices.items()
    mine = nccl.get_unique_id() if rank == 0 else ()
    unique = tuple(job.exchange(lambda: {"id": list(mine)})[0]["id"])
    import cupy

    with cupy.cuda.Device(device):
        return {rank: nccl.NcclCommunicator(job.size, unique, rank)}


class NcclCollective:
    """One collective with buffers of its own on every GPU of this process."""

    def __init__(self, job: GpuJob, known: dict[int, Any], pattern: Pattern) -> None:
        """Allocate and fill; `nccl_not_comparable` must have said None."""
        self._job, self._known, self._pattern = job, known, pattern
        self._streams = {device: job.driver.stream(device) for device in job.devices.values()}
        self._buffers: dict[int, tuple[int, int]] = {}
        width = pattern.dtype.num_bytes
        for rank, device in job.devices.items():
            sizes = pattern.places.input[rank][2], pattern.places.output[rank][2]
            self._buffers[rank] = tuple(job.driver.allocate(device, size * width) for size in sizes)  # type: ignore[assignment]
            given = np.empty(sizes[0], dtype=pattern.dtype.storage)
            pattern.fill_input(rank, given)
            job.driver.write(device, self._buffers[rank][0], given)

    def streams(self) -> dict[int, Any]:
        """The stream of every device."""
        return self._streams

    def enqueue(self) -> None:
        """Give one call of all ranks of this process to their streams."""
        from cupy.cuda import nccl

        nccl.groupStart()
        for rank, device in self._job.devices.items():
            self._call(nccl, rank, self._streams[device].stream.ptr)
        nccl.groupEnd()

    def wait(self) -> None:
        """Until all streams are done."""
        for stream in self._streams.values():
            stream.wait()

    def wrong_elements(self) -> int:
        """Wrong elements of the outputs here after a call."""
        wrong = 0
        for rank, device in self._job.devices.items():
            output = np.empty(self._pattern.places.output[rank][2], dtype=self._pattern.dtype.storage)
            self._job.driver.read(device, self._buffers[rank][1], output)
            wrong += self._pattern.wrong_elements(rank, output)
        return wrong

    def close(self) -> None:
        """Give the buffers back."""
        for rank, device in self._job.devices.items():
            for address in self._buffers[rank]:
                self._job.driver.free(device, address)

    def _call(self, nccl: Any, rank: int, stream: int) -> None:
        collective, pattern, comm = self._pattern.collective, self._pattern, self._known[rank]
        send, receive = self._buffers[rank]
        dtype, root, size = getattr(nccl, _TYPES[pattern.dtype.name]), collective.root or 0, collective.num_ranks
        count = pattern.places.input[rank][2]
        calls: dict[str, Callable[[], Any]] = {
            "allgather": lambda: comm.allGather(send, receive, count, dtype, stream),
            "reducescatter": lambda: comm.reduceScatter(send, receive, count // size, dtype, self._op(nccl), stream),
            "allreduce": lambda: comm.allReduce(send, receive, count, dtype, self._op(nccl), stream),
            "reduce": lambda: comm.reduce(send, receive, count, dtype, self._op(nccl), root, stream),
            "broadcast": lambda: comm.broadcast(
                send, receive, pattern.places.output[rank][2] or count, dtype, root, stream
            ),
        }
        if collective.kind in calls:
            calls[collective.kind]()
            return
        width = pattern.dtype.num_bytes
        # The others are sends and receives, each rank's part by its place in the buffer.
        part = count // size if collective.kind in ("alltoall", "scatter") else count
        part = part or pattern.places.output[rank][2]
        if collective.kind in ("alltoall", "scatter") and (collective.kind == "alltoall" or rank == root):
            for peer in range(size):
                comm.send(send + peer * part * width, part, dtype, peer, stream)
        if collective.kind == "gather":
            comm.send(send, count, dtype, root, stream)
        if collective.kind == "scatter":
            comm.recv(receive, pattern.places.output[rank][2], dtype, root, stream)
        if collective.kind == "alltoall" or (collective.kind == "gather" and rank == root):
            for peer in range(size):
                comm.recv(receive + peer * part * width, part, dtype, peer, stream)

    def _op(self, nccl: Any) -> Any:
        return getattr(nccl, _OPS[self._pattern.op])
