"""Direct exchange: whoever holds a chunk sends it straight to everyone who wants it, in rotation."""

from collections.abc import Iterator

from collsyn.model.collective import Collective
from collsyn.model.schedule import OWN, REDUCE, Schedule
from collsyn.model.topology import Topology
from collsyn.synth.baseline import Baseline, Message, Rounds, from_rounds, joined_pairs, without_hop
from collsyn.synth.problem import Problem


class Direct(Baseline):
    """Round s: the rank at place i sends to the one at place i + s, one message for all their chunks.

    With N ranks and m bytes for each pair: alpha + beta m where every pair has a link of its own; where each rank has
    one port to a switch, alpha + (N-1) beta m if alpha is pure delay and (N-1)(alpha + beta m) if it occupies the port.
    Reductions by reversal; allreduce as reduce-scatter and allgather. Of several holders of a chunk the first that has
    a hop to the receiver sends it.
    """

    name = "direct"
    builds = frozenset({"allgather", "scatter", "broadcast", "alltoall", "alltoallv", "sendrecv", "custom"})
    phases = ("reducescatter", "allgather")

    def obstacle(self, problem: Problem) -> str | None:
        """Needs a hop for every pair that has something to exchange."""
        if problem.reduces:
            return "makes no custom reduction"
        return without_hop(problem.topology, sorted(wanted_of(problem.collective(), problem.topology)))

    def build(self, problem: Problem) -> Schedule:
        """One round for each distance of places."""
        collective = problem.collective()
        wanted = wanted_of(collective, problem.topology)
        return from_rounds(problem, collective, [_rotation(wanted, group) for group in problem.members])


def wanted_of(collective: Collective, topology: Topology) -> dict[tuple[int, int], list[int]]:
    """For every (holder, receiver) the chunks to send; receivers that hold a chunk need none."""
    joined = joined_pairs(topology)
    found: dict[tuple[int, int], list[int]] = {}
    sets = collective.sets.tuples()
    for chunk, (pre, post) in enumerate(zip(collective.pre.tolist(), collective.post.tolist(), strict=True)):
        holders = sets[pre]
        for receiver in sets[post]:
            if receiver not in holders:
                holder = next((rank for rank in holders if (rank, receiver) in joined), holders[0])
                found.setdefault((holder, receiver), []).append(chunk)
    return found


def _rotation(wanted: dict[tuple[int, int], list[int]], group: tuple[int, ...]) -> Rounds:
    n = len(group)
    for distance in range(1, n):
        pairs = [(rank, group[(i + distance) % n]) for i, rank in enumerate(group)]
        yield [Message(wanted[pair], *pair) for pair in pairs if pair in wanted]


class OneShot(Baseline):
    """Allreduce of small buffers: every rank sends its whole input to every other, which adds them as they come.

    With N ranks and M bytes: alpha + beta M where every pair has a link of its own.
    """

    name = "one-shot"
    builds = frozenset({"allreduce"})

    def obstacle(self, problem: Problem) -> str | None:
        """Needs a hop for every pair of a process group."""
        pairs = [(a, b) for group in problem.members for a in group for b in group if a != b]
        return without_hop(problem.topology, pairs)

    def build(self, problem: Problem) -> Schedule:
        """All pairs in rotation; the inputs as given are what is sent."""
        collective = problem.collective()
        return from_rounds(problem, collective, [_everyone(collective, group) for group in problem.members])


def _everyone(collective: Collective, group: tuple[int, ...]) -> Iterator[list[Message]]:
    mine = [c for c in range(collective.num_chunks) if group[0] in collective.contributors(c)]
    n = len(group)
    for distance in range(1, n):
        yield [Message(mine, rank, group[(i + distance) % n], REDUCE, OWN) for i, rank in enumerate(group)]


DIRECT = Direct()
ONE_SHOT = OneShot()
