"""Instances of chunks, steps and rounds: the published sets, a search of all schedules on tiny machines, and proofs."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from collsyn.check.verify import verify_schedule
from collsyn.errors import Infeasible, InputError
from collsyn.solver import Answer, Limits, Status
from collsyn.synth import exact_expanded
from collsyn.synth.exact import EXACT, pareto, solve
from collsyn.synth.exact_pareto import FOUND, IMPOSSIBLE, Instance, Instances
from collsyn.synth.exact_program import StepProgram, least_ratio, proven_ratio
from collsyn.synth.exact_steps import StepCase
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.hops import hops
from collsyn.topology.resolve import load_topology

SIZE = 1 << 20


def problem(kind: str, topology: str, **more: object) -> Problem:
    return Problem(kind, load_topology(topology), SIZE, **more)  # type: ignore[arg-type]


def test_ctrl_c_in_a_program_ends_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    case = StepCase.of(problem("allgather", "ring:4"))
    model = StepProgram(case, 2, 1).model("tiny", np.zeros(StepProgram(case, 2, 1).num_columns), 0)
    stopped = Answer(Status.FEASIBLE, values=np.zeros(1), interrupted=True)
    monkeypatch.setattr(exact_expanded, "solve", lambda model, limits: stopped)
    with pytest.raises(KeyboardInterrupt):
        exact_expanded.found(model, Limits())


def test_the_set_of_dgx1_is_that_of_sccl() -> None:
    found = pareto(problem("allgather", "dgx1"), Options())
    assert [(str(one.instance), one.optimal) for one in found.choices] == [
        ("(2,2,3)", "any number of chunks"),
        ("(6,3,7)", "any number of chunks"),
    ]
    for one in found.choices:
        verify_schedule(one.schedule).raise_if_bad()
        assert one.schedule.collective.chunks_per_rank == one.instance.chunks


@pytest.mark.parametrize(
    ("kind", "topology", "instance"),
    [
        ("allgather", "dgx1", (6, 3, 7)),
        ("reducescatter", "dgx1", (2, 2, 3)),
        ("alltoall", "dgx1", (1, 2, 3)),
        ("allgather", "ring:8", (2, 4, 7)),
        ("broadcast", "ring:4", (1, 2, 2)),
        ("gather", "ring:4", (2, 2, 3)),
        ("scatter", "dgx1", (1, 2, 2)),
        ("allreduce", "ring:4", (2, 4, 6)),
        ("sendrecv", "ring:4", (1, 1, 1)),
    ],
)
def test_instances_that_exist_are_found(kind: str, topology: str, instance: tuple[int, int, int]) -> None:
    asked = problem(kind, topology)
    found = solve(asked, Instance(*instance), Options())
    verify_schedule(found.schedule).raise_if_bad()
    by_name = method("exact:{}/{}/{}".format(*instance)).synthesize(asked, Options())
    assert by_name.provenance["options"]["steps"] == instance[1]


@pytest.mark.parametrize(
    ("kind", "topology", "instance", "why"),
    [
        ("alltoall", "dgx1", (1, 2, 2), r"2 steps need at least 8/3 rounds a chunk \(linear program\)"),
        ("allgather", "dgx1", (1, 1, 4), "some receiver is 2 steps away"),
        ("allgather", "dgx1", (6, 3, 6), "3 steps need at least 7/6 rounds a chunk"),
        ("allgather", "ring:8", (2, 4, 6), "4 steps need at least 7/2 rounds a chunk"),
        ("allreduce", "ring:4", (2, 4, 5), "impossible"),
    ],
)
def test_instances_that_do_not_exist_are_proven_impossible(kind: str, topology: str, instance, why: str) -> None:
    with pytest.raises(Infeasible, match=why):
        solve(problem(kind, topology), Instance(*instance), Options())


def possible(topology: str, steps: int, rounds: int) -> bool:
    """Whether an allgather of one chunk a rank exists, by a search of all sets of sends, step by step.

    Every link carries a chunk a round; a step takes the rounds of its busiest link.
    """
    machine = load_topology(topology)
    table, n = hops(machine), machine.num_ranks
    ends = list(zip(table.src.tolist(), table.dst.tolist(), strict=True))
    seen: set[tuple[frozenset[tuple[int, int]], int, int]] = set()

    def search(held: frozenset[tuple[int, int]], left: int, rounds_left: int) -> bool:
        if len(held) == n * n:
            return True
        if left == 0 or rounds_left < left or (held, left, rounds_left) in seen:
            return False
        seen.add((held, left, rounds_left))
        for used in range(1, rounds_left - left + 2):
            per_link = [
                [
                    set(c)
                    for k in range(used + 1)
                    for c in combinations([x for x in range(n) if (a, x) in held and (b, x) not in held], k)
                ]
                for a, b in ends
            ]
            # Sending more never hurts: of each link only the largest choices.
            most = [[c for c in choices if len(c) == max(map(len, choices))] for choices in per_link]
            if any(search(held | new, left - 1, rounds_left - used) for new in _unions(ends, most)):
                return True
        return False

    return search(frozenset((rank, rank) for rank in range(n)), steps, rounds)


def _unions(ends, most, place: int = 0):
    if place == len(ends):
        yield frozenset()
        return
    for rest in _unions(ends, most, place + 1):
        for choice in most[place]:
            yield rest | {(ends[place][1], chunk) for chunk in choice}


@pytest.mark.parametrize("topology", ["ring:3", "ring:4", "mesh:3"])
def test_every_small_instance_is_as_a_search_of_all_schedules_says(topology: str) -> None:
    solver = Instances(problem("allgather", topology))
    for steps in range(1, 4):
        for rounds in range(steps, 5):
            verdict = solver.decide(Instance(1, steps, rounds)).verdict
            assert verdict == (FOUND if possible(topology, steps, rounds) else IMPOSSIBLE), (steps, rounds)


def test_the_bound_of_the_linear_program_holds_for_any_multipliers() -> None:
    case = StepCase.of(problem("allgather", "dgx1"))
    assert least_ratio(case, 2) == Fraction(3, 2)
    assert least_ratio(case, 3) == Fraction(7, 6)
    program, rng = StepProgram(case, 3, 1), np.random.default_rng(0)
    for _ in range(20):
        # Whatever the multipliers, nothing above the optimum is proven.
        multipliers = rng.normal(0, 0.2, len(program.rows[1]))
        assert proven_ratio(program, multipliers, 12, Fraction(3)) <= Fraction(7, 6)


def test_what_cannot_be_asked_is_told() -> None:
    with pytest.raises(InputError, match="expected chunks a rank, steps and rounds, such as exact:6/3/7"):
        method("exact:6-3")
    assert "more than 800" in str(EXACT.accepts(problem("allgather", "ndv2:2")))
    counts = [1, 2, 1, 1]
    assert "chunks differ in length" in str(EXACT.accepts(problem("allgather", "ring:4", counts=counts)))
    assert "has 2 chunks a rank, not 3" in str(
        method("exact:2/2/3").accepts(problem("allgather", "ring:4", chunks_per_rank=3))
    )
