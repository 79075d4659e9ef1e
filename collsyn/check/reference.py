"""What each collective means, on whole buffers with NumPy: the right outputs, from no schedule and no plan."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.errors import InputError
from collsyn.model.bind import layout
from collsyn.model.collective import Collective
from collsyn.model.dtypes import divide, dtype_of, random_data, reduce_into

Array = npt.NDArray[Any]


def reference(
    collective: Collective,
    dtype_name: str,
    op_name: str,
    inputs: Sequence[Array],
    num_elements: int | None = None,
) -> list[Array]:
    """Outputs of all ranks for the given inputs (stored elements), contributors reduced in the order of their ranks.

    `num_elements` is the user's size, which only custom collectives need. Ranks that get nothing have an empty output,
    and what no chunk covers is 0. O(ranks x bytes).
    """
    outputs = [np.empty(0, dtype=dtype_of(dtype_name).storage) for _ in range(collective.num_ranks)]
    if collective.kind == "custom":
        return _from_chunks(collective, dtype_name, op_name, inputs, num_elements)
    for group in collective.groups:
        given = [inputs[rank] for rank in group]
        for rank, output in zip(group, _of_group(collective, dtype_name, op_name, given), strict=True):
            if output is not None:
                outputs[rank] = output
    return outputs


def make_inputs(
    collective: Collective, dtype_name: str, op_name: str, num_elements: int, seed: int = 0, general: bool = False
) -> list[Array]:
    """Random inputs of all ranks for a size (see `random_data`); holders of one chunk to copy have the same bytes."""
    rng = np.random.default_rng(seed)
    places = layout(collective, num_elements)
    inputs = [random_data(dtype_name, op_name, places.input[r][2], rng, general) for r in range(collective.num_ranks)]
    if not collective.reduces:
        shared = np.flatnonzero(collective.sets.lengths()[collective.pre] > 1)
        for chunk in shared.tolist():
            data = random_data(dtype_name, op_name, int(places.lengths[chunk]), rng, general)
            for rank in collective.contributors(chunk).tolist():
                _part(inputs[rank], places.input[rank], chunk, len(data))[...] = data
    return inputs


def _of_group(collective: Collective, dtype_name: str, op_name: str, given: list[Array]) -> Sequence[Array | None]:
    kind, root, n = collective.kind, collective.root or 0, len(given)
    if kind == "allgather":
        return [np.concatenate(given) for _ in range(n)]
    if kind == "gather":
        return [np.concatenate(given) if i == root else None for i in range(n)]
    if kind == "broadcast":
        return [given[root].copy() for _ in range(n)]
    if kind == "sendrecv":
        return [given[i - 1].copy() for i in range(n)]
    if kind == "allreduce":
        total = reduced(dtype_name, op_name, given)
        return [total.copy() for _ in range(n)]
    if kind == "reduce":
        return [reduced(dtype_name, op_name, given) if i == root else None for i in range(n)]
    counts = collective.spec.get("counts") or [1] * n
    if kind == "reducescatter":
        return _shards(reduced(dtype_name, op_name, given), counts)
    if kind == "scatter":
        return _shards(given[root], counts)
    matrix = counts if kind == "alltoallv" else [[1] * n for _ in range(n)]
    size, total_count = max(len(row) for row in given), max(sum(row) for row in matrix)
    sent = [_shards(row, matrix[i], size, total_count) for i, row in enumerate(given)]
    return [np.concatenate([sent[source][i] for source in range(n)]) for i in range(n)]


def reduced(dtype_name: str, op_name: str, parts: Sequence[Array]) -> Array:
    """All parts combined in order, an average divided at the end."""
    total = parts[0].copy()
    for part in parts[1:]:
        reduce_into(op_name, dtype_name, total, total, part)
    if op_name == "avg":
        divide(dtype_name, total, len(parts))
    return total


def _shards(buffer: Array, counts: Sequence[int], size: int | None = None, total: int | None = None) -> list[Array]:
    """A buffer cut in proportion to counts, at places rounded down; `size` and `total` where it is not the full one."""
    size, total = size if size is not None else len(buffer), total if total is not None else sum(counts)
    ends = [sum(counts[:i]) * size // total for i in range(len(counts) + 1)]
    return [buffer[a:b].copy() for a, b in itertools.pairwise(ends)]


def _from_chunks(
    collective: Collective, dtype_name: str, op_name: str, inputs: Sequence[Array], num_elements: int | None
) -> list[Array]:
    """A custom collective chunk by chunk; its buffers have no other meaning."""
    if num_elements is None:
        raise InputError("num_elements: is needed for the result of a custom collective")
    places = layout(collective, num_elements)
    outputs = [np.zeros(places.output[r][2], dtype=dtype_of(dtype_name).storage) for r in range(collective.num_ranks)]
    for chunk, length in enumerate(places.lengths.tolist()):
        holders = collective.contributors(chunk).tolist()
        parts = [_part(inputs[rank], places.input[rank], chunk, length) for rank in holders]
        result = reduced(dtype_name, op_name, parts) if collective.reduces else parts[0]
        for rank in collective.receivers(chunk).tolist():
            _part(outputs[rank], places.output[rank], chunk, length)[...] = result
    return outputs


def _part(buffer: Array, place: tuple[Array, Array, int], chunk: int, length: int) -> Array:
    begin = int(place[1][np.flatnonzero(place[0] == chunk)[0]])
    return buffer[begin : begin + length]
