"""Pairs measured together: what every rank does to find out which pairs share links."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collsyn.model.bind import bind
from collsyn.model.topology import Topology
from collsyn.profiling.design import crossings, fans, kinds, relay_ways
from collsyn.profiling.plans import announcement, one_sided
from collsyn.profiling.sharing import SLOWED, Pair, Run
from collsyn.runtime.emulation import Emulation
from collsyn.runtime.host import HostContext, PreparedPlan

# Real seconds of a message, long against the lateness of a sleeping process.
_MESSAGE_S = 6e-3
_MOST_BYTES = 4 << 20
# Pairs are timed from their first message to the one with which each has had so many, and go on for one more.
_MESSAGES = 4
# How often a pair is run together with a leg of a way; mostly both must be slowed.
_TRIALS = 3
# Those who fetch wait for each message's latency: messages must then be long enough to fill a link together.
_GET_ALPHAS, _GET_FANS = 1.0, 4.0


@dataclass(frozen=True)
class Cost:
    """What a pair's messages cost when alone."""

    alpha_s: float
    beta_s_per_byte: float
    overhead_s: float


@dataclass(frozen=True)
class Found:
    """What the joint runs of a job showed; a relayed pair's messages pass through the rank that stands beside it."""

    relays: Mapping[Pair, int]
    runs: tuple[Run, ...]


def measure_together(
    context: HostContext,
    costs: Mapping[Pair, Cost],
    machine: Topology | None,
    runs_per_rank: int,
    seed: int,
    on_share: Callable[[float], None],
) -> Found:
    """Run pairs at once and see who slows whom; every rank calls it with equal arguments and gets the same result.

    First those pairs that could be relayed by a third rank, with each leg of that way; then each rank's pairs, out
    and in; then many runs in which each rank sends to one other at most (see `design`). `machine` is emulated.
    """
    n, rng = context.size, np.random.default_rng(seed)
    bench = _Bench(context, costs, machine)
    suspects = relay_ways(costs)
    legs = [((src, dst), leg) for src, via, dst in suspects for leg in ((src, via), (via, dst))]
    seen = bench.run_all(legs * _TRIALS, lambda share: on_share(0.1 * share))
    slowed = [sum(run.slowed == {*both} for run in seen[i :: len(legs)]) > _TRIALS / 2 for i, both in enumerate(legs)]
    relays = {(src, dst): via for i, (src, via, dst) in enumerate(suspects) if slowed[2 * i] and slowed[2 * i + 1]}
    pairs = [pair for pair in sorted(costs) if pair not in relays]
    runs = bench.run_all(fans(n, pairs, rng), lambda share: on_share(0.1 + 0.3 * share))
    sharing = sorted({pair for run in runs for pair in run.slowed})
    others = sorted({*pairs} - {*sharing})
    if sharing:
        design = crossings(n, sharing, others, kinds(costs), rng, runs_per_rank * n)
        runs += bench.run_all(list(design), lambda share: on_share(0.4 + 0.6 * share))
    bench.close()
    return Found(relays, tuple(runs))


class _Bench:
    """Prepared plans of single messages of all pairs, from which any run can be put together."""

    def __init__(self, context: HostContext, costs: Mapping[Pair, Cost], machine: Topology | None) -> None:
        self._context, self._costs = context, costs
        n = context.size
        latencies, overheads = ([getattr(cost, name) for cost in costs.values()] for name in ("alpha_s", "overhead_s"))
        self._message_s = max(1e-9, 4 * max(overheads), *latencies)
        if machine is None:
            self._message_s = _MESSAGE_S
        self._factor = _MESSAGE_S / self._message_s if machine is not None else 1.0
        emulation = None if machine is None else Emulation(machine, self._factor)
        patience = max(_GET_ALPHAS, _GET_FANS / max(n - 1, 1))
        self._bytes: dict[bool, dict[Pair, int]] = {False: {}, True: {}}
        for pair, cost in costs.items():
            for gets, message_s in ((False, self._message_s), (True, max(self._message_s, patience * cost.alpha_s))):
                self._bytes[gets][pair] = int(np.clip(message_s / cost.beta_s_per_byte, 1, _MOST_BYTES))
        self._plans: dict[tuple[bool, int], PreparedPlan] = {}
        for gets in (False, True):
            for step in range(1, n):
                plan, size = one_sided(n, step, self._bytes[gets], gets)
                self._plans[gets, step] = context.prepare(bind(plan, size, 1), "uint8", "sum", emulation=emulation)
        self._counts = context.prepare(bind(announcement(n), n, 1), "uint8", "sum")

    def run_all(self, runs: Sequence[Sequence[Pair]], on_share: Callable[[float], None]) -> list[Run]:
        """Make joint runs one after the other; what all ranks saw."""
        mine = []
        for number, pairs in enumerate(runs):
            mine.append(self._run(pairs))
            on_share((number + 1) / len(runs))
        answers = [json.loads(text) for text in self._context.bootstrap.allgather(json.dumps(mine).encode())]
        found = []
        for number in range(len(runs)):
            seen = [answer[number] for answer in answers if answer[number] is not None]
            rates = {(src, dst): rate for src, dst, rate, _ in seen}
            found.append(Run(rates, frozenset((src, dst) for src, dst, _, slowed in seen if slowed)))
        return found

    def _run(self, pairs: Sequence[Pair]) -> tuple[int, int, float, bool] | None:
        """This rank's part: source, destination, bytes per second while all were at it, whether others slowed it."""
        rank, n = self._context.rank, self._context.size
        movers: dict[int, tuple[Pair, bool]] = {}
        for one in pairs:
            # What one rank sends beyond its first message is fetched.
            gets = one[0] in movers
            movers[one[gets]] = one, gets
        # Not before everyone has left the run before.
        self._context.barrier()
        self._announce(0)
        self._context.barrier()
        if rank not in movers:
            return None
        pair, gets = movers[rank]
        src, dst = pair
        plan, others = self._plans[gets, (dst - src) % n], [mover for mover in movers if mover != rank]
        times: list[float] = []
        timed = 0
        while len(times) <= _MESSAGES or (self._counts.output[others] <= _MESSAGES).any():
            plan.run()
            times.append(time.perf_counter())
            if not timed and len(times) >= _MESSAGES and (self._counts.output[others] >= _MESSAGES).all():
                timed = len(times)
            self._announce(len(times))
        timed = timed or len(times)
        period_s = (times[timed - 1] - times[0]) / (timed - 1) / self._factor
        cost, size = self._costs[pair], self._bytes[gets][pair]
        pause_s = max(cost.alpha_s, cost.overhead_s) if gets else cost.overhead_s
        slowed = size * cost.beta_s_per_byte + pause_s < SLOWED * period_s
        # Overhead keeps links busy as bytes do.
        return src, dst, (size + cost.overhead_s / cost.beta_s_per_byte) / period_s, slowed

    def _announce(self, messages: int) -> None:
        self._counts.input[...] = min(messages, 255)
        self._counts.run()

    def close(self) -> None:
        """Give the memory back."""
        for plan in (*self._plans.values(), self._counts):
            plan.close()
