"""Exact: schedules of few chunks in numbered steps, with a proof that no schedule of its steps needs fewer rounds.

Source: SCCL (PPoPP 2021); docs/exact.md says what differs.
"""

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm

from collsyn.errors import Infeasible, InputError, SolverFailed
from collsyn.model.schedule import Schedule
from collsyn.synth.exact_pareto import (
    FOUND,
    IMPOSSIBLE,
    MAX_CHUNKS,
    Answer,
    Front,
    Instance,
    Instances,
    as_schedule,
)
from collsyn.synth.exact_steps import NEVER, StepCase, obstacle, unreachable
from collsyn.synth.problem import Options, Problem, Synthesizer, provenance
from collsyn.synth.transform import by_reversal, compose

# Ranks x hops x fewest steps beyond which a problem is refused, unless one instance is asked for.
SERVED_CELLS = 800
# Kinds that are solved backwards in time, over links turned round.
BACKWARDS = frozenset({"reducescatter", "reduce", "gather"})
PHASES = ("reducescatter", "allgather")
BY_PHASES = "of a reduce-scatter, then an allgather"


@dataclass(frozen=True)
class Choice:
    """An instance that was found, with its schedule and how far it is proven ("": not)."""

    instance: Instance
    schedule: Schedule
    optimal: str

    @property
    def guarantee(self) -> str:
        """The proof in words."""
        phases = f" {BY_PHASES}" if self.schedule.collective.kind == "allreduce" else ""
        if not self.optimal:
            return f"none{phases}"
        return f"fewest rounds a chunk in {self.instance.steps} steps{phases}, for {self.optimal}"


class Exact:
    """Serves small problems of equal chunks; `exact:C/S/R` solves one instance."""

    def __init__(self, instance: Instance | None = None) -> None:
        self.instance = instance

    @property
    def name(self) -> str:
        """`exact`, with the instance if one is asked for."""
        asked = self.instance
        return "exact" if asked is None else f"exact:{asked.chunks}/{asked.steps}/{asked.rounds}"

    def with_inner(self, inner: str) -> Synthesizer:
        """The method that solves the instance C/S/R, or that of exact_epochs.py for epochs/N; raises InputError."""
        if inner.startswith("epochs"):
            from collsyn.synth.exact_epochs import EPOCHS

            return EPOCHS.with_epochs(inner)
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})/(\d{1,6})", inner, re.ASCII)
        numbers = [int(number) for number in match.groups()] if match else [0]
        if not all(numbers):
            raise InputError(f"method exact:{inner}: expected chunks a rank, steps and rounds, such as exact:6/3/7")
        return Exact(Instance(*numbers))

    def accepts(self, problem: Problem) -> str | None:
        """Needs equal chunks with one source each and few hops; one instance may be larger."""
        asked = self.instance
        if asked is not None and problem.chunks_per_rank not in (None, asked.chunks):
            return f"has {asked.chunks} chunks a rank, not {problem.chunks_per_rank}"
        for forward in forwards(problem):
            reason = obstacle(forward)
            if reason is not None:
                return reason
            if asked is None:
                reason = _too_large(forward)
                if reason is not None:
                    return reason
        return None

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The quickest of the instances that no other one beats, or the instance that was asked for.

        Raises Infeasible where there is none with a proof, SolverFailed where none was decided in the limits.
        Exponential in the number of chunks, steps and hops.
        """
        if self.instance is not None:
            choices = [solve(problem, self.instance, options)]
        elif problem.chunks_per_rank is not None:
            choices = [fewest(problem, problem.chunks_per_rank, options)]
        else:
            choices = pareto(problem, options, largest=min(MAX_CHUNKS, problem.size_bytes)).choices
            if not choices:
                raise SolverFailed("no instance was decided within the limits")
        best = min(choices, key=lambda choice: choice.schedule.finish_s)
        shown = {"chunks_per_rank": best.instance.chunks, "steps": best.instance.steps, "rounds": best.instance.rounds}
        notes = provenance(problem, options, self.name, **shown, guarantee=best.guarantee)
        return replace(best.schedule, provenance=notes)


@dataclass(frozen=True)
class ParetoSet:
    """Instances that no other one beats in steps and rounds a chunk, fewest steps first, and how it was found.

    `others` are instances that were tried in vain; `fronts` the sets of the phases (one, but for an allreduce).
    """

    choices: list[Choice]
    others: list[Answer]
    fronts: list[Front]


def forwards(problem: Problem) -> list[Problem]:
    """The problems without reduction whose instances make those of a problem."""
    if problem.kind == "allreduce":
        return [each for kind in PHASES for each in forwards(problem.as_kind(kind))]
    return [problem.reversed if problem.kind in BACKWARDS else problem]


def pareto(problem: Problem, options: Options, largest: int = MAX_CHUNKS, max_steps: int | None = None) -> ParetoSet:
    """The set of an accepted problem, up to `largest` chunks a rank and `max_steps` steps (by default a few).

    An allreduce is done in two phases, and the set is that of their combinations.
    """
    problems = forwards(problem)
    solvers = [Instances(each, options) for each in problems]
    _require_reachable(solvers)
    fronts = [solver.front(largest, max_steps) for solver in solvers]
    others = [answer for front in fronts for answer in front.others]
    if len(fronts) == 1:
        points = zip(fronts[0].points, fronts[0].optimal, strict=True)
        choices = [Choice(each.instance, _timed(problem, each), optimal) for each, optimal in points]
        return ParetoSet(choices, others, fronts)
    choices = []
    for first, first_optimal in zip(fronts[0].points, fronts[0].optimal, strict=True):
        for second, second_optimal in zip(fronts[1].points, fronts[1].optimal, strict=True):
            optimal = first_optimal if first_optimal == second_optimal else ""
            choices.append(_composed(problem, first, second, optimal))
    return ParetoSet(_unbeaten(choices), others, fronts)


def solve(problem: Problem, asked: Instance, options: Options) -> Choice:
    """One instance of an accepted problem; raises Infeasible with the proof, or SolverFailed if it was not decided."""
    solvers = [Instances(each, options) for each in forwards(problem)]
    _require_reachable(solvers)
    if len(solvers) == 1:
        answer = solvers[0].decide(asked)
        _require_found(answer, problem)
        exact = asked.ratio == solvers[0].ratio(asked.steps)
        return Choice(asked, _timed(problem, answer), "any number of chunks" if exact else "")
    answers, why = [], ""
    first, second = solvers
    for steps in range(first.case.least_steps, asked.steps - second.case.least_steps + 1):
        for answer in first.fewest_rounds(asked.chunks, steps, below=asked.rounds):
            answers.append(answer)
        if not answers or answers[-1].verdict != FOUND:
            continue
        rest = Instance(asked.chunks, asked.steps - steps, asked.rounds - answers[-1].instance.rounds)
        other = second.decide(rest)
        if other.verdict == FOUND:
            return _composed(problem, answers[-1], other, "")
        answers.append(other)
        why = other.why
    if any(answer.verdict not in (FOUND, IMPOSSIBLE) for answer in answers):
        raise SolverFailed(f"exact: {asked} {BY_PHASES} was not decided within the limits")
    raise Infeasible(f"exact: {asked} {BY_PHASES} is impossible: {why or 'too few steps or rounds'}")


def fewest(problem: Problem, chunks: int, options: Options) -> Choice:
    """The fewest steps, and for these the fewest rounds, with so many chunks a rank; or more steps where that pays."""
    choices = []
    solvers = [Instances(each, options) for each in forwards(problem)]
    _require_reachable(solvers)
    for more in range(3):
        answers = [_last(solver, chunks, solver.case.least_steps + more) for solver in solvers]
        found = [answer for answer, _ in answers if answer is not None]
        if len(found) < len(solvers):
            continue
        optimal = f"{chunks} chunks" if all(proven for _, proven in answers) else ""
        if len(found) == 1:
            choices.append(Choice(found[0].instance, _timed(problem, found[0]), optimal))
        else:
            choices.append(_composed(problem, found[0], found[1], optimal))
        if all(solver.ratio(a.instance.steps) == a.instance.ratio for solver, a in zip(solvers, found, strict=True)):
            break
    if not choices:
        raise SolverFailed(f"exact: no instance of {chunks} chunks a rank was decided within the limits")
    return min(choices, key=lambda choice: choice.schedule.finish_s)


def _last(solver: Instances, chunks: int, steps: int) -> tuple[Answer | None, bool]:
    """The instance of the fewest rounds that was found, and whether fewer are proven impossible."""
    limit = 2 * max(steps, int(chunks * solver.ratio(steps)) + 1) + 1
    answers = list(solver.fewest_rounds(chunks, steps, below=limit))
    if not answers or answers[-1].verdict != FOUND:
        return None, False
    return answers[-1], all(answer.verdict == IMPOSSIBLE for answer in answers[:-1])


def _timed(problem: Problem, answer: Answer, times: int = 1) -> Schedule:
    def forward(each: Problem) -> Schedule:
        return as_schedule(each, answer, times)

    return by_reversal(problem, forward) if problem.kind in BACKWARDS else forward(problem)


def _composed(problem: Problem, first: Answer, second: Answer, optimal: str) -> Choice:
    """Both phases with as many chunks as both can be cut into."""
    a, b = first.instance, second.instance
    chunks = lcm(a.chunks, b.chunks)
    times = chunks // a.chunks, chunks // b.chunks
    parts = [
        _timed(problem.as_kind(kind), answer, many)
        for kind, answer, many in zip(PHASES, (first, second), times, strict=True)
    ]
    whole = compose(parts[0], parts[1], problem.collective(chunks))
    instance = Instance(chunks, a.steps + b.steps, a.rounds * times[0] + b.rounds * times[1])
    return Choice(instance, whole, optimal)


def _unbeaten(choices: list[Choice]) -> list[Choice]:
    kept: list[Choice] = []
    best: Fraction | None = None
    for choice in sorted(choices, key=lambda each: (each.instance.steps, each.instance.ratio, each.instance.chunks)):
        if best is None or choice.instance.ratio < best:
            kept.append(choice)
            best = choice.instance.ratio
    return kept


def _too_large(problem: Problem) -> str | None:
    case = StepCase.of(problem)
    if case.least_steps >= NEVER:
        return None
    cells = problem.topology.num_ranks * len(case.table) * case.least_steps
    if cells <= SERVED_CELLS:
        return None
    return f"has {cells} ranks x hops x steps, more than {SERVED_CELLS} (exact:C/S/R solves one instance)"


def _require_reachable(solvers: list[Instances]) -> None:
    for solver in solvers:
        if solver.case.least_steps >= NEVER:
            raise Infeasible(f"exact: {unreachable(solver.case)}")


def _require_found(answer: Answer, problem: Problem) -> None:
    if answer.verdict == IMPOSSIBLE:
        raise Infeasible(f"exact: {answer.instance} of {problem.kind} is impossible: {answer.why}")
    if answer.verdict != FOUND:
        raise SolverFailed(f"exact: {answer.instance} of {problem.kind}: {answer.why}")


EXACT = Exact()
