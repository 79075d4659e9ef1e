"""The host backend: ranks run plans on memory that they share, between boxes over MPI, and end if one of them fails."""

import ctypes
import json
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy.typing as npt

from collsyn.check.execute import check_ranges
from collsyn.check.interleave import flag_ids
from collsyn.errors import CollsynError, DeviceError, InputError
from collsyn.model.bind import BoundPlan, divisions, fingerprint
from collsyn.model.dtypes import checked_op, dtype_of
from collsyn.model.plan import Buffer
from collsyn.runtime.arena import CONTROL_BYTES, LINE, Control, OwnSegment, attach, machine_name
from collsyn.runtime.bootstrap import Bootstrap, PeerFailed
from collsyn.runtime.boxes import Boxes, box_name
from collsyn.runtime.calls import Calls
from collsyn.runtime.cores import keep_to_core
from collsyn.runtime.crossing import Route
from collsyn.runtime.emulation import Books, Emulation, Moments
from collsyn.runtime.executors import make_executor
from collsyn.runtime.native_loader import native_library
from collsyn.runtime.pool import Pool, Slot, same_answer
from collsyn.runtime.program import barrier_program, make_program, peers_of, rank_layout
from collsyn.runtime.proxy import FarControl, Proxy
from collsyn.runtime.transport import context_numbers, make_proxy

DEFAULT_LIMIT_S = 60.0


class HostContext:
    """One rank of a job; all ranks make one, and then call its methods in the same order.

    Used in a `with` block, an exception that leaves the block ends the other ranks, too.
    """

    def __init__(self, bootstrap: Bootstrap, own_cores: bool = False, box: str | None = None) -> None:
        """Meet the other ranks; DeviceError where one is missing or cannot be reached.

        Ranks that say the same `box` share memory (None: those of one machine, see `box_name`, of which then each must
        have as many). With `own_cores` each rank keeps, until `close`, to a core of its own, where there are enough and
        no launcher has seen to that.
        """
        self.bootstrap = bootstrap
        self.rank, self.size = bootstrap.rank, bootstrap.size
        self._failure: str | None = None
        self._closed = False
        self.is_crowded = True
        self._cores_before: set[int] | None = None
        self._pool = Pool(self.rank)
        self.books = Books(self.rank)
        self.controls: list[Control | FarControl] = []
        self._proxy: Proxy | None = None
        self._prepared = 0
        self._meet(own_cores, box)
        barrier = barrier_program(self.rank, [control.address for control in self.controls], self._route(0, 0))
        self._barrier = Calls(self, barrier, self._barrier_round)
        bootstrap.at_end(self._end)

    def prepare(
        self,
        bound: BoundPlan,
        dtype_name: str = "float32",
        op_name: str = "sum",
        in_place: bool | None = None,
        emulation: Emulation | None = None,
    ) -> "PreparedPlan":
        """Get a plan ready to run on elements of a type with a reduction (`sum`, `prod`, `min`, `max`, `avg`).

        Every rank must prepare the same plan; otherwise all raise DeviceError. `in_place`, if given, says how the plan
        should have been bound. With `emulation` it runs at the pace of that machine, whose links all such plans of the
        job share. Takes two exchanges and time linear in the plan and its memory.
        """
        self.check()
        slot: Slot | None = None

        def choose() -> dict[str, Any]:
            nonlocal slot
            _check_request(bound, self.size, dtype_name, op_name, in_place)
            self.boxes.check_against(bound.plan)
            if self._proxy is not None and emulation is not None:
                raise InputError("emulation: takes memory that all ranks share; these are in several boxes")
            # Executors follow addresses blindly.
            check_ranges(bound)
            flag_ids(bound.plan)
            slot = self._pool.take(_segment_sizes(bound, emulation))
            what = _description(bound, dtype_name, op_name, emulation)
            return {"what": what, "slot": slot.number, "fd": slot.own.fd, "books": self.books.offer(emulation)}

        answers = self._exchange(choose)
        assert slot is not None
        same_answer([answer["what"] for answer in answers], "the plan to prepare")
        same_answer([answer["slot"] for answer in answers], "the plans that were closed before")
        # Nobody runs anything now: a slot's flags can begin anew.
        slot.own.bytes[: int(bound.plan.num_flags[self.rank]) * LINE] = 0

        def meet() -> dict[str, Any]:
            pids, fds = [control.pid for control in self.controls], [answer["fd"] for answer in answers]
            slot.meet(self.rank, self.near, pids, fds)
            for peer in peers_of(bound, self.rank):
                slot.segments[peer].populate()
            self._prepared += 1
            if self._proxy is not None:
                self._proxy.offer(slot.number, self._prepared, slot.own.address, slot.own.size)
            self.books.meet(emulation, self.controls[0].pid, answers[0]["books"])
            return {}

        self._exchange(meet)
        # Everyone has mapped it.
        slot.own.seal()
        self.books.seal()
        route = self._route(slot.number, self._prepared)
        return PreparedPlan(self, bound, dtype_name, op_name, slot, emulation, route)

    def barrier(self, timeout_s: float = DEFAULT_LIMIT_S) -> None:
        """Return when all ranks have called it; raises DeviceError after `timeout_s`."""
        self.check()
        self._barrier.call(timeout_s)

    def give_back(self, slot: Slot) -> None:
        """Let later plans use a slot of memory."""
        if self._proxy is not None:
            self._proxy.withdraw(slot.number)
        self._pool.give_back(slot)

    def abort(self, message: str) -> None:
        """End the job: whatever other ranks do here raises, within a second, an error with this message."""
        if self._failure is not None or self._closed:
            return
        self._failure = message
        self.own_control.text = message
        library = native_library()
        for control in self.controls:
            if isinstance(control, FarControl):
                continue
            control.abort(self.rank)
            if library is not None:
                library.collsyn_ring(ctypes.c_void_p(control.address))
        if self._proxy is not None:
            self._proxy.abort(self.rank, message)

    def close(self) -> None:
        """Leave the job in good order; prepared plans and their arrays must not be used afterwards."""
        if self._closed:
            return
        self._closed = True
        if self._cores_before is not None:
            os.sched_setaffinity(0, self._cores_before)
        if self._proxy is not None:
            self._proxy.close(in_order=self._failure is None and self.own_control.aborted_by is None)
        self.own_control.close()
        self._pool.close()
        self.books.seal()
        for control in self.controls:
            if isinstance(control, Control):
                control.forget()

    def __enter__(self) -> "HostContext":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort(str(error) or type(error).__name__)
        self.close()

    def check(self) -> None:
        """Raise unless the job is alive as far as is known without waiting."""
        if self._closed:
            raise DeviceError("this host context is closed")
        if self._failure is not None:
            raise DeviceError(f"the job has ended: {self._failure}")
        if self.own_control.aborted_by is not None:
            raise self.peer_failed()

    def look_after_peers(self) -> None:
        """End the job if a peer's process has ended before its time."""
        for rank, control in enumerate(self.controls):
            if rank != self.rank and control.is_lost():
                message = f"{self.boxes.words(rank)} (process {control.pid}) was lost"
                self.abort(message)
                raise PeerFailed(message)
        self.look_after_proxy()

    def look_after_proxy(self) -> None:
        """End the job if nothing can be carried to other boxes any more."""
        message = None if self._proxy is None else self._proxy.problem()
        if message is not None:
            self.abort(message)
            raise PeerFailed(message)

    def peer_failed(self) -> PeerFailed:
        """The error to raise once another rank has ended the job."""
        rank = self.own_control.aborted_by
        assert rank is not None
        text = self.controls[rank].text
        self._failure = text
        return PeerFailed(f"rank {rank} failed: {text}")

    @property
    def own_control(self) -> Control:
        """This rank's control block."""
        own = self.controls[self.rank]
        assert isinstance(own, Control)
        return own

    def _route(self, region: int, generation: int) -> Route | None:
        """How far ranks reach a region of this context; None where none are far."""
        return None if self._proxy is None else Route(self._proxy, region, generation)

    def _barrier_round(self, record: int) -> str:
        """Where a rank stands that waits in a barrier."""
        turn = record // 2
        whom = (self.rank - (1 << turn)) % self.size
        return f"barrier, round {turn}: waits for {self.boxes.words(whom)}"

    def _meet(self, own_cores: bool, box: str | None) -> None:
        own: OwnSegment | None = None
        must_be_equal = box is None

        def offer() -> dict[str, Any]:
            nonlocal own, box
            own = OwnSegment(CONTROL_BYTES)
            machine, cores = machine_name(), sorted(os.sched_getaffinity(0))
            box = box or box_name(self.rank, machine)
            number = context_numbers.next()
            return {"pid": os.getpid(), "fd": own.fd, "machine": machine, "box": box, "cores": cores, "number": number}

        answers = self._exchange(offer)
        assert own is not None and box is not None
        self.box, self.boxes = box, Boxes.of([answer["box"] for answer in answers])
        self.near = self.boxes.near(self.rank)
        if self.boxes.count > 1 and must_be_equal:
            self.boxes.check_equal()

        # Launchers may have bound each rank to a core of its own; where there are proxies, they need cores, too.
        here = [answer for answer in answers if answer["machine"] == answers[self.rank]["machine"]]
        allowed = [answer["cores"] for answer in here]
        threads = len(here) * min(self.boxes.count, 2)
        self.is_crowded = threads > len({core for cores in allowed for core in cores})
        own_cores &= self.boxes.count == 1 and not self.is_crowded
        if own_cores and all(cores == allowed[0] for cores in allowed):
            self._cores_before = keep_to_core(allowed[0], self.rank)

        def attach_all() -> dict[str, Any]:
            for rank, answer in enumerate(answers):
                if rank not in self.near:
                    self.controls.append(FarControl(answer["pid"]))
                    continue
                segment = own if rank == self.rank else attach(answer["pid"], answer["fd"], own.size)
                self.controls.append(Control(segment, answer["pid"]))
            if self.boxes.count > 1:
                self._open_proxy(own, context_numbers.agree(answer["number"] for answer in answers))
            return {}

        self._exchange(attach_all)
        own.seal()
        if self._proxy is not None:
            self._proxy.start()

    def _open_proxy(self, own: OwnSegment, number: int) -> None:
        post = self.bootstrap.post
        if post is None:
            far = next(rank for rank in range(self.size) if rank not in self.near)
            raise DeviceError(
                f"{self.boxes.words(self.rank)} and {self.boxes.words(far)} share no memory, and only ranks that MPI "
                "started (mpirun, srun) reach other boxes"
            )
        self._proxy = make_proxy(self.rank, self.boxes, self.own_control, post, number, self.is_crowded)
        self._proxy.offer(0, 0, own.address, own.size)
        for control in self.controls:
            if isinstance(control, FarControl):
                control.proxy = self._proxy

    def _exchange(self, work: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
        """What `work` returned on every rank; where it failed on any, all ranks raise."""
        failure: CollsynError | None = None
        try:
            mine = work()
        except CollsynError as error:
            mine, failure = {"error": str(error)}, error
        answers = [json.loads(text) for text in self.bootstrap.allgather(json.dumps(mine).encode())]
        failed = [rank for rank, answer in enumerate(answers) if "error" in answer]
        if 0 < len(failed) < self.size:
            # Ranks no longer agree about what is prepared.
            self._failure = f"rank {failed[0]} failed: {answers[failed[0]]['error']}"
        if failure is not None:
            raise failure
        if failed:
            raise PeerFailed(self._failure)
        return answers

    def _end(self, error: str | None) -> None:
        if error is not None:
            self.abort(error)
        self.close()


class PreparedPlan:
    """A plan in shared memory: fill `input`, `run`, read `output`.

    Both are arrays of this rank in the storage type of the elements (bfloat16: uint16), valid until `close`. In place
    they overlap as the collective has it. `input` may change between calls, `output` stays until the next one. Where
    they are lent (`is_lent`) both are empty, and `run` is told where the caller has them.
    """

    def __init__(
        self,
        context: HostContext,
        bound: BoundPlan,
        dtype_name: str,
        op_name: str,
        slot: Slot,
        emulation: Emulation | None,
        route: Route | None,
    ) -> None:
        """Made by `HostContext.prepare`."""
        self._context, self._slot, rank = context, slot, context.rank
        self._is_closed = False
        dtype = dtype_of(dtype_name)
        bells = [control.address for control in context.controls]
        programs = [
            make_program(bound, rank, slot.segments, bells, dtype.num_bytes, context.near, route, turn)
            for turn in range(2 if bound.plan.runs_ahead else 1)
        ]
        program = programs[0]

        def describe(record: int) -> str:
            channel, instruction = program.place_of(record)
            row = int(program.rows[record])
            where = f"channel {channel}, instruction {instruction}: {bound.plan.describe(row)}"
            return where + context.boxes.awaited(program.peer_of(record, bound))

        control = context.own_control
        if emulation is None:
            executors = [make_executor(each, control, dtype_name, op_name, context.is_crowded) for each in programs]
        else:
            moments = [part.address + rank_layout(bound, peer).size for peer, part in enumerate(slot.segments)]
            executors = [
                context.books.executor(emulation, bound, each, control, dtype_name, op_name, moments)
                for each in programs
            ]
        self._calls, self._programs = Calls(context, program, describe, executors), programs
        self.is_lent = bound.is_lent
        offsets = rank_layout(bound, rank).offsets
        sizes = [0 if bound.is_lent else int(bound.buffer_bytes[rank, buffer]) for buffer in Buffer]
        arrays = [
            slot.own.bytes[offsets[buffer] : offsets[buffer] + sizes[buffer]].view(dtype.storage)
            for buffer in (Buffer.INPUT, Buffer.OUTPUT)
        ]
        self.input: npt.NDArray[Any] = arrays[0]
        self.output: npt.NDArray[Any] = arrays[1]
        self._output_address = slot.own.address + offsets[Buffer.OUTPUT]
        self._divisions = [
            (start, length // dtype.num_bytes, divisor)
            for start, length, divisor in (divisions(bound, rank) if op_name == "avg" else [])
        ]

    def run(self, timeout_s: float = DEFAULT_LIMIT_S, lent: tuple[int, int] | None = None) -> None:
        """Run the plan once with all other ranks; `lent` are the addresses of input and output where these are lent.

        Raises DeviceError, and so ends the job, when no instruction of this rank could go on for `timeout_s` seconds
        (the message names the one it is stuck at), or when another rank failed or was lost.
        """
        self._context.check()
        if self._is_closed:
            raise DeviceError("this plan is closed")
        if lent is not None:
            for program in self._programs:
                program.lend({Buffer.INPUT: lent[0], Buffer.OUTPUT: lent[1]})
        self._calls.call(timeout_s)
        # No sooner than now: parts of the output may have been passed on as sums until the last signal.
        output_address = self._output_address if lent is None else lent[1]
        for start, count, divisor in self._divisions:
            self._calls.executor.divide(output_address + start, count, divisor)

    def close(self) -> None:
        """Let later plans use the memory; every rank must close its plans in the same order."""
        if not self._is_closed:
            self._is_closed = True
            self._context.give_back(self._slot)


def _check_request(bound: BoundPlan, size: int, dtype_name: str, op_name: str, in_place: bool | None) -> None:
    checked_op(op_name)
    plan, dtype = bound.plan, dtype_of(dtype_name)
    if plan.num_ranks != size:
        raise InputError(f"plan {plan.name}: is for {plan.num_ranks} ranks; this job has {size}")
    if bound.element_bytes != dtype.num_bytes:
        raise InputError(
            f"plan {plan.name}: is bound for elements of {bound.element_bytes} bytes, not for {dtype_name}"
        )
    is_in_place = any(alias is not None for alias in bound.alias)
    if in_place is not None and in_place != is_in_place:
        raise InputError(f"plan {plan.name}: is bound {'in' if is_in_place else 'out of'} place, not as asked")


def _segment_sizes(bound: BoundPlan, emulation: Emulation | None) -> list[int]:
    """Shared memory of every rank: flags and buffers, and behind them what emulation needs."""
    sizes = [rank_layout(bound, rank).size for rank in range(bound.plan.num_ranks)]
    if emulation is None:
        return sizes
    moments = Moments.of(bound.plan)
    return [size + moments.num_bytes(rank) for rank, size in enumerate(sizes)]


def _description(bound: BoundPlan, dtype_name: str, op_name: str, emulation: Emulation | None) -> str:
    """Words and a hash that are equal on two ranks exactly if they are about to run the same thing."""
    executor = "NumPy" if native_library() is None else "compiled"
    return (
        f"{bound.plan.name} of {bound.num_elements} {dtype_name} elements, {op_name}, {executor} executor "
        f"(hash {fingerprint(bound)})"
    ) + (f", {emulation}" if emulation is not None else "")
