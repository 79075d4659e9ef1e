"""What a benchmark does on GPUs: checks plans, then times calls of ours, and of NCCL in turn."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import numpy as np

from collsyn.bench.data import Pattern
from collsyn.bench.gpu_timer import Timer, time_in_turn
from collsyn.bench.nccl import NcclCollective, communicators, nccl_not_comparable
from collsyn.bench.tuning import Launch, candidates, chosen, tuned_from_fields
from collsyn.cuda.driver import Driver
from collsyn.cuda.job import GpuJob
from collsyn.cuda.prepared import ENGINE, SPECIALISED, GpuPlan
from collsyn.cuda.specialise import MAX_INSTRUCTIONS
from collsyn.model.bind import bind
from collsyn.model.dtypes import dtype_of
from collsyn.model.fields import Fields, parse_document
from collsyn.model.plan import Buffer, Plan
from collsyn.model.plan_file import plan_from_fields
from collsyn.runtime.bootstrap import Bootstrap
from collsyn.runtime.worker import report

# Of each launch that is tried.
_TUNING_BLOCKS = 5

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
    others: dict[int, Any] = {}
    found = []
    for index, case in enumerate(cases):
        number = case["plan"]
        if number not in known:
            known = {number: plan_from_fields(parse_document(texts[number].encode(), f"plan {number}"))}
        if case.get("nccl") and not others and nccl_not_comparable(job, known[number].collective, case["op"]) is None:
            others = communicators(job)
        results = _Case(job, known[number], case, others).run()
        found.append(results)
        for rank, result in results.items():
            hear(rank, {"case": index, "result": result})
    return found


class _Case:
    """One plan at one size and type."""

    def __init__(self, job: GpuJob, plan: Plan, case: dict[str, Any], known: dict[int, Any]) -> None:
        """`known` are the communicators of NCCL, if any."""
        self.job, self.plan, self.case, self.known = job, plan, case, known
        self.dtype, self.op = dtype_of(case["dtype"]), case["op"] or "sum"
        self.pattern = Pattern(plan.collective, case["elements"], self.dtype.name, self.op, case["seed"])

    def run(self) -> dict[int, Result]:
        """Everything that is asked for, by rank of this process."""
        self.launch = self._best() if self.case.get("tune") else self._known()
        nothing = {"mpi": None, "gloo": None, "yardstick": None, "nccl": None, "in": None}
        out, theirs = self._out_of_place()
        common = {**nothing, "launch": asdict(self.launch), "gpu": self._gpu()}
        results = {rank: {**common, "out": out[rank], "nccl": theirs[rank]} for rank in self.job.devices}
        if self.case["in_place"]:
            for rank, one in self._in_place().items():
                results[rank]["in"] = one
        return results

    def _out_of_place(self) -> tuple[dict[int, Result], dict[int, Result | None]]:
        """Our times and, where they are asked for, those of NCCL in turn."""
        prepared = self._prepared(False, self.launch)
        wrong = self._wrong(prepared)
        other, reason = self._nccl()
        ours, theirs = Timer(self.job, prepared), None if other is None else Timer(self.job, other)
        if self._anywhere(wrong):
            reason = None
        else:
            timers = [ours] if theirs is None else [ours, theirs]
            time_in_turn(timers, self.case["iterations"], self.case["warmup"])
            if self.case["check"]:
                wrong = {rank: self._wrong_of(prepared, rank) for rank in self.job.devices}
        self.job.release(prepared)
        if other is not None:
            other.close()
        return _results(ours, wrong), {
            rank: {"reason": reason}
            if reason is not None
            else None
            if theirs is None or not ours.seconds[rank]
            else {"seconds": theirs.seconds[rank], "wrong": None, "calls": theirs.calls * len(theirs.seconds[rank])}
            for rank in self.job.devices
        }

    def _in_place(self) -> dict[int, Result]:
        prepared = self._prepared(True, self.launch)
        wrong, timer = self._wrong(prepared), Timer(self.job, prepared)
        if not self._anywhere(wrong):
            time_in_turn([timer], self.case["iterations"], self.case["warmup"])
            if self.case["check"]:
                # The timed calls worked on what the ones before them left.
                wrong = self._wrong(prepared)
        self.job.release(prepared)
        return _results(timer, wrong)

    def _prepared(self, in_place: bool, launch: Launch) -> GpuPlan:
        bound = bind(self.plan, self.case["elements"], self.dtype.num_bytes, in_place)
        return self.job.prepare(bound, self.dtype.name, self.op, **asdict(launch))

    def _gpu(self) -> str:
        return self.job.driver.facts(next(iter(self.job.devices.values()))).name

    def _known(self) -> Launch:
        """What a tuning file has for this call, else the usual launch."""
        entries = [tuned_from_fields(Fields(entry, "tuning")) for entry in self.case.get("tuned", [])]
        size = self.case["elements"] * self.dtype.num_bytes
        known = chosen(entries, self._gpu(), self.plan.collective.kind, self.job.size, self.job.is_loopback, size)
        return known if self._may(known) else Launch()

    def _may(self, launch: Launch) -> bool:
        return self.job.has_one_box or (launch.transport != ENGINE and launch.blocks_per_channel == 1)

    def _best(self) -> Launch:
        """The quickest of all launches that fit, each tried for a short time; the same in all processes."""
        best, best_s = Launch(), math.inf
        for launch in candidates():
            if not self.job.fits(self.plan, launch.threads, launch.blocks_per_channel):
                continue
            if launch.transport == SPECIALISED and self.plan.num_instructions > MAX_INSTRUCTIONS:
                continue
            if not self._may(launch):
                continue
            prepared = self._prepared(False, launch)
            timer = Timer(self.job, prepared)
            time_in_turn([timer], _TUNING_BLOCKS, 1)
            mine = max(median(seconds) for seconds in timer.seconds.values())
            found_s = max(each["seconds"] for each in self.job.exchange(lambda mine=mine: {"seconds": mine}))  # type: ignore[misc]
            self.job.release(prepared)
            if found_s < best_s:
                best, best_s = launch, found_s
        return best

    def _nccl(self) -> tuple[NcclCollective | None, str | None]:
        """NCCL's collective, right in its first call, or why there is none to compare with."""
        if not self.case.get("nccl"):
            return None, None
        reason = nccl_not_comparable(self.job, self.plan.collective, self.op)
        if reason is not None:
            return None, reason
        other = NcclCollective(self.job, self.known, self.pattern)
        other.enqueue()
        other.wait()
        if self._anywhere({0: other.wrong_elements()}):
            other.close()
            return None, "NCCL's own result is wrong"
        return other, None

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


def _results(timer: Timer, wrong: Mapping[int, int | None]) -> dict[int, Result]:
    return {
        rank: {"seconds": seconds, "wrong": wrong[rank], "calls": timer.calls * len(seconds)}
        for rank, seconds in timer.seconds.items()
    }
