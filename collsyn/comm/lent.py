"""Plans for large calls that leave users' arrays where they are: ranks meet in scratch memory only.

A plan of the usual kind writes into the other ranks' inputs and outputs, which must then be memory that all share, and
users' arrays are copied into it and out of it. Here a rank touches input and output alone, so that both can be lent by
whoever calls; what others need is put into scratch. For memory, the time of large calls, that is the least there can
be on one machine: an allreduce reads and writes each byte about half as often as a ring that is fed by copies.
"""

from collections.abc import Callable

from collsyn.errors import InputError
from collsyn.model.collective import Collective, make_collective
from collsyn.model.plan import Buffer, Op, Plan

_Row = dict[str, int]
# What a rank tells a peer, in order: I am here; your part is in your scratch; mine is ready in mine. Behind the last of
# these comes: I have taken yours.
_HERE, _THERE, _READY = 1, 2, 3


class _Rank:
    """Instructions of one rank, in one channel; flag p of a rank is raised by rank p."""

    def __init__(self, collective: Collective, rank: int) -> None:
        self.collective, self.rank = collective, rank
        self.others = [(rank + step) % collective.num_ranks for step in range(1, collective.num_ranks)]
        self.rows: list[_Row] = []
        self.scratch: list[tuple[int, int, int]] = []

    def tell(self, peer: int, value: int) -> None:
        """Raise this rank's flag at a peer."""
        self.rows.append({"op": Op.SIGNAL, "peer": peer, "flag": self.rank, "value": value})

    def hear(self, peer: int, value: int) -> None:
        """Wait for a peer's flag."""
        self.rows.append({"op": Op.WAIT, "peer": peer, "flag": peer, "value": value})

    def move(self, op: Op, dst: tuple[int, int], src: tuple[int, int], chunk: int, **more: int) -> None:
        """A copy in some direction of a chunk; places are (buffer, offset in units)."""
        row = {"op": op, "dst_buffer": dst[0], "dst_offset": dst[1], "src_buffer": src[0], "src_offset": src[1]}
        self.rows.append({**row, "length": int(self.collective.units[chunk]), **more})

    def reduce(self, dst: tuple[int, int], src: tuple[int, int], other: tuple[int, int], chunk: int) -> None:
        """Combine two places into a third."""
        self.move(Op.REDUCE, dst, src, chunk, src2_buffer=other[0], src2_offset=other[1])

    def input(self, chunk: int) -> tuple[int, int]:
        """Where a chunk stands in the input."""
        return Buffer.INPUT, int(self.collective.in_offset[chunk])

    def output(self, chunk: int) -> tuple[int, int]:
        """Where a chunk stands in the output."""
        return Buffer.OUTPUT, int(self.collective.out_offset[chunk])

    def slot(self, peer: int) -> int:
        """The place in this rank's scratch that is for a peer."""
        return self.others.index(peer)


def lent_plan(kind: str, num_ranks: int) -> Plan:
    """The plan of a collective without counts on `num_ranks` ranks; InputError for kinds that have none.

    A rank has O(num_ranks) instructions. Reductions of a chunk are done by one rank, so that all get the same bits.
    """
    if kind not in _BODIES or num_ranks < 2:
        raise InputError(f"method lent: does not make a {kind} of {num_ranks} ranks")
    collective = make_collective(kind, num_ranks)
    ranks = [_Rank(collective, rank) for rank in range(num_ranks)]
    for one in ranks:
        _BODIES[kind](one)
    return Plan.build(
        collective,
        [(one.rank, one.rows) for one in ranks],
        [one.scratch for one in ranks],
        [num_ranks] * num_ranks,
        name=_name(kind),
    )


def _name(kind: str) -> str:
    return f"{kind} lent"


def may_be_lent(plan: Plan) -> bool:
    """Whether no rank touches the input or output of another, and both may be one memory for each that has them so."""
    if not plan.collective.has_in_place and plan.name != _name(plan.collective.kind):
        return False
    c = plan.columns
    puts, gets = c["op"] == Op.PUT, (c["op"] == Op.GET) | (c["op"] == Op.GET_REDUCE)
    return bool((c["dst_buffer"][puts] == Buffer.SCRATCH).all() and (c["src_buffer"][gets] == Buffer.SCRATCH).all())


def _chunk(collective: Collective, source: int, target: int) -> int:
    """The chunk of an alltoall that goes from one rank to another."""
    found = [chunk for chunk in collective.held_by(source).tolist() if target in collective.receivers(chunk)]
    (chunk,) = found
    return int(chunk)


def _spread(one: _Rank, chunk_for: Callable[[int], int], mine: int) -> None:
    """Put each peer's part of the input into its scratch, once it is there; scratch here is for chunks like `mine`."""
    units = int(one.collective.units[mine])
    one.scratch += [(mine, 0, units)] * len(one.others)
    for peer in one.others:
        one.tell(peer, _HERE)
    for peer in one.others:
        chunk = chunk_for(peer)
        # At the peer, this rank's slot is the one behind those of the ranks between them.
        slot = (one.rank - peer) % one.collective.num_ranks - 1
        one.hear(peer, _HERE)
        one.move(Op.PUT, (Buffer.SCRATCH, slot * units), one.input(chunk), chunk, peer=peer)
        one.tell(peer, _THERE)


def _collect(one: _Rank, chunk: int, result: tuple[int, int]) -> None:
    """Reduce what the peers have put here with this rank's own part."""
    units, so_far = int(one.collective.units[chunk]), one.input(chunk)
    for peer in one.others:
        one.hear(peer, _THERE)
        one.reduce(result, (Buffer.SCRATCH, one.slot(peer) * units), so_far, chunk)
        so_far = result


def _share(one: _Rank, place: tuple[int, int], there: int) -> None:
    """Let all take this rank's chunk from a place in scratch, the same on all, take theirs, and stay until all have."""
    for peer in one.others:
        one.tell(peer, there)
    one.move(Op.COPY, one.output(one.rank), place, one.rank)
    for peer in one.others:
        one.hear(peer, there)
        one.move(Op.GET, one.output(peer), place, peer, peer=peer)
        one.tell(peer, there + 1)
    for peer in one.others:
        one.hear(peer, there + 1)


def _reducescatter(one: _Rank) -> None:
    _spread(one, lambda peer: peer, one.rank)
    _collect(one, one.rank, one.output(one.rank))


def _allreduce(one: _Rank) -> None:
    units = int(one.collective.units[one.rank])
    place = (int(Buffer.SCRATCH), len(one.others) * units)
    _spread(one, lambda peer: peer, one.rank)
    one.scratch.append((one.rank, 0, units))
    _collect(one, one.rank, place)
    _share(one, place, _READY)


def _allgather(one: _Rank) -> None:
    units = int(one.collective.units[one.rank])
    one.scratch.append((one.rank, 0, units))
    one.move(Op.COPY, (Buffer.SCRATCH, 0), one.input(one.rank), one.rank)
    _share(one, (int(Buffer.SCRATCH), 0), _HERE)


def _alltoall(one: _Rank) -> None:
    own = _chunk(one.collective, one.rank, one.rank)
    _spread(one, lambda peer: _chunk(one.collective, one.rank, peer), own)
    one.move(Op.COPY, one.output(own), one.input(own), own)
    units = int(one.collective.units[own])
    for peer in one.others:
        chunk = _chunk(one.collective, peer, one.rank)
        one.hear(peer, _THERE)
        one.move(Op.COPY, one.output(chunk), (Buffer.SCRATCH, one.slot(peer) * units), chunk)


_BODIES: dict[str, Callable[[_Rank], None]] = {
    "allreduce": _allreduce,
    "allgather": _allgather,
    "reducescatter": _reducescatter,
    "alltoall": _alltoall,
}
# Every rank gives and gets something in these.
LENDING = frozenset(_BODIES)
