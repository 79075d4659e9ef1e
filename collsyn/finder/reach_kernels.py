"""Compiled loops of the search: how far apart ranks are in graphs whose ranks are all alike."""

import numpy as np
from numba import njit

from collsyn.model.arrays import I64


@njit(cache=True)
def reaches(across: int, powers: I64, sets: I64) -> I64:
    """Diameter, and ranks at that distance, of the Cayley digraph of each row of generators.

    Rank x + `across` y times generator x' + `across` y' is x + powers[y] x' mod across, y + y' mod len(powers); with
    one power, 1, that is the circle of `across` ranks. Rows that are not connected, or whose diameter is larger than
    that of a row before, have -1. O(sets * ranks * generators).
    """
    up, count = len(powers), sets.shape[1]
    n = across * up
    found = np.full((len(sets), 2), np.int64(-1))
    seen = np.zeros(n, dtype=np.int64)
    queue_x, queue_y = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    shift_x, shift_y = np.empty((up, count), dtype=np.int64), np.empty(count, dtype=np.int64)
    least = n
    for row in range(len(sets)):
        for i in range(count):
            shift_y[i] = sets[row, i] // across
            for y in range(up):
                shift_x[y, i] = powers[y] * (sets[row, i] % across) % across
        queue_x[0], queue_y[0], filled, taken, distance, last = 0, 0, 1, 0, 0, 1
        seen[0] = row + 1
        while taken < filled and filled < n and distance < least:
            layer = filled
            while taken < layer:
                x, y = queue_x[taken], queue_y[taken]
                taken += 1
                for i in range(count):
                    new_x, new_y = x + shift_x[y, i], y + shift_y[i]
                    if new_x >= across:
                        new_x -= across
                    if new_y >= up:
                        new_y -= up
                    if seen[new_x + across * new_y] != row + 1:
                        seen[new_x + across * new_y] = row + 1
                        queue_x[filled], queue_y[filled] = new_x, new_y
                        filled += 1
            distance, last = distance + 1, filled - layer
        if filled == n:
            found[row, 0], found[row, 1] = distance, last
            least = distance
    return found
