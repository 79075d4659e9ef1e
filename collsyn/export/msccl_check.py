"""Judges MSCCL programs as their runtimes run them: form, limits, channels, deadlocks, hazards, and the result."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

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


def verify_program(program: Program) -> Report:
    """The report of a program, with one check for each of CHECKS.

    Deadlocks are looked for with the pieces that the largest and the smallest size of the file lead to. Flags only
    rise and each is raised by one thread block, so that one order of the thread blocks stands for all of them: in it
    hazards are found by vector clocks, and the contributions of every chunk are followed one by one. Real data is
    moved in several orders besides, in every way (in place, out of place) that the file permits. Raises InputError for
    programs too large to judge. O(steps x thread blocks) at worst.
    """
    with uncollected():
        return _verified(program)


def _verified(program: Program) -> Report:
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
    stuck = deadlock_problems(program)
    if not findings.add("deadlock", stuck, "" if stuck else _deadlock_detail(program)):
        findings.skip(CHECKS[len(findings.checks) :], "it ends in a deadlock")
        return findings.report()
    root = _root(program) if program.collective in ROOTED else 0
    plans = [fifo_plan(program, in_place, root, _pieces(program)[0]) for in_place in modes]
    findings.add("hazards", [problem for plan in plans for problem in _hazards(plan)][:SHOWN], "none")
    told = f"root {root}" if program.collective in ROOTED else "every contribution once"
    findings.add("result", [problem for plan in plans for problem in _result(plan, root)][:SHOWN], told)
    trials = [trial for plan in plans for trial in _trials(plan)]
    found = [] if not findings.ok else [problem for plan, trial in trials for problem in data_problems(plan, trial)]
    if findings.ok:
        findings.add("data", found, f"{len(trials)} runs")
    else:
        findings.skip(["data"], "the result is open")
    return findings.report()


def deadlock_problems(program: Program) -> list[Problem]:
    """Whether the program gets stuck, with the pieces of its largest size or of its smallest."""
    for longest in dict.fromkeys(_pieces(program)):
        problem = _stuck(program, longest)
        if problem is not None:
            return [problem]
    return []


def _pieces(program: Program) -> tuple[int, int]:
    """Chunks of a piece at most, at the largest size and at the smallest; not more than any step moves."""
    most = max((step.count for *_, step in program.steps()), default=1)
    return min(program.shortest_piece(), most), min(program.longest_piece(program.min_bytes), most)


def _stuck(program: Program, longest: int) -> Problem | None:
    try:
        interleaving(fifo_plan(program, not program.out_of_place, longest=longest))
    except VerificationError as error:
        # A plan's channels are the program's thread blocks.
        here, _, what = str(error).replace(" channels wait", " thread blocks wait", 1).partition(": ")
        pieces = "one chunk" if longest == 1 else f"up to {longest} chunks"
        return Problem(here, what, f"every thread block to end (pieces of {pieces})", "a hang")
    return None


def _deadlock_detail(program: Program) -> str:
    if _pieces(program)[0] > 1 and _stuck(program, 1) is not None:
        return f"none up to its maxBytes, {program.max_bytes}; where pieces are single chunks it would hang"
    return "none"


def sound_plan(program: Program, size_bytes: int | None = None) -> FifoPlan:
    """The plan of a program, out of place where it permits that, in pieces as at a size (whole messages without one).

    Raises VerificationError if form, channels or dependencies are wrong, InputError if it is too large.
    """
    for name, problems in _SOUND:
        first = next(problems(program), None)
        if first is not None:
            raise VerificationError(f"msccl-xml is wrong ({name}): {first}")
    _check_size(program)
    root = _root(program) if program.collective in ROOTED else 0
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


def _hazards(plan: FifoPlan) -> Iterator[Problem]:
    try:
        found = races_of(bind(plan, plan.total_units, 1), SHOWN)
    except VerificationError as error:
        here, _, what = str(error).partition(": ")
        yield Problem(here, what, "memory that is there", "this")
        return
    for text in found:
        first, _, second = text.partition(" races with ")
        what = f"races with {second}" if second else text
        yield Problem(first if second else "memory", f"{what}: wrong data at times", "a dependency", "none")


def _trials(plan: FifoPlan) -> list[tuple[FifoPlan, Trial]]:
    whole = plan.total_units
    asked = [(whole, "int64", None), (2 * whole, "float32", 1), (whole, "int64", 0), (whole, "int64", 3)]
    # Of large plans fewer runs: they add nothing to what is known by then but the executor's own judgement.
    asked = asked[:2] if plan.num_instructions > _MANY_INSTRUCTIONS else asked
    return [(plan, Trial(elements, dtype, seed, False)) for elements, dtype, seed in asked]


def _contents(plan: FifoPlan) -> list[list[_Value]]:
    """Contributions in every output chunk of every GPU at the end."""
    program = plan.program
    assert program is not None
    inputs, outputs = shard_chunks(program.num_chunks, program.collective, program.num_gpus)
    unit = plan.chunk_units
    memory: dict[tuple[int, int, int], _Value] = {}
    for g, base in enumerate(plan.base):
        buffer, at = base["i"]
        for chunk in range(inputs):
            own = {(g, chunk): 1}
            memory[g, Buffer.INPUT, chunk] = own
            memory[g, buffer, at // unit + chunk] = own
    columns = [plan.columns[key].tolist() for key in ("op", "peer", "length")]
    places = [
        (plan.columns[f"{which}_buffer"].tolist(), (plan.columns[f"{which}_offset"] // unit).tolist())
        for which in ("dst", "src", "src2")
    ]
    for i in interleaving(plan):
        op, g = columns[0][i], int(plan.origin[i, 0])
        if op not in (Op.COPY, Op.REDUCE, Op.PUT):
            continue
        to = columns[1][i] if op == Op.PUT else g
        (dst, dst_at), (src, src_at), (src2, src2_at) = ((buffer[i], offset[i]) for buffer, offset in places)
        for k in range(columns[2][i] // unit):
            value = memory.get((g, src, src_at + k), _GARBAGE)
            if op == Op.REDUCE:
                value = Counter(value)
                value.update(memory.get((g, src2, src2_at + k), _GARBAGE))
            memory[to, dst, dst_at + k] = value
    found = []
    for g, base in enumerate(plan.base):
        buffer, at = base["o"]
        found.append([memory.get((g, buffer, at // unit + chunk), _GARBAGE) for chunk in range(outputs)])
    return found


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


def _root(program: Program) -> int:
    """The root that the file does not name: the one with which most output chunks are right."""
    plan = fifo_plan(program, not program.out_of_place, longest=_pieces(program)[0])
    found = _contents(plan)

    def right(root: int) -> int:
        wanted = (_wanted(plan.collective, program.num_chunks, g, root) for g in range(program.num_gpus))
        return sum(a == b for got, want in zip(found, wanted, strict=True) for a, b in zip(got, want, strict=False))

    return max(range(program.num_gpus), key=lambda root: (right(root), -root))


def _result(plan: FifoPlan, root: int) -> Iterator[Problem]:
    program = plan.program
    assert program is not None
    for g, got in enumerate(_contents(plan)):
        for chunk, want in enumerate(_wanted(plan.collective, program.num_chunks, g, root)):
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
