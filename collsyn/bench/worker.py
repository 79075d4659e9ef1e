"""What every rank does in a benchmark: checks, warms up, times plans and MPI's collectives in alternating blocks."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from collsyn.bench.data import Pattern
from collsyn.bench.gloo import GlooCollective, gloo_not_comparable, make_gloo
from collsyn.bench.mpi import MpiCollective, not_comparable
from collsyn.bench.yardstick import exchange
from collsyn.model.bind import bind
from collsyn.model.dtypes import dtype_of
from collsyn.model.fields import Fields, parse_document
from collsyn.model.plan import Plan
from collsyn.model.plan_file import plan_from_fields
from collsyn.model.topology_file import topology_from_fields
from collsyn.runtime.bootstrap import Bootstrap, MpiBootstrap
from collsyn.runtime.emulation import Emulation
from collsyn.runtime.host import HostContext, PreparedPlan
from collsyn.runtime.worker import report

# A median needs several blocks; a block must be long against the barrier before it.
BLOCKS = 40
_BLOCK_S = 0.5e-3
_MAX_CALLS = 200


def run_cases(
    bootstrap: Bootstrap, plans: list[str], cases: list[dict[str, Any]], topology: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Run benchmark cases one after the other; what this rank saw of each.

    `plans` are texts of plan files; those of rank 0 count on all ranks. A case has plan (its index), elements, dtype,
    op, in_place (whether to run that as well), iterations, warmup, check, seed, mpi and gloo (whether to compare),
    yardstick (whether to time the plain exchange in turn with ours) and factor (None, or how much slower than
    `topology`, a document, it is emulated; seconds are then those of it).

    Its result has `out` and `in`, each {seconds: [per call, one a block], wrong: elements or None, calls: in all} (`in`
    None where not run; seconds empty where any rank's result is wrong), `yardstick`: the same or None, and `mpi` and
    `gloo`: the same, or {reason}, or None. Each result is also reported as soon as it is there.
    """
    texts = [text.decode() for text in _of_rank_0(bootstrap, plans)]
    known: dict[int, Plan] = {}
    results, gloo = [], None
    emulated = None if topology is None else topology_from_fields(Fields(topology, "emulate"))
    with HostContext(bootstrap, own_cores=emulated is None) as context:
        for index, case in enumerate(cases):
            number = case["plan"]
            if number not in known:
                # Sizes come one after the other, and plans of large collectives are large.
                known = {number: plan_from_fields(parse_document(texts[number].encode(), f"plan {number}"))}
            emulation = None if emulated is None else Emulation(emulated, case["factor"])
            if case["gloo"] and gloo is None:
                gloo = make_gloo(bootstrap)
            result = _Case(context, known[number], case, emulation, gloo).run()
            report({"case": index, "result": result})
            results.append(result)
    return results


def _of_rank_0(bootstrap: Bootstrap, plans: Sequence[str]) -> list[bytes]:
    return [bootstrap.allgather(text.encode() if bootstrap.rank == 0 else b"")[0] for text in plans]


class _Case:
    """One plan at one size and type."""

    def __init__(
        self,
        context: HostContext,
        plan: Plan,
        case: dict[str, Any],
        emulation: Emulation | None = None,
        gloo: Any = None,
    ) -> None:
        self.context, self.plan, self.case, self.emulation, self.gloo = context, plan, case, emulation, gloo
        self.dtype, self.op = dtype_of(case["dtype"]), case["op"] or "sum"
        self.pattern = Pattern(plan.collective, case["elements"], self.dtype.name, self.op, case["seed"])

    def run(self) -> dict[str, Any]:
        """Everything that is asked for."""
        out = self._prepare(in_place=False)
        result: dict[str, Any] = {"in": None, "mpi": None, "gloo": None, "yardstick": None}
        theirs, result["mpi"] = self._theirs()
        gloos, result["gloo"] = self._gloos()
        wrong = self._wrong(out)
        result["out"] = {"seconds": [], "wrong": wrong, "calls": 0}
        if not self._anywhere(wrong):
            timers = {"out": self._timer(out)}
            if theirs is not None:
                timers["mpi"] = _Timer(theirs.call)
            if gloos is not None:
                timers["gloo"] = _Timer(gloos.call)
            plain = self._exchange() if self.case["yardstick"] else None
            if plain is not None:
                timers["yardstick"] = _Timer(plain.run)
            self._time(list(timers.values()))
            if plain is not None:
                plain.close()
            wrong_after = self._wrong_after(out)
            result |= {name: timer.result(wrong_after if name == "out" else None) for name, timer in timers.items()}
        out.close()
        if self.case["in_place"]:
            result["in"] = self._in_place()
        return result

    def _in_place(self) -> dict[str, Any]:
        plan = self._prepare(in_place=True)
        wrong = self._wrong(plan)
        result: dict[str, Any] = {"seconds": [], "wrong": wrong, "calls": 0}
        if not self._anywhere(wrong):
            timer = self._timer(plan)
            self._time([timer])
            result = timer.result(self._wrong(plan))
        plan.close()
        return result

    def _prepare(self, in_place: bool) -> PreparedPlan:
        bound = bind(self.plan, self.case["elements"], self.dtype.num_bytes, in_place)
        return self.context.prepare(bound, self.dtype.name, self.op, emulation=self.emulation)

    def _exchange(self) -> PreparedPlan:
        """The yardstick, in about as many bytes."""
        collective, num_ranks = self.plan.collective, self.plan.num_ranks
        elements = max(self.case["elements"] // num_ranks, 1) * num_ranks
        bound = bind(exchange(collective.kind, num_ranks), elements, self.dtype.num_bytes)
        prepared = self.context.prepare(bound, self.dtype.name, self.op)
        self.pattern.poison(prepared.input)
        self.pattern.poison(prepared.output)
        return prepared

    def _timer(self, plan: PreparedPlan) -> "_Timer":
        return _Timer(plan.run, 1.0 if self.emulation is None else self.emulation.factor)

    def _theirs(self) -> tuple[MpiCollective | None, dict[str, Any] | None]:
        """MPI's collective, or why there is none to compare with."""
        if not self.case["mpi"]:
            return None, None
        bootstrap = self.context.bootstrap
        reason = not_comparable(self.plan.collective, self.dtype.name, self.op)
        if not isinstance(bootstrap, MpiBootstrap):
            reason = "these ranks were not started by MPI"
        if reason is not None or not isinstance(bootstrap, MpiBootstrap):
            return None, {"reason": reason}
        theirs = MpiCollective(bootstrap.comm, self.pattern, self.context.rank)
        theirs.call()
        if self._anywhere(theirs.wrong_elements()):
            return None, {"reason": "MPI's own result is wrong"}
        return theirs, None

    def _gloos(self) -> tuple[GlooCollective | None, dict[str, Any] | None]:
        """Gloo's collective, or why there is none to compare with."""
        if not self.case["gloo"]:
            return None, None
        reason = gloo_not_comparable(self.plan.collective, self.op)
        if reason is not None:
            return None, {"reason": reason}
        gloos = GlooCollective(self.gloo, self.pattern, self.context.rank)
        gloos.call()
        if self._anywhere(gloos.wrong_elements()):
            return None, {"reason": "gloo's own result is wrong"}
        return gloos, None

    def _wrong(self, prepared: PreparedPlan) -> int | None:
        """Wrong elements of this rank's output after a call on fresh data; None if nothing is to be checked."""
        rank = self.context.rank
        # In place the input may be a part of the output.
        self.pattern.poison(prepared.output)
        if not self.case["check"]:
            # Any numbers do, and these cost little.
            self.pattern.poison(prepared.input)
            self.context.barrier()
            return None
        self.pattern.fill_input(rank, prepared.input)
        self.context.barrier()
        prepared.run()
        return self.pattern.wrong_elements(rank, prepared.output)

    def _wrong_after(self, prepared: PreparedPlan) -> int | None:
        """Wrong elements that the last of the timed calls left, which followed each other without a pause."""
        return self.pattern.wrong_elements(self.context.rank, prepared.output) if self.case["check"] else None

    def _anywhere(self, wrong: int | None) -> bool:
        return any(int(text) for text in self.context.bootstrap.allgather(str(wrong or 0).encode()))

    def _time(self, timers: "Sequence[_Timer]") -> None:
        """Warm up, then run blocks of all timers in turn, each behind a barrier.

        Timers that take turns empty the caches of each other's data, so each of their blocks begins with a call that is
        not timed.
        """
        iterations, warmup = self.case["iterations"], self.case["warmup"]
        # Calls on an emulated machine are long, and must not run into each other.
        blocks = min(BLOCKS, iterations) if self.emulation is None else iterations
        for timer in timers:
            self.context.barrier()
            seconds = timer.block(max(warmup, 1)) / max(warmup, 1) * timer.factor
            # One number for all ranks: a collective is called equally often everywhere.
            agreed = float(self.context.bootstrap.allgather(repr(seconds).encode())[0])
            timer.calls = max(math.ceil(iterations / blocks), min(_MAX_CALLS, math.ceil(_BLOCK_S / max(agreed, 1e-9))))
        for _ in range(blocks):
            for timer in timers:
                if len(timers) > 1:
                    timer.block(1)
                self.context.barrier()
                timer.seconds.append(timer.block(timer.calls) / timer.calls)
        self.context.barrier()


class _Timer:
    """Blocks of calls of one function; their seconds are divided by a factor."""

    def __init__(self, call: Callable[[], Any], factor: float = 1.0) -> None:
        self._call, self.factor = call, factor
        self.calls = 1
        self.seconds: list[float] = []

    def block(self, calls: int) -> float:
        """Seconds of that many calls in a row."""
        call = self._call
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - begin) / self.factor

    def result(self, wrong: int | None) -> dict[str, Any]:
        """What was timed, as `run_cases` returns it."""
        assert np.isfinite(self.seconds).all()
        return {"seconds": self.seconds, "wrong": wrong, "calls": self.calls * len(self.seconds)}
