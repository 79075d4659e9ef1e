"""Judges MSCCL programs as their runtimes run them: form, limits, channels, deadlocks, hazards, and the result."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from collsyn.check.interleave import interleaving
from collsyn.check.plan_checks import Trial, data_problems
from collsyn.check.races import races_of
from collsyn.check.report import SHOWN, Findings, Problem, Report
from collsyn.check.words import ranks
from collsyn.errors import InputError, VerificationError
from collsyn.export.msccl import MAX_COUNT, Program, shard_chunks, where
from collsyn.export.msccl_form import (
    bound_problems,
    dependency_problems,
    fifo_problems,
    form_problems,
    peer_problems,
)
from collsyn.export.msccl_limits import readers
from collsyn.export.msccl_plan import FifoPlan, collective_of, fifo_plan, iterations_at
from collsyn.export.msccl_read import read_program
from collsyn.lower.lower import uncollected
from collsyn.model.bind import bind
from collsyn.model.collective import Collective
from collsyn.model.kinds import ROOTED
from collsyn.model.plan import Buffer, Op

CHECKS = ("form", "peers", "bounds", "channels", "dependencies", "limits", "deadlock", "hazards", "result", "data")
# Elements of all ranks together in a run on data; larger programs are not judged.
MAX_ELEMENTS = 1 << 24
_MANY_INSTRUCTIONS = 20_000

_SOUND: tuple[tuple[str, Callable[[Program], Iterator[Problem]]], ...] = (
    ("form", form_problems),
    ("peers", peer_problems),
    ("bounds", bound_problems),
    ("channels", fifo_problems),
    ("dependencies", dependency_problems),
)
# Contributions to a chunk: (GPU, chunk of its input) -> how often; GARBAGE where nothing was ever written.
_Value = Mapping[tuple[int, int], int]
_GARBAGE: _Value = {(-1, -1): 1}


@dataclass(frozen=True, eq=False)
class MscclFile:
    """A program that was read from a file, with what is asked of foreign files."""

    program: Program

    def verify(self) -> Report:
        """All checks of the program."""
        return verify_program(self.program)

    def plan(self, size_bytes: int | None = None) -> FifoPlan:
        """The program as a plan, cut into the pieces that it travels in at a size (whole messages without one)."""
        return sound_plan(self.program, size_bytes)


def read_msccl(raw: bytes, path: str) -> MscclFile:
    """The program of an MSCCL XML file; raises InputError that names file and line."""
    return MscclFile(read_program(raw, path))


def verify_program(program: Program, root: int | None = None) -> Report:
    """The report of a program, with one check for each of CHECKS; `root` is found where it is not given.

    Deadlocks are looked for with the pieces that the largest and the smallest size of the file lead to. Flags only
    rise and each is raised by one thread block, so that one order of the thread blocks stands for all of them: in it
    hazards are found by vector clocks, and the contributions of every chunk are followed one by one. Real data is
    moved in several orders besides, in every way (in place, out of place) that the file permits. Raises InputError for
    programs too large to judge. O(steps x thread blocks) at worst.
    """
    with uncollected():
        return _verified(program, root)


def _verified(program: Program, root: int | None) -> Report:
    findings = Findings("msccl-xml")
    for name, problems in _SOUND:
        if not findings.add(name, list(problems(program)), _covered(program, name)):
            findings.skip(CHECKS[len(findings.checks) :], f"{name} is wrong")
            return findings.report()
    taken = readers(program)
    refused = [problems[0] for problems in taken.values() if problems]
    detail = ", ".join(name if not problems else f"not {name} ({problems[0]})" for name, problems in taken.items())
    findings.add("limits", [] if len(refused) < len(taken) else refused, detail)
    _check_size(program)
    modes = [in_place for in_place, allowed in ((False, program.out_of_place), (True, program.in_place)) if allowed]
    first = _order(program, _pieces(program)[0], root or 0)
    stuck = [first] if isinstance(first, Problem) else deadlock_problems(program, _pieces(program)[1:])
    if isinstance(first, Problem) or stuck:
        findings.add("deadlock", stuck, "")
        findings.skip(CHECKS[len(findings.checks) :], "it ends in a deadlock")
        return findings.report()
    findings.add("deadlock", [], _deadlock_detail(program))
    if root is None and program.collective in ROOTED:
        root = _best_root(first)
        first = _Ordered.of(fifo_plan(program, not program.out_of_place, root, _pieces(program)[0]))
    runs = [first, *(_Ordered.of(fifo_plan(program, mode, root or 0, _pieces(program)[0])) for mode in modes[1:])]
    findings.add("hazards", [problem for run in runs for problem in _hazards(run)][:SHOWN], "none")
    told = f"root {root}" if program.collective in ROOTED else "every contribution once"
    findings.add("result", [problem for run in runs for problem in _result(run, root or 0)][:SHOWN], told)
    trials = [(run.plan, trial) for run in runs for trial in _trials(run.plan)]
    found = [] if not findings.ok else [problem for plan, trial in trials for problem in data_problems(plan, trial)]
    if findings.ok:
        findings.add("data", found, f"{len(trials)} runs")
    else:
        findings.skip(["data"], "the result is open")
    return findings.report()


@dataclass(frozen=True, eq=False)
class _Ordered:
    """A plan, and an order in which its instructions may run."""

    plan: FifoPlan
    order: list[int]

    @classmethod
    def of(cls, plan: FifoPlan) -> "_Ordered":
        """Any such order; raises VerificationError for a deadlock."""
        return cls(plan, interleaving(plan))


def deadlock_problems(program: Program, pieces: Iterable[int] | None = None) -> list[Problem]:
    """Whether the program gets stuck, with the pieces of its largest size or of its smallest (or those given)."""
    for longest in dict.fromkeys(_pieces(program) if pieces is None else pieces):
        found = _order(program, longest, 0)
        if isinstance(found, Problem):
            return [found]
    return []


def _pieces(program: Program) -> tuple[int, int]:
    """Chunks of a piece at most, at the largest size and at the smallest; not more than any step moves."""
    most = max((step.count for *_, step in program.steps()), default=1)
    return min(program.shortest_piece(), most), min(program.longest_piece(program.min_bytes), most)


def _order(program: Program, longest: int, root: int) -> _Ordered | Problem:
    """The plan of a program in pieces of up to so many chunks, in some order, or why it gets stuck."""
    try:
        return _Ordered.of(fifo_plan(program, not program.out_of_place, root, longest))
    except VerificationError as error:
        # A plan's channels are the program's thread blocks.
        here, _, what = str(error).replace(" channels wait", " thread blocks wait", 1).partition(": ")
        pieces = "one chunk" if longest == 1 else f"up to {longest} chunks"
        return Problem(here, what, f"every thread block to end (pieces of {pieces})", "a hang")


def _deadlock_detail(program: Program) -> str:
    if _pieces(program)[0] > 1 and deadlock_problems(program, [1]):
        return f"none up to its maxBytes, {program.max_bytes}; where pieces are single chunks it would hang"
    return "none"


def sound_plan(program: Program, size_bytes: int | None = None, root: int | None = None) -> FifoPlan:
    """The plan of a program, out of place where it permits that, in pieces as at a size (whole messages without one).

    A root that is not given is found.
    Raises VerificationError if form, channels or dependencies are wrong, InputError if it is too large.
    """
    for name, problems in _SOUND:
        first = next(problems(program), None)
        if first is not None:
            raise VerificationError(f"msccl-xml is wrong ({name}): {first}")
    _check_size(program)
    root = _root(program, root)
    if size_bytes is None:
        return fifo_plan(program, not program.out_of_place, root, MAX_COUNT)
    pieces = program.longest_piece(size_bytes), iterations_at(program, size_bytes)
    return fifo_plan(program, not program.out_of_place, root, *pieces)


def _covered(program: Program, name: str) -> str:
    if name == "channels":
        return f"{program.num_channels} of {program.protocol}"
    if name == "form":
        return f"{program.collective}, {program.num_gpus} GPUs"
    return f"{sum(1 for _ in program.steps())} steps"


def _check_size(program: Program) -> None:
    elements = collective_of(program).total_units * program.num_gpus
    scratch = sum(gpu.scratch_chunks for gpu in program.gpus)
    if max(elements, scratch) > MAX_ELEMENTS:
        raise InputError(
            f"nchunksperloop: {program.num_chunks} chunks of {program.num_gpus} GPUs are too many to judge"
        )


def _hazards(run: _Ordered) -> Iterator[Problem]:
    try:
        found = races_of(bind(run.plan, run.plan.total_units, 1), SHOWN, run.order)
    except VerificationError as error:
        here, _, what = str(error).partition(": ")
        yield Problem(here, what, "memory that is there", "this")
        return
    for text in found:
        first, _, second = text.partition(" races with ")
        what = f"races with {second}" if second else text
        yield Problem(first if second else "memory", f"{what}: wrong data at times", "a dependency", "none")


def _trials(plan: FifoPlan) -> list[Trial]:
    whole = plan.total_units
    asked = [(whole, "int64", None), (2 * whole, "float32", 1), (whole, "int64", 0), (whole, "int64", 3)]
    # Of large plans fewer runs: they add nothing to what is known by then but the executor's own judgement.
    asked = asked[:2] if plan.num_instructions > _MANY_INSTRUCTIONS else asked
    return [Trial(elements, dtype, seed, False) for elements, dtype, seed in asked]


def _contents(run: _Ordered) -> list[list[_Value]]:
    """Contributions in every output chunk of every GPU at the end. O(chunks moved)."""
    plan, unit = run.plan, run.plan.chunk_units
    program = plan.program
    assert program is not None
    inputs, outputs = shard_chunks(program.num_chunks, program.collective, program.num_gpus)
    # Numbers of values, and of sums of two; number 0 is what was never written.
    values: list[_Value] = [_GARBAGE]
    sums: dict[tuple[int, int], int] = {}

    def joined(one: int, other: int) -> int:
        if (one, other) not in sums:
            total = Counter(values[one])
            total.update(values[other])
            sums[one, other] = len(values)
            values.append(total)
        return sums[one, other]

    extents = np.maximum(plan.buffer_units() // unit, [inputs, outputs, 0]).tolist()
    memory = [[[0] * extent for extent in row] for row in extents]
    for g, base in enumerate(plan.base):
        buffer, at = base["i"]
        own = range(len(values), len(values) + inputs)
        values += [{(g, chunk): 1} for chunk in range(inputs)]
        for cells, first in ((memory[g][Buffer.INPUT], 0), (memory[g][buffer], at // unit)):
            cells[first : first + inputs] = own
    op, peer, owner = plan.columns["op"].tolist(), plan.columns["peer"].tolist(), plan.origin[:, 0].tolist()
    length = (plan.columns["length"] // unit).tolist()
    (dst, dst_at), (src, src_at), (src2, src2_at) = (
        (plan.columns[f"{which}_buffer"].tolist(), (plan.columns[f"{which}_offset"] // unit).tolist())
        for which in ("dst", "src", "src2")
    )
    for i in run.order:
        if op[i] not in (Op.COPY, Op.REDUCE, Op.PUT):
            continue
        here, count = memory[owner[i]], length[i]
        found = here[src[i]][src_at[i] : src_at[i] + count]
        if op[i] == Op.REDUCE:
            found = list(map(joined, found, here[src2[i]][src2_at[i] : src2_at[i] + count]))
        there = memory[peer[i]] if op[i] == Op.PUT else here
        there[dst[i]][dst_at[i] : dst_at[i] + count] = found
    ends = []
    for g, base in enumerate(plan.base):
        buffer, at = base["o"]
        ends.append([values[number] for number in memory[g][buffer][at // unit : at // unit + outputs]])
    return ends


def _wanted(collective: Collective, num_chunks: int, gpu: int, root: int) -> list[_Value]:
    """What must be in the output chunks of a GPU at the end; nothing where it has no output."""
    kind, everyone = collective.kind, range(collective.num_ranks)
    shard = num_chunks // collective.num_ranks
    if kind in ("reduce", "gather") and gpu != root:
        return []
    if kind in ("allreduce", "reduce"):
        return [{(rank, chunk): 1 for rank in everyone} for chunk in range(num_chunks)]
    if kind in ("allgather", "gather"):
        return [{(rank, chunk): 1} for rank in everyone for chunk in range(shard)]
    if kind == "reducescatter":
        return [{(rank, gpu * shard + chunk): 1 for rank in everyone} for chunk in range(shard)]
    if kind == "alltoall":
        return [{(rank, gpu * shard + chunk): 1} for rank in everyone for chunk in range(shard)]
    if kind == "scatter":
        return [{(root, gpu * shard + chunk): 1} for chunk in range(shard)]
    return [{(root, chunk): 1} for chunk in range(num_chunks)]


def _root(program: Program, given: int | None) -> int:
    """The root that the file does not name, if it is not given."""
    if given is not None or program.collective not in ROOTED:
        return given or 0
    return _best_root(_Ordered.of(fifo_plan(program, not program.out_of_place, longest=_pieces(program)[0])))


def _best_root(run: _Ordered) -> int:
    """The root with which most output chunks are right."""
    program = run.plan.program
    assert program is not None
    found = _contents(run)

    def right(root: int) -> int:
        wanted = (_wanted(run.plan.collective, program.num_chunks, g, root) for g in range(program.num_gpus))
        return sum(a == b for got, want in zip(found, wanted, strict=True) for a, b in zip(got, want, strict=False))

    return max(range(program.num_gpus), key=lambda root: (right(root), -root))


def _result(run: _Ordered, root: int) -> Iterator[Problem]:
    program = run.plan.program
    assert program is not None
    for g, got in enumerate(_contents(run)):
        for chunk, want in enumerate(_wanted(run.plan.collective, program.num_chunks, g, root)):
            if got[chunk] != want:
                here = f"{where(g)} output chunk {chunk} at the end"
                yield Problem(here, "wrong data", _in_words(want), _in_words(got[chunk]))


def _in_words(value: _Value) -> str:
    """Contributions of a chunk, as messages name them."""
    if value == _GARBAGE:
        return "nothing"
    parts: dict[tuple[int, int], list[int]] = {}
    for (gpu, chunk), count in sorted(value.items()):
        parts.setdefault((chunk, count), []).append(gpu)
    words = []
    for (chunk, count), gpus in parts.items():
        if chunk < 0:
            words.append("what was never written")
            continue
        often = "" if count == 1 else " twice" if count == 2 else f" {count} times"
        words.append(f"input chunk {chunk} of {ranks(gpus)}{often}")
    return " and ".join(words)
