"""The fewest epochs: numbers from a lower bound upwards, each found, proven impossible or not decided."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import ceil

import numpy as np

from collsyn.bounds import fluid_bound
from collsyn.bounds.bound import whole_bounds_by_argument
from collsyn.errors import Infeasible
from collsyn.model.arrays import I64
from collsyn.model.schedule import Schedule
from collsyn.solver import Limits
from collsyn.synth.baseline import hops_of
from collsyn.synth.exact_epoch_program import ruled_out, solve_epochs
from collsyn.synth.exact_grid import Grid, grids, least_epochs
from collsyn.synth.exact_steps import NEVER, StepCase, expanded, unreachable
from collsyn.synth.problem import Options, Problem
from collsyn.synth.timing import by_start, in_order
from collsyn.synth.transform import useful

# Entries of the matrix of one program, of one without symmetries, of one whose linear program is solved first, and of
# all together where no time limit is given; with one, programs may be so many times as large.
MAX_ENTRIES, PLAIN_ENTRIES, LINEAR_ENTRIES, WORK, TIMED = 130_000, 10_000, 30_000, 260_000, 3
# Chunks x epochs x hops of one program, whether a chunk can get there or not.
CELLS = 4_000_000
# What rounding adds up to, in epochs.
ROUNDING = 1e-3
# Branches that the solver may look at for one program, without a limit of time and with one; and how often it may ask
# whether to go on, without one.
QUICK_NODES, NODES, POLLS = 8, 1000, 40


@dataclass(eq=False)
class Budget:
    """What may still be done: until the time limit, or, where there is none, programs of so many entries."""

    options: Options
    entries: int = field(default_factory=lambda: WORK)

    def __post_init__(self) -> None:
        limit_s = self.options.time_limit_s
        self._deadline_s = None if limit_s is None else time.monotonic() + limit_s

    @property
    def left_s(self) -> float | None:
        """Seconds until the time limit, if there is one."""
        return None if self._deadline_s is None else max(self._deadline_s - time.monotonic(), 0.0)

    @property
    def limits(self) -> Limits:
        """Those of one integer program."""
        return Limits(self.left_s, QUICK_NODES if self._deadline_s is None else NODES, seed=self.options.seed)

    @property
    def max_polls(self) -> int | None:
        """How often the solver may ask whether to go on."""
        return POLLS if self._deadline_s is None else None

    @property
    def is_spent(self) -> bool:
        """Whether nothing more may be done."""
        return self.entries < 0 or self.left_s == 0.0

    def allows(self, entries: int) -> bool:
        """Whether a program of so many entries may be solved; counts it if so."""
        if self._deadline_s is not None:
            return entries <= TIMED * MAX_ENTRIES and self.left_s != 0.0
        self.entries -= entries
        return self.entries >= 0


@dataclass(frozen=True, eq=False)
class Found:
    """Sends (rows of flow, number of chunk, hop, epoch) in `epochs` epochs, and whether fewer are proven impossible."""

    grid: Grid
    epochs: int
    sends: I64
    fewest: bool


@dataclass(eq=False)
class EpochSearch:
    """Decides numbers of epochs for one collective without reduction and one number of chunks a rank."""

    problem: Problem
    chunks: int
    _least: dict[tuple[float, float], int] = field(default_factory=dict, repr=False)

    @cached_property
    def case(self) -> StepCase:
        """With the symmetries."""
        return StepCase.of(self.problem)

    @cached_property
    def plain(self) -> StepCase:
        """Without them."""
        return StepCase.of(self.problem, symmetric=False) if len(self.case.group) > 1 else self.case

    @cached_property
    def chunk_bytes(self) -> float:
        """Length of every chunk."""
        return float(self.problem.collective(self.chunks).chunk_bytes(self.problem.size_bytes).max(initial=0.0))

    @property
    def is_empty(self) -> bool:
        """Whether nothing has to travel."""
        return not len(self.case.representatives)

    def is_reachable(self, grid: Grid) -> bool:
        """Whether hops lead from every source to its receivers, within the epochs that a program may have."""
        return self._least_of(grid) < NEVER

    def grids(self) -> Iterator[Grid]:
        """See `exact_grid.grids`."""
        return grids(self.case, self.chunk_bytes)

    def least(self, grid: Grid) -> int:
        """See `least_epochs`; raises Infeasible where a receiver cannot be reached, or not within so many epochs."""
        if not self.is_reachable(grid):
            far = self.case.least_steps >= NEVER
            raise Infeasible(f"exact: {unreachable(self.case) if far else f'needs {NEVER} epochs or more'}")
        return self._least_of(grid)

    def _least_of(self, grid: Grid) -> int:
        key = grid.epoch_s, grid.late
        if key not in self._least:
            self._least[key] = least_epochs(self.case, grid, self.chunks)
        return self._least[key]

    def bound(self, grid: Grid, budget: Budget) -> int:
        """Epochs needed at least: by `least`, by the bound on time, and by the linear program where it is small."""
        least = self.least(grid)
        if grid.rounds_up:
            least = max(least, ceil(whole_s(self.problem, self.chunks) / grid.epoch_s - ROUNDING))
        while (
            not budget.is_spent
            and self.entries(grid, least) <= LINEAR_ENTRIES
            and ruled_out(self.case, grid, self.chunks, least, budget.limits)
        ):
            least += 1
        return least

    def entries(self, grid: Grid, epochs: int, symmetric: bool = True) -> int:
        """About the entries of a program's matrix; CELLS where it would have more cells than that."""
        case = self.case if symmetric else self.plain
        if len(case.representatives) * self.chunks * epochs * len(case.table) > CELLS:
            return CELLS
        starts = case.usable(epochs, grid.travel).sum(axis=(0, 1))
        return int((starts * (3 + case.table.routes.lengths() * grid.busy)).sum()) * self.chunks

    def decide(self, grid: Grid, epochs: int, budget: Budget) -> I64 | bool | None:
        """Sends of all flows in so many epochs; False: proven that there are none; None: not decided."""
        entries = self.entries(grid, epochs)
        if not budget.allows(entries):
            return None
        found = solve_epochs(self.case, grid, self.chunks, epochs, budget.limits, budget.max_polls)
        if isinstance(found, list):
            return expanded(self.case, found)
        if self.plain is self.case:
            return found
        if entries > LINEAR_ENTRIES and ruled_out(self.case, grid, self.chunks, epochs, budget.limits):
            return False
        entries = self.entries(grid, epochs, symmetric=False)
        if entries > PLAIN_ENTRIES or not budget.allows(entries):
            return None
        found = solve_epochs(self.plain, grid, self.chunks, epochs, budget.limits, budget.max_polls)
        return expanded(self.plain, found) if isinstance(found, list) else found

    def fewest(self, grid: Grid, budget: Budget, most: int | None = None, only_least: bool = False) -> Found | None:
        """The fewest epochs, up to `most` or only as many as the lower bound; None where none were found."""
        impossible = tried = self.bound(grid, budget) - 1
        if only_least:
            most = tried + 1
        step, found = 1, None
        while found is None or tried + 1 < found.epochs:
            # Upwards in growing steps, then between what was tried in vain and what was found.
            epochs = tried + step if found is None else (tried + found.epochs) // 2
            epochs = epochs if most is None else min(epochs, most)
            if epochs <= tried:
                return None
            answer = self.decide(grid, epochs, budget)
            if isinstance(answer, np.ndarray):
                needed = int((answer[:, 3] + grid.travel[answer[:, 2]]).max())
                found = Found(grid, needed, answer, False)
                continue
            # Large programs that were not decided are seldom decided with more epochs.
            if found is None and (budget.is_spent or (answer is None and self.entries(grid, epochs) > LINEAR_ENTRIES)):
                return None
            impossible = epochs if answer is False else impossible
            tried, step = epochs, 2 * step
        return replace(found, fewest=found.epochs - 1 <= impossible)


@lru_cache(maxsize=64)
def whole_s(problem: Problem, chunks: int, batched: bool = False) -> float:
    """Seconds that no schedule of these chunks is quicker than, where each is sent whole (see `chunk_bound`)."""
    asked = problem.collective(chunks), problem.topology, problem.size_bytes
    return max([fluid_s(problem), *(bound.time_s for bound in whole_bounds_by_argument(*asked, batched))])


@lru_cache(maxsize=64)
def fluid_s(problem: Problem) -> float:
    """Seconds that no schedule is quicker than, however the data is split."""
    return fluid_bound(problem.collective(1), problem.topology, problem.size_bytes).time_s


def as_schedule(problem: Problem, chunks: int, found: Found | None) -> Schedule:
    """Sends in the order of their epochs, each as early as that allows; without those that turn out to be useless."""
    collective, table = problem.collective(chunks), hops_of(problem.topology)
    rows = np.zeros((0, 4), dtype=np.int64) if found is None else found.sends
    flow, number, hop, _ = rows[np.lexsort((rows[:, 1], rows[:, 0], rows[:, 2], rows[:, 3]))].T
    columns = {"chunk": flow * chunks + number, "src": table.src[hop], "dst": table.dst[hop], "route": hop}
    schedule = in_order(collective, problem.topology, problem.size_bytes, table.routes, columns)
    kept = useful(schedule)
    if kept is schedule:
        return schedule
    return in_order(collective, problem.topology, problem.size_bytes, kept.routes, by_start(kept))
