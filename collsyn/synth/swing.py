"""Swing on rings and tori: short cuts instead of powers of two, all links of a rank at once."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from collsyn.model.collective import Collective
from collsyn.model.schedule import COPY, OWN, REDUCE, VALUE, Schedule
from collsyn.synth.baseline import MAX_ROWS, Baseline, Message, Rounds, affordable, chunks_of, from_rounds, quickest
from collsyn.synth.problem import Problem
from collsyn.synth.shortcuts import Grid, Port, Way, shortcut, spread, torus_sizes

# A slot is a signed byte.
MAX_SLOT = 127


def torus_of(problem: Problem, group: tuple[int, ...]) -> Grid | None:
    """The torus that the hops between the ranks of a process group are, or None."""
    sizes = torus_sizes(problem.topology, group)
    return None if sizes is None else Grid(group, sizes, stepwise=True)


def gathered(problem: Problem, grids: Sequence[Grid], ports: Callable[[Grid], list[Port]]) -> Schedule:
    """An allgather along short cuts, the furthest partners first (when there is little to send).

    Chunks are dealt out to the ports of a grid, and each message to as many lanes as a port has chunks a rank.
    """
    collective = problem.collective()
    own = chunks_of(collective)
    sequences = []
    for grid in grids:
        used = ports(grid)
        everyone = frozenset(grid.members)
        for number, port in enumerate(used):
            held = {rank: [c for c in own.get(rank, []) if c % len(used) == number] for rank in grid.members}
            wanted = {chunk: everyone for chunks in held.values() for chunk in chunks}
            ways = list(grid.partners(port))[::-1]
            lanes = max(1, collective.chunks_per_rank // len(used))
            sequences.append(spread(ways, held, wanted, lanes)[0])
    return from_rounds(problem, collective, sequences)


class Swing(Baseline):
    """Reduce-scatter, allgather and both as allreduce, with each link of a rank carrying its own part of the data.

    With a power of two of N ranks log2 N rounds; partners at distance 1, 1, 3, 5, ... along a dimension, the dimensions
    in turn, half of the parts mirrored (De Sensi et al., NSDI 2024). There is no way through a rank in our model: what
    goes further than a neighbour is stored and sent on, and those on the way keep it.
    """

    name = "swing"
    builds = frozenset({"allgather"})
    phases = ("reducescatter", "allgather")

    def obstacle(self, problem: Problem) -> str | None:
        """Needs a torus of even sizes."""
        return _no_torus(problem) or next(filter(None, map(_odd, _tori(problem))), None)

    def build(self, problem: Problem) -> Schedule:
        """The quickest of some chunk counts."""
        tori = _tori(problem)
        ports = max(len(torus.ports()) for torus in tori)
        rows = sum(len(group) ** 2 for group in problem.members)
        ladder = affordable(sorted({1, ports, 2 * ports, 4 * ports, 8 * ports}), rows)
        return quickest(problem, ladder, partial(gathered, grids=tori, ports=Grid.ports))


class SwingLatency(Baseline):
    """Allreduce of small buffers: partners exchange their partial sums of all of it and add them.

    log2 N rounds, partners as in Swing, whose latency-optimal form this is (De Sensi et al., NSDI 2024). A partial sum
    has a slot of its own, on ranks that only pass it on as well.
    """

    name = "swing-latency"
    builds = frozenset({"allreduce"})

    def obstacle(self, problem: Problem) -> str | None:
        """Needs a torus whose sizes are powers of two."""
        reason = _no_torus(problem)
        if reason is not None:
            return reason
        sizes = [size for torus in _tori(problem) for size in torus.sizes]
        odd = next((size for size in sizes if size & (size - 1)), None)
        if odd is not None:
            return f"needs a power of two of ranks along every dimension, not {odd}"
        too_long = next((torus for torus in _tori(problem) if _slots(torus) > MAX_SLOT), None)
        return None if too_long is None else f"needs fewer ranks along a dimension than {max(too_long.sizes)}"

    def build(self, problem: Problem) -> Schedule:
        """All data dealt out to the ports or, while that is cheap to try, through one; whichever is quicker."""
        tori = _tori(problem)
        ports = max(len(torus.ports()) for torus in tori)
        smallest = min(map(len, problem.members))
        dealt = quickest(problem, (-(-ports // smallest),), partial(_exchanged, tori=tori, all_ports=True))
        if dealt.num_sends > MAX_ROWS:
            return dealt
        whole = quickest(problem, (1,), partial(_exchanged, tori=tori, all_ports=False))
        return min(whole, dealt, key=lambda schedule: schedule.finish_s)


def _tori(problem: Problem) -> list[Grid]:
    return [torus for group in problem.members if (torus := torus_of(problem, group)) is not None]


def _no_torus(problem: Problem) -> str | None:
    if len(_tori(problem)) == len(problem.members):
        return None
    return "needs ranks that are joined as a ring or torus (numbered as in the preset), each process group by itself"


def _odd(torus: Grid) -> str | None:
    odd = next((size for size in torus.sizes if size % 2), None)
    return None if odd is None else f"needs an even number of ranks along every dimension, not {odd}"


def _rounds_of(torus: Grid) -> int:
    return sum((size - 1).bit_length() for size in torus.sizes)


def _slots(torus: Grid) -> int:
    """The highest slot that an exchange of partial sums needs: one a round, and one a way that passes a rank."""
    longest = max(((size - 1).bit_length() for size in torus.sizes), default=1)
    return _rounds_of(torus) + abs(shortcut(longest - 1))


def _exchanged(problem: Problem, tori: Sequence[Grid], all_ports: bool) -> Schedule:
    collective = problem.collective()
    sequences: list[Rounds] = []
    for torus in tori:
        mine = [c for c in range(collective.num_chunks) if torus.members[0] in collective.contributors(c)]
        ports = torus.ports()[: None if all_ports else 1]
        for number, port in enumerate(ports):
            chunks = mine[number :: len(ports)]
            sequences.append(list(_sums(collective, chunks, list(torus.partners(port)))) if chunks else [])
    return from_rounds(problem, collective, sequences)


def _sums(collective: Collective, chunks: Sequence[int], rounds: Sequence[Sequence[Way]]) -> Iterator[list[Message]]:
    """Round k reads slot k - 1 (at first the own input) and makes slot k, the last one being the result.

    The slots above are for what passes: each way that leads through a rank in a round has one there.
    """
    slots = [OWN, *range(1, len(rounds)), VALUE]
    alone = len(rounds) == 1
    for ways, before, after in zip(rounds, slots, slots[1:], strict=False):
        passing: dict[int, int] = {}
        slot_at: list[int] = [before] * len(ways)
        for hop in range(max(len(way) for way in ways) - 1):
            step = []
            for i, way in enumerate(ways):
                if hop >= len(way) - 1:
                    continue
                src, dst, last = way[hop], way[hop + 1], hop == len(way) - 2
                source = slot_at[i]
                if not last:
                    slot_at[i] = passing[dst] = passing.get(dst, len(rounds) - 1) + 1
                # The result's slot begins as the own input: with one round the partner's adds to it, else it is
                # replaced.
                op = REDUCE if alone else COPY
                step.append(Message(chunks, src, dst, op, source, after if last else slot_at[i]))
            yield step
        if not alone:
            yield [Message(chunks, way[0], way[0], REDUCE, before, after) for way in ways]


SWING = Swing()
SWING_LATENCY = SwingLatency()
