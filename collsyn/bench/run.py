"""A benchmark from sources to rows: plans for all sizes, ranks that run them, and their times brought together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from collsyn import __version__
from collsyn.bench.result import BenchResult, Comparison, Row, Timing
from collsyn.bench.sizes import count_column, group_size, num_elements
from collsyn.bench.sources import Preparation, Prepared, Source
from collsyn.bench.statistics import over_ranks, ratio_of_medians
from collsyn.errors import InputError, VerificationError
from collsyn.files import digest
from collsyn.model.dtypes import checked_op, dtype_of
from collsyn.model.topology import Topology
from collsyn.model.topology_file import topology_document
from collsyn.runtime.emulation import Emulation
from collsyn.runtime.facts import machine_facts
from collsyn.runtime.launch import launch

# Of a whole sweep; that a single call does not hang is watched in seconds.
LIMIT_S = 6 * 3600.0


@dataclass(frozen=True)
class BenchOptions:
    """How to run: sizes in bytes, type and reduction, counts of calls, what to check and to compare with.

    `average` is one of `statistics.OVER_RANKS`, `against` names other libraries (only `mpi`), `launcher` is that of
    `launch`. With `emulate`, ranks run at the pace of that machine, and times are those of it.
    """

    sizes: tuple[int, ...]
    dtype: str = "float32"
    op: str = "sum"
    iterations: int = 20
    warmup: int = 5
    check: bool = True
    average: str = "avg"
    against: tuple[str, ...] = ()
    launcher: str = "fork"
    seed: int = 0
    emulate: Topology | None = None


@dataclass(frozen=True, eq=False)
class Case:
    """One row to be: a source at a size, rounded down."""

    source: Source
    asked_bytes: int
    elements: int
    prepared: Prepared
    emulation: Emulation | None = None


Watch = Callable[[Row], None]


def bench(
    sources: Sequence[Source],
    options: BenchOptions,
    on_row: Watch | None = None,
    on_note: Callable[[str], None] | None = None,
) -> BenchResult:
    """Run every source at every size; `on_row` is called as rows are finished, `on_note` with what one should know.

    A result that is wrong has no time in its row; the caller decides what to make of it (see `raise_if_wrong`). Raises
    InputError, VerificationError (a plan that is wrong as such) and DeviceError.
    """
    dtype_of(options.dtype)
    checked_op(options.op)
    rows: list[Row] = []
    for source in sources:
        cases = prepare(source, options, on_note)
        if cases:
            rows += _Launch(source, cases, options, on_row).rows()
    if not rows:
        raise InputError("sizes: none leaves every rank a whole element; choose larger ones")
    num_ranks = max(source.num_ranks for source in sources)
    devices = [{"rank": rank, "group": 0, "device": rank, "device_info": "host"} for rank in range(num_ranks)]
    return BenchResult(rows, _config(options), _provenance(sources, options), devices)


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


class _Launch:
    """The cases of one source, run by one job of ranks."""

    def __init__(self, source: Source, cases: Sequence[Case], options: BenchOptions, on_row: Watch | None) -> None:
        self.source, self.cases, self.options, self.on_row = source, cases, options, on_row
        self.has_in_place = source.collective.has_in_place
        self._heard: dict[int, dict[int, Any]] = {}
        self._rows: dict[int, Row] = {}

    def rows(self) -> list[Row]:
        """Run and wait."""
        texts = list(dict.fromkeys(case.prepared.text for case in self.cases))
        arguments = {
            "plans": texts,
            "cases": [self._document(case, texts) for case in self.cases],
            "topology": None if self.options.emulate is None else topology_document(self.options.emulate),
        }
        found = launch(
            "collsyn.bench.worker:run_cases",
            arguments,
            self.source.num_ranks,
            self.options.launcher,
            LIMIT_S,
            self._hear,
        )
        for index in range(len(self.cases)):
            if index not in self._rows:
                self._finish(index, [of_rank[index] for of_rank in found])
        return [self._rows[index] for index in range(len(self.cases))]

    def _document(self, case: Case, texts: Sequence[str]) -> dict[str, Any]:
        options = self.options
        return {
            "plan": texts.index(case.prepared.text),
            "elements": case.elements,
            "dtype": options.dtype,
            "op": options.op if self.source.collective.reduces else "",
            "in_place": self.has_in_place,
            "iterations": options.iterations,
            "warmup": options.warmup,
            "check": options.check,
            "seed": options.seed,
            "mpi": "mpi" in options.against,
            "factor": None if case.emulation is None else case.emulation.factor,
        }

    def _hear(self, rank: int, message: Mapping[str, Any]) -> None:
        """A rank has finished a case; its row is known once all have."""
        heard = self._heard.setdefault(message["case"], {})
        heard[rank] = message["result"]
        if len(heard) == self.source.num_ranks:
            self._finish(message["case"], [heard[rank] for rank in sorted(heard)])

    def _finish(self, index: int, found: Sequence[Mapping[str, Any]]) -> None:
        row = self._row(self.cases[index], found)
        self._rows[index] = row
        if self.on_row is not None:
            self.on_row(row)

    def _row(self, case: Case, found: Sequence[Mapping[str, Any]]) -> Row:
        collective, options = self.source.collective, self.options
        ours = self._blocks([one["out"] for one in found])
        return Row(
            collective=collective.kind,
            group_size=group_size(collective),
            source=self.source.label,
            method=case.prepared.method,
            asked_bytes=case.asked_bytes,
            size_bytes=case.elements * dtype_of(options.dtype).num_bytes,
            count=count_column(collective, case.elements),
            dtype=options.dtype,
            op=options.op if collective.reduces else "",
            root=-1 if collective.root is None else collective.root,
            out_of_place=_timing(ours, [one["out"] for one in found]),
            in_place=self._in_place([one["in"] for one in found]),
            iterations=found[0]["out"]["calls"],
            simulated_s=case.prepared.simulated_s,
            bound_s=case.prepared.bound_s,
            against={"mpi": self._against([one["mpi"] for one in found], ours)} if "mpi" in options.against else {},
            emulation_factor=None if case.emulation is None else case.emulation.factor,
        )

    def _blocks(self, found: Sequence[Mapping[str, Any]]) -> list[float]:
        """Seconds of a call in each block, over all ranks as asked."""
        seconds = np.array([one["seconds"] for one in found], dtype=np.float64)
        return [float(one) for one in over_ranks(seconds, self.options.average)]

    def _in_place(self, found: Sequence[Mapping[str, Any] | None]) -> Timing | None:
        known = [one for one in found if one is not None]
        return _timing(self._blocks(known), known) if known else None

    def _against(self, found: Sequence[Mapping[str, Any] | None], ours: Sequence[float]) -> Comparison:
        known = [one for one in found if one is not None]
        if not known:
            return Comparison(reason="our own result is wrong")
        if "reason" in known[0]:
            return Comparison(reason=known[0]["reason"])
        theirs = self._blocks(known)
        ratio, low, high = ratio_of_medians(theirs, ours, self.options.seed)
        return Comparison(float(np.median(theirs)), ratio, low, high, blocks_s=tuple(theirs))


def _timing(blocks: Sequence[float], found: Sequence[Mapping[str, Any]]) -> Timing:
    """Median over blocks; no time where an element is wrong."""
    checked = [one["wrong"] for one in found if one["wrong"] is not None]
    wrong = sum(checked) if checked else None
    if wrong or not blocks:
        return Timing(None, wrong)
    return Timing(float(np.median(blocks)), wrong, tuple(blocks))


def _config(options: BenchOptions) -> dict[str, Any]:
    return {
        "nthreads": 1,
        "ngpus": 0,
        "minimum_bytes": min(options.sizes),
        "maximum_bytes": max(options.sizes),
        "warmup_iters": options.warmup,
        "iterations": options.iterations,
        "validation": int(options.check),
        "average": options.average,
    }


def _provenance(sources: Sequence[Source], options: BenchOptions) -> dict[str, Any]:
    return {
        "tool": "collsyn",
        "version": __version__,
        "backend": "host",
        "launcher": options.launcher if options.launcher in ("fork", "mpirun") else "own",
        "seed": options.seed,
        "options": digest(repr(sorted(asdict(options).items()))),
        "topologies": sorted({source.topology.name for source in sources if source.topology is not None}),
        "emulated": None if options.emulate is None else options.emulate.name,
        "machine": machine_facts(),
    }


def _listed(sizes: Sequence[int]) -> str:
    shown = ", ".join(str(size) for size in sizes[:5])
    return f"{shown}{' and more' if len(sizes) > 5 else ''} bytes"
