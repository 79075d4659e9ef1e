"""What the machine itself is worth at the moment: one plain exchange between all ranks, always the same."""

from collections.abc import Mapping

from collsyn.model.collective import make_collective
from collsyn.model.plan import Buffer, Op, Plan


def exchange(num_ranks: int) -> Plan:
    """Every rank puts its part into every other rank's output and hears of theirs; rank r begins with its successor.

    It has no choices that a synthesizer could make, and reads nothing that it wrote, so calls may follow each other.
    """
    channels = []
    for rank in range(num_ranks):
        peers = [(rank + step) % num_ranks for step in range(1, num_ranks)]
        steps: list[Mapping[str, int]] = []
        for peer in peers:
            steps.append({"op": Op.PUT, "peer": peer, "length": 1, "dst_buffer": Buffer.OUTPUT, "dst_offset": rank})
            steps.append({"op": Op.SIGNAL, "peer": peer, "flag": rank, "value": 1})
        steps += [{"op": Op.WAIT, "flag": peer, "value": 1} for peer in reversed(peers)]
        channels.append((rank, steps))
    flags = [num_ranks] * num_ranks
    collective = make_collective("allgather", num_ranks)
    return Plan.build(collective, channels, [[] for _ in flags], flags, name="exchange")
