"""Compiled loops that pipeline the trees of a mesh through its lines, one link behind the other."""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

I64 = npt.NDArray[np.int64]
Table = npt.NDArray[Any]


@njit(cache=True)
def _arrived(
    steps: Table,
    ports: Table,
    rank: int,
    stage: int,
    only: int,
    sizes: I64,
    strides: I64,
    classes: I64,
    chunks: int,
    chunk: I64,
    step: I64,
    port: I64,
) -> int:
    """List the chunks that earlier stages bring to a rank (of class `only`, or of all where it is -1); how many.

    Class k takes the dimensions in the order k, k + 1, ...: before `stage` it has taken the first `stage` of them, so
    that its chunks here come from ranks that differ in those alone. What starts here has step -1 and port -1.
    """
    k, found = len(sizes), 0
    never = -1
    own = 0
    for d in range(k):
        own += rank // strides[d] % sizes[d]
    for first in range(k):
        if only >= 0 and first != only:
            continue
        count = 1
        for i in range(stage):
            count *= sizes[(first + i) % k]
        for number in range(count):
            source, total, rest = rank, own, number
            for i in range(stage):
                d = (first + i) % k
                place, here = rest % sizes[d], rank // strides[d] % sizes[d]
                rest //= sizes[d]
                source += (place - here) * strides[d]
                total += place - here
            for j in range(chunks):
                if classes[total + j] == first:
                    chunk[found] = source * chunks + j
                    at_home = source == rank
                    step[found] = never if at_home else np.int64(steps[rank, source * chunks + j])
                    port[found] = never if at_home else np.int64(ports[rank, source * chunks + j])
                    found += 1
    return found


@njit(cache=True)
def _fill_line(
    steps: Table,
    ports: Table,
    port_of: I64,
    sizes: I64,
    strides: I64,
    classes: I64,
    chunks: int,
    lag: int,
    stage: int,
    dimension: int,
    room: I64,
    base: int,
    way: int,
) -> int:
    """`fill_lines` for the line that begins at rank `base`, in one direction (0: up)."""
    size, stride = sizes[dimension], strides[dimension]
    only = (dimension - stage) % len(sizes)
    most, never = room[0] * size + 1, np.iinfo(np.int64).max
    passed, when = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    next_passed, next_when = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    chunk = np.empty(room[1], dtype=np.int64)
    step, port = np.empty(room[1], dtype=np.int64), np.empty(room[1], dtype=np.int64)
    busy, order = np.empty(room[1] + 1, dtype=np.int64), np.empty(room[1], dtype=np.int64)
    coming, end = 0, 0
    for p in range(size - 1):
        here = base + (p if way == 0 else size - 1 - p) * stride
        there = here + (stride if way == 0 else -stride)
        enters = port_of[there, dimension, way]
        found = _arrived(steps, ports, there, stage, -1, sizes, strides, classes, chunks, chunk, step, port)
        used = 0
        for i in range(found):
            if port[i] == enters:
                busy[used] = step[i]
                used += 1
        busy[:used].sort()
        busy[used] = never
        own = _arrived(steps, ports, here, stage, only, sizes, strides, classes, chunks, chunk, step, port)
        # Sorted by step and place in one number, so that one kind of sort is compiled.
        for i in range(own):
            order[i] = (step[i] + 1) * room[1] + i
        order[:own].sort()
        i, j, free, taken, out = 0, 0, 0, 0, 0
        row, port_row = steps[there], ports[there]
        while i < coming or j < own:
            ready = when[i] + lag if i < coming else never
            local = never
            if j < own:
                local = step[order[j] % room[1]]
                local = local + lag if local >= 0 else 0
            if local <= ready:
                at, moved = local, chunk[order[j] % room[1]]
                j += 1
            else:
                at, moved = ready, passed[i]
                i += 1
            at = max(at, free)
            while busy[taken] <= at:
                if busy[taken] == at:
                    at += 1
                taken += 1
            free = at + 1
            row[moved] = at
            port_row[moved] = enters
            next_passed[out] = moved
            next_when[out] = at
            out += 1
        end = max(end, free)
        coming = out
        passed, next_passed = next_passed, passed
        when, next_when = next_when, when
    return end


@njit(cache=True, nogil=True)
def fill_lines(
    steps: Table,
    ports: Table,
    port_of: I64,
    sizes: I64,
    strides: I64,
    classes: I64,
    chunks: int,
    lag: int,
    stage: int,
    dimension: int,
    room: I64,
    begin: int,
    stop: int,
) -> int:
    """Spread one class along some lines of a dimension; returns the first step that is not used.

    Tasks `begin` .. `stop` - 1 are numbered 2 x line + way (0: up, 1: down); different tasks touch different entries.

    Shapes: `steps` and `ports` [ranks, ranks * chunks], `port_of` [ranks, dimensions, 2] (by which port of a rank the
    ways up and down a dimension enter it), `classes` [coordinate sums + chunks]. `room` are the chunks that a rank gets
    before this stage, of one class and of all. Each link takes what comes first of what its source has, and no step
    that an earlier stage uses. O(sends).
    """
    size, stride = sizes[dimension], strides[dimension]
    end = 0
    for task in range(begin, stop):
        line = task // 2
        base = line // stride * (stride * size) + line % stride
        way = task % 2
        last = _fill_line(
            steps, ports, port_of, sizes, strides, classes, chunks, lag, stage, dimension, room, base, way
        )
        end = max(end, last)
    return end
