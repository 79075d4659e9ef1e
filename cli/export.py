"""`collsyn export`: files of other people's runtimes and tools."""

from pathlib import Path
from typing import Any

import click

from ._options import FILE, examples, json_option, output_option, size
from ._output import emit_json, table, text
from ._problem import OUT


@click.command(
    "export",
    epilog=examples(
        "collsyn export allgather.json --format msccl-xml -o allgather.xml",
        "collsyn export collsyn-out/schedules/allreduce-*.json --format msccl-xml --dialect rccl -o msccl-algorithms",
        "collsyn verify allgather.xml",
        "collsyn export allgather.json --format chrome-trace -o allgather.trace.json",
    ),
)
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--format",
    "format_name",
    required=True,
    metavar="F",
    help="msccl-xml, mscclpp-json, chakra, chrome-trace, json or tuner-csv.",
)
@click.option("--dialect", metavar="D", help="Whose reader: msccl, azure or rccl for msccl-xml. [default: azure]")
@click.option("--proto", metavar="P", help="LL, LL128 or Simple. [default: by size; for mscclpp-json Simple]")
@click.option("--in-place/--out-of-place", default=None, help="Only for calls of this kind. [default: both]")
@click.option("--min-size", type=size, metavar="S", help="Smallest size that uses the file. [default: any]")
@click.option("--max-size", type=size, metavar="S", help="Largest size that uses the file. [default: any]")
@click.option("--size", "size_bytes", type=size, metavar="S", help="Size that a plan is for. [default: 64M]")
@click.option("--instances", type=click.IntRange(1, 64), metavar="N", help="Parts of a chunk that travel at once.")
@click.option("--max-channels", type=click.IntRange(1, 1024), metavar="N", help="Channels of a rank at most.")
@output_option("File to write, or folder where there are several. [default: collsyn-out/export]")
@json_option()
def command(
    files: tuple[Path, ...],
    format_name: str,
    dialect: str | None,
    proto: str | None,
    in_place: bool | None,
    min_size: int | None,
    max_size: int | None,
    size_bytes: int | None,
    instances: int | None,
    max_channels: int | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Write schedules or plans as files of another runtime, verified as that runtime runs it, or of a tool.

    For runtimes msccl-xml and mscclpp-json, for ASTRA-sim chakra, for NCCL tuner-csv; chrome-trace
    to look at, and json for programs.

    Several FILEs are schedules of one collective at different sizes: each gets the sizes around its
    own, and all of them a folder that the runtime can be pointed to. So does an algorithm set, whose
    schedules keep their sizes.
    """
    from collsyn.check.recognise import read_any
    from collsyn.check.verify import verify_plan, verify_schedule, verify_set
    from collsyn.errors import InputError
    from collsyn.export.table import Options, exporter
    from collsyn.files import require_writable, write_atomic
    from collsyn.model.plan import Plan
    from collsyn.model.schedule import Schedule
    from collsyn.model.set_file import is_set, read_set

    make = exporter(format_name)
    whole = output is None or len(files) > 1 or Path(output).is_dir()
    if not whole:
        require_writable(str(output))
    sources: list[tuple[Path, Schedule | Plan]] = []
    borders: tuple[int, ...] | None = None
    if any(is_set(file) for file in files):
        if len(files) > 1:
            raise InputError(f"{next(file for file in files if is_set(file))}: is an algorithm set; give it alone")
        schedules = read_set(files[0])
        verify_set(schedules).raise_if_bad(str(files[0]))
        sources = [(files[0], schedule) for schedule in schedules.schedules]
        borders, whole, files = schedules.from_bytes[1:], whole or len(sources) > 1, ()
    for file in files:
        _, what = read_any(file)
        report = verify_schedule(what) if isinstance(what, Schedule) else verify_plan(what)
        report.raise_if_bad(str(file))
        sources.append((file, what))
    options = Options(
        dialect=dialect,
        protocol=proto,
        in_place=in_place,
        min_bytes=min_size,
        max_bytes=max_size,
        size_bytes=size_bytes,
        instances=instances,
        max_channels=max_channels,
        as_set=whole,
        borders=borders,
    )
    exported = make(sources, options)
    # Some formats have a file for every rank: what is named is their folder then.
    whole = whole or len(exported) > 1
    folder = Path(output) if output is not None else OUT / "export"
    documents: list[dict[str, Any]] = []
    for made in exported:
        target = folder / made.name if whole else folder
        write_atomic(target, made.content)
        documents.append({"file": str(target), **made.facts})
    if as_json:
        emit_json(documents[0] if len(documents) == 1 else documents)
        return
    for document in documents:
        text(f"wrote {document['file']}")
    keys = ("file", "proto", "min_bytes", "max_bytes", "num_chunks", "blocks", "steps", "simulated_us")
    rows = [tuple(document[key] for key in keys) for document in documents if set(keys) <= set(document)]
    if rows:
        titles = ("file", "proto", "from bytes", "to bytes", "chunks", "tb", "steps", "simulated us")
        table("", titles, rows)
