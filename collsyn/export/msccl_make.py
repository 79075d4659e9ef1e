"""Finds the program of a schedule that a reader takes, that is right, and that simulates fastest."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import chain

from collsyn.check.simulate_plan import simulate_plan
from collsyn.errors import InputError, VerificationError
from collsyn.export.msccl import MAX_COUNT, PROTOCOLS, Dialect, Gpu, Program
from collsyn.export.msccl_check import sound_plan, verify_program
from collsyn.export.msccl_flow import Flow, Moved, Node, data_flow
from collsyn.export.msccl_limits import dealt_problem, limit_problems
from collsyn.export.msccl_lower import make_gpus
from collsyn.export.msccl_plan import slices_at
from collsyn.export.msccl_tails import cut_tails
from collsyn.export.table import executable
from collsyn.lower.lower import lower, uncollected
from collsyn.model.plan import Plan
from collsyn.model.schedule import Schedule

# Simulated times this close to that of the plan are as good.
ALIKE = 1.01
# Programs whose times are this close are as good as each other.
_SAME = 1.002
_SHARES = (0.9, 0.6, 0.4, 0.25, 0.12)
_WINDOWS = (0, 1, 2)
# Nodes of all programs of a plan that are compared; once one fits, no more are made beyond these.
_COMPARED_NODES = 200_000
# (fused, paired, part of the plan's time that a fused receive may wait), see make_gpus: the first ones are compared,
# the others tried if those are not right.
_Way = tuple[bool, bool, float]
_EAGER: tuple[_Way, ...] = ((True, False, float("inf")), (True, True, float("inf")))
_PATIENT: _Way = (True, False, 0.005)
_COMPARED: tuple[_Way, ...] = (*_EAGER, _PATIENT)
_FALLBACK: tuple[_Way, ...] = ((False, False, float("inf")),)
# Chunks are divided so that pieces fill this part of a slice, by as much as this at most.
_FULL, _MOST_PARTS = 0.98, 6


@dataclass(frozen=True)
class _Deal:
    """How the messages between two GPUs are dealt out over channels.

    Over `lanes` in turns; or so that each takes a `share` of the steps that a thread block may have, which is tried
    only until a program fits. Of what a channel of the plan sends to several GPUs, `window` messages may be under way
    at once (0: any), one in the first part `strict` of the plan's time. Tails are cut (see `cut_tails`) of whole pieces
    (True) or as long as a latency (False), and chunks divided so that they fill slices if `filled`.
    """

    lanes: int = 1
    share: float = 0.0
    window: int = 0
    strict: float = 0.0
    whole_tails: bool | None = None
    filled: bool = False

    @property
    def special(self) -> bool:
        """Whether it is more than channels and a window."""
        return self.strict > 0 or self.whole_tails is not None or self.filled

    @property
    def ways(self) -> tuple[_Way, ...]:
        """How programs are made of it: without receives that wait where order is kept."""
        if self.special:
            return (_PATIENT,)
        return _COMPARED if self.window else _EAGER


_DEALS = (
    *(_Deal(window=window) for window in _WINDOWS),
    _Deal(window=2, strict=0.3),
    _Deal(window=2, strict=0.3, whole_tails=True),
    _Deal(window=1, whole_tails=True),
    _Deal(window=1, whole_tails=False),
    _Deal(window=1, filled=True),
    _Deal(window=1, whole_tails=False, filled=True),
    *(_Deal(share=share, window=window) for share in _SHARES for window in _WINDOWS),
    *(_Deal(lanes=lanes) for lanes in (2, 4, 8)),
)


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
    source = _Source(plan, wanted)
    for deal in _DEALS:
        if (deal.share and fitting and deal.share != fitting_share) or not source.serves(deal):
            continue
        moved, parts = source.moved(deal)
        messages = int(wanted.dialect.max_steps * deal.share) if deal.share else None
        first = dealt_problem(moved.dealt(deal.lanes, messages), plan.num_ranks, wanted.dialect)
        if first is None:
            flow = moved.flow(deal.lanes, messages, deal.window, deal.strict * moved.finish_s)
            made = _programs(flow, wanted, deal.ways, moved.finish_s, known, parts)
            for program in _with_slices(made, wanted.size_bytes) if deal.window and parts == 1 else made:
                problems = limit_problems(program, wanted.dialect)
                if not problems:
                    fitting.append(_Timed(program, _time_s(program, plan, wanted.size_bytes)))
                    fitting_share = deal.share
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


class _Source:
    """The nodes of a plan, as deals want them."""

    def __init__(self, plan: Plan, wanted: Wanted) -> None:
        self._plan = plan
        # The size of what goes over the links: the protocol's flags delay the plan's messages alike.
        self._size_bytes = round(wanted.size_bytes * PROTOCOLS[wanted.protocol].bytes_on_links)
        self._plain = Moved.of(plan, self._size_bytes)
        # A chunk is this part of a slice.
        self._part = Fraction(wanted.size_bytes, plan.total_units // self._plain.chunk_units)
        self._part /= PROTOCOLS[wanted.protocol].slice_bytes
        self._known: dict[tuple[bool | None, bool], tuple[Moved, int]] = {(None, False): (self._plain, 1)}

    def serves(self, deal: _Deal) -> bool:
        """Whether a deal may be of use: only where a channel of the plan sends to several GPUs is order to be kept."""
        if deal.filled and self._filling()[0] == 1:
            return False
        return not deal.special or (self._plain.finish_s > 0 and len(self._plain.messages) > len(self._plain.channels))

    def moved(self, deal: _Deal) -> tuple[Moved, int]:
        """The nodes for a deal, and into how many parts the chunks of the program are to be divided."""
        key = (deal.whole_tails, deal.filled)
        if key not in self._known:
            parts, longest = self._filling() if deal.filled else (1, MAX_COUNT)
            cut: Callable[[list[Node]], Iterable[Node]] | None = None
            if deal.whole_tails is not None:
                piece = max(1, int(1 / self._part))
                cut = partial(cut_tails, piece=piece, whole_pieces=deal.whole_tails)
            self._known[key] = Moved.of(self._plan, self._size_bytes, longest, cut), parts
        return self._known[key]

    def _filling(self) -> tuple[int, int]:
        """Into how many parts to divide chunks for pieces to fill slices, and how many of the undivided chunks a step
        then moves at most: those that fill their pieces best."""

        def filled(parts: int, chunks: int) -> float:
            piece = int(parts / self._part)
            return float(chunks * self._part / -(-chunks * parts // piece)) if piece else 0.0

        for parts in range(1, _MOST_PARTS + 1):
            longest = max(range(1, MAX_COUNT // parts + 1), key=lambda chunks, p=parts: (filled(p, chunks), chunks))  # type: ignore[misc]
            if filled(parts, longest) >= _FULL:
                return parts, longest
        return 1, MAX_COUNT


def _plans(source: Schedule | Plan, wanted: Wanted) -> Iterator[Plan]:
    """The plan, and then plans of coarser pieces."""
    if isinstance(source, Plan):
        yield executable(source)
        return
    plan = lower(source, wanted.instances, wanted.max_channels, ahead=False)
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
            ahead=False,
        )


def _programs(
    flow: Flow,
    wanted: Wanted,
    ways: tuple[_Way, ...],
    finish_s: float,
    known: list[tuple[Gpu, ...]],
    parts: int = 1,
) -> Iterator[Program]:
    """Programs of a flow, made in several ways, but for those known already."""
    kind = flow.plan.collective.kind
    for fused, paired, patience in ways:
        if patience < 1 and not finish_s:
            continue
        gpus = make_gpus(flow, fused, paired, patience * finish_s if patience < 1 else patience)
        if gpus in known:
            continue
        known.append(gpus)
        program = Program(
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
        yield program if parts == 1 else program.divided(parts)


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
    best_s = min(each.time_s for each in fitting) * _SAME
    # Of those that are about as fast, the one of fewest steps: it passes over memory least often.
    order = sorted(fitting, key=lambda each: (max(each.time_s, best_s), each.num_steps))
    ways = (*_COMPARED, *_FALLBACK)
    careful = (
        program
        for program in _programs(data_flow(plan), wanted, ways, 0.0, [])
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
