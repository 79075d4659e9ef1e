"""MPI's own collectives on the ranks of this job, to compare with."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.bench.data import Pattern
from collsyn.model.collective import Collective

Array = npt.NDArray[Any]

_TYPES = {"float32": "FLOAT", "float64": "DOUBLE", "int32": "INT32_T", "int64": "INT64_T", "uint8": "UINT8_T"}
_OPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX"}


def not_comparable(collective: Collective, dtype_name: str, op_name: str) -> str | None:
    """Why MPI has no call that does the same, or None if it has."""
    if collective.kind == "custom":
        return "MPI has no custom collectives"
    if collective.kind != "alltoallv" and "counts" in collective.spec:
        return f"{collective.kind} with unequal counts is not compared"
    if len(collective.groups) > 1:
        return "several groups at once are not compared"
    if len(collective.groups[0]) != collective.num_ranks:
        return "a group of some of the ranks is not compared"
    if collective.reduces and dtype_name not in _TYPES:
        return f"MPI has no reduction of {dtype_name}"
    if collective.reduces and op_name not in _OPS:
        return f"MPI has no reduction {op_name}"
    return None


class MpiCollective:
    """One collective with buffers of its own: `call()` runs it once, out of place as ours (Bcast has one buffer only).

    `comm` is an mpi4py communicator of all ranks.
    """

    def __init__(self, comm: Any, pattern: Pattern, rank: int) -> None:
        """Allocate and fill the buffers; `not_comparable` must have said None."""
        from mpi4py import MPI

        self._mpi, self._comm, self._pattern, self._rank = MPI, comm, pattern, rank
        places, storage = pattern.places, pattern.dtype.storage
        self.input = np.zeros(places.input[rank][2], dtype=storage)
        self.output = np.zeros(places.output[rank][2], dtype=storage)
        pattern.fill_input(rank, self.input)
        pattern.poison(self.output)
        collective = pattern.collective
        if collective.kind == "broadcast" and rank == collective.root:
            self.output[...] = self.input
        self.call: Callable[[], Any] = self._bound_call(collective.kind, collective.root or 0)

    def wrong_elements(self) -> int:
        """Wrong elements in this rank's output after a call."""
        return self._pattern.wrong_elements(self._rank, self.output)

    def _bound_call(self, kind: str, root: int) -> Callable[[], Any]:
        comm, send, receive = self._comm, self._buffer(self.input), self._buffer(self.output)
        at_root = self._rank == root
        if self._pattern.collective.reduces:
            op = getattr(self._mpi, _OPS[self._pattern.op])
            if kind == "reduce":
                target = receive if at_root else None
                return lambda: comm.Reduce(send, target, op, root)
            reduce_all = comm.Allreduce if kind == "allreduce" else comm.Reduce_scatter_block
            return lambda: reduce_all(send, receive, op)
        if kind == "allgather":
            return lambda: comm.Allgather(send, receive)
        if kind == "broadcast":
            return lambda: comm.Bcast(receive, root)
        if kind == "gather":
            target = receive if at_root else None
            return lambda: comm.Gather(send, target, root)
        if kind == "scatter":
            source = send if at_root else None
            return lambda: comm.Scatter(source, receive, root)
        if kind == "sendrecv":
            after, before = (self._rank + 1) % comm.size, (self._rank - 1) % comm.size
            return lambda: comm.Sendrecv(send, after, 0, receive, before, 0)
        if kind == "alltoall":
            return lambda: comm.Alltoall(send, receive)
        assert kind == "alltoallv"
        sent, heard = self._with_counts(self.input, sends=True), self._with_counts(self.output, sends=False)
        return lambda: comm.Alltoallv(sent, heard)

    def _buffer(self, array: Array) -> list[Any]:
        """What mpi4py takes: numbers where they are reduced, else bytes, which all types have."""
        if self._pattern.collective.reduces:
            return [array, getattr(self._mpi, _TYPES[self._pattern.dtype.name])]
        return [array.view(np.uint8), self._mpi.BYTE]

    def _with_counts(self, array: Array, sends: bool) -> list[Any]:
        """The buffer with bytes and displacements for every peer."""
        places, collective, width = self._pattern.places, self._pattern.collective, self._pattern.dtype.num_bytes
        chunks, first, _ = (places.input if sends else places.output)[self._rank]
        counts, starts = np.zeros(collective.num_ranks, np.int64), np.zeros(collective.num_ranks, np.int64)
        for chunk, at in zip(chunks.tolist(), first.tolist(), strict=True):
            peer = int((collective.receivers(chunk) if sends else collective.contributors(chunk))[0])
            if not counts[peer]:
                starts[peer] = at * width
            counts[peer] += int(places.lengths[chunk]) * width
        return [array.view(np.uint8), (counts.tolist(), starts.tolist()), self._mpi.BYTE]
