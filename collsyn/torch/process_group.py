"""The process group that torch.distributed calls: its names and option objects, in front of `Collectives`."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from collsyn.comm.communicator import Communicator
from collsyn.comm.work import Lane
from collsyn.errors import InputError
from collsyn.torch.collectives import Collectives, Task
from collsyn.torch.fallback import Fallback
from collsyn.torch.tensors import REDUCED
from collsyn.torch.work import Several, issue

Tensors = list[torch.Tensor]
_CLOSE_LIMIT_S = 60.0
_OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
}


class CollsynGroup(dist.ProcessGroup):
    """Collectives of a group of ranks on one machine by synthesized schedules.

    Tensors are of any type and layout that torch calls strided, contiguous or not, empty or not; those of other devices
    go through memory of the host. Reductions of types and with operations that plans do not know are left to gloo.
    """

    def __init__(self, comm: Communicator, store: Any, timeout: timedelta, is_strict: bool) -> None:
        """`store` is one that only this group uses."""
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._collectives = Collectives(comm)
        self._fallback = Fallback(store, comm.rank, comm.size, timeout, is_strict)
        self._lane = Lane(f"collsyn torch {comm.ranks}")
        self._pairs: dict[tuple[int, int, int], Lane] = {}
        self._names = {"name": "", "description": ""}

    # Names of the group, which the base class would ask its backends for.

    def getBackendName(self) -> str:  # noqa: N802
        """The name under which the backend is registered."""
        return "collsyn"

    def getGroupName(self) -> str:  # noqa: N802
        """The name that functional collectives find the group by."""
        return self._names["name"]

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Called by torch once."""
        self._names["name"] = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """The description."""
        return self._names["description"]

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Called by torch once."""
        self._names["description"] = description

    # Collectives.

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce a tensor in place."""
        return self._reducing("allreduce", _listed(tensors), opts, self._collectives.all_reduce, _listed(tensors))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        """Reduce several tensors in place; those of one type travel as one."""
        if not tensors:
            return self._issue("allreduce", lambda: None, [], opts)
        by_type: dict[torch.dtype, Tensors] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor)
        if len(by_type) == 1:
            return self._reducing("allreduce", tensors, opts, self._collectives.all_reduce, tensors)
        return self._all([self.allreduce_coalesced(alike, opts) for alike in by_type.values()])

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce a tensor into that of the root."""
        listed = _listed(tensors)
        return self._reducing(
            "reduce", listed, opts, lambda _, op: self._collectives.reduce(listed[0], opts.rootRank, op), listed
        )

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Reduce one tensor a rank and keep this rank's."""
        output, parts = _listed(outputs)[0], _parts(inputs)
        return self._reducing(
            "reduce_scatter",
            parts,
            opts,
            lambda _, op: self._collectives.reduce_scatter(output, parts, op),
            [output],
            lambda: ([output], [parts]),
        )

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        """Reduce a tensor and keep this rank's part."""
        return self._reducing(
            "_reduce_scatter_base",
            [tensor],
            opts,
            lambda _, op: self._collectives.reduce_scatter_single(output, tensor, op),
            [output],
            lambda: (output, tensor),
        )

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """Several such calls as one."""
        return self._all([self.reduce_scatter_single(out, one, opts) for out, one in zip(outputs, inputs, strict=True)])

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        """Copy the root's tensors to all ranks."""
        listed = _listed(tensors)
        root = opts if isinstance(opts, int) else getattr(opts, "rootRank", 0)
        return self._issue("broadcast", self._collectives.broadcast(listed, root), listed, opts)

    def allgather(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        """Gather a tensor a rank into as many tensors."""
        parts = _parts(outputs)
        return self._issue("allgather", self._collectives.all_gather(parts, _listed(tensors)[0]), parts, opts)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        """Gather equal tensors into one."""
        return self._issue("allgather", self._collectives.all_gather_single(output, tensor), [output], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """Several such calls as one."""
        tasks = [self._collectives.all_gather_single(out, one) for out, one in zip(outputs, inputs, strict=True)]
        return self._issue("allgather", _in_turn(tasks), outputs, opts)

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        """Gather several tensors; `outputs` has for every rank one tensor of each."""
        columns = [list(column) for column in zip(*outputs, strict=True)]
        tasks = [self._collectives.all_gather(column, one) for column, one in zip(columns, inputs, strict=True)]
        return self._issue("allgather", _in_turn(tasks), [one for column in columns for one in column], opts)

    def gather(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        """Gather a tensor a rank into as many tensors of the root."""
        root = getattr(opts, "rootRank", 0)
        parts = _parts(outputs) if self._comm.rank == root else []
        return self._issue("gather", self._collectives.gather(parts, _listed(tensors)[0], root), parts, opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Give every rank its one of the root's tensors."""
        root, output = getattr(opts, "rootRank", 0), _listed(outputs)[0]
        parts = _parts(inputs) if self._comm.rank == root else []
        return self._issue("scatter", self._collectives.scatter(output, parts, root), [output], opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        out_splits: Sequence[int] = (),
        in_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> Any:
        """Exchange parts of a tensor."""
        task = self._collectives.all_to_all_single(output, tensor, list(out_splits or ()), list(in_splits or ()))
        return self._issue("alltoall", task, [output], opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """Exchange tensors."""
        return self._issue("alltoall", self._collectives.all_to_all(outputs, inputs), outputs, opts)

    def barrier(self, opts: Any = None) -> Any:
        """Return when all ranks have come here."""
        return self._issue("barrier", lambda: self._comm.barrier() and None, [], opts)

    def send(self, tensors: Any, to: int, tag: int = 0) -> Any:
        """Send a tensor; messages of a pair with one tag arrive in order, others need none."""
        (tensor,) = _listed(tensors)
        task = self._collectives.send(tensor, to, tag)
        return issue(self._pair(self._comm.rank, to, tag), task, "send", [tensor], True)

    def recv(self, tensors: Any, origin: int, tag: int = 0) -> Any:
        """Receive a tensor."""
        (tensor,) = _listed(tensors)
        task = self._collectives.receive(tensor, origin, tag)
        return issue(self._pair(origin, self._comm.rank, tag), task, "recv", [tensor], True)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Not served: whose message it will be decides over which memory it comes."""
        raise InputError("recv: without a source is not served; name the rank to receive from (src=...)")

    # The names of torch before 2.13.

    def _allgather_base(self, *args: Any, **options: Any) -> Any:
        return self.all_gather_single(*args, **options)

    def _reduce_scatter_base(self, *args: Any, **options: Any) -> Any:
        return self.reduce_scatter_single(*args, **options)

    def alltoall_base(self, *args: Any, **options: Any) -> Any:
        """The older name of `all_to_all_single`."""
        return self.all_to_all_single(*args, **options)

    def allgather_into_tensor_coalesced(self, *args: Any, **options: Any) -> Any:
        """The older name of `all_gather_single_coalesced`."""
        return self.all_gather_single_coalesced(*args, **options)

    def reduce_scatter_tensor_coalesced(self, *args: Any, **options: Any) -> Any:
        """The older name of `reduce_scatter_single_coalesced`."""
        return self.reduce_scatter_single_coalesced(*args, **options)

    # The end.

    def shutdown(self) -> None:
        """Finish what was issued and leave; the group of all ranks takes the others along."""
        for lane in [self._lane, *self._pairs.values()]:
            lane.close(_CLOSE_LIMIT_S)
        self._fallback.close()
        self._comm.close()

    def abort(self) -> None:
        """End the job on all ranks."""
        self._comm.abort("abort was called")

    # Within.

    def _pair(self, origin: int, to: int, tag: int) -> Lane:
        key = (origin, to, tag)
        return self._pairs.get(key) or self._pairs.setdefault(key, Lane(f"collsyn torch {origin} to {to}"))

    def _issue(self, what: str, task: Task, tensors: Tensors, opts: Any) -> Any:
        return issue(self._lane, task, what, tensors, getattr(opts, "asyncOp", True))

    def _reducing(
        self,
        name: str,
        tensors: Tensors,
        opts: Any,
        make: Callable[[Tensors, str], Task],
        results: Tensors,
        arguments: Callable[[], tuple[Any, ...]] | None = None,
    ) -> Any:
        """A call that reduces: `make(tensors, op)` is its task; gloo is asked `name(*arguments(), opts)` otherwise."""
        op = _OPS.get(_code(opts))
        if op is None or any(one.dtype not in REDUCED or one.layout != torch.strided for one in tensors):
            what = f"{name} of {tensors[0].dtype} with {_code(opts)}"
            given = (tensors,) if arguments is None else arguments()
            return self._fallback.call(what, name, given, opts)
        return self._issue(name, make(tensors, op), results, opts)

    @staticmethod
    def _all(works: list[Any]) -> Any:
        return Several(works)


def _code(opts: Any) -> Any:
    """Torch's own name of a reduction, from an option object or itself."""
    op = getattr(opts, "reduceOp", opts)
    if op is None:
        return dist.ReduceOp.SUM
    return getattr(op, "op", op)


def _listed(tensors: Any) -> Tensors:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _parts(lists: Any) -> Tensors:
    """One tensor a rank, from a list of them or (an older habit) a list with one such list."""
    return list(lists[0]) if lists and not isinstance(lists[0], torch.Tensor) else list(lists)


def _in_turn(tasks: Sequence[Task]) -> Task:
    def task() -> None:
        for each in tasks:
            each()

    return task
