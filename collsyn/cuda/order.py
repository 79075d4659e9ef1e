"""Where the threads of a channel must meet between two instructions, since one touches what the other wrote."""

import numpy as np

from collsyn.check.execute import operands
from collsyn.model.arrays import I64, Bools
from collsyn.model.bind import BoundPlan
from collsyn.model.plan import Op

# (memory, first byte, byte behind the last one, whether it writes)
_Access = tuple[int, int, int, bool]
# So many accesses are compared with at most; then the threads meet anyway.
_WINDOW = 64


def barriers(bound: BoundPlan, rows: I64, ends: I64, has_groups: bool, asks: Bools | None = None) -> Bools:
    """Instructions (of `rows`, channel k from `ends[k]` to `ends[k + 1]`) before which a channel's threads must meet.

    Threads share out every move in their own way, so an instruction that touches what an earlier one of its channel
    wrote, or writes what that one read, must find all threads done with it. Signals and waits are such meetings of the
    threads of one block, but with `has_groups` not of several blocks, and so is what `asks` something of the proxy.
    Linear in the instructions.
    """
    accesses = _accesses(bound)
    op = bound.columns["op"].tolist()
    meets = frozenset() if has_groups else frozenset({int(Op.SIGNAL), int(Op.WAIT)})
    found = np.zeros(len(rows), dtype=np.bool_)
    for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        window: list[_Access] = []
        for at in range(first, last):
            row = int(rows[at])
            if op[row] in meets or (asks is not None and asks[at]):
                window = []
                continue
            mine = accesses[row]
            if mine and (len(window) > _WINDOW or any(_conflict(a, b) for a in mine for b in window)):
                found[at] = True
                window = []
            window += mine
    return found


def _conflict(a: _Access, b: _Access) -> bool:
    return a[0] == b[0] and (a[3] or b[3]) and a[1] < b[2] and b[1] < a[2]


def _accesses(bound: BoundPlan) -> list[list[_Access]]:
    """Ranges that every instruction touches; in place, input and output are one memory."""
    found: list[list[_Access]] = [[] for _ in bound.columns["op"]]
    length = bound.columns["length"].tolist()
    for which, used, owners in operands(bound):
        buffers, offsets = bound.columns[f"{which}_buffer"].tolist(), bound.columns[f"{which}_offset"].tolist()
        ranks = owners.tolist()
        for row in np.flatnonzero(used).tolist():
            buffer, first, alias = buffers[row], offsets[row], bound.alias[ranks[row]]
            if alias is not None and buffer == alias[0]:
                buffer, first = alias[1], first + alias[2]
            if length[row]:
                found[row].append((4 * ranks[row] + buffer, first, first + length[row], which == "dst"))
    return found
