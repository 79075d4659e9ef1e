"""Lengths and shapes of what a rank gives and gets."""

from collections.abc import Sequence
from functools import lru_cache

from collsyn.comm.buffers import Array
from collsyn.errors import InputError

Shape = tuple[int, ...]


@lru_cache(1024)
def shard_lengths(total: int, size: int) -> tuple[int, ...]:
    """Elements of the shards of `total` elements, one a rank; they differ by at most one."""
    return tuple((rank + 1) * total // size - rank * total // size for rank in range(size))


def lengths_of(total: int, size: int, counts: Sequence[int] | None) -> tuple[int, ...]:
    """Elements of all shards: the counts that a user gave, else those of `total` elements; raises InputError."""
    return shard_lengths(total, size) if counts is None else checked_counts(counts, size)


def checked_counts(counts: Sequence[int], size: int) -> tuple[int, ...]:
    """Element counts, one a rank; raises InputError."""
    if len(counts) != size or any(int(count) != count or count < 0 for count in counts):
        raise InputError(f"counts: expected {size} whole numbers of at least 0, one a rank")
    return tuple(int(count) for count in counts)


def check_length(array: Array, length: int, name: str) -> None:
    """Raise InputError unless an array has so many elements."""
    if array.size != length:
        raise InputError(f"{name}: has {array.size} elements; expected {length}")


def joined_shape(shape: Shape, size: int) -> Shape:
    """Shape of `size` equal shards joined along their first dimension."""
    return (size * shape[0], *shape[1:]) if shape else (size,)


def split_shape(shape: Shape, size: int, length: int) -> Shape:
    """Shape of one of `size` shards: a part of the first dimension where that divides, else flat, `length` elements."""
    return (shape[0] // size, *shape[1:]) if shape and shape[0] % size == 0 else (length,)
