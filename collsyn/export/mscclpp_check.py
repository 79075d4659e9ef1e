"""Judges MSCCL++ programs as their executor runs them: form, bounds, threads, signals, deadlocks, hazards, data."""

from collections.abc import Iterator
from dataclasses import dataclass

from collsyn.check.plan_checks import Trial, data_problems
from collsyn.check.races import races_of
from collsyn.check.report import SHOWN, Findings, Problem, Report
from collsyn.errors import InputError, VerificationError
from collsyn.export.mscclpp import PACKET_WRITES_FROM, Program
from collsyn.export.mscclpp_form import bound_problems, form_problems
from collsyn.export.mscclpp_lanes import Lanes, iterations_of, make_lanes
from collsyn.export.mscclpp_plan import BlockPlan, plan_of
from collsyn.export.mscclpp_read import read_program
from collsyn.export.mscclpp_sync import deadlock_problems, signal_problems, thread_problems
from collsyn.model.bind import bind

CHECKS = ("form", "bounds", "threads", "signals", "deadlock", "hazards", "data")
# Elements of all ranks together in a run on data, and operations with pipelines unrolled; more are not judged.
MAX_ELEMENTS, MAX_OPERATIONS = 1 << 24, 1 << 21


@dataclass(frozen=True, eq=False)
class MscclppFile:
    """A program that was read from a file, with what is asked of foreign files."""

    program: Program

    def verify(self) -> Report:
        """All checks of the program."""
        return verify_program(self.program)

    def plan(self, size_bytes: int | None = None) -> BlockPlan:
        """The program as a plan; raises VerificationError where form or bounds are wrong."""
        return sound_plan(self.program, size_bytes)


def read_mscclpp(raw: bytes, path: str) -> MscclppFile:
    """The program of a MSCCL++ JSON file; raises InputError that names file and key."""
    return MscclppFile(read_program(raw, path))


def verify_program(program: Program) -> Report:
    """The report of a program, with one check for each of CHECKS.

    Thread blocks, and the proxies of port channels, run in any order that signals, waits, barriers, semaphores and
    packets allow. Hazards are found by vector clocks that trust only what is sure to have been signalled; data is moved
    in several orders. Raises InputError for programs too large to judge. O(operations x thread blocks) at worst.
    """
    findings = Findings("mscclpp-json")
    count = sum(1 for _ in program.operations())
    for name, problems, passed in (
        ("form", form_problems(program), f"{program.collective}, {program.num_gpus} GPUs"),
        ("bounds", bound_problems(program), f"{count} operations"),
    ):
        if not findings.add(name, list(problems), passed):
            findings.skip(CHECKS[len(findings.checks) :], f"{name} is wrong")
            return findings.report()
    lanes = _lanes(program)
    findings.add("threads", list(thread_problems(lanes)), "every nop that is needed")
    findings.add("signals", list(signal_problems(lanes)), "as many as waits")
    if not findings.add("deadlock", deadlock_problems(lanes), "none"):
        findings.skip(CHECKS[len(findings.checks) :], "it ends in a deadlock")
        return findings.report()
    plan = plan_of(lanes)
    findings.add("hazards", list(_hazards(lanes, plan)), "none")
    trials = _trials(plan)
    found = [problem for trial in trials for problem in data_problems(plan, trial)]
    findings.add("data", found, f"{len(trials)} runs, {'in place' if program.in_place else 'out of place'}")
    return findings.report()


def sound_plan(program: Program, size_bytes: int | None = None) -> BlockPlan:
    """The plan of a program, pipelines cut as they are at a size; raises VerificationError if it has none, InputError
    if it is too large."""
    for name, problems in (("form", form_problems(program)), ("bounds", bound_problems(program))):
        first = next(problems, None)
        if first is not None:
            raise VerificationError(f"mscclpp-json is wrong ({name}): {first}")
    return plan_of(_lanes(program, None if size_bytes is None else _iterations_at(program, size_bytes)))


def _iterations_at(program: Program, size_bytes: int) -> int:
    """How often pipelines repeat at a size; more iterations than 64 overlap no better."""
    chunk_bytes = size_bytes / program.num_chunks
    ops = [op for _, _, _, op in program.operations() if op.name == "pipeline"]
    most = max((-(-op.num_chunks * chunk_bytes // op.unit_bytes) for op in ops), default=1)
    return int(min(max(most, 1), 64))


def _lanes(program: Program, iterations: int | None = None) -> Lanes:
    """The lanes of a program; raises InputError if they are too many or too long."""
    count = sum(1 for _ in program.operations()) * (iterations_of(program) if iterations is None else iterations)
    chunks = max(program.num_chunks * program.num_gpus, sum(gpu.scratch_chunks for gpu in program.gpus))
    if count > MAX_OPERATIONS or chunks > MAX_ELEMENTS:
        raise InputError(f"gpus: {count} operations on {chunks} chunks are too many to judge")
    lanes = make_lanes(program, iterations)
    units = max(lanes.collective.total_units * lanes.factor * program.num_gpus, sum(lanes.scratch))
    if units > MAX_ELEMENTS:
        raise InputError(f"gpus: chunks are cut into shares of {units} units in all; too many to judge")
    return lanes


def _hazards(lanes: Lanes, plan: BlockPlan) -> Iterator[Problem]:
    try:
        found = races_of(bind(plan, plan.total_units, 1), plan.num_instructions + SHOWN)
    except VerificationError as error:
        here, _, what = str(error).partition(": ")
        yield Problem(here, what, "memory that is there", "this")
        return
    writers = tuple(f" {name}" for name in PACKET_WRITES_FROM)
    for text in found:
        first, _, other = text.partition(" races with ")
        if other:
            yield Problem(first, f"races with {other}: wrong data at times", "a signal or barrier", "none")
            continue
        first, _, other = text.partition(" touches rank ")
        # Packets go into the half of scratch that this call has for itself, and nobody is two calls ahead: the result
        # of whoever writes to a GPU depends on that GPU, whatever the collective.
        if "not have begun" in other and lanes.program.double_scratch and first.endswith(writers):
            continue
        if first.endswith(writers) and "not have begun" in other:
            other += "; two halves of scratch (use_double_scratch_buffer) would do"
        yield Problem(first, f"touches gpu {other}: wrong data at times", "a signal from there", "none")


def _trials(plan: BlockPlan) -> list[Trial]:
    whole = plan.total_units
    asked = [(whole, "int64", None), (2 * whole, "float32", 0), (whole, "int64", 1), (whole, "int64", 3)]
    return [Trial(elements, dtype, seed, False) for elements, dtype, seed in asked]
