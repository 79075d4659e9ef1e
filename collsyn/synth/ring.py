"""Rings, one way round or both ways at once; broadcast and reduce in a pipeline along them."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest

from collsyn.model.collective import Collective
from collsyn.model.schedule import Schedule
from collsyn.synth.baseline import Baseline, Message, Rounds, chunks_of, from_rounds, quickest
from collsyn.synth.orders import ring_order
from collsyn.synth.problem import Problem

PIPELINE_CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Ring(Baseline):
    """Every rank passes on to its neighbour what it got last, all chunks of a shard in one message.

    On N ranks with shards of m bytes an allgather takes (N-1)(alpha + beta m) where each hop of the ring has links of
    its own, an allreduce twice that. A broadcast of C chunks of c bytes takes (N-1)(alpha + beta c) + (C-1)(overhead +
    beta c). With `both_ways` shards travel half the ring each way: floor(N/2) alpha + beta m (N-1)/2 for an even number
    of chunks, and a broadcast sends half of its chunks each way.
    """

    builds = frozenset({"allgather", "broadcast"})
    phases = ("reducescatter", "allgather")

    def __init__(self, name: str, both_ways: bool) -> None:
        self.name, self.both_ways = name, both_ways

    def obstacle(self, problem: Problem) -> str | None:
        """Needs a cycle of hops through all ranks of every process group."""
        if self.both_ways and min(map(len, problem.members)) < 3:
            return "needs at least 3 ranks in every process group to have two directions"
        if all(self._order(problem, group) is not None for group in problem.members):
            return None
        both = " with links both ways" if self.both_ways else ""
        return f"found no ring of hops{both} through all ranks"

    def build(self, problem: Problem) -> Schedule:
        """The rounds of every group's ring."""
        if problem.kind == "broadcast":
            return quickest(problem, PIPELINE_CHUNKS, self._build)
        # An even number of chunks lets both directions carry the same.
        return quickest(problem, (2,) if self.both_ways else (1,), self._build)

    def _build(self, problem: Problem) -> Schedule:
        collective = problem.collective()
        rounds = self._allgather if problem.kind == "allgather" else self._broadcast
        return from_rounds(problem, collective, [rounds(problem, collective, group) for group in problem.members])

    def _order(self, problem: Problem, group: tuple[int, ...]) -> tuple[int, ...] | None:
        shards = len(group) if problem.kind == "allgather" else 1
        return ring_order(problem.topology, group, problem.size_bytes / shards, self.both_ways)

    def _allgather(self, problem: Problem, collective: Collective, group: tuple[int, ...]) -> Rounds:
        order = self._order(problem, group)
        assert order is not None
        chunks, n = chunks_of(collective), len(order)
        if not self.both_ways:
            return [_passed_on(order, step, chunks) for step in range(n - 1)]
        halves = [{rank: own[part::2] for rank, own in chunks.items()} for part in (0, 1)]
        back = order[::-1]
        whole = [_passed_on(order, step, chunks) + _passed_on(back, step, chunks) for step in range((n - 1) // 2)]
        if n % 2 == 0:
            last = n // 2 - 1
            whole.append(_passed_on(order, last, halves[0]) + _passed_on(back, last, halves[1]))
        return whole

    def _broadcast(self, problem: Problem, collective: Collective, group: tuple[int, ...]) -> Rounds:
        order = self._order(problem, group)
        assert order is not None
        root = group[problem.root or 0]
        at = order.index(root)
        order = order[at:] + order[:at]
        chunks = chunks_of(collective)[root]
        if not self.both_ways:
            return list(_pipeline(order, chunks))
        back = (root, *order[:0:-1])
        nothing: list[Message] = []
        both = zip_longest(_pipeline(order, chunks[::2]), _pipeline(back, chunks[1::2]), fillvalue=nothing)
        return [forward + backward for forward, backward in both]


def _passed_on(order: Sequence[int], step: int, chunks: dict[int, list[int]]) -> list[Message]:
    """Every rank of the ring sends on the shard that began `step` places before it."""
    n = len(order)
    return [Message(chunks.get(order[i - step], []), order[i], order[(i + 1) % n]) for i in range(n)]


def _pipeline(order: Sequence[int], chunks: Sequence[int]) -> Iterator[list[Message]]:
    """Chunks one behind the other along a chain of ranks."""
    hops = list(pairwise(order)) if chunks else []
    for time in range(len(chunks) + len(hops) - 1):
        yield [Message([chunks[time - i]], *hop) for i, hop in enumerate(hops) if 0 <= time - i < len(chunks)]


RING = Ring("ring", both_ways=False)
TWO_WAY = Ring("two-way-ring", both_ways=True)
