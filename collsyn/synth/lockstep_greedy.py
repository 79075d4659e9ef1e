"""Allgather in lockstep on any equal links: the greedy matching of TACOS, first come first served, on all cores."""

from functools import partial

import numpy as np

from collsyn.errors import Infeasible
from collsyn.model.steps import Ports, Steps, far_ends, neighbours, never
from collsyn.model.threads import Workers
from collsyn.model.topology import Topology


def fill_greedily(topology: Topology, phase: str, chunks: int, lag: int, steps: Steps, ports: Ports) -> int:
    """Fill the table of an allgather; returns how many steps it takes. O(links x chunks of all ranks), on all cores.

    Shapes: `steps` and `ports` [ranks, ranks * chunks], written in full; `beside_bytes` are taken beside them. Raises
    Infeasible where some rank is out of reach, and where the steps outgrow their type.
    """
    from collsyn.synth.lockstep_kernels import advance

    ranks, total = steps.shape
    near = neighbours(topology, phase)
    sender = far_ends(topology, phase)[near.data].astype(np.int64)
    order = np.zeros((ranks, total), dtype=_number(total))
    own = np.arange(total).reshape(ranks, chunks)
    order[:, :chunks] = own
    held = np.zeros((ranks, (total + 63) // 64), dtype=np.uint64)
    owner = np.arange(ranks)
    for chunk in own.T:
        held[owner, chunk // 64] |= np.uint64(1) << (chunk % 64).astype(np.uint64)
        steps[owner, chunk] = never(steps)
        ports[owner, chunk] = 0
    # What was there at the end of each of the last steps: a step sees what came `lag` steps before.
    counts = np.full((lag + 1, ranks), chunks, dtype=np.int64)
    seen = np.zeros(len(sender), dtype=np.int64)
    left, step, idle = ranks * (total - chunks), 0, 0
    with Workers() as workers:
        while left:
            count, visible = counts[step % (lag + 1)], counts[(step + 1) % (lag + 1)]
            count[:] = counts[(step - 1) % (lag + 1)]
            work = partial(advance, *(steps, ports, order, held, count, visible, seen, near.ptr, sender, step))
            moved = sum(workers.blocks(work, ranks, 1))
            left -= moved
            idle = 0 if moved else idle + 1
            step += 1
            if idle > lag or step >= never(steps):
                where = "some rank is out of reach" if idle > lag else "there are too many steps"
                raise Infeasible(f"lockstep: {where} on topology {topology.name}")
    return step


def beside_bytes(shape: tuple[int, int]) -> int:
    """Memory that the matching takes beside a table of that shape: orders of arrival and a bit for each entry."""
    ranks, total = shape
    return ranks * total * np.dtype(_number(total)).itemsize + ranks * total // 8


def _number(total: int) -> type[np.uint16] | type[np.uint32]:
    return np.uint16 if total < 1 << 16 else np.uint32
