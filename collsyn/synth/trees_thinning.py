"""Fewer trees: those that are missed least are left out one by one, and the others share their parts anew.

Blink (arXiv 1910.04940) looks for few trees, too, by an integer program in which all parts are alike; here they need
not be.
"""

from dataclasses import replace

import numpy as np

from collsyn.synth.trees_pool import WORK, Mix, Pricing, Program

# Trees that are tried for leaving out, those with the smallest parts; the congestion at which it ends; the most trees.
TRIED, WORST, MOST = 16, 1.06, 64
# Work for all, so that the search for trees has most of it.
_SHARE = 8


def thinned(search: Pricing, mix: Mix) -> list[Mix]:
    """Mixes with ever fewer of a mix's trees, each with little more congestion than the one before.

    Each has the parts that are best for its trees. None where there are more than MOST trees. Complexity: at most
    TRIED linear programs a tree, of as many rows as there are orbits of links.
    """
    found: list[Mix] = []
    if not 1 < len(mix.trees) <= MOST:
        return found
    program = Program(replace(search.pool, trees=list(mix.trees)))
    program.solve()
    number = np.array([tree.number for tree in mix.trees])
    parts, used = mix.parts, np.ones(len(mix.trees), dtype=np.bool_)
    until = search.work + WORK // _SHARE
    while search.work < until and not search.is_over:
        of_demand = np.bincount(number[used], minlength=len(search.pool.demands))
        open_to = np.flatnonzero(used & (of_demand[number] > 1))
        tried = open_to[np.argsort(parts[open_to], kind="stable")][:TRIED].tolist()
        least, best = WORST * mix.congestion, -1
        for tree in tried:
            program.limit(tree, 0.0)
            congestion, price, _, _ = program.solve()
            program.limit(tree, np.inf)
            search.work += 10 * len(price) * len(mix.trees)
            if congestion < least:
                least, best = congestion, tree
        if best < 0:
            break
        program.limit(best, 0.0)
        congestion, _, _, parts = program.solve()
        for tree in np.flatnonzero(used & (parts <= 1e-9)).tolist():
            program.limit(tree, 0.0)
        used &= parts > 1e-9
        at = np.flatnonzero(used)
        found.append(Mix([mix.trees[i] for i in at], parts[at], congestion))
    return found
