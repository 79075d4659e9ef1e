"""`collsyn topology`: what presets there are, what a topology is like, and how two differ."""

import re
from typing import TYPE_CHECKING, Any

import click

from ._options import examples, json_option, plot_option, subset_option
from ._output import Cell, emit_json, note, table, text
from ._topology_bounds import COLUMNS as BOUND_COLUMNS
from ._topology_bounds import bounds
from ._topology_bounds import rows as bound_rows
from ._topology_degrade import command as degrade_command
from ._topology_find import command as find_command
from ._topology_import import command as import_command
from ._topology_import import show_assumptions

if TYPE_CHECKING:
    from collsyn.model.profile import Profile
    from collsyn.model.topology import Topology

# Links up to here are listed one by one; more are counted by kind unless --links asks.
FEW_LINKS = 40
# Bandwidths from rank to rank are shown as a matrix up to this many ranks.
MATRIX_RANKS = 16


@click.group("topology")
def command() -> None:
    """List, show, compare, degrade or design topologies, or import what other programs wrote.

    TOPO is a preset such as torus:4x4 or dgx1 (NAME[:DIMS][@key=value,...], where keys are
    bandwidth_gb_s, alpha_us and overhead), a topology or profile file, or what import reads.
    """


command.epilog = examples(
    "collsyn topology list",
    "collsyn topology show torus:4x4@bandwidth_gb_s=100/50,overhead=alpha",
)
command.add_command(import_command)
command.add_command(find_command)
command.add_command(degrade_command)


@command.command("list", epilog=examples("collsyn topology list"))
@json_option()
def list_presets(as_json: bool) -> None:
    """List the presets: formulas, graphs made from graphs, and machines."""
    from collsyn.topology.presets import catalogue

    entries = catalogue()
    if as_json:
        emit_json({"presets": [vars(entry) for entry in entries]})
        return
    for kind, title in _KINDS:
        rows = [(entry.form, ", ".join(entry.options), entry.summary) for entry in entries if entry.kind == kind]
        table(title, ("preset", "options", "what it is"), rows)
    text("All take @bandwidth_gb_s=...,alpha_us=...,overhead=none|alpha|MICROSECONDS.")
    text("Grids also take one value a dimension: mesh:4x8@bandwidth_gb_s=100/50.")
    text("Formulas have 50 GB/s a link and direction, 0.5 us and no overhead unless told otherwise.")


@command.command(
    epilog=examples(
        "collsyn topology show dgx1",
        "collsyn topology show dgx-a100:2 --json",
        "collsyn topology show dgx1 --subset 0-3",
        "collsyn topology show dgx-a100:2 --plot dgx-a100.svg",
    )
)
@click.argument("topo")
@subset_option()
@click.option("--links", "all_links", is_flag=True, help="List every link, however many there are.")
@plot_option("ranks, switches, boxes and links")
@json_option()
def show(topo: str, subset: tuple[int, ...] | None, all_links: bool, plot: str | None, as_json: bool) -> None:
    """Show links, degrees, diameter, bisection, symmetries, bandwidths of pairs and lower bounds of TOPO."""
    from collsyn.topology.resolve import load_topology

    if plot is not None:
        from collsyn.pictures.sheet import require_picture

        require_picture(plot)
    topology = load_topology(topo)
    if subset is not None:
        topology = topology.subset(subset)
    show_assumptions(topology)
    facts = _facts(topology)
    if plot is not None:
        from collsyn.pictures.topology_picture import draw_topology

        draw_topology(plot, topology)
        note(f"wrote {plot}")
    if as_json:
        from collsyn.model.topology_file import topology_digest, topology_document

        digest = topology_digest(topology)
        emit_json({**facts, "bounds": bounds(topology), "digest": digest, "topology": topology_document(topology)})
        return
    table(topology.name, ("property", "value"), list(_rows(facts).items()))
    if facts["cuts"]:
        rows = [(cut["name"], cut["ranks"], cut["out_gb_s"], cut["in_gb_s"]) for cut in facts["cuts"]]
        table("Cuts and boxes", ("cut", "ranks", "GB/s out", "GB/s in"), rows)
    if facts["pair_gb_s"]:
        rows = [(f"from {rank}", *to_others) for rank, to_others in enumerate(facts["pair_gb_s"])]
        table("Pairs (GB/s)", ("to", *map(str, range(topology.num_ranks))), rows)
    limits = bounds(topology)
    if limits:
        table("No schedule is quicker at 1 GiB", BOUND_COLUMNS, bound_rows(limits))
    if all_links or topology.num_links <= 2 * FEW_LINKS:
        table("Links (GB/s of all lanes, one direction)", _LINK_COLUMNS, _every_link(topology))
    else:
        table("Links by kind (GB/s of all lanes, one direction)", ("number", *_LINK_COLUMNS), _kinds_of_links(topology))


@command.command(epilog=examples("collsyn topology diff dgx1 dgx1p", "collsyn topology diff before.yaml after.yaml"))
@click.argument("left")
@click.argument("right")
@json_option()
def diff(left: str, right: str, as_json: bool) -> None:
    """Say in what LEFT and RIGHT differ: vertices, links and their costs.

    Of two profiles each cost is compared; those are told that are more than 10% apart and whose
    intervals do not meet, and links and shared links that only one of them has.
    """
    from collsyn.topology.diff import differences
    from collsyn.topology.resolve import load_profile, load_topology

    before, after = load_profile(left), load_profile(right)
    if before is not None and after is not None:
        _show_changes(left, right, before, after, as_json)
        return
    found = differences(load_topology(left), load_topology(right))
    if as_json:
        emit_json({"left": left, "right": right, "same": not found, "differences": [vars(row) for row in found]})
    elif found:
        table(f"{len(found)} differences", ("what", left, right), [(row.what, row.left, row.right) for row in found])
    else:
        text(f"{left} and {right} are the same")


def _show_changes(left: str, right: str, before: "Profile", after: "Profile", as_json: bool) -> None:
    from collsyn.topology.profile_diff import profile_changes

    found = profile_changes(before, after)
    told = [change for change in found if change.differs]
    if as_json:
        emit_json({"left": left, "right": right, "same": not told, "changes": [vars(change) for change in found]})
        return
    rows = [
        (
            change.what,
            change.unit,
            *("-" if value is None else value for value in (change.left, change.right)),
            "" if change.relative is None else f"{change.relative:+.0%}",
        )
        for change in told
    ]
    if rows:
        table(f"{len(told)} of {len(found)} costs differ", ("what", "unit", left, right, "change"), rows)
    else:
        text(f"{left} and {right} have the same {len(found)} costs, as far as their intervals tell")


_KINDS = (("formula", "Formulas"), ("construction", "Graphs from graphs"), ("machine", "Machines"))
_LINK_COLUMNS = ("from", "to", "way", "lanes", "GB/s", "alpha us", "overhead us")


def _facts(topology: "Topology") -> dict[str, Any]:
    """The properties as `--json` has them."""
    from collsyn.topology.connect import unreachable_pair
    from collsyn.topology.properties import capacity, properties
    from collsyn.units import rounded, s_to_us

    found = properties(topology)

    def giga(bytes_per_s: float) -> float:
        return rounded(bytes_per_s / 1e9)

    named = [(cut.name, cut.vertices) for cut in topology.cuts]
    named += [(f"box {number}", box) for number, box in enumerate(topology.boxes) if len(topology.boxes) > 1]
    cuts = []
    for name, vertices in named:
        leaving, entering = capacity(topology, vertices)
        inside = sum(vertex < topology.num_ranks for vertex in vertices)
        cuts.append({"name": name, "ranks": inside, "out_gb_s": giga(leaving), "in_gb_s": giga(entering)})
    sides = {"out": found.out, "in": found.into}
    half = found.bisection
    return {
        "name": topology.name,
        "num_ranks": topology.num_ranks,
        "num_switches": len(topology.switch_names),
        "num_links": topology.num_links,
        "num_boxes": len(topology.boxes),
        "model": topology.overhead_model,
        "min_piece_bytes": topology.min_piece_bytes,
        "unreachable": unreachable_pair(topology),
        "degree": {
            side: {"links": d.links, "lanes": d.lanes, "gb_s": [giga(value) for value in d.bandwidth]}
            for side, d in sides.items()
        },
        "diameter_hops": found.hops,
        "diameter_alpha_us": None if found.alpha_s is None else rounded(s_to_us(found.alpha_s)),
        "bisection": half and {"gb_s": giga(half.bandwidth), "exact": half.exact, "cut": half.cut},
        "symmetry": {"generators": len(topology.symmetries), "order": found.order, "kinds_of_ranks": found.orbits},
        "cuts": cuts,
        "pair_gb_s": _pairs(topology) if 1 < topology.num_ranks <= MATRIX_RANKS else None,
    }


def _pairs(topology: "Topology") -> list[list[float | None]]:
    """GB/s that one message has from each rank to each other, None where every way leads through another rank."""
    from collsyn.topology.hops import hops
    from collsyn.units import beta_to_gb_s, rounded

    pairs: list[list[float | None]] = [[None] * topology.num_ranks for _ in range(topology.num_ranks)]
    found = hops(topology)
    for src, dst, beta in zip(found.src.tolist(), found.dst.tolist(), found.beta_s_per_byte.tolist(), strict=True):
        pairs[src][dst] = max(pairs[src][dst] or 0.0, rounded(beta_to_gb_s(beta)))
    return pairs


def _rows(facts: dict[str, Any]) -> dict[str, Cell]:
    """The properties as the table has them."""
    rows: dict[str, Cell] = {
        "ranks": facts["num_ranks"],
        "switches": facts["num_switches"],
        "links": f"{facts['num_links']} (one direction each)",
        "overhead": facts["model"],
    }
    if facts["min_piece_bytes"] > 1:
        rows["minimum piece"] = f"{facts['min_piece_bytes']} bytes"
    out, into = ([_span(facts["degree"][side][key]) for key in ("links", "lanes", "gb_s")] for side in ("out", "in"))
    for way, (links, lanes, gb_s) in (("out", out), ("in", into)) if out != into else (("", out),):
        bundled = "" if lanes == links else f" of {lanes} lanes"
        noun = "link" if links == "1" else "links"
        rows[f"degree {way}".strip()] = f"{links} {noun}{bundled}, {gb_s} GB/s{'' if way else ' each way'}"
    hops, alpha_us, half, symmetry = (
        facts[key] for key in ("diameter_hops", "diameter_alpha_us", "bisection", "symmetry")
    )
    if facts["unreachable"]:
        rows["diameter"] = "none: no links lead from rank {} to rank {}".format(*facts["unreachable"])
    elif hops is None:
        rows["diameter"] = "not searched at this size"
    else:
        rows["diameter"] = f"{hops} hop{'s' if hops > 1 else ''}, {alpha_us:g} us"
    if half is None:
        rows["bisection"] = "not known"
    else:
        rows["bisection"] = f"{half['gb_s']:g} GB/s one way ({'all halves tried' if half['exact'] else half['cut']})"
    order = "a large group" if symmetry["order"] is None else f"group of order {symmetry['order']}"
    kinds = symmetry["kinds_of_ranks"]
    alike = "all ranks alike" if kinds == 1 else f"{kinds} kinds of ranks"
    rows["symmetry"] = f"{order}, {alike}" if symmetry["generators"] else "none recorded"
    return rows


def _span(values: tuple[float, float]) -> str:
    low, high = values
    return f"{low:g}" if low == high else f"{low:g}..{high:g}"


def _every_link(topology: "Topology") -> list[tuple[Cell, ...]]:
    """A row a link; a link and its equal mirror image share one."""
    rows: dict[tuple[Cell, ...], int] = {}
    for link in range(topology.num_links):
        ends = [topology.vertex_name(int(column[link])) for column in (topology.src, topology.dst)]
        costs = _link_costs(topology, link)
        mirrored = (ends[1], ends[0], "->", *costs)
        if rows.get(mirrored, 0):
            rows[mirrored] -= 1
            key: tuple[Cell, ...] = (ends[1], ends[0], "<->", *costs)
        else:
            key = (ends[0], ends[1], "->", *costs)
        rows[key] = rows.get(key, 0) + 1
    return [row for row, number in rows.items() for _ in range(number)]


def _kinds_of_links(topology: "Topology") -> list[tuple[Cell, ...]]:
    """A row for each kind: what it joins (a switch of any box counts as one) at what costs, and how many there are."""
    import numpy as np

    names = [re.sub(r"^box\d+\.", "", name) for name in topology.switch_names]
    kinds = {name: number for number, name in enumerate(["rank", *dict.fromkeys(names)])}
    kind = np.array([0] * topology.num_ranks + [kinds[name] for name in names])
    costs = (topology.count, topology.beta_s_per_byte, topology.alpha_s, topology.overhead_s)
    number = np.zeros(topology.num_links, dtype=np.int64)
    for column in (kind[topology.src], kind[topology.dst], *costs):
        _, place = np.unique(column, return_inverse=True)
        number = np.unique(number * (place.max() + 1) + place, return_inverse=True)[1]
    _, first, many = np.unique(number, return_index=True, return_counts=True)
    rows = []
    for link, times in sorted(zip(first.tolist(), many.tolist(), strict=True)):
        ends = [[*kinds][kind[column[link]]] for column in (topology.src, topology.dst)]
        rows.append((times, *ends, "->", *_link_costs(topology, link)))
    return rows


def _link_costs(topology: "Topology", link: int) -> tuple[Cell, ...]:
    from collsyn.units import beta_to_gb_s, rounded, s_to_us

    gb_s = rounded(beta_to_gb_s(float(topology.beta_s_per_byte[link])))
    alpha, overhead = (rounded(s_to_us(float(column[link]))) for column in (topology.alpha_s, topology.overhead_s))
    return int(topology.count[link]), gb_s, alpha, overhead
