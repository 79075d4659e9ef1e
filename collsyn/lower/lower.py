"""Turns a schedule into a plan: places, pieces, channels and flags for what it moves (docs/lowering.md)."""

from math import inf

import numpy as np

from collsyn.errors import InputError
from collsyn.lower.channels import make_channels, make_moves
from collsyn.lower.emit import make_plan
from collsyn.lower.flow import data_flow
from collsyn.lower.pieces import choose_cut
from collsyn.lower.places import place_actions
from collsyn.lower.runs import Offsets, RunTimes, dependencies, make_runs
from collsyn.lower.sync import synchronise
from collsyn.model.plan import Plan
from collsyn.model.schedule import Schedule

REDUCE_BY = ("get", "put")


def lower(
    schedule: Schedule,
    instances: int = 1,
    max_channels: int = 32,
    piece_bytes: int | None = None,
    reduce_by: str = "get",
) -> Plan:
    """The plan that does what a schedule says, in place and out of place, at any size.

    Every chunk is cut into `instances` parts that travel at once over channels of their own, a rank having at most
    `max_channels`; these are cut into pieces of at most `piece_bytes`, by default into as many as overlap well at the
    schedule's size. `reduce_by` says how values are joined: `get`, the receiver reads them where they stand, or `put`,
    the sender puts them next to the receiver's own. The schedule is expected to be right (`verify_schedule`); raises
    VerificationError for a send of what is not there, InputError for options. O(moves x channels) at worst.
    """
    for name, value in (("instances", instances), ("max_channels", max_channels)):
        if value < 1:
            raise InputError(f"{name}: is {value}; expected at least 1")
    if reduce_by not in REDUCE_BY:
        raise InputError(f"reduce_by: is {reduce_by!r}; expected one of {', '.join(REDUCE_BY)}")
    get = reduce_by == "get"
    flow = data_flow(schedule, by_arrival=not get)
    actions = place_actions(flow, get)
    offsets = Offsets(schedule.collective, actions)
    runs = make_runs(flow, actions, offsets, np.full(schedule.collective.num_chunks, instances == 1))
    needs, times = dependencies(runs), RunTimes.of(flow, runs)
    cut = choose_cut(schedule, runs, needs, times, instances, piece_bytes)
    if instances == 1 and cut.joined_bytes < inf:
        runs = make_runs(flow, actions, offsets, cut.pieces == 1, cut.joined_bytes)
        needs, times = dependencies(runs), RunTimes.of(flow, runs)
    channels = make_channels(runs, needs, instances, max_channels, schedule.collective.num_ranks)
    moves = make_moves(runs, needs, times, cut.pieces[[run.first.chunk for run in runs]], instances)
    sync = synchronise(runs, needs, moves, channels)
    options = {
        "instances": instances,
        "max_channels": max_channels,
        "pieces": int(cut.pieces.max(initial=1)),
        "reduce_by": reduce_by,
    }
    return make_plan(schedule, runs, times, moves, channels, sync, offsets.scratch, instances, options)
