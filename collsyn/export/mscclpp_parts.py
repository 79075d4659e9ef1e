"""Cuts the channels of a plan into parts that fit into thread blocks, and gives every wait a signal of its own."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collsyn.check.interleave import flag_ids
from collsyn.errors import InputError
from collsyn.export.mscclpp import MAX_REMOTE_BUFFERS
from collsyn.model.plan import Op, Plan


@dataclass(frozen=True, slots=True)
class Token:
    """A signal and the wait that it ends, both rows of the plan."""

    signal: int
    wait: int


@dataclass
class Part:
    """A piece of a channel of the plan that becomes a thread block: its rows, from `first` up to `last`."""

    channel: int
    rank: int
    first: int
    last: int


def tokens_of(plan: Plan) -> list[Token]:
    """The tokens of a plan; waits for what a channel knows already have none."""
    op, value, flags = plan.columns["op"].tolist(), plan.columns["value"].tolist(), flag_ids(plan)
    channel = _channel_of(plan)
    raised: dict[int, list[int]] = defaultdict(list)
    for i, kind in enumerate(op):
        if kind == Op.SIGNAL:
            raised[flags[i]].append(i)
            if channel[raised[flags[i]][0]] != channel[i]:
                raise InputError("plan: several channels raise one flag, which channels of MSCCL++ cannot count")
    known: dict[tuple[int, int], int] = {}
    tokens: list[Token] = []
    for i, kind in enumerate(op):
        if kind != Op.WAIT or value[i] < 1:
            continue
        signals = raised[flags[i]]
        at = bisect_left(signals, value[i], key=lambda row: value[row])
        if at == len(signals):
            raise InputError(f"plan: {plan.describe(i)} waits for ever")
        signal = signals[at]
        line = (channel[signal], channel[i])
        if known.get(line, -1) < signal and line[0] != line[1]:
            tokens.append(Token(signal, i))
            known[line] = signal
    return tokens


def _channel_of(plan: Plan) -> list[int]:
    found: list[int] = np.repeat(np.arange(plan.num_channels), np.diff(plan.channel_ptr)).tolist()
    return found


def flush_points(plan: Plan, tokens: Sequence[Token], port_pairs: frozenset[tuple[int, int]]) -> dict[int, int]:
    """Puts by port (rows) that must be gone before others are told of them, and the ranks they go to.

    A signal to where the data goes stays behind it; whoever else is told might pass the word on by a shorter way.
    """
    op, peer = plan.columns["op"].tolist(), plan.columns["peer"].tolist()
    told = {token.signal for token in tokens}
    found: dict[int, int] = {}
    for k, rank in enumerate(plan.channel_rank.tolist()):
        first, last = plan.channel_ptr[k : k + 2].tolist()
        pending: dict[int, int] = {}
        group: set[int] = set()
        for i in range(first, last + 1):
            if i < last and op[i] == Op.SIGNAL:
                group |= {peer[i]} if i in told else set()
                continue
            if group or i == last:
                found |= {row: to for to, row in pending.items() if to not in group}
                pending, group = {}, set()
            if i < last and op[i] == Op.PUT and (rank, peer[i]) in port_pairs:
                pending[peer[i]] = i
    return found


@dataclass
class _Cutter:
    """Where channels are cut so that a part surely fits into a thread block: what every row is, and who it talks to."""

    port_pairs: frozenset[tuple[int, int]]
    ops: int
    talks: int
    op: list[int]
    peer: list[int]
    lines: dict[int, set[int]]
    told: set[int]
    flushes: dict[int, int]

    def end(self, rank: int, first: int, last: int) -> int:
        """The end of the part that begins at row `first` of a channel that ends at `last`.

        It is never between data for a port and its signal, and rather before a wait than elsewhere: the next thread
        block begins when all that this one has sent is there, which a wait makes up for.
        """
        room, seen, remote, waiting = self.ops, set[int](), set[int](), set[int]()
        best = first
        for i in range(first, last):
            op, peer = self.op[i], self.peer[i]
            follows = i > first and self.op[i - 1] == op
            cost = bool(self.lines[i]) * (2 - follows) if op in (Op.SIGNAL, Op.WAIT) else 1
            seen |= self.lines[i]
            remote |= {peer} if op in (Op.PUT, Op.GET, Op.GET_REDUCE) else set()
            full = cost > room or len(seen) > self.talks or len(remote) * 3 > MAX_REMOTE_BUFFERS + 2
            if i > first and not waiting:
                if full:
                    return best if 2 * (best - first) > i - first else i
                if op == Op.WAIT and not follows:
                    best = i
            room -= cost
            if i in self.flushes:
                waiting.discard(peer)
            elif op == Op.PUT and (rank, peer) in self.port_pairs:
                waiting.add(peer)
            elif op == Op.SIGNAL and i in self.told:
                waiting.discard(peer)
        return last


def parts_of(
    plan: Plan,
    tokens: Sequence[Token],
    flushes: dict[int, int],
    port_pairs: frozenset[tuple[int, int]],
    ops: int,
    talks: int,
) -> list[Part]:
    """The parts of all channels."""
    channel = _channel_of(plan)
    lines: dict[int, set[int]] = defaultdict(set)
    for token in tokens:
        lines[token.signal].add(channel[token.wait])
        lines[token.wait].add(-1 - channel[token.signal])
    columns = (plan.columns["op"].tolist(), plan.columns["peer"].tolist())
    cutter = _Cutter(port_pairs, ops, talks, *columns, lines, {token.signal for token in tokens}, flushes)
    parts = []
    for k, rank in enumerate(plan.channel_rank.tolist()):
        first, last = plan.channel_ptr[k : k + 2].tolist()
        while first < last:
            end = cutter.end(rank, first, last)
            parts.append(Part(k, rank, first, end))
            first = end
    return parts
