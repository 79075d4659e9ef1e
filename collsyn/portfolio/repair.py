"""A schedule repaired for a topology that has changed, judged like any other."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from collsyn.bounds import fluid_bound
from collsyn.errors import InputError
from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology
from collsyn.portfolio.auto import best
from collsyn.portfolio.candidates import Candidate
from collsyn.synth.problem import Options, Problem
from collsyn.synth.repair import Repair
from collsyn.synth.table import method
from collsyn.units import s_to_us


def repaired(
    problem: Problem, options: Options, old: Schedule, file: str | Path, plans: bool | None = None
) -> list[Candidate]:
    """The one candidate that a schedule read from a file becomes; raises InputError where it does not fit."""
    repair = Repair(old)
    reason = repair.accepts(problem)
    if reason is not None:
        raise InputError(f"{file}: {reason}")
    _warm_up(problem.kind)
    return best(problem, options, [repair], plans)


def cost_of_failure(old: Schedule, new: Schedule) -> Mapping[str, Any]:
    """What the change of the topology costs at the new schedule's size: bounds and finishes before and after."""
    before_s = fluid_bound(old.collective, old.topology, new.size_bytes).time_s
    after_s = next(bound.time_s for bound in new.bounds if bound.scope == "fluid")
    choices = new.provenance["options"]
    return {
        "topology_before": old.topology.name,
        "bound_before_us": s_to_us(before_s),
        "bound_us": s_to_us(after_s),
        "cost": after_s / before_s - 1 if before_s else None,
        "finish_before_us": s_to_us(old.finish_s) if old.size_bytes == new.size_bytes else None,
        "finish_us": s_to_us(new.finish_s),
        "kept_sends": choices["kept_sends"],
        "new_sends": choices["new_sends"],
    }


@cache
def _warm_up(kind: str) -> None:
    """Repair a schedule of three ranks, so that what compiles at first use does not count as synthesis."""
    ends = [(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)]
    costs = {"alpha_s": 0.0, "beta_s_per_byte": 1e-9, "overhead_s": 0.0, "count": 1}

    def joined(links: list[tuple[int, int]]) -> Topology:
        columns: dict[str, Any] = {name: [value] * len(links) for name, value in costs.items()}
        return Topology("three", 3, src=[a for a, _ in links], dst=[b for _, b in links], **columns)  # type: ignore[arg-type]

    counts = [[0, 1, 1], [1, 0, 1], [1, 1, 0]] if kind == "alltoallv" else None
    old = method("paths").synthesize(Problem(kind, joined(ends), 3, counts=counts), Options())
    problem = Problem(kind, joined(ends[:4]), 3, counts=counts)
    repair = Repair(old)
    if repair.accepts(problem) is None:
        repair.synthesize(problem, Options())
