"""Turns a schedule into a plan: places, pieces, channels and flags for what it moves (docs/lowering.md)."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from collsyn.errors import InputError
from collsyn.lower.channels import LINES, Channels, make_channels, make_moves
from collsyn.lower.emit import make_plan
from collsyn.lower.flow import Flow, data_flow
from collsyn.lower.pacing import paces
from collsyn.lower.pieces import choose_cut
from collsyn.lower.places import place_actions
from collsyn.lower.runs import Offsets, Run, RunTimes, dependencies, make_runs
from collsyn.lower.sync import synchronise
from collsyn.model.arrays import I64
from collsyn.model.plan import Plan
from collsyn.model.schedule import REDUCE, RouteCosts, Schedule

REDUCE_BY = ("put", "get")
# Of plans with more moves not all variants are compared: other channels still are, up to the second number.
COMPARED_MOVES, COMPARED_LINES = 20_000, 60_000
# A variant must be faster by this share to replace one that comes before it.
WORTH_IT = 0.01


def lower(
    schedule: Schedule,
    instances: int = 1,
    max_channels: int = 32,
    piece_bytes: int | None = None,
    reduce_by: str | None = None,
    channels_by: str | None = None,
    paced: bool | None = None,
    ahead: bool | None = None,
) -> Plan:
    """The plan that does what a schedule says, in place and out of place, at any size.

    Every chunk is cut into `instances` parts that travel at once over channels of their own, a rank having at most
    `max_channels`; these are cut into pieces of at most `piece_bytes`, by default into as many as overlap well at the
    schedule's size. `reduce_by` says how values are joined: `get`, the receiver reads them where they stand, or `put`,
    the sender puts them next to the receiver's own; `channels_by` what has a channel of its own: a rank's use of a
    `link`, in the schedule's order, or of a `peer`; `paced` whether messages of several ranks wait for each other to
    keep the schedule's order on a link; `ahead` whether ranks may put into scratch of others that have not begun the
    call, so that nothing is waited for at its begin (`Plan.runs_ahead`). What is left open (None) is what simulates
    fastest, except that ranks whose own time reducing takes get, which spares them a pass over memory.

    The schedule is expected to be right (`verify_schedule`); raises VerificationError for a send of what is not there,
    InputError for options. O(moves x channels) at worst.
    """
    for name, value in (("instances", instances), ("max_channels", max_channels)):
        if value < 1:
            raise InputError(f"{name}: is {value}; expected at least 1")
    ways = _choices("reduce_by", reduce_by, REDUCE_BY, _ways_to_reduce(schedule))
    lines = _choices("channels_by", channels_by, LINES, LINES)
    with uncollected():
        search = _Search(schedule)
        works: dict[str, _Work] = {}
        for way in ways:
            if search.plan is not None and not works[search.way].is_at_most(2 * COMPARED_MOVES):
                break
            works[way] = _Work.of(schedule, instances, max_channels, piece_bytes, way)
            for line in lines:
                most = COMPARED_LINES if way == ways[0] else COMPARED_MOVES
                if search.plan is None or (works[way].is_at_most(most) and not works[way].is_known(line)):
                    search.consider(works[way].plan(line, bool(paced)), way)
        work = works[search.way]
        if paced is None and work.is_at_most(COMPARED_LINES):
            for line in lines:
                if work.is_contended(line):
                    search.consider(work.plan(line, True), search.way)
        if ahead or (ahead is None and _may_gain(schedule) and work.is_at_most(COMPARED_MOVES)):
            way = "put" if "put" in ways else ways[0]
            early = _Work.of(schedule, instances, max_channels, piece_bytes, way, True)
            if ahead:
                search = _Search(schedule)
            for line in lines:
                for turns in (paced,) if paced is not None else (False, True):
                    if not turns or paced or early.is_contended(line):
                        search.consider(early.plan(line, bool(turns)), way)
        assert search.plan is not None
        return search.plan


def _may_gain(schedule: Schedule) -> bool:
    """Whether sparing the way of a signal could be worth it."""
    alpha_s = RouteCosts.of(schedule.topology, schedule.routes).alpha_s[schedule.route]
    return float(alpha_s.max(initial=0.0)) > WORTH_IT * schedule.finish_s


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection, which would spend half the time on looking through millions of small objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _ways_to_reduce(schedule: Schedule) -> Sequence[str]:
    if schedule.topology.reduce_s_per_byte.any():
        return ("get",)
    return REDUCE_BY if (schedule.op == REDUCE).any() else ("put",)


def _choices(name: str, given: str | None, known: Sequence[str], possible: Sequence[str]) -> Sequence[str]:
    if given is None:
        return possible
    if given not in known:
        raise InputError(f"{name}: is {given!r}; expected one of {', '.join(known)}")
    return (given,)


class _Search:
    """The best plan so far; plans are simulated only when there is more than one."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._time_s: float | None = None
        self.plan: Plan | None = None
        self.way = ""

    def consider(self, plan: Plan, way: str) -> None:
        """Keep a plan if it is the first or clearly faster."""
        if self.plan is None:
            self.plan, self.way = plan, way
            return
        if self._time_s is None:
            self._time_s = self._simulated_s(self.plan)
        time_s = self._simulated_s(plan)
        if time_s < self._time_s * (1 - WORTH_IT):
            self.plan, self.way, self._time_s = plan, way, time_s

    def _simulated_s(self, plan: Plan) -> float:
        from collsyn.check.simulate_plan import simulate_plan

        return float(simulate_plan(plan, self._schedule.topology, self._schedule.size_bytes).finish_s)


@dataclass(frozen=True, eq=False)
class _Work:
    """What is to be done, before it is dealt out to channels."""

    flow: Flow
    offsets: Offsets
    runs: list[Run]
    needs: list[list[int]]
    times: RunTimes
    pieces: I64
    lanes: int
    max_channels: int
    way: str
    ahead: bool

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        lanes: int,
        max_channels: int,
        piece_bytes: int | None,
        way: str,
        ahead: bool = False,
    ) -> "_Work":
        """Place and cut everything, messages joined as far as that leaves good pieces."""
        get = way == "get"
        flow = data_flow(schedule, by_arrival=not get)
        actions = place_actions(flow, get, ahead)
        whole = np.full(schedule.collective.num_chunks, lanes == 1)
        tried = []
        for by_layer in (False, True):
            offsets = Offsets(schedule.collective, actions, by_layer)
            tried.append((make_runs(flow, actions, offsets, whole), offsets))
        runs, offsets = min(tried, key=lambda each: len(each[0]))
        needs, times = dependencies(runs), RunTimes.of(flow, runs)
        cut = choose_cut(schedule, runs, needs, times, lanes, piece_bytes)
        if lanes == 1 and cut.joined_bytes < inf:
            runs = make_runs(flow, actions, offsets, cut.pieces == 1, cut.joined_bytes)
            needs, times = dependencies(runs), RunTimes.of(flow, runs)
        pieces = cut.pieces[[run.first.chunk for run in runs]]
        return cls(flow, offsets, runs, needs, times, pieces, lanes, max_channels, way, ahead)

    def is_at_most(self, moves: int) -> bool:
        """Whether plans have at most that many moves."""
        return int(self.pieces.sum()) * self.lanes <= moves

    @cached_property
    def paces(self) -> list[list[int]]:
        """The runs to be waited for if the plan is paced."""
        return paces(self.flow, self.runs)

    @cached_property
    def _channels(self) -> dict[str, Channels]:
        return {}

    def channels(self, line: str) -> Channels:
        """The channels by link or peer."""
        if line not in self._channels:
            self._channels[line] = make_channels(self.flow, self.runs, self.needs, self.lanes, self.max_channels, line)
        return self._channels[line]

    def is_known(self, line: str) -> bool:
        """Whether other channels that were made are the same."""
        others = [channels.of_run for known, channels in self._channels.items() if known != line]
        return self.channels(line).of_run in others

    def is_contended(self, line: str) -> bool:
        """Whether pacing would make any channel wait for another."""
        of_run = self.channels(line).of_run
        return any(of_run[before] != of_run[run] for run, earlier in enumerate(self.paces) for before in earlier)

    def plan(self, line: str, paced: bool) -> Plan:
        """The plan with channels by link or peer."""
        order = self.paces if paced else [[] for _ in self.runs]
        moves = make_moves(self.runs, self.needs, order, self.times, self.pieces, self.lanes)
        channels = self.channels(line)
        sync = synchronise(self.runs, self.needs, order, moves, channels, self.ahead)
        options: Mapping[str, object] = {
            "instances": self.lanes,
            "max_channels": self.max_channels,
            "pieces": int(self.pieces.max(initial=1)),
            "reduce_by": self.way,
            "channels_by": line,
            "paced": paced,
            **({"ahead": True} if self.ahead else {}),
        }
        schedule, scratch = self.flow.schedule, self.offsets.scratch
        return make_plan(schedule, self.runs, self.times, moves, channels, sync, scratch, self.lanes, options)
