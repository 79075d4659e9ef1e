"""Who has to give how much to whom, as trees see it, for one root of every orbit of the machine's symmetries."""

from fractions import Fraction

import numpy as np

from collsyn.bounds.tightest import tightest_rate
from collsyn.model.arrays import I64
from collsyn.synth.problem import Problem
from collsyn.synth.trees_pool import Demand, Pool
from collsyn.synth.trees_symmetry import moves


def pool_for(problem: Problem) -> Pool:
    """An empty pool of trees for an allgather or a broadcast, whose congestion is measured against the tightest cut."""
    collective, topology = problem.collective(1), problem.topology
    share: dict[int, Fraction] = {}
    owners = collective.sets.data[collective.sets.ptr[:-1]][collective.pre].tolist()
    for root, units in zip(owners, collective.units.tolist(), strict=True):
        share[root] = share.get(root, Fraction(0)) + Fraction(units, collective.total_units)
    group_of = {rank: group for group in problem.members for rank in group}
    groups = {frozenset(group) for group in problem.members}

    def keeps(image: I64) -> bool:
        """Whether a symmetry maps roots to roots of equal shares, and groups to groups."""
        same = all(share.get(int(image[root])) == part for root, part in share.items())
        return same and all(frozenset(image[list(group)].tolist()) in groups for group in groups)

    symmetry = moves(topology, keeps)
    demands = [Demand(r, share[r], group_of[r]) for r in np.unique(symmetry.first).tolist() if r in share]
    rate = tightest_rate(collective, topology)
    assert rate is not None, "nothing has to be sent"
    return Pool(topology, demands, symmetry, rate)
