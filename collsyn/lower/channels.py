"""Cuts runs into moves, puts these in one order, and deals them out to the channels of their ranks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collsyn.lower.flow import Flow
from collsyn.lower.runs import Run, RunTimes
from collsyn.model.arrays import F64, I32, I64
from collsyn.model.plan import Op

# What has a channel of its own.
LINES = ("link", "peer")


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
    flow: Flow, runs: Sequence[Run], needs: Sequence[Sequence[int]], lanes: int, max_channels: int, lines_by: str
) -> Channels:
    """Channels of all ranks, by `peer`: one (for every lane) for what a rank puts to a peer, one for what it takes from
    one; or by `link`, which keeps the schedule's order there: one for what leaves the rank over a link, one for what
    enters over it, and more where the schedule has several messages there at once.

    When a rank has more than `max_channels`, they are shared in turn. What stays in a rank follows the move that
    brought it; what a peer has put there is taken on beside what else enters from that side, so that telling other
    channels of it does not have to wait for what is on its way to a peer. O(runs log runs).
    """
    num_ranks = flow.schedule.collective.num_ranks
    leaving, entering = _link_lines(flow) if lines_by == "link" else _peer_lines(flow)
    lines: list[dict[tuple[bool, int, int], int]] = [{} for _ in range(num_ranks)]
    line_of: list[tuple[bool, int, int] | None] = []
    partners: dict[tuple[int, int], tuple[bool, int, int]] = {}
    involved = np.zeros(num_ranks, dtype=np.bool_)
    source_of: list[int] = []
    for i, run in enumerate(runs):
        action, row, partner, source = run.first, run.first.row, run.first.partner, -1
        involved[action.rank] = True
        if partner < 0:
            source = next((k for k in needs[i] if runs[k].first.dst.memory == action.src.memory), -1)
            if source >= 0 and runs[source].first.rank != action.rank:
                row, partner = runs[source].first.row, runs[source].first.rank
        source_of.append(source)
        line = None
        if partner >= 0:
            involved[partner] = True
            puts = action.op == Op.PUT
            line = (puts, *(leaving if puts else entering)[row])
            nearest = (partner - action.rank) % num_ranks
            lines[action.rank][line] = min(lines[action.rank].get(line, num_ranks), nearest)
            partners.setdefault((action.rank, partner), line)
        line_of.append(line)
    sizes, number = [], []
    for rank, found in enumerate(lines):
        ordered = sorted(found, key=lambda line, found=found: (found[line], line))  # type: ignore[misc]
        number.append({line: i for i, line in enumerate(ordered)})
        sizes.append(min(max(len(ordered), 1) * lanes, max_channels) if involved[rank] else 0)
    begin = np.cumsum([0, *sizes]).tolist()
    towards = {
        (rank, partner): begin[rank] + number[rank][line] * lanes % sizes[rank]
        for (rank, partner), line in partners.items()
    }
    at_home = Counter(run.first.rank for run, line in zip(runs, line_of, strict=True) if line is None)
    seen: Counter[int] = Counter()
    of_run: list[list[int]] = []
    for i, run in enumerate(runs):
        action, size, line = run.first, sizes[run.first.rank], line_of[i]
        if line is not None:
            base = number[action.rank][line] * lanes
        elif source_of[i] >= 0:
            of_run.append(of_run[source_of[i]])
            continue
        else:
            base = seen[action.rank] * size // at_home[action.rank]
            seen[action.rank] += 1
        of_run.append([begin[action.rank] + (base + lane) % size for lane in range(lanes)])
    first = [begin[rank] if size else -1 for rank, size in enumerate(sizes)]
    return Channels(np.repeat(np.arange(num_ranks, dtype=np.int32), sizes), first, of_run, towards)


def _peer_lines(flow: Flow) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Per send, what tells it from others at its source, and at its destination: the other rank."""
    src, dst = flow.schedule.src.tolist(), flow.schedule.dst.tolist()
    return [(rank, 0) for rank in dst], [(rank, 0) for rank in src]


def _link_lines(flow: Flow) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Per send, the link by which it leaves its rank and its number among messages there at once; and the same for the
    link by which it enters."""
    schedule, messages = flow.schedule, flow.schedule.messages
    leaving, entering = ([(-1, 0)] * schedule.num_sends for _ in range(2))
    route = [schedule.routes[row] for row in range(len(schedule.routes))]
    free_s: dict[tuple[int, int], list[float]] = {}
    rows_of = messages.rows.tuples()
    first = [rows[0] for rows in rows_of]
    start_s, busy_s, way = flow.start_s[first].tolist(), messages.busy_s.tolist(), messages.route.tolist()
    order = sorted(range(len(rows_of)), key=lambda message: int(flow.read_at[first[message]]))
    for message in order:
        links = route[way[message]]
        if not len(links):
            continue
        for lines, side, link in ((leaving, 0, int(links[0])), (entering, 1, int(links[-1]))):
            ends = free_s.setdefault((side, link), [])
            begin, end = start_s[message], start_s[message] + busy_s[message]
            number = next((i for i, free in enumerate(ends) if free <= begin + flow.tolerance_s), len(ends))
            ends[number:] = [end, *ends[number + 1 :]]
            for row in rows_of[message]:
                lines[row] = (link, number)
    return leaving, entering


@dataclass(frozen=True, eq=False)
class Moves:
    """All pieces of all lanes of all runs, in a sequence in which everything comes behind what it must wait for."""

    run: list[int]
    lane: list[int]
    piece: list[int]
    pieces: I64

    def __len__(self) -> int:
        return len(self.run)


def make_moves(
    runs: Sequence[Run],
    needs: Sequence[Sequence[int]],
    paces: Sequence[Sequence[int]],
    times: RunTimes,
    pieces: I64,
    lanes: int,
) -> Moves:
    """Moves in the order of the schedule: piece p of P is due at p / P of its run's time. O(moves log moves)."""
    counts = pieces * lanes
    run = np.repeat(np.arange(len(runs)), counts)
    within = np.arange(len(run)) - (np.cumsum(counts) - counts)[run]
    lane, piece = within // pieces[run], within % pieces[run]
    order = np.lexsort((lane, piece, run, _due(runs, needs, paces, times, pieces)[run, piece]))
    return Moves(run[order].tolist(), lane[order].tolist(), piece[order].tolist(), pieces)


def _due(
    runs: Sequence[Run],
    needs: Sequence[Sequence[int]],
    paces: Sequence[Sequence[int]],
    times: RunTimes,
    pieces: I64,
) -> F64:
    """When pieces (columns) of runs are due, in seconds, at the earliest with what they wait for."""
    arrives = np.array([run.first.arrives for run in runs], dtype=np.float64)[:, None]
    share = (np.arange(int(pieces.max(initial=1))) + arrives) / pieces[:, None]
    due: F64 = times.start_s[:, None] + share * times.span_s[:, None]
    for number, earlier in enumerate(needs):
        for before in earlier:
            np.maximum(due[number], due[before], out=due[number])
        for before in paces[number]:
            np.maximum(due[number], due[before, pieces[before] - 1], out=due[number])
    return due
