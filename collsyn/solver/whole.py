"""Whole numbers that are whole: HiGHS takes what is near one for it, which a large coefficient may live on."""

from dataclasses import replace

import numpy as np

from collsyn.model.arrays import F64
from collsyn.solver.highs import loaded, model_status
from collsyn.solver.model import ArrayModel


def whole_solution(model: ArrayModel, values: F64, tolerance: float) -> F64 | None:
    """A solution with its whole columns rounded, and the others as is best beside these; None where there is none.

    `tolerance` is how far rows may be from kept. A linear program, where there is anything to round.
    """
    whole = np.rint(values) + 0.0
    if np.array_equal(whole[model.integer], values[model.integer]):
        return values + 0.0
    low, high = (np.where(model.integer, whole, side) for side in (model.low, model.high))
    fixed = loaded(replace(model, low=low, high=high, integer=np.zeros(0, dtype=np.bool_), name=f"{model.name}-whole"))
    fixed.setOptionValue("primal_feasibility_tolerance", tolerance)
    fixed.run()
    if model_status(fixed) != "Optimal":
        return None
    return np.where(model.integer, whole, np.array(fixed.getSolution().col_value)) + 0.0
