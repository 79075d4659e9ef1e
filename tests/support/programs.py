"""Small linear and integer programs, and whether a point keeps to their rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csc_array

from collsyn.model.arrays import F64
from collsyn.solver import ArrayModel

INF = np.inf


def program(
    rows: Sequence[Sequence[float]] | F64,
    row_low: Sequence[float],
    row_high: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    cost: Sequence[float],
    integer: Sequence[bool] = (),
) -> ArrayModel:
    """A model from lists."""
    matrix = csc_array(np.array(rows, dtype=float).reshape(len(row_low), len(cost)))
    sides = (np.array(each, dtype=float) for each in (row_low, row_high, low, high, cost))
    return ArrayModel("tiny", matrix, *sides, np.array(integer, dtype=bool))


def knapsacks(items: int, limits: int, seed: int, high: float = 1.0, share: float = 1.0) -> ArrayModel:
    """The most valuable items under several limits of weight; about that share of the items is indivisible."""
    random = np.random.default_rng(seed)
    weights = random.integers(1, 1000, (limits, items)) / 1000
    room = weights.sum(axis=1) * high / 3
    integer = random.random(items) < share
    worth = random.integers(1, 1000, items) / 1000
    return program(weights, [-INF] * limits, room.tolist(), [0] * items, [high] * items, (-worth).tolist(), integer)


def market_split(point: F64 | None = None) -> ArrayModel:
    """Halve several sums at once, or as a point does: HiGHS would look for a solution for hours."""
    shares = np.random.default_rng(0).integers(0, 100, (5, 40)).astype(float)
    parts = (np.floor(shares.sum(axis=1) / 2) if point is None else shares @ point).tolist()
    return program(shares, parts, parts, [0] * 40, [1] * 40, [0] * 40, [True] * 40)


def keeps_to(model: ArrayModel, values: Any, tolerance: float = 1e-6) -> bool:
    """Whether a point is a solution, with whole numbers exactly whole."""
    assert values is not None
    rows = model.matrix @ values
    whole = values[model.integer] if model.is_mixed else np.zeros(0)
    return bool(
        (rows >= model.row_low - tolerance).all()
        and (rows <= model.row_high + tolerance).all()
        and (values >= model.low - tolerance).all()
        and (values <= model.high + tolerance).all()
        and (whole == np.rint(whole)).all()
    )
