"""What every rank does while a machine is measured: runs small plans in a shuffled order and returns its clock's times.

Only the ranks that a plan names do anything; the others sleep at the next barrier, so that pairs are measured alone.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from collsyn.errors import VerificationError
from collsyn.model.bind import bind
from collsyn.model.fields import Fields
from collsyn.model.plan import Plan
from collsyn.model.topology_file import topology_from_fields
from collsyn.profiling.fit import fit_line, fit_overhead
from collsyn.profiling.plans import (
    all_at_once,
    flag_ping_pong,
    local_reduce,
    ping_pong,
    reduce_all_at_once,
    stream,
)
from collsyn.profiling.sharing import Pair
from collsyn.profiling.together import Cost, Found, measure_together
from collsyn.runtime.bootstrap import Bootstrap
from collsyn.runtime.emulation import Emulation
from collsyn.runtime.host import HostContext, PreparedPlan
from collsyn.runtime.worker import report

# Times of one repeat that are long against a clock reading and a call, short against a slice of the scheduler.
_REPEAT_BYTES = 256 << 10
_MAX_ROUNDS, _FLAG_ROUNDS = 50, 10
# What all ranks do with messages from this length on is timed as programs do it: a call each, several calls in a row.
_CALL_BYTES, _CALLS_BYTES, _MIN_CALLS, _MAX_CALLS = 64 << 10, 32 << 20, 2, 64
# On an emulated machine every message is long.
_EMULATED_ROUNDS, _EMULATED_FLAG_ROUNDS, _EMULATED_STREAM = 3, 1, 20
# Share of the work that pairs alone are, where pairs together follow.
_ALONE = 0.5
# Plans are prepared in waves that need no more memory than this on all ranks together, nor more mappings.
_WAVE_BYTES = 512 << 20
_WAVE_PLANS = 64
REPORT_EVERY_S = 0.2
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

    def rounds(self, is_emulated: bool) -> int:
        """Messages (or round trips) of one repeat."""
        if self.src < 0 and self.size_bytes >= _CALL_BYTES:
            return 1
        most = _MAX_ROUNDS if not is_emulated else _EMULATED_STREAM if self.kind == STREAM else _EMULATED_ROUNDS
        return max(1, min(most, _REPEAT_BYTES // self.size_bytes))

    def calls(self, is_emulated: bool) -> int:
        """Calls of one repeat, in a row."""
        if self.src >= 0 or is_emulated or self.size_bytes < _CALL_BYTES:
            return 1
        return max(_MIN_CALLS, min(_MAX_CALLS, _CALLS_BYTES // self.size_bytes))

    def memory_bytes(self, num_ranks: int) -> int:
        """Bytes that the prepared plan, with all pairs in it, needs on all ranks together, without its flags."""
        buffers = num_ranks if self.src >= 0 else num_ranks * (num_ranks + 1)
        return buffers * self.size_bytes

    def plan_key(self, num_ranks: int) -> tuple[str, int, int]:
        """Tasks with equal keys are parts of one plan, which each pair can run alone."""
        number = matchings(num_ranks)[1][self.src, self.dst] if self.src >= 0 else -1
        return self.kind, self.size_bytes, number

    def takes_part(self, rank: int) -> bool:
        """Whether the rank has anything to do."""
        return self.src < 0 or rank in (self.src, self.dst)


@cache
def matchings(num_ranks: int) -> tuple[list[list[Pair]], dict[Pair, int]]:
    """All ordered pairs in lists in which no rank stands twice, and the number of each pair's list.

    Round robin: one rank stays, the others turn; with an odd number of ranks one has a rest in each list.
    """
    seats = num_ranks + num_ranks % 2
    lists: list[list[Pair]] = []
    for turn in range(seats - 1):
        ring = [seats - 1, *((turn + i) % (seats - 1) for i in range(seats - 1))]
        ends = [(ring[0], ring[1])] + [(ring[1 + i], ring[seats - i]) for i in range(1, seats // 2)]
        met = [(a, b) for a, b in ends if max(a, b) < num_ranks]
        lists += [met, [(b, a) for a, b in met]]
    return lists, {pair: number for number, members in enumerate(lists) for pair in members}


def tasks(num_ranks: int, sizes: Sequence[int], load_sizes: Sequence[int], reduce_sizes: Sequence[int]) -> list[Task]:
    """Everything to time on a machine of that many ranks."""
    pairs = [(src, dst) for src in range(num_ranks) for dst in range(num_ranks) if src != dst]
    found = [Task(MESSAGE, *pair, size) for pair in pairs for size in sizes]
    found += [Task(STREAM, *pair, sizes[0]) for pair in pairs]
    if num_ranks > 1:
        found += [Task(LOAD, -1, -1, size) for size in load_sizes]
    return [*found, *(Task(REDUCE, -1, -1, size) for size in reduce_sizes)]


def waves(everything: Sequence[Task], num_ranks: int, rng: np.random.Generator) -> list[list[Task]]:
    """The tasks, those of a plan together, plans in random order, in parts whose plans fit into memory together."""
    of_plan: dict[tuple[str, int, int], list[Task]] = {}
    for task in everything:
        of_plan.setdefault(task.plan_key(num_ranks), []).append(task)
    plans = list(of_plan.values())
    found: list[list[Task]] = [[]]
    used = number = 0
    for i in rng.permutation(len(plans)).tolist():
        needed = plans[i][0].memory_bytes(num_ranks)
        if found[-1] and (used + needed > _WAVE_BYTES or number == _WAVE_PLANS):
            found.append([])
            used = number = 0
        found[-1] += plans[i]
        used += needed
        number += 1
    return found


def measure(
    bootstrap: Bootstrap,
    sizes: list[int],
    load_sizes: list[int],
    reduce_sizes: list[int],
    repeats: int,
    seed: int,
    emulate: dict[str, Any] | None = None,
    runs_per_rank: int = 0,
) -> dict[str, Any]:
    """Seconds of one message, one way, as this rank saw them, at `times`: [kind, src, dst, bytes, times] (for `load` of
    one round, for `reduce` of one pass, in which ranks reduce so many bytes of each other rank), and at `together` on
    rank 0, if that was asked for, the joint runs.

    The first rank of a pair and, where all take part, every rank returns its times, one a repeat and in the same order.
    Raises VerificationError where bytes arrive changed. The order of tasks and of their repeats is shuffled with
    `seed`, alike on all ranks. `emulate`, {topology: a document, factor}, is a machine to measure in place of this one;
    times are then those of it. With `runs_per_rank` pairs are then measured together, at least where ranks do not
    outnumber cores, or where their cores do not matter.
    """
    rng = np.random.default_rng(seed)
    everything = tasks(bootstrap.size, sizes, load_sizes, reduce_sizes)
    times: dict[Task, list[float]] = {task: [] for task in everything}
    machine = None if emulate is None else topology_from_fields(Fields(emulate["topology"], "emulate"))
    emulation = None if machine is None else Emulation(machine, emulate["factor"] if emulate else 1.0)
    found = None
    with HostContext(bootstrap, own_cores=machine is None) as context:
        is_joint = runs_per_rank > 0 and context.size > 2 and (machine is not None or not context.is_crowded)
        alone = _ALONE if is_joint else 1.0
        progress = _Progress(len(everything) * (repeats + 1), context.rank, alone)
        pairs = _Pairs(context, emulation)
        for wave in waves(everything, context.size, rng):
            _measure_wave(context, wave, repeats, rng, times, progress, pairs)
        pairs.close()
        mine = {task: seconds for task, seconds in times.items() if task.src in (-1, bootstrap.rank)}
        if machine is not None:
            mine = {task: [pairs.corrected(task, one) for one in _timely(raw)] for task, raw in mine.items()}
        if is_joint:
            costs = _exchanged_costs(bootstrap, mine, seed)
            found = measure_together(context, costs, machine, runs_per_rank, seed, progress.rest)
    return {
        "times": [[task.kind, task.src, task.dst, task.size_bytes, seconds] for task, seconds in mine.items()],
        "together": None if found is None or bootstrap.rank else _document(found),
    }


def _timely(seconds: list[float]) -> list[float]:
    """The quickest third of repeats: an emulated machine is always the same, and who is late is late because of this
    one."""
    return sorted(seconds)[: (len(seconds) + 2) // 3]


def _exchanged_costs(bootstrap: Bootstrap, mine: Mapping[Task, list[float]], seed: int) -> dict[Pair, Cost]:
    """What each pair's messages cost when alone, on every rank."""
    own: dict[Pair, dict[str, dict[int, list[float]]]] = {}
    for task, seconds in mine.items():
        if task.src >= 0:
            own.setdefault((task.src, task.dst), {}).setdefault(task.kind, {})[task.size_bytes] = seconds
    fitted = []
    for (src, dst), kinds in own.items():
        line = fit_line(kinds[MESSAGE], seed)
        ((size, stream_s),) = kinds[STREAM].items()
        overhead = fit_overhead(stream_s, size, line, seed)
        fitted.append([src, dst, line.alpha_s.value, line.beta_s_per_byte.value, overhead.value])
    answers = [json.loads(text) for text in bootstrap.allgather(json.dumps(fitted).encode())]
    return {(src, dst): Cost(*costs) for answer in answers for src, dst, *costs in answer}


def _document(found: Found) -> dict[str, Any]:
    runs = [
        [[src, dst, rate, (src, dst) in run.slowed] for (src, dst), rate in sorted(run.rates.items())]
        for run in found.runs
    ]
    return {"relays": [[*pair, via] for pair, via in found.relays.items()], "runs": runs}


def _measure_wave(
    context: HostContext,
    wave: Sequence[Task],
    repeats: int,
    rng: np.random.Generator,
    times: Mapping[Task, list[float]],
    progress: "_Progress",
    pairs: "_Pairs",
) -> None:
    plans = {task.plan_key(context.size): task for task in wave}
    prepared = {key: _Prepared(pairs, task) for key, task in plans.items()}
    for one in prepared.values():
        one.verify()
    progress.step(len(wave))
    # What a stream takes on an emulated machine is many messages' time.
    few = {STREAM: 1} if pairs.emulation is not None else {}
    steps = [task for task in wave for _ in range(few.get(task.kind, repeats))]
    for i in rng.permutation(len(steps)).tolist():
        task = steps[i]
        context.barrier()
        if task.takes_part(context.rank):
            times[task].append(prepared[task.plan_key(context.size)].seconds(task))
        progress.step(1)
    context.barrier()
    for one in prepared.values():
        one.close()


class _Pairs:
    """What all tasks of a pair share: plans that wake ranks up, and that time bare flags; made when first needed."""

    def __init__(self, context: HostContext, emulation: Emulation | None) -> None:
        self.context, self.emulation = context, emulation
        self.flag_rounds = _EMULATED_FLAG_ROUNDS if emulation is not None else _FLAG_ROUNDS
        self.answer_s: dict[Pair, float] = {}
        self._plans: dict[tuple[int, int], PreparedPlan] = {}

    def prepare(self, plan: Plan, elements: int) -> PreparedPlan:
        """Get a plan of bytes ready."""
        return self.context.prepare(bind(plan, elements, 1), "uint8", "sum", emulation=self.emulation)

    def flags(self, matching: int, rounds: int) -> PreparedPlan:
        """Rounds of bare flags of each pair of a matching, or of all ranks at once (-1)."""
        if (matching, rounds) not in self._plans:
            n = self.context.size
            plan = flag_ping_pong(n, matchings(n)[0][matching], rounds) if matching >= 0 else all_at_once(n, 1)
            self._plans[matching, rounds] = self.prepare(plan, n)
        return self._plans[matching, rounds]

    def time_flags(self, task: Task, flags: PreparedPlan | None) -> None:
        """Time half a round trip of flags of a task's pair.

        On an emulated machine it takes long and is always the same, apart from processes that wake up late: the
        quickest one counts, and it is timed with short messages only.
        """
        pair, known = (task.src, task.dst), self.answer_s
        is_emulated = self.emulation is not None
        if flags is None or (is_emulated and pair in known and (task.kind, task.size_bytes) != (MESSAGE, 1)):
            return
        now = _seconds(flags) / self.flag_rounds / 2
        known[pair] = min(known.get(pair, now), now) if is_emulated else now

    def corrected(self, task: Task, round_s: float) -> float:
        """Seconds as `measure` returns them.

        A message's round trip ends with a bare flag; half a round trip of flags, timed just before (ranks may move from
        core to core), is taken off. A stream ends with one, too, when its last message has arrived.
        """
        answer_s = self.answer_s[task.src, task.dst] if task.src >= 0 else 0.0
        answer_s *= 2 / task.rounds(self.emulation is not None) if task.kind == STREAM else 1
        # Noise may make an answer seem longer than what it was part of.
        factor = self.emulation.factor if self.emulation else 1.0
        return max(round_s - answer_s, round_s / 4) / factor

    def close(self) -> None:
        """Give the memory back."""
        for plan in self._plans.values():
            plan.close()


class _Prepared:
    """The plan of some tasks, one that wakes their ranks up just before, and for pairs one that times bare flags."""

    def __init__(self, pairs: _Pairs, task: Task) -> None:
        self.context, self._pairs, self._kind = pairs.context, pairs, task.kind
        n, size = self.context.size, task.size_bytes
        self._matching = task.plan_key(n)[2]
        self._size, self._rounds = size, task.rounds(pairs.emulation is not None)
        self._is_exchange = pairs.emulation is None and n > 1
        if task.kind == REDUCE:
            plan, length = (reduce_all_at_once(n), size * n) if self._is_exchange else (local_reduce(n), size)
            bound = bind(plan, length // _REDUCE_BYTES, _REDUCE_BYTES)
            self._plan = self.context.prepare(bound, _REDUCE_TYPE, "sum", emulation=pairs.emulation)
        elif task.kind == LOAD:
            self._plan = pairs.prepare(all_at_once(n, self._rounds), size * n)
        else:
            make = ping_pong if task.kind == MESSAGE else stream
            self._plan = pairs.prepare(make(n, matchings(n)[0][self._matching], self._rounds), size)
        self._wake = pairs.flags(self._matching, 2) if pairs.emulation is None else None
        self._flags = pairs.flags(self._matching, pairs.flag_rounds) if task.src >= 0 else None

    def verify(self) -> None:
        """Run once with data, all pairs at once, which also warms caches up; raises VerificationError."""
        rank, n = self.context.rank, self.context.size
        self._plan.input[...] = pattern(rank, len(self._plan.input))
        self._plan.output[...] = 0
        self.context.barrier()
        self._plan.run()
        if self._matching >= 0:
            src = next((src for src, dst in matchings(n)[0][self._matching] if dst == rank), None)
            if src is not None:
                self._expect(src, self._plan.output)
        elif self._kind == LOAD:
            for src in range(n):
                part = self._plan.output[src * self._size : (src + 1) * self._size]
                self._expect(src, part)
        elif not np.array_equal(self._plan.output, self._sums()):
            raise VerificationError(f"rank {rank} reduced {self._size} bytes to something else than their sum")

    def _sums(self) -> np.ndarray[Any, np.dtype[Any]]:
        """What a reduction must leave; all numbers are small."""
        if not self._is_exchange:
            return self._plan.input
        length, rank = len(self._plan.input), self.context.rank
        part = slice(rank * len(self._plan.output), (rank + 1) * len(self._plan.output))
        parts = [pattern(src, length)[part].astype(np.float32) for src in range(self.context.size)]
        return np.asarray(np.sum(parts, axis=0, dtype=np.float32))

    def _expect(self, src: int, received: np.ndarray[Any, np.dtype[Any]]) -> None:
        wrong = np.flatnonzero(received != pattern(src, len(received)))
        if len(wrong):
            raise VerificationError(
                f"{self._size} bytes from rank {src} to rank {self.context.rank} arrived changed "
                f"({len(wrong)} of them, the first at {int(wrong[0])}); nothing was timed"
            )

    def seconds(self, task: Task) -> float:
        """Seconds of one repeat on this rank's clock: of a round trip of a message, else as `measure` returns them."""
        if self._wake is not None:
            # As a call of several in a row finds the caches; what ran before this task had other data.
            self._plan.run()
            self._wake.run()
        self._pairs.time_flags(task, self._flags)
        calls = task.calls(self._pairs.emulation is not None)
        round_s = _seconds(self._plan, calls) / (calls if task.kind == REDUCE else calls * self._rounds)
        if self._pairs.emulation is None:
            return self._pairs.corrected(task, round_s)
        if task.kind == MESSAGE:
            # A bare flag takes no longer than a message.
            self._pairs.answer_s[task.src, task.dst] = min(self._pairs.answer_s[task.src, task.dst], round_s / 2)
        return round_s

    def close(self) -> None:
        """Give the memory back."""
        self._plan.close()


def _seconds(plan: PreparedPlan, calls: int = 1) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        plan.run()
    return time.perf_counter() - begin


class _Progress:
    """Tells whoever launched the ranks how far they are, a few times a second."""

    def __init__(self, total: int, rank: int, alone: float) -> None:
        self._done, self._total, self._is_speaker, self._alone = 0, total, rank == 0, alone
        self._next = time.monotonic()

    def step(self, number: int) -> None:
        """So many more steps are done."""
        self._done += number
        self._tell(self._alone * self._done / self._total)

    def rest(self, share: float) -> None:
        """Of what comes after all steps a share is done."""
        self._tell(self._alone + (1 - self._alone) * share)

    def _tell(self, share: float) -> None:
        if self._is_speaker and time.monotonic() >= self._next:
            self._next = time.monotonic() + REPORT_EVERY_S
            report(share)


def pattern(rank: int, length: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes that tell a rank's data from another's, and a place from its neighbours."""
    place = np.arange(length, dtype=np.uint32)
    return ((place * np.uint32(2654435761) >> np.uint32(13)) + np.uint32(rank * 37 + 1)).astype(np.uint8)
