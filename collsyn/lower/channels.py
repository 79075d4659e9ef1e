"""Cuts runs into moves, puts these in one order, and deals them out to the channels of their ranks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collsyn.lower.runs import Run, RunTimes
from collsyn.model.arrays import F64, I32, I64
from collsyn.model.plan import Op


@dataclass(frozen=True, eq=False)
class Channels:
    """Channels of all ranks in the order of the ranks, and where runs go.

    Lane l of run i is executed by channel `of_run[i][l]`; `towards[rank, peer]` is a channel of the rank that deals
    with the peer, `first[rank]` the rank's first one (-1: the rank takes no part).
    """

    rank: I32
    first: list[int]
    of_run: list[list[int]]
    towards: dict[tuple[int, int], int]


def make_channels(
    runs: Sequence[Run], needs: Sequence[Sequence[int]], lanes: int, max_channels: int, num_ranks: int
) -> Channels:
    """A channel for every lane of what a rank puts to a peer, and of what it takes from one; when there are more than
    `max_channels`, they share channels in turn. What stays in a rank follows the move that brought it. O(runs)."""
    kinds: list[set[tuple[int, bool]]] = [set() for _ in range(num_ranks)]
    involved = np.zeros(num_ranks, dtype=np.bool_)
    for run in runs:
        action = run.first
        involved[action.rank] = True
        if action.partner >= 0:
            involved[action.partner] = True
            kinds[action.rank].add((action.partner, action.op == Op.PUT))
    number: dict[tuple[int, int, bool], int] = {}
    sizes = []
    for rank, partners in enumerate(kinds):
        ordered = sorted(partners, key=lambda kind, rank=rank: ((kind[0] - rank) % num_ranks, kind[1]))  # type: ignore[misc]
        number |= {(rank, *kind): i for i, kind in enumerate(ordered)}
        sizes.append(min(max(len(ordered), 1) * lanes, max_channels) if involved[rank] else 0)
    begin = np.cumsum([0, *sizes]).tolist()
    towards: dict[tuple[int, int], int] = {}
    for (rank, partner, _), i in number.items():
        towards.setdefault((rank, partner), begin[rank] + i * lanes % sizes[rank])
    at_home = Counter(run.first.rank for run in runs if run.first.partner < 0)
    seen: Counter[int] = Counter()
    of_run: list[list[int]] = []
    for i, run in enumerate(runs):
        action, size = run.first, sizes[run.first.rank]
        source = next((k for k in needs[i] if runs[k].first.dst.memory == action.src.memory), None)
        if action.partner >= 0:
            base = number[action.rank, action.partner, action.op == Op.PUT] * lanes
        elif source is not None and runs[source].first.rank == action.rank:
            of_run.append(of_run[source])
            continue
        else:
            base = seen[action.rank] * size // at_home[action.rank]
            seen[action.rank] += 1
        of_run.append([begin[action.rank] + (base + lane) % size for lane in range(lanes)])
    first = [begin[rank] if size else -1 for rank, size in enumerate(sizes)]
    return Channels(np.repeat(np.arange(num_ranks, dtype=np.int32), sizes), first, of_run, towards)


@dataclass(frozen=True, eq=False)
class Moves:
    """All pieces of all lanes of all runs, in a sequence in which everything comes behind what it must wait for."""

    run: list[int]
    lane: list[int]
    piece: list[int]
    pieces: I64

    def __len__(self) -> int:
        return len(self.run)


def make_moves(runs: Sequence[Run], needs: Sequence[Sequence[int]], times: RunTimes, pieces: I64, lanes: int) -> Moves:
    """Moves in the order of the schedule: piece p of P is due at p / P of its run's time. O(moves log moves)."""
    counts = pieces * lanes
    run = np.repeat(np.arange(len(runs)), counts)
    within = np.arange(len(run)) - (np.cumsum(counts) - counts)[run]
    lane, piece = within // pieces[run], within % pieces[run]
    order = np.lexsort((lane, piece, run, _due(runs, needs, times, pieces)[run, piece]))
    return Moves(run[order].tolist(), lane[order].tolist(), piece[order].tolist(), pieces)


def _due(runs: Sequence[Run], needs: Sequence[Sequence[int]], times: RunTimes, pieces: I64) -> F64:
    """When pieces (columns) of runs are due, in seconds, at the earliest with what they wait for."""
    arrives = np.array([run.first.arrives for run in runs], dtype=np.float64)[:, None]
    share = (np.arange(int(pieces.max(initial=1))) + arrives) / pieces[:, None]
    due: F64 = times.start_s[:, None] + share * times.span_s[:, None]
    for number, earlier in enumerate(needs):
        for before in earlier:
            np.maximum(due[number], due[before], out=due[number])
    return due
