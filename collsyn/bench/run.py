"""A benchmark from sources to rows: plans for all sizes, ranks that run them, and their times brought together."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from collsyn import __version__
from collsyn.bench.job import BenchOptions, Case, Job, Watch
from collsyn.bench.result import BenchResult
from collsyn.bench.sizes import num_elements
from collsyn.bench.sources import Preparation, Prepared, Source
from collsyn.errors import InputError, VerificationError
from collsyn.files import digest
from collsyn.model.dtypes import checked_op, dtype_of
from collsyn.runtime.emulation import Emulation
from collsyn.runtime.facts import machine_facts


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A source and how to run it; `name` is that in a suite."""

    source: Source
    options: BenchOptions
    name: str = ""


def bench(
    sources: Sequence[Source],
    options: BenchOptions,
    on_row: Watch | None = None,
    on_note: Callable[[str], None] | None = None,
    launches: int = 1,
) -> BenchResult:
    """Run every source at every size with the same options; see `bench_all`."""
    return bench_all([Benchmark(source, options) for source in sources], on_row, on_note, launches)


def bench_all(
    benchmarks: Sequence[Benchmark],
    on_row: Watch | None = None,
    on_note: Callable[[str], None] | None = None,
    launches: int = 1,
) -> BenchResult:
    """Run benchmarks at all their sizes; `on_row` is called as rows are finished, `on_note` with what one should know.

    With several `launches` each benchmark is run by as many jobs of ranks, one after the other in rounds, so that the
    samples of a row are spread over the whole run and what a single job happened to get (cores, pages) is one sample
    of several. Results are checked in the first. A result that is wrong has no time in its row; the caller decides what
    to make of it (see `raise_if_wrong`). Raises InputError, VerificationError (a plan that is wrong as such) and
    DeviceError.
    """
    if launches < 1:
        raise InputError(f"launches: is {launches}; expected at least 1")
    jobs = [job for benchmark in benchmarks if (job := _job(benchmark, on_row, on_note, launches)) is not None]
    if not jobs:
        raise InputError("sizes: none leaves every rank a whole element; choose larger ones")
    for turn in range(launches):
        # There and back, so that no job always follows the same other one; the last turn is in order.
        for job in jobs if (launches - turn) % 2 else reversed(jobs):
            job.launch()
    num_ranks = max(benchmark.source.num_ranks for benchmark in benchmarks)
    devices = _devices(benchmarks[0].options, num_ranks)
    rows = [row for job in jobs for row in job.rows()]
    return BenchResult(rows, _config(benchmarks, launches), _provenance(benchmarks), devices)


def _job(
    benchmark: Benchmark, on_row: Watch | None, on_note: Callable[[str], None] | None, launches: int
) -> Job | None:
    """The benchmark with its plans made; None where no size is large enough."""
    source, options = benchmark.source, benchmark.options
    dtype_of(options.dtype)
    checked_op(options.op)
    cases = prepare(source, options, on_note)
    return Job(source, cases, options, on_row, launches, benchmark.name) if cases else None


def raise_if_wrong(result: BenchResult) -> None:
    """Raise VerificationError if any checked result was wrong."""
    for row in result.rows:
        for way, timing in (("out of place", row.out_of_place), ("in place", row.in_place)):
            if timing is not None and timing.wrong:
                what = f"{row.collective} of {row.size_bytes} bytes {way}"
                raise VerificationError(f"{row.source}: {what} left {timing.wrong} wrong elements")


def prepare(source: Source, options: BenchOptions, on_note: Callable[[str], None] | None = None) -> list[Case]:
    """The cases of a source, with sizes rounded down to whole elements for every rank and too small ones left out."""
    width = dtype_of(options.dtype).num_bytes
    preparation = Preparation(source, options.seed, options.emulate)
    cases: list[Case] = []
    rounded: list[int] = []
    dropped: list[int] = []
    for asked in options.sizes:
        elements = num_elements(source.collective, asked, width)
        if not elements:
            dropped.append(asked)
            continue
        if elements * width != asked:
            rounded.append(asked)
        prepared = preparation.at(elements * width)
        cases.append(Case(source, asked, elements, prepared, _emulation(prepared, elements * width, options)))
    if on_note is not None:
        what = f"{source.collective.kind} of {options.dtype} on {source.num_ranks} ranks"
        if rounded:
            on_note(f"{what}: {_listed(rounded)} rounded down to whole elements for every rank")
        if dropped:
            on_note(f"{what}: {_listed(dropped)} left out, too small for an element of every rank")
    return cases


def _emulation(prepared: Prepared, size_bytes: int, options: BenchOptions) -> Emulation | None:
    if options.emulate is None or prepared.simulated_s is None:
        return None
    return Emulation.of_run(options.emulate, prepared.plan, size_bytes, prepared.simulated_s)


def _config(benchmarks: Sequence[Benchmark], launches: int) -> dict[str, Any]:
    """The configuration in the words of nccl-tests; where benchmarks differ, that of the first."""
    options = benchmarks[0].options
    sizes = [size for benchmark in benchmarks for size in benchmark.options.sizes]
    return {
        "nthreads": 1,
        "ngpus": int(options.backend == "cuda"),
        "minimum_bytes": min(sizes),
        "maximum_bytes": max(sizes),
        "warmup_iters": options.warmup,
        "iterations": options.iterations,
        "launches": launches,
        "validation": int(options.check),
        "average": options.average,
    }


def _provenance(benchmarks: Sequence[Benchmark]) -> dict[str, Any]:
    options = benchmarks[0].options
    topologies = (benchmark.source.topology for benchmark in benchmarks)
    return {
        "tool": "collsyn",
        "version": __version__,
        "backend": options.backend,
        "launcher": options.launcher if options.launcher in ("fork", "mpirun") else "own",
        "seed": options.seed,
        "options": digest(repr([sorted(asdict(benchmark.options).items()) for benchmark in benchmarks])),
        "topologies": sorted({topology.name for topology in topologies if topology is not None}),
        "emulated": None if options.emulate is None else options.emulate.name,
        "machine": machine_facts(),
    }


def _devices(options: BenchOptions, num_ranks: int) -> list[dict[str, Any]]:
    """What each rank runs on, in the words of nccl-tests."""
    kind = "host"
    if options.backend == "cuda":
        kind = "GPU, loopback" if options.loopback else "GPU"
    device = [0 if options.loopback else rank for rank in range(num_ranks)]
    return [{"rank": rank, "group": 0, "device": device[rank], "device_info": kind} for rank in range(num_ranks)]


def _listed(sizes: Sequence[int]) -> str:
    shown = ", ".join(str(size) for size in sizes[:5])
    return f"{shown}{' and more' if len(sizes) > 5 else ''} bytes"
