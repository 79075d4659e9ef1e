"""Maximum flow with whole-number capacities: compiled, exact up to 2^62, and going on from the flow that is there."""

import numpy as np
import numpy.typing as npt

from collsyn.bounds import flow_kernels
from collsyn.errors import SolverFailed
from collsyn.model.arrays import I64, Bools

# Sums of capacities up to this stay far from where integers of 64 bits end.
MAX_TOTAL = 1 << 61


class FlowNetwork:
    """Vertices 0 .. num_vertices - 1, arcs `tail[i]` to `head[i]`; parallel arcs are welcome.

    Every call of `push` adds to the flow that earlier calls left; `reset` takes it all back. `unlimited` is more than
    all capacities together. Raises SolverFailed where capacities add up to more than MAX_TOTAL.
    """

    def __init__(
        self, num_vertices: int, tail: npt.ArrayLike, head: npt.ArrayLike, capacity: npt.ArrayLike | None = None
    ) -> None:
        tails, heads = np.asarray(tail, dtype=np.int64), np.asarray(head, dtype=np.int64)
        self.num_vertices, self.num_arcs = num_vertices, len(tails)
        self._head = np.empty(2 * self.num_arcs, dtype=np.int64)
        self._head[::2], self._head[1::2] = heads, tails
        begins = self._head.reshape(-1, 2)[:, ::-1].reshape(-1)
        self._adj = np.argsort(begins, kind="stable").astype(np.int64)
        self._ptr = np.zeros(num_vertices + 1, dtype=np.int64)
        np.cumsum(np.bincount(begins, minlength=num_vertices), out=self._ptr[1:])
        self._residual = np.zeros(2 * self.num_arcs, dtype=np.int64)
        self.unlimited = MAX_TOTAL
        self.capacity: I64 = np.zeros(self.num_arcs, dtype=np.int64)
        if capacity is not None:
            self.set_capacities(capacity)

    def set_capacities(self, capacity: npt.ArrayLike) -> None:
        """New capacities of all arcs (at least 0; those above `unlimited` become it), without any flow."""
        exact: list[int] = np.asarray(capacity).tolist()
        finite = [c for c in exact if c < MAX_TOTAL]
        if sum(finite) >= MAX_TOTAL or min(finite, default=0) < 0:
            raise SolverFailed("maximum flow: capacities add up to more than 2^61")
        self.unlimited = sum(finite) + 1
        self.capacity = np.array([min(c, self.unlimited) for c in exact], dtype=np.int64)
        self.reset()

    def change(self, arcs: npt.NDArray[np.integer], capacity: int) -> None:
        """The same capacity (at most `unlimited`) for some arcs; takes all flow back."""
        self.capacity[arcs] = min(capacity, self.unlimited)
        self.reset()

    def reset(self) -> None:
        """Take all flow back."""
        self._residual[::2], self._residual[1::2] = self.capacity, 0

    def flow(self) -> I64:
        """What every arc carries."""
        return self.capacity - self._residual[::2]

    def push(self, source: int, sink: int, limit: int | None = None) -> int:
        """Push as much more as possible (at most `limit`) from source to sink; returns how much that was."""
        most = MAX_TOTAL if limit is None else limit
        return int(flow_kernels.augment(self._ptr, self._adj, self._head, self._residual, source, sink, most))

    def raise_capacity(self, arc: int, capacity: int) -> None:
        """Give an arc more capacity (up to `unlimited`) and keep the flow."""
        assert capacity >= self.capacity[arc]
        more = min(capacity, self.unlimited) - int(self.capacity[arc])
        self.capacity[arc] += more
        self._residual[2 * arc] += more

    def lower_capacity(self, arc: int, capacity: int, source: int, sink: int) -> int:
        """Give an arc less capacity; what it can no longer carry goes another way from source to sink or is taken back.

        Returns how much was taken back.
        """
        flow = int(self._residual[2 * arc + 1])
        self.capacity[arc] = capacity
        excess = max(flow - capacity, 0)
        self._residual[2 * arc], self._residual[2 * arc + 1] = capacity - flow + excess, flow - excess
        tail, head = int(self._head[2 * arc + 1]), int(self._head[2 * arc])
        lost = excess - self.push(tail, head, excess) if excess else 0
        if lost and tail != source:
            self.push(tail, source, lost)
        if lost and head != sink:
            self.push(sink, head, lost)
        return lost

    def sink_side(self, sink: int) -> Bools:
        """The smallest set of a minimum cut that holds the sink, once nothing more can be pushed there."""
        return np.asarray(flow_kernels.reaching(self._ptr, self._adj, self._head, self._residual, sink))

    def source_side(self, source: int) -> Bools:
        """The smallest set of a minimum cut that holds the source, once nothing more can be pushed from it."""
        return np.asarray(flow_kernels.reached(self._ptr, self._adj, self._head, self._residual, source))
