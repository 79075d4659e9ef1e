"""`collsyn simulate`: how long a schedule or plan takes under the time model."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._options import (
    DEFAULT_SIZE,
    FILE,
    Sizes,
    chosen_sizes,
    examples,
    json_option,
    plot_option,
    ranks,
    sizes_options,
    topology_option,
)
from ._output import emit_json, note, table, text
from ._problem import note_assumptions, require_ranks

if TYPE_CHECKING:
    from collsyn.check.recognise import Foreign
    from collsyn.check.simulate_plan import PlanTimes
    from collsyn.model.plan import Plan
    from collsyn.model.schedule import Schedule
    from collsyn.model.schedule_set import ScheduleSet
    from collsyn.model.topology import Topology

# Links listed, the busiest first.
SHOWN_LINKS = 8


def window(value: str) -> tuple[float, float]:
    """A:B, two times in microseconds, as seconds."""
    from collsyn.units import us_to_s

    first, _, last = value.partition(":")
    try:
        begin, end = (float(part.strip().removesuffix("us")) for part in (first, last))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not A:B, two times in microseconds") from None
    if not (0 <= begin < end < math.inf):
        raise click.BadParameter(f"{value!r} must rise from at least 0")
    return us_to_s(begin), us_to_s(end)


@click.command(
    "simulate",
    epilog=examples(
        "collsyn simulate allgather.json --sizes 1K:1G",
        "collsyn simulate allgather.json --topology collsyn-out/profile.yaml --show-ranks 0-7 --window 0:20",
        "collsyn simulate allgather.json --plot links.svg",
    ),
)
@click.argument("file", type=FILE)
@topology_option(required=False)
@sizes_options(default=None)
@click.option("--show-ranks", type=ranks, metavar="RANKS", help="Draw when these ranks send what, like 0-7.")
@click.option("--window", "window_s", type=window, metavar="A:B", help="Draw from A to B only, in microseconds.")
@click.option("--plan", "with_plan", is_flag=True, help="Simulate the plan, too, above 64 ranks.")
@plot_option("how busy every link is over time (of several sizes: bandwidth against size)")
@json_option()
def command(
    file: Path,
    topology: str | None,
    size: int | None,
    sizes: tuple[int, ...] | None,
    show_ranks: tuple[int, ...] | None,
    window_s: tuple[float, float] | None,
    with_plan: bool,
    plot: str | None,
    as_json: bool,
) -> None:
    """Time a schedule or plan at its own size or others, on its own topology or another of equal wiring.

    A schedule keeps the order of its messages on every link and starts each as early as it can.
    Its plan (channels, flags, fair sharing of links) is simulated as well, and is the time to
    expect on a machine. TOPO gives the costs, for example a measured profile.
    """
    from collsyn.check.recognise import read_content
    from collsyn.model.large_file import is_large
    from collsyn.model.schedule import Schedule
    from collsyn.model.schedule_set import ScheduleSet
    from collsyn.model.set_file import is_set, read_set
    from collsyn.topology.resolve import load_topology

    from ._candidates import show_set
    from ._large import refuse_plot, simulate_large

    if plot is not None:
        from collsyn.pictures.sheet import require_picture

        require_picture(plot)
    costs = load_topology(topology) if topology is not None else None
    if is_large(file):
        refuse_plot(plot, with_plan)
        asked = chosen_sizes(size, sizes, default=None)
        _print(*simulate_large(file, asked.size_bytes, costs, show_ranks, window_s), asked.is_sweep, as_json)
        return
    what = read_set(file) if is_set(file) else read_content(file)[1]
    machine = costs if costs is not None else what.topology if isinstance(what, Schedule | ScheduleSet) else None
    if machine is not None:
        note_assumptions(machine)
    asked = chosen_sizes(size, sizes, default=None if isinstance(what, Schedule | ScheduleSet) else DEFAULT_SIZE)
    if isinstance(what, ScheduleSet):
        if not asked.size_bytes:
            asked = Sizes(tuple(schedule.size_bytes for schedule in what.schedules), is_sweep=True)
        if not as_json:
            show_set(what)
    drawing = show_ranks is not None or window_s is not None
    drawings: list[str] = []
    if isinstance(what, Schedule | ScheduleSet):
        timed, verify_s = _retimed(what, file, asked.size_bytes, costs)
        found = [(_planned(schedule, with_plan), schedule) for schedule in timed]
        documents = [_document(schedule, file, verify_s, planned) for planned, schedule in found]
        drawings = [_drawing(schedule, show_ranks, window_s) for schedule in timed] if drawing else []
        simulated, first = found[0]
    else:
        if drawing:
            raise click.UsageError("--show-ranks and --window draw schedules; a plan has no times of its own")
        documents, simulated = _plan_documents(what, file, asked.size_bytes, costs)
        first = None
    if plot is not None:
        _plot(plot, documents, first, simulated)
    _print(documents, drawings, asked.is_sweep, as_json)


def _print(documents: list[dict[str, Any]], drawings: list[str], is_sweep: bool, as_json: bool) -> None:
    if as_json:
        for document, drawn in zip(documents, drawings, strict=False):
            document["timeline"] = drawn.splitlines()
        emit_json(documents if is_sweep else documents[0])
        return
    _show(documents)
    for drawn in drawings:
        text(drawn)


def _retimed(
    what: "Schedule | ScheduleSet", file: Path, sizes: tuple[int, ...], costs: "Topology | None"
) -> tuple[list["Schedule"], float]:
    """The schedule, found right, at every size asked for (as it stands if none is), and the seconds of the check; of a
    set, the one that serves each size."""
    import time

    from collsyn.check.simulate import retime
    from collsyn.check.verify import verify_schedule, verify_set
    from collsyn.model.schedule import Schedule

    begin = time.perf_counter()
    (verify_schedule(what) if isinstance(what, Schedule) else verify_set(what)).raise_if_bad(str(file))
    verify_s = time.perf_counter() - begin
    if isinstance(what, Schedule):
        if not sizes and costs is None:
            return [what], verify_s
        return [retime(what, size_bytes, costs) for size_bytes in sizes or (what.size_bytes,)], verify_s
    return [retime(what.at(size_bytes), size_bytes, costs) for size_bytes in sizes], verify_s


def _planned(schedule: "Schedule", with_plan: bool) -> "tuple[Plan, PlanTimes] | None":
    """The plan of a schedule and its simulation; None above 64 ranks unless asked for."""
    from collsyn.check.loads import Occupancy
    from collsyn.check.simulate_plan import simulate_plan
    from collsyn.lower.lower import lower
    from collsyn.portfolio.auto import MAX_PLAN_RANKS

    if not with_plan and schedule.topology.num_ranks > MAX_PLAN_RANKS:
        return None
    plan = lower(schedule)
    if len(Occupancy.in_step(schedule)[0]):
        note("plan: no backend lets switches copy or reduce; the plan sends one by one what they join in the schedule")
    return plan, simulate_plan(plan, schedule.topology, schedule.size_bytes)


def _document(
    schedule: "Schedule", file: Path, verify_s: float, planned: "tuple[Plan, PlanTimes] | None"
) -> dict[str, Any]:
    from collsyn.check.simulate import utilisation
    from collsyn.check.summary import summary

    plan_s = None if planned is None else planned[1].finish_s
    used = utilisation(schedule)
    busiest = sorted(used.nonzero()[0].tolist(), key=lambda link: (-used[link], link))[:SHOWN_LINKS]
    return {
        **summary(schedule, plan_s, verify_s=verify_s, file=str(file)),
        "mean_utilisation": float(used.mean()) if len(used) else 0.0,
        "busiest_links": [
            {"link": schedule.topology.link_name(link), "utilisation": float(used[link])} for link in busiest
        ],
    }


def _plan_documents(
    what: "Plan | Foreign", file: Path, sizes: tuple[int, ...], costs: "Topology | None"
) -> "tuple[list[dict[str, Any]], tuple[Plan, PlanTimes]]":
    """A document for every size, and the simulation at the first."""
    import time

    from collsyn.check.simulate_plan import simulate_plan
    from collsyn.check.summary import plan_summary
    from collsyn.check.verify import verify_plan
    from collsyn.errors import InputError
    from collsyn.model.plan import Plan

    topology = what.topology if costs is None and isinstance(what, Plan) else costs
    if topology is None:
        raise InputError(f"{file}: is a plan that names no topology; give one with --topology")
    begin = time.perf_counter()
    report = verify_plan(what) if isinstance(what, Plan) else what.verify()
    report.raise_if_bad(str(file))
    verify_s = time.perf_counter() - begin
    plans = [what if isinstance(what, Plan) else what.plan(size_bytes) for size_bytes in sizes]
    simulated = [simulate_plan(plan, topology, size_bytes) for plan, size_bytes in zip(plans, sizes, strict=True)]
    documents = [
        plan_summary(plan, topology, size_bytes, times.finish_s, verify_s, str(file))
        for plan, times, size_bytes in zip(plans, simulated, sizes, strict=True)
    ]
    return documents, (plans[0], simulated[0])


def _plot(
    path: str,
    documents: list[dict[str, Any]],
    schedule: "Schedule | None",
    planned: "tuple[Plan, PlanTimes] | None",
) -> None:
    """Draw the links of the one size, or bandwidth against the sizes."""
    from collsyn.pictures.bandwidth import sweep_chart
    from collsyn.pictures.bandwidth_picture import draw_bandwidth
    from collsyn.pictures.link_picture import Panel, draw_links
    from collsyn.pictures.link_use import plan_use, schedule_use
    from collsyn.pictures.sheet import size_text
    from collsyn.units import us_to_s

    first = documents[0]
    made_by = f", {first['method']}" if first["method"] else ""
    if len(documents) > 1:
        draw_bandwidth(path, f"{first['topology']}{made_by}", [sweep_chart(documents)])
    else:
        panels, topologies = [], []
        if schedule is not None:
            topologies.append(schedule.topology)
            panels.append(Panel("schedule", schedule_use(schedule), first["gap"]))
        if planned is not None:
            topologies.append(planned[1].topology)
            panels.append(Panel("plan", plan_use(*planned, first["size_bytes"]), first["plan_gap"]))
        title = f"{first['collective']} of {size_text(first['size_bytes'])} on {first['topology']}{made_by}"
        draw_links(path, title, topologies[0], panels, us_to_s(first["bound_us"]))
    note(f"wrote {path}")


def _drawing(schedule: "Schedule", show_ranks: tuple[int, ...] | None, window_s: tuple[float, float] | None) -> str:
    from collsyn.check.simulate import timeline

    require_ranks(show_ranks, schedule.topology)
    return timeline(schedule, show_ranks, window_s)


def _show(documents: list[dict[str, Any]]) -> None:
    from collsyn.units import format_size

    first = documents[0]
    text(f"{first['collective']} on {first['topology']}, {first['num_ranks']} ranks, overhead {first['model']}")
    keys = ("finish_us", "plan_us", "bound_us")
    rows = [
        (
            format_size(document["size_bytes"]),
            *(document[key] for key in keys),
            None if document["gap"] is None else f"{100 * document['gap']:.1f}%",
            document["algbw_gb_s"],
            document["busbw_gb_s"],
        )
        for document in documents
    ]
    table("", ("size", "schedule us", "plan us", "bound us", "gap", "algbw GB/s", "busbw GB/s"), rows)
    if len(documents) == 1 and "busiest_links" in first:
        links = [(entry["link"], f"{100 * entry['utilisation']:.1f}%") for entry in first["busiest_links"]]
        text(f"Links are in use {100 * first['mean_utilisation']:.1f}% of the time; the busiest:")
        table("", ("link", "in use"), links)
