"""From what a user asks for to the call that a plan is prepared for; what was asked once is kept."""

from functools import lru_cache
from typing import Any

import numpy as np

from collsyn.comm.buffers import carrier, reduced_name
from collsyn.comm.plans import Call
from collsyn.comm.shapes import shard_lengths
from collsyn.model.dtypes import checked_op

_KEPT = 4096


@lru_cache(_KEPT)
def reducing(
    kind: str,
    total: int,
    dtype: np.dtype[Any],
    given: str | None,
    op: str,
    root: int | None = None,
    lengths: tuple[int, ...] | None = None,
) -> Call:
    """A call that reduces `total` elements; `given` is the type's name where its storage does not tell it.

    Raises InputError for what cannot be reduced.
    """
    return Call(kind, total, reduced_name(dtype, given), checked_op(op), root, _counts(lengths, total))


@lru_cache(_KEPT)
def moving(
    kind: str,
    total: int,
    dtype: np.dtype[Any],
    root: int | None = None,
    lengths: tuple[int, ...] | None = None,
) -> Call:
    """A call that moves elements of any type."""
    name, factor = carrier(dtype)
    scaled = None if lengths is None else tuple(length * factor for length in lengths)
    return Call(kind, total * factor, name, "sum", root, _counts(scaled, total * factor))


def _counts(lengths: tuple[int, ...] | None, total: int) -> tuple[int, ...] | None:
    """Lengths of shards as a plan must know them: not at all where they are what it would choose itself."""
    return None if lengths is None or lengths == shard_lengths(total, len(lengths)) else lengths
