"""Collectives of tensors by a communicator: each returns a task, which runs when its turn in a lane comes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from collsyn.comm.communicator import Communicator
from collsyn.errors import InputError
from collsyn.torch.tensors import REDUCED, Array, into, join, source, split

Task = Callable[[], None]
Tensors = Sequence[torch.Tensor]


def _flat_length(tensors: Tensors) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _one_dtype(tensors: Tensors) -> torch.dtype:
    """The type of the elements of all tensors; raises InputError."""
    dtype = tensors[0].dtype
    other = next((tensor.dtype for tensor in tensors if tensor.dtype != dtype), None)
    if other is not None:
        raise InputError(f"tensors: have elements of {dtype} and of {other}; expected one type")
    return dtype


class Collectives:
    """The calls of one group. Ranks are those within the group; reductions are named as in `collsyn.model.dtypes`."""

    def __init__(self, comm: Communicator) -> None:
        """`comm` has the group's ranks."""
        self.comm = comm

    def all_reduce(self, tensors: Tensors, op: str) -> Task:
        """Reduce tensors in place; several travel as one."""
        if len(tensors) == 1:
            return lambda: into(tensors[0], lambda array: self._all_reduce(array, array, op, tensors[0].dtype))
        dtype = _one_dtype(tensors)

        def task() -> None:
            flat = join([source(tensor) for tensor in tensors])
            self._all_reduce(flat, flat, op, dtype)
            split(flat, tensors)

        return task

    def reduce(self, tensor: torch.Tensor, root: int, op: str) -> Task:
        """Reduce a tensor into that of the root."""
        name = REDUCED[tensor.dtype]

        def task() -> None:
            if self.comm.rank == root:
                into(tensor, lambda array: self.comm.reduce(array, root, op, array, dtype=name))
            else:
                self.comm.reduce(source(tensor), root, op, dtype=name)

        return task

    def broadcast(self, tensors: Tensors, root: int) -> Task:
        """Copy the root's tensors into those of the others."""

        def task() -> None:
            for tensor in tensors:
                if self.comm.rank == root:
                    self.comm.broadcast(source(tensor), root)
                else:
                    into(tensor, lambda array: self.comm.broadcast(array, root))

        return task

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor) -> Task:
        """Gather equal tensors, one behind the other."""
        self._check_parts(output, tensor, "output")
        return lambda: into(output, lambda array: self.comm.all_gather(source(tensor), array))

    def all_gather(self, outputs: Tensors, tensor: torch.Tensor) -> Task:
        """Gather tensors, which may differ in size, into one tensor a rank."""
        self._check_number(outputs, "outputs")
        _one_dtype([tensor, *outputs])
        counts = [output.numel() for output in outputs]

        def task() -> None:
            split(self.comm.all_gather(source(tensor), counts=counts), outputs)

        return task

    def gather(self, outputs: Tensors, tensor: torch.Tensor, root: int) -> Task:
        """Gather equal tensors into those of the root; the others' `outputs` are empty."""
        if self.comm.rank != root:
            return lambda: self._ignore(self.comm.gather(source(tensor), root))
        self._check_number(outputs, "outputs")
        _one_dtype([tensor, *outputs])
        self._check_equal(outputs, tensor, "outputs")
        return lambda: split(self.comm.gather(source(tensor), root), outputs)

    def scatter(self, output: torch.Tensor, inputs: Tensors, root: int) -> Task:
        """Give every rank its one of the root's equal tensors; the others' `inputs` are empty."""
        if self.comm.rank != root:
            return lambda: into(output, lambda array: self.comm.scatter(None, root, array))
        self._check_number(inputs, "inputs")
        _one_dtype([output, *inputs])
        self._check_equal(inputs, output, "inputs")
        return lambda: into(output, lambda array: self.comm.scatter(join([source(one) for one in inputs]), root, array))

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, op: str) -> Task:
        """Reduce a tensor and keep this rank's part, one of equal ones."""
        self._check_parts(tensor, output, "input")
        name = REDUCED[tensor.dtype]
        return lambda: into(output, lambda array: self.comm.reduce_scatter(source(tensor), op, array, dtype=name))

    def reduce_scatter(self, output: torch.Tensor, inputs: Tensors, op: str) -> Task:
        """Reduce one tensor a rank, which may differ in size, and keep this rank's."""
        self._check_number(inputs, "inputs")
        name, counts = REDUCED[_one_dtype([output, *inputs])], [one.numel() for one in inputs]

        def task() -> None:
            flat = join([source(one) for one in inputs])
            into(output, lambda array: self.comm.reduce_scatter(flat, op, array, counts, dtype=name))

        return task

    def all_to_all_single(
        self, output: torch.Tensor, tensor: torch.Tensor, out_splits: Sequence[int], in_splits: Sequence[int]
    ) -> Task:
        """Exchange parts of the first dimension; equal ones where there are no splits."""
        _one_dtype([output, tensor])
        if not out_splits and not in_splits:
            self._check_rows(output, "output")
            self._check_rows(tensor, "input")
            if output.numel() != tensor.numel():
                raise InputError(f"output: has {output.numel()} elements; expected {tensor.numel()}, as the input")
            return lambda: into(output, lambda array: self.comm.all_to_all(source(tensor), array))
        counts = self._counts(tensor, in_splits, "input")
        arriving = self._counts(output, out_splits, "output")
        return lambda: into(output, lambda array: self._exchange(source(tensor), counts, array, arriving))

    def all_to_all(self, outputs: Tensors, inputs: Tensors) -> Task:
        """Exchange tensors, which may differ in size."""
        self._check_number(outputs, "outputs")
        self._check_number(inputs, "inputs")
        _one_dtype([*outputs, *inputs])
        counts, arriving = [one.numel() for one in inputs], [one.numel() for one in outputs]

        def task() -> None:
            flat = join([source(one) for one in inputs])
            received = np.empty(sum(arriving), dtype=flat.dtype)
            self._exchange(flat, counts, received, arriving)
            split(received, outputs)

        return task

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Task:
        """Send a tensor to a rank that receives it with the same tag."""
        return lambda: self._ignore(self.comm.send(source(tensor), to, tag=tag))

    def receive(self, tensor: torch.Tensor, origin: int, tag: int) -> Task:
        """Receive a tensor."""
        return lambda: into(tensor, lambda array: self.comm.receive(array, origin, tag=tag))

    def _all_reduce(self, array: Array, out: Array, op: str, dtype: torch.dtype) -> None:
        self.comm.all_reduce(array, op, out, dtype=REDUCED[dtype])

    def _exchange(self, send: Array, counts: Sequence[int], out: Array, arriving: Sequence[int]) -> None:
        self.comm.all_to_all_v(send, counts, out, arriving=arriving)

    @staticmethod
    def _ignore(_: Any) -> None:
        """Tasks return nothing."""

    def _check_parts(self, whole: torch.Tensor, part: torch.Tensor, name: str) -> None:
        _one_dtype([whole, part])
        if whole.numel() != self.comm.size * part.numel():
            expected = f"{self.comm.size} times {part.numel()}"
            raise InputError(f"{name}: has {whole.numel()} elements; expected {expected}")

    def _check_number(self, tensors: Tensors, name: str) -> None:
        if len(tensors) != self.comm.size:
            raise InputError(f"{name}: are {len(tensors)} tensors; expected {self.comm.size}, one a rank")

    def _check_equal(self, tensors: Tensors, like: torch.Tensor, name: str) -> None:
        if _flat_length(tensors) != self.comm.size * like.numel() or any(
            one.numel() != like.numel() for one in tensors
        ):
            raise InputError(f"{name}: differ in size; expected {like.numel()} elements each")

    def _check_rows(self, tensor: torch.Tensor, name: str) -> None:
        rows = tensor.shape[0] if tensor.dim() else 1
        if rows % self.comm.size:
            raise InputError(
                f"{name}: first dimension {rows} does not divide among {self.comm.size} ranks; give splits"
            )

    def _counts(self, tensor: torch.Tensor, splits: Sequence[int], name: str) -> list[int]:
        """Elements for every rank from parts of the first dimension."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            self._check_rows(tensor, name)
            splits = [rows // self.comm.size] * self.comm.size
        if len(splits) != self.comm.size or sum(splits) != rows or min(splits) < 0:
            raise InputError(
                f"{name}: splits {list(splits)} do not divide a first dimension of {rows} among {self.comm.size} ranks"
            )
        width = tensor.numel() // rows if rows else 0
        return [part * width for part in splits]
