"""Binomial trees: broadcast and scatter in ceil(log2 N) rounds; reduce and gather are their reversals."""

from collsyn.model.collective import Collective
from collsyn.model.schedule import Schedule
from collsyn.synth.baseline import Baseline, Message, Rounds, from_rounds, without_hop
from collsyn.synth.problem import Problem


class Binomial(Baseline):
    """In each round every rank that has the data sends it (a scatter: the further half) to one that has not.

    With N ranks, M bytes in all and hops that do not share links: broadcast and reduce ceil(log2 N)(alpha + beta M);
    scatter and gather, for a power of two, log2 N alpha + (N-1)/N beta M; allreduce as reduce, then broadcast.
    """

    name = "binomial"
    builds = frozenset({"broadcast", "scatter"})
    phases = ("reduce", "broadcast")

    def obstacle(self, problem: Problem) -> str | None:
        """Needs a hop along every edge of the tree."""
        edges = [
            (parent, child)
            for group in problem.members
            for level in _levels(_by_place(group, problem.root or 0))
            for parent, child, _ in level
        ]
        return without_hop(problem.topology, edges)

    def build(self, problem: Problem) -> Schedule:
        """The rounds of every group's tree."""
        collective = problem.collective()
        rounds = [_rounds(collective, _by_place(group, problem.root or 0)) for group in problem.members]
        return from_rounds(problem, collective, rounds)


def _by_place(group: tuple[int, ...], root: int) -> tuple[int, ...]:
    """The ranks by their place in the tree, the root at 0.

    For powers of two places and ranks differ by an exclusive or, which keeps a hypercube's links; else by rotation.
    """
    n = len(group)
    if n & (n - 1):
        return group[root:] + group[:root]
    return tuple(group[place ^ root] for place in range(n))


def _levels(order: tuple[int, ...]) -> list[list[tuple[int, int, tuple[int, ...]]]]:
    """Per round (parent, child, the child's whole subtree): place p sends to p + 2^k, k falling."""
    n = len(order)
    reach = [1 << bit for bit in reversed(range((n - 1).bit_length()))]
    return [
        [
            (order[place], order[place + step], order[place + step : place + 2 * step])
            for place in range(0, n, 2 * step)
            if place + step < n
        ]
        for step in reach
    ]


def _rounds(collective: Collective, order: tuple[int, ...]) -> Rounds:
    root, sets = order[0], collective.sets.tuples()
    mine = [c for c in range(collective.num_chunks) if sets[int(collective.pre[c])] == (root,)]
    receivers = {chunk: set(sets[int(collective.post[chunk])]) for chunk in mine}
    for level in _levels(order):
        yield [
            Message([chunk for chunk in mine if not receivers[chunk].isdisjoint(subtree)], parent, child)
            for parent, child, subtree in level
        ]


BINOMIAL = Binomial()
