"""Plans under test: run on real data against the meaning of the collective, and looked through for races."""

from collections.abc import Iterable

import numpy as np

from collsyn.check.execute import reference, run
from collsyn.check.races import races
from collsyn.check.reference import make_inputs
from collsyn.lower.lower import lower
from collsyn.model.bind import bind
from collsyn.model.dtypes import dtype_of, first_difference
from collsyn.model.plan import Op, Plan
from collsyn.model.schedule import Schedule


def exportable(schedule: Schedule, *args: int, **options: object) -> Plan:
    """A schedule's plan as other runtimes are given it."""
    return lower(schedule, *args, ahead=False, **options)  # type: ignore[arg-type]


def modes(plan: Plan) -> list[bool]:
    """Out of place, and in place where the collective has that."""
    return [False, True] if plan.collective.has_in_place else [False]


def assert_right(
    plan: Plan,
    sizes: Iterable[int] = (1, 5, 64),
    seeds: Iterable[int | None] = (None, 0, 1),
    dtype_name: str = "int32",
    op_name: str = "sum",
) -> None:
    """Every output is right to the bit at all sizes (elements) and interleavings, inputs stay as they are."""
    width = dtype_of(dtype_name).num_bytes
    for in_place in modes(plan):
        for elements in sizes:
            inputs = make_inputs(plan.collective, dtype_name, op_name, elements, seed=elements)
            want = reference(plan.collective, dtype_name, op_name, inputs, elements)
            for seed in seeds:
                done = run(bind(plan, elements, width, in_place), dtype_name, op_name, inputs, seed)
                for rank, output in enumerate(done.outputs):
                    wrong = first_difference(dtype_name, output, want[rank])
                    assert wrong is None, (in_place, elements, seed, rank, wrong, len(output), len(want[rank]))
                    if not in_place:
                        assert done.inputs[rank].tobytes() == inputs[rank].tobytes(), (elements, seed, rank)


def assert_no_races(plan: Plan) -> None:
    """Flags put all conflicting accesses in order, in place and out of place."""
    for in_place in modes(plan):
        assert races(plan, in_place) == [], in_place


def without(plan: Plan, instruction: int) -> Plan:
    """The plan with one instruction left out."""
    channel = np.searchsorted(plan.channel_ptr, instruction, side="right") - 1
    ptr = plan.channel_ptr - (np.arange(len(plan.channel_ptr)) > channel)
    columns = {key: np.delete(values, instruction) for key, values in plan.columns.items()}
    return Plan(**{**vars(plan), "channel_ptr": ptr, "columns": columns})


def count(plan: Plan, op: Op) -> int:
    """Instructions of a kind."""
    return int((plan.columns["op"] == op).sum())
