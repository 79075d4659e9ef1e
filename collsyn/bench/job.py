"""One source at all its sizes: jobs of ranks that run them, and their times brought together to rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collsyn.bench.result import Comparison, Row, Timing
from collsyn.bench.sizes import count_column, group_size
from collsyn.bench.sources import Prepared, Source
from collsyn.bench.statistics import over_ranks, ratio_of_medians
from collsyn.bench.tuning import Tuned, tuned_document
from collsyn.model.dtypes import dtype_of
from collsyn.model.topology import Topology
from collsyn.model.topology_file import topology_document
from collsyn.runtime.emulation import Emulation
from collsyn.runtime.launch import launch

# Of a whole sweep; that a single call does not hang is watched in seconds.
LIMIT_S = 6 * 3600.0

# The launcher that starts nothing.
HERE = "here"

Watch = Callable[[Row], None]
_OfRanks = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class BenchOptions:
    """How to run: sizes in bytes, type and reduction, counts of calls, what to check and to compare with.

    `average` is one of `statistics.OVER_RANKS`, `against` names other libraries (`mpi`, `gloo`), `launcher` is that of
    `launch`. With `emulate`, ranks run at the pace of that machine, and times are those of it. `in_place` asks for
    calls in place as well, `yardstick` for the plain exchange between the blocks of calls, which says how fast the
    machine itself was at that time. `backend` is `host` or `cuda`: there ranks are processes where the
    launcher starts some, else (launcher `here`) all in this process, with a GPU each or (`loopback`) all on one; `tune`
    tries how plans are best launched, `tuned` is what earlier runs found.
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
    in_place: bool = True
    yardstick: bool = False
    backend: str = "host"
    loopback: bool = False
    tune: bool = False
    tuned: tuple[Tuned, ...] = ()


@dataclass(frozen=True, eq=False)
class Case:
    """One row to be: a source at a size, rounded down."""

    source: Source
    asked_bytes: int
    elements: int
    prepared: Prepared
    emulation: Emulation | None = None


class Job:
    """The cases of one source; `launch` runs all of them, and is called `launches` times."""

    def __init__(
        self,
        source: Source,
        cases: Sequence[Case],
        options: BenchOptions,
        on_row: Watch | None = None,
        launches: int = 1,
        name: str = "",
    ) -> None:
        self.source, self.cases, self.options, self.on_row, self.name = source, cases, options, on_row, name
        self._launches, self._launched = launches, 0
        self._heard: dict[int, dict[int, Any]] = {}
        # Of each case what all ranks found, a launch an entry.
        self._found: list[list[_OfRanks]] = [[] for _ in cases]
        self._rows: dict[int, Row] = {}

    def launch(self) -> None:
        """Run all cases once and wait."""
        texts = list(dict.fromkeys(case.prepared.text for case in self.cases))
        arguments = {
            "plans": texts,
            "cases": [self._document(case, texts) for case in self.cases],
            "topology": None if self.options.emulate is None else topology_document(self.options.emulate),
        }
        self._heard = {}
        self._launched += 1
        found = self._run(arguments)
        for index in range(len(self.cases)):
            if len(self._found[index]) < self._launched:
                self._take(index, [of_rank[index] for of_rank in found])

    def _run(self, arguments: Mapping[str, Any]) -> Sequence[Sequence[Mapping[str, Any]]]:
        """Results by rank, then case."""
        options, num_ranks = self.options, self.source.num_ranks
        if options.backend == "cuda" and options.launcher == HERE:
            from collsyn.bench.gpu import run_here
            from collsyn.cuda.cupy_driver import CupyDriver

            return run_here(CupyDriver(), num_ranks, options.loopback, arguments, self._hear)
        target = f"collsyn.bench.{'gpu' if options.backend == 'cuda' else 'worker'}:run_cases"
        return launch(target, arguments, num_ranks, options.launcher, LIMIT_S, self._hear)

    def rows(self) -> list[Row]:
        """A row a case, once all launches are over."""
        return [self._rows[index] for index in range(len(self.cases))]

    def _document(self, case: Case, texts: Sequence[str]) -> dict[str, Any]:
        options = self.options
        return {
            "plan": texts.index(case.prepared.text),
            "elements": case.elements,
            "dtype": options.dtype,
            "op": options.op if self.source.collective.reduces else "",
            "in_place": options.in_place and self.source.collective.has_in_place,
            "iterations": options.iterations,
            "warmup": options.warmup,
            "check": options.check and not self._launched,
            "seed": options.seed,
            "mpi": "mpi" in options.against,
            "gloo": "gloo" in options.against,
            "nccl": "nccl" in options.against,
            "tune": options.tune and not self._launched,
            "tuned": self._tuned(),
            "yardstick": options.yardstick and case.emulation is None,
            "factor": None if case.emulation is None else case.emulation.factor,
        }

    def _tuned(self) -> list[dict[str, Any]]:
        kind, num_ranks = self.source.collective.kind, self.source.num_ranks
        known = self.options.tuned
        return [tuned_document(one) for one in known if (one.collective, one.num_ranks) == (kind, num_ranks)]

    def _hear(self, rank: int, message: Mapping[str, Any]) -> None:
        """A rank has finished a case, which is over once all have."""
        heard = self._heard.setdefault(message["case"], {})
        heard[rank] = message["result"]
        if len(heard) == self.source.num_ranks:
            self._take(message["case"], [heard[rank] for rank in sorted(heard)])

    def _take(self, index: int, found: _OfRanks) -> None:
        self._found[index].append(found)
        if len(self._found[index]) == self._launches:
            row = self._row(self.cases[index], self._found[index])
            self._rows[index] = row
            if self.on_row is not None:
                self.on_row(row)

    def _row(self, case: Case, found: Sequence[_OfRanks]) -> Row:
        collective, options = self.source.collective, self.options
        ours = self._blocks(found, "out")
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
            out_of_place=_timing(ours, found, "out"),
            in_place=_timing(self._blocks(found, "in"), found, "in") if _is_there(found, "in") else None,
            iterations=sum(of_ranks[0]["out"]["calls"] for of_ranks in found),
            simulated_s=case.prepared.simulated_s,
            bound_s=case.prepared.bound_s,
            against={name: self._against(name, found, ours) for name in options.against},
            emulation_factor=None if case.emulation is None else case.emulation.factor,
            benchmark=self.name,
            launches=self._launches,
            launch=found[0][0].get("launch"),
            gpu=found[0][0].get("gpu", ""),
            yardstick_s=self._blocks(found, "yardstick") if _is_there(found, "yardstick") else (),
        )

    def _blocks(self, found: Sequence[_OfRanks], what: str) -> tuple[float, ...]:
        """Seconds of a call in each block, launch after launch, over all ranks as asked."""
        blocks: list[float] = []
        for of_ranks in found:
            seconds = np.array([one[what]["seconds"] for one in of_ranks], dtype=np.float64)
            blocks += over_ranks(seconds, self.options.average).tolist()
        return tuple(blocks)

    def _against(self, name: str, found: Sequence[_OfRanks], ours: Sequence[float]) -> Comparison:
        if not _is_there(found, name):
            return Comparison(reason="our own result is wrong")
        for of_ranks in found:
            if "reason" in of_ranks[0][name]:
                return Comparison(reason=of_ranks[0][name]["reason"])
        theirs = self._blocks(found, name)
        ratio = ratio_of_medians(theirs, ours, self.options.seed)
        return Comparison(float(np.median(theirs)), *ratio, blocks_s=theirs)


def _is_there(found: Sequence[_OfRanks], what: str) -> bool:
    """Whether all ranks did that in all launches."""
    return all(one[what] is not None for of_ranks in found for one in of_ranks)


def _timing(blocks_s: tuple[float, ...], found: Sequence[_OfRanks], what: str) -> Timing:
    """Median over blocks; no time where an element is wrong."""
    results = [one[what] for of_ranks in found for one in of_ranks]
    checked = [one["wrong"] for one in results if one["wrong"] is not None]
    wrong = sum(checked) if checked else None
    if wrong or not blocks_s:
        return Timing(None, wrong)
    return Timing(float(np.median(blocks_s)), wrong, blocks_s)
