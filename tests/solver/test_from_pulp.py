"""Programs in PuLP's words, against PuLP's own way to HiGHS."""

from typing import Any

import numpy as np
import pytest

from collsyn.solver import Limits, Status, solve, solve_pulp
from collsyn.solver.from_pulp import array_model
from tests.support.programs import keeps_to

pulp: Any = pytest.importorskip("pulp")
# PuLP is about to have variables made another way, which older ones lack.
pytestmark = pytest.mark.filterwarnings("ignore:Constructing LpVariable")


def random_problem(seed: int, sense: int, whole: bool) -> Any:
    """Feasible at a random point, bounded, with rows of all three kinds and constants everywhere."""
    random = np.random.default_rng(seed)
    problem = pulp.LpProblem(f"random{seed}", sense)
    kinds = [("Integer" if whole else "Continuous"), "Continuous", "Binary" if whole else "Continuous"]
    variables = [
        pulp.LpVariable(f"v{i}", None if i == 1 else 0, None if i == 4 else 1 + i % 3, cat=kinds[i % 3])
        for i in range(9)
    ]
    point = [float(random.integers(0, 2)) for _ in variables]
    problem += pulp.lpSum(float(random.normal()) * v for v in variables) + 5.5
    for number in range(8):
        factors = random.integers(-3, 4, 9).tolist()
        left = pulp.lpSum(f * v for f, v in zip(factors, variables, strict=True)) + number
        value = sum(f * x for f, x in zip(factors, point, strict=True)) + number
        problem += [left <= value, left >= value, left == value, left <= value + 1][number % 4 if number < 3 else 3]
    problem += pulp.lpSum(variables) <= 20
    problem += pulp.lpSum(variables) >= -20
    problem += variables[4] - variables[1] <= 30
    return problem


def values_of(problem: Any) -> list[float | None]:
    """The values that its variables hold."""
    return [variable.varValue for variable in problem.variables()]


@pytest.mark.parametrize("sense", [pulp.LpMinimize, pulp.LpMaximize])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_as_pulp_solves_it(seed: int, whole: bool, sense: int) -> None:
    mine, other = random_problem(seed, sense, whole), random_problem(seed, sense, whole)
    answer = solve_pulp(mine)
    other.solve(pulp.HiGHS(msg=False, gapRel=0))
    assert answer.status is Status.OPTIMAL
    assert (mine.status, mine.sol_status) == (other.status, other.sol_status)
    assert answer.objective == pytest.approx(pulp.value(other.objective), abs=1e-6)
    assert pulp.value(mine.objective) == pytest.approx(answer.objective, abs=1e-9)
    assert keeps_to(array_model(mine), answer.values)
    if not whole:
        # PuLP's are those of the minimum.
        given = other.constraints
        rows = given() if callable(given) else given.values()
        assert answer.row_dual == pytest.approx([sense * row.pi for row in rows], abs=1e-6)
    assert answer.values is not None and values_of(mine) == answer.values.tolist()


def test_a_problem_and_its_arrays_are_alike() -> None:
    problem = random_problem(1, pulp.LpMaximize, True)
    arrays = solve(array_model(problem))
    answer = solve_pulp(problem)
    assert answer.objective == pytest.approx(5.5 - arrays.objective)
    assert np.array_equal(answer.values, arrays.values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "high", "status", "value"),
    [
        (lambda x, y: [x + y >= 3], 1, Status.INFEASIBLE, "Infeasible"),
        (lambda x, y: [x - y <= 1], None, Status.UNBOUNDED, "Unbounded"),
        (lambda x, y: [], 1, Status.OPTIMAL, "Optimal"),
    ],
)
def test_statuses(rows: Any, high: float | None, status: Status, value: str) -> None:
    problem = pulp.LpProblem("tiny", pulp.LpMaximize)
    x, y = (pulp.LpVariable(name, 0, high) for name in "xy")
    problem += x + y
    for row in rows(x, y):
        problem += row
    answer = solve_pulp(problem)
    assert answer.status is status and pulp.LpStatus[problem.status] == value
    assert (x.varValue is None) == (answer.values is None) == (status is not Status.OPTIMAL)


def split(sense: int) -> tuple[Any, dict[str, float]]:
    """Sums to be met that HiGHS finds no solution for at once, and the solution they were made from."""
    random = np.random.default_rng(3)
    problem = pulp.LpProblem("split", sense)
    bits = [pulp.LpVariable(f"b{i:02}", cat="Binary") for i in range(40)]
    point = (random.random(40) < 0.5).astype(float)
    problem += bits[0] + 2
    for shares in random.integers(0, 100, (5, 40)):
        problem += pulp.lpSum(int(s) * b for s, b in zip(shares, bits, strict=True)) == int(shares @ point)
    return problem, {bit.name: value for bit, value in zip(bits, point.tolist(), strict=True)}


@pytest.mark.parametrize("sense", [pulp.LpMinimize, pulp.LpMaximize])
def test_starts_and_progress_are_in_the_problems_terms(sense: int) -> None:
    problem, point = split(sense)
    assert solve_pulp(problem, Limits(max_nodes=1)).status is Status.UNDECIDED
    assert problem.sol_status == pulp.LpSolutionNoSolutionFound and values_of(problem) == [None] * 40
    shown: list[tuple[float, float]] = []
    start = {name: value for name, value in point.items() if name < "b30"}
    answer = solve_pulp(problem, Limits(max_nodes=1), start, lambda objective, bound: shown.append((objective, bound)))
    found = values_of(problem)
    assert found[:30] == list(point.values())[:30]
    assert answer.objective == 2 + point["b00"] == shown[-1][0]
    assert all((objective - bound) * sense >= 0 for objective, bound in shown)
    stopped = solve_pulp(problem, interrupted=lambda: True)
    assert stopped.interrupted and stopped.status is Status.UNDECIDED


def test_what_arrays_cannot_say_is_refused() -> None:
    problem = pulp.LpProblem("sets")
    x = pulp.LpVariable("x", 0, 1)
    problem += x
    problem.sos1["one"] = {x: 1}
    with pytest.raises(ValueError, match="special ordered sets"):
        solve_pulp(problem)
