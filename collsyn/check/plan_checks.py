"""The parts of verify_plan: memory ranges, flags, races, and real data moved at several sizes."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collsyn.check.report import SHOWN, Problem
from collsyn.errors import InputError, VerificationError
from collsyn.model.bind import BoundPlan, bind, layout
from collsyn.model.plan import Plan

# Orders of the channels tried for deadlocks: the fair one, random ones (even), and random priorities (odd).
SEEDS = (None, 0, 1, 2, 3)


@dataclass(frozen=True)
class Trial:
    """One execution with random data."""

    num_elements: int
    dtype_name: str
    seed: int | None
    in_place: bool

    def __str__(self) -> str:
        where = "in place" if self.in_place else "out of place"
        return f"{self.num_elements} x {self.dtype_name} {where}, order {self.seed}"


def range_problems(plan: Plan) -> list[Problem]:
    """The first instruction that leaves its buffer or names a rank or buffer that is not there."""
    from collsyn.check.execute import check_ranges

    try:
        check_ranges(bind(plan, plan.total_units, 1))
    except VerificationError as error:
        return [_as_problem(error, "memory inside the buffers")]
    return []


def flag_problems(plan: Plan) -> list[Problem]:
    """Deadlocks and wrong flags in some orders of the channels."""
    from collsyn.check.interleave import interleaving

    try:
        for seed in SEEDS:
            interleaving(plan, seed)
    except VerificationError as error:
        return [_as_problem(error, "every wait to end")]
    return []


def race_problems(plan: Plan) -> list[Problem]:
    """Accesses to the same bytes that no flag puts in order, out of place and in place."""
    from collsyn.check.races import races

    problems = []
    for in_place in (False, True) if plan.collective.has_in_place else (False,):
        found = races(plan, in_place, SHOWN)
        where = "in place" if in_place else "out of place"
        problems += [Problem(where, text, "an order between the two", "none") for text in found]
    return problems[:SHOWN]


def trials(plan: Plan) -> tuple[list[Trial], list[Trial]]:
    """Executions worth making, and those that the plan refuses because its chunks must divide the size."""
    whole = plan.total_units
    uneven = max(2 * whole - 1, 3)
    wanted = [
        Trial(whole, "int64", None, False),
        Trial(uneven, "int64", 0, False),
        Trial(uneven, "float32", 1, True),
        Trial(whole, "float32", 2, True),
        Trial(1, "int64", 3, False),
    ]
    if not plan.collective.has_in_place:
        wanted = [Trial(trial.num_elements, trial.dtype_name, trial.seed, False) for trial in wanted]
    possible, refused = [], []
    for trial in wanted:
        try:
            bind(plan, trial.num_elements, 8, trial.in_place)
            possible.append(trial)
        except InputError:
            refused.append(trial)
    return possible, refused


def data_problems(plan: Plan, trial: Trial) -> list[Problem]:
    """Elements that differ from what the collective means, the first of every rank; inputs that were changed."""
    from collsyn.check.execute import run
    from collsyn.check.reference import make_inputs, reference
    from collsyn.model.dtypes import dtype_of, first_difference

    name, collective = trial.dtype_name, plan.collective
    bound = bind(plan, trial.num_elements, dtype_of(name).num_bytes, trial.in_place)
    inputs = make_inputs(collective, name, "sum", trial.num_elements, seed=trial.num_elements)
    try:
        result = run(bound, name, "sum", inputs, trial.seed)
    except VerificationError as error:
        return [_as_problem(error, f"a run of {trial}")]
    problems = []
    wanted = reference(collective, name, "sum", inputs, trial.num_elements)
    for rank, (got, want) in enumerate(zip(result.outputs, wanted, strict=True)):
        at = first_difference(name, got, want)
        if at is not None:
            where = f"rank {rank} output element {at}{_chunk_at(bound, rank, at)} ({trial})"
            problems.append(Problem(where, "is not the result", *_values(want, got, at)))
    if not trial.in_place:
        for rank, (before, after) in enumerate(zip(inputs, result.inputs, strict=True)):
            at = first_difference(name, after, before)
            if at is not None:
                where = f"rank {rank} input element {at} ({trial})"
                problems.append(Problem(where, "was changed by the plan", *_values(before, after, at)))
    return problems


def _values(want: npt.NDArray[np.generic], got: npt.NDArray[np.generic], at: int) -> tuple[str, str]:
    return tuple(str(values[at]) if at < len(values) else "no such element" for values in (want, got))  # type: ignore[return-value]


def _chunk_at(bound: BoundPlan, rank: int, element: int) -> str:
    places = layout(bound.plan.collective, bound.num_elements)
    chunks, first, _ = places.output[rank]
    inside = np.flatnonzero((first <= element) & (element < first + places.lengths[chunks]))
    return f" of chunk {int(chunks[inside[0]])}" if len(inside) else ""


def _as_problem(error: VerificationError, expected: str) -> Problem:
    where, _, what = str(error).partition(": ")
    return Problem(where, what or "is wrong", expected, "this")
