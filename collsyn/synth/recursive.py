"""Recursive doubling and halving: powers of two, partners whose numbers differ in one bit."""

from collsyn.model.collective import Collective
from collsyn.model.schedule import COPY, OWN, REDUCE, VALUE, Schedule
from collsyn.synth.baseline import Baseline, Message, Rounds, chunks_of, from_rounds, without_hop
from collsyn.synth.problem import Problem


def _obstacle(problem: Problem) -> str | None:
    sizes = {len(group) for group in problem.members}
    odd = next((size for size in sorted(sizes) if size & (size - 1)), None)
    if odd is not None:
        return f"needs a power of two of ranks, not {odd}"
    pairs = [
        (group[i], group[i ^ (1 << bit)])
        for group in problem.members
        for bit in range(_bits(group))
        for i in range(len(group))
    ]
    return without_hop(problem.topology, pairs)


def _bits(group: tuple[int, ...]) -> int:
    return len(group).bit_length() - 1


class Recursive(Baseline):
    """Partners exchange all that they have, which doubles each time (allgather); halving is its reversal.

    With N ranks, shards of m bytes and a link or a switch port for every partner: allgather and reduce-scatter
    log2 N alpha + (N-1) beta m, allreduce (halving, then doubling) twice that. Of the two orders of the bits the
    quicker one is kept (high bits first sends little between far ranks).
    """

    name = "recursive"
    builds = frozenset({"allgather"})
    phases = ("reducescatter", "allgather")

    def obstacle(self, problem: Problem) -> str | None:
        """Needs powers of two and a hop between all partners."""
        return _obstacle(problem)

    def build(self, problem: Problem) -> Schedule:
        """Both orders of the bits, the first kept unless the second is quicker."""
        collective = problem.collective()
        schedules = [
            from_rounds(problem, collective, [_doubling(collective, group, low) for group in problem.members])
            for low in (True, False)
        ]
        return min(schedules, key=lambda schedule: schedule.finish_s * (1 + 1e-9 * (schedule is schedules[1])))


def _doubling(collective: Collective, group: tuple[int, ...], low_bits_first: bool) -> Rounds:
    chunks, bits = chunks_of(collective), range(_bits(group))
    has = [list(chunks.get(rank, [])) for rank in group]
    for bit in bits if low_bits_first else reversed(bits):
        yield [Message(has[i], rank, group[i ^ (1 << bit)]) for i, rank in enumerate(group)]
        has = [sorted(has[i] + has[i ^ (1 << bit)]) for i in range(len(group))]


class Doubling(Baseline):
    """Allreduce of small buffers: partners exchange their partial sums of the whole buffer and add them.

    With N ranks and M bytes: log2 N (alpha + beta M). A partial sum has a slot of its own for each round, so that what
    a partner still reads is never overwritten.
    """

    name = "doubling"
    builds = frozenset({"allreduce"})

    def obstacle(self, problem: Problem) -> str | None:
        """Needs powers of two and a hop between all partners."""
        return _obstacle(problem)

    def build(self, problem: Problem) -> Schedule:
        """One exchange a bit."""
        collective = problem.collective()
        return from_rounds(problem, collective, [_exchanges(collective, group) for group in problem.members])


def _exchanges(collective: Collective, group: tuple[int, ...]) -> Rounds:
    """Round k reads slot k - 1 (at first the own input) and makes slot k, the last one being the result."""
    mine = [c for c in range(collective.num_chunks) if group[0] in collective.contributors(c)]
    bits = _bits(group)
    slots = [OWN, *range(1, bits), VALUE]
    for bit, before, after in zip(range(bits), slots, slots[1:], strict=False):
        # The result's slot begins as the own input: with one round the partner's adds to it, else it is replaced.
        op = REDUCE if bits == 1 else COPY
        yield [Message(mine, rank, group[i ^ (1 << bit)], op, before, after) for i, rank in enumerate(group)]
        if bits > 1:
            yield [Message(mine, rank, rank, REDUCE, before, after) for rank in group]


RECURSIVE = Recursive()
DOUBLING = Doubling()
