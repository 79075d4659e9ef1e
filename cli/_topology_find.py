"""`collsyn topology find`: which wiring N ranks with D ports each are best given."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._options import collective_name, examples, json_option, output_option, plot_option, seed_option, size_option
from ._output import Cell, emit_json, note, progress, table, text
from ._problem import OUT

if TYPE_CHECKING:
    from collsyn.finder.design import Design
    from collsyn.finder.search import Search
    from collsyn.model.schedule import Schedule
    from collsyn.model.topology import Topology

# Schedules of more sends than people would read are written as columns (.npz).
MAX_JSON_SENDS = 20_000
INTERRUPTED = 130


def positive(value: str) -> float:
    """A finite number above 0."""
    import math

    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < 1e9:
        raise click.BadParameter(f"{value!r} is not a number above 0 and below 1e9")
    return number


def not_negative(value: str) -> float:
    """A finite number of at least 0."""
    return 0.0 if re.fullmatch(r"0+(\.0*)?", value) else positive(value)


@click.command(
    "find",
    epilog=examples(
        "collsyn topology find --num-ranks 32 --degree 4",
        "collsyn topology find --num-ranks 1024 --degree 4 --size 1M --json -o none",
        "collsyn topology find --num-ranks 64 --degree 4 --collective allreduce --two-way -o net.yaml",
        "collsyn topology find --num-ranks 256 --degree 4 --plot designs.svg",
    ),
)
@click.option("--num-ranks", type=int, required=True, metavar="N", help="Ranks.")
@click.option("--degree", type=int, required=True, metavar="D", help="Links out of each rank, and into each.")
@click.option(
    "--collective",
    type=collective_name,
    default="allgather",
    show_default=True,
    metavar="C",
    help="allgather, reducescatter or allreduce.",
)
@size_option()
@click.option(
    "--alpha-us", type=not_negative, default="0.5", show_default=True, metavar="US", help="Latency of a link."
)
@click.option(
    "--bandwidth-gb-s", type=positive, default="50", show_default=True, metavar="GB/S", help="Of a link, one way."
)
@click.option(
    "--two-way", is_flag=True, help="Only wirings whose every link has one the other way (full-duplex cables)."
)
@seed_option()
@plot_option("steps against bandwidth factor of all designs that were tried")
@output_option(
    "Write the best topology here, the schedule beside it; or none. [default: collsyn-out/topologies/N...-D....yaml]"
)
@json_option()
def command(
    num_ranks: int,
    degree: int,
    collective: str,
    size_bytes: int,
    alpha_us: float,
    bandwidth_gb_s: float,
    two_way: bool,
    seed: int,
    plot: str | None,
    output: str | None,
    as_json: bool,
) -> int:
    """Find wirings of N ranks with D ports each: those that no other one beats in both steps and bytes.

    Searched are families of graphs (complete, bipartite, Kautz, circulant, Cayley, tori,
    distance-regular, random, ...) and line graphs, degree expansions and products of smaller
    results. The first one is the best for the size; its topology and its schedule, verified, are
    written; Ctrl-C keeps the best so far. Steps count alpha; the factor counts M/B, M the size and
    B the bandwidth of all D links.
    """
    from collsyn.files import require_writable
    from collsyn.finder.search import Search

    if plot is not None:
        from collsyn.pictures.sheet import require_picture

        require_picture(plot)
    if output not in (None, "none"):
        require_writable(output)
    search = Search(collective, two_way, seed)
    designs, stopped = _found(search, num_ranks, degree)
    if not designs:
        from collsyn.errors import Infeasible

        raise Infeasible(f"no wiring of {num_ranks} ranks with {degree} ports was found; try another seed")
    alpha_s, rank_bandwidth = alpha_us * 1e-6, degree * bandwidth_gb_s * 1e9
    designs = sorted(designs, key=lambda design: design.cost.time_s(size_bytes, alpha_s, rank_bandwidth))
    files: dict[str, Any] = {"file": None, "schedule": None, "finish_us": None}
    if output != "none":
        costs = f"@bandwidth_gb_s={bandwidth_gb_s:.10g},alpha_us={alpha_us:.10g}"
        files = _written(designs[0], collective, size_bytes, seed, costs, output)
    document = {**_document(search, designs, size_bytes, alpha_us, bandwidth_gb_s), **files}
    if plot is not None:
        _draw(plot, search, designs)
        note(f"wrote {plot}")
    if as_json:
        emit_json(document)
    else:
        _show(document)
    if stopped:
        note("interrupted; this is the best so far")
    return INTERRUPTED if stopped else 0


def _found(search: "Search", num_ranks: int, degree: int) -> tuple[list["Design"], bool]:
    """What the search found, and whether it was interrupted; raises KeyboardInterrupt where that left nothing."""
    from collsyn.errors import interrupts
    from collsyn.finder.design import pareto

    try:
        with progress(f"wirings of {num_ranks} ranks, degree {degree}"), interrupts():
            return search.find(num_ranks, degree), False
    except KeyboardInterrupt:
        found = pareto(search.tried.get((num_ranks, degree), []))
        if not found:
            raise
        return found, True


def _document(
    search: "Search", designs: list["Design"], size_bytes: int, alpha_us: float, bandwidth_gb_s: float
) -> dict[str, Any]:
    n, d = designs[0].num_ranks, designs[0].degree
    least = search.least(n, d)
    at = size_bytes, alpha_us * 1e-6, d * bandwidth_gb_s * 1e9
    rows = [
        {
            "topology": design.text,
            "steps": design.cost.steps,
            "factor": float(design.cost.factor),
            "factor_exact": str(design.cost.factor),
            "time_us": design.cost.time_s(*at) * 1e6,
            "gap": design.cost.time_s(*at) / least.time_s(*at) - 1,
            "predicted_steps": None if design.predicted is None else design.predicted.steps,
            "predicted_factor": None if design.predicted is None else float(design.predicted.factor),
            "schedule_by": "bfb" if design.base is None else "carried",
        }
        for design in designs
    ]
    return {
        "num_ranks": n,
        "degree": d,
        "collective": search.collective,
        "two_way": search.two_way,
        "size_bytes": size_bytes,
        "alpha_us": alpha_us,
        "bandwidth_gb_s": bandwidth_gb_s,
        "seed": search.seed,
        "tried": sum(len(graphs) for graphs in search.tried.values()),
        "bound": {
            "steps": least.steps,
            "factor": float(least.factor),
            "factor_exact": str(least.factor),
            "time_us": least.time_s(*at) * 1e6,
        },
        "designs": rows,
    }


def _show(document: dict[str, Any]) -> None:
    from collsyn.units import format_size

    links = ", links both ways" if document["two_way"] else ""
    title = (
        f"{document['collective']} of {format_size(document['size_bytes'])}, {document['num_ranks']} ranks of degree "
        f"{document['degree']}{links}: best wiring first"
    )
    rows: list[tuple[Cell, ...]] = [
        (
            row["topology"],
            row["steps"],
            _factor(row["factor"]),
            row["time_us"],
            f"{100 * row['gap']:.1f}%",
            "" if row["predicted_steps"] is None else f"{row['predicted_steps']}, {_factor(row['predicted_factor'])}",
        )
        for row in document["designs"]
    ]
    bound = document["bound"]
    rows.append(("bounds (no wiring has fewer)", bound["steps"], _factor(bound["factor"]), bound["time_us"], "", ""))
    table(title, ("topology", "steps", "factor M/B", "us step by step", "over bounds", "predicted"), rows)
    if document["file"]:
        text(f"wrote {document['file']} and {document['schedule']} (verified, {document['finish_us']:.4g} us)")


def _factor(value: float) -> str:
    return f"{value:.4f}"


def _written(
    design: "Design", collective: str, size_bytes: int, seed: int, costs: str, output: str | None
) -> dict[str, Any]:
    """Write topology and verified schedule; where they are, and the schedule's finish."""
    from collsyn.files import require_writable
    from collsyn.model.schedule_file import write_schedule
    from collsyn.model.topology_file import write_topology
    from collsyn.topology.resolve import load_topology
    from collsyn.units import format_size

    file = Path(output) if output else OUT / "topologies" / f"N{design.num_ranks}-D{design.degree}.yaml"
    topology = load_topology(design.text + costs)
    schedule = _schedule(design, topology, collective, size_bytes, seed)
    form = "json" if schedule.num_sends <= MAX_JSON_SENDS else "npz"
    beside = file.with_name(f"{file.stem}-{collective}-{format_size(size_bytes)}.{form}")
    if output:
        require_writable(str(beside))
    write_topology(topology, file)
    write_schedule(schedule, beside)
    return {"file": str(file), "schedule": str(beside), "finish_us": schedule.finish_s * 1e6}


def _schedule(design: "Design", topology: "Topology", collective: str, size_bytes: int, seed: int) -> "Schedule":
    """The schedule of a design, verified and with its bound: of the method bfb, or as carried along."""
    from collsyn.synth.problem import Options, Problem

    problem, options = Problem(collective, topology, size_bytes), Options(seed=seed)
    if design.base is None:
        from collsyn.portfolio.auto import best
        from collsyn.portfolio.candidates import chosen

        found = chosen(best(problem, options, ["bfb"], False)).schedule
        assert found is not None
        return found
    from collsyn.bounds import fluid_bound
    from collsyn.check.verify import verify_schedule
    from collsyn.finder.schedule import carried_schedule

    schedule = carried_schedule(problem, design.text, design.base, options)
    schedule = schedule.with_notes(bounds=[fluid_bound(problem.collective(), topology, size_bytes)])
    verify_schedule(schedule).raise_if_bad()
    return schedule


def _draw(plot: str, search: "Search", designs: list["Design"]) -> None:
    from collsyn.pictures.design_picture import Point, draw_designs

    n, d = designs[0].num_ranks, designs[0].degree
    least = search.least(n, d)
    shown = {(design.cost.steps, design.cost.factor) for design in designs}
    points = [Point(design.cost.steps, float(design.cost.factor), design.text) for design in designs]
    others = {(one.cost.steps, one.cost.factor) for one in search.tried[n, d]} - shown
    points += [Point(steps, float(factor)) for steps, factor in sorted(others)]
    title = f"Wirings of {n} ranks, degree {d}: {search.collective}"
    line = f"{len(search.tried[n, d])} graphs built; joined are those that no other one beats"
    draw_designs(plot, title, line, points, Point(least.steps, float(least.factor)))
