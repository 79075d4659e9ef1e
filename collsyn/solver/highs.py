"""HiGHS without a word on the screen, and with its models written to files on demand."""

from functools import cache
from typing import Any

import numpy as np

from collsyn.errors import SolverFailed
from collsyn.solver.export import write_if_asked
from collsyn.solver.model import ArrayModel


def new_highs(name: str) -> Any:
    """A new, empty `highspy.Highs` that prints nothing and works on one core, for a program that grows.

    Every `run` writes the model first where COLLSYN_WRITE_MODELS asks for that, as `name`.
    """
    highs: Any = _quiet_class()(name)
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    return highs


def loaded(model: ArrayModel) -> Any:
    """A `new_highs` that holds the model. Raises SolverFailed where HiGHS does not take it."""
    import highspy

    program = highspy.HighsLp()
    program.model_name_ = model.name
    program.num_row_, program.num_col_ = model.matrix.shape
    program.col_cost_ = model.cost
    program.col_lower_, program.col_upper_ = model.low, model.high
    program.row_lower_, program.row_upper_ = model.row_low, model.row_high
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_, program.a_matrix_.index_ = model.matrix.indptr, model.matrix.indices
    program.a_matrix_.value_ = model.matrix.data
    if model.is_mixed:
        kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
        program.integrality_ = [kinds[whole] for whole in model.integer.tolist()]
    highs = new_highs(model.name)
    unusable = _unusable(model)
    if unusable or highs.passModel(program) == highspy.HighsStatus.kError:
        raise SolverFailed(f"{model.name}: HiGHS does not take the model: {unusable or 'a number is too large'}")
    return highs


def model_status(highs: Any) -> str:
    """HiGHS's word for how the last run ended, such as Optimal."""
    return str(highs.modelStatusToString(highs.getModelStatus()))


def _unusable(model: ArrayModel) -> str:
    parts = {"matrix": model.matrix.data, "row_low": model.row_low, "row_high": model.row_high}
    for name, values in {**parts, "low": model.low, "high": model.high, "cost": model.cost}.items():
        if np.isnan(values).any():
            return f"{name} has an entry that is not a number"
    return ""


@cache
def _quiet_class() -> Any:
    from highspy import Highs

    class Quiet(Highs):
        """Subscribing to callbacks, which a Highs does at once, prints the licence on standard output."""

        def __init__(self, name: str) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.name = name

        def enableCallbacks(self) -> None:  # noqa: N802
            """Subscribe to none."""

        def run(self) -> Any:
            """Solve, after writing what is solved where that is asked for."""
            write_if_asked(self, self.name)
            return super().run()

    return Quiet
