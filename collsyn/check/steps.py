"""Verifies step tables: schedules of very many sends, replayed entry by entry without making sends of them."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from collsyn.check.bound_check import bound_problems
from collsyn.check.report import SHOWN, Findings, Problem, Report
from collsyn.check.words import us
from collsyn.model.arrays import I64
from collsyn.model.collective import Collective
from collsyn.model.steps import (
    GATHER,
    MAX_PORTS,
    MAX_STEPS,
    PHASES,
    StepTable,
    far_ends,
    links_both_ways,
    neighbours,
    never,
)
from collsyn.model.threads import in_blocks

STEP_CHECKS = ("fields", "routes", "loads", "held", "reductions", "result", "bounds")


def verify_steps(table: StepTable) -> Report:
    """Replay a table and recheck its bounds; nothing is taken from whoever made it.

    Every entry is looked at: that its step and port exist, that no link carries two chunks in one step, that the sender
    got the chunk at least `lag` steps before or is its root, and that every rank gets every chunk. Steps grow along
    each chain of senders, so that all chains begin at the root. Backwards the same says that every rank sends its sum
    once, after all that it gathers, and that all sums end at the root. The length of a step and of an arrival follow
    from the slowest link and the longest chunk, so that links are free and data is there in time. O(entries), all
    cores.
    """
    findings = Findings("schedule")
    wrong = _field_problems(table)
    if not findings.add("fields", wrong, f"{table.num_sends} sends"):
        findings.skip(STEP_CHECKS[1:], "values are out of range")
        return findings.report()
    faults = _Faults.of(table)
    for name, kinds in _told(table).items():
        findings.add(name, *faults.problems(kinds))
    findings.add("bounds", bound_problems(table), f"{len(table.bounds)} rechecked")
    return findings.report()


def roots(collective: Collective) -> I64 | None:
    """The rank at which every chunk's tree is rooted, None if the collective is not over all ranks or of another kind.

    The only contributor, or the only receiver; in an allreduce chunks are rooted at the ranks in turn.
    """
    everyone = np.arange(collective.num_ranks)
    sets, kind = collective.sets, collective.kind
    if kind not in PHASES:
        return None
    whole = np.array([np.array_equal(np.sort(sets[i]), everyone) for i in range(len(sets))])
    if kind == "allreduce":
        alike = bool(whole[collective.pre].all() and whole[collective.post].all())
        return np.arange(collective.num_chunks) // collective.chunks_per_rank if alike else None
    ends, all_ranks = (collective.pre, collective.post) if kind == "allgather" else (collective.post, collective.pre)
    if not whole[all_ranks].all() or (sets.lengths()[ends] != 1).any():
        return None
    return sets.data[sets.ptr[ends]].astype(np.int64)


def _told(table: StepTable) -> dict[str, list[tuple[int, str, str]]]:
    """For every check the faults that it tells: number, what is wrong, what would be right."""
    from collsyn.check import _steps_kernels as faults

    held = "is sent on before it came" if table.phases[-1] != GATHER else "is summed up after it was sent on"
    return {
        "routes": [(faults.NO_PORT, "comes by a port that the rank has not", "a neighbour")],
        "loads": [(faults.TWICE, "takes a link that carries another chunk in this step", "one chunk a step")],
        "held": [
            (faults.NOT_HELD, held, f"at least {table.lag} steps between"),
            (faults.LATE_STEP, "has a step beyond the end", f"0 .. {table.num_steps - 1}"),
        ],
        "reductions": [(faults.AT_ROOT, "moves at the root of its tree", "no step there")],
        "result": [(faults.MISSING, "has no step", "one for every rank but the root")],
    }


def _field_problems(table: StepTable) -> list[Problem]:
    """What keeps the table from being replayed at all."""
    collective, topology = table.collective, table.topology
    shape = (topology.num_ranks, collective.num_chunks)
    problems = []

    def wrong(where: str, what: str, expected: str, found: object) -> None:
        problems.append(Problem(where, what, expected, str(found)))

    if topology.switch_names:
        wrong(f"topology {topology.name}", "has switches", "links between ranks alone", len(topology.switch_names))
    if topology.size_rates:
        wrong(f"topology {topology.name}", "has rates by length", "one bandwidth a link", len(topology.size_rates))
    if collective.num_ranks != topology.num_ranks or roots(collective) is None:
        wrong(
            "collective", "does not fit", f"{' or '.join(PHASES)} over all {topology.num_ranks} ranks", collective.kind
        )
    for name, values in (("steps", table.steps), ("ports", table.ports)):
        if values.shape != shape:
            wrong(name, "has another shape", f"{shape[0]} x {shape[1]}", " x ".join(map(str, values.shape)))
    if table.lag < 1 or not 1 <= table.num_steps <= min(never(table.steps), MAX_STEPS):
        wrong("lag or num_steps", "is out of range", "at least 1", f"{table.lag}, {table.num_steps}")
    if not problems and int(neighbours(topology, table.phases[0]).lengths().max()) > MAX_PORTS:
        wrong("topology", "has a rank with too many neighbours", f"at most {MAX_PORTS}", "more")
    if len(table.phases) == 2 and not links_both_ways(topology):
        wrong(f"topology {topology.name}", "has links one way only", "links both ways for an allreduce", "others")
    return problems


class _Faults:
    """Faults of a table, counted and named."""

    def __init__(self, table: StepTable, count: I64, first: Mapping[int, list[tuple[int, int]]]) -> None:
        self.table, self.count, self.first = table, count, first

    @classmethod
    def of(cls, table: StepTable) -> "_Faults":
        from collsyn.check import _steps_kernels

        phase = table.phases[-1]
        near = neighbours(table.topology, phase)
        owner = roots(table.collective)
        assert owner is not None
        ends = far_ends(table.topology, phase)[near.data].astype(np.int64)
        task = partial(
            _steps_kernels.faults,
            *(table.steps, table.ports, near.ptr, ends, owner, table.lag, table.num_steps, SHOWN),
        )
        found = in_blocks(task, len(table.steps))
        first: dict[int, list[tuple[int, int]]] = {}
        for kind in range(_steps_kernels.NUM_FAULTS):
            places = [place for count, part in found for place in part[kind, : min(count[kind], SHOWN)].tolist()]
            first[kind] = [(rank, chunk) for rank, chunk in places[:SHOWN]]
        return cls(table, np.sum([count for count, _ in found], axis=0), first)

    def problems(self, kinds: list[tuple[int, str, str]]) -> tuple[list[Problem], str, int]:
        """The first problems of some kinds, what is said where there are none, and how many there are."""
        table, found = self.table, []
        for kind, what, expected in kinds:
            for rank, chunk in self.first[kind]:
                step = int(table.steps[rank, chunk])
                there = "none" if step == never(table.steps) else f"step {step}, port {int(table.ports[rank, chunk])}"
                found.append(Problem(f"chunk {chunk} at rank {rank}", what, expected, there))
        total = int(self.count[[kind for kind, _, _ in kinds]].sum())
        return found, f"{table.num_sends} sends in steps of {us(table.step_s)}", total
