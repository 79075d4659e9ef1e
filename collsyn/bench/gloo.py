"""Gloo's collectives, as torch brings them, on the ranks of this job, to compare with."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.bench.data import Pattern
from collsyn.errors import DeviceError
from collsyn.model.collective import Collective
from collsyn.runtime.bootstrap import Bootstrap

Array = npt.NDArray[Any]

_OPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}
_KINDS = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce", "gather", "scatter", "alltoall")
_LIMIT = timedelta(seconds=60)


def gloo_not_comparable(collective: Collective, op_name: str) -> str | None:
    """Why gloo has no call that does the same, or None if it has."""
    if collective.kind not in _KINDS or "counts" in collective.spec:
        return f"{collective.kind} is not compared with gloo"
    if len(collective.groups) > 1 or len(collective.groups[0]) != collective.num_ranks:
        return "groups of some of the ranks are not compared"
    if collective.reduces and op_name not in _OPS:
        return f"gloo has no reduction {op_name}"
    return None


def make_gloo(bootstrap: Bootstrap) -> Any:
    """Gloo's backend for the ranks of a bootstrap, all of which call it; DeviceError where torch is missing."""
    try:
        import torch.distributed as dist

        port = 0
        if bootstrap.rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, None, True, _LIMIT, False)
            port = store.port
        port = int(bootstrap.allgather(str(port).encode())[0])
        if bootstrap.rank:
            store = dist.TCPStore("127.0.0.1", port, None, False, _LIMIT)
        return dist.ProcessGroupGloo(store, bootstrap.rank, bootstrap.size, _LIMIT)
    except (ImportError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise DeviceError(
            f"gloo comes with torch, which cannot be used ({reason}): pip install 'collsyn[torch]'"
        ) from None


class GlooCollective:
    """One collective with tensors of its own: `call()` runs it once, and returns when it is over.

    Where gloo works in place only (allreduce, reduce, broadcast), the first result is checked and later ones are not.
    """

    def __init__(self, gloo: Any, pattern: Pattern, rank: int) -> None:
        """Make and fill the tensors; `gloo_not_comparable` must have said None."""
        import torch

        self._gloo, self._pattern, self._rank, self._torch = gloo, pattern, rank, torch
        places, storage = pattern.places, pattern.dtype.storage
        self._input = np.zeros(places.input[rank][2], dtype=storage)
        self._output = np.zeros(places.output[rank][2], dtype=storage)
        pattern.fill_input(rank, self._input)
        pattern.poison(self._output)
        self.call: Callable[[], Any] = self._bound_call(pattern.collective.kind, pattern.collective.root or 0)

    def wrong_elements(self) -> int:
        """Wrong elements in this rank's output after the first call."""
        return self._pattern.wrong_elements(self._rank, self._output)

    def _tensor(self, array: Array) -> Any:
        """A tensor on an array's memory."""
        if self._pattern.dtype.name == "bfloat16":
            return self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(array)

    def _bound_call(self, kind: str, root: int) -> Callable[[], Any]:
        import torch.distributed as dist

        gloo, size, at_root = self._gloo, self._gloo.size(), self._rank == root
        if kind in ("allreduce", "reduce", "broadcast"):
            # Where a rank gives nothing or gets nothing there is one buffer all the same.
            if kind == "broadcast" and not at_root:
                self._input = np.zeros_like(self._output)
            whole = self._tensor(self._input)
            if self._output.size:
                self._output = self._input
        send, receive = self._tensor(self._input), self._tensor(self._output)
        op = getattr(dist.ReduceOp, _OPS.get(self._pattern.op, "SUM"))
        if kind == "allreduce":
            opts = _options("Allreduce", reduceOp=op)
            return lambda: gloo.allreduce([whole], opts).wait()
        if kind == "reduce":
            opts = _options("Reduce", reduceOp=op, rootRank=root)
            return lambda: gloo.reduce([whole], opts).wait()
        if kind == "broadcast":
            opts = _options("Broadcast", rootRank=root)
            return lambda: gloo.broadcast([whole], opts).wait()
        if kind == "allgather":
            return lambda: gloo._allgather_base(receive, send).wait()
        if kind == "reducescatter":
            opts = _options("ReduceScatter", reduceOp=op)
            return lambda: gloo._reduce_scatter_base(receive, send, opts).wait()
        if kind == "alltoall":
            return lambda: gloo.alltoall_base(receive, send, [], []).wait()
        if kind == "gather":
            opts = _options("Gather", rootRank=root)
            parts = [list(receive.chunk(size))] if at_root else []
            return lambda: gloo.gather(parts, [send], opts).wait()
        assert kind == "scatter"
        opts = _options("Scatter", rootRank=root)
        given = [list(send.chunk(size))] if at_root else []
        return lambda: gloo.scatter([receive], given, opts).wait()


def _options(call: str, **fields: Any) -> Any:
    from torch import distributed

    options = getattr(distributed.distributed_c10d, f"{call}Options")()
    for name, value in fields.items():
        setattr(options, name, value)
    return options
