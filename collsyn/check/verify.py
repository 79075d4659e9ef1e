"""The judge: is a schedule, a plan or a file right? It knows no synthesizer and trusts none (docs/checking.md)."""

from dataclasses import replace
from pathlib import Path

from collsyn.check import plan_checks
from collsyn.check.bound_check import bound_problems
from collsyn.check.large import verify_large
from collsyn.check.loads import load_problems
from collsyn.check.recognise import read_content
from collsyn.check.replay import replay, time_tolerance
from collsyn.check.report import Findings, Problem, Report
from collsyn.check.structure import batch_problems, field_problems, rate_problems, route_problems
from collsyn.model.large_file import is_large, read_large
from collsyn.model.plan import Plan
from collsyn.model.schedule import Schedule
from collsyn.model.schedule_set import ScheduleSet, ranges_text
from collsyn.model.set_file import is_set, read_set

SCHEDULE_CHECKS = ("fields", "routes", "batches", "rates", "loads", "held", "reductions", "result", "bounds")
PLAN_CHECKS = ("ranges", "flags", "races", "data")


def verify_schedule(schedule: Schedule) -> Report:
    """Replay a schedule under the time model of Topology and the slots of Schedule, and recheck its bounds.

    The report has one check for each of `SCHEDULE_CHECKS`: values in range; routes that lead from source to destination
    through switches; batches that travel together; rates and link loads within bandwidth at all times; every sender
    holding the chunk by the start of the send; no contribution added twice; every receiver ending with exactly the
    contributions asked for; certificates that hold, of bounds that the finish does not beat. Times may be off by 1e-9
    of the finish, bandwidths by 1e-9 of themselves. Complexity: O(n log n) for n sends on links, and n ranks / 64 more
    for reductions.
    """
    findings = Findings("schedule")
    if not findings.add("fields", field_problems(schedule), f"{schedule.num_sends} sends"):
        findings.skip(SCHEDULE_CHECKS[1:], "values are out of range")
        return findings.report()
    findings.add("routes", *_split(route_problems(schedule), f"{len(schedule.routes)} routes"))
    findings.add("batches", *_split(batch_problems(schedule), f"{len(schedule.messages)} messages"))
    if not findings.ok:
        findings.skip(SCHEDULE_CHECKS[3:], "routes or batches are wrong, so there are no times")
        return findings.report()
    tolerance_s = time_tolerance(schedule)
    findings.add("rates", *_split(rate_problems(schedule), "none above the slowest link"))
    findings.add("loads", *_split(load_problems(schedule, tolerance_s), f"{schedule.topology.num_links} links"))
    flow = replay(schedule, tolerance_s)
    findings.add("held", *_split(flow.held, "every sender holds what it sends"))
    findings.add("reductions", *_split(flow.reductions, "no contribution twice"))
    findings.add("result", *_split(flow.result, "every receiver ends with the result"))
    findings.add("bounds", bound_problems(schedule), f"{len(schedule.bounds)} rechecked")
    return findings.report()


def verify_plan(plan: Plan) -> Report:
    """Look for what can go wrong in a plan at any time, then run it on real data in one process.

    The report has one check for each of `PLAN_CHECKS`: instructions stay inside the buffers; flags exist, only rise,
    and no order of the channels that is tried ends in a deadlock; no two instructions touch the same bytes unordered;
    and outputs equal the reference bit by bit, out of place and in place, for int64 and float32, at a size that
    divides, one that does not and a single element, in several orders. Complexity: a few times
    O(instructions log channels + bytes).
    """
    findings = Findings("plan")
    parts = (("ranges", plan_checks.range_problems), ("flags", plan_checks.flag_problems))
    for name, problems in parts:
        if not findings.add(name, problems(plan), f"{plan.num_instructions} instructions"):
            findings.skip(PLAN_CHECKS[len(findings.checks) :], f"{name} are wrong")
            return findings.report()
    findings.add("races", plan_checks.race_problems(plan), "none")
    possible, refused = plan_checks.trials(plan)
    found = [problem for trial in possible for problem in plan_checks.data_problems(plan, trial)]
    only = f"; runs only at sizes that {plan.total_units} divides" if refused else ""
    findings.add("data", found, f"{len(possible)} runs{only}")
    return findings.report()


def verify_file(path: str | Path) -> Report:
    """The report of a schedule, set, plan or foreign program, told by content; raises InputError where it is none."""
    if is_large(path):
        return verify_large(read_large(path))
    if is_set(path):
        return verify_set(read_set(path))
    kind, what = read_content(path)
    if isinstance(what, Schedule):
        report = verify_schedule(what)
    else:
        report = verify_plan(what) if isinstance(what, Plan) else what.verify()
    return replace(report, kind=kind)


def verify_set(schedules: ScheduleSet) -> Report:
    """All checks of all schedules of a set, each named after its range of sizes."""
    checks, problems = [], []
    for sizes, schedule in zip(ranges_text(schedules.ranges), schedules.schedules, strict=True):
        report = verify_schedule(schedule)
        checks += [replace(check, name=f"{sizes}: {check.name}") for check in report.checks]
        problems += [replace(problem, where=f"{sizes}: {problem.where}") for problem in report.problems]
    return Report("schedule-set", tuple(checks), tuple(problems))


def _split(found: tuple[list[Problem], int], passed: str) -> tuple[list[Problem], str, int]:
    return found[0], passed, found[1]
