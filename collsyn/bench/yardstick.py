"""What the machine itself is worth at the moment: the plainest exchange between all ranks, always the same."""

from collections.abc import Mapping

from collsyn.model.collective import make_collective
from collsyn.model.kinds import PAIRWISE, REDUCING
from collsyn.model.plan import Buffer, Op, Plan

_Steps = list[Mapping[str, int]]


def exchange(kind: str, num_ranks: int) -> Plan:
    """Every rank puts its part (pairwise and reducing kinds: a part of its own for each) into every other's output.

    Rank r begins with its successor. Reducing kinds then reduce what they got, and allreduce puts the result into every
    output again. No choice in it is a synthesizer's, nor is it lowered. What it leaves means nothing: calls follow each
    other without waiting for outputs to be read.
    """
    reduces = kind in REDUCING
    several = reduces or kind in PAIRWISE
    rounds = 2 if kind == "allreduce" else 1
    channels = []
    for rank in range(num_ranks):
        peers = [(rank + step) % num_ranks for step in range(1, num_ranks)]
        steps: _Steps = []
        for number in range(1, rounds + 1):
            source = Buffer.OUTPUT if number > 1 else Buffer.INPUT
            for peer in peers:
                own = rank if number > 1 else (peer if several else 0)
                steps.append(_moved(Op.PUT, peer, source, own, rank))
                steps.append({"op": Op.SIGNAL, "peer": peer, "flag": rank, "value": number})
            for peer in reversed(peers):
                steps.append({"op": Op.WAIT, "flag": peer, "value": number})
                if reduces and number == 1:
                    steps.append(_reduced(peer, rank))
        channels.append((rank, steps))
    flags = [num_ranks] * num_ranks
    collective = make_collective("alltoall" if several else "allgather", num_ranks)
    return Plan.build(collective, channels, [[] for _ in flags], flags, name=f"exchange for {kind}")


def _moved(op: Op, peer: int, source: Buffer, src: int, dst: int) -> Mapping[str, int]:
    places = {"src_buffer": source, "src_offset": src, "dst_buffer": Buffer.OUTPUT, "dst_offset": dst}
    return {"op": op, "peer": peer, "length": 1, **places}


def _reduced(src: int, dst: int) -> Mapping[str, int]:
    """What came from `src` into the own part."""
    sources = {"src_buffer": Buffer.OUTPUT, "src_offset": src, "src2_buffer": Buffer.OUTPUT, "src2_offset": dst}
    return {"op": Op.REDUCE, "length": 1, **sources, "dst_buffer": Buffer.OUTPUT, "dst_offset": dst}
