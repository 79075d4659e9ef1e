"""What HiGHS answers through the adapter, against enumeration, duality and SciPy."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from collsyn.errors import SolverFailed
from collsyn.solver import Answer, ArrayModel, Limits, Status, solve
from collsyn.solver.whole import whole_solution
from tests.support.programs import INF, keeps_to, knapsacks, market_split, program

# Takes HiGHS a hundred branches.
HARD = knapsacks(40, 10, seed=1)


def same(one: Answer, other: Answer) -> bool:
    """Whether two answers are alike to the bit."""
    alike = (one.status, one.objective, one.bound, one.nodes) == (
        other.status,
        other.objective,
        other.bound,
        other.nodes,
    )
    return alike and np.array_equal(
        one.values if one.values is not None else [], other.values if other.values is not None else []
    )


@pytest.mark.parametrize(
    ("model", "status", "objective"),
    [
        (program([[1, 1]], [1], [INF], [0, 0], [1, 1], [2, 1]), Status.OPTIMAL, 1),
        (program([[1, 1]], [1.5], [INF], [0, 0], [1, 1], [2, 1], [1, 1]), Status.OPTIMAL, 3),
        (program([[1, 1]], [3], [INF], [0, 0], [1, 1], [1, 1]), Status.INFEASIBLE, INF),
        (program([[2, 2]], [1], [1], [0, 0], [5, 5], [1, 1], [1, 1]), Status.INFEASIBLE, INF),
        (program([[1, -1]], [0], [0], [0, 0], [INF, INF], [-1, 0]), Status.UNBOUNDED, INF),
        (program([[1, -1]], [0], [0], [0, 0], [INF, INF], [-1, 0], [1, 1]), Status.UNBOUNDED, INF),
        (program([], [], [], [], [], []), Status.OPTIMAL, 0),
        (program([], [], [], [0, 0], [1, 1], [-1, 1]), Status.OPTIMAL, -1),
        (program([], [], [], [0, 0], [INF, 1], [-1, 1], [1, 0]), Status.UNBOUNDED, INF),
        (program([[]], [1], [2], [], [], []), Status.INFEASIBLE, INF),
        (program([[]], [-1], [2], [], [], []), Status.OPTIMAL, 0),
    ],
)
def test_statuses(model: ArrayModel, status: Status, objective: float) -> None:
    answer = solve(model)
    assert answer.status is status
    assert answer.objective == pytest.approx(objective)
    assert (answer.values is not None) == (status is Status.OPTIMAL)
    if status is Status.OPTIMAL:
        assert answer.gap == 0 and answer.bound == answer.objective and keeps_to(model, answer.values)


@pytest.mark.parametrize("seed", range(8))
def test_knapsacks_are_as_good_as_the_best_of_all_points(seed: int) -> None:
    model = knapsacks(6, 3, seed, high=2)
    points = np.array(list(product(range(3), repeat=6)), dtype=float)
    points = points[(points @ model.matrix.T.toarray() <= model.row_high + 1e-9).all(axis=1)]
    model = replace(model, integer=np.ones(6, dtype=np.bool_))
    answer = solve(model)
    assert answer.status is Status.OPTIMAL and keeps_to(model, answer.values)
    assert answer.objective == pytest.approx((points @ model.cost).min(), abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_some_columns_whole_against_scipy(seed: int, share: float) -> None:
    model = knapsacks(12, 5, seed, high=3, share=share)
    answer = solve(model)
    other = milp(
        model.cost,
        integrality=model.integer.astype(int),
        bounds=Bounds(model.low, model.high),
        constraints=LinearConstraint(model.matrix.toarray(), model.row_low, model.row_high),
        options={"mip_rel_gap": 0},
    )
    assert answer.objective == pytest.approx(other.fun, abs=1e-6)
    assert keeps_to(model, answer.values)


@pytest.mark.parametrize("inside", [False, True])
def test_multipliers_of_a_linear_program_prove_its_optimum(inside: bool) -> None:
    model = knapsacks(30, 10, seed=2, high=INF, share=0)
    model = replace(model, row_high=np.ones(10))
    answer = solve(model, Limits(inside=inside))
    assert answer.status is Status.OPTIMAL
    assert (answer.row_dual <= 1e-7).all()
    assert (model.cost - model.matrix.T @ answer.row_dual >= -1e-7).all()
    assert model.row_high @ answer.row_dual == pytest.approx(answer.objective, abs=1e-6)


def test_limits_leave_a_solution_and_a_bound_on_both_sides_of_the_optimum() -> None:
    best = solve(HARD)
    assert best.status is Status.OPTIMAL and best.nodes > 50
    for limits in (Limits(max_nodes=10), Limits(gap=0.05)):
        answer = solve(HARD, limits)
        assert answer.bound <= best.objective <= answer.objective
        assert keeps_to(HARD, answer.values) and answer.nodes < best.nodes
        assert answer.objective - answer.bound == pytest.approx(answer.gap * abs(answer.objective))
    assert solve(HARD, Limits(max_nodes=10)).status is Status.FEASIBLE
    within = solve(HARD, Limits(gap=0.05))
    assert within.status is Status.OPTIMAL and within.gap <= 0.05
    for limits in (Limits(max_nodes=1), Limits(time_limit_s=0.1)):
        undecided = solve(market_split(), limits)
        assert undecided.status is Status.UNDECIDED and undecided.values is None and undecided.gap == INF


def test_the_same_call_gives_the_same_answer() -> None:
    for seed in (0, 7):
        limits = Limits(max_nodes=40, seed=seed)
        assert same(solve(HARD, limits), solve(HARD, limits))


def test_more_threads_find_the_same_optimum_and_the_next_run_may_have_one() -> None:
    found = [solve(HARD, Limits(threads=threads)) for threads in (2, 1)]
    assert found[0].objective == pytest.approx(found[1].objective, abs=1e-9)
    assert same(found[1], solve(HARD))


@pytest.mark.parametrize("known", [40, 30])
def test_a_start_is_the_first_solution_and_is_completed_where_it_is_none_yet(known: int) -> None:
    point = (np.random.default_rng(5).random(40) < 0.5).astype(float)
    model = market_split(point)
    assert solve(model, Limits(max_nodes=1)).status is Status.UNDECIDED
    answer = solve(model, Limits(max_nodes=1), np.where(np.arange(40) < known, point, np.nan))
    assert keeps_to(model, answer.values)
    assert np.array_equal(answer.values[:known], point[:known])


def test_a_start_is_not_lost_for_worse_ones() -> None:
    best = solve(HARD)
    assert best.values is not None
    shown: list[float] = []
    answer = solve(HARD, Limits(max_nodes=1), best.values, progress=lambda objective, _: shown.append(objective))
    assert answer.objective == pytest.approx(best.objective)
    assert shown == pytest.approx([best.objective] * len(shown)) and shown


def test_a_start_that_fits_no_rows_does_no_harm() -> None:
    assert solve(HARD, start=np.ones(40)).objective == pytest.approx(solve(HARD).objective)


def test_progress_ends_at_the_answer() -> None:
    shown: list[tuple[float, float]] = []
    answer = solve(HARD, progress=lambda objective, bound: shown.append((objective, bound)))
    objectives, bounds = zip(*shown, strict=True)
    assert sorted(objectives, reverse=True) == list(objectives)
    assert objectives[-1] == pytest.approx(answer.objective)
    assert max(bounds) <= answer.objective + 1e-9
    assert len(set(shown)) == len(shown)


def test_whole_numbers_do_not_live_on_a_large_coefficient() -> None:
    # 3 of the first column need the second, which fractions of a millionth would seem to pay for.
    model = program([[1, -1e7]], [-INF], [0], [0, 0], [5, 1], [-1, 1], [False, True])
    assert whole_solution(model, np.array([3.0, 3e-7]), 1e-6) == pytest.approx([0, 0])
    assert whole_solution(model, np.array([3.0, 1 - 3e-7]), 1e-6) == pytest.approx([5, 1])
    needed = replace(model, low=np.array([1.0, 0.0]))
    assert whole_solution(needed, np.array([1.0, 1e-7]), 1e-6) is None
    answer = solve(needed)
    assert answer.values == pytest.approx([5, 1]) and answer.objective == pytest.approx(-4)


def test_a_row_more_is_a_row() -> None:
    model = program([[1, 1]], [1], [INF], [0, 0], [4, 4], [1, 2])
    assert solve(model.with_row(np.array([1.0, -1.0]), -INF, 0.0)).values == pytest.approx([0.5, 0.5])


def test_what_is_no_model_is_refused() -> None:
    model = program([[1, 1]], [1], [INF], [0, 0], [1, 1], [2, 1])
    for part in ("row_low", "row_high", "low", "high", "cost"):
        broken = np.full_like(getattr(model, part), np.nan)
        with pytest.raises(SolverFailed, match=f"tiny: HiGHS does not take the model: {part} has"):
            solve(replace(model, **{part: broken}))
    with pytest.raises(SolverFailed, match="matrix has"):
        solve(replace(model, matrix=model.matrix * np.nan))
    with pytest.raises(ValueError, match="1 rows and 2 columns"):
        replace(model, cost=np.ones(3))


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    solve(HARD, Limits(threads=2), np.ones(40), progress=lambda objective, bound: None)
    solve(knapsacks(30, 10, seed=2, share=0), Limits(inside=True))
    assert capfd.readouterr() == ("", "")
