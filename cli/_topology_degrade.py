"""`collsyn topology degrade`: what remains of a topology when links and ranks fail, and what that costs."""

from typing import TYPE_CHECKING, Any

import click

from ._options import examples, json_option, output_option, ranks
from ._output import Cell, emit_json, note, table, text
from ._topology_bounds import bounds

if TYPE_CHECKING:
    from collsyn.model.topology import Topology


def slowed(value: str) -> tuple[str, float]:
    """A link and the part of its bandwidth that is left, as in 3-4=0.5."""
    link, equals, factor = value.rpartition("=")
    try:
        share = float(factor)
    except ValueError:
        share = -1.0
    if not equals or not link or not 0 < share <= 1:
        raise click.BadParameter(f"{value!r} is no slower link; expected A-B=0.5 with a part above 0 and up to 1")
    return link, share


@click.command(
    "degrade",
    epilog=examples(
        "collsyn topology degrade torus:8x8 --drop-link 0-1 -o broken.yaml",
        "collsyn topology degrade torus:8x8 --slow-link 0-1=0.5 --slow-link '8->9=0.5' -o slow.yaml",
        "collsyn topology degrade dgx-a100:2 --drop-rank 3 -o seven.yaml --json",
    ),
)
@click.argument("topo")
@click.option("--drop-link", "dropped_links", multiple=True, metavar="A-B", help="A link that fails (A->B: one way).")
@click.option(
    "--slow-link", "slowed_links", multiple=True, type=slowed, metavar="A-B=F", help="A link that keeps F of its GB/s."
)
@click.option("--drop-rank", "dropped_ranks", multiple=True, type=ranks, metavar="R", help="Ranks that fail, like 5.")
@output_option("Where to write the topology that remains.")
@json_option()
def command(
    topo: str,
    dropped_links: tuple[str, ...],
    slowed_links: tuple[tuple[str, float], ...],
    dropped_ranks: tuple[tuple[int, ...], ...],
    output: str | None,
    as_json: bool,
) -> None:
    """Write what remains of TOPO after failures, and say by how much the lower bounds rise.

    Ranks that remain are renumbered in their order. A schedule for TOPO can be repaired instead of made
    anew: collsyn synthesize --topology OUT.yaml --warm-start SCHEDULE.
    """
    from collsyn.files import require_writable
    from collsyn.model.topology_file import write_topology
    from collsyn.topology.degrade import Failures, degrade
    from collsyn.topology.resolve import load_topology

    if output is None:
        raise click.UsageError("missing -o OUT.yaml, where to write what remains")
    failures = Failures(dropped_links, slowed_links, tuple(rank for some in dropped_ranks for rank in some))
    if not failures.words():
        raise click.UsageError("nothing fails; give --drop-link, --slow-link or --drop-rank")
    require_writable(output)
    before = load_topology(topo)
    after = degrade(before, failures)
    write_topology(after, output)
    costs = _costs(before, after)
    if as_json:
        emit_json(_document(before, after, failures.words(), costs, output))
        return
    rows: list[tuple[Cell, ...]] = [
        ("ranks", before.num_ranks, after.num_ranks),
        ("links (one direction each)", before.num_links, after.num_links),
        ("GB/s of all links", *(round(float(t.bandwidth.sum()) / 1e9, 3) for t in (before, after))),
    ]
    table(after.name, ("", "before", "after"), rows)
    if costs:
        shown = [(c["collective"], c["before_us"], c["after_us"], f"{100 * c['cost']:+.1f}%") for c in costs]
        table("What it costs: lower bounds at 1 GiB", ("collective", "before us", "after us", ""), shown)
    if after.num_ranks < before.num_ranks:
        text("ranks are renumbered in their order")
    note(f"wrote {output}")


def _costs(before: "Topology", after: "Topology") -> list[dict[str, Any]]:
    """The bound of every collective before and after; none on machines too large for that."""
    found = [{row["collective"]: row["bound_us"] for row in bounds(topology)} for topology in (before, after)]
    return [
        {"collective": kind, "before_us": old, "after_us": found[1][kind], "cost": found[1][kind] / old - 1}
        for kind, old in found[0].items()
        if kind in found[1]
    ]


def _document(
    before: "Topology", after: "Topology", failures: list[str], costs: list[dict[str, Any]], output: str
) -> dict[str, Any]:
    from collsyn.model.topology_file import topology_digest

    return {
        "topology": after.name,
        "file": output,
        "failures": failures,
        "num_ranks": {"before": before.num_ranks, "after": after.num_ranks},
        "num_links": {"before": before.num_links, "after": after.num_links},
        "kept_ranks": after.provenance["degraded"]["kept_ranks"],
        "bounds": costs,
        "digest": topology_digest(after),
    }
