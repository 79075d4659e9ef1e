"""Direct exchange with all messages beside each other, so that the latencies in which they hold links overlap."""

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64, I64, Bools
from collsyn.model.collective import Collective
from collsyn.model.schedule import Schedule
from collsyn.synth.baseline import hops_of
from collsyn.synth.direct import Direct, wanted_of
from collsyn.synth.problem import Problem
from collsyn.synth.timing import in_order
from collsyn.topology.hops import Hops


class AtOnce(Direct):
    """Every rank sends all that others want of it at once, each message at the rate that its bytes need.

    With T the time of the bytes on the busiest link, a message of n bytes goes at n / T: no link bears more than it
    can, and all are done at the same time. So N ranks with one port to a switch and m bytes for each pair take alpha +
    (N-1) beta m even if alpha occupies the port, which messages one after the other do N-1 times.
    """

    name = "at-once"

    def obstacle(self, problem: Problem) -> str | None:
        """Needs a hop for every pair with something to exchange, and a link that is held by several messages."""
        reason = super().obstacle(problem)
        if reason is not None:
            return reason
        table = hops_of(problem.topology)
        _, hop, _ = _messages(problem, problem.collective(), table)
        held = table.routes.data[np.repeat(table.overhead_s > 0, table.routes.lengths()) & _entries(table, hop)]
        counts = np.zeros(problem.topology.num_links, dtype=np.int64)
        for route in (table.routes[h] for h in hop.tolist()):
            counts[route] += 1
        if len(held) and (counts[held] > 1).any():
            return None
        return "has nothing to overlap, for no link is held by the latencies of several messages (direct)"

    def build(self, problem: Problem) -> Schedule:
        """All messages of all groups at once."""
        collective, table = problem.collective(), hops_of(problem.topology)
        chunks, hop, num_bytes = _messages(problem, collective, table)
        load = np.zeros(problem.topology.num_links)
        for route, amount in zip((table.routes[h] for h in hop.tolist()), num_bytes.tolist(), strict=True):
            load[route] += amount
        busy_s = float((load * problem.topology.beta_s_per_byte).max(initial=0.0))
        lengths = [len(each) for each in chunks]
        row_hop = np.repeat(hop, lengths)
        columns: dict[str, npt.ArrayLike] = {
            "chunk": np.concatenate(chunks) if chunks else np.zeros(0, dtype=np.int64),
            "src": table.src[row_hop],
            "dst": table.dst[row_hop],
            "route": row_hop,
            "rate": np.repeat(num_bytes / busy_s if busy_s else num_bytes, lengths),
            "batch": np.repeat(np.arange(len(chunks)), lengths),
        }
        return in_order(collective, problem.topology, problem.size_bytes, table.routes, columns)


def _messages(problem: Problem, collective: Collective, table: Hops) -> tuple[list[I64], I64, F64]:
    """Chunks, hop and bytes of the message of every pair that has something to exchange."""
    length = collective.chunk_bytes(problem.size_bytes)
    wanted = sorted(wanted_of(collective, problem.topology).items())
    chunks = [np.array(each, dtype=np.int64) for _, each in wanted]
    num_bytes = np.array([length[each].sum() for each in chunks], dtype=np.float64)
    best = {amount: table.best(amount) for amount in np.unique(num_bytes).tolist()}
    hop = [best[amount][pair] for (pair, _), amount in zip(wanted, num_bytes.tolist(), strict=True)]
    return chunks, np.array(hop, dtype=np.int64), num_bytes


def _entries(table: Hops, hop: I64) -> Bools:
    """Which entries of the table of routes are of these hops."""
    used = np.zeros(len(table), dtype=np.bool_)
    used[hop] = True
    return np.repeat(used, table.routes.lengths())


AT_ONCE = AtOnce()
