"""`collsyn synthesize`: a schedule for a collective, proven right, with its distance from the bound."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._options import (
    FILE,
    chosen_sizes,
    examples,
    json_option,
    output_option,
    problem_options,
    seed_option,
    sizes_options,
    time_limit_option,
)
from ._output import Cell, emit_json, note, progress, table
from ._problem import OUT, chosen_topology, make_problem

if TYPE_CHECKING:
    from collsyn.model.schedule import Schedule
    from collsyn.portfolio.candidates import Candidate
    from collsyn.synth.problem import Options, Problem

# Schedules of more sends than people would read are written as columns (.npz).
MAX_JSON_SENDS = 20_000
INTERRUPTED = 130


@click.command(
    "synthesize",
    epilog=examples(
        "collsyn synthesize --collective allgather                      # for the machine just profiled",
        "collsyn synthesize --collective allreduce --topology dgx1 --size 256M --json",
        "collsyn synthesize --collective alltoall --topology torus:4x4 --sizes 1K:64M --method direct -o none",
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
@click.option("--plan", "with_plan", is_flag=True, help="Lower and simulate the plan, too, above 64 ranks.")
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
    with_plan: bool,
    output: str | None,
    as_json: bool,
) -> int:
    """Make a schedule for a collective on a topology, verify it, and say how far it is from the lower bound.

    All methods that serve the problem are tried (--method auto) and the one whose simulated plan is
    quickest is kept. Ctrl-C keeps the best so far.
    """
    from collsyn.files import require_writable
    from collsyn.model.large_file import SUFFIX
    from collsyn.portfolio.large import is_large_problem, require_listable
    from collsyn.synth.problem import Options
    from collsyn.synth.table import method as named
    from collsyn.topology.sketch_file import load_sketch

    from ._large import show_synthesized, synthesized

    if warm_start is not None and method != "auto":
        raise click.UsageError("--warm-start repairs a schedule; leave out --method")
    if warm_start is not None and output is not None and output.endswith(SUFFIX):
        raise click.UsageError(f"--warm-start lists every send; give -o a name that does not end in {SUFFIX}")
    if sketch is not None and (warm_start is not None or (output or "").endswith(SUFFIX)):
        raise click.UsageError("--sketch goes with neither --warm-start nor -o FILE.large")
    asked = chosen_sizes(size, sizes)
    if asked.is_sweep and output not in (None, "none"):
        raise click.UsageError("-o FILE takes one size; leave it out for a sweep, or give -o none")
    if method != "auto":
        named(method)
    if output not in (None, "none"):
        require_writable(output)
    where = chosen_topology(topology)
    problem = make_problem(collective, where, asked.size_bytes[0], chunks, root, subset, groups, counts, spec)
    rules = None if sketch is None else load_sketch(sketch, problem.topology)
    options = Options(seed=seed, time_limit_s=time_limit_s, sketch=rules)
    if rules is not None and rules.size_bytes is not None and size is None and sizes is None:
        asked = asked._replace(size_bytes=(rules.size_bytes,))
        note(f"size: {rules.size_bytes} bytes, which sketch {rules.name} is for")
    old = None if warm_start is None else _read(warm_start)
    documents, stopped = [], False
    for size_bytes in asked.size_bytes:
        sized = replace(problem, size_bytes=size_bytes)
        if old is None and rules is None and is_large_problem(sized, method, output):
            file = Path(output) if output else _default_file(sized, "large")
            documents.append(synthesized(sized, options, method, None if output == "none" else file))
            if not as_json:
                show_synthesized(documents[-1])
            continue
        require_listable(sized, method)
        candidates = _solved(sized, options, method, with_plan, old, warm_start)
        stopped = any(candidate.interrupted for candidate in candidates)
        documents.append(_finished(candidates, output, old))
        if not as_json:
            _show(documents[-1], candidates)
        if stopped:
            note("interrupted; this is the best so far")
            break
    if as_json:
        emit_json(documents if asked.is_sweep else documents[0])
    return INTERRUPTED if stopped else 0


def _read(file: Path) -> "Schedule":
    """The schedule of a file, a large one listed if it is small; raises InputError."""
    from collsyn.check.large import listed
    from collsyn.model.large_file import is_large, read_large
    from collsyn.model.schedule_file import read_schedule

    return listed(read_large(file), str(file)) if is_large(file) else read_schedule(file)


def _solved(
    problem: "Problem",
    options: "Options",
    method: str,
    with_plan: bool,
    old: "Schedule | None",
    warm_start: Path | None,
) -> list["Candidate"]:
    from collsyn.portfolio.auto import best
    from collsyn.portfolio.repair import repaired

    plans = True if with_plan else None
    with progress(f"{problem.kind} on {problem.topology.name}", total=1.0) as update:
        options = replace(options, progress=update)
        if old is not None and warm_start is not None:
            return repaired(problem, options, old, warm_start, plans)
        return best(problem, options, None if method == "auto" else [method], plans)


def _finished(candidates: Sequence["Candidate"], output: str | None, old: "Schedule | None") -> dict[str, Any]:
    """Write the best candidate's schedule and return its document."""
    from collsyn.check.summary import summary
    from collsyn.model.schedule_file import write_schedule
    from collsyn.portfolio.candidates import chosen

    found = chosen(candidates)
    schedule = found.schedule
    assert schedule is not None
    file = None
    if output != "none":
        form = "json" if schedule.num_sends <= MAX_JSON_SENDS else "npz"
        file = Path(output) if output else _default_file(schedule, form)
        write_schedule(schedule, file)
    document = summary(schedule, found.plan_s, found.synthesis_s, found.verify_s, None if file is None else str(file))
    document["candidates"] = [_candidate_document(candidate) for candidate in candidates]
    if old is not None:
        from collsyn.portfolio.repair import cost_of_failure

        document["warm_start"] = dict(cost_of_failure(old, schedule))
    return document


def _candidate_document(candidate: "Candidate") -> dict[str, Any]:
    from collsyn.units import s_to_us

    return {
        "method": candidate.method,
        "finish_us": s_to_us(candidate.finish_s) if candidate.served else None,
        "plan_us": None if candidate.plan_s is None else s_to_us(candidate.plan_s),
        "gap": candidate.gap,
        "refused": candidate.refused,
    }


def _default_file(what: "Schedule | Problem", form: str) -> Path:
    """collsyn-out/schedules/COLLECTIVE-TOPOLOGY-SIZE.FORM."""
    from collsyn.synth.problem import Problem
    from collsyn.units import format_size

    kind = what.kind if isinstance(what, Problem) else what.collective.kind
    place = re.sub(r"[^A-Za-z0-9._-]+", "-", what.topology.name).strip("-.")[:80] or "topology"
    name = f"{kind}-{place}-{format_size(what.size_bytes)}"
    return OUT / "schedules" / f"{name}.{form}"


def _show(document: dict[str, Any], candidates: Sequence["Candidate"]) -> None:
    from collsyn.units import format_size

    title = (
        f"{document['collective']} of {format_size(document['size_bytes'])} on {document['topology']}, "
        f"{document['num_ranks']} ranks, overhead {document['model']}; bound {document['bound_us']:.4g} us "
        f"({document['bound_kind']})"
    )
    rows: list[tuple[Cell, ...]] = [
        (
            candidate.method,
            candidate.finish_s * 1e6 if candidate.served else None,
            None if candidate.plan_s is None else candidate.plan_s * 1e6,
            None if candidate.gap is None else f"{100 * candidate.gap:z.1f}%",
            candidate.chunks_per_rank,
            candidate.refused or ("verified, kept" if candidate is candidates[0] else "verified"),
        )
        for candidate in candidates
    ]
    table(title, ("method", "schedule us", "plan us", "gap", "chunks a rank", ""), rows)
    said = {name: value for name, value in (document["options"] or {}).items() if name != "chunks_per_rank"}
    if said:
        texts = (f"{value:.4g}" if isinstance(value, float) else value for value in said.values())
        parts = [f"{name.replace('_', ' ')} {text}" for name, text in zip(said, texts, strict=True)]
        note(f"{document['method']}: {', '.join(parts)}")
    wrote = f"wrote {document['file']}" if document["file"] else "nothing written"
    note(f"{document['algbw_gb_s']:.4g} GB/s algorithm bandwidth, {document['num_sends']} sends; {wrote}")
    if "warm_start" in document:
        cost = document["warm_start"]
        share = "" if cost["cost"] is None else f" ({100 * cost['cost']:+.1f}%)"
        note(
            f"the failure costs: bound {cost['bound_before_us']:.4g} -> {cost['bound_us']:.4g} us{share}; "
            f"{cost['kept_sends']} sends kept, {cost['new_sends']} new"
        )
