"""Small plans whose running times tell what a message costs."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from collsyn.model.collective import Collective, custom_collective, make_collective
from collsyn.model.plan import Buffer, Op, Plan

Pair = tuple[int, int]
_Instruction = Mapping[str, int]
_Channels = Sequence[tuple[int, Sequence[_Instruction]]]


def ping_pong(num_ranks: int, pairs: Sequence[Pair], rounds: int) -> Plan:
    """Rounds of one message from a pair's first rank's input to the other's output and a bare flag back, for each pair.

    No rank is in two of the pairs, so each pair can run alone.
    """
    return _between(num_ranks, pairs, "ping-pong", True, rounds)


def flag_ping_pong(num_ranks: int, pairs: Sequence[Pair], rounds: int) -> Plan:
    """Rounds of a bare flag there and a bare flag back: what the answers of `ping_pong` cost."""
    return _between(num_ranks, pairs, "flags", False, rounds)


def stream(num_ranks: int, pairs: Sequence[Pair], messages: int) -> Plan:
    """Messages within each pair, each with its flag but none waited for, and one flag back at the end."""
    channels: list[tuple[int, Sequence[_Instruction]]] = []
    numbers = range(1, messages + 1)
    for src, dst in pairs:
        sent = [step for i in numbers for step in (_put(dst), _signal(dst, 0, i))]
        heard = [_wait(0, i) for i in numbers]
        channels += [(src, [*sent, _wait(0, 1)]), (dst, [*heard, _signal(src, 0, 1)])]
    return _plan(_whole(num_ranks, pairs), channels, _named("stream", pairs))


def streams(num_ranks: int, pairs: Sequence[Pair], messages: int) -> Plan:
    """`stream` of several pairs at once, each in channels of its own; ranks may be in many of them."""
    channels: list[tuple[int, Sequence[_Instruction]]] = []
    numbers = range(1, messages + 1)
    for src, dst in pairs:
        sent = [step for i in numbers for step in (_put(dst, at=src), _signal(dst, src, i))]
        channels.append((src, [*sent, _wait(num_ranks + dst, 1)]))
        channels.append((dst, [*(_wait(src, i) for i in numbers), _signal(src, num_ranks + dst, 1)]))
    everyone = range(num_ranks)
    collective = make_collective("allgather", num_ranks)
    flags = [2 * num_ranks] * num_ranks
    return Plan.build(collective, channels, [[] for _ in everyone], flags, name=_named("streams", pairs))


def one_sided(num_ranks: int, step: int, num_bytes: Mapping[Pair, int], gets: bool) -> tuple[Plan, int]:
    """Every rank moves bytes of the pair (r, r + step), and tells nobody: the first one puts or the second one gets.

    Returns the plan and the size to bind it at. A rank can run its part alone, as often as it likes.
    """
    pairs = [(rank, (rank + step) % num_ranks) for rank in range(num_ranks)]
    size = max(num_bytes[pair] for pair in pairs)
    rows = [(Fraction(num_bytes[pair], size), Fraction(0), Fraction(0), pair[:1], pair[1:]) for pair in pairs]
    collective = custom_collective(num_ranks, rows, reduces=False, spec={"kind": "custom"})
    channels: list[tuple[int, Sequence[_Instruction]]] = []
    for src, dst in pairs:
        length = num_bytes[src, dst] * collective.total_units // size
        move = {"op": Op.GET if gets else Op.PUT, "peer": src if gets else dst, "length": length}
        channels.append((dst if gets else src, [{**move, "dst_buffer": Buffer.OUTPUT}]))
    return _plan(collective, channels, f"{'get' if gets else 'put'} {step}"), size


def announcement(num_ranks: int) -> Plan:
    """Every rank puts its input into its place at all others, and tells nobody."""
    everyone = range(num_ranks)
    channels = [(rank, [_put(peer, at=rank) for peer in everyone if peer != rank]) for rank in everyone]
    collective = make_collective("allgather", num_ranks)
    return Plan.build(collective, channels, [[] for _ in everyone], [1] * num_ranks, name="announcement")


def all_at_once(num_ranks: int, rounds: int) -> Plan:
    """Rounds in which every rank sends one message to every other rank, copies its own, and hears all of theirs.

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
            body.append({"op": Op.COPY, "length": 1, "dst_buffer": Buffer.OUTPUT, "dst_offset": rank})
            body += [_wait(peer, i) for peer in reversed(peers)]
        channels.append((rank, body))
    flags = [num_ranks] * num_ranks
    collective = make_collective("allgather", num_ranks)
    return Plan.build(collective, channels, [[] for _ in flags], flags, name="all at once")


def reduce_all_at_once(num_ranks: int) -> Plan:
    """Every rank reduces its part of everybody's input into its output, reading one peer after the other, and waits
    until all have done so."""
    channels = []
    for rank in range(num_ranks):
        peers = [(rank + step) % num_ranks for step in range(1, num_ranks)]
        body: list[_Instruction] = []
        for number, peer in enumerate(peers):
            first = (
                {"src2_buffer": Buffer.INPUT, "src2_offset": rank} if number == 0 else {"src2_buffer": Buffer.OUTPUT}
            )
            move = {"op": Op.GET_REDUCE, "peer": peer, "length": 1, "src_offset": rank, "dst_buffer": Buffer.OUTPUT}
            body.append({**move, **first})
        body += [_signal(peer, rank, 1) for peer in peers]
        channels.append((rank, [*body, *(_wait(peer, 1) for peer in reversed(peers))]))
    flags = [num_ranks] * num_ranks
    collective = make_collective("reducescatter", num_ranks)
    return Plan.build(collective, channels, [[] for _ in flags], flags, name="reduce all at once")


def local_reduce(num_ranks: int) -> Plan:
    """Every rank reduces its input into its output, once, without talking to anybody."""
    body = {"op": Op.REDUCE, "length": 1, "dst_buffer": Buffer.OUTPUT, "src2_buffer": Buffer.OUTPUT}
    everyone = range(num_ranks)
    whole = (Fraction(1), Fraction(0), Fraction(0), tuple(everyone), tuple(everyone))
    collective = custom_collective(num_ranks, [whole], reduces=True, spec={"kind": "custom"})
    return _plan(collective, [(rank, [body]) for rank in everyone], "reduce")


def _whole(num_ranks: int, pairs: Sequence[Pair]) -> Collective:
    rows = [(Fraction(1), Fraction(0), Fraction(0), (src,), (dst,)) for src, dst in pairs]
    return custom_collective(num_ranks, rows, reduces=False, spec={"kind": "custom"})


def _between(num_ranks: int, pairs: Sequence[Pair], name: str, has_data: bool, rounds: int) -> Plan:
    channels: list[tuple[int, Sequence[_Instruction]]] = []
    numbers = range(1, rounds + 1)
    for src, dst in pairs:
        message = [_put(dst)] if has_data else []
        there = [step for i in numbers for step in (*message, _signal(dst, 0, i), _wait(0, i))]
        back = [step for i in numbers for step in (_wait(0, i), _signal(src, 0, i))]
        channels += [(src, there), (dst, back)]
    return _plan(_whole(num_ranks, pairs), channels, _named(name, pairs))


def _named(name: str, pairs: Sequence[Pair]) -> str:
    return f"{name} {' '.join(f'{src}-{dst}' for src, dst in pairs)}"


def _plan(collective: Collective, channels: _Channels, name: str) -> Plan:
    ranks = range(collective.num_ranks)
    return Plan.build(collective, channels, [[] for _ in ranks], [1 for _ in ranks], name=name)


def _put(peer: int, at: int = 0) -> _Instruction:
    return {"op": Op.PUT, "peer": peer, "length": 1, "dst_buffer": Buffer.OUTPUT, "dst_offset": at}


def _signal(peer: int, flag: int, value: int) -> _Instruction:
    return {"op": Op.SIGNAL, "peer": peer, "flag": flag, "value": value}


def _wait(flag: int, value: int) -> _Instruction:
    return {"op": Op.WAIT, "flag": flag, "value": value}
