"""Writes moves, waits and signals as the instructions of a plan."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from collsyn.lower.channels import Channels, Moves
from collsyn.lower.runs import Run, RunTimes, Scratch
from collsyn.lower.sync import Mark, Sync
from collsyn.model.arrays import Rows
from collsyn.model.plan import COLUMNS, Op, Plan
from collsyn.model.schedule import Schedule

_NAMES = tuple(COLUMNS)
_LENGTH = _NAMES.index("length")
_OFFSETS = tuple(_NAMES.index(f"{which}_offset") for which in ("dst", "src", "src2"))
# What two moves must agree in to be one: everything but offsets and length.
_SAME = tuple(i for i in range(len(_NAMES)) if i != _LENGTH and i not in _OFFSETS)


def make_plan(
    schedule: Schedule,
    runs: Sequence[Run],
    times: RunTimes,
    moves: Moves,
    channels: Channels,
    sync: Sync,
    scratch: Scratch,
    lanes: int,
    options: Mapping[str, Any],
) -> Plan:
    """The plan of synchronised moves. A channel has one flag at every rank that it tells something, and all channels of
    that rank wait on it. O(instructions)."""
    factor = lanes * int(moves.pieces.max(initial=1))
    writer = _Writer(schedule, channels, sync)
    ptr = [0]
    for channel, own in enumerate(sync.moves):
        writer.begin()
        writer.signal(channel, 0)
        for count, move in enumerate(own, start=1):
            run = moves.run[move]
            writer.wait(channel, sync.waits.get(move, ()))
            parts = lanes * int(moves.pieces[run])
            part = moves.lane[move] * int(moves.pieces[run]) + moves.piece[move]
            writer.move(runs[run], part, factor // parts, factor, int(times.route[run]))
            writer.signal(channel, count)
        writer.wait(channel, sync.at_end.get(channel, ()))
        ptr.append(len(writer.rows))
    table = np.array(writer.rows, dtype=np.int64).reshape(-1, len(_NAMES))
    route = table[:, _NAMES.index("route")]
    used = np.unique(route[route >= 0])
    route[route >= 0] = np.searchsorted(used, route[route >= 0])
    segments = np.array([row for rank in scratch for row in rank], dtype=np.int64).reshape(-1, 3)
    return Plan(
        collective=schedule.collective,
        num_ranks=schedule.collective.num_ranks,
        units_per_chunk_unit=factor,
        channel_rank=channels.rank,
        channel_ptr=np.array(ptr, dtype=np.int64),
        columns=dict(zip(_NAMES, table.T, strict=True)),
        scratch_ptr=np.cumsum([0, *map(len, scratch)]),
        scratch_chunk=segments[:, 0].astype(np.int32),
        scratch_first=segments[:, 1] * factor,
        scratch_units=segments[:, 2] * factor,
        num_flags=np.array(writer.num_flags, dtype=np.int32),
        routes=Rows.of([schedule.routes[row] for row in used.tolist()]),
        topology=schedule.topology,
        name=f"{schedule.collective.kind} {schedule.provenance.get('method', '')}".strip(),
        provenance={**schedule.provenance, "lowering": dict(options)},
        runs_ahead=bool(options.get("ahead")),
    )


class _Writer:
    """Instructions of channel after channel, as rows of the plan's columns."""

    def __init__(self, schedule: Schedule, channels: Channels, sync: Sync) -> None:
        self.rows: list[list[int]] = []
        self.num_flags = [0] * schedule.collective.num_ranks
        self._signals = sync.signals
        self._rank_of = channels.rank.tolist()
        # Per channel and rank that it tells: the flag there, and its value at every mark.
        self._flags: list[dict[int, tuple[int, dict[int, int]]]] = []
        for told in sync.signals:
            marks: dict[int, list[int]] = {}
            for count, ranks in sorted(told.items()):
                for rank in ranks:
                    marks.setdefault(rank, []).append(count)
            flags = {}
            for rank, counts in sorted(marks.items()):
                flags[rank] = self.num_flags[rank], {count: i for i, count in enumerate(counts, start=1)}
                self.num_flags[rank] += 1
            self._flags.append(flags)
        self._may_grow = False

    def begin(self) -> None:
        """Let what follows be of another channel."""
        self._may_grow = False

    def signal(self, channel: int, count: int) -> None:
        """Tell all ranks that must know that the channel's first `count` moves are done, the next rank first."""
        own, num_ranks = self._rank_of[channel], len(self.num_flags)
        for rank in sorted(self._signals[channel].get(count, ()), key=lambda rank: (rank - own) % num_ranks):
            flag, values = self._flags[channel][rank]
            self._add(op=Op.SIGNAL, peer=rank, flag=flag, value=values[count])

    def wait(self, channel: int, marks: Iterable[Mark]) -> None:
        """Wait for marks of other channels."""
        for other, count in marks:
            flag, values = self._flags[other][self._rank_of[channel]]
            self._add(op=Op.WAIT, peer=self._rank_of[other], flag=flag, value=values[count])

    def move(self, run: Run, part: int, step: int, factor: int, route: int) -> None:
        """One move: part number `part` of a run, each `step` of the `factor` units that its units consist of.

        It makes the instruction before it longer if it goes on where that ends and nothing is between them.
        """
        action, length = run.first, run.units * step
        at = part * length
        second = action.src2
        row = self._row(
            op=action.op,
            peer=action.peer,
            dst_buffer=action.dst.buffer,
            dst_offset=run.dst * factor + at,
            src_buffer=action.src.buffer,
            src_offset=run.src * factor + at,
            src2_buffer=0 if second is None else second.buffer,
            src2_offset=0 if second is None else run.src2 * factor + at,
            length=length,
            route=route,
        )
        if self._may_grow:
            last = self.rows[-1]
            offsets = _OFFSETS if second is not None else _OFFSETS[:2]
            if all(last[i] == row[i] for i in _SAME) and all(last[i] + last[_LENGTH] == row[i] for i in offsets):
                last[_LENGTH] += length
                return
        self.rows.append(row)
        self._may_grow = True

    def _add(self, **values: int) -> None:
        self.rows.append(self._row(**values))
        self._may_grow = False

    @staticmethod
    def _row(
        op: int,
        peer: int,
        dst_buffer: int = 0,
        dst_offset: int = 0,
        src_buffer: int = 0,
        src_offset: int = 0,
        src2_buffer: int = 0,
        src2_offset: int = 0,
        length: int = 0,
        flag: int = 0,
        value: int = 0,
        route: int = -1,
    ) -> list[int]:
        """One instruction in the order of COLUMNS."""
        places = [dst_buffer, dst_offset, src_buffer, src_offset, src2_buffer, src2_offset]
        return [op, peer, *places, length, flag, value, route]
