"""Gives every version of a chunk a place in its rank's memory, and turns sends into actions that fill these places."""

from collections import defaultdict
from dataclasses import dataclass
from math import inf

import numpy as np

from collsyn.check.replay import members
from collsyn.lower.flow import Flow, Version
from collsyn.model.collective import Collective
from collsyn.model.plan import Buffer, Op
from collsyn.model.schedule import RouteCosts

_AT_END = 1 << 60


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A chunk's place in a buffer of a rank; `memory` is equal for places that are one memory in place.

    Places of one `layer` of a rank's scratch stand together, in the order of their chunks (-1: not in scratch).
    """

    rank: int
    buffer: Buffer
    chunk: int
    memory: int
    layer: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class Action:
    """One movement of a whole chunk by `rank`; `position` puts actions that conflict in order.

    `row` is the send it belongs to (-1: none, nothing waits for it, and it may come last), `partner` the other rank of
    that send (-1: none). `arrives` says that it takes over what the send has brought into a landing place.
    """

    position: tuple[int, int]
    op: Op
    rank: int
    row: int
    chunk: int
    dst: Place
    src: Place
    src2: Place | None = None
    partner: int = -1
    arrives: bool = False

    @property
    def peer(self) -> int:
        """The rank whose memory the action reaches into, -1 if it does not."""
        return -1 if self.op in (Op.COPY, Op.REDUCE) else self.partner


def place_actions(flow: Flow, get: bool, ahead: bool = False) -> list[Action]:
    """Actions for all versions of a schedule, by position.

    With `get`, a reduction is one action of the receiver that reads the sender's value where it stands, if that keeps
    the order of positions and waits for nothing that the schedule does not wait for; else (and always without) the
    sender puts its value into a landing place and the receiver reduces it from there. With `ahead`, what comes from a
    rank that has not yet heard of the receiver goes to scratch, and to the output by a copy. O(actions log actions).
    """
    return _Placement(flow, get, ahead).actions()


def _unheard(flow: Flow) -> list[bool]:
    """The sends whose sender knows by nothing that has come to it that the receiver has begun the call."""
    schedule = flow.schedule
    src, dst = schedule.src.tolist(), schedule.dst.tolist()
    heard = [1 << rank for rank in range(schedule.collective.num_ranks)]
    events = np.empty(2 * len(src), dtype=np.int64)
    events[flow.read_at], events[flow.write_at] = 2 * np.arange(len(src)), 2 * np.arange(len(src)) + 1
    carried = [0] * len(src)
    found = [False] * len(src)
    for event in events.tolist():
        row = event >> 1
        if event & 1:
            heard[dst[row]] |= carried[row]
        else:
            carried[row] = heard[src[row]]
            found[row] = not carried[row] >> dst[row] & 1
    return found


class _Placement:
    """Places of all versions, and when they are made."""

    def __init__(self, flow: Flow, get: bool, ahead: bool) -> None:
        self.flow, self.get = flow, get
        # Sends that may not go to the output at once, since nobody knows whether it is still in use.
        self.early = _unheard(flow) if ahead else [False] * flow.schedule.num_sends
        self.collective: Collective = flow.schedule.collective
        self.read_at: list[int] = flow.read_at.tolist()
        self.write_at: list[int] = flow.write_at.tolist()
        self.start_s: list[float] = flow.start_s.tolist()
        self.done_s: list[float] = flow.done_s.tolist()
        # How long a rank that waits for a place to be free takes to hear of it.
        schedule = flow.schedule
        self.told_s: list[float] = RouteCosts.of(schedule.topology, schedule.routes).alpha_s[schedule.route].tolist()
        self.src: list[int] = flow.schedule.src.tolist()
        self.dst: list[int] = flow.schedule.dst.tolist()
        self.place: dict[Version, Place] = {}
        self.made: dict[Version, tuple[int, int]] = {}
        self.landing: dict[int, Place] = {}
        self.left: list[tuple[Version, Place]] = []
        # The layer in which what a message brings to a rank begins to be kept, for landing and for good.
        self.layer_of: dict[tuple[int, bool], int] = {}
        self.batch: list[int] = schedule.batch.tolist()
        self._memories = 0
        aliased = _aliased(self.collective)
        outputs = {
            cell: self.new_place(cell[0], Buffer.OUTPUT, cell[1])
            for cell in zip(*(ids.tolist() for ids in members(flow.schedule, self.collective.post)), strict=True)
        }
        for (rank, chunk), own in flow.own.items():
            shared = outputs[rank, chunk].memory if (rank, chunk) in aliased and not own.final else None
            self.place[own] = self.new_place(rank, Buffer.INPUT, chunk, shared)
            if own.final:
                self.left.append((own, outputs.pop((rank, chunk))))
        cells: dict[tuple[int, int], list[Version]] = defaultdict(list)
        for version in flow.versions:
            cells[version.rank, version.chunk].append(version)
        for cell, versions in cells.items():
            _Cell(self, versions, outputs.get(cell), cell in aliased).place_all()

    def new_place(self, rank: int, buffer: Buffer, chunk: int, memory: int | None = None, layer: int = -1) -> Place:
        """A place of its own, or one that is another's memory in place."""
        self._memories += 1
        return Place(rank, buffer, chunk, self._memories - 1 if memory is None else memory, layer)

    def actions(self) -> list[Action]:
        """The actions that make all versions, by position."""
        found = []
        for version in self.flow.versions:
            row, dst, base = version.row, self.place[version], version.base
            here, there = self.src[row], self.dst[row]
            local = here == there
            src = self.place[self.flow.source[row]]
            src2 = None if base is None else self.place[base]
            joins, at = Op.COPY if base is None else Op.REDUCE, self.made[version]
            bring, other = (Op.COPY, -1) if local else (Op.PUT, there)
            if row in self.landing:
                waiting = self.landing[row]
                sent_at = (self.read_at[row], at[1])
                found.append(Action(sent_at, bring, here, row, version.chunk, waiting, src, partner=other))
                found.append(Action(at, joins, there, row, version.chunk, dst, waiting, src2, here, not local))
            elif local or base is not None:
                op = joins if local else Op.GET_REDUCE
                found.append(Action(at, op, there, row, version.chunk, dst, src, src2, -1 if local else here))
            else:
                found.append(Action(at, Op.PUT, here, row, version.chunk, dst, src, partner=there))
        for version, output in self.left:
            at = (_AT_END, len(found))
            found.append(Action(at, Op.COPY, version.rank, -1, version.chunk, output, self.place[version]))
        return sorted(found, key=lambda action: action.position)


def _aliased(collective: Collective) -> set[tuple[int, int]]:
    """Pairs (rank, chunk) whose input is their output in place."""
    if not collective.has_in_place:
        return set()
    pairs = set()
    for rank in range(collective.num_ranks):
        if collective.in_place_chunk(rank)[0] != "apart":
            both = set(collective.held_by(rank).tolist()) & set(collective.wanted_by(rank).tolist())
            pairs |= {(rank, chunk) for chunk in both}
    return pairs


class _Stay:
    """A time in which a place is taken, as positions and in seconds: from a beginning to the last use of the last of
    some versions that joined each other there, or to a known end (of a landing)."""

    __slots__ = ("begin", "begin_s", "end", "end_s", "version")

    def __init__(self, begin: int, begin_s: float, version: Version | None, end: int = -1, end_s: float = -inf) -> None:
        self.begin, self.begin_s, self.version, self.end, self.end_s = begin, begin_s, version, end, end_s


class _Cell:
    """The places of one chunk at one rank: its output, if the result is not what is in the input, and scratch."""

    def __init__(self, all_places: _Placement, versions: list[Version], output: Place | None, aliased: bool) -> None:
        self._all = all_places
        self._tolerance_s = all_places.flow.tolerance_s
        self._versions = versions
        self._final = next((version for version in versions if version.final), None)
        own = all_places.flow.own.get((versions[0].rank, versions[0].chunk))
        self._output = output
        self._stays: dict[Place, list[_Stay]] = {}
        if output is not None:
            self._stays[output] = [_Stay(-1, -inf, own)] if aliased and own is not None else []
        self._pure: set[Version] = set()
        version = None if self._final is None else self._final.base
        while version is not None and not version.readers:
            self._pure.add(version)
            version = version.base

    def place_all(self) -> None:
        """Place all versions of the cell, each behind its base."""
        for number, version in enumerate(self._by_time()):
            self._place(version, number)

    def _by_time(self) -> list[Version]:
        """Versions of several slots in the order in which they are written, as far as bases allow."""
        time: dict[Version | None, int] = {None: -1}
        for version in self._versions:
            time[version] = max(self._all.write_at[version.row], time.get(version.base, -1))
        return sorted(self._versions, key=time.__getitem__)

    def _place(self, version: Version, number: int) -> None:
        row, base = version.row, version.base
        ready = -1 if base is None or base.row < 0 else self._all.made[base][0]
        read_at, start_s = self._all.read_at[row], self._all.start_s[row]
        joined_at, done_s = max(self._all.write_at[row], ready), self._all.done_s[row]
        local = self._all.src[row] == self._all.dst[row]
        direct = ready < read_at and (self._all.get or base is None or local)
        tries = ([(read_at, start_s)] if direct else []) + [(joined_at, done_s)]
        if version.final:
            places = [self._output] if self._output is not None and not self._all.early[row] else []
            for at, at_s in tries:
                if self._enter(version, places, at, at_s):
                    return self._made(version, at, number)
            # Nothing but the end of the call is late enough to overwrite the output, or sure to have it.
            assert self._output is not None
            self._all.left.append((version, self._output))
        at, at_s = tries[0]
        if not self._enter(version, self._candidates(version), at, at_s):
            place = self._all.place[version] = self._new_scratch(version, False)
            self._stays[place] = [_Stay(at, at_s, version)]
        self._note_layer(version, self._all.place[version], False)
        return self._made(version, at, number)

    def _made(self, version: Version, at: int, number: int) -> None:
        """Note when a version is made, and find room for what has to land before."""
        self._all.made[version] = (at, number)
        row = version.row
        if at == self._all.read_at[row]:
            return
        stay = _Stay(self._all.read_at[row], self._all.start_s[row], None, at, self._all.done_s[row])
        early = _Stay(stay.begin, stay.begin_s - self._all.told_s[row], None, stay.end, stay.end_s)
        for place in self._by_layer([place for place in self._stays if place is not self._output], version, True):
            stays = self._stays[place]
            if all(self._apart(early, other, None) for other in stays):
                break
        else:
            place = self._new_scratch(version, True)
            stays = self._stays[place] = []
        stays.append(stay)
        self._all.landing[row] = place
        self._note_layer(version, place, True)

    def _new_scratch(self, version: Version, lands: bool) -> Place:
        """A place in the layer of what came with the version, if the chunk has none there, else in the lowest one."""
        taken = {place.layer for place in self._stays}
        layer = self._layer(version, lands)
        if layer < 0 or layer in taken:
            layer = next(number for number in range(len(taken) + 1) if number not in taken)
        return self._all.new_place(version.rank, Buffer.SCRATCH, version.chunk, layer=layer)

    def _layer(self, version: Version, lands: bool) -> int:
        """The layer that other chunks of the message are in, -1 if there is none."""
        return self._all.layer_of.get((self._all.batch[version.row], lands), -1)

    def _note_layer(self, version: Version, place: Place, lands: bool) -> None:
        batch = self._all.batch[version.row]
        if batch >= 0 and place.layer >= 0:
            self._all.layer_of.setdefault((batch, lands), place.layer)

    def _by_layer(self, places: list[Place], version: Version, lands: bool) -> list[Place]:
        """Places in the layer of what came with the version, or the others if the chunk may not have one there."""
        layer = self._layer(version, lands)
        if layer < 0:
            return places
        return [place for place in places if place.layer in (layer, -1)]

    def _candidates(self, version: Version) -> list[Place]:
        """Where a version that is not written into the output for good may go: with its base, if that can be."""
        places = [place for place in self._stays if place is not self._output or self._may_use_output(version)]
        home = None if version.base is None else self._all.place[version.base]
        nearby = self._by_layer(places, version, False)
        return sorted(nearby if home not in places else places, key=lambda place: place is not home)

    def _may_use_output(self, version: Version) -> bool:
        """Whether a version is no longer needed when the result is written."""
        final = self._final
        if version.final or final is None or self._all.early[version.row]:
            return False
        if version in self._pure:
            return True
        end, end_s = self._uses(version, final)
        return end < self._all.read_at[final.row] and end_s <= self._all.start_s[final.row] + self._tolerance_s

    def _enter(self, version: Version, places: list[Place], at: int, at_s: float) -> bool:
        """Put a version into the first place that is free for it, beginning at a position and time."""
        stay, row = _Stay(at, at_s, version), version.row
        # A result has no other place to go to than the output.
        if not version.final and self._all.src[row] != self._all.dst[row] and at == self._all.read_at[row]:
            stay = _Stay(at, at_s - self._all.told_s[row], version)
        for place in places:
            stays = self._stays[place]
            if all(self._apart(stay, other, version) for other in stays):
                joined = next((other for other in stays if other.version is version.base), None)
                if joined is not None and version.base is not None:
                    joined.version = version
                else:
                    stays.append(stay)
                self._all.place[version] = place
                return True
        return False

    def _apart(self, new: _Stay, old: _Stay, version: Version | None) -> bool:
        """Whether two stays do not meet, neither by position nor by time; a version may follow its base at once."""
        joins = version is not None and old.version is not None and old.version is version.base
        end, end_s = self._end(old, version if joins else None)
        if end < new.begin and end_s <= new.begin_s + self._tolerance_s:
            return True
        end, end_s = self._end(new, None)
        return end < old.begin and end_s <= old.begin_s + self._tolerance_s

    def _end(self, stay: _Stay, without: Version | None) -> tuple[int, float]:
        """Last position and time of a stay; if `without` takes over, neither its reading nor what it joins counts."""
        if stay.version is None:
            return stay.end, stay.end_s
        end, end_s = self._uses(stay.version, without)
        if without is None:
            made = self._all.made.get(stay.version, (stay.begin, 0))[0]
            done_s = self._all.done_s[stay.version.row] if stay.version.row >= 0 else -inf
            end, end_s = max(end, made), max(end_s, done_s)
        return end, end_s

    def _uses(self, version: Version, without: Version | None) -> tuple[int, float]:
        """Last position and time at which a version is read; not by `without`."""
        if version.final:
            return _AT_END, inf
        end, end_s = -1, -inf
        for row in version.readers:
            end, end_s = max(end, self._all.read_at[row]), max(end_s, self._all.done_s[row])
        after = version.after
        if after is not None and after is not without:
            made = self._all.made[version][0] if version in self._all.made else -1
            end = max(end, self._all.write_at[after.row], made)
            end_s = max(end_s, self._all.done_s[after.row])
        return end, end_s
