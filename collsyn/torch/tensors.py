"""Tensors as NumPy arrays on their own memory, or on a copy in the memory of the host where that cannot be."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from collsyn.errors import InputError

Array = npt.NDArray[Any]

# What the reductions of plans know, under their names there.
REDUCED = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint8: "uint8",
}
_SAME_IN_NUMPY = {
    *(dtype for dtype in REDUCED if dtype != torch.bfloat16),
    torch.bool,
    torch.int8,
    torch.int16,
    torch.complex64,
    torch.complex128,
}
# Elements of other types are carried as integers of their width.
_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def _is_direct(tensor: torch.Tensor) -> bool:
    """Whether the tensor's own memory holds its elements, and the processor reaches it."""
    return (
        tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_conj() and not tensor.is_neg()
    )


def _view(tensor: torch.Tensor) -> Array:
    """An array on the memory of a direct tensor; types that NumPy lacks appear as integers of their width."""
    plain = tensor.detach()
    if plain.dtype in _SAME_IN_NUMPY:
        return np.asarray(plain.numpy())
    if plain.dtype == torch.bfloat16:
        return np.asarray(plain.view(torch.int16).numpy()).view(np.uint16)
    width = plain.element_size()
    if width not in _CARRIERS or plain.is_quantized:
        raise InputError(f"tensor: elements of {plain.dtype} cannot be sent")
    return np.asarray(plain.view(_CARRIERS[width]).numpy())


def source(tensor: torch.Tensor) -> Array:
    """The elements of a tensor to read from, copied only where the host cannot read them in place."""
    if tensor.layout != torch.strided:
        raise InputError(f"tensor: has layout {tensor.layout}; expected a dense one")
    if _is_direct(tensor):
        return _view(tensor)
    return _view(tensor.detach().cpu().resolve_conj().resolve_neg())


class Target:
    """Where results for a tensor go: `array`, and `finish` brings them into the tensor if they are not there yet."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Raises InputError for tensors that hold no dense elements."""
        if tensor.layout != torch.strided:
            raise InputError(f"tensor: has layout {tensor.layout}; expected a dense one")
        self._tensor = tensor
        self._copy = None if _is_direct(tensor) else torch.empty(tensor.shape, dtype=tensor.dtype)
        self.array = _view(tensor if self._copy is None else self._copy)

    def finish(self) -> None:
        """To be called once the results are in `array`."""
        if self._copy is not None:
            self._tensor.detach().copy_(self._copy)


def join(arrays: Sequence[Array]) -> Array:
    """One flat array with the elements of all; the array itself where it is the only one."""
    if len(arrays) == 1:
        return arrays[0].reshape(-1)
    return np.concatenate([array.reshape(-1) for array in arrays])


def split(array: Array, tensors: Sequence[torch.Tensor]) -> None:
    """Copy consecutive parts of a contiguous array into tensors."""
    flat, begin = array.reshape(-1), 0
    for tensor in tensors:
        target = Target(tensor)
        target.array[...] = flat[begin : begin + tensor.numel()].reshape(target.array.shape)
        target.finish()
        begin += tensor.numel()


def into(tensor: torch.Tensor, call: Callable[[Array], object]) -> None:
    """Let a call write its results into a tensor."""
    target = Target(tensor)
    call(target.array)
    target.finish()
