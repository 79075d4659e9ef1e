"""The portfolio: every method that serves a problem is run, judged and simulated, and the best schedule is kept."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from collsyn.bounds import fluid_bound
from collsyn.keyboard import Keyboard
from collsyn.model.schedule import Schedule
from collsyn.portfolio.candidates import (
    ALIKE,
    CONTENDING,
    INTERRUPTED,
    OUT_OF_TIME,
    STOPPED,
    Candidate,
    chosen,
    ranked,
    with_rivals,
)
from collsyn.portfolio.crew import MAKE, PLAN, Alone, Beside, Crew, Task
from collsyn.portfolio.trial import Trial, least_plan_s
from collsyn.synth.problem import Options, Problem, Synthesizer
from collsyn.synth.sketch_reasons import require_feasible
from collsyn.synth.table import METHODS

# Seconds after which no further method is begun, where no other limit is given.
TIME_LIMIT_S = 30.0
# Share of a limit that was asked for in which methods may work, where plans are to be made of what they find.
FOR_METHODS = 0.75
# Share of the limit in which methods are begun in the order of the table.
EARLY = 1 / 3
# Plans of more ranks are lowered and simulated only on request.
MAX_PLAN_RANKS = 64
# Share of what is left that a method may take, unless it is the last, so that some is left for others.
OF_LEFT = 0.4
# A method that overruns a limit that was given is ended after this share of it more, and so many seconds.
GRACE, GRACE_S = 0.25, 2.0
# So many seconds this process works on its own before others join in, if the ranks are at most so many.
FIRST_S, MAX_FIRST_RANKS = 2.0, 32
# Watchers hear at least this often.
_TICK_S = 0.2


class Watcher(Protocol):
    """Is told how the portfolio gets on; both are called in the caller's thread."""

    def done(self, candidate: Candidate, seconds: float) -> None:
        """A method has ended, so many seconds after it was begun; again once its plan was simulated."""

    def tick(self, running: Sequence[str]) -> None:
        """What is under way now."""


def best(
    problem: Problem,
    options: Options,
    methods: Sequence[str | Synthesizer] | None = None,
    plans: bool | None = None,
    crew: Crew | None = None,
    watcher: Watcher | None = None,
    all_of_them: bool = False,
) -> list[Candidate]:
    """Run methods (all by default) on a problem; their candidates, best first, those without a schedule last.

    Candidates are ranked by the finish of their plans if every contender can be lowered, else by their own. `plans`
    says whether to lower at all (None: up to MAX_PLAN_RANKS ranks). Once a method is at the bound, with its plan, those
    that follow in the order given are not needed, unless `all_of_them` are asked for. The work is the `crew`'s (this
    process's alone by default); the result does not depend on how many it has.

    No method is begun after the time limit of the options (TIME_LIMIT_S by default), and an interruption from the
    keyboard ends the search: what was found until then counts, the other methods are marked INTERRUPTED. Without a time
    limit in the options the result is the same every time, unless the default one was met, which the provenance then
    says. Raises Infeasible where ranks that must exchange data are not connected or a sketch keeps them apart, and
    whatever a method raises that is the only one.
    """
    names = list(METHODS) if methods is None else list(methods)
    # One method has nobody to share the work with, and methods that are no rows of the table are known here only.
    own = crew is None or len(names) == 1 or not all(isinstance(each, str) for each in names)
    working: Crew = Alone() if crew is None or own else crew
    with Keyboard() as keyboard:
        with keyboard.listening():
            problem = problem.at_size()
            if options.sketch is not None:
                require_feasible(problem, options.sketch)
            if plans is None:
                plans = problem.topology.num_ranks <= MAX_PLAN_RANKS
            fluid = fluid_bound(problem.collective(), problem.topology, problem.size_bytes)
        # Methods that are no rows of the table.
        given = {each.name: each for each in names if not isinstance(each, str)}
        trial = Trial(problem, replace(options, progress=None), fluid, plans, len(names) == 1, given)
        labels = [each if isinstance(each, str) else each.name for each in names]
        run = _Run(trial, labels, working, keyboard, options.progress, watcher, all_of_them)
        found = run.candidates()
        if plans:
            found = run.with_plans(found)
        return with_rivals(ranked(found))


def best_schedule(
    problem: Problem, options: Options, name: str = "auto", plans: bool | None = None, jobs: int = 1
) -> Schedule:
    """The verified schedule of one method, or of the best of all (`auto`), which are tried in `jobs` processes.

    Raises the reason where there is none.
    """
    crew = Beside(jobs) if jobs > 1 else None
    try:
        found = chosen(best(problem, options, None if name == "auto" else [name], plans, crew)).schedule
    finally:
        if crew is not None:
            crew.close()
    assert found is not None
    return found


class _Run:
    """One pass over the methods, then one over the plans of those that contend."""

    def __init__(
        self,
        trial: Trial,
        names: Sequence[str],
        crew: Crew,
        keyboard: Keyboard,
        progress: Callable[[float, str], None] | None,
        watcher: Watcher | None,
        all_of_them: bool,
    ) -> None:
        self.trial, self.names, self.crew, self.keyboard = trial, list(names), crew, keyboard
        self.progress, self.watcher, self.all_of_them = progress, watcher, all_of_them
        self.asked_s = trial.options.time_limit_s
        self.begin_s = time.monotonic()
        self.limit_s = TIME_LIMIT_S if self.asked_s is None else self.asked_s
        if self.asked_s is not None and trial.plans and len(names) > 1:
            self.limit_s *= FOR_METHODS
        self.interrupted = False
        self.begun_s: dict[int, float] = {}
        # The first method, in the order given, that cannot be beaten, and the number of its place.
        self.settled: tuple[int, str] | None = None

    def left_s(self) -> float:
        """Seconds until the limit."""
        return self.begin_s + self.limit_s - time.monotonic()

    def spent_s(self) -> float:
        """Seconds since the beginning."""
        return self.limit_s - self.left_s()

    def candidates(self) -> list[Candidate]:
        """One candidate a method, in the order given.

        The last methods of the table search longest and find most, so that they are next once time grows short.
        """
        found: dict[int, Candidate] = {}
        pending = list(range(len(self.names)))

        def next_task() -> tuple[int, Task] | None:
            while pending and not self._is_needed(pending[-1]):
                pending.pop()
            if not pending:
                return None
            self._report(found)
            in_order = self.left_s() > self.limit_s * (1 - EARLY)
            if self.left_s() <= 0 and (found or self.crew.tasks):
                return None
            number = pending.pop(0 if in_order else -1)
            left_s = self.left_s() * (OF_LEFT if pending else 1.0)
            limit_s = None if self.asked_s is None else max(left_s, 1e-3)
            return number, (MAKE, self.names[number], limit_s)

        def note(number: int, candidate: Candidate) -> None:
            if self.keyboard.pressed:  # what a method had found by then may be less than it finds
                candidate = replace(candidate, interrupted=True)
            # Of a limit that nobody asked for, what compiles and loads takes nothing.
            if self.asked_s is None:
                self.begin_s += candidate.loading_s
            found[number] = candidate
            first = self.settled is None or number < self.settled[0]
            if first and not self.all_of_them and self.trial.settles(candidate):
                self.settled = number, candidate.method
                self.crew.stop([other for other in self.crew.tasks if other > number])
            if self.watcher is not None:
                self.watcher.done(candidate, time.monotonic() - self.begun_s[number])

        if isinstance(self.crew, Alone) or self.trial.problem.topology.num_ranks > MAX_FIRST_RANKS:
            self._work(next_task, note, lambda: self._overrun(found))
        else:
            # What is over at once is not worth starting processes for.
            crew, self.crew = self.crew, Alone()
            self._work(lambda: next_task() if self.spent_s() < FIRST_S else None, note, list)
            self.crew = crew
            if not self.interrupted:
                self._work(next_task, note, lambda: self._overrun(found))
        return [self._outcome(number, found) for number in range(len(self.names))]

    def with_plans(self, candidates: list[Candidate]) -> list[Candidate]:
        """The candidates with the times of their plans, as far as they contend, can be lowered and time allows."""
        order = sorted((each for each in candidates if each.served), key=lambda each: each.finish_s)
        if self.settled is not None:
            # Its plan is known already, and no other can be better.
            name = self.settled[1]
            reason = f"not simulated: {name} is at the bound"
            return [c if c.method == name or not c.served else replace(c, cut=reason, plan_s=None) for c in candidates]
        planned: dict[int, Candidate] = {}
        pending = list(range(len(order)))
        # Plans have the rest of a limit that was asked for, and as long again of one that was not.
        self.limit_s = self.asked_s or max(self.spent_s(), self.limit_s) + TIME_LIMIT_S

        def next_task() -> tuple[int, Task] | None:
            if not pending or (self.left_s() <= 0 and len(order) > 1):
                return None
            number = pending.pop(0)
            if order[number].plan_s is not None:
                planned[number] = order[number]
                return next_task()
            earlier = [planned[other] for other in range(number) if other in planned]
            hopeless = self._hopeless(order[number], earlier)
            if hopeless is not None:
                planned[number] = replace(order[number], cut=hopeless)
                return next_task()
            return number, (PLAN, order[number], None)

        def note(number: int, candidate: Candidate) -> None:
            planned[number] = candidate
            if self.watcher is not None:
                self.watcher.done(candidate, time.monotonic() - self.begun_s[number])

        was_interrupted = self.interrupted
        if not was_interrupted:
            self._work(next_task, note, list)
        cut_short = self.interrupted and not was_interrupted
        for number, candidate in enumerate(order):
            # Whoever began ahead of its turn, or did not come to it, is judged as if it had waited.
            earlier = [planned[other] for other in range(number) if other in planned]
            hopeless = self._hopeless(candidate, earlier)
            if hopeless is not None:
                planned[number] = replace(candidate, cut=hopeless, plan_s=None)
            elif number not in planned:
                # Those that have a plan are kept apart from those that time was too short for.
                why = INTERRUPTED if self.interrupted else "the time limit"
                cut_short |= candidate.interrupted
                planned[number] = replace(candidate, interrupted=cut_short, cut=f"not simulated: {why}")
                cut_short = False
        by_method = {candidate.method: candidate for candidate in planned.values()}
        return [by_method.get(c.method, c) for c in sorted(candidates, key=lambda each: each.finish_s)]

    def _work(
        self,
        next_task: Callable[[], tuple[int, Task] | None],
        note: Callable[[int, Candidate], None],
        overrun: Callable[[], list[int]],
    ) -> None:
        """Have the crew do tasks until there are no more, or somebody presses Ctrl-C."""
        try:
            with self.keyboard.listening():
                self.crew.begin(self.trial)
            while True:
                with self.keyboard.listening():
                    while self.crew.free and (task := next_task()) is not None:
                        self.begun_s[task[0]] = time.monotonic()
                        self.crew.start(*task)
                    if not self.crew.tasks:
                        return
                    if self.watcher is not None:
                        self.watcher.tick(self._running())
                    done = self.crew.finished(_TICK_S)
                for number, candidate in done:
                    note(number, candidate)
                late = overrun()
                for number in late:
                    _, what, _ = self.crew.tasks[number]
                    assert isinstance(what, str)
                    note(number, Candidate(what, refused=STOPPED))
                self.crew.stop(late)
        except KeyboardInterrupt:
            self.interrupted = True
            for number, candidate in self.crew.wind_up():
                note(number, candidate)

    def _running(self) -> list[str]:
        return [what if isinstance(what, str) else what.method for _, what, _ in self.crew.tasks.values()]

    def _is_needed(self, number: int) -> bool:
        return self.settled is None or number <= self.settled[0]

    def _outcome(self, number: int, found: dict[int, Candidate]) -> Candidate:
        """What is said of a method in the end."""
        name = self.names[number]
        if not self._is_needed(number):
            assert self.settled is not None
            return Candidate(name, refused=f"not needed: {self.settled[1]} is at the bound", not_needed=True)
        if number in found:
            return found[number]
        if self.interrupted:
            return Candidate(name, refused=INTERRUPTED, interrupted=True)
        return Candidate(name, refused=OUT_OF_TIME)

    def _overrun(self, found: dict[int, Candidate]) -> list[int]:
        """Tasks that run on beyond a limit that was given although there is a schedule; a lone process has none."""
        if self.asked_s is None or -self.left_s() < GRACE * self.asked_s + GRACE_S:
            return []
        return list(self.crew.tasks) if any(candidate.served for candidate in found.values()) else []

    def _hopeless(self, candidate: Candidate, earlier: Sequence[Candidate]) -> str | None:
        """Why the plan of a candidate cannot be as good as those before it in the order of finishes, if so."""
        known = [each.plan_s for each in earlier if each.plan_s is not None]
        if known and candidate.finish_s > CONTENDING * min(known):
            return f"not simulated: over {CONTENDING:g} times the quickest"
        if not known or candidate.schedule is None or self.all_of_them:
            return None
        least_s = least_plan_s(candidate.schedule)
        if least_s <= ALIKE * min(known):
            return None
        return f"not simulated: its busiest link alone takes {least_s * 1e6:.4g} us"

    def _report(self, found: dict[int, Candidate]) -> None:
        if self.progress is None or not self.names:
            return
        leader = min(found.values(), key=lambda candidate: candidate.finish_s, default=None)
        detail = ""
        if leader is not None and leader.served:
            gap = "" if leader.gap is None else f", {leader.gap:.1%} over the bound"
            detail = f"best so far {leader.method}: {leader.finish_s * 1e6:.1f} us{gap}"
        self.progress(len(found) / len(self.names), detail)
