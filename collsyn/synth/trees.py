"""Throughput-optimal trees: spanning trees of small height whose links are all as busy as the optimum needs them.

Sources: Edmonds, Edge-disjoint branchings (1973); Blink, arXiv 1910.04940; ForestColl, arXiv 2402.06787; docs/trees.md
says what differs.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from math import inf

import numpy as np

from collsyn.errors import Infeasible
from collsyn.model.arrays import Rows
from collsyn.model.schedule import Schedule
from collsyn.synth.problem import REVERSED, Options, Problem, provenance
from collsyn.synth.timing import in_order
from collsyn.synth.transform import by_composition, by_reversal
from collsyn.synth.trees_demand import pool_for
from collsyn.synth.trees_search import best_choice
from collsyn.topology.symmetry import is_symmetry

# Bytes of the shortest chunk that only the pipeline asks for.
LEAST_PIECE = 16 << 10
# Messages of a schedule: of plans with many more moves not all variants are compared. One that is reduced makes two
# moves, so that half as many are sent where that leaves enough for every pair of ranks.
MAX_MESSAGES, PER_PAIR = 19_000, 20
# A single root leaves no symmetry to shorten the linear program with; beyond this many links it takes minutes.
MAX_LINKS_OF_ROOTED = 600
_BUILDS = ("allgather", "broadcast")


class TreesMethod:
    """Serves allgather, broadcast, their reversals and allreduce where ranks reach each other inside their groups."""

    name = "trees"

    def accepts(self, problem: Problem) -> str | None:
        """None if it serves the problem, else why not."""
        if problem.kind == "allreduce":
            return self.accepts(problem.as_kind("allgather"))
        if problem.kind not in _BUILDS and REVERSED.get(problem.kind) not in _BUILDS:
            return f"makes no {problem.kind}"
        if problem.kind in ("broadcast", "reduce") and problem.topology.num_links > MAX_LINKS_OF_ROOTED:
            return f"makes a {problem.kind} over at most {MAX_LINKS_OF_ROOTED} links"
        if problem.groups is None or _nobody_sends(problem):
            return None
        forward = problem if problem.kind in _BUILDS else problem.reversed
        try:
            pool_for(forward).start()
        except Infeasible:
            return "needs ways inside every process group that lead through none of the other ranks"
        return None

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The schedule; raises Infeasible where a rank cannot be reached.

        Without a time limit a fixed amount of work is done, so that the result is the same every time.
        """
        end_s = inf if (limit := options.time_limit_s) is None else time.monotonic() + limit
        schedule = self._solve(problem, options.seed, lambda: time.monotonic() > end_s)
        origin = provenance(problem, options, self.name, **schedule.provenance.get("options", {}))
        return replace(schedule, provenance=origin)

    def _solve(self, problem: Problem, seed: int, late: Callable[[], bool]) -> Schedule:
        if problem.kind == "allreduce":
            return by_composition(problem, lambda phase: self._solve(phase, seed, late))
        if problem.kind not in _BUILDS:
            pairs = sum(len(group) * (len(group) - 1) for group in problem.members)
            messages = min(max(MAX_MESSAGES // 2, PER_PAIR * pairs), MAX_MESSAGES) if problem.reduces else MAX_MESSAGES
            return by_reversal(problem, lambda forward: _quicker(forward, messages, seed, late))
        return _quicker(problem, MAX_MESSAGES, seed, late)


def _nobody_sends(problem: Problem) -> bool:
    return all(len(group) == 1 for group in problem.members)


def _quicker(problem: Problem, messages: int, seed: int, late: Callable[[], bool]) -> Schedule:
    """Over all fabrics at once, or over the links from rank to rank alone where a machine has both.

    Bytes take less time over all, but ways through switches may be too slow, or too hard to share out, to be worth it.
    """
    whole = _spread(problem, messages, seed, late)
    topology = problem.topology
    direct = (topology.src < topology.num_ranks) & (topology.dst < topology.num_ranks)
    if direct.all() or not direct.any() or late():
        return whole
    kept = np.flatnonzero(direct)
    columns = topology.link_columns(kept, np.arange(topology.num_vertices))
    alone = replace(topology, **columns, symmetries=())
    moved = tuple(image for image in topology.symmetries if is_symmetry(alone, image))
    try:
        found = _spread(replace(problem, topology=replace(alone, symmetries=moved)), messages, seed, late)
    except Infeasible:
        return whole
    if found.finish_s >= whole.finish_s:
        return whole
    routes = Rows(found.routes.ptr, kept[found.routes.data])
    again = Schedule.build(found.collective, topology, found.size_bytes, routes, found.provenance, **found.columns())
    return again.with_notes(options={**found.provenance["options"], "fabric": "rank to rank"})


def _spread(problem: Problem, messages: int, seed: int, late: Callable[[], bool]) -> Schedule:
    topology = problem.topology
    if _nobody_sends(problem):
        return in_order(problem.collective(), topology, problem.size_bytes, Rows.of([()]), {"chunk": [], "batch": []})
    asked = problem.chunks_per_rank
    least = max(topology.min_piece_bytes, LEAST_PIECE)
    found = best_choice(lambda: pool_for(problem), problem.size_bytes, asked, least, messages, seed, late)
    flow, trees = found.flow, found.flow.trees
    schedule = flow.schedule(problem.collective(flow.chunks_per_root), found.pace)
    options = {"chunks_per_rank": flow.chunks_per_root, "parts": trees.k, "trees": len(trees), "height": trees.height}
    return schedule.with_notes(options={**options, "algbw_exact": str(trees.algbw_gb_s)})


TREES = TreesMethod()
