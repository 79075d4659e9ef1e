"""Lengths of links that show how much every pair of ranks can exchange at once: the dual of a linear program."""

from fractions import Fraction
from math import lcm

import numpy as np

from collsyn.bounds.case import Case
from collsyn.bounds.concurrent_program import Program
from collsyn.model.arrays import F64, I64

# Flows up to which the program is solved, in less than a second: at a corner, where duals are exact, or inside.
MAX_FLOWS_OF_A_CORNER, MAX_FLOWS = 6_000, 18_000
# With symmetries, which make them fewer, they may be so many times more before (to find which takes time, too).
MOST_SAVED = 40
# Lengths are whole numbers of at most this.
MAX_LENGTH = 1 << 20
_SIMPLE = 1000


def concurrent_lengths(case: Case) -> I64 | None:
    """Whole lengths of the links that prove the least time of the bytes; None where the program does not apply.

    For data that goes from one rank to one rank each (alltoall, sendrecv): the program splits it over all ways, with
    one flow for every source, so that the busiest link is least busy (maximum concurrent flow, grouped by source). The
    duals are lengths for which the argument `lengths` shows the optimum, exactly where they are multiples of a common
    measure. One source of every orbit of the symmetries that keep the demand is enough.
    """
    pre, post, amount = case.pairs
    if case.collective.reduces or (case.set_sizes[pre] > 1).any() or (case.set_sizes[post] > 1).any():
        return None
    t = case.topology
    first = case.collective.sets.data[case.collective.sets.ptr[:-1]]
    demand = np.zeros((t.num_ranks, t.num_ranks))
    np.add.at(demand, (first[pre], first[post]), amount)
    np.fill_diagonal(demand, 0.0)
    sending = int(demand.any(axis=1).sum())
    if not sending or sending * t.num_links > MOST_SAVED * MAX_FLOWS:
        return None
    program = Program(t, demand)
    if program.num_flows > MAX_FLOWS:
        return None
    flows = program.solved(corner=program.num_flows <= MAX_FLOWS_OF_A_CORNER, detours=0.0)
    return None if flows is None else _whole(flows.price)


def _whole(price: F64) -> I64:
    """Whole numbers in the ratio of the prices, exactly so if they have a common measure."""
    most = float(price.max())
    if most <= 0:
        return np.zeros(len(price), dtype=np.int64)
    kinds, index = np.unique(np.round(price / most, 12), return_inverse=True)
    parts = [Fraction(kind).limit_denominator(_SIMPLE) for kind in kinds.tolist()]
    scale = lcm(*(part.denominator for part in parts))
    simple = all(abs(float(part) - kind) < 1e-9 for part, kind in zip(parts, kinds.tolist(), strict=True))
    if not simple or scale > MAX_LENGTH:
        return np.round(price / most * MAX_LENGTH).astype(np.int64)
    return np.array([int(part * scale) for part in parts], dtype=np.int64)[index.reshape(-1)]
