"""Alltoall and what else goes from one rank to one rank each: the optimal flow, its paths, and pieces sent along."""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from collsyn.bounds.case import Case
from collsyn.bounds.concurrent_program import Program
from collsyn.errors import SolverFailed
from collsyn.model.schedule import Schedule
from collsyn.synth.alltoall import Paths, Search, Setting, goes_to_one, pieces
from collsyn.synth.alltoall_wide_kernels import relieve
from collsyn.synth.concurrent_flow_paths import CLOSE_ENOUGH, Ways, padded, ways_of
from collsyn.synth.greedy_machine import MachineModel
from collsyn.synth.problem import Options, Problem, provenance

# Machines of more ranks are not looked at, nor programs with more unknowns solved.
MAX_RANKS, MAX_FLOWS = 512, 80_000
# Of larger programs no solution at a corner is asked for: to move there takes longer than to come near.
MAX_FLOWS_OF_A_CORNER = 10_000

# Searches for other paths of pieces on the busiest links, the power of the load that prices rise with, what a link
# costs besides, and how many hops longer than all others a path may become.
SEARCHES, POWER, OWN, LONGER = 3000, 64.0, 0.02, 2

# Work (a unit is about a microsecond) of dealing out grows by one for so many paths.
DEALT_PATHS = 10


class ConcurrentFlow:
    """Serves what each goes from one rank to one other: alltoall(v), scatter, gather, sendrecv, groups of them.

    A linear program splits what every source sends over all ways, alternative ones through switches too, such that the
    busiest link is done earliest (maximum concurrent flow; symmetries make it small). The flow is taken apart into
    paths, equal pieces are dealt out to these, and sent along them in the order that finishes first of several.
    """

    name = "flow"

    def accepts(self, problem: Problem) -> str | None:
        """None if it serves the problem, else why not."""
        t = problem.topology
        if t.num_ranks > MAX_RANKS:
            return f"serves at most {MAX_RANKS} ranks"
        if problem.reduces or not goes_to_one(problem):
            return "serves what goes to one rank each, unreduced"
        if t.allowed_pairs is not None and t.switch_names:
            return "chooses its own ways through switches, which a sketch restricts"
        collective = problem.collective(1)
        if (collective.sets.lengths()[collective.pre] > 1).any():
            return "needs data that one rank each has at the start"
        program = _program(problem)
        if not program.demand.any():
            return "has nothing to do where no data moves"
        if program.num_flows > MAX_FLOWS:
            return f"solves programs of at most {MAX_FLOWS} flows; this one has {program.num_flows}"
        return None

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The best of several numbers of chunks; raises Infeasible where a receiver cannot be reached, SolverFailed."""
        Case(problem.collective(1), problem.topology, problem.size_bytes).check_reachable()
        ways = _ways(problem)
        schedule = _Search(problem, options, ways).solve()
        chosen = schedule.provenance["options"] | {"flow_us": round(ways.time_s * 1e6, 3)}
        return replace(schedule, provenance=provenance(problem, options, self.name, **chosen))


@lru_cache(maxsize=4)
def _program(problem: Problem) -> Program:
    t = problem.topology
    _, source, target, num_bytes = pieces(problem.collective(1), problem.size_bytes)
    demand = np.zeros((t.num_ranks, t.num_ranks))
    np.add.at(demand, (source, target), num_bytes)
    return Program(t, demand)


@lru_cache(maxsize=4)
def _ways(problem: Problem) -> Ways:
    program = _program(problem)
    # A corner has few paths, which need few pieces; inside there are more to choose from.
    corners = (True, False) if program.num_flows <= MAX_FLOWS_OF_A_CORNER else (False,)
    solutions = [flows for corner in corners if (flows := program.solved(corner=corner)) is not None]
    if not solutions:
        raise SolverFailed(f"flow: the solver found no optimum of {program.num_flows} flows")
    return ways_of(program, solutions)


class _Search(Search):
    """The search along paths of a flow, whose shares many numbers of pieces miss by as much."""

    patience, share = 12, 0.5

    def __init__(self, problem: Problem, options: Options, ways: Ways) -> None:
        super().__init__(problem, options, MachineModel(problem.topology, ways.table))
        self._ways = ways

    def paths(self, chunks: int) -> Paths | None:
        """The pieces of every pair dealt out to its paths; None if the busiest link alone takes too long."""
        collective, ways = self.problem.collective(chunks), self._ways
        chunk, source, target, num_bytes = pieces(collective, self.problem.size_bytes)
        pair = ways.of_pairs(source, target)
        path, top_s = ways.dealt_out(np.bincount(pair, minlength=len(ways.source)), self.effort.seed())
        self.effort.spend(len(path) + ways.share.size / DEALT_PATHS)
        if self.best is not None and top_s >= self.best.times.finish_s:
            return None
        chosen = np.empty(len(chunk), dtype=np.int64)
        chosen[np.argsort(pair, kind="stable")] = path
        hops, lengths = padded(ways.hops, chosen, LONGER)
        if top_s > CLOSE_ENOUGH * ways.time_s:
            machine = self.model.machine(False, 0.0, 1.0)
            rest = np.zeros(self.problem.topology.num_links)
            seed = self.effort.seed()
            _, made = relieve(machine, source, target, num_bytes, POWER, OWN, SEARCHES, seed, rest, hops, lengths)
            self.effort.spend(made * self.work_per_search)
        return Paths.of(collective, chunk, num_bytes, hops, lengths)

    def settings(self, chunks: int) -> list[Setting]:
        """As elsewhere, with pieces spread evenly first: those of a pair are a flow."""
        usual = super().settings(chunks)
        return [replace(setting, even=True) for setting in usual] + usual


FLOW = ConcurrentFlow()
