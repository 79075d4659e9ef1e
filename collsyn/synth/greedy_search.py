"""Search around the greedy matching: chunk counts, rules and seeds, then repair of what made the best runs late."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from collsyn.model.arrays import F64
from collsyn.model.collective import Collective
from collsyn.synth import greedy_kernels as kernels
from collsyn.synth.greedy_effort import Effort
from collsyn.synth.greedy_machine import MachineModel
from collsyn.synth.greedy_relays import with_relays
from collsyn.synth.problem import Options, Problem

# One pass: this many looks at candidates (some seconds), or those of LEAST_RUNS runs;
# no run brings more chunks to ranks than MOST_DELIVERIES.
LOOKS, LEAST_RUNS, MOST_DELIVERIES = 250_000_000, 5, 600_000

# A hop looks at so many candidates, and at twice as many as a rank holds at the start where that is more.
LEAST_WINDOW = 64

# This many of the best chunk counts are refined.
REFINED = 3

# Runs of a setting with different seeds, as long as they take few looks.
SEEDS, LOOKS_FOR_SEEDS = 8, 500_000

# Repair: bias of a late delivery in copies, what is left of a bias after a run, runs before the aim is changed, and
# aims as the share of the way from the chunk bound to the best finish (None: no limit).
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
        self.problem, self.model = problem, model
        self.best: Run | None = None
        self._effort = Effort(problem, options, LOOKS)
        self._tasks: dict[int, tuple[Collective, kernels.Task]] = {}

    def solve(self) -> Run:
        """The best run found; raises Infeasible where a receiver cannot be reached."""
        collective, task = self._task(1)
        largest_bytes = float(collective.chunk_bytes(self.problem.size_bytes).max())
        best_of: dict[int, Run] = {}
        for chunks in self._effort.chunk_counts(largest_bytes, MOST_DELIVERIES // max(int(task.want.sum()), 1)):
            if self._effort.over(0.5):
                break
            for setting in self._first_settings(chunks):
                for run in self._seeds(setting):
                    if run.beats(best_of.get(chunks)):
                        best_of[chunks] = run
        ranked = sorted(best_of.values(), key=lambda run: run.finish_s)[:REFINED]
        self._repair([self._varied(run) for run in ranked])
        assert self.best is not None
        return self.best

    def _first_settings(self, chunks: int) -> list[Setting]:
        """Settings to compare chunk counts by."""
        overheads = 50.0 if self.model.topology.overhead_s.any() else 0.0
        slack = 1.0 if self.model.unequal else 0.0
        base = Setting(chunks, slack=slack, by_precedence=self.model.unequal, overheads=overheads)
        others = [replace(base, near=1.0), replace(base, fitted=True)]
        return [base, *others[: 1 + self.model.has_fitted]]

    def _seeds(self, setting: Setting) -> Iterator[Run]:
        """Runs that differ in their seed, more of them where they are cheap."""
        looks = 0
        for _ in range(SEEDS):
            run, taken = self._run(setting)
            assert run is not None, "what the bound found reachable was not reached"
            yield run
            looks += taken
            if looks > LOOKS_FOR_SEEDS or self._effort.over(0.5):
                break

    def _varied(self, run: Run) -> Run:
        """The best of a run's setting with one rule after the other changed."""
        if not self._effort.can_gain(run.setting.chunks):
            return run
        changes: list[dict[str, float | bool]] = []
        if self.model.has_fitted:
            changes.append({"fitted": not run.setting.fitted})
        if self.model.topology.overhead_s.any():
            changes += [{"overheads": value} for value in (0.0, 15.0, 150.0)]
        if self.model.unequal:
            changes += [{"slack": 0.0}, {"by_precedence": False}]
        changes += [{"near": value} for value in (0.0, 1.0, 4.0) if value != run.setting.near]
        for change in changes:
            if self._effort.over(0.7):
                break
            for other in self._seeds(replace(run.setting, **change)):  # type: ignore[arg-type]
                if other.beats(run):
                    run = other
        return run

    def _repair(self, runs: list[Run]) -> None:
        """Rerun settings with a bias towards what was late, each time with another aim, until the work is used up."""
        for turn in count() if self._effort.timed else range(MOST_TURNS):
            aim = AIMS[turn % len(AIMS)]
            hopeful = [run.setting for run in runs if self._effort.can_gain(run.setting.chunks)]
            if not hopeful:
                return
            for setting in hopeful:
                bias = np.zeros(self._task(setting.chunks)[1].have.shape)
                for _ in range(RUNS_PER_AIM):
                    if self._effort.can_gain(setting.chunks):
                        self._run(setting, self._limit_s(setting.chunks, aim), bias)

    def _limit_s(self, chunks: int, aim: float | None) -> float:
        assert self.best is not None
        bound_s = self._effort.chunk_bound_s(chunks)
        return np.inf if aim is None else bound_s + aim * (self.best.finish_s - bound_s)

    def _run(self, setting: Setting, limit_s: float = np.inf, bias: F64 | None = None) -> tuple[Run | None, int]:
        """One run (None if it missed the limit) and the looks it took. With a bias, what was late is blamed in it."""
        collective, task = self._task(setting.chunks)
        machine = self.model.machine(setting.fitted, setting.overheads, float(task.chunk_bytes.mean()))
        shortest_s = float(task.chunk_bytes.min() / machine.rate.max(initial=1.0))
        rules = kernels.Rules(
            window=max(LEAST_WINDOW, 2 * int(task.have.sum(axis=1).max())),
            near=setting.near,
            slack=setting.slack,
            limit_s=limit_s,
            by_precedence=setting.by_precedence,
            same_s=1e-7 * shortest_s,
            seed=self._effort.seed(),
        )
        given = np.zeros((0, 0)) if bias is None else bias
        left, finish_s, log, looks = kernels.match(machine, task, rules, given)
        self._effort.spend(looks, at_least=0.0 if self.best is not None else LEAST_RUNS * looks)
        if bias is not None:
            kernels.blame(machine, task, log, left, finish_s, bias, STEP, DECAY)
        if left:
            return None, int(looks)
        run = Run(float(finish_s), setting, collective, log)
        if run.beats(self.best):
            self.best = run
            self._effort.improved(run.finish_s)
        return run, int(looks)

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
