"""`collsyn pareto`: which numbers of chunks, steps and rounds are possible, with proofs of what is not."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._options import examples, json_option, problem_options, size_option, time_limit_option, write_model_option
from ._output import Cell, emit_json, note, table
from ._problem import make_problem

if TYPE_CHECKING:
    from collsyn.synth.exact import ParetoSet
    from collsyn.synth.problem import Problem

SHOWN_OTHERS = 12


@click.command(
    "pareto",
    epilog=examples(
        "collsyn pareto --collective allgather --topology dgx1",
        "collsyn pareto --collective alltoall --topology dgx1 --max-chunks 2 --json",
        "collsyn synthesize --collective allgather --topology dgx1 --method exact:6/3/7 --size 64M",
    ),
)
@problem_options()
@size_option()
@click.option(
    "--max-chunks", type=click.IntRange(1, 64), default=8, show_default=True, metavar="N", help="Chunks a rank."
)
@click.option("--max-steps", type=click.IntRange(1, 64), metavar="N", help="Steps.  [default: 4 more than the fewest]")
@time_limit_option()
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
    max_chunks: int,
    max_steps: int | None,
    time_limit_s: float | None,
    write_model: Path | None,
    as_json: bool,
) -> None:
    """Instances (chunks a rank, steps, rounds) that no other one beats, found or proven, on a small machine.

    In a round the narrowest link carries a chunk, wider ones more; a step is some rounds, and what
    arrives in it goes on in the next. Few steps suit small sizes, few rounds a chunk large ones.
    """
    from collsyn.errors import InputError
    from collsyn.solver.export import use_folder
    from collsyn.synth.exact import Exact, pareto
    from collsyn.synth.exact_pareto import Instance
    from collsyn.synth.problem import Options

    use_folder(write_model)
    problem = make_problem(collective, topology, size_bytes, None, root, subset, groups, counts, spec)
    # With an instance a method serves larger problems, too.
    reason = Exact(Instance(1, 1, 1)).accepts(problem) if time_limit_s is not None else Exact().accepts(problem)
    if reason is not None:
        raise InputError(f"exact: {reason}; --time-limit lets it try larger ones")
    found = pareto(problem, Options(time_limit_s=time_limit_s), min(max_chunks, size_bytes), max_steps)
    document = _document(problem, found)
    if as_json:
        emit_json(document)
    else:
        _show(document)


def _document(problem: "Problem", found: "ParetoSet") -> dict[str, Any]:
    from collsyn.units import s_to_us

    return {
        "schema": "collsyn-pareto/1",
        "collective": problem.kind,
        "topology": problem.topology.name,
        "num_ranks": problem.topology.num_ranks,
        "size_bytes": problem.size_bytes,
        "bytes_ratio": [str(front.bytes_ratio) for front in found.fronts],
        "complete": all(front.complete for front in found.fronts),
        "instances": [
            {
                "chunks": one.instance.chunks,
                "steps": one.instance.steps,
                "rounds": one.instance.rounds,
                "rounds_per_chunk": str(one.instance.ratio),
                "guarantee": one.guarantee,
                "finish_us": s_to_us(one.schedule.finish_s),
            }
            for one in found.choices
        ],
        "others": [
            {
                "chunks": one.instance.chunks,
                "steps": one.instance.steps,
                "rounds": one.instance.rounds,
                "verdict": one.verdict,
                "why": one.why,
            }
            for one in found.others
        ],
    }


def _show(document: dict[str, Any]) -> None:
    from collsyn.units import format_size

    title = (
        f"{document['collective']} on {document['topology']}, {document['num_ranks']} ranks: instances that no other "
        f"one beats; finish at {format_size(document['size_bytes'])}"
    )
    rows: list[tuple[Cell, ...]] = [
        (
            f"({one['chunks']},{one['steps']},{one['rounds']})",
            one["rounds_per_chunk"],
            one["finish_us"],
            one["guarantee"],
        )
        for one in document["instances"]
    ]
    table(title, ("chunks, steps, rounds", "rounds a chunk", "finish us", "proven"), rows)
    for one in document["others"][:SHOWN_OTHERS]:
        note(f"({one['chunks']},{one['steps']},{one['rounds']}) {one['verdict']}: {one['why']}")
    more = len(document["others"]) - SHOWN_OTHERS
    if more > 0:
        note(f"and {more} more that were tried in vain")
    least = ", ".join(document["bytes_ratio"])
    known = "reached: more steps cannot help" if document["complete"] else "not reached in the steps looked at"
    note(f"rounds a chunk that the links need in any number of steps: {least} ({known})")
