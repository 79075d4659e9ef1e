"""What every rank does while a machine is measured: runs small plans in a shuffled order and returns its clock's times.

Only the ranks that a plan names do anything; the others sleep at the next barrier, so that pairs are measured alone.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collsyn.errors import VerificationError
from collsyn.model.bind import bind
from collsyn.model.fields import Fields
from collsyn.model.plan import Plan
from collsyn.model.topology_file import topology_from_fields
from collsyn.profiling.plans import all_at_once, flag_ping_pong, local_reduce, ping_pong, stream
from collsyn.runtime.bootstrap import Bootstrap
from collsyn.runtime.emulation import Emulation
from collsyn.runtime.host import HostContext, PreparedPlan
from collsyn.runtime.worker import report

# Times of one repeat that are long against a clock reading and a call, short against a slice of the scheduler.
_REPEAT_BYTES = 256 << 10
_MAX_ROUNDS = 50
# Plans are prepared in waves that need no more memory than this on all ranks together, nor more mappings.
_WAVE_BYTES = 512 << 20
_WAVE_TASKS = 256
REPORT_EVERY_S = 0.2
_FLAG_ROUNDS = 10
# Reductions are timed on this type.
_REDUCE_TYPE, _REDUCE_BYTES = "float32", 4
MESSAGE, STREAM, LOAD, REDUCE = "message", "stream", "load", "reduce"


@dataclass(frozen=True)
class Task:
    """One thing to time: `kind`, the pair (-1 where all ranks take part), and the bytes of a message."""

    kind: str
    src: int
    dst: int
    size_bytes: int

    @property
    def rounds(self) -> int:
        """Messages (or round trips) of one repeat."""
        return max(1, min(_MAX_ROUNDS, _REPEAT_BYTES // self.size_bytes))

    def memory_bytes(self, num_ranks: int) -> int:
        """Bytes that the prepared plan needs on all ranks together, without its flags."""
        buffers = 2 if self.src >= 0 else 2 * num_ranks if self.kind == REDUCE else num_ranks * (num_ranks + 1)
        return buffers * self.size_bytes

    def takes_part(self, rank: int) -> bool:
        """Whether the rank has anything to do."""
        return self.src < 0 or rank in (self.src, self.dst)


def tasks(num_ranks: int, sizes: Sequence[int], load_sizes: Sequence[int], reduce_sizes: Sequence[int]) -> list[Task]:
    """Everything to time on a machine of that many ranks."""
    pairs = [(src, dst) for src in range(num_ranks) for dst in range(num_ranks) if src != dst]
    found = [Task(MESSAGE, *pair, size) for pair in pairs for size in sizes]
    found += [Task(STREAM, *pair, sizes[0]) for pair in pairs]
    if num_ranks > 1:
        found += [Task(LOAD, -1, -1, size) for size in load_sizes]
    return [*found, *(Task(REDUCE, -1, -1, size) for size in reduce_sizes)]


def waves(order: Sequence[Task], num_ranks: int) -> list[list[Task]]:
    """Consecutive tasks whose plans fit into memory together."""
    found: list[list[Task]] = [[]]
    used = 0
    for task in order:
        needed = task.memory_bytes(num_ranks)
        if found[-1] and (used + needed > _WAVE_BYTES or len(found[-1]) == _WAVE_TASKS):
            found.append([])
            used = 0
        found[-1].append(task)
        used += needed
    return found


def measure(
    bootstrap: Bootstrap,
    sizes: list[int],
    load_sizes: list[int],
    reduce_sizes: list[int],
    repeats: int,
    seed: int,
    emulate: dict[str, Any] | None = None,
) -> list[list[Any]]:
    """Seconds of one message, one way, as this rank saw them: [kind, src, dst, bytes, times] (for `load` of one round,
    for `reduce` of one pass).

    The first rank of a pair and, where all take part, every rank returns its times, one a repeat and in the same order.
    Raises VerificationError where bytes arrive changed. The order of tasks and of their repeats is shuffled with
    `seed`, alike on all ranks. `emulate`, {topology: a document, factor}, is a machine to measure in place of this one;
    times are then those of it.
    """
    rng = np.random.default_rng(seed)
    everything = tasks(bootstrap.size, sizes, load_sizes, reduce_sizes)
    order = [everything[i] for i in rng.permutation(len(everything))]
    times: dict[Task, list[float]] = {task: [] for task in order}
    emulation = None
    if emulate is not None:
        emulation = Emulation(topology_from_fields(Fields(emulate["topology"], "emulate")), emulate["factor"])
    with HostContext(bootstrap) as context:
        progress = _Progress(len(order) * (repeats + 1), context.rank)
        for wave in waves(order, context.size):
            _measure_wave(context, wave, repeats, rng, times, progress, emulation)
    mine = [task for task in order if task.src in (-1, bootstrap.rank)]
    return [[task.kind, task.src, task.dst, task.size_bytes, times[task]] for task in mine]


def _measure_wave(
    context: HostContext,
    wave: Sequence[Task],
    repeats: int,
    rng: np.random.Generator,
    times: Mapping[Task, list[float]],
    progress: "_Progress",
    emulation: Emulation | None,
) -> None:
    prepared = {task: _Prepared(context, task, emulation) for task in wave}
    for task in wave:
        prepared[task].verify()
        progress.step()
    steps = [task for task in wave for _ in range(repeats)]
    for i in rng.permutation(len(steps)).tolist():
        task = steps[i]
        context.barrier()
        if task.takes_part(context.rank):
            times[task].append(prepared[task].seconds())
        progress.step()
    context.barrier()
    for plan in prepared.values():
        plan.close()


class _Prepared:
    """A task's plan, one that wakes its ranks up just before, and for a pair one that times bare flags."""

    def __init__(self, context: HostContext, task: Task, emulation: Emulation | None) -> None:
        self.context, self.task, self._emulation = context, task, emulation
        n, pair = context.size, (task.src, task.dst)
        if task.kind == REDUCE:
            bound = bind(local_reduce(n), task.size_bytes // _REDUCE_BYTES, _REDUCE_BYTES)
            self._plan = context.prepare(bound, _REDUCE_TYPE, "sum", emulation=emulation)
        else:
            self._plan = self._prepare(_plan_of(task, n), task.size_bytes * (n if task.kind == LOAD else 1))
        self._wake = self._prepare(all_at_once(n, 1) if task.src < 0 else flag_ping_pong(n, *pair, 2), n)
        self._flags = self._prepare(flag_ping_pong(n, *pair, _FLAG_ROUNDS), n) if task.kind == MESSAGE else None

    def _prepare(self, plan: Plan, elements: int) -> PreparedPlan:
        return self.context.prepare(bind(plan, elements, 1), "uint8", "sum", emulation=self._emulation)

    def verify(self) -> None:
        """Run once with data, which also warms caches up; raises VerificationError."""
        task, rank = self.task, self.context.rank
        self._plan.input[...] = _pattern(rank, len(self._plan.input))
        self._plan.output[...] = 0
        self.context.barrier()
        if not task.takes_part(rank):
            return
        self._plan.run()
        if task.kind in (MESSAGE, STREAM) and rank == task.dst:
            self._expect(task.src, self._plan.output)
        elif task.kind == LOAD:
            for src in range(self.context.size):
                part = self._plan.output[src * task.size_bytes : (src + 1) * task.size_bytes]
                if src != rank:
                    self._expect(src, part)
        elif task.kind == REDUCE and not np.array_equal(self._plan.output, self._plan.input):
            raise VerificationError(f"rank {rank} reduced {task.size_bytes} bytes to something else than their sum")

    def _expect(self, src: int, received: np.ndarray[Any, np.dtype[Any]]) -> None:
        wrong = np.flatnonzero(received != _pattern(src, len(received)))
        if len(wrong):
            raise VerificationError(
                f"{self.task.size_bytes} bytes from rank {src} to rank {self.context.rank} arrived changed "
                f"({len(wrong)} of them, the first at {int(wrong[0])}); nothing was timed"
            )

    def seconds(self) -> float:
        """Seconds of one repeat on this rank's clock, as `measure` returns them.

        A message's round trip ends with a bare flag; half a round trip of flags, timed just before (ranks may move from
        core to core), is taken off.
        """
        self._wake.run()
        answer_s = _seconds(self._flags) / _FLAG_ROUNDS / 2 if self._flags else 0.0
        round_s = _seconds(self._plan) / (1 if self.task.kind == REDUCE else self.task.rounds)
        # Noise may make an answer seem longer than what it was part of.
        return max(round_s - answer_s, round_s / 4) / (self._emulation.factor if self._emulation else 1.0)

    def close(self) -> None:
        """Give the memory back."""
        for plan in (self._plan, self._wake, self._flags):
            if plan is not None:
                plan.close()


def _seconds(plan: PreparedPlan) -> float:
    begin = time.perf_counter()
    plan.run()
    return time.perf_counter() - begin


class _Progress:
    """Tells whoever launched the ranks how far they are, a few times a second."""

    def __init__(self, total: int, rank: int) -> None:
        self._done, self._total, self._is_speaker, self._next = 0, total, rank == 0, time.monotonic()

    def step(self) -> None:
        """One more step is done."""
        self._done += 1
        if self._is_speaker and time.monotonic() >= self._next:
            self._next = time.monotonic() + REPORT_EVERY_S
            report(self._done / self._total)


def _plan_of(task: Task, num_ranks: int) -> Plan:
    if task.kind == LOAD:
        return all_at_once(num_ranks, task.rounds)
    return (ping_pong if task.kind == MESSAGE else stream)(num_ranks, task.src, task.dst, task.rounds)


def _pattern(rank: int, length: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes that tell a rank's data from another's, and a place from its neighbours."""
    place = np.arange(length, dtype=np.uint32)
    return ((place * np.uint32(2654435761) >> np.uint32(13)) + np.uint32(rank * 37 + 1)).astype(np.uint8)
