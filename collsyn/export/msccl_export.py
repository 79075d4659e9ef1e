"""`collsyn export --format msccl-xml`: one file a size range, and what belongs into a folder of them."""

from collections.abc import Sequence
from pathlib import Path

from collsyn.errors import InputError
from collsyn.export.msccl import DIALECTS, PROTOCOLS, Dialect
from collsyn.export.msccl_make import Made, Wanted, make_program
from collsyn.export.msccl_write import config_text, program_text
from collsyn.export.sets import borders, by_protocol, by_size, name_of
from collsyn.export.table import Exported, Options
from collsyn.model.plan import Plan
from collsyn.model.schedule import Schedule
from collsyn.units import format_size, s_to_us

# Files that the reader of the dialect msccl loads.
_MAX_FILES = 4


def export(sources: Sequence[tuple[Path, Schedule | Plan]], options: Options) -> list[Exported]:
    """Files for schedules of one collective at several sizes, each for the sizes from half way (in logarithms) to the
    one below up to half way to the one above; the first and the last for all beyond. Raises InputError."""
    dialect = _dialect(options.dialect)
    if options.protocol is not None and options.protocol not in PROTOCOLS:
        raise InputError(f"--proto: is {options.protocol!r}; expected one of {', '.join(PROTOCOLS)}")
    sized = by_size(sources, options)
    count = sum(len(_permissions(dialect, options, source)) for _, _, source in sized)
    if dialect.name == "msccl" and count > _MAX_FILES:
        fewer = "export fewer sizes, or for --in-place or --out-of-place alone"
        raise InputError(f"msccl loads {_MAX_FILES} files at most, these make {count}; {fewer}")
    exported, limits = [], [0, *borders(sized, options), 0]
    for number, (size_bytes, path, source) in enumerate(sized):
        sizes = _range(dialect, options, *limits[number : number + 2])
        for in_place, out_of_place in _permissions(dialect, options, source):
            wanted = Wanted(
                dialect=dialect,
                protocol=options.protocol or by_protocol(size_bytes, dialect.protocols),
                in_place=in_place,
                out_of_place=out_of_place,
                min_bytes=sizes[0],
                max_bytes=sizes[1],
                size_bytes=size_bytes,
                name=name_of(source),
                instances=options.instances or 1,
                max_channels=options.max_channels or 32,
            )
            try:
                made = make_program(source, wanted)
            except InputError as error:
                raise InputError(f"{path}: {error}") from None
            exported.append(_exported(made, wanted, f"{wanted.name}-{format_size(size_bytes)}"))
    if dialect.name == "msccl" and options.as_set:
        config = config_text([(made.name, made.facts) for made in exported])
        exported.append(Exported("msccl_config.xml", config.encode(), {"for": "MSCCL_CONFIG"}))
    return exported


def _dialect(name: str | None) -> Dialect:
    if name is None:
        return DIALECTS["azure"]
    if name not in DIALECTS:
        raise InputError(f"--dialect: {name!r} is not known; expected one of {', '.join(DIALECTS)}")
    return DIALECTS[name]


def _range(dialect: Dialect, options: Options, first: int, last: int) -> tuple[int, int]:
    """The attributes minBytes and maxBytes; one reader includes the last size, the others do not."""
    begin = first if options.min_bytes is None else max(options.min_bytes, first)
    end = last if not options.max_bytes else min(options.max_bytes, last or options.max_bytes)
    if end and begin >= end:
        raise InputError(f"--min-size, --max-size: no size is left between {begin} and {end} bytes")
    if not end:
        return begin, dialect.unlimited
    exclusive = not dialect.both_places
    if options.max_bytes is not None and end == options.max_bytes:
        return begin, end + 1 if exclusive else end
    return begin, end if exclusive else end - 1


def _permissions(dialect: Dialect, options: Options, source: Schedule | Plan) -> list[tuple[bool, bool]]:
    """(in place, out of place) of the files to write: one file for both where the reader has that."""
    possible = source.collective.has_in_place
    if options.in_place and not possible:
        raise InputError(f"--in-place: {source.collective.kind} has no in-place form")
    if options.in_place is not None:
        return [(options.in_place, not options.in_place)]
    if dialect.both_places:
        return [(possible, True)]
    return [(False, True), (True, False)] if options.as_set and possible else [(False, True)]


def _exported(made: Made, wanted: Wanted, stem: str) -> Exported:
    program = made.program
    alone = not wanted.dialect.both_places and wanted.in_place
    facts = {
        "format": "msccl-xml",
        "dialect": wanted.dialect.name,
        "reader": wanted.dialect.reader,
        "collective": program.collective,
        "num_ranks": program.num_gpus,
        "proto": program.protocol,
        "in_place": program.in_place,
        "out_of_place": program.out_of_place,
        "min_bytes": program.min_bytes,
        "max_bytes": program.max_bytes,
        "num_chunks": program.num_chunks,
        "num_channels": program.num_channels,
        "blocks": max(len(gpu.blocks) for gpu in program.gpus),
        "steps": max((len(block.steps) for gpu in program.gpus for block in gpu.blocks), default=0),
        "size_bytes": wanted.size_bytes,
        "simulated_us": None if made.time_s is None else s_to_us(made.time_s),
    }
    return Exported(f"{stem}{'-inplace' if alone else ''}.xml", program_text(program).encode(), facts)
