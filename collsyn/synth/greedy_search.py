"""Search around the greedy matching: chunk counts, rules and seeds, then repair of what made the best runs late."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from collsyn.bounds.bound import fluid_bound
from collsyn.model.arrays import F64
from collsyn.model.collective import Collective
from collsyn.synth import greedy_kernels as kernels
from collsyn.synth.greedy_ladder import CLOSE_ENOUGH, PATIENCE, rising
from collsyn.synth.greedy_machine import MachineModel
from collsyn.synth.greedy_relays import with_relays
from collsyn.synth.problem import Options, Problem

# One pass: this many looks at candidates (some seconds), and no run that would bring more chunks than this.
LOOKS, MOST_DELIVERIES = 100_000_000, 200_000

# This many of the best chunk counts are refined.
REFINED = 3

# Runs of a setting with different seeds, where they take little of the work.
SEEDS = 8

# Repair: bias of a late delivery in copies, what is left of a bias after a run, runs before the aim is changed, and
# aims as the share of the way from the bound to the best finish (None: no limit).
STEP, DECAY, RUNS_PER_AIM = 4.0, 0.9, 12
AIMS, MOST_TURNS = (None, 0.5, 0.8, 0.95, 0.25), 40


@dataclass(frozen=True)
class Setting:
    """What a run of the matching is told: chunks a rank, and what `kernels.Rules` and `MachineModel.machine` take."""

    chunks: int
    near: float = 0.0
    slack: float = 0.0
    by_precedence: bool = False
    overheads: float = 0.0
    fitted: bool = False


@dataclass(frozen=True, eq=False)
class Run:
    """A complete run: its finish, what it was told, and its messages."""

    finish_s: float
    setting: Setting
    collective: Collective
    log: kernels.Log

    def beats(self, other: "Run | None") -> bool:
        """Whether it finishes earlier, or at the same time with fewer messages."""
        if other is None or self.finish_s < other.finish_s * (1 - 1e-9):
            return True
        return self.finish_s <= other.finish_s * (1 + 1e-9) and len(self.log.hop) < len(other.log.hop)


class Search:
    """One search for a schedule that spreads the chunks of a problem."""

    def __init__(self, problem: Problem, options: Options, model: MachineModel) -> None:
        self.problem, self.options, self.model = problem, options, model
        self.looks = 0
        self.serial = 0
        self.best: Run | None = None
        self._tasks: dict[int, tuple[Collective, kernels.Task]] = {}
        self._until_s = None if options.time_limit_s is None else time.monotonic() + options.time_limit_s
        self._bound_s = fluid_bound(problem.collective(1), problem.topology, problem.size_bytes).time_s

    def solve(self) -> Run:
        """The best run found; raises Infeasible where a receiver cannot be reached."""
        best_of: dict[int, Run] = {}
        in_vain = 0
        for chunks in self._ladder():
            if self.best is not None and (self._over(0.5) or in_vain == PATIENCE):
                break
            before = self.best
            for setting in self._first_settings(chunks):
                for run in self._seeds(setting):
                    if run.beats(best_of.get(chunks)):
                        best_of[chunks] = run
            in_vain = in_vain + 1 if self.best is before else 0
        assert self.best is not None
        ranked = sorted(best_of.values(), key=lambda run: run.finish_s)[:REFINED]
        refined = [self._varied(run) for run in ranked]
        self._repair(refined)
        return self.best

    def _ladder(self) -> Iterator[int]:
        """Chunk counts to try."""
        fixed = 1 if self.problem.spec is not None else self.problem.chunks_per_rank
        if fixed is not None:
            return iter([fixed])
        collective, task = self._task(1)
        largest_bytes = float(collective.chunk_bytes(self.problem.size_bytes).max())
        return rising(self.problem, largest_bytes, MOST_DELIVERIES // max(int(task.want.sum()), 1))

    def _first_settings(self, chunks: int) -> list[Setting]:
        """Two settings to compare chunk counts by."""
        overheads = 50.0 if self.model.topology.overhead_s.any() else 0.0
        slack = 1.0 if self.model.unequal else 0.0
        base = Setting(chunks, slack=slack, by_precedence=self.model.unequal, overheads=overheads)
        return [base, replace(base, near=1.0)]

    def _seeds(self, setting: Setting) -> Iterator[Run]:
        """Runs that differ in their seed, more of them where they are cheap."""
        start = self.looks
        for _ in range(SEEDS):
            run = self._run(setting)
            assert run is not None
            yield run
            if self.looks - start > LOOKS // 500 or self._over(0.5):
                break

    def _varied(self, run: Run) -> Run:
        """The best of a run's setting with one rule after the other changed."""
        changes: list[dict[str, float | bool]] = []
        if self.model.has_fitted:
            changes.append({"fitted": True})
        if self.model.topology.overhead_s.any():
            changes += [{"overheads": value} for value in (0.0, 15.0, 150.0)]
        if self.model.unequal:
            changes += [{"slack": 0.0}, {"by_precedence": False}]
        changes += [{"near": value} for value in (0.0, 1.0, 4.0) if value != run.setting.near]
        for change in changes:
            if self._over(0.7):
                break
            for other in self._seeds(replace(run.setting, **change)):  # type: ignore[arg-type]
                if other.beats(run):
                    run = other
        return run

    def _repair(self, runs: list[Run]) -> None:
        """Rerun settings with a bias towards what was late, each time with another aim, until the work is used up."""
        for turn in count():
            for run in runs:
                _, task = self._task(run.setting.chunks)
                bias = np.zeros(task.have.shape)
                for _ in range(RUNS_PER_AIM):
                    if self._over(1.0) or (self._until_s is None and turn == MOST_TURNS):
                        return
                    self._run(run.setting, self._limit_s(AIMS[turn % len(AIMS)]), bias)

    def _limit_s(self, aim: float | None) -> float:
        assert self.best is not None
        return np.inf if aim is None else self._bound_s + aim * (self.best.finish_s - self._bound_s)

    def _over(self, share: float) -> bool:
        """Whether that share of the work is used up, or nothing is left to gain."""
        assert self.best is not None
        if self.best.finish_s <= self._bound_s * CLOSE_ENOUGH or not len(self.best.log.hop):
            return True
        if self._until_s is None:
            return self.looks >= share * LOOKS
        left_s = self._until_s - time.monotonic()
        assert self.options.time_limit_s is not None
        return left_s <= (1 - share) * self.options.time_limit_s

    def _run(self, setting: Setting, limit_s: float = np.inf, bias: F64 | None = None) -> Run | None:
        """One run; None if it missed the limit. With a bias, what was late is blamed in it."""
        collective, task = self._task(setting.chunks)
        machine = self.model.machine(setting.fitted, setting.overheads, float(task.chunk_bytes.mean()))
        shortest_s = float(task.chunk_bytes.min() / machine.rate.max(initial=1.0))
        self.serial += 1
        rules = kernels.Rules(
            window=1 << 30,
            near=setting.near,
            slack=setting.slack,
            limit_s=limit_s,
            by_precedence=setting.by_precedence,
            same_s=1e-7 * shortest_s,
            seed=(self.options.seed << 20) + self.serial,
        )
        given = np.zeros((0, 0)) if bias is None else bias
        left, finish_s, log, looks = kernels.match(machine, task, rules, given)
        self.looks += int(looks)
        if bias is not None:
            kernels.blame(machine, task, log, left, finish_s, bias, STEP, DECAY)
        if left:
            assert np.isfinite(limit_s), "what the bound found reachable was not reached"
            return None
        run = Run(float(finish_s), setting, collective, log)
        if run.beats(self.best):
            self.best = run
            if self.options.progress is not None:
                self.options.progress(min(1.0, self.looks / LOOKS), f"{run.finish_s * 1e6:.1f} us")
        return run

    def _task(self, chunks: int) -> tuple[Collective, kernels.Task]:
        if chunks not in self._tasks:
            collective = self.problem.collective(chunks)
            members = np.zeros((len(collective.sets), collective.num_ranks), dtype=np.uint8)
            members[np.repeat(np.arange(len(collective.sets)), collective.sets.lengths()), collective.sets.data] = 1
            have = np.ascontiguousarray(members[collective.pre].T)
            want = np.ascontiguousarray(members[collective.post].T)
            lengths = collective.chunk_bytes(self.problem.size_bytes)
            want = with_relays(self.model.table, lengths, have, want)
            self._tasks[chunks] = collective, kernels.Task(lengths, have, want)
        return self._tasks[chunks]
