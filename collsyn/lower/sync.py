"""Finds the flags that keep moves of different channels in order, and leaves out those that others imply."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collsyn.lower.channels import Channels, Moves
from collsyn.lower.runs import Run
from collsyn.model.arrays import I32
from collsyn.model.plan import Buffer, Op

# A place in a channel: behind that many of its moves (0: at its begin).
Mark = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Sync:
    """Moves of every channel in order, with the marks that each waits for, and those to wait for at the channel's end.

    `signals[channel][m]` are the ranks that must be told when the channel's first m moves are done.
    """

    moves: list[list[int]]
    waits: dict[int, list[Mark]]
    at_end: dict[int, list[Mark]]
    signals: list[dict[int, set[int]]]


def synchronise(
    runs: Sequence[Run],
    needs: Sequence[Sequence[int]],
    paces: Sequence[Sequence[int]],
    moves: Moves,
    channels: Channels,
    ahead: bool = False,
) -> Sync:
    """Waits for everything that moves need: what earlier moves in other channels did, and that a peer has begun the
    call before its memory is touched; at the end of the call, that all who touch a rank's memory are done.

    With `ahead`, a put into a peer's scratch waits for the peer only at the end of the call: two calls later it comes
    to the same place again, and then the peer is known to have ended this one.

    The last pieces of the runs in `paces` come before a run's first one. Vector clocks: a channel that waits for
    another knows all that the other one knew, and what is known is not waited for. O(moves x channels) at worst.
    """
    return _Clocks(runs, needs, paces, moves, channels, ahead).result()


class _Clocks:
    """What channels know: channel c that `known[c][q]` moves of channel q are done, or -1: q may not have begun."""

    def __init__(
        self,
        runs: Sequence[Run],
        needs: Sequence[Sequence[int]],
        paces: Sequence[Sequence[int]],
        moves: Moves,
        channels: Channels,
        ahead: bool,
    ) -> None:
        self._ahead, self._early = ahead, set[tuple[int, int]]()
        self._runs, self._needs, self._paces, self._moves, self._channels = runs, needs, paces, moves, channels
        self._rank_of = channels.rank.tolist()
        count = len(self._rank_of)
        begun = {rank: np.where(channels.rank == rank, 0, -1).astype(np.int32) for rank in set(self._rank_of)}
        self._begun: dict[int, I32] = begun
        self._known = [begun[rank] for rank in self._rank_of]
        self._sync = Sync([[] for _ in range(count)], {}, defaultdict(list), [{} for _ in range(count)])
        self._visits: dict[tuple[int, int], tuple[int, int, I32]] = {}

    def result(self) -> Sync:
        """All waits and signals."""
        pieces = self._moves.pieces.tolist()
        users = Counter(before for earlier in self._needs for before in earlier)
        paced = Counter(before for earlier in self._paces for before in earlier)
        left = [
            users[run] + (paced[run] if piece == pieces[run] - 1 else 0)
            for run, piece in zip(self._moves.run, self._moves.piece, strict=True)
        ]
        number = {
            key: i for i, key in enumerate(zip(self._moves.run, self._moves.lane, self._moves.piece, strict=True))
        }
        mark: list[Mark] = []
        knew: list[I32 | None] = []
        for i, (run, lane, piece) in enumerate(number):
            channel, action = self._channels.of_run[run][lane], self._runs[run].first
            waits: list[Mark] = []
            earlier = [number[before, lane, piece] for before in self._needs[run]]
            if piece == 0:
                earlier += [number[before, lane, pieces[before] - 1] for before in self._paces[run]]
            for before in sorted(earlier, reverse=True):
                theirs = knew[before]
                assert theirs is not None
                self._learn(channel, mark[before], theirs, waits)
                left[before] -= 1
                if not left[before]:
                    knew[before] = None
            if action.peer >= 0:
                if self._ahead and action.op == Op.PUT and action.dst.buffer == Buffer.SCRATCH:
                    self._early.add((self._rank_of[channel], action.peer))
                else:
                    self._enter(channel, action.peer, waits)
            if waits:
                self._sync.waits[i] = waits
            mine = self._sync.moves[channel]
            mine.append(i)
            mark.append((channel, len(mine)))
            knew.append(self._known[channel] if left[i] else None)
            if action.peer >= 0:
                self._visits[action.peer, channel] = (i, len(mine), self._known[channel])
        self._leave()
        return self._sync

    def _learn(self, channel: int, mark: Mark, theirs: I32, waits: list[Mark]) -> None:
        """Make a channel wait for a mark unless it is known to be reached; `theirs` is what was known there."""
        other, count = mark
        known = self._known[channel]
        if other == channel or known[other] >= count:
            return
        waits.append(mark)
        known = np.maximum(known, theirs)
        known[other] = max(known[other], count)
        self._known[channel] = known
        self._tell(mark, self._rank_of[channel])

    def _tell(self, mark: Mark, rank: int) -> None:
        self._sync.signals[mark[0]].setdefault(mark[1], set()).add(rank)

    def _enter(self, channel: int, peer: int, waits: list[Mark]) -> None:
        """Make sure that a peer has begun the call."""
        first = self._channels.first[peer]
        if self._known[channel][first] < 0:
            other = self._channels.towards.get((peer, self._rank_of[channel]), first)
            self._learn(channel, (other, 0), self._begun[peer], waits)

    def _leave(self) -> None:
        """At the end of the call some channel of every rank must know that all its visitors are done."""
        together: dict[int, I32] = {}
        for channel, rank in enumerate(self._rank_of):
            known = self._known[channel]
            together[rank] = np.maximum(together[rank], known) if rank in together else known
        last_first = sorted(self._visits.items(), key=lambda visit: visit[1][0], reverse=True)
        for (rank, visitor), (_, count, theirs) in last_first:
            if together[rank][visitor] >= count:
                continue
            channel = self._channels.towards.get((rank, self._rank_of[visitor]), self._channels.first[rank])
            self._sync.at_end[channel].append((visitor, count))
            self._tell((visitor, count), rank)
            together[rank] = np.maximum(together[rank], theirs)
            together[rank][visitor] = max(together[rank][visitor], count)
        for rank, peer in sorted(self._early):
            other = self._channels.towards.get((peer, rank), self._channels.first[peer])
            if together[rank][other] < 0:
                channel = self._channels.towards.get((rank, peer), self._channels.first[rank])
                self._sync.at_end[channel].append((other, 0))
                self._tell((other, 0), rank)
                together[rank] = np.maximum(together[rank], self._begun[peer])
