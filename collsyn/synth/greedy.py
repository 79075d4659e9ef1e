"""Greedy matching on the time-expanded network: every free hop takes the rarest chunk that its end can use.

Source: TACOS, arXiv 2304.05301; docs/greedy.md says what differs.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import Rows
from collsyn.model.schedule import Schedule
from collsyn.synth import greedy_direct
from collsyn.synth.alltoall import along_paths, goes_to_one
from collsyn.synth.greedy_machine import MachineModel
from collsyn.synth.greedy_search import Run, Search
from collsyn.synth.neighbours import numbered_by_company
from collsyn.synth.problem import REVERSED, Options, Problem, provenance, turned
from collsyn.synth.timing import by_start, in_order
from collsyn.synth.transform import by_composition, by_reversal, compose, reverse, useful

# From so many deliveries on greedy_direct works alone, unless overhead is more than this share of the time of bytes.
LARGE, LITTLE_OVERHEAD = 60_000, 0.05


class Greedy:
    """Serves every collective on every connected topology; see docs/greedy.md."""

    name = "greedy"

    def accepts(self, problem: Problem) -> str | None:
        """Serves every problem."""
        return None

    def prepare(self, kind: str) -> None:
        """Compile, or load, what only large machines with links of equal or of several speeds need."""
        if kind in greedy_direct.KINDS:
            greedy_direct.prepare()

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The schedule of the best run; raises Infeasible where a receiver cannot be reached.

        A run costs O(deliveries x (hops per link + chunks looked at)); the searches make as many as a fixed amount of
        work allows, or the time limit.
        """
        schedule = self._solve(problem, options)
        origin = provenance(problem, options, self.name, **schedule.provenance["options"])
        return replace(schedule, provenance=origin)

    def _solve(self, problem: Problem, options: Options) -> Schedule:
        large = _is_large(problem)
        direct = None
        if (large or problem.kind == "allgather") and greedy_direct.obstacle(problem) is None:
            direct, done = greedy_direct.solve(problem, options if large else replace(options, time_limit_s=None))
            if direct is not None and (large or done):
                return direct
        found = self._search(problem, options)
        return found if direct is None or found.finish_s < direct.finish_s * (1 - 1e-9) else direct

    def _search(self, problem: Problem, options: Options) -> Schedule:
        if problem.kind == "allreduce":
            return by_composition(problem, lambda phase: self._solve(phase, _half(options)))
        if problem.kind == "custom" and problem.reduces:
            return self._reduce_and_spread(problem, _half(options))
        if (problem.reduces or problem.kind == "gather") and problem.kind in REVERSED:
            return by_reversal(problem, lambda forward: self._solve(forward, options))
        model = MachineModel.of(problem.topology)
        one = goes_to_one(problem)
        return numbered_by_company((along_paths if one else spread)(problem, options, model))

    def _reduce_and_spread(self, problem: Problem, options: Options) -> Schedule:
        """A custom reduction: every chunk is reduced at one of its receivers, then copied from there to the others."""
        collective, topology = problem.collective(), problem.topology
        sets = collective.sets.tuples()
        # Chunks with the same receivers take turns; a receiver that contributes needs one copy less.
        hubs = []
        for chunk, (pre, post) in enumerate(zip(collective.pre.tolist(), collective.post.tolist(), strict=True)):
            able = sorted({*sets[pre]} & {*sets[post]}) or sets[post]
            hubs.append(able[chunk % len(able)])
        at_hubs = len(collective.sets) + np.array(hubs)
        known = Rows.of([*sets, *((rank,) for rank in range(topology.num_ranks))])
        inward = replace(collective, sets=known, pre=at_hubs, post=collective.pre, reduces=False)
        gathered = replace(collective, sets=known, post=at_hubs)
        outward = replace(collective, sets=known, pre=at_hubs, reduces=False)
        first = self._solve(replace(problem, topology=turned(topology), spec=inward), options)
        second = self._solve(replace(problem, spec=outward), options)
        return compose(reverse(first, gathered, topology), second, collective)


def _is_large(problem: Problem) -> bool:
    """Whether there are so many deliveries that one run of the search around the event loop takes its whole work.

    Where overhead counts, it runs all the same: it alone puts several chunks into a message.
    """
    ranks = problem.topology.num_ranks
    if ranks * (ranks - 1) * (problem.chunks_per_rank or 1) < LARGE:
        return False
    topology = problem.topology
    transfer_s = problem.size_bytes / ranks / (problem.chunks_per_rank or 1) * topology.beta_s_per_byte
    return bool((topology.overhead_s <= LITTLE_OVERHEAD * transfer_s).all())


def spread(problem: Problem, options: Options, model: MachineModel) -> Schedule:
    """A schedule of copies by the greedy matching."""
    run = Search(problem, options, model).solve()
    return as_schedule(problem, model, run)


def as_schedule(problem: Problem, model: MachineModel, run: Run) -> Schedule:
    """The messages of a run without those that turned out useless, each started as early as their order allows."""
    rows_of_message = np.diff(run.log.ptr)
    hop = np.repeat(run.log.hop, rows_of_message)
    columns: dict[str, npt.ArrayLike] = {
        "chunk": run.log.rows,
        "src": model.table.src[hop],
        "dst": model.table.dst[hop],
        "route": hop,
        "rate": model.asked_rates(run.setting.fitted)[hop],
        "batch": np.repeat(np.arange(len(run.log.hop)), rows_of_message),
    }
    notes = {"options": {"chunks_per_rank": run.setting.chunks}}
    size_bytes, routes = problem.size_bytes, model.table.routes
    schedule = in_order(run.collective, problem.topology, size_bytes, routes, columns, notes)
    kept = useful(schedule)
    if kept is schedule:
        return schedule
    return in_order(run.collective, problem.topology, size_bytes, kept.routes, by_start(kept), notes)


def _half(options: Options) -> Options:
    """The options of each of two phases."""
    return options if options.time_limit_s is None else replace(options, time_limit_s=options.time_limit_s / 2)


GREEDY = Greedy()
