"""Where the plans of a benchmark come from: files, the newest schedules, or a synthesizer asked on the spot."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collsyn.bounds import fluid_bound
from collsyn.check.recognise import read_any
from collsyn.check.simulate import retime
from collsyn.check.simulate_plan import simulate_plan
from collsyn.check.verify import verify_plan, verify_schedule, verify_set
from collsyn.errors import InputError
from collsyn.lower.lower import lower
from collsyn.model.collective import Collective
from collsyn.model.plan import Plan
from collsyn.model.plan_file import plan_text
from collsyn.model.schedule import Schedule
from collsyn.model.schedule_set import ScheduleSet
from collsyn.model.set_file import SUFFIX as SET_SUFFIX
from collsyn.model.set_file import is_set, read_set
from collsyn.model.topology import Topology
from collsyn.model.working_set import at_size
from collsyn.portfolio.auto import best_schedule
from collsyn.synth.problem import Options, Problem

SUFFIXES = (".json", ".npz", SET_SUFFIX)


@dataclass(frozen=True, eq=False)
class Source:
    """A collective to benchmark: a schedule or a set, a plan, or a problem that `method` is to solve at every size.

    `label` says where it comes from (a file's name, or the method); `topology` is None for a plan without one.
    """

    label: str
    method: str
    collective: Collective
    topology: Topology | None
    schedule: Schedule | None = None
    schedules: ScheduleSet | None = None
    plan: Plan | None = None
    problem: Problem | None = None

    @property
    def num_ranks(self) -> int:
        """Ranks that it runs on."""
        return self.collective.num_ranks


@dataclass(frozen=True, eq=False)
class Prepared:
    """A verified plan for one size: what runs, its text, and what the model says of it (None where it cannot)."""

    plan: Plan
    text: str
    method: str
    simulated_s: float | None
    bound_s: float | None


def from_file(path: Path) -> Source:
    """The source in a schedule, set or plan file; raises InputError, and VerificationError for a wrong one."""
    if is_set(path):
        schedules = read_set(path)
        verify_set(schedules).raise_if_bad(str(path))
        first = schedules.schedules[0]
        return Source(str(path), path.stem, first.collective, first.topology, schedules=schedules)
    _, content = read_any(path)
    method = str(content.provenance.get("method", path.stem))
    if isinstance(content, Schedule):
        verify_schedule(content).raise_if_bad(str(path))
        return Source(str(path), method, content.collective, content.topology, schedule=content)
    return Source(str(path), method, content.collective, content.topology, plan=content)


def newest(folder: Path) -> list[Source]:
    """The newest schedule of every collective in a folder; raises InputError where there is none."""
    files = [path for path in folder.glob("*") if path.suffix in SUFFIXES] if folder.is_dir() else []
    found: dict[str, Source] = {}
    # Of files written in the same instant the last by name counts, so that the choice is always the same.
    for path in sorted(files, key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True):
        source = from_file(path)
        found.setdefault(source.collective.kind, source)
    if not found:
        raise InputError(f"{folder}: holds no schedule; make one with `collsyn synthesize --collective allgather`")
    return [found[kind] for kind in sorted(found)]


def on_the_spot(problem: Problem, method: str) -> Source:
    """A problem that `method` (or `auto`) solves anew at every size; raises InputError where it cannot be."""
    return Source(method, method, problem.collective(1), problem.topology, problem=problem)


class Preparation:
    """Makes the plans of a source, size by size."""

    def __init__(self, source: Source, seed: int = 0, topology: Topology | None = None) -> None:
        """Plans are timed on `topology`, if given, else on that of the source."""
        self.source = source
        self._topology = topology or source.topology
        self._options = Options(seed=seed)
        self._verified: set[str] = set()

    def at(self, size_bytes: int) -> Prepared:
        """The plan for a size, verified; raises Infeasible, InputError or VerificationError."""
        source, plan, method = self.source, self.source.plan, self.source.method
        if source.problem is not None:
            schedule = best_schedule(replace(source.problem, size_bytes=size_bytes), self._options, method)
            method = str(schedule.provenance.get("method", method))
            plan = lower(schedule)
        elif source.schedule is not None:
            plan = lower(retime(source.schedule, size_bytes))
        elif source.schedules is not None:
            schedule = source.schedules.at(size_bytes)
            method = str(schedule.provenance.get("method", method))
            plan = lower(retime(schedule, size_bytes))
        assert plan is not None
        text = plan_text(plan)
        if text not in self._verified:
            verify_plan(plan).raise_if_bad(source.label)
            self._verified.add(text)
        topology = self._topology
        if topology is None:
            return Prepared(plan, text, method, None, None)
        topology = at_size(topology, plan.collective, size_bytes)
        simulated_s = simulate_plan(plan, topology, size_bytes).finish_s
        return Prepared(plan, text, method, simulated_s, fluid_bound(plan.collective, topology, size_bytes).time_s)


def check_same_ranks(sources: Sequence[Source], ranks: int | None, told: str = "--ranks says") -> None:
    """Raise InputError where a source is for another number of ranks than `ranks` (None: any), see `told`."""
    for source in sources:
        if ranks is not None and source.num_ranks != ranks:
            raise InputError(f"{source.label}: is for {source.num_ranks} ranks; {told} {ranks}")
