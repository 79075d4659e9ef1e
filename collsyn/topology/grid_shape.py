"""Tells whether a topology is a grid of equal links, by its links and not by its name."""

from math import prod

import numpy as np

from collsyn.model.topology import Topology


def mesh_sizes(topology: Topology) -> tuple[int, ...] | None:
    """Sizes of the dimensions, the first counting fastest, if the links are exactly those of a mesh; else None.

    Every two neighbours have one link each way; costs do not matter. O(E log E).
    """
    ranks = topology.num_ranks
    if topology.switch_names or topology.num_links == 0 or ranks < 2:
        return None
    src, dst = topology.src.astype(np.int64), topology.dst.astype(np.int64)
    strides = np.unique(np.abs(dst - src)).tolist()
    ends = [*strides[1:], ranks]
    if strides[0] != 1 or any(end % stride for stride, end in zip(strides, ends, strict=True)):
        return None
    sizes = tuple(end // stride for stride, end in zip(strides, ends, strict=True))
    expected = 2 * sum(ranks // size * (size - 1) for size in sizes)
    low, high = np.minimum(src, dst), np.maximum(src, dst)
    stride = high - low
    size = np.array(sizes)[np.searchsorted(strides, stride)]
    inside = low // stride % size < size - 1
    distinct = len(np.unique(src * ranks + dst))
    return sizes if inside.all() and distinct == topology.num_links == expected and prod(sizes) == ranks else None
