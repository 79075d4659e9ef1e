"""`collsyn synthesize`: a schedule for a collective, proven right, with its distance from the bound."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._candidates import candidate_document, show_candidates, show_set
from ._crew import crew_of
from ._live import watched
from ._options import (
    FILE,
    Sizes,
    chosen_sizes,
    examples,
    jobs_option,
    json_option,
    output_option,
    problem_options,
    seed_option,
    sizes_options,
    time_limit_option,
    write_model_option,
)
from ._output import emit_json, note, progress
from ._problem import OUT, chosen_topology, make_problem

if TYPE_CHECKING:
    from collsyn.keyboard import Keyboard
    from collsyn.model.schedule import Schedule
    from collsyn.portfolio.candidates import Candidate
    from collsyn.portfolio.crew import Crew
    from collsyn.portfolio.memory import Memory
    from collsyn.synth.problem import Options, Problem

# Schedules of more sends than people would read are written as columns (.npz).
MAX_JSON_SENDS = 20_000
INTERRUPTED = 130


@click.command(
    "synthesize",
    epilog=examples(
        "collsyn synthesize --collective allgather                      # for the machine just profiled",
        "collsyn synthesize --collective allreduce --topology dgx1 --size 256M --json",
        "collsyn synthesize --collective allreduce --topology dgx1 --sizes 1K:1G:4 -o allreduce.set",
        "collsyn synthesize --collective allgather --topology broken.yaml --warm-start whole.json",
        "collsyn synthesize --collective allgather --topology ndv2:2 --sketch ndv2-sk1",
    ),
)
@problem_options(topology_required=False)
@sizes_options()
@click.option(
    "--method",
    default="auto",
    show_default=True,
    metavar="NAME",
    help="One of the methods of docs/synthesizers.md, or auto: all of them, the best is kept.",
)
@click.option("--chunks", type=int, metavar="N", help="Chunks a rank. [default: as many as pay]")
@time_limit_option()
@seed_option()
@click.option(
    "--warm-start", type=FILE, metavar="FILE", help="Repair this schedule, made before links or ranks failed."
)
@click.option(
    "--sketch",
    metavar="FILE",
    help="Rules and hints that all methods keep to: a file, or one that ships, as ndv2-sk1 (docs/formats/sketch.md).",
)
@jobs_option()
@click.option("--no-cache", is_flag=True, help="Search even where the result is known from an earlier run.")
@click.option("--plan", "with_plan", is_flag=True, help="Lower and simulate the plan, too, above 64 ranks.")
@write_model_option()
@output_option("Where to write it (.npz: columns, .large: tables), or none. [default: collsyn-out/schedules/...]")
@json_option()
def command(
    collective: str,
    topology: str | None,
    root: int | None,
    subset: tuple[int, ...] | None,
    groups: tuple[tuple[int, ...], ...] | None,
    counts: Path | None,
    spec: Path | None,
    size: int | None,
    sizes: tuple[int, ...] | None,
    method: str,
    chunks: int | None,
    time_limit_s: float | None,
    seed: int,
    warm_start: Path | None,
    sketch: str | None,
    jobs: int,
    no_cache: bool,
    with_plan: bool,
    write_model: Path | None,
    output: str | None,
    as_json: bool,
) -> int:
    """Make a schedule for a collective on a topology, verify it, and say how far it is from the lower bound.

    All methods that serve the problem are tried (--method auto) and the one whose simulated plan is
    quickest is kept. Ctrl-C keeps the best so far. With --sizes the best of every size become one
    algorithm set, with the sizes where one gives way to the next.
    """
    from collsyn.files import require_writable
    from collsyn.keyboard import Keyboard
    from collsyn.model.large_file import SUFFIX
    from collsyn.portfolio.memory import Memory
    from collsyn.solver.export import use_folder
    from collsyn.synth.problem import Options
    from collsyn.synth.table import method as named
    from collsyn.topology.sketch_file import load_sketch

    if warm_start is not None and method != "auto":
        raise click.UsageError("--warm-start repairs a schedule; leave out --method")
    if warm_start is not None and output is not None and output.endswith(SUFFIX):
        raise click.UsageError(f"--warm-start lists every send; give -o a name that does not end in {SUFFIX}")
    if sketch is not None and (warm_start is not None or (output or "").endswith(SUFFIX)):
        raise click.UsageError("--sketch goes with neither --warm-start nor -o FILE.large")
    asked = chosen_sizes(size, sizes)
    if asked.is_sweep and (output or "").endswith((".json", ".npz", SUFFIX)):
        raise click.UsageError("-o FILE: several sizes make an algorithm set; give a name that ends in .set, or none")
    if method != "auto":
        named(method)
    if output not in (None, "none"):
        require_writable(output)
    use_folder(write_model)
    where = chosen_topology(topology)
    problem = make_problem(collective, where, asked.size_bytes[0], chunks, root, subset, groups, counts, spec)
    rules = None if sketch is None else load_sketch(sketch, problem.topology)
    options = Options(seed=seed, time_limit_s=time_limit_s, sketch=rules)
    if rules is not None and rules.size_bytes is not None and size is None and sizes is None:
        asked = asked._replace(size_bytes=(rules.size_bytes,))
        note(f"size: {rules.size_bytes} bytes, which sketch {rules.name} is for")
    old = None if warm_start is None else _read(warm_start)
    # A result that is known would leave nothing to be solved.
    is_new = no_cache or write_model is not None or old is not None
    memory = Memory(None) if is_new else Memory.usual()
    task = _Task(options, method, with_plan, old, warm_start, memory, output, as_json)
    with crew_of(jobs) as crew, Keyboard() as keyboard:
        return task.work(problem, asked, crew, keyboard)


@dataclass(frozen=True)
class _Task:
    """How problems are to be solved, and what becomes of the results."""

    options: "Options"
    method: str
    with_plan: bool
    old: "Schedule | None"
    warm_start: Path | None
    memory: "Memory"
    output: str | None
    as_json: bool

    def work(self, problem: "Problem", asked: Sizes, crew: "Crew | None", keyboard: "Keyboard") -> int:
        """Solve the problem at all sizes, write and show what was found; the exit code."""
        from collsyn.portfolio.candidates import chosen
        from collsyn.portfolio.large import is_large_problem, require_listable

        documents: list[dict[str, Any]] = []
        found: list[Schedule] = []
        stopped = False
        for size_bytes in asked.size_bytes:
            sized = replace(problem, size_bytes=size_bytes)
            if self.old is None and self.options.sketch is None and is_large_problem(sized, self.method, self.output):
                with keyboard.listening():
                    documents.append(self._large(sized))
                continue
            require_listable(sized, self.method)
            try:
                candidates, is_known = self._solved(sized, crew)
                stopped = any(candidate.interrupted for candidate in candidates)
                chosen(candidates)
            except KeyboardInterrupt:
                if not found:
                    raise
                stopped = True
                break  # the sizes before this one are what is left
            document, schedule = _document(candidates, self.old, is_known)
            if not asked.is_sweep and self.output != "none":
                document["file"] = _written(schedule, self.output)
            found.append(schedule)
            documents.append(document)
            if not self.as_json:
                show_candidates(document, candidates, asked.is_sweep)
            stopped = stopped or (keyboard.pressed and size_bytes != asked.size_bytes[-1])
            if stopped:
                break
        if asked.is_sweep and found:
            self._make_set(found, documents, keyboard)
        if stopped:
            note("interrupted; this is the best so far")
        if self.as_json:
            emit_json(documents if asked.is_sweep else documents[0])
        return INTERRUPTED if stopped else 0

    def _large(self, problem: "Problem") -> dict[str, Any]:
        from ._large import show_synthesized, synthesized

        file = Path(self.output) if self.output else _default_file(problem, "large")
        document = synthesized(problem, self.options, self.method, None if self.output == "none" else file)
        if not self.as_json:
            show_synthesized(document)
        return document

    def _make_set(self, found: list["Schedule"], documents: list[dict[str, Any]], keyboard: "Keyboard") -> None:
        """The algorithm set of the best schedules, written unless nobody wants it, and noted in their documents."""
        from collsyn.model.schedule_set import ranges_text
        from collsyn.model.set_file import write_set
        from collsyn.portfolio.auto import MAX_PLAN_RANKS
        from collsyn.portfolio.sweep import algorithm_set, set_of_all

        plans = self.with_plan or found[0].topology.num_ranks <= MAX_PLAN_RANKS
        try:
            with keyboard.listening():
                made = algorithm_set(found, plans)
        except KeyboardInterrupt:
            made = set_of_all(found)
        file = None
        if self.output != "none":
            file = self.output or str(_default_file(found[-1], "set", first_bytes=found[0].size_bytes))
            write_set(made, file)
        rows = zip(ranges_text(made.ranges), made.ranges, made.schedules, strict=True)
        ranges = [
            {"sizes": text, "from_bytes": first, "to_bytes": last, "method": schedule.provenance.get("method")}
            for text, (first, last), schedule in rows
        ]
        for document in documents:
            document |= {"file": file, "set": ranges}
        if not self.as_json:
            show_set(made, file)

    def _solved(self, problem: "Problem", crew: "Crew | None") -> tuple[list["Candidate"], bool]:
        """The candidates, and whether they were known from an earlier run."""
        plans = True if self.with_plan else None
        file = self.memory.file(problem, self.options, self.method, plans)
        known, damage = self.memory.recall(file, problem)
        if damage is not None:
            note(f"cache: {damage}")
        if known is not None:
            return known, True
        found = self._searched(problem, crew, plans)
        trouble = self.memory.keep(file, found)
        if trouble is not None:
            note(trouble)
        return found, False

    def _searched(self, problem: "Problem", crew: "Crew | None", plans: bool | None) -> list["Candidate"]:
        from collsyn.portfolio.auto import best
        from collsyn.portfolio.repair import repaired

        title = f"{problem.kind} on {problem.topology.name}"
        if self.method == "auto" and self.old is None:
            with watched(title) as watcher:
                return best(problem, self.options, None, plans, crew, watcher)
        with progress(title, total=1.0) as update:
            options = replace(self.options, progress=update)
            if self.old is not None and self.warm_start is not None:
                return repaired(problem, options, self.old, self.warm_start, plans)
            return best(problem, options, [self.method], plans)


def _read(file: Path) -> "Schedule":
    """The schedule of a file, a large one listed if it is small; raises InputError."""
    from collsyn.check.large import listed
    from collsyn.model.large_file import is_large, read_large
    from collsyn.model.schedule_file import read_schedule

    return listed(read_large(file), str(file)) if is_large(file) else read_schedule(file)


def _document(
    candidates: Sequence["Candidate"], old: "Schedule | None", is_known: bool
) -> tuple[dict[str, Any], "Schedule"]:
    """The document of the best candidate, and its schedule, which has yet to be written."""
    from collsyn.check.summary import summary
    from collsyn.portfolio.candidates import chosen

    found = chosen(candidates)
    schedule = found.schedule
    assert schedule is not None
    document = summary(schedule, found.plan_s, found.synthesis_s, found.verify_s, None)
    document["candidates"] = [candidate_document(candidate) for candidate in candidates]
    document["cached"] = is_known
    if old is not None:
        from collsyn.portfolio.repair import cost_of_failure

        document["warm_start"] = dict(cost_of_failure(old, schedule))
    return document, schedule


def _written(schedule: "Schedule", output: str | None) -> str:
    """Write a schedule; the name of the file."""
    from collsyn.model.schedule_file import write_schedule

    form = "json" if schedule.num_sends <= MAX_JSON_SENDS else "npz"
    file = Path(output) if output else _default_file(schedule, form)
    write_schedule(schedule, file)
    return str(file)


def _default_file(what: "Schedule | Problem", form: str, first_bytes: int | None = None) -> Path:
    """collsyn-out/schedules/COLLECTIVE-TOPOLOGY-SIZE.FORM; of a set both sizes."""
    from collsyn.synth.problem import Problem
    from collsyn.units import format_size

    kind = what.kind if isinstance(what, Problem) else what.collective.kind
    place = re.sub(r"[^A-Za-z0-9._-]+", "-", what.topology.name).strip("-.")[:80] or "topology"
    sizes = format_size(what.size_bytes)
    name = f"{kind}-{place}-{sizes if first_bytes is None else f'{format_size(first_bytes)}-{sizes}'}"
    return OUT / "schedules" / f"{name}.{form}"
