"""Collectives prepared by the user, on memory that the ranks share."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from collsyn.comm.buffers import Array
from collsyn.comm.plans import Call
from collsyn.errors import DeviceError, InputError
from collsyn.model.dtypes import checked_op, dtype_of
from collsyn.model.kinds import ROOTED
from collsyn.runtime.host import PreparedPlan

_KINDS = {
    "all_reduce": "allreduce",
    "reduce": "reduce",
    "reduce_scatter": "reducescatter",
    "all_gather": "allgather",
    "gather": "gather",
    "scatter": "scatter",
    "broadcast": "broadcast",
    "all_to_all": "alltoall",
}


class Issue(Protocol):
    """Does a task in a communicator's order."""

    def __call__(self, task: Callable[[], Any], what: str, async_op: bool) -> Any:
        """The task's result, or its Work."""


class Prepared:
    """A collective on fixed memory: fill `input`, `run`, read `output`.

    Both are flat arrays of this rank, empty where it gives or gets nothing, and uint16 for bfloat16. They are laid out
    in place: the same memory in `all_reduce`, `reduce` and `broadcast`; in `all_gather` and `gather` the input lies at
    its place in the output, in `reduce_scatter` and `scatter` the output at its place in the input; in `all_to_all`
    they are apart. The output stays until the next run.
    """

    def __init__(self, call: Call, plan: PreparedPlan | None, issue: Issue, timeout_s: float) -> None:
        """Made by `Communicator.prepare`; `plan` is None for a single rank."""
        self._what, self._plan, self._issue, self._timeout_s = call.kind, plan, issue, timeout_s
        self._is_closed = False
        alone = np.zeros(call.num_elements if plan is None else 0, dtype=dtype_of(call.dtype_name).storage)
        self.input: Array = alone if plan is None else plan.input
        self.output: Array = alone if plan is None else plan.output

    def run(self, *, async_op: bool = False) -> Any:
        """Run the collective once with all other ranks; the output, or a Work whose result it is."""

        def task() -> Array:
            if self._is_closed:
                raise InputError(f"{self._what}: what was prepared is closed")
            if self._plan is not None:
                self._plan.run(self._timeout_s)
            return self.output

        return self._issue(task, self._what, async_op)

    def close(self) -> None:
        """Give the memory back after what was issued; all ranks do. The arrays must not be used any more."""
        try:
            self._issue(self._close, "close", False)
        except DeviceError:
            # A job that has ended has no memory to give back.
            self._is_closed = True

    def __enter__(self) -> "Prepared":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _close(self) -> None:
        if not self._is_closed and self._plan is not None:
            self._plan.close()
        self._is_closed = True


def prepared_call(kind: str, size: int, num_ranks: int, dtype: str, op: str, root: int | None) -> Call:
    """What a user wants to prepare; raises InputError."""
    if kind not in _KINDS:
        raise InputError(f"kind: {kind!r} is not known; expected one of {', '.join(_KINDS)}")
    name = _KINDS[kind]
    if size < 1:
        raise InputError(f"size: is {size} elements; expected at least 1")
    if kind in ("gather", "scatter", "all_to_all") and size % num_ranks:
        raise InputError(f"size: {size} elements do not divide among {num_ranks} ranks")
    if root is not None and not (name in ROOTED and 0 <= root < num_ranks):
        raise InputError(f"root: is {root}; expected 0 .. {num_ranks - 1}, and only where the call has one")
    dtype_of(dtype)
    return Call(name, size, dtype, checked_op(op), (root or 0) if name in ROOTED else None)
