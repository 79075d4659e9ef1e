"""`collsyn bench`: schedules between real ranks, checked and timed as nccl-tests do."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ._gate import Gate, gate_options
from ._options import FILE, collective_name, examples, json_option, plot_option, seed_option, size, subset_option
from ._output import emit_json, note, progress, text
from ._problem import note_assumptions
from ._ranks import chosen_backend, is_speaker, launcher_of, loopback_option, rank_options, world_size

if TYPE_CHECKING:
    from collsyn.bench.gate import Assessment
    from collsyn.bench.result import BenchResult, Row
    from collsyn.bench.run import Benchmark
    from collsyn.bench.sources import Source
    from collsyn.bench.tuning import Tuned
    from collsyn.model.topology import Topology

SCHEDULES = "collsyn-out/schedules"
TUNING = "collsyn-out/tuning.yaml"
PROFILE = "collsyn-out/profile.yaml"
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
# Names that nccl-tests knows.
ALIASES = {"float": "float32", "double": "float64", "half": "float16", "fp32": "float32", "fp16": "float16"}
OPS = ("sum", "prod", "min", "max", "avg")
AVERAGES = ("rank0", "avg", "min", "max")
LIBRARIES = ("mpi", "gloo", "nccl")
GPU_LIBRARIES = ("nccl",)
DEFAULT_MAX = 32 << 20
# A call on an emulated machine takes a second or more, and is over when it is over everywhere.
ITERATIONS, EMULATED_ITERATIONS = 20, 3
AVERAGE, EMULATED_AVERAGE = "avg", "max"
# Rows that agree in these stand under one title.
TITLE = ("benchmark", "source", "collective")


def dtype_name(value: str) -> str:
    """A data type under our name, from ours or that of nccl-tests."""
    name = ALIASES.get(value.lower(), value.lower())
    if name not in DTYPES:
        raise click.BadParameter(f"no type {value!r}; there are {', '.join((*DTYPES, *ALIASES))}")
    return name


def libraries(value: str) -> tuple[str, ...]:
    """Libraries to compare with, separated by commas."""
    names = tuple(dict.fromkeys(name.strip().lower() for name in value.split(",")))
    unknown = [name for name in names if name not in LIBRARIES]
    if unknown:
        raise click.BadParameter(f"cannot compare with {unknown[0]!r}; there is {', '.join(LIBRARIES)}")
    return names


def average(value: str) -> str:
    """How times of ranks become one: 0 rank 0, 1 average, 2 minimum, 3 maximum, or these names."""
    if value in AVERAGES:
        return value
    if value.isdecimal() and int(value) < len(AVERAGES):
        return AVERAGES[int(value)]
    raise click.BadParameter(f"{value!r} is none of 0 (rank0), 1 (avg), 2 (min), 3 (max)")


@click.command(
    "bench",
    epilog=examples(
        "collsyn bench",
        "collsyn bench allgather.json -b 1K -e 64M -f 4 --against mpi",
        "collsyn bench --collective allreduce --method ring --topology full:4 -d bfloat16 -o max --output ring.json",
        "collsyn bench --collective allreduce --emulate dgx1 -b 64K -e 64M -f 4 --plot allreduce.svg",
        "collsyn bench --suite host --baseline runs.jsonl --junit bench.xml",
        "collsyn bench --collective allreduce --topology full:8 --loopback 8 -b 1K -e 256M -f 4",
    ),
)
@click.argument("files", type=FILE, nargs=-1, metavar="[FILE]...")
@click.option("--collective", type=collective_name, metavar="C", help="Make a schedule of C at every size.")
@click.option("--method", default=None, metavar="NAME", help="Synthesizer for --collective.  [default: auto]")
@click.option("--topology", metavar="TOPO", help=f"Topology for --collective.  [default: {PROFILE}]")
@subset_option()
@click.option(
    "--emulate",
    metavar="TOPO",
    help="Run at the pace of TOPO, with its links emulated; times are those of TOPO.",
)
@click.option("-b", "--minbytes", type=size, default="32M", show_default=True, metavar="SIZE", help="Smallest size.")
@click.option("-e", "--maxbytes", type=size, metavar="SIZE", help="Largest size.  [default: 32M, at least -b]")
@click.option("-f", "--stepfactor", type=int, metavar="F", help="Multiply sizes by F.")
@click.option("-i", "--stepbytes", type=size, default="1M", show_default=True, metavar="SIZE", help="Else add SIZE.")
@click.option(
    "-n",
    "--iters",
    type=click.IntRange(min=1),
    help=f"Timed calls, at least.  [default: {ITERATIONS}; {EMULATED_ITERATIONS} with --emulate]",
)
@click.option("-w", "--warmup_iters", type=click.IntRange(min=0), default=1, show_default=True, help="Calls before.")
@click.option("-c", "--check", type=click.IntRange(0, 1), default=1, show_default=True, help="Check every result.")
@click.option(
    "-d", "--datatype", type=dtype_name, default="float", show_default=True, metavar="TYPE", help="Data type."
)
@click.option("-o", "--op", type=click.Choice(OPS), default="sum", show_default=True, help="Reduction.")
@click.option("-r", "--root", type=int, metavar="R", help="Root of broadcast, reduce, gather and scatter.")
@click.option(
    "-a",
    "--average",
    "over_ranks",
    type=average,
    metavar="0-3",
    help="Time of rank 0, the mean (1), least (2) or longest (3) of all ranks.  [default: 1; 3 with --emulate]",
)
@click.option(
    "--against",
    type=libraries,
    default=None,
    metavar="mpi,gloo,nccl",
    help="Run MPI's own collective as well, or that of torch's gloo or (on GPUs) NCCL, in turn.",
)
@click.option("--output", metavar="FILE.json", help="Write the JSON of nccl-tests to a file.")
@plot_option("bandwidth against size")
@gate_options
@rank_options
@loopback_option()
@click.option(
    "--tune",
    is_flag=True,
    help=f"On GPUs: try how each plan is best launched; later runs take it from {TUNING}.",
)
@seed_option()
@json_option()
def command(
    files: tuple[Path, ...],
    collective: str | None,
    method: str | None,
    topology: str | None,
    subset: tuple[int, ...] | None,
    minbytes: int,
    maxbytes: int | None,
    stepfactor: int | None,
    stepbytes: int,
    emulate: str | None,
    iters: int | None,
    warmup_iters: int,
    check: int,
    datatype: str,
    op: str,
    root: int | None,
    over_ranks: str | None,
    against: tuple[str, ...] | None,
    output: str | None,
    plot: str | None,
    backend: str,
    ranks: int | None,
    launcher: str | None,
    mpirun: str | None,
    loopback: int | None,
    tune: bool,
    seed: int,
    as_json: bool,
    gate: Gate,
) -> None:
    """Run schedules or plans between real ranks, check every byte, and print the table of nccl-tests.

    A schedule is timed and lowered anew for every size. Without a FILE and without --collective the
    newest schedule of every collective in ./collsyn-out/schedules is run. Right of the columns of
    nccl-tests stand the simulated time and the lower bound, and with --against the median time of the
    collective of MPI, gloo or NCCL in the same job, as a multiple of ours (out of place), with its 95% interval.
    --emulate runs on the links of a machine that is not there; a call takes a second or more.
    --suite and --baseline make it a test of changes: what is slower than before is exit code 7.
    """
    from collsyn.bench.job import BenchOptions
    from collsyn.bench.run import Benchmark, raise_if_wrong
    from collsyn.bench.sizes import sweep
    from collsyn.bench.sources import check_same_ranks
    from collsyn.files import require_writable

    where = chosen_backend(backend, loopback, emulate, needed=ranks or 2)
    how = launcher_of(where, launcher, mpirun, loopback, needs_mpi="mpi" in (against or ()))
    speaks = is_speaker(how)
    gate.open(speaks)
    if gate.plan is not None:
        topology, emulate = topology or gate.plan.topology, emulate or gate.plan.emulate
    _check_choice(files, collective or gate.suite, method, topology, subset, against, how, emulate)
    _check_libraries(where, against)
    sizes = sweep(minbytes, max(minbytes, DEFAULT_MAX) if maxbytes is None else maxbytes, stepfactor, stepbytes)
    if output is not None and speaks:
        require_writable(output)
    if plot is not None and speaks:
        from collsyn.pictures.sheet import require_picture

        require_picture(plot)
    if tune and where == "host":
        raise click.UsageError("--tune needs GPUs (--backend cuda); host ranks are launched in one way")
    launches = gate.chosen_launches(bool(emulate))
    options = BenchOptions(
        sizes=sizes,
        dtype=datatype,
        op=op,
        iterations=iters or (EMULATED_ITERATIONS if emulate else ITERATIONS),
        warmup=warmup_iters,
        check=bool(check),
        average=over_ranks or (EMULATED_AVERAGE if emulate else AVERAGE),
        against=against or (),
        launcher=how,
        seed=seed,
        emulate=_machine(emulate, subset) if emulate else None,
        yardstick=gate.compares and where == "host",
        backend=where,
        loopback=loopback is not None,
        tune=tune,
        tuned=_tuned(where, speaks),
    )
    if gate.plan is not None:
        needed = gate.plan.makes_schedules
        benchmarks = gate.plan.benchmarks(
            _found_machine(topology or emulate, subset, speaks) if needed else None, options
        )
    else:
        sources = _sources(files, collective, method, topology or emulate, subset, root, sizes, speaks)
        # Of two files with the same collective each is a measurement of its own.
        kinds = [source.collective.kind for source in sources]
        names = [Path(source.label).stem if kinds.count(source.collective.kind) > 1 else "" for source in sources]
        benchmarks = [Benchmark(source, options, name) for source, name in zip(sources, names, strict=True)]
    check_same_ranks([benchmark.source for benchmark in benchmarks], ranks)
    check_same_ranks([benchmark.source for benchmark in benchmarks], loopback, "--loopback says")
    check_same_ranks([benchmark.source for benchmark in benchmarks], world_size(how), "the ranks of this job are")
    result = _run(benchmarks, launches, in_a_table=speaks and not as_json, speaks=speaks)
    assessment = gate.assess(result, benchmarks, launches, seed)
    if not speaks:
        return
    result = assessment.result
    _write(assessment, output, as_json)
    if tune:
        _keep_tuning(result, options.tuned, loopback is not None)
    if not as_json:
        gate.show(assessment)
    gate.write(assessment)
    raise_if_wrong(result)
    if plot is not None:
        from collsyn.pictures.bandwidth import bench_charts, bench_title
        from collsyn.pictures.bandwidth_picture import draw_bandwidth

        draw_bandwidth(plot, bench_title(result), bench_charts(result.rows))
        note(f"wrote {plot}")
    gate.check_compared(assessment)
    assessment.raise_if_regressed(gate.baseline or gate.suite or "")


def _check_choice(
    files: tuple[Path, ...],
    collective: str | None,
    method: str | None,
    topology: str | None,
    subset: tuple[int, ...] | None,
    against: tuple[str, ...] | None,
    how: str,
    emulate: str | None,
) -> None:
    if files and collective:
        raise click.UsageError("FILE and --collective exclude each other")
    for name, value in (("--method", method), ("--topology", topology), ("--subset", subset)):
        if value is not None and collective is None and not (emulate and name == "--subset"):
            raise click.UsageError(f"{name} needs --collective; a FILE has its own")
    if against and emulate:
        raise click.UsageError("--against and --emulate exclude each other; others run on this machine's own links")
    if "mpi" in (against or ()) and how == "fork":
        raise click.UsageError("--against mpi needs ranks that MPI starts; leave --launcher fork out")


def _tuned(where: str, speaks: bool) -> "tuple[Tuned, ...]":
    """What earlier runs found of launches on GPUs."""
    if where == "host" or not Path(TUNING).is_file():
        return ()
    from collsyn.bench.tuning import read_tuning

    if speaks:
        note(f"launches as tuned in {TUNING}")
    return tuple(read_tuning(TUNING))


def _keep_tuning(result: "BenchResult", known: "tuple[Tuned, ...]", loopback: bool) -> None:
    """Write what was found, beside what was known."""
    from collsyn.bench.tuning import Launch, Tuned, write_tuning

    found = [
        Tuned(
            row.gpu,
            row.collective,
            row.group_size,
            loopback,
            row.size_bytes,
            Launch(**row.launch),
            row.out_of_place.time_s,
        )
        for row in result.rows
        if row.launch is not None and row.out_of_place.time_s is not None
    ]
    write_tuning(TUNING, [*known, *found])
    note(f"wrote {TUNING}")


def _check_libraries(where: str, against: tuple[str, ...] | None) -> None:
    """Raise where a library does not run on a backend."""
    other = next((name for name in against or () if (name in GPU_LIBRARIES) != (where == "cuda")), None)
    if other is not None:
        raise click.UsageError(
            f"--against {other} needs {'GPUs (--backend cuda)' if where == 'host' else 'host ranks (--backend host)'}"
        )


def _sources(
    files: tuple[Path, ...],
    collective: str | None,
    method: str | None,
    topology: str | None,
    subset: tuple[int, ...] | None,
    root: int | None,
    sizes: tuple[int, ...],
    speaks: bool,
) -> "list[Source]":
    """What is to be run; says which files were taken where none was named."""
    from collsyn.bench.sources import from_file, newest, on_the_spot
    from collsyn.errors import InputError
    from collsyn.synth.problem import Problem

    if collective is not None:
        machine = _found_machine(topology, subset, speaks)
        return [on_the_spot(Problem(collective, machine, sizes[0], root=root), method or "auto")]
    sources = [from_file(file) for file in files] if files else newest(Path(SCHEDULES))
    if not files and speaks:
        note(f"taking {', '.join(source.label for source in sources)}")
    for source in sources:
        if root is not None and source.collective.root != root:
            has = "no root" if source.collective.root is None else f"root {source.collective.root}"
            raise InputError(f"{source.label}: has {has}; --root says {root}")
    return sources


def _found_machine(topology: str | None, subset: tuple[int, ...] | None, speaks: bool) -> "Topology":
    """The topology that was named, else that of the newest profile; says which was taken."""
    from collsyn.errors import InputError

    if topology is None and not Path(PROFILE).is_file():
        raise InputError(f"{PROFILE}: is not there; make it with `collsyn profile`, or give --topology")
    if topology is None and speaks:
        note(f"taking {PROFILE}")
    return _machine(topology or PROFILE, subset)


def _machine(text: str, subset: tuple[int, ...] | None) -> "Topology":
    from collsyn.topology.resolve import load_topology

    machine = load_topology(text)
    note_assumptions(machine)
    return machine if subset is None else machine.subset(subset)


def _run(benchmarks: "list[Benchmark]", launches: int, in_a_table: bool, speaks: bool) -> "BenchResult":
    """Run, with a table or with a bar that moves."""
    from collsyn.bench.run import bench_all

    if in_a_table:
        return _in_a_table(benchmarks, launches)
    with progress("benchmark", float(sum(len(benchmark.options.sizes) for benchmark in benchmarks))) as update:
        done: list[Row] = []

        def count(row: "Row") -> None:
            done.append(row)
            update(len(done), f"{row.collective} {row.size_bytes} bytes")

        return bench_all(benchmarks, count, note if speaks else None, launches)


def _in_a_table(benchmarks: "list[Benchmark]", launches: int) -> "BenchResult":
    """Run, and print rows as they come."""
    from collsyn.bench.run import bench_all
    from collsyn.bench.table import footer, header, row_text

    for line in _preamble(benchmarks, launches):
        text(line)
    shown: Row | None = None

    def show(row: "Row") -> None:
        nonlocal shown
        if shown is None or any(getattr(row, key) != getattr(shown, key) for key in TITLE):
            shown = None
            text("#")
            named = f"{row.benchmark}: " if row.benchmark else ""
            text(f"# {named}{row.collective} of {row.source}, {row.group_size} ranks")
            for line in header(tuple(row.against)):
                text(line)
        if row.source != row.method and (shown is None or shown.method != row.method):
            text(f"# method {row.method}")
        for name, comparison in row.against.items():
            if comparison.reason is not None and (shown is None or shown.against.get(name) != comparison):
                text(f"# not compared with {name}: {comparison.reason}")
        shown = row
        text(row_text(row))

    result = bench_all(benchmarks, show, lambda what: text(f"# {what}"), launches)
    for line in footer(result):
        text(line)
    return result


def _preamble(benchmarks: "list[Benchmark]", launches: int) -> list[str]:
    from collsyn import __version__

    options = benchmarks[0].options
    on_what = f" emulating {options.emulate.name}: times are those of it" if options.emulate is not None else ""
    sizes = [size for benchmark in benchmarks for size in benchmark.options.sizes]
    often = f" launches: {launches}" if launches > 1 else ""
    return [
        f"# collsyn {__version__}, host ranks{on_what}",
        f"# minBytes {min(sizes)} maxBytes {max(sizes)} warmup iters: {options.warmup} iters: {options.iterations} "
        f"validation: {int(options.check)}{often}",
    ]


def _write(assessment: "Assessment", output: str | None, as_json: bool) -> None:
    import json

    from collsyn.bench.gate import assessed_document
    from collsyn.files import write_atomic

    document = assessed_document(assessment)
    if output is not None:
        write_atomic(output, json.dumps(document, indent=2) + "\n")
        if not as_json:
            note(f"wrote {output}")
    if as_json:
        emit_json(document)
