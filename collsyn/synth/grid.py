"""Allgather on meshes of any size: each chunk goes along the dimensions in turn, and every link is busy to the end.

Class k of the chunks takes the dimensions k, k + 1, ... (one after the other, the last one carrying nearly all). Which
chunk is in which class follows from the sum of its rank's coordinates, in such shares that the links of a corner, which
has the fewest, all carry the same. Links are filled stage by stage, so that what others wait for goes first.
"""

from functools import partial
from itertools import accumulate
from math import prod

import numpy as np

from collsyn.model.arrays import F64, I64
from collsyn.model.steps import Ports, Steps, never
from collsyn.model.threads import in_blocks
from collsyn.model.topology import Topology


def fill_mesh(topology: Topology, sizes: tuple[int, ...], chunks: int, lag: int, steps: Steps, ports: Ports) -> int:
    """Fill the table of an allgather on a mesh; returns how many steps it takes. O(sends), on all cores.

    Shapes: `steps` and `ports` [ranks, ranks * chunks], written in full. What comes in one step can go on `lag` later.
    """
    from collsyn.synth import grid_kernels

    strides = np.array([1, *accumulate(sizes[:-1], lambda a, b: a * b)], dtype=np.int64)
    shape = np.array(sizes, dtype=np.int64)
    classes = class_of_sum(sizes, chunks)
    port_of = _ports(shape, strides)
    own = np.arange(topology.num_ranks)
    for chunk in range(chunks):
        steps[own, own * chunks + chunk] = never(steps)
        ports[own, own * chunks + chunk] = 0
    end, k = 1, len(sizes)
    for stage in range(k):
        per_class = [prod(sizes[(first + i) % k] for i in range(stage)) * chunks for first in range(k)]
        room = np.array([max(per_class), sum(per_class)], dtype=np.int64)
        for dimension in range(k):
            task = partial(
                grid_kernels.fill_lines,
                *(steps, ports, port_of, shape, strides, classes, chunks, lag, stage, dimension, room),
            )
            end = max(end, *in_blocks(task, 2 * topology.num_ranks // sizes[dimension]))
    return end


def class_of_sum(sizes: tuple[int, ...], chunks: int) -> I64:
    """The class of a chunk by the sum of its rank's coordinates and its number there, in turns by the shares."""
    shares = class_shares(sizes)
    owed = np.zeros(len(sizes))
    result = []
    for _ in range(sum(sizes) - len(sizes) + chunks):
        owed += shares
        result.append(int(np.argmax(np.round(owed, 9))))
        owed[result[-1]] -= 1
    return np.array(result, dtype=np.int64)


def class_shares(sizes: tuple[int, ...]) -> F64:
    """The share of chunks for each class with which all links into a corner carry the same, as far as there is one.

    A chunk comes to the corner over the last dimension, in the order of its class, in which its rank is not at the
    corner's place: over dimension d with the part (1 - 1/size d) / (sizes of the dimensions behind d in that order).
    """
    k = len(sizes)
    load = np.zeros((k, k))
    for first in range(k):
        behind = 1.0
        for i in reversed(range(k)):
            d = (first + i) % k
            load[d, first] = behind * (1 - 1 / sizes[d])
            behind /= sizes[d]
    shares = np.maximum(np.linalg.lstsq(load, np.full(k, load.sum() / k / k), rcond=None)[0], 0.0)
    return np.asarray(shares / shares.sum(), dtype=np.float64)


def _ports(sizes: I64, strides: I64) -> I64:
    """Ports by which ways up (0) and down (1) each dimension enter a rank, shape [ranks, dimensions, 2].

    Neighbours are counted by number: those below, the farthest dimension first, then those above.
    """
    place = np.arange(int(np.prod(sizes)))[:, None] // strides % sizes
    below, above = place > 0, place < sizes - 1
    up = np.cumsum(below[:, ::-1], axis=1)[:, ::-1] - 1
    down = below.sum(axis=1, keepdims=True) + np.cumsum(above, axis=1) - 1
    return np.stack([up, down], axis=2).astype(np.int64)
