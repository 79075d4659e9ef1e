"""Finds the program of a schedule that a reader takes, that is right, and that simulates fastest."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from collsyn.check.simulate_plan import simulate_plan
from collsyn.errors import InputError, VerificationError
from collsyn.export.msccl import Dialect, Program
from collsyn.export.msccl_check import MscclFile, verify_program
from collsyn.export.msccl_flow import data_flow
from collsyn.export.msccl_limits import limit_problems
from collsyn.export.msccl_lower import make_gpus
from collsyn.lower.lower import lower
from collsyn.model.plan import Plan
from collsyn.model.schedule import Schedule

# Simulated times this close are equally good.
ALIKE = 1.01
# How the messages between two GPUs are dealt out over channels: over so many in turns, or so that each takes a share of
# the steps that a thread block may have, for which there is need only until a program fits.
_DEALS = ((1, 0.0), (1, 0.9), (1, 0.6), (1, 0.4), (1, 0.25), (1, 0.12), (2, 0.0), (4, 0.0), (8, 0.0))
# (fused, paired), see make_gpus: the first ones are compared, the others tried if those are not right.
_COMPARED = ((True, False), (True, True))
_FALLBACK = ((False, False),)


@dataclass(frozen=True)
class Wanted:
    """What a program is to be: reader, protocol, permissions, the sizes that use it, and the size it is made for."""

    dialect: Dialect
    protocol: str
    in_place: bool
    out_of_place: bool
    min_bytes: int
    max_bytes: int
    size_bytes: int
    name: str
    instances: int = 1
    max_channels: int = 32


@dataclass(frozen=True)
class Made:
    """A verified program, and its simulated time at its size (None without a topology)."""

    program: Program
    time_s: float | None


def make_program(source: Schedule | Plan, wanted: Wanted) -> Made:
    """The fastest of some programs of a schedule (or plan) that fit into the reader's tables; it is verified.

    A schedule is lowered with coarser pieces, and messages are dealt out over more channels, until the program fits.
    Raises InputError that names the limit if none does, VerificationError if none is right.
    """
    collective = source.collective
    if collective.kind not in wanted.dialect.collectives:
        known = ", ".join(wanted.dialect.collectives)
        raise InputError(f"collective: {wanted.dialect.name} knows no {collective.kind}; it knows {known}")
    refused: str | None = None
    for plan in _plans(source, wanted):
        fitting: list[_Timed] = []
        goal_s = _plan_s(plan, wanted.size_bytes) * ALIKE
        for lanes, share in _DEALS:
            if share and fitting:
                continue
            messages = int(wanted.dialect.max_steps * share) if share else None
            programs = list(_programs(plan, wanted, lanes, messages))
            problems = [limit_problems(program, wanted.dialect) for program in programs]
            fitting += [
                _Timed(program, _time_s(program, plan, wanted.size_bytes))
                for program, found in zip(programs, problems, strict=True)
                if not found
            ]
            if any(each.time_s <= goal_s for each in fitting):
                break
            if problems[0]:
                first = problems[0][0]
                refused = f"{first.where}: {first.what}; expected {first.expected}, found {first.found}"
                if "steps" not in first.what:
                    break
        if fitting:
            return _best_right(plan, wanted, fitting)
    raise InputError(
        f"{wanted.name}: does not fit: {refused}; try fewer instances or chunks, --max-channels, or another method"
    )


def _plans(source: Schedule | Plan, wanted: Wanted) -> Iterator[Plan]:
    """The plan, and then plans of coarser pieces."""
    if isinstance(source, Plan):
        yield source
        return
    plan = lower(source, wanted.instances, wanted.max_channels)
    yield plan
    notes = plan.provenance["lowering"]
    chunk_bytes = float(source.collective.chunk_bytes(source.size_bytes).max())
    pieces = int(notes["pieces"])
    while pieces > 1:
        pieces //= 2
        longest = max(1, round(chunk_bytes / wanted.instances / pieces))
        yield lower(
            source,
            wanted.instances,
            wanted.max_channels,
            longest,
            notes["reduce_by"],
            notes["channels_by"],
            notes["paced"],
        )


def _programs(
    plan: Plan,
    wanted: Wanted,
    lanes: int,
    messages: int | None,
    timed: bool = True,
    ways: tuple[tuple[bool, bool], ...] = _COMPARED,
) -> Iterator[Program]:
    """Programs of a plan, made in several ways; equal ones once."""
    flow = data_flow(plan, wanted.size_bytes if timed else None, lanes, messages)
    known = []
    for fused, paired in ways:
        gpus = make_gpus(flow, fused, paired)
        if gpus in known:
            continue
        known.append(gpus)
        yield Program(
            name=wanted.name,
            coll=wanted.dialect.collectives[plan.collective.kind],
            collective=plan.collective.kind,
            protocol=wanted.protocol,
            num_channels=1 + max((block.channel for gpu in gpus for block in gpu.blocks), default=0),
            num_chunks=flow.num_chunks,
            in_place=wanted.in_place,
            out_of_place=wanted.out_of_place,
            min_bytes=wanted.min_bytes,
            max_bytes=wanted.max_bytes,
            gpus=gpus,
        )


@dataclass(frozen=True)
class _Timed:
    """A program that fits, and its simulated seconds (infinite if it gets stuck, 0 without a topology)."""

    program: Program
    time_s: float

    @property
    def num_steps(self) -> int:
        """Steps of all thread blocks."""
        return sum(1 for _ in self.program.steps())


def _best_right(plan: Plan, wanted: Wanted, fitting: list[_Timed]) -> Made:
    """The fastest that is right; where none is, one that is made with more care."""
    best_s = min(each.time_s for each in fitting) * ALIKE
    # Of those that are about as fast, the one of fewest steps: it passes over memory least often.
    order = sorted(fitting, key=lambda each: (max(each.time_s, best_s), each.num_steps))
    careful = (
        program
        for program in _programs(plan, wanted, 1, None, timed=False, ways=(*_COMPARED, *_FALLBACK))
        if not limit_problems(program, wanted.dialect)
    )
    why = ""
    for program in chain((each.program for each in order), careful):
        report = verify_program(program)
        if report.ok:
            time_s = None if plan.topology is None else _time_s(program, plan, wanted.size_bytes)
            return Made(program, time_s)
        why = why or str(report.problems[0])
    raise VerificationError(f"{wanted.name}: no program of it is right: {why}")


def _plan_s(plan: Plan, size_bytes: int) -> float:
    """Simulated seconds of a plan, 0 without a topology."""
    return 0.0 if plan.topology is None else float(simulate_plan(plan, plan.topology, size_bytes).finish_s)


def _time_s(program: Program, plan: Plan, size_bytes: int) -> float:
    """Simulated seconds; infinite for a program that gets stuck, 0 without a topology."""
    if plan.topology is None:
        return 0.0
    try:
        made = MscclFile(program).plan(size_bytes)
        return float(simulate_plan(made, plan.topology, size_bytes).finish_s)
    except VerificationError:
        return float("inf")
