"""`collsyn bound`: no schedule is quicker than this, and why."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._options import examples, json_option, problem_options, size_option, write_model_option
from ._output import emit_json, table
from ._problem import make_problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collsyn.model.bound import Bound
    from collsyn.model.topology import Topology
    from collsyn.synth.problem import Problem

# Vertices of a set that are named before the rest is counted.
SHOWN_VERTICES = 8
# In the order of the table; the last is for allreduces along trees alone.
_SCOPES = ("fluid", "chunk", "tree")


@click.command(
    "bound",
    epilog=examples(
        "collsyn bound --collective allgather --topology dgx1 --size 256M",
        "collsyn bound --collective allreduce --topology mesh:8x8 --chunks 2 --json",
    ),
)
@problem_options()
@size_option()
@click.option(
    "--chunks",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Chunks a rank, for the bound on chunks sent whole.",
)
@write_model_option()
@json_option()
def command(
    collective: str,
    topology: str,
    root: int | None,
    subset: tuple[int, ...] | None,
    groups: tuple[tuple[int, ...], ...] | None,
    counts: Path | None,
    spec: Path | None,
    size_bytes: int,
    chunks: int,
    write_model: Path | None,
    as_json: bool,
) -> None:
    """Lower bound on the time of a collective, with a certificate that anyone can check.

    The fluid bound holds for any splitting of the data into chunks, the chunk bound for N chunks a
    rank that travel whole, one in a message. algbw is the bandwidth that no size exceeds.
    The tree bound holds for allreduces that sum along trees to roots and copy along trees from
    them, as nearly all do; others may beat it.
    """
    from collsyn.bounds import chunk_bound, fluid_bound, tree_bound
    from collsyn.solver.export import use_folder

    use_folder(write_model)
    whole_chunks = None if collective == "custom" else chunks
    problem = make_problem(collective, topology, size_bytes, whole_chunks, root, subset, groups, counts, spec)
    asked = problem.collective(), problem.topology, problem.size_bytes
    fluid, whole, tree = fluid_bound(*asked), chunk_bound(*asked), tree_bound(*asked)
    if as_json:
        emit_json(_document(problem, fluid, whole, tree))
    else:
        _show(problem, fluid, whole, tree)


def _document(problem: "Problem", fluid: "Bound", whole: "Bound", tree: "Bound | None") -> dict[str, Any]:
    from collsyn.model.metrics import algbw_gb_s, busbw_gb_s

    num_ranks = max(len(group) for group in problem.collective().groups)
    return {
        "schema": "collsyn-bound/1",
        "collective": problem.kind,
        "topology": problem.topology.name,
        "num_ranks": problem.topology.num_ranks,
        "size_bytes": problem.size_bytes,
        "chunks_per_rank": problem.collective().chunks_per_rank,
        "model": problem.topology.overhead_model,
        "bound_us": fluid.document()["bound_us"],
        "bound_kind": fluid.kind,
        "certificate": dict(fluid.certificate),
        "algbw_exact": fluid.algbw_exact,
        "algbw_gb_s": algbw_gb_s(problem.size_bytes, fluid.time_s),
        "busbw_gb_s": busbw_gb_s(problem.kind, num_ranks, problem.size_bytes, fluid.time_s),
        "chunk_bound_us": whole.document()["bound_us"],
        "chunk_bound_kind": whole.kind,
        "chunk_certificate": dict(whole.certificate),
        "tree_bound_us": None if tree is None else tree.document()["bound_us"],
        "tree_algbw_exact": None if tree is None else tree.algbw_exact,
        "tree_certificate": None if tree is None else dict(tree.certificate),
        "arguments": [bound.document() for bound in _all_bounds(problem)],
    }


def _all_bounds(problem: "Problem") -> list["Bound"]:
    from collsyn.bounds.bound import bounds_by_argument, whole_bounds_by_argument

    asked = problem.collective(), problem.topology, problem.size_bytes
    return [*bounds_by_argument(*asked), *whole_bounds_by_argument(*asked)]


def _show(problem: "Problem", fluid: "Bound", whole: "Bound", tree: "Bound | None") -> None:
    from collsyn.units import format_size, s_to_us

    machine = problem.topology
    title = (
        f"{problem.kind} of {format_size(problem.size_bytes)} on {machine.name}, {machine.num_ranks} ranks, "
        f"overhead {machine.overhead_model}\n"
        f"no schedule is quicker than {s_to_us(fluid.time_s):.4f} us; "
        f"in whole chunks, {problem.collective().chunks_per_rank} a rank, {s_to_us(whole.time_s):.4f} us"
    )
    bounds = [*_all_bounds(problem), *([tree] if tree else [])]
    rows = [
        (
            bound.kind,
            bound.scope,
            s_to_us(bound.time_s),
            "-" if bound.algbw_exact is None else str(bound.algbw_exact),
            _words(bound.certificate, machine),
        )
        for bound in sorted(bounds, key=lambda bound: (_SCOPES.index(bound.scope), -bound.time_s))
    ]
    table(title, ("argument", "holds for", "us", "algbw GB/s", "because"), rows)


def _words(certificate: "Mapping[str, Any]", topology: "Topology") -> str:
    """What a certificate says, in words."""
    from collsyn.units import s_to_us

    if certificate["kind"] == "path":
        return f"rank {certificate['to']} is that far from rank {certificate['from']}"
    if certificate["kind"] == "dual":
        return f"trees up and down share {certificate['capacity_gb_s']} GB/s of all links, weighted by sets"
    if "chunks" in certificate or "messages" in certificate:
        amount = f"{certificate.get('chunks', certificate.get('messages'))} messages"
    else:
        load = certificate.get("crossing", certificate.get("load"))
        amount = f"{load} of the size over {certificate['capacity_gb_s']} GB/s"
    if certificate["kind"] == "lengths":
        return f"{amount}, all links together, weighted"
    if certificate["kind"] == "parts":
        parts = "boxes" if certificate["parts"] else "ranks"
        return f"{amount} {certificate['side']} {parts}"
    if "rank" in certificate:
        way, end = ("into", "from") if certificate["side"] == "in" else ("out of", "to")
        far = f"{s_to_us(certificate['distance_s']):.4g} us away or farther"
        return f"{amount} {way} rank {certificate['rank']}, {end} {far}"
    onward = ", each once and on to all there or twice" if "alone" in certificate else ""
    return f"{amount} into {_set_words(certificate['vertices'], topology)}{onward}"


def _set_words(vertices: list[int], topology: "Topology") -> str:
    outside = sorted(set(range(topology.num_vertices)) - set(vertices))
    listed, all_but = (outside, "all but ") if len(outside) < len(vertices) else (vertices, "")
    names = ",".join(topology.vertex_name(v) for v in listed[:SHOWN_VERTICES])
    more = f" and {len(listed) - SHOWN_VERTICES} more" if len(listed) > SHOWN_VERTICES else ""
    return f"{all_but}{{{names}{more}}}"
