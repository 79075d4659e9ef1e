"""Compiled loops of the search: how far apart ranks are in graphs whose ranks are all alike."""

import numpy as np
from numba import njit

from collsyn.model.arrays import I64


@njit(cache=True)
def reaches(across: int, powers: I64, sets: I64) -> I64:
    """Diameter, and ranks at that distance, of the Cayley digraph of each row of generators (-1: not connected).

    Rank x + `across` y times generator x' + `across` y' is x + powers[y] x' mod across, y + y' mod len(powers); with
    one power, 1, that is the circle of `across` ranks. O(sets * ranks * generators).
    """
    up = len(powers)
    n = across * up
    found = np.full((len(sets), 2), np.int64(-1))
    seen = np.zeros(n, dtype=np.int64)
    queue = np.empty(n, dtype=np.int64)
    for row in range(len(sets)):
        queue[0], filled, taken, distance, last = 0, 1, 0, 0, 1
        seen[0] = row + 1
        while taken < filled:
            layer = filled
            while taken < layer:
                at = queue[taken]
                taken += 1
                x, y = at % across, at // across
                for generator in sets[row]:
                    moved = (x + powers[y] * (generator % across)) % across
                    moved += across * ((y + generator // across) % up)
                    if seen[moved] != row + 1:
                        seen[moved] = row + 1
                        queue[filled] = moved
                        filled += 1
            if filled > layer:
                distance, last = distance + 1, filled - layer
        if filled == n:
            found[row, 0], found[row, 1] = distance, last
    return found
