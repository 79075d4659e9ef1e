"""What a benchmark does on GPUs: checks plans, then times blocks of calls between events, as graphs where it can."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from collsyn.bench.data import Pattern
from collsyn.cuda.driver import Driver
from collsyn.cuda.job import GpuJob
from collsyn.cuda.prepared import GpuPlan
from collsyn.model.bind import bind
from collsyn.model.dtypes import dtype_of
from collsyn.model.fields import parse_document
from collsyn.model.plan import Buffer, Plan
from collsyn.model.plan_file import plan_from_fields
from collsyn.runtime.bootstrap import Bootstrap
from collsyn.runtime.worker import report

# As on host ranks: a median needs several blocks, and a block must be long against what begins and ends it.
BLOCKS = 20
_BLOCK_S = 2e-3
_MAX_CALLS = 200

Result = dict[str, Any]


def run_cases(
    bootstrap: Bootstrap, plans: list[str], cases: list[dict[str, Any]], topology: None = None
) -> list[Result]:
    """Run benchmark cases, this process being one rank with a GPU; as `worker.run_cases`, which says what cases are."""
    from collsyn.cuda.cupy_driver import CupyDriver

    texts = [bootstrap.allgather(text.encode() if bootstrap.rank == 0 else b"")[0].decode() for text in plans]
    with GpuJob.one_each(CupyDriver(), bootstrap) as job:
        found = run_in(job, texts, cases, lambda rank, message: report(message))
    return [case[bootstrap.rank] for case in found]


def run_here(
    driver: Driver, num_ranks: int, loopback: bool, arguments: Mapping[str, Any], hear: Callable[[int, Any], None]
) -> list[list[Result]]:
    """The same with all ranks in this process, on one GPU (`loopback`) or one each; results by rank, then case."""
    make = GpuJob.loopback if loopback else GpuJob.one_process
    with make(driver, num_ranks) as job:
        found = run_in(job, arguments["plans"], arguments["cases"], hear)
    return [[case[rank] for case in found] for rank in range(num_ranks)]


def run_in(
    job: GpuJob, texts: Sequence[str], cases: Sequence[dict[str, Any]], hear: Callable[[int, Any], None]
) -> list[dict[int, Result]]:
    """Results of every case by the ranks of this process; each is also told to `hear` as soon as it is there."""
    known: dict[int, Plan] = {}
    found = []
    for index, case in enumerate(cases):
        number = case["plan"]
        if number not in known:
            known = {number: plan_from_fields(parse_document(texts[number].encode(), f"plan {number}"))}
        results = _Case(job, known[number], case).run()
        found.append(results)
        for rank, result in results.items():
            hear(rank, {"case": index, "result": result})
    return found


class _Case:
    """One plan at one size and type."""

    def __init__(self, job: GpuJob, plan: Plan, case: dict[str, Any]) -> None:
        self.job, self.plan, self.case = job, plan, case
        self.dtype, self.op = dtype_of(case["dtype"]), case["op"] or "sum"
        self.pattern = Pattern(plan.collective, case["elements"], self.dtype.name, self.op, case["seed"])

    def run(self) -> dict[int, Result]:
        """Everything that is asked for, by rank of this process."""
        nothing = {"mpi": None, "gloo": None, "yardstick": None, "in": None}
        results = {rank: {**nothing, "out": one} for rank, one in self._timed(in_place=False).items()}
        if self.case["in_place"]:
            for rank, one in self._timed(in_place=True).items():
                results[rank]["in"] = one
        return results

    def _timed(self, in_place: bool) -> dict[int, Result]:
        bound = bind(self.plan, self.case["elements"], self.dtype.num_bytes, in_place)
        prepared = self.job.prepare(bound, self.dtype.name, self.op, **self.case.get("launch", {}))
        wrong = self._wrong(prepared)
        seconds: dict[int, list[float]] = {rank: [] for rank in self.job.devices}
        calls = 0
        if not self._anywhere(wrong):
            seconds, calls = self._blocks(prepared)
            if self.case["check"] and in_place:
                # The timed calls worked on what the ones before them left.
                wrong = self._wrong(prepared)
            elif self.case["check"]:
                wrong = {rank: self._wrong_of(prepared, rank) for rank in self.job.devices}
        self.job.release(prepared)
        return {rank: {"seconds": seconds[rank], "wrong": wrong[rank], "calls": calls} for rank in self.job.devices}

    def _wrong(self, prepared: GpuPlan) -> dict[int, int | None]:
        """Wrong elements of every rank's output after a call on fresh data; None if nothing is to be checked."""
        for rank in self.job.devices:
            given, taken = (
                np.empty(int(prepared.bound.buffer_bytes[rank, buffer]) // self.dtype.num_bytes, self.dtype.storage)
                for buffer in (Buffer.INPUT, Buffer.OUTPUT)
            )
            self.pattern.poison(taken)
            # In place the input may be a part of the output.
            prepared.fill(rank, Buffer.OUTPUT, taken)
            if self.case["check"]:
                self.pattern.fill_input(rank, given)
            else:
                self.pattern.poison(given)
            prepared.fill(rank, Buffer.INPUT, given)
        self.job.barrier()
        if not self.case["check"]:
            return dict.fromkeys(self.job.devices)
        prepared.run()
        self.job.barrier()
        return {rank: self._wrong_of(prepared, rank) for rank in self.job.devices}

    def _wrong_of(self, prepared: GpuPlan, rank: int) -> int:
        return self.pattern.wrong_elements(rank, prepared.fetch(rank, Buffer.OUTPUT).view(self.dtype.storage))

    def _anywhere(self, wrong: Mapping[int, int | None]) -> bool:
        mine = sum(each or 0 for each in wrong.values())
        return any(answer["wrong"] for answer in self.job.exchange(lambda: {"wrong": mine}))

    def _blocks(self, prepared: GpuPlan) -> tuple[dict[int, list[float]], int]:
        """Seconds of a call in each block, by rank, and how many calls there were in all."""
        iterations, warmup = self.case["iterations"], max(self.case["warmup"], 1)
        self._block(prepared, self._graphs(prepared, warmup), warmup)
        first = max(self._block(prepared, self._graphs(prepared, warmup), warmup).values())
        # One number for all: a collective is called equally often everywhere.
        agreed = max(float(each["seconds"]) for each in self.job.exchange(lambda: {"seconds": first}))
        blocks = min(BLOCKS, iterations)
        calls = max(math.ceil(iterations / blocks), min(_MAX_CALLS, math.ceil(_BLOCK_S / max(agreed, 1e-9))))
        graphs = self._graphs(prepared, calls)
        seconds: dict[int, list[float]] = {rank: [] for rank in self.job.devices}
        for _ in range(blocks):
            by_device = self._block(prepared, graphs, calls)
            for rank, device in self.job.devices.items():
                seconds[rank].append(by_device[device])
        return seconds, blocks * calls

    def _graphs(self, prepared: GpuPlan, calls: int) -> dict[int, Any] | None:
        """So many calls as a graph of each device; None where the driver cannot."""
        streams, driver = prepared.streams(), self.job.driver
        graphs = {}
        for device, stream in streams.items():
            graph = driver.record(device, stream, lambda device=device: prepared.enqueue_on(device, calls))  # type: ignore[misc]
            graphs[device] = graph
        return None if any(graph is None for graph in graphs.values()) else graphs

    def _block(self, prepared: GpuPlan, graphs: Mapping[int, Any] | None, calls: int) -> dict[int, float]:
        """Seconds of a call on each device, in a block of calls that follow each other."""
        driver, streams = self.job.driver, prepared.streams()
        self.job.barrier()
        begin = {device: driver.mark(device, stream) for device, stream in streams.items()}
        for device, stream in streams.items():
            if graphs is not None:
                graphs[device].launch(stream)
            else:
                prepared.enqueue_on(device, calls)
        end = {device: driver.mark(device, stream) for device, stream in streams.items()}
        prepared.wait()
        return {device: driver.seconds(begin[device], end[device]) / calls for device in streams}
