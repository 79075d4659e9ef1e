"""`collsyn compare`: methods side by side over sizes, each with its distance from the bound."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._crew import crew_of
from ._measured import is_measurement, read_measured
from ._options import (
    FILE,
    chosen_sizes,
    examples,
    jobs_option,
    json_option,
    plot_option,
    problem_options,
    seed_option,
    sizes_options,
    time_limit_option,
)
from ._output import Cell, emit_json, note, progress, table, text
from ._problem import chosen_topology, make_problem

if TYPE_CHECKING:
    from collsyn.check.recognise import Foreign
    from collsyn.model.collective import Collective
    from collsyn.model.plan import Plan
    from collsyn.model.schedule import Schedule
    from collsyn.model.schedule_set import ScheduleSet
    from collsyn.portfolio.candidates import Candidate
    from collsyn.portfolio.crew import Crew
    from collsyn.synth.problem import Options, Problem

    from ._crew import crew_of
from ._measured import Measured

DEFAULT_SIZES = "1K:1G:32"


def names(text: str) -> tuple[str, ...]:
    """Names of methods separated by commas."""
    from collsyn.errors import InputError
    from collsyn.synth.table import method

    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise click.BadParameter("names no method")
    for name in found:
        try:
            method(name)
        except InputError as error:
            raise click.BadParameter(str(error)) from error
    return found


@click.command(
    "compare",
    epilog=examples(
        "collsyn compare --collective allreduce --topology full:8 --sizes 1K:1G:32",
        "collsyn compare --collective allgather --topology dgx1 --methods ring,greedy --json",
        "collsyn compare --collective allreduce --topology dgx-a100 --sizes 1M:1G:32 --with nccl.log",
        "collsyn compare --collective allreduce --topology full:8 --sizes 64K:64M:32 --with theirs.xml",
        "collsyn compare --collective allreduce --topology dgx1 --sizes 16K:256M:4 --plot methods.svg",
    ),
)
@problem_options(topology_required=False)
@sizes_options(default=DEFAULT_SIZES)
@click.option("--methods", type=names, metavar="A,B,...", help="Only these methods. [default: all]")
@click.option(
    "--with",
    "files",
    type=FILE,
    multiple=True,
    metavar="FILE",
    help="Also this schedule, set, plan, MSCCL XML or MSCCL++ JSON, timed anew, or this log.",
)
@click.option("--chunks", type=int, metavar="N", help="Chunks a rank. [default: as many as pay]")
@time_limit_option()
@jobs_option()
@seed_option()
@plot_option("bandwidth against size")
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
    methods: tuple[str, ...] | None,
    files: tuple[Path, ...],
    chunks: int | None,
    time_limit_s: float | None,
    jobs: int,
    seed: int,
    plot: str | None,
    as_json: bool,
) -> None:
    """Tabulate methods over sizes: time of the schedule, and how far it lies over the lower bound.

    Every schedule is verified. Methods that do not serve the problem say why. With a plan or a
    program of another runtime, all are compared by the simulated times of their plans.
    """
    from collsyn.synth.problem import Options

    if plot is not None:
        from collsyn.pictures.sheet import require_picture

        require_picture(plot)
    if size is None and sizes is None:
        from ._options import size_range

        sizes = size_range(DEFAULT_SIZES)
    asked = chosen_sizes(size, sizes)
    where = chosen_topology(topology)
    problem = make_problem(collective, where, asked.size_bytes[0], chunks, root, subset, groups, counts, spec)
    options = Options(seed=seed, time_limit_s=time_limit_s)
    logs = [file for file in files if is_measurement(file)]
    num_ranks = max(len(group) for group in problem.collective().groups)
    measured = [(str(file), read_measured(file, problem.kind, num_ranks)) for file in logs]
    others = [(str(file), _matching(problem, file)) for file in files if file not in logs]
    rows: list[dict[str, Any]] = []
    title = f"{problem.kind} on {problem.topology.name}"
    with crew_of(jobs) as crew, progress(title, total=len(asked.size_bytes)) as update:
        for index, size_bytes in enumerate(asked.size_bytes):
            update(index)
            rows += _rows(replace(problem, size_bytes=size_bytes), options, methods, others, measured, crew)
    if plot is not None:
        from collsyn.pictures.bandwidth import compare_chart
        from collsyn.pictures.bandwidth_picture import draw_bandwidth

        group_size = max(len(group) for group in problem.collective().groups)
        title = f"methods on {problem.topology.name}, overhead {problem.topology.overhead_model}"
        draw_bandwidth(plot, title, [compare_chart(rows, group_size)])
        note(f"wrote {plot}")
    if as_json:
        emit_json(rows)
    else:
        _show(problem, rows)
        for _, found in measured:
            _show_measured(problem, found, num_ranks)


def _show_measured(problem: "Problem", found: "Measured", num_ranks: int) -> None:
    """The best that was measured, beside what the topology allows at that size."""
    from collsyn.bounds import fluid_bound
    from collsyn.model.metrics import busbw_gb_s
    from collsyn.units import format_size

    reached = {size: busbw_gb_s(problem.kind, num_ranks, size, time_s) for size, time_s in found.times_s.items()}
    size = max(reached, key=lambda one: reached[one])
    bound_s = fluid_bound(problem.collective(), problem.topology, size).time_s
    allowed = busbw_gb_s(problem.kind, num_ranks, size, bound_s)
    text(
        f"{found.library} measured {reached[size]:.4g} GB/s busbw at {format_size(size)}; "
        f"the bound for this topology is {allowed:.4g} GB/s"
    )


def _matching(problem: "Problem", file: Path) -> "Schedule | ScheduleSet | Plan | Foreign":
    """The content of a file, found right and for this problem; raises InputError, VerificationError."""
    from collsyn.check.recognise import FORMATS, read_content
    from collsyn.check.verify import verify_plan, verify_schedule, verify_set
    from collsyn.model.plan import Plan
    from collsyn.model.schedule import Schedule
    from collsyn.model.set_file import is_set, read_set

    if is_set(file):
        schedules = read_set(file)
        verify_set(schedules).raise_if_bad(str(file))
        _require_alike(problem, file, "an algorithm set", schedules.schedules[0].collective)
        return schedules
    kind, what = read_content(file)
    if isinstance(what, Schedule):
        report = verify_schedule(what)
    else:
        report = verify_plan(what) if isinstance(what, Plan) else what.verify()
    replace(report, kind=kind).raise_if_bad(str(file))
    found = (what if isinstance(what, Schedule | Plan) else what.plan()).collective
    _require_alike(problem, file, next(known.title for known in FORMATS if known.kind == kind), found)
    return what


def _require_alike(problem: "Problem", file: Path, title: str, found: "Collective") -> None:
    from collsyn.errors import InputError

    alike = {key: value for key, value in found.spec.items() if key != "chunks_per_rank"}
    if alike != {key: value for key, value in problem.collective().spec.items() if key != "chunks_per_rank"}:
        raise InputError(f"{file}: is {title} of another collective ({found.kind}, {found.num_ranks} ranks)")


def _rows(
    problem: "Problem",
    options: "Options",
    methods: Sequence[str] | None,
    others: Sequence[tuple[str, "Schedule | ScheduleSet | Plan | Foreign"]],
    measured: Sequence[tuple[str, "Measured"]],
    crew: "Crew | None",
) -> list[dict[str, Any]]:
    """One document for every method and file at the size of the problem."""
    from collsyn.model.schedule import Schedule
    from collsyn.model.schedule_set import ScheduleSet
    from collsyn.portfolio.auto import best
    from collsyn.synth.table import METHODS

    plans = any(not isinstance(what, Schedule | ScheduleSet) for _, what in others)
    every = best(problem, options, methods, plans=False, crew=crew, all_of_them=True)
    candidates = {found.method: found for found in every}
    if any(found.interrupted for found in candidates.values()):
        raise KeyboardInterrupt
    order = list(METHODS) if methods is None else list(methods)
    bound = next((found.bound_s for found in candidates.values() if found.bound_s is not None), None)
    rows = [_document(problem, name, candidates[name], bound, plans) for name in order]
    rows += [_timed(problem, name, what, bound, plans) for name, what in others]
    for name, found in measured:
        time_s = found.times_s.get(problem.size_bytes)
        why = None if time_s is not None else "was not measured at this size"
        rows.append(_row(problem, name, time_s, bound, None, why))
    return rows


def _timed(
    problem: "Problem", name: str, what: "Schedule | ScheduleSet | Plan | Foreign", bound_s: float | None, plans: bool
) -> dict[str, Any]:
    """The row of a file: a schedule is timed anew, with its plan if that is asked for, and all else is simulated."""
    from collsyn.check.simulate import retime
    from collsyn.check.simulate_plan import simulate_plan
    from collsyn.model.plan import Plan
    from collsyn.model.schedule import Schedule
    from collsyn.model.schedule_set import ScheduleSet

    if isinstance(what, ScheduleSet):
        what = what.at(problem.size_bytes)
    if isinstance(what, Schedule):
        schedule = retime(what, problem.size_bytes, problem.topology)
        plan_s = _plan_s(schedule) if plans else None
        return _row(problem, name, schedule.finish_s, bound_s, what.collective.chunks_per_rank, None, plan_s)
    plan = what if isinstance(what, Plan) else what.plan(problem.size_bytes)
    plan_s = simulate_plan(plan, problem.topology, problem.size_bytes).finish_s
    return _row(problem, name, plan_s, bound_s, None, None, plan_s)


def _document(problem: "Problem", name: str, found: "Candidate", bound_s: float | None, plans: bool) -> dict[str, Any]:
    if not found.served:
        return _row(problem, name, None, bound_s, None, found.refused)
    assert found.schedule is not None
    chunks = found.chunks_per_rank
    plan_s = _plan_s(found.schedule) if plans else None
    return _row(problem, name, found.finish_s, bound_s, chunks, None, plan_s)


def _plan_s(schedule: "Schedule") -> float:
    """Simulated time of the plan of a schedule."""
    from collsyn.check.simulate_plan import simulate_plan
    from collsyn.lower.lower import lower

    return simulate_plan(lower(schedule), schedule.topology, schedule.size_bytes).finish_s


def _row(
    problem: "Problem",
    name: str,
    finish_s: float | None,
    bound_s: float | None,
    chunks: int | None,
    refused: str | None,
    plan_s: float | None = None,
) -> dict[str, Any]:
    from collsyn.units import s_to_us

    gap = None if finish_s is None or not bound_s else finish_s / bound_s - 1
    return {
        "collective": problem.kind,
        "topology": problem.topology.name,
        "size_bytes": problem.size_bytes,
        "method": name,
        "finish_us": None if finish_s is None else s_to_us(finish_s),
        "plan_us": None if plan_s is None else s_to_us(plan_s),
        "bound_us": None if bound_s is None else s_to_us(bound_s),
        "gap": gap,
        "chunks_per_rank": chunks,
        "refused": refused,
    }


def _show(problem: "Problem", rows: Sequence[dict[str, Any]]) -> None:
    from collsyn.units import format_size

    sizes = list(dict.fromkeys(row["size_bytes"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    at = {(row["method"], row["size_bytes"]): row for row in rows}
    plans = any(row["plan_us"] is not None for row in rows)
    times = "us of plans" if plans else "us"
    where = f"{problem.kind} on {problem.topology.name}, overhead {problem.topology.overhead_model}"
    title = f"{where}; {times} (over the bound)"
    served = [name for name in methods if any(at[name, size]["finish_us"] is not None for size in sizes)]
    cells: list[tuple[Cell, ...]] = []
    for size in sizes:
        bound = at[methods[0], size]["bound_us"]
        cells.append((format_size(size), bound, *(_cell(at[name, size]) for name in served)))
    table(title, ("size", "bound us", *served), cells)
    refused = [(name, at[name, sizes[0]]["refused"]) for name in methods if name not in served]
    if refused:
        table("Not served", ("method", "why"), refused)


def _cell(row: dict[str, Any]) -> str:
    """The time of a row, that of its plan where there is one, and how far it lies over the bound."""
    time_us = row["finish_us"] if row["plan_us"] is None else row["plan_us"]
    if time_us is None:
        return "-"
    return f"{time_us:.4g}" + (f" ({100 * (time_us / row['bound_us'] - 1):z.1f}%)" if row["bound_us"] else "")
