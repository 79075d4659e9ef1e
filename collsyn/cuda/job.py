"""Ranks on GPUs: one process a GPU, one process with all of them, or all ranks on one GPU (loopback)."""

import json
import os
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from collsyn.cuda.between import Between
from collsyn.cuda.driver import Driver
from collsyn.cuda.endpoints import Endpoints
from collsyn.cuda.layout import ENTRY
from collsyn.cuda.prepared import KERNEL, GpuPlan
from collsyn.errors import CollsynError, DeviceError, InputError
from collsyn.model.bind import BoundPlan, fingerprint
from collsyn.model.dtypes import checked_op, dtype_of
from collsyn.model.plan import Plan
from collsyn.runtime.arena import machine_name
from collsyn.runtime.bootstrap import Bootstrap, PeerFailed
from collsyn.runtime.boxes import Boxes, box_name
from collsyn.runtime.pool import same_answer
from collsyn.runtime.transport import context_numbers

DEFAULT_LIMIT_S = 60.0
# Between looks at a kernel that runs, and at whether the processes of other ranks are alive.
_LOOK_S, _LOOK_AFTER_S = 50e-6, 0.5


class GpuJob:
    """The ranks of this process and how they reach the others; every process makes one and calls it in the same order.

    `devices[r]` is the GPU of rank r of this process. Without a bootstrap all ranks are here. In a `with` block; an
    exception that leaves it ends waits of the other processes by their limits.
    """

    def __init__(self, driver: Driver, devices: Mapping[int, int], bootstrap: Bootstrap | None = None) -> None:
        """Meet the others; DeviceError for GPUs that are not there or that processes share, and where ranks are in
        several boxes that nothing joins."""
        self.driver, self.devices, self.bootstrap = driver, dict(devices), bootstrap
        self.size = len(devices) if bootstrap is None else bootstrap.size
        self._failure: str | None = None
        self._plans: list[GpuPlan | Endpoints] = []
        self._modules: dict[tuple[int, str], Callable[[str], Any]] = {}
        for rank, device in devices.items():
            if not 0 <= device < driver.num_devices:
                raise DeviceError(f"rank {rank} has GPU {device}; this process sees {driver.num_devices}")
        said = self.exchange(self._introduction)
        self.pids: dict[int, int] = {rank: one["pid"] for one in said for rank in one["ranks"]}
        self.hosts: dict[int, str] = {rank: one["machine"] for one in said for rank in one["ranks"]}
        box_of = {rank: one["box"] for one in said for rank in one["ranks"]}
        self.boxes = Boxes.of([box_of[rank] for rank in range(self.size)])
        _require_apart(said)
        for device in set(devices.values()):
            for peer in set(devices.values()):
                driver.let_access(device, peer)
        self.between = self._reach_other_boxes(said)

    @classmethod
    def loopback(cls, driver: Driver, num_ranks: int, device: int = 0) -> "GpuJob":
        """All ranks on one GPU: one launch runs them."""
        return cls(driver, dict.fromkeys(range(num_ranks), device))

    @classmethod
    def one_process(cls, driver: Driver, num_ranks: int) -> "GpuJob":
        """A GPU for each rank, all in this process."""
        if num_ranks > driver.num_devices:
            raise DeviceError(f"{num_ranks} ranks need as many GPUs; this process sees {driver.num_devices}")
        return cls(driver, {rank: rank for rank in range(num_ranks)})

    @classmethod
    def one_each(cls, driver: Driver, bootstrap: Bootstrap) -> "GpuJob":
        """A process a rank, each with the GPU of its number on its machine (or the only one that it sees)."""
        device = 0 if driver.num_devices == 1 else bootstrap.local_rank
        return cls(driver, {bootstrap.rank: device}, bootstrap)

    def prepare(
        self,
        bound: BoundPlan,
        dtype_name: str = "float32",
        op_name: str = "sum",
        threads: int | None = None,
        blocks_per_channel: int = 1,
        transport: str = KERNEL,
    ) -> GpuPlan:
        """Get a plan ready: memory, tables, the kernel. All processes must prepare the same plan.

        Raises InputError for a plan of other ranks, DeviceError where ranks disagree, a peer cannot be reached, or the
        GPU cannot hold all blocks at once.
        """
        self.check()
        self.exchange(lambda: self._request(bound, dtype_name, op_name))
        plan = GpuPlan(self, bound, dtype_name, op_name, threads, blocks_per_channel, transport)
        self._plans.append(plan)
        return plan

    def endpoints(self, num_bytes: int, num_flags: int = 64) -> Endpoints:
        """Memory and flags between all ranks, for kernels of one's own."""
        self.check()
        if self.between is not None:
            raise DeviceError(f"endpoints reach ranks of one box; those of this job are in {self.boxes.count}")
        made = Endpoints(self, num_bytes, num_flags)
        self._plans.append(made)
        return made

    def reach_all(
        self, size_of: Callable[[int], int], own: dict[int, int], opened: list[tuple[int, int]]
    ) -> dict[int, list[int]]:
        """Allocate for the ranks of this process, and find where each of its devices reaches the memory of every rank
        of its box (0 for others).

        `own` receives the address by rank, `opened` what must be closed, whatever happens in between.
        """
        driver = self.driver

        def allocate() -> dict[str, Any]:
            handles = {}
            for rank, device in self.devices.items():
                own[rank] = driver.allocate(device, size_of(rank))
                if self.bootstrap is not None:
                    handles[rank] = driver.export(device, own[rank]).hex()
            return {"handles": handles}

        handles: dict[int, str] = {}
        for answer in self.exchange(allocate):
            handles |= {int(rank): handle for rank, handle in answer["handles"].items()}
        bases = {device: [0] * self.size for device in self.devices.values()}

        def reach() -> dict[str, Any]:
            for device, of_device in bases.items():
                for rank in sorted(self.boxes.near(min(own))):
                    if rank in own:
                        of_device[rank] = own[rank]
                    else:
                        of_device[rank] = driver.open(device, bytes.fromhex(handles[rank]))
                        opened.append((device, of_device[rank]))
            return {}

        self.exchange(reach)
        return bases

    @property
    def is_loopback(self) -> bool:
        """Whether several ranks share a GPU."""
        return len(set(self.devices.values())) < len(self.devices)

    @property
    def has_one_box(self) -> bool:
        """Whether all ranks reach each other's memory; if not, channels have one block and no copy engine."""
        return self.between is None

    def fits(self, plan: Plan, threads: int, blocks_per_channel: int) -> bool:
        """Whether every GPU holds all blocks of its ranks at once, in all processes."""

        def look() -> dict[str, Any]:
            fit = True
            for device in set(self.devices.values()):
                ranks = [rank for rank, of_rank in self.devices.items() if of_rank == device]
                blocks = sum(len(plan.channels_of(rank)) for rank in ranks) * blocks_per_channel
                fit &= blocks <= self.driver.resident_blocks(device, self.module(device)(ENTRY), threads)
            return {"fit": fit}

        return all(answer["fit"] for answer in self.exchange(look))

    def release(self, plan: GpuPlan | Endpoints) -> None:
        """Give a plan's memory back; every process must release its plans in the same order."""
        plan.close_peers()
        self.barrier()
        plan.free()
        self._plans.remove(plan)

    def module(self, device: int) -> Callable[[str], Any]:
        """The kernels of the executor on a device, compiled at first use."""
        from collsyn.cuda.sources import KERNEL, device_sources

        return self.module_of(device, device_sources()[KERNEL], KERNEL)

    def module_of(self, device: int, source: str, name: str = "kernel.cu") -> Callable[[str], Any]:
        """Kernels of a source that may include `collsyn.cuh`; what gives the kernel of each entry's name."""
        if (device, source) not in self._modules:
            self._modules[device, source] = self.driver.load(device, source, name)
        return self._modules[device, source]

    def exchange(self, work: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
        """What `work` returned in every process; where it failed in any, all raise."""
        failure: CollsynError | None = None
        try:
            mine = work()
        except CollsynError as error:
            mine, failure = {"error": str(error)}, error
        answers = [mine]
        if self.bootstrap is not None:
            answers = [json.loads(text) for text in self.bootstrap.allgather(json.dumps(mine).encode())]
        failed = [rank for rank, answer in enumerate(answers) if "error" in answer]
        if failure is not None:
            raise failure
        if failed:
            self._failure = f"rank {failed[0]} failed: {answers[failed[0]]['error']}"
            raise PeerFailed(self._failure)
        return answers

    def barrier(self) -> None:
        """Return when all processes have called it."""
        self.check()
        if self.bootstrap is not None:
            self.bootstrap.barrier()

    def check(self) -> None:
        """Raise if the job has ended."""
        if self._failure is not None:
            raise DeviceError(f"the job has ended: {self._failure}")

    def fail(self, message: str) -> None:
        """Let nothing more be run: flags are of no use after a failure."""
        if self._failure is None:
            self._failure = message
            if self.between is not None:
                self.between.tell(message)

    def wait(self, plan: GpuPlan | Endpoints, streams: Mapping[int, Any], limit_s: float) -> None:
        """Return when streams are done. Kernels give up after their limit by themselves; what this adds is to end them
        when the process of a peer is lost, and to say so. Raises DeviceError."""
        begin = looked = time.monotonic()
        pending = list(streams.values())
        lost: str | None = None
        while pending := [stream for stream in pending if not stream.is_done()]:
            now = time.monotonic()
            if now - looked > _LOOK_AFTER_S:
                looked = now
                if lost is None and (found := self._trouble()) is not None:
                    rank, lost = found
                    self.fail(lost)
                    plan.abort(rank)
            if now - begin > limit_s and lost is None and (late := plan.give_up()) is not None:
                lost = late
                self.fail(late)
            if now - begin > limit_s + 2 * DEFAULT_LIMIT_S:
                self.fail("a kernel does not end")
                raise DeviceError("a kernel did not give up within its limit; the GPU may have failed (see dmesg)")
            time.sleep(_LOOK_S)
        if lost is not None:
            raise PeerFailed(lost) if "was lost" in lost or " failed: " in lost else DeviceError(lost)

    def close(self) -> None:
        """Give all memory back; no process may be running a plan any more."""
        for plan in self._plans:
            plan.close_peers()
        if self.bootstrap is not None and self._failure is None:
            # Owners must not free what others still map.
            self.bootstrap.barrier()
        if self.between is not None:
            # Before memory goes that is still named.
            self.between.close(in_order=self._failure is None)
        for plan in self._plans:
            plan.free()
        self._plans = []

    def __enter__(self) -> "GpuJob":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(str(error) or type(error).__name__)
        self.close()

    def _introduction(self) -> dict[str, Any]:
        uuids = {device: self.driver.facts(device).uuid for device in set(self.devices.values())}
        machine = machine_name()
        return {
            "pid": os.getpid(),
            "machine": machine,
            "box": machine if self.bootstrap is None else box_name(self.bootstrap.rank, machine),
            "number": context_numbers.next(),
            "ranks": sorted(self.devices),
            "gpus": [[rank, uuids[device]] for rank, device in sorted(self.devices.items())],
        }

    def _request(self, bound: BoundPlan, dtype_name: str, op_name: str) -> dict[str, Any]:
        checked_op(op_name)
        plan = bound.plan
        if plan.num_ranks != self.size:
            raise InputError(f"plan {plan.name}: is for {plan.num_ranks} ranks; this job has {self.size}")
        self.boxes.check_against(plan)
        if bound.element_bytes != dtype_of(dtype_name).num_bytes:
            raise InputError(
                f"plan {plan.name}: is bound for elements of {bound.element_bytes} bytes, not for {dtype_name}"
            )
        mine = f"{plan.name} of {bound.num_elements} {dtype_name} elements, {op_name} (hash {fingerprint(bound)})"
        if self.bootstrap is not None:
            same_answer([text.decode() for text in self.bootstrap.allgather(mine.encode())], "the plan to prepare")
        return {}

    def _reach_other_boxes(self, said: list[dict[str, Any]]) -> Between | None:
        """The way to them, of a job that has some."""
        if self.bootstrap is None or self.boxes.count == 1:
            return None
        bootstrap, (device,) = self.bootstrap, self.devices.values()
        made: list[Between] = []

        def meet() -> dict[str, Any]:
            made.append(Between(self.boxes, bootstrap, self.driver, device, said))
            return {}

        self.exchange(meet)
        made[0].start()
        return made[0]

    def _trouble(self) -> tuple[int, str] | None:
        """The rank for which this process must give up, and why; None where all is well."""
        if (rank := self._lost()) is not None:
            return rank, f"{self.boxes.words(rank)} (process {self.pids[rank]}) was lost"
        return None if self.between is None else self.between.trouble()

    def _lost(self) -> int | None:
        here = machine_name()
        for rank, pid in self.pids.items():
            if rank not in self.devices and self.hosts[rank] == here and not _is_alive(pid):
                return rank
        return None


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but is not yet reaped does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _require_apart(said: list[dict[str, Any]]) -> None:
    """Raise DeviceError where processes share a GPU."""
    if len(said) == 1:
        return
    owners: dict[str, int] = {}
    for one in said:
        for rank, uuid in one["gpus"]:
            if uuid in owners:
                raise DeviceError(
                    f"ranks {owners[uuid]} and {rank} have the same GPU in processes of their own, which take turns on "
                    "it; start as many ranks as there are GPUs, or use --loopback"
                )
            owners[uuid] = rank
