"""Measures GPUs: what messages between two of them cost by kernels and by copy engines, alone and together."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from collsyn import __version__
from collsyn.cuda.driver import Driver
from collsyn.cuda.facts import gpu_facts
from collsyn.cuda.job import GpuJob
from collsyn.cuda.prepared import GpuPlan
from collsyn.errors import VerificationError
from collsyn.model.bind import bind
from collsyn.model.plan import Buffer, Plan
from collsyn.model.profile import Profile
from collsyn.profiling.design import crossings, fans, kinds
from collsyn.profiling.fit import fit_line
from collsyn.profiling.host import Effort, fit_profile, with_sharing
from collsyn.profiling.measure import LOAD, MESSAGE, REDUCE, STREAM, pattern
from collsyn.profiling.plans import all_at_once, flag_ping_pong, ping_pong, reduce_all_at_once, stream, streams
from collsyn.profiling.sharing import SLOWED, Pair
from collsyn.profiling.together import Cost
from collsyn.runtime.bootstrap import Bootstrap
from collsyn.runtime.launch import launch
from collsyn.runtime.worker import report

QUICK = Effort(
    sizes=(8, 4 << 10, 64 << 10, 1 << 20, 16 << 20),
    load_sizes=(8, 64 << 10, 1 << 20, 16 << 20),
    reduce_sizes=(64 << 10, 1 << 20, 16 << 20),
    repeats=5,
    runs_per_rank=4,
)
THOROUGH = Effort(
    sizes=(8, 256, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20),
    load_sizes=(8, 4 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20),
    reduce_sizes=(64 << 10, 512 << 10, 4 << 20, 32 << 20),
    repeats=11,
    runs_per_rank=12,
)
LIMIT_S = 1200.0
# Blocks that share a message where it is long: one alone does not fill a link.
_BLOCKS, _LONG_BYTES = 16, 64 << 10
# Bytes of one repeat, in rounds of a message each.
_REPEAT_BYTES, _MAX_ROUNDS, _MIN_ROUNDS = 64 << 20, 50, 4
_TOGETHER_BYTES = 32 << 20

Times = list[list[Any]]


def profile_gpu(
    driver: Driver | None,
    num_ranks: int,
    effort: Effort = THOROUGH,
    launcher: str | None = None,
    loopback: bool = False,
    seed: int = 0,
    name: str = "gpus",
    on_progress: Callable[[float], None] | None = None,
) -> Profile:
    """Measure every ordered pair of `num_ranks` GPUs: in this process with a driver, else in processes of a launcher.

    With `loopback` all ranks are on one GPU, and what is measured is that GPU's own memory. Bytes are verified before
    anything is timed. Raises DeviceError, and VerificationError where bytes arrive changed. The profile's `method` has
    the rate of copy engines for each pair beside it.
    """
    arguments: dict[str, Any] = {
        "sizes": list(effort.sizes),
        "load_sizes": list(effort.load_sizes),
        "reduce_sizes": list(effort.reduce_sizes),
        "repeats": effort.repeats,
        "runs_per_rank": 0 if loopback else effort.runs_per_rank,
        "seed": seed,
    }
    told = on_progress or (lambda share: None)
    if driver is not None:
        make = GpuJob.loopback if loopback else GpuJob.one_process
        with make(driver, num_ranks) as job:
            found = [measure_in(job, told, **arguments)]
    else:
        found = launch(
            "collsyn.profiling.gpu:measure",
            arguments,
            num_ranks,
            launcher or "auto",
            LIMIT_S,
            lambda rank, share: told(float(share)),
        )
    method = {
        "tool": f"collsyn {__version__}",
        "timed": "put and flag, answered by a flag, between events",
        "executor": "cuda",
        **({"loopback": True} if loopback else {}),
        **arguments,
        "copy_engine_gb_s": sorted(rate for one in found for rate in one["copies"]),
    }
    profile = fit_profile(
        [one["times"] for one in found], num_ranks, name, seed, method, found[0]["facts"], backend="cuda"
    )
    together = _joined(found)
    return profile if together is None else with_sharing(profile, together)


def measure(bootstrap: Bootstrap, **arguments: Any) -> dict[str, Any]:
    """What `measure_in` found, this process being one rank with a GPU."""
    from collsyn.cuda.cupy_driver import CupyDriver

    def told(share: float) -> None:
        if bootstrap.rank == 0:
            report(share)

    with GpuJob.one_each(CupyDriver(), bootstrap) as job:
        return measure_in(job, told, **arguments)


def measure_in(
    job: GpuJob,
    told: Callable[[float], None],
    sizes: Sequence[int],
    load_sizes: Sequence[int],
    reduce_sizes: Sequence[int],
    repeats: int,
    runs_per_rank: int,
    seed: int,
) -> dict[str, Any]:
    """Times of the ranks of this process, as `profiling.measure.measure` has them, rates of their copy engines, and
    what of the joint runs was seen here."""
    bench = _Bench(job, repeats)
    n = job.size
    pairs = [(src, dst) for src in range(n) for dst in range(n) if src != dst]
    rng = np.random.default_rng(seed)
    work: list[tuple[str, Pair, int]] = [(MESSAGE, pair, size) for pair in pairs for size in sizes]
    work += [(STREAM, pair, sizes[0]) for pair in pairs]
    work += [(LOAD, (-1, -1), size) for size in load_sizes] if n > 1 else []
    work += [(REDUCE, (-1, -1), size) for size in reduce_sizes] if n > 1 else []
    times: Times = []
    copies: list[list[Any]] = []
    for done, i in enumerate(rng.permutation(len(work)).tolist()):
        kind, pair, size = work[i]
        times += [[kind, *pair, size, seconds] for seconds in bench.time(kind, pair, size)]
        if kind == MESSAGE and size == max(sizes):
            copies += bench.copy_rate(pair, size)
        told(0.7 * (done + 1) / len(work))
    together = bench.together(pairs, times, runs_per_rank, rng, told) if runs_per_rank and n > 2 else None
    facts = gpu_facts(job.driver, sorted(set(job.devices.values())))
    return {"times": times, "copies": copies, "together": together, "facts": facts}


class _Bench:
    """Plans that are timed between events of the devices of this process."""

    def __init__(self, job: GpuJob, repeats: int) -> None:
        self.job, self.repeats = job, repeats
        self._flags: dict[Pair, list[float]] = {}

    def time(self, kind: str, pair: Pair, size: int) -> list[list[float]]:
        """Seconds of a message (a round, a pass) in each repeat: a list where this process's clock is the one to read
        (the source's; all ranks' where all take part), else none."""
        n = self.job.size
        if kind == LOAD:
            rounds = _rounds(size * n)
            return self._all_ranks(all_at_once(n, rounds), size * n, 1, rounds, lambda plan: _expect_load(plan, size))
        if kind == REDUCE:
            return self._all_ranks(reduce_all_at_once(n), size * n // 4, 4, 1, _expect_sums)
        rounds = _MAX_ROUNDS if kind == STREAM else _rounds(size)
        make = stream if kind == STREAM else ping_pong
        seconds = self._seconds(make(n, [pair], rounds), size, 1, pair[0], lambda plan: _expect(plan, pair))
        flags = self._flag_times(pair)
        if seconds is None or flags is None:
            return []
        # A message's round trip ends with a bare flag: half of a round trip of flags is taken off. A stream ends with
        # one flag in all.
        answer_s = median(flags) / 2
        taken = [max(one - answer_s * (rounds if kind == MESSAGE else 1), one / 4) / rounds for one in seconds]
        return [taken]

    def copy_rate(self, pair: Pair, size: int) -> list[list[Any]]:
        """GB/s of the copy engine from a rank to another, where the source is of this process."""
        job, (src, dst) = self.job, pair
        plan = self._prepared(ping_pong(job.size, [pair], 1), size, 1)
        found: list[list[Any]] = []
        job.barrier()
        if src in job.devices:
            device, driver = job.devices[src], job.driver
            strm = plan.streams()[device]
            ends = plan.address(device, dst, Buffer.OUTPUT), plan.address(device, src, Buffer.INPUT)
            rates = []
            for _ in range(self.repeats + 1):
                begin = driver.mark(device, strm)
                for _ in range(_MIN_ROUNDS):
                    driver.copy(device, *ends, size, strm)
                seconds = driver.seconds(begin, driver.mark(device, strm))
                rates.append(_MIN_ROUNDS * size / max(seconds, 1e-12))
            found.append([src, dst, round(median(rates[1:]) * 1e-9, 3)])
        job.barrier()
        job.release(plan)
        return found

    def together(
        self,
        pairs: Sequence[Pair],
        times: Times,
        runs_per_rank: int,
        rng: np.random.Generator,
        told: Callable[[float], None],
    ) -> dict[str, Any]:
        """Runs of several pairs at once: in each the rates of the pairs whose source is here, and which were slowed."""
        costs = self._costs(times)
        chosen = list(fans(self.job.size, pairs, rng))
        chosen += crossings(self.job.size, pairs, [], kinds(costs), rng, runs_per_rank * self.job.size)
        runs = []
        for number, run in enumerate(chosen):
            runs.append(self._joint(run, costs))
            told(0.7 + 0.3 * (number + 1) / len(chosen))
        return {"relays": [], "runs": runs}

    def _joint(self, run: Sequence[Pair], costs: Mapping[Pair, Cost]) -> list[list[Any]]:
        n = self.job.size
        plan = self._prepared(streams(n, run, _MIN_ROUNDS), _TOGETHER_BYTES * n, 1)
        seen: list[list[Any]] = []
        mine = [pair for pair in run if pair[0] in self.job.devices]
        self._calls(plan, 1)
        seconds = self._calls(plan, 1)
        for src, dst in mine:
            # What one rank sends to several others ends with the last of them: all of it took so long.
            rate = _MIN_ROUNDS * _TOGETHER_BYTES / max(seconds[self.job.devices[src]], 1e-12)
            slowed = rate < SLOWED / costs[src, dst].beta_s_per_byte
            seen.append([src, dst, rate, slowed])
        self.job.release(plan)
        return seen

    def _costs(self, times: Times) -> dict[Pair, Cost]:
        lines: dict[Pair, dict[int, list[float]]] = {}
        for kind, src, dst, size, seconds in times:
            if kind == MESSAGE:
                lines.setdefault((src, dst), {})[size] = seconds
        fitted = [[*pair, *_cost(by_size)] for pair, by_size in sorted(lines.items())]
        answers = self.job.exchange(lambda: {"costs": fitted})
        return {(src, dst): Cost(*cost) for answer in answers for src, dst, *cost in answer["costs"]}

    def _all_ranks(
        self, plan: Plan, elements: int, width: int, rounds: int, expect: Callable[[GpuPlan], None]
    ) -> list[list[float]]:
        found = self._seconds(plan, elements, width, min(self.job.devices), expect)
        assert found is not None
        # Ranks of one process have one clock, and the slowest of them counts.
        return [[one / rounds for one in found] for _ in self.job.devices]

    def _flag_times(self, pair: Pair) -> list[float] | None:
        """Seconds of a round trip of flags between a pair."""
        if pair not in self._flags:
            plan = flag_ping_pong(self.job.size, [pair], _MAX_ROUNDS)
            seconds = self._seconds(plan, self.job.size, 1, pair[0], lambda prepared: None)
            self._flags[pair] = [one / _MAX_ROUNDS for one in seconds or []]
        return self._flags[pair] or None

    def _seconds(
        self, plan: Plan, elements: int, width: int, rank: int, expect: Callable[[GpuPlan], None]
    ) -> list[float] | None:
        """Seconds of a call in each repeat by the device of a rank, None where that is not here."""
        prepared = self._prepared(plan, elements, width)
        for own in self.job.devices:
            data = pattern(own, int(prepared.bound.buffer_bytes[own, Buffer.INPUT]))
            prepared.fill(own, Buffer.INPUT, data)
            prepared.fill(own, Buffer.OUTPUT, np.zeros(int(prepared.bound.buffer_bytes[own, Buffer.OUTPUT]), np.uint8))
        self.job.barrier()
        self._calls(prepared, 1)
        expect(prepared)
        found = [self._calls(prepared, 1) for _ in range(self.repeats)]
        self.job.release(prepared)
        if rank not in self.job.devices:
            return None
        return [max(by_device.values()) for by_device in found]

    def _prepared(self, plan: Plan, elements: int, width: int) -> GpuPlan:
        long = elements * width >= _LONG_BYTES
        bound = bind(plan, elements, width)
        return self.job.prepare(
            bound, "uint8" if width == 1 else "float32", "sum", blocks_per_channel=_BLOCKS if long else 1
        )

    def _calls(self, plan: GpuPlan, calls: int) -> dict[int, float]:
        driver, streams = self.job.driver, plan.streams()
        self.job.barrier()
        begin = {device: driver.mark(device, one) for device, one in streams.items()}
        for _ in range(calls):
            plan.enqueue()
        end = {device: driver.mark(device, one) for device, one in streams.items()}
        plan.wait()
        return {device: driver.seconds(begin[device], end[device]) / calls for device in streams}


def _rounds(num_bytes: int) -> int:
    return max(_MIN_ROUNDS, min(_MAX_ROUNDS, _REPEAT_BYTES // max(num_bytes, 1)))


def _cost(by_size: Mapping[int, Sequence[float]]) -> tuple[float, float, float]:
    line = fit_line(by_size, 0)
    return line.alpha_s.value, line.beta_s_per_byte.value, 0.0


def _expect(plan: GpuPlan, pair: Pair) -> None:
    src, dst = pair
    if dst in plan.job.devices:
        _require(plan, dst, plan.fetch(dst, Buffer.OUTPUT), pattern(src, int(plan.bound.buffer_bytes[dst, 1])))


def _expect_load(plan: GpuPlan, size: int) -> None:
    for rank in plan.job.devices:
        found = plan.fetch(rank, Buffer.OUTPUT).reshape(-1, size)
        for src in range(plan.job.size):
            _require(plan, rank, found[src], pattern(src, size))


def _expect_sums(plan: GpuPlan) -> None:
    """Sums must be those of NumPy to the bit, added in the order of the plan."""
    for rank in plan.job.devices:
        found = plan.fetch(rank, Buffer.OUTPUT)
        size = len(found)
        parts = [
            pattern(src, size * plan.job.size)[rank * size : (rank + 1) * size].view(np.float32)
            for src in range(plan.job.size)
        ]
        order = [rank, *((rank + step) % plan.job.size for step in range(1, plan.job.size))]
        total = parts[order[0]].copy()
        with np.errstate(all="ignore"):
            for src in order[1:]:
                total = parts[src] + total
        same = (found.view(np.float32) == total) | (np.isnan(total) & np.isnan(found.view(np.float32)))
        if not same.all():
            raise VerificationError(f"rank {rank} reduced {size} bytes to something else than their sum")


def _require(plan: GpuPlan, rank: int, found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> None:
    if not np.array_equal(found, wanted):
        at = int(np.flatnonzero(found != wanted)[0])
        raise VerificationError(f"{plan.bound.plan.name}: rank {rank} received byte {at} changed")


def _joined(found: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Joint runs with what all processes saw of them."""
    parts = [one["together"] for one in found]
    if parts[0] is None:
        return None
    runs = [
        [seen for of_process in run for seen in of_process] for run in zip(*(p["runs"] for p in parts), strict=True)
    ]
    return {"relays": [], "runs": runs}
