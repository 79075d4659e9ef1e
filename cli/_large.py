"""What the commands do with schedules of so many sends that they are not listed."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._output import note, table
from ._problem import require_ranks

if TYPE_CHECKING:
    from collsyn.model.large_file import LargeSchedule
    from collsyn.model.topology import Topology
    from collsyn.synth.problem import Options, Problem

# Sends that are drawn at most, a line of text for each pair of ranks.
DRAWN = 200_000


def synthesized(problem: "Problem", options: "Options", method: str, file: Path | None) -> dict[str, Any]:
    """Solve, verify and (to a file) write a large problem, and return its document."""
    from collsyn.check.summary import summary
    from collsyn.portfolio.large import solve_large

    found = solve_large(problem, options, method, file)
    document = summary(found.schedule, None, found.synthesis_s, found.verify_s, None if file is None else str(file))
    row = {"method": found.method, "finish_us": document["finish_us"], "plan_us": None, "gap": document["gap"]}
    return {**document, "candidates": [{**row, "refused": None}]}


def show_synthesized(document: dict[str, Any]) -> None:
    """Print what became of a large problem."""
    from collsyn.units import format_size

    title = (
        f"{document['collective']} of {format_size(document['size_bytes'])} on {document['topology']}, "
        f"{document['num_ranks']} ranks, overhead {document['model']}"
    )
    names = (
        "method",
        "schedule us",
        "bound us",
        "gap",
        "chunk bound us",
        "gap",
        "chunks a rank",
        "made s",
        "verified s",
    )
    row = (
        document["method"],
        document["finish_us"],
        document["bound_us"],
        f"{100 * document['gap']:z.2f}%",
        document["chunk_bound_us"],
        f"{100 * document['chunk_gap']:z.2f}%",
        document["chunks_per_rank"],
        document["synthesis_s"],
        document["verify_s"],
    )
    table(title, names, [row])
    wrote = f"wrote {document['file']}" if document["file"] else "nothing written"
    note(f"{document['algbw_gb_s']:.4g} GB/s algorithm bandwidth, {document['num_sends']} sends; {wrote}")


def simulate_large(
    file: Path,
    sizes: tuple[int, ...],
    costs: "Topology | None",
    ranks: tuple[int, ...] | None,
    window_s: tuple[float, float] | None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Documents of a large schedule, found right, at every size (its own if none is given), and its drawings."""
    import time

    from collsyn.check.large import retime_large, verify_large
    from collsyn.check.summary import summary
    from collsyn.model.large_file import read_large

    schedule = read_large(file)
    require_ranks(ranks, schedule.topology)
    begin = time.perf_counter()
    verify_large(schedule).raise_if_bad(str(file))
    verify_s = time.perf_counter() - begin
    asked = sizes or (schedule.size_bytes,)
    timed = [retime_large(schedule, size, costs) for size in asked] if sizes or costs is not None else [schedule]
    documents = [summary(each, verify_s=verify_s, file=str(file)) for each in timed]
    if ranks is None and window_s is None:
        return documents, []
    return documents, [_drawing(each, ranks, window_s) for each in timed]


def _drawing(schedule: "LargeSchedule", ranks: tuple[int, ...] | None, window_s: tuple[float, float] | None) -> str:
    from collsyn.check.simulate import timeline

    if ranks is None and schedule.num_sends > DRAWN:
        raise click.UsageError(f"--window alone would draw some of {schedule.num_sends} sends; give --show-ranks, too")
    part = schedule.excerpt(ranks, window_s)
    if part.num_sends > DRAWN:
        raise click.UsageError(f"that is {part.num_sends} sends; give fewer --show-ranks or a narrower --window")
    return timeline(part, ranks, window_s or (0.0, schedule.finish_s))


def refuse_plot(plot: str | None, with_plan: bool) -> None:
    """Say that what needs all sends, or plans, is not there for large schedules."""
    if plot is not None:
        raise click.UsageError("--plot draws every link, too many here; --show-ranks and --window draw a part")
    if with_plan:
        note("no plan: files of large schedules are not lowered; export --format json lists those that are small")
