"""One run of HiGHS on a model: from arrays and limits to an answer."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from collsyn.errors import SolverFailed
from collsyn.keyboard import Keyboard
from collsyn.model.arrays import F64
from collsyn.solver.highs import loaded, model_status
from collsyn.solver.model import NO_LIMITS, Answer, ArrayModel, Limits, Status
from collsyn.solver.watch import Watch
from collsyn.solver.whole import whole_solution

# Presolve did not need to know which of the two.
_EITHER = "Primal infeasible or unbounded"
_ENDS = {
    "Optimal": Status.OPTIMAL,
    "Empty": Status.OPTIMAL,
    "Infeasible": Status.INFEASIBLE,
    "Unbounded": Status.UNBOUNDED,
    _EITHER: Status.UNDECIDED,
    "Time limit reached": Status.UNDECIDED,
    "Iteration limit reached": Status.UNDECIDED,
    "Solution limit reached": Status.UNDECIDED,
    "Interrupted by user": Status.UNDECIDED,
    "Interrupted by HiGHS": Status.UNDECIDED,
    "Memory limit reached": Status.UNDECIDED,
    "Unknown": Status.UNDECIDED,
}
_VALID = 2  # HiGHS's number for a solution that keeps to all rows
# HiGHS's own tolerance of fractions, then one for models whose solutions do not stand rounding.
_FRACTIONS = 1e-6, 1e-9


def solve(
    model: ArrayModel,
    limits: Limits = NO_LIMITS,
    start: F64 | None = None,
    progress: Callable[[float, float], None] | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> Answer:
    """Solve a model; that it cannot be decided within the limits is an answer, too.

    Of integer programs only: `start` is a solution to begin with, NaN where HiGHS is to complete it (dropped where that
    cannot be), and `progress(objective, bound)` is told of every better one. The run stops with what it has once
    `interrupted()`, or on Ctrl-C, which without a solution raises KeyboardInterrupt as ever. Exponential in the integer
    columns. Raises SolverFailed where HiGHS fails.
    """
    with Keyboard() as keyboard:
        before, keyboard.pressed = keyboard.pressed, False
        watch = Watch(keyboard, progress, interrupted)
        try:
            answer = _run(model, limits, start, watch)
        finally:
            pressed = keyboard.pressed
            keyboard.pressed = pressed or before
    if watch.error is not None:
        raise watch.error
    if pressed and not (model.is_mixed and answer.values is not None):
        # For whoever listens around this.
        signal.raise_signal(signal.SIGINT)
    return answer


def _run(model: ArrayModel, limits: Limits, start: F64 | None, watch: Watch) -> Answer:
    for fractions in _FRACTIONS:
        highs = loaded(model)
        _set_limits(highs, limits, fractions)
        if start is not None and model.is_mixed:
            known = np.flatnonzero(~np.isnan(start)).astype(np.int32)
            highs.setSolution(len(known), known, start[known])
        watch.subscribe(highs)
        with _threads(limits.threads):
            highs.run()
            if model_status(highs) == _EITHER:
                highs.setOptionValue("presolve", "off")
                highs.run()
        answer = _answer(model, highs)
        if answer.values is None or not model.is_mixed:
            break
        values = whole_solution(model, answer.values, fractions)
        if values is not None:
            answer = _with_values(answer, values, float(model.cost @ values))
            break
    else:
        raise SolverFailed(f"{model.name}: whole numbers near those of the solver's solution are none")
    return replace(answer, interrupted=watch.stopped)


def _set_limits(highs: Any, limits: Limits, fractions: float) -> None:
    options: dict[str, Any] = {
        "mip_rel_gap": limits.gap,
        "mip_abs_gap": 0.0,
        "mip_feasibility_tolerance": fractions,
        "random_seed": limits.seed,
        "threads": limits.threads,
    }
    if limits.time_limit_s is not None:
        options["time_limit"] = max(limits.time_limit_s, 0.0)
    if limits.max_nodes is not None:
        options["mip_max_nodes"] = limits.max_nodes
    if limits.inside:
        options |= {"solver": "ipx", "run_crossover": "off"}
    for name, value in options.items():
        highs.setOptionValue(name, value)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """HiGHS keeps its threads from run to run, and refuses another number of them."""
    from highspy import Highs

    if count > 1:
        Highs.resetGlobalScheduler(True)
    try:
        yield
    finally:
        if count > 1:
            Highs.resetGlobalScheduler(True)


def _answer(model: ArrayModel, highs: Any) -> Answer:
    said, info = model_status(highs), highs.getInfo()
    status = _ENDS.get(said)
    if status is None:
        raise SolverFailed(f"{model.name}: HiGHS ended as {said}")
    solution = highs.getSolution()
    if said == "Empty":
        # There are no columns; HiGHS does not look at the rows.
        possible = ((model.row_low <= 0) & (model.row_high >= 0)).all()
        return _with_values(Answer(status, bound=0.0), np.zeros(0), 0.0) if possible else Answer(Status.INFEASIBLE)
    nodes = max(int(info.mip_node_count), 0)
    known = float(info.mip_dual_bound) if model.is_mixed else -np.inf
    if status is Status.UNDECIDED and info.primal_solution_status == _VALID and solution.value_valid:
        status = Status.FEASIBLE
    answer = Answer(status, bound=known, nodes=nodes)
    if status not in (Status.OPTIMAL, Status.FEASIBLE):
        return answer
    values = np.array(solution.col_value)
    objective = float(model.cost @ values)
    if status is Status.OPTIMAL and not model.is_mixed:
        answer = replace(answer, bound=objective, row_dual=np.array(solution.row_dual))
    return _with_values(answer, values, objective)


def _with_values(answer: Answer, values: F64, objective: float) -> Answer:
    return replace(answer, values=values, objective=objective, bound=min(answer.bound, objective))
