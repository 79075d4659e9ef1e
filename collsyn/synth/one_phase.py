"""Allreduce in one phase: one tree of partial sums into every rank, all at once, with shared messages sent once."""

import numpy as np

from collsyn.model.schedule import Schedule
from collsyn.synth.baseline import Baseline, hops_of
from collsyn.synth.in_trees import InTrees, grown
from collsyn.synth.partial_sums import PartialSums
from collsyn.synth.problem import Problem
from collsyn.synth.timing import Sends

# Trees and their messages grow with the square of the ranks.
MAX_RANKS = 128


class OnePhase(Baseline):
    """Allreduce of small buffers on any fabric: each rank is the root of a tree of quickest ways along which sums flow.

    Where links have room, the time is that of the longest of the quickest ways between two ranks, which no allreduce
    passes: a rank sends the same partial sum to the same neighbour once, for all trees that use it, and trees are
    chosen to have few different ones. The whole buffer travels on every edge, so this is for sizes whose latency
    counts; where all ranks are joined it is `one-shot`. O(ranks^2 (hops + moves tried)).
    """

    name = "one-phase"
    builds = frozenset({"allreduce"})

    def obstacle(self, problem: Problem) -> str | None:
        """Needs ways between all ranks of a group, and not too many ranks."""
        if problem.topology.num_ranks > MAX_RANKS:
            return f"serves up to {MAX_RANKS} ranks; {problem.topology.name} has {problem.topology.num_ranks}"
        seconds = InTrees.quickest(hops_of(problem.topology), problem.size_bytes).seconds
        for group in problem.members:
            apart = np.argwhere(np.isinf(seconds[np.ix_(group, group)]))
            if len(apart):
                return f"needs a way from rank {group[apart[0, 0]]} to rank {group[apart[0, 1]]}"
        return None

    def build(self, problem: Problem) -> Schedule:
        """The quicker of two orders: the most urgent messages first, or those that are ready first."""
        table, collective = hops_of(problem.topology), problem.collective()
        ways = InTrees.quickest(table, problem.size_bytes)
        sums = [PartialSums(table, group, grown(ways, group), ways.cost_s) for group in problem.members]
        sets = collective.sets.tuples()
        chunks = [
            np.flatnonzero([sets[pre] == tuple(sorted(group)) for pre in collective.pre.tolist()])
            for group in problem.members
        ]
        found = []
        for urgent in (True, False):
            sends = Sends(table.routes)
            moves = [(move, mine) for part, mine in zip(sums, chunks, strict=True) for move in part.moves(urgent)]
            for move, mine in sorted(moves, key=lambda entry: entry[0].position):
                sends.add(mine, move.src, move.dst, move.hop, move.op, move.src_slot, move.dst_slot)
            found.append(sends.timed(collective, problem.topology, problem.size_bytes))
        return min(found, key=lambda schedule: schedule.finish_s)


ONE_PHASE = OnePhase()
