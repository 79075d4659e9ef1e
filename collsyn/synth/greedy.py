"""Greedy matching on the time-expanded network: every free hop takes the rarest chunk that its end can use.

Source: TACOS, arXiv 2304.05301; docs/greedy.md says what differs.
"""

from dataclasses import replace

import numpy as np

from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology
from collsyn.synth.greedy_machine import MachineModel
from collsyn.synth.greedy_search import Run, Search
from collsyn.synth.problem import REVERSED, Options, Problem, provenance
from collsyn.synth.timing import in_order
from collsyn.synth.transform import by_composition, by_reversal, useful


class Greedy:
    """Serves every collective on every connected topology; see docs/greedy.md."""

    name = "greedy"

    def accepts(self, problem: Problem) -> str | None:
        """Serves every problem."""
        return None

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The schedule of the best run; raises Infeasible where a receiver cannot be reached.

        One run costs O(deliveries x (hops per link + chunks looked at)); see `Search` for how many there are.
        """
        schedule = self._solve(problem, options)
        origin = provenance(problem, options, self.name, **schedule.provenance["options"])
        return replace(schedule, provenance=origin)

    def _solve(self, problem: Problem, options: Options) -> Schedule:
        if problem.kind == "allreduce":
            half = None if options.time_limit_s is None else options.time_limit_s / 2
            return by_composition(problem, lambda phase: self._solve(phase, replace(options, time_limit_s=half)))
        if (problem.reduces or problem.kind == "gather") and problem.kind in REVERSED:
            return by_reversal(problem, lambda forward: self._solve(forward, options))
        return spread(problem, options)


def spread(problem: Problem, options: Options) -> Schedule:
    """A schedule of copies by the greedy matching."""
    model = MachineModel.of(problem.topology)
    run = Search(problem, options, model).solve()
    return as_schedule(problem, model, run)


def as_schedule(problem: Problem, model: MachineModel, run: Run) -> Schedule:
    """The messages of a run without those that turned out useless, each started as early as their order allows."""
    topology: Topology = problem.topology
    hop = np.repeat(run.log.hop, np.diff(run.log.ptr))
    lowered = model.fitted_rates < model.rates * (1 - 1e-9)
    rate = np.where(lowered & run.setting.fitted, model.fitted_rates, 0.0)
    columns = {
        "chunk": run.log.rows,
        "src": model.table.src[hop],
        "dst": model.table.dst[hop],
        "route": hop,
        "rate": rate[hop],
        "batch": np.repeat(np.arange(len(run.log.hop)), np.diff(run.log.ptr)),
    }
    choices = {"chunks_per_rank": run.setting.chunks}
    schedule = in_order(
        run.collective, topology, problem.size_bytes, model.table.routes, columns, {"options": choices}
    )
    kept = useful(schedule)
    if kept is schedule:
        return schedule
    return in_order(
        run.collective, topology, problem.size_bytes, kept.routes, by_start(kept), kept.provenance
    )


GREEDY = Greedy()
