"""Instances of chunks, steps and rounds: found, proven impossible or not decided; and those that no other one beats.

Source: SCCL (PPoPP 2021). There every instance goes to a solver; here a linear program first says how many rounds a
chunk any schedule of so many steps needs, which leaves few instances to be tried.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import ceil

import numpy as np

from collsyn.bounds import fluid_bound
from collsyn.model.arrays import I64
from collsyn.model.schedule import Schedule
from collsyn.synth.baseline import hops_of
from collsyn.synth.exact_program import least_ratio, solve_instance
from collsyn.synth.exact_steps import StepCase, expanded, repeated
from collsyn.synth.problem import Options, Problem
from collsyn.synth.timing import in_order

# Branches that the solver may look at for one instance: with the symmetries imposed, and without (a proof needs these);
# where a limit of time was given, and where none was, so that the work is the same every time.
SYMMETRIC_NODES, PLAIN_NODES = 300, 2000
QUICK_NODES, QUICK_TRIALS = 8, 2
# Chunks a rank, and steps beyond the fewest possible, up to which the set is searched by default.
MAX_CHUNKS, MORE_STEPS = 8, 4

FOUND, IMPOSSIBLE, UNDECIDED = "found", "impossible", "not decided"


@dataclass(frozen=True)
class Instance:
    """Chunks a rank, steps and rounds (of all steps together; a link of the least bandwidth carries a chunk in one)."""

    chunks: int
    steps: int
    rounds: int

    def __str__(self) -> str:
        return f"({self.chunks},{self.steps},{self.rounds})"

    @property
    def ratio(self) -> Fraction:
        """Rounds a chunk: what the bytes cost."""
        return Fraction(self.rounds, self.chunks)


@dataclass(frozen=True, eq=False)
class Answer:
    """What became of an instance: `verdict`, in words `why`, and the sends (flow, number of chunk, hop, step)."""

    instance: Instance
    verdict: str
    why: str
    sends: I64 | None = None


@dataclass(frozen=True, eq=False)
class Front:
    """Instances of which none is beaten in steps and rounds a chunk, and what was tried besides.

    `optimal[i]` says how far point i is proven: fewest rounds a chunk in its steps for `any number of chunks`, or for
    `at most N chunks`, or "" where some better instance was not decided. `bytes_ratio` are the rounds a chunk that the
    links need in any number of steps; `steps_looked_at` the most steps looked at; `complete`: more cannot help.
    """

    points: tuple[Answer, ...]
    optimal: tuple[str, ...]
    others: tuple[Answer, ...]
    bytes_ratio: Fraction
    steps_looked_at: int
    complete: bool


@dataclass(eq=False)
class Instances:
    """Decides instances of one collective without reduction; remembers linear programs."""

    problem: Problem
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        self.deadline_s = None if self.options.time_limit_s is None else time.monotonic() + self.options.time_limit_s
        self.ratios: dict[int, Fraction | None] = {}
        self.undecided = 0

    @cached_property
    def case(self) -> StepCase:
        """With the symmetries."""
        return StepCase.of(self.problem)

    @cached_property
    def plain(self) -> StepCase:
        """Without them."""
        return StepCase.of(self.problem, symmetric=False)

    @cached_property
    def bytes_ratio(self) -> Fraction:
        """Rounds a chunk that no number of steps can do without."""
        algbw = fluid_bound(self.problem.collective(1), self.problem.topology, self.problem.size_bytes).algbw_exact
        return Fraction(0) if algbw is None else self.case.least_ratio_of_bytes(algbw)

    def ratio(self, steps: int) -> Fraction:
        """Rounds a chunk that no schedule of so many steps can do without."""
        if steps not in self.ratios:
            self.ratios[steps] = least_ratio(self.case, steps)
        found = self.ratios[steps]
        return self.bytes_ratio if found is None else max(found, self.bytes_ratio)

    def left_s(self) -> float | None:
        """Seconds until the time limit, if there is one."""
        return None if self.deadline_s is None else max(self.deadline_s - time.monotonic(), 0.0)

    @property
    def is_spent(self) -> bool:
        """Whether the limit of time is over; where none was given, whether several instances could not be decided."""
        return self.undecided >= QUICK_TRIALS if self.deadline_s is None else self.left_s() == 0.0

    def decide(self, instance: Instance) -> Answer:
        """Find sends of an instance, or prove that there are none, or give up within the limits."""
        why = self._impossible(instance)
        if why:
            return Answer(instance, IMPOSSIBLE, why)
        most = (QUICK_NODES, QUICK_NODES) if self.deadline_s is None else (SYMMETRIC_NODES, PLAIN_NODES)
        cases = [(self.case, most[0]), (self.plain, most[1])]
        for case, nodes in cases if len(self.case.group) > 1 else cases[1:]:
            if self.is_spent:
                return Answer(instance, UNDECIDED, "not tried within the limits")
            limit_s = self.left_s()
            found = solve_instance(case, instance.chunks, instance.steps, instance.rounds, limit_s, nodes)
            if isinstance(found, list):
                return Answer(instance, FOUND, "by integer program", expanded(case, found))
            if found is False and case is self.plain:
                return Answer(instance, IMPOSSIBLE, "proven by branch and bound")
        self.undecided += 1
        return Answer(instance, UNDECIDED, f"not decided within {most[1]} branches or the time limit")

    def _impossible(self, instance: Instance) -> str:
        if self.case.least_steps > instance.steps:
            return f"some receiver is {self.case.least_steps} steps away"
        if instance.rounds < instance.steps:
            return "every step takes at least one round"
        ratio = self.ratio(instance.steps)
        if instance.ratio < ratio:
            return f"{instance.steps} steps need at least {ratio} rounds a chunk (linear program)"
        return ""

    def fewest_rounds(self, chunks: int, steps: int, below: int | None = None) -> Iterator[Answer]:
        """Answers for growing numbers of rounds, the last one found; ends without where `below` is reached."""
        rounds = max(ceil(chunks * self.ratio(steps)), steps)
        while below is None or rounds < below:
            answer = self.decide(Instance(chunks, steps, rounds))
            yield answer
            if answer.verdict == FOUND or self.is_spent:
                return
            rounds += 1

    def front(self, max_chunks: int = MAX_CHUNKS, max_steps: int | None = None) -> Front:
        """The instances that no other one beats, of at most so many chunks a rank and steps."""
        first = self.case.least_steps
        last = first + MORE_STEPS if max_steps is None else max_steps
        points: list[Answer] = []
        optimal: list[str] = []
        others: list[Answer] = []
        steps = first
        for steps in range(first, last + 1):
            best = points[-1].instance.ratio if points else None
            if best is not None and self.ratio(steps) >= best:
                continue
            decided = True
            for instance in self._candidates(steps, max_chunks, best):
                answer = self.decide(instance)
                if answer.verdict == FOUND:
                    points.append(answer)
                    exact = instance.ratio == self.ratio(steps)
                    known = "any number of chunks" if exact else f"at most {max_chunks} chunks" if decided else ""
                    optimal.append(known)
                    break
                others.append(answer)
                decided &= answer.verdict == IMPOSSIBLE
                if self.is_spent:
                    break
            if (points and points[-1].instance.ratio == self.bytes_ratio) or self.is_spent:
                break
        complete = bool(points) and points[-1].instance.ratio == self.bytes_ratio
        return Front(tuple(points), tuple(optimal), tuple(others), self.bytes_ratio, steps, complete)

    def _candidates(self, steps: int, max_chunks: int, best: Fraction | None) -> list[Instance]:
        """Instances that the linear program allows and that would be better, fewest rounds a chunk first.

        Twice as many rounds as it asks for are surely enough for some number of chunks; more are not looked at.
        """
        least = self.ratio(steps)
        found = []
        for chunks in range(1, max_chunks + 1):
            rounds = max(ceil(least * chunks), steps)
            limit = max(2 * rounds, rounds + steps) if best is None else ceil(best * chunks) - 1
            found += [Instance(chunks, steps, r) for r in range(rounds, limit + 1)]
        return sorted(found, key=lambda each: (each.ratio, each.chunks))


def as_schedule(problem: Problem, answer: Answer, times: int = 1) -> Schedule:
    """The quicker of two schedules: chunks that cross a hop in one step as one message, or each in its own.

    With `times` as many chunks, every one cut into so many. Sends keep the order of the steps and start as early as
    that allows.
    """
    assert answer.sends is not None
    chunks = answer.instance.chunks * times
    sends = repeated(answer.sends, answer.instance.chunks, times)
    flow, number, hop, step = sends[np.lexsort((sends[:, 1], sends[:, 0], sends[:, 2], sends[:, 3]))].T
    table = hops_of(problem.topology)
    columns = {"chunk": flow * chunks + number, "src": table.src[hop], "dst": table.dst[hop], "route": hop}
    together = np.cumsum(np.append(True, (hop[1:] != hop[:-1]) | (step[1:] != step[:-1])))[: len(hop)]
    collective = problem.collective(chunks)
    candidates = [
        in_order(collective, problem.topology, problem.size_bytes, table.routes, {**columns, **extra})
        for extra in ({}, {"batch": together})
    ]
    return min(candidates, key=lambda schedule: schedule.finish_s)
