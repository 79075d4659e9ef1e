"""Small plans whose running times tell what a message costs."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from collsyn.model.collective import Collective, custom_collective, make_collective
from collsyn.model.plan import Buffer, Op, Plan

_Instruction = Mapping[str, int]
_Channels = Sequence[tuple[int, Sequence[_Instruction]]]


def ping_pong(num_ranks: int, src: int, dst: int, rounds: int) -> Plan:
    """Rounds of one message from `src`'s input to `dst`'s output and a bare flag back, nothing else going on."""
    return _between(num_ranks, src, dst, f"ping-pong {src}-{dst}", [_put(dst)], rounds)


def flag_ping_pong(num_ranks: int, src: int, dst: int, rounds: int) -> Plan:
    """Rounds of a bare flag there and a bare flag back: what the answers of `ping_pong` cost."""
    return _between(num_ranks, src, dst, f"flags {src}-{dst}", [], rounds)


def stream(num_ranks: int, src: int, dst: int, messages: int) -> Plan:
    """Messages from `src` to `dst`, each with its flag but none waited for, and one flag back at the end."""
    sent = [step for i in range(1, messages + 1) for step in (_put(dst), _signal(dst, 0, i))]
    heard = [_wait(0, i) for i in range(1, messages + 1)]
    channels = [(src, [*sent, _wait(0, 1)]), (dst, [*heard, _signal(src, 0, 1)])]
    return _plan(_pair(num_ranks, src, dst), channels, f"stream {src}-{dst}")


def all_at_once(num_ranks: int, rounds: int) -> Plan:
    """Rounds in which every rank sends one message to every other rank and hears all of theirs.

    Rank r begins with its successor, so that no receiver is everybody's first.
    """
    channels = []
    for rank in range(num_ranks):
        peers = [(rank + step) % num_ranks for step in range(1, num_ranks)]
        body: list[_Instruction] = []
        for i in range(1, rounds + 1):
            for peer in peers:
                # A peer's output has one place for each sender.
                body += [_put(peer, at=rank), _signal(peer, rank, i)]
            body += [_wait(peer, i) for peer in reversed(peers)]
        channels.append((rank, body))
    flags = [num_ranks] * num_ranks
    collective = make_collective("allgather", num_ranks)
    return Plan.build(collective, channels, [[] for _ in flags], flags, name="all at once")


def local_reduce(num_ranks: int) -> Plan:
    """Every rank reduces its input into its output, once, without talking to anybody."""
    body = {"op": Op.REDUCE, "length": 1, "dst_buffer": Buffer.OUTPUT, "src2_buffer": Buffer.OUTPUT}
    everyone = range(num_ranks)
    whole = (Fraction(1), Fraction(0), Fraction(0), tuple(everyone), tuple(everyone))
    collective = custom_collective(num_ranks, [whole], reduces=True, spec={"kind": "custom"})
    return _plan(collective, [(rank, [body]) for rank in everyone], "reduce")


def _pair(num_ranks: int, src: int, dst: int) -> Collective:
    whole = (Fraction(1), Fraction(0), Fraction(0), (src,), (dst,))
    return custom_collective(num_ranks, [whole], reduces=False, spec={"kind": "custom"})


def _between(num_ranks: int, src: int, dst: int, name: str, message: Sequence[_Instruction], rounds: int) -> Plan:
    numbers = range(1, rounds + 1)
    there = [step for i in numbers for step in (*message, _signal(dst, 0, i), _wait(0, i))]
    back = [step for i in numbers for step in (_wait(0, i), _signal(src, 0, i))]
    return _plan(_pair(num_ranks, src, dst), [(src, there), (dst, back)], name)


def _plan(collective: Collective, channels: _Channels, name: str) -> Plan:
    ranks = range(collective.num_ranks)
    return Plan.build(collective, channels, [[] for _ in ranks], [1 for _ in ranks], name=name)


def _put(peer: int, at: int = 0) -> _Instruction:
    return {"op": Op.PUT, "peer": peer, "length": 1, "dst_buffer": Buffer.OUTPUT, "dst_offset": at}


def _signal(peer: int, flag: int, value: int) -> _Instruction:
    return {"op": Op.SIGNAL, "peer": peer, "flag": flag, "value": value}


def _wait(flag: int, value: int) -> _Instruction:
    return {"op": Op.WAIT, "flag": flag, "value": value}
