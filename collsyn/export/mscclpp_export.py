"""`collsyn export --format mscclpp-json`: one verified plan file a size range."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from collsyn.check.simulate_plan import simulate_plan
from collsyn.errors import InputError
from collsyn.export.mscclpp import MAX_BUFFER_BYTES, MAX_MESSAGE_BYTES, Gpu, Program
from collsyn.export.mscclpp_check import MscclppFile, verify_program
from collsyn.export.mscclpp_lower import make_gpus
from collsyn.export.mscclpp_packets import packet_gpus
from collsyn.export.mscclpp_write import program_text
from collsyn.export.sets import DEFAULT_SIZE, borders, by_size, name_of
from collsyn.export.table import Exported, Options, executable
from collsyn.lower.lower import lower
from collsyn.model.plan import Plan
from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology
from collsyn.units import parse_size, s_to_us

ALIGNMENT = 16
# Numbers of thread blocks that are tried for programs of packets.
_BLOCKS = (1, 2, 4, 8, 16, 32, 64)


def export(sources: Sequence[tuple[Path, Schedule | Plan]], options: Options) -> list[Exported]:
    """Files for schedules of one collective at several sizes, each for the sizes from half way (in logarithms) to the
    one below up to half way to the one above; the first and the last for all beyond. Raises InputError."""
    options.refuse("mscclpp-json", "dialect")
    if options.protocol not in (None, "Simple", "LL"):
        raise InputError(f"--proto: is {options.protocol!r}; expected Simple or LL")
    sized = by_size(sources, options)
    limits = [0, *borders(sized, options), MAX_MESSAGE_BYTES + 1]
    exported = []
    for number, (size_bytes, path, source) in enumerate(sized):
        begin = max(limits[number], options.min_bytes or 0)
        end = min(limits[number + 1] - 1, options.max_bytes or MAX_MESSAGE_BYTES)
        if begin > end:
            raise InputError(f"--min-size, --max-size: no size is left between {begin} and {end} bytes")
        name = name_of(source, size_bytes)
        try:
            made = make_program(source, name, options, (begin, end))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        exported.append(_exported(made, source, size_bytes, name))
    return exported


def make_program(source: Schedule | Plan, name: str, options: Options, sizes: tuple[int, int]) -> Program:
    """The program of a schedule (or plan) for sizes in bytes (first, last); it is verified.

    A schedule is lowered with coarser pieces until the program fits, and as long as channels of the plan make several
    thread blocks, which hold each other up; the fastest in simulation is taken. Raises InputError that names the limit
    if none fits, VerificationError if it is not right.
    """
    if options.in_place and not source.collective.has_in_place:
        raise InputError(f"--in-place: {source.collective.kind} has no in-place form")
    pairs = port_pairs(source.topology)
    if options.protocol == "LL":
        program = _of_packets(source, name, options, sizes)
        verify_program(program).raise_if_bad(name)
        return program
    # Without flushes more is under way at once, which is not always faster, nor always right.
    programs = [
        _fastest(source, _plans(source, options, bool(pairs)), name, options, sizes, flushed)
        for flushed in ((False, True) if pairs else (False,))
    ]
    if pairs:
        programs.sort(key=lambda program: _time_s(program, source))
    *others, last = programs
    for program in others:
        if verify_program(program).ok:
            return program
    verify_program(last).raise_if_bad(name)
    return last


def _of_packets(source: Schedule | Plan, name: str, options: Options, sizes: tuple[int, int]) -> Program:
    """The program of packets with the number of thread blocks that simulates fastest; it is not verified."""
    options.refuse("--proto LL", "instances", "max_channels")
    if isinstance(source, Plan):
        raise InputError("--proto: LL is made from a schedule; a plan has places and flags of its own")
    if port_pairs(source.topology):
        raise InputError("--proto: LL goes over memory channels, and ranks are in different boxes; take Simple")
    best: tuple[float, Program] | None = None
    for num_blocks in _BLOCKS:
        gpus = packet_gpus(source, bool(options.in_place), num_blocks)
        if gpus is not None:
            program = _program(source, name, "LL", options, gpus, sizes)
            time_s = _time_s(program, source)
            if best is None or time_s < best[0]:
                best = (time_s, program)
    if best is None:
        raise InputError(f"--proto: LL needs more than {_BLOCKS[-1]} thread blocks of 64 operations; take Simple")
    return best[1]


def _program(
    source: Schedule | Plan, name: str, protocol: str, options: Options, gpus: tuple[Gpu, ...], sizes: tuple[int, int]
) -> Program:
    """A program for sizes in bytes (first, last), as far as buffers stay below 4 GiB."""
    chunks = max(gpus[0].input_chunks, gpus[0].output_chunks)
    # Packets take twice their data, in two halves of scratch.
    scratch = max(gpu.scratch_chunks for gpu in gpus) * (4 if protocol == "LL" else 1)
    return Program(
        name=name,
        collective=source.collective.kind,
        protocol=protocol,
        in_place=bool(options.in_place),
        gpus=gpus,
        double_scratch=protocol == "LL",
        alignment=ALIGNMENT,
        min_bytes=sizes[0],
        max_bytes=min(sizes[1], (MAX_BUFFER_BYTES - 1) * chunks // max(chunks, scratch)),
    )


def _fastest(
    source: Schedule | Plan, plans: Iterable[Plan], name: str, options: Options, sizes: tuple[int, int], flushed: bool
) -> Program:
    """The fastest program of some plans, of which later ones are only looked at where thread blocks hold each other up;
    it is not verified. Raises InputError if none fits."""
    pairs = port_pairs(source.topology)
    refused: InputError | None = None
    best: tuple[float, Program] | None = None
    for plan in plans:
        try:
            gpus = make_gpus(plan, bool(options.in_place), pairs, flushed)
        except InputError as error:
            refused = refused or error
            continue
        program = _program(source, name, "Simple", options, gpus, sizes)
        whole = sum(len(gpu.blocks) for gpu in gpus) == plan.num_channels
        time_s = 0.0 if best is None and whole else _time_s(program, source)
        if best is None or time_s < best[0]:
            best = (time_s, program)
        if whole or source.topology is None:
            break
    if best is None:
        assert refused is not None
        raise refused
    return best[1]


def _time_s(program: Program, source: Schedule | Plan, size_bytes: int | None = None) -> float:
    """Simulated seconds; 0 without a topology."""
    if source.topology is None:
        return 0.0
    size_bytes = source.size_bytes if isinstance(source, Schedule) else size_bytes or parse_size(DEFAULT_SIZE)
    return float(simulate_plan(MscclppFile(program).plan(size_bytes), source.topology, size_bytes).finish_s)


def port_pairs(topology: Topology | None) -> frozenset[tuple[int, int]]:
    """Ranks in different boxes, which reach each other's memory over port channels only."""
    boxes = () if topology is None else topology.boxes
    box_of = {rank: number for number, box in enumerate(boxes) for rank in box}
    ranks = () if topology is None else range(topology.num_ranks)
    return frozenset((a, b) for a in ranks for b in ranks if box_of.get(a) != box_of.get(b))


def _plans(source: Schedule | Plan, options: Options, by_port: bool) -> Iterator[Plan]:
    """The plan, and then plans of coarser pieces."""
    if isinstance(source, Plan):
        yield executable(source)
        return
    instances, channels = options.instances or 1, options.max_channels or 32
    # Over port channels nobody reads another rank's memory.
    joins = "put" if by_port and source.collective.reduces else None
    plan = lower(source, instances, channels, reduce_by=joins, ahead=False)
    yield plan
    notes = plan.provenance["lowering"]
    chunk_bytes = float(source.collective.chunk_bytes(source.size_bytes).max())
    pieces = int(notes["pieces"])
    choices = {key: notes[key] for key in ("reduce_by", "channels_by", "paced")}
    while pieces > 1:
        pieces //= 2
        yield lower(
            source, instances, channels, max(1, round(chunk_bytes / instances / pieces)), **choices, ahead=False
        )


@dataclass(frozen=True)
class _Counts:
    """How much of the executor's tables a program takes."""

    blocks: int
    ops: int

    @classmethod
    def of(cls, program: Program) -> "_Counts":
        blocks = [block for gpu in program.gpus for block in gpu.blocks]
        most = max((len(block.ops) for block in blocks), default=0)
        return cls(max(len(gpu.blocks) for gpu in program.gpus), most)


def _exported(program: Program, source: Schedule | Plan, size_bytes: int, name: str) -> Exported:
    counts = _Counts.of(program)
    time_s = None if source.topology is None else _time_s(program, source, size_bytes)
    facts = {
        "format": "mscclpp-json",
        "collective": program.collective,
        "num_ranks": program.num_gpus,
        "proto": program.protocol,
        "in_place": program.in_place,
        "min_bytes": program.min_bytes,
        "max_bytes": program.max_bytes,
        "multiple_bytes": program.alignment * program.num_chunks,
        "num_chunks": program.num_chunks,
        "blocks": counts.blocks,
        "steps": counts.ops,
        "size_bytes": size_bytes,
        "simulated_us": None if time_s is None else s_to_us(time_s),
    }
    return Exported(f"{name}{'-inplace' if program.in_place else ''}.json", program_text(program).encode(), facts)
