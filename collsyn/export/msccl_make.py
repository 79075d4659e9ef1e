"""Finds the program of a schedule that a reader takes, that is right, and that simulates fastest."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from collsyn.check.simulate_plan import simulate_plan
from collsyn.errors import InputError, VerificationError
from collsyn.export.msccl import MAX_COUNT, PROTOCOLS, Dialect, Gpu, Program
from collsyn.export.msccl_check import sound_plan, verify_program
from collsyn.export.msccl_flow import Flow, Moved, data_flow
from collsyn.export.msccl_limits import dealt_problem, limit_problems
from collsyn.export.msccl_lower import make_gpus
from collsyn.export.msccl_plan import slices_at
from collsyn.lower.lower import lower, uncollected
from collsyn.model.plan import Plan
from collsyn.model.schedule import Schedule

# Simulated times this close are equally good.
ALIKE = 1.01
# How the messages between two GPUs are dealt out over channels: over so many in turns, or so that each takes a share of
# the steps that a thread block may have, which is tried only until a program fits. And how many messages that a channel
# of the plan sends to several GPUs may be under way at once (0: any).
_SHARES = (0.9, 0.6, 0.4, 0.25, 0.12)
_WINDOWS = (0, 1, 2)
_DEALS = (
    *((1, share, window) for share in (0.0, *_SHARES) for window in _WINDOWS),
    *((lanes, 0.0, 0) for lanes in (2, 4, 8)),
)
# Nodes of all programs of a plan that are compared; once one fits, no more are made beyond these.
_COMPARED_NODES = 200_000
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
        names = ", ".join(wanted.dialect.collectives)
        raise InputError(f"collective: {wanted.dialect.name} knows no {collective.kind}; it knows {names}")
    refused = ""
    with uncollected():
        for plan in _plans(source, wanted):
            fitting, refused = _fitting(plan, wanted)
            if fitting:
                return _best_right(plan, wanted, fitting)
    raise InputError(
        f"{wanted.name}: does not fit: {refused}; try fewer instances or chunks, --max-channels, or another method"
    )


def _fitting(plan: Plan, wanted: Wanted) -> tuple[list["_Timed"], str]:
    """Programs of a plan that fit, up to the first that is as fast as the plan; and why the first others do not."""
    fitting: list[_Timed] = []
    known: list[tuple[Gpu, ...]] = []
    refused, fitting_share = "", 0.0
    # At the size of what goes over the links: the protocol's flags delay the plan's messages alike.
    moved = Moved.of(plan, round(wanted.size_bytes * PROTOCOLS[wanted.protocol].bytes_on_links))
    for lanes, share, window in _DEALS:
        if share and fitting and share != fitting_share:
            continue
        messages = int(wanted.dialect.max_steps * share) if share else None
        first = dealt_problem(moved.dealt(lanes, messages), plan.num_ranks, wanted.dialect)
        if first is None:
            flow = moved.flow(lanes, messages, window)
            made = _programs(flow, wanted, _COMPARED, known)
            for program in _with_slices(made, wanted.size_bytes) if window else made:
                problems = limit_problems(program, wanted.dialect)
                if not problems:
                    fitting.append(_Timed(program, _time_s(program, plan, wanted.size_bytes)))
                    fitting_share = share
                first = first or next(iter(problems), None)
            flow.release()
        fast = any(each.time_s <= moved.finish_s * ALIKE for each in fitting)
        if fast or (fitting and len(known) * len(moved.nodes) >= _COMPARED_NODES):
            break
        if first is not None:
            refused = refused or f"{first.where}: {first.what}; expected {first.expected}, found {first.found}"
            if "steps" not in first.what:
                break
    return fitting, refused


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
    flow: Flow, wanted: Wanted, ways: tuple[tuple[bool, bool], ...], known: list[tuple[Gpu, ...]]
) -> Iterator[Program]:
    """Programs of a flow, made in several ways, but for those known already."""
    kind = flow.plan.collective.kind
    for fused, paired in ways:
        gpus = make_gpus(flow, fused, paired)
        if gpus in known:
            continue
        known.append(gpus)
        yield Program(
            name=wanted.name,
            coll=wanted.dialect.collectives[kind],
            collective=kind,
            protocol=wanted.protocol,
            num_channels=1 + max((block.channel for gpu in gpus for block in gpu.blocks), default=0),
            num_chunks=flow.num_chunks,
            in_place=wanted.in_place,
            out_of_place=wanted.out_of_place,
            min_bytes=wanted.min_bytes,
            max_bytes=wanted.max_bytes,
            gpus=gpus,
        )


def _with_slices(programs: Iterable[Program], size_bytes: int) -> Iterator[Program]:
    """Programs, and where their chunks are longer than a slice, the same of chunks that are not: the runtime sends what
    is longer slice by slice, and goes through all steps for each, which is not the order of the plan."""
    for program in programs:
        yield program
        parts = slices_at(program, size_bytes)
        if 1 < parts <= MAX_COUNT // max(step.count for *_, step in program.steps()):
            yield program.divided(parts)


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
    ways = (*_COMPARED, *_FALLBACK)
    careful = (
        program
        for program in _programs(data_flow(plan), wanted, ways, [])
        if not limit_problems(program, wanted.dialect)
    )
    why = ""
    for program in chain((each.program for each in order), careful):
        report = verify_program(program, plan.collective.root)
        if report.ok:
            time_s = None if plan.topology is None else _time_s(program, plan, wanted.size_bytes)
            return Made(program, time_s)
        why = why or str(report.problems[0])
    raise VerificationError(f"{wanted.name}: no program of it is right: {why}")


def _time_s(program: Program, plan: Plan, size_bytes: int) -> float:
    """Simulated seconds; infinite for a program that gets stuck, 0 without a topology."""
    if plan.topology is None:
        return 0.0
    try:
        made = sound_plan(program, size_bytes, plan.collective.root)
        return float(simulate_plan(made, plan.topology, size_bytes).finish_s)
    except VerificationError:
        return float("inf")
