"""Small programs written as formulas, with PuLP, and solved like all others."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from collsyn.solver.model import NO_LIMITS, Answer, ArrayModel, Limits, Status
from collsyn.solver.solve import solve

if TYPE_CHECKING:
    import pulp


def solve_pulp(
    problem: "pulp.LpProblem",
    limits: Limits = NO_LIMITS,
    start: Mapping[str, float] | None = None,
    progress: Callable[[float, float], None] | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> Answer:
    """Solve a problem by `solve`, put the solution into its variables, and its status and theirs into the problem.

    Answer and progress count as the problem does: of a maximum the bound is above the objective. `start` has values of
    variables by name, any of them. Raises what `solve` raises.
    """
    variables = list(problem.variables())
    model = array_model(problem)
    sign, constant = float(problem.sense), _constant(problem.objective)

    def shown(value: float) -> float:
        return sign * value + constant

    def told(objective: float, bound: float) -> None:
        assert progress is not None
        progress(shown(objective), shown(bound))

    begin = None if start is None else np.array([start.get(variable.name, np.nan) for variable in variables])
    answer = solve(model, limits, begin, None if progress is None else told, interrupted)
    _put_back(problem, variables, answer)
    dual = sign * answer.row_dual
    return replace(answer, objective=shown(answer.objective), bound=shown(answer.bound), row_dual=dual)


def array_model(problem: "pulp.LpProblem") -> ArrayModel:
    """The minimum that a problem asks for, in arrays: columns as in `problem.variables()`, without its constant.

    Raises ValueError for special ordered sets.
    """
    from scipy.sparse import csc_array

    if problem.sos1 or problem.sos2:
        raise ValueError(f"{problem.name}: special ordered sets are not served; use binary variables")
    variables, rows = list(problem.variables()), _constraints(problem)
    place = {variable: column for column, variable in enumerate(variables)}
    entries = [(i, place[v], float(value)) for i, row in enumerate(rows) for v, value in row.items()]
    row, column, value = (np.array(each) for each in zip(*entries, strict=True)) if entries else (np.zeros(0),) * 3
    cost = np.zeros(len(variables))
    for variable, factor in [] if problem.objective is None else problem.objective.items():
        cost[place[variable]] = problem.sense * factor
    side = np.array([-float(each.constant) for each in rows])
    sense = np.array([each.sense for each in rows])
    return ArrayModel(
        name=problem.name,
        matrix=csc_array((value, (row.astype(np.int32), column.astype(np.int32))), shape=(len(rows), len(variables))),
        row_low=np.where(sense >= 0, side, -np.inf),
        row_high=np.where(sense <= 0, side, np.inf),
        low=np.array([-np.inf if each.lowBound is None else float(each.lowBound) for each in variables]),
        high=np.array([np.inf if each.upBound is None else float(each.upBound) for each in variables]),
        cost=cost,
        integer=np.array([each.cat == "Integer" for each in variables], dtype=np.bool_),
    )


def _constraints(problem: "pulp.LpProblem") -> list[Any]:
    # PuLP has made the mapping by names a method that lists them.
    given = problem.constraints
    return list(given() if callable(given) else given.values())


def _constant(objective: Any) -> float:
    return 0.0 if objective is None else float(objective.constant)


def _put_back(problem: "pulp.LpProblem", variables: list[Any], answer: Answer) -> None:
    from pulp import constants

    states = {
        Status.OPTIMAL: (constants.LpStatusOptimal, constants.LpSolutionOptimal),
        # As PuLP's own solvers have it.
        Status.FEASIBLE: (constants.LpStatusOptimal, constants.LpSolutionIntegerFeasible),
        Status.INFEASIBLE: (constants.LpStatusInfeasible, constants.LpSolutionInfeasible),
        Status.UNBOUNDED: (constants.LpStatusUnbounded, constants.LpSolutionUnbounded),
        Status.UNDECIDED: (constants.LpStatusNotSolved, constants.LpSolutionNoSolutionFound),
    }
    problem.assignStatus(*states[answer.status])
    for column, variable in enumerate(variables):
        variable.varValue = None if answer.values is None else float(answer.values[column])
