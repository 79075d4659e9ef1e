"""What collectives mean, in NumPy, from the inputs of all ranks."""

import numpy as np

REDUCTIONS = {"sum": np.add.reduce, "prod": np.multiply.reduce, "min": np.minimum.reduce, "max": np.maximum.reduce}


def reduced(inputs, op):
    """Elements of all ranks reduced; sums wrap as the type does, averages truncate toward zero."""
    stack = np.stack(inputs)
    if op != "avg":
        return REDUCTIONS[op](stack, axis=0, **({} if op in ("min", "max") else {"dtype": stack.dtype}))
    total = np.add.reduce(stack, axis=0, dtype=stack.dtype)
    return (
        total / stack.dtype.type(len(inputs))
        if total.dtype.kind == "f"
        else np.fix(total / len(inputs)).astype(total.dtype)
    )


def borders(total, size):
    """First elements of the shards of an array, and its end."""
    return [rank * total // size for rank in range(size + 1)]


def expected(kind, inputs, rank, op="sum", root=0):
    """What one rank gets (flat); None where it gets nothing."""
    size, flat = len(inputs), [data.reshape(-1) for data in inputs]
    if kind == "all_reduce":
        return reduced(flat, op)
    if kind == "reduce":
        return reduced(flat, op) if rank == root else None
    if kind == "reduce_scatter":
        at = borders(flat[0].size, size)
        return reduced(flat, op)[at[rank] : at[rank + 1]]
    if kind == "all_gather":
        return np.concatenate(flat)
    if kind == "gather":
        return np.concatenate(flat) if rank == root else None
    if kind == "scatter":
        return np.split(flat[root], size)[rank]
    if kind == "broadcast":
        return flat[root]
    assert kind == "all_to_all"
    return np.concatenate([np.split(data, size)[rank] for data in flat])
