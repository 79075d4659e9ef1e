"""Small plans written by hand: what the checker of plans must accept, and spoil one instruction at a time."""

from collections.abc import Callable, Mapping, Sequence

from collsyn.model.collective import Collective, custom_collective, make_collective
from collsyn.model.plan import Buffer, Op, Plan
from collsyn.model.topology import Topology
from tests.support.topologies import zoo

Instruction = Mapping[str, int]
IN, OUT, SCRATCH = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH


def put(peer: int, dst: tuple[int, int], src: tuple[int, int], length: int = 1) -> Instruction:
    """Write to the peer: (buffer, offset) there and here."""
    places = {"dst_buffer": dst[0], "dst_offset": dst[1], "src_buffer": src[0], "src_offset": src[1]}
    return {"op": Op.PUT, "peer": peer, "length": length, **places}


def copy(dst: tuple[int, int], src: tuple[int, int], length: int = 1) -> Instruction:
    """Move at the rank itself."""
    return {**put(-1, dst, src, length), "op": Op.COPY}


def signal(peer: int, value: int) -> Instruction:
    """Raise flag 0 of the peer."""
    return {"op": Op.SIGNAL, "peer": peer, "flag": 0, "value": value}


def wait(peer: int, value: int) -> Instruction:
    """Wait for the own flag 0."""
    return {"op": Op.WAIT, "peer": peer, "flag": 0, "value": value}


def swap_plan(
    change: Callable[[list[list[dict[str, int]]]], None] | None = None,
    scratch: Sequence[Sequence[tuple[int, int, int]]] = ((), ()),
    topology: Topology | None = None,
) -> Plan:
    """An allgather of two ranks that write into each other's output; `change` edits the two channels first."""
    channels = [
        [
            dict(row)
            for row in (
                signal(1 - rank, 1),
                copy((OUT, rank), (IN, 0)),
                wait(1 - rank, 1),
                put(1 - rank, (OUT, rank), (IN, 0)),
                signal(1 - rank, 2),
                wait(1 - rank, 2),
            )
        ]
        for rank in range(2)
    ]
    if change is not None:
        change(channels)
    collective = make_collective("allgather", 2)
    return Plan.build(collective, list(enumerate(channels)), scratch, [1, 1], topology=topology or zoo("pair"))


def sum_plan() -> Plan:
    """An allreduce of two ranks that write into each other's scratch and add at home."""
    channels = [
        [
            signal(1 - rank, 1),
            wait(1 - rank, 1),
            put(1 - rank, (SCRATCH, 0), (IN, 0)),
            signal(1 - rank, 2),
            wait(1 - rank, 2),
            {**copy((OUT, 0), (SCRATCH, 0)), "op": Op.REDUCE, "src2_buffer": IN, "src2_offset": 0},
        ]
        for rank in range(2)
    ]
    return Plan.build(one_chunk_allreduce(), list(enumerate(channels)), [[(0, 0, 1)]] * 2, [1, 1], topology=zoo("pair"))


def one_chunk_allreduce() -> Collective:
    """Both of two ranks end with the sum of one chunk."""
    chunk = {"from": [0, 1], "to": [0, 1], "length": "1", "in_offset": "0", "out_offset": "0"}
    spec = {"kind": "custom", "ranks": 2, "reduces": True, "chunks": [chunk]}
    return custom_collective(2, [(1, 0, 0, [0, 1], [0, 1])], True, spec)
