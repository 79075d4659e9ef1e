"""Stage two: the order in which chunks take their links along given trees, and which share messages at first."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64, I64, Rows
from collsyn.model.schedule import Schedule
from collsyn.synth.milp_case import Case
from collsyn.synth.milp_grow import Trees
from collsyn.synth.timing import in_order

# How much the way ahead is disturbed in further trials, as a share of it.
DISTURBANCE = 0.3


@dataclass(frozen=True, eq=False)
class Sends:
    """Rows in the order in which they take their links: `message` numbers those that travel together, which stand
    side by side. They stand for all their images; hops are those that stand for their orbits."""

    chunk: I64
    hop: I64
    message: I64

    def __len__(self) -> int:
        return len(self.chunk)

    @classmethod
    def of(cls, case: Case, chunk: I64, hop: I64, message: I64) -> "Sends":
        """Sends over the hops that stand for their orbits."""
        return cls(*case.canonical(chunk, hop), message)

    def schedule(self, case: Case) -> Schedule:
        """The schedule, with all images of the sends, in which every message leaves as early as this order allows."""
        table, problem, images = case.table, case.problem, len(case.group)
        chunk, hop = case.chunk_image[:, self.chunk].T.reshape(-1), case.hop_image[:, self.hop].T.reshape(-1)
        message = (self.message[:, None] * images + np.arange(images)).reshape(-1)
        # Images of a message stand one behind the other, and the rows of each side by side.
        order = np.argsort(message, kind="stable")
        columns: dict[str, npt.ArrayLike] = {
            "chunk": chunk[order],
            "src": table.src[hop[order]],
            "dst": table.dst[hop[order]],
            "route": hop[order],
            "batch": message[order],
        }
        return in_order(case.collective, problem.topology, problem.size_bytes, table.routes, columns)


class Dispatch:
    """List scheduling of some trees, by any priorities."""

    def __init__(self, case: Case, trees: Trees) -> None:
        self.case, self.trees = case, trees
        self.children = Rows.grouped(trees.parent + 1, len(trees) + 1)
        self.length = case.chunk_bytes[trees.chunk]
        self.hop = case.canonical(trees.chunk, trees.hop)[1]

    @cached_property
    def ahead_s(self) -> F64:
        """Time from the start of every row to the last arrival below it, if no link is busy."""
        seconds = self.case.seconds[self.trees.chunk, self.trees.hop]
        ahead = seconds.copy()
        for row in range(len(self.trees) - 1, -1, -1):
            parent = self.trees.parent[row]
            if parent >= 0:
                ahead[parent] = max(ahead[parent], seconds[parent] + ahead[row])
        return ahead

    def sends(self, priority: F64, most: int) -> tuple[Sends, float]:
        """Sends by falling priority, up to `most` in a message, and when the last one would arrive."""
        from collsyn.synth.milp_order_kernels import dispatched

        table, trees = self.case.table, self.trees
        order, message, finish_s = dispatched(
            self.hop,
            trees.parent,
            self.length,
            priority,
            self.children.ptr[1:],
            self.children.data.astype(np.int64),
            table.alpha_s,
            table.overhead_s,
            table.beta_s_per_byte,
            self.case.routes.ptr,
            self.case.routes.data.astype(np.int64),
            self.case.before_s,
            self.case.lanes,
            most,
        )
        return Sends.of(self.case, trees.chunk[order], trees.hop[order], message), float(finish_s)

    def best(self, sizes: Sequence[int], trials: int, random: np.random.Generator) -> Sends:
        """The quickest of orders by the longest way ahead and of `trials` disturbed ones, for each size of messages."""
        ahead = self.ahead_s + self._own_first()
        found, best_s = None, np.inf
        for most in sizes:
            priority = ahead
            kept, kept_s = priority, np.inf
            for trial in range(trials + 1):
                sends, finish_s = self.sends(priority, most)
                if finish_s < kept_s * (1 - 1e-9):
                    kept, kept_s = priority, finish_s
                if finish_s < best_s * (1 - 1e-9):
                    found, best_s = sends, finish_s
                priority = (
                    kept * (1 + DISTURBANCE * (random.random(len(kept)) - 0.5))
                    if trial % 4
                    else ahead * (1 + 2 * DISTURBANCE * (random.random(len(ahead)) - 0.5))
                )
        assert found is not None
        return found

    def _own_first(self) -> F64:
        """More than any way ahead for a rank's own data, where a sketch wants that to leave first."""
        sketch = self.case.sketch
        if sketch is None or not sketch.own_first:
            return np.zeros(len(self.trees))
        return np.where(self.trees.parent < 0, float(self.ahead_s.max(initial=0.0)), 0.0)
