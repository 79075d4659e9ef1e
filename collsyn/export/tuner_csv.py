"""`collsyn export --format tuner-csv`: rows for NCCL's example tuner plugin, where NCCL's own algorithms are as good.

NCCL runs no foreign schedule, but a tuner tells it which of its algorithms to take at which sizes. Of those, `ring` and
`tree` are algorithms that are known here (docs/formats/tuner-csv.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt
from pathlib import Path

from collsyn.check.simulate_plan import simulate_plan
from collsyn.errors import Infeasible, InputError
from collsyn.export.sets import by_protocol
from collsyn.export.table import Exported, Options
from collsyn.lower.lower import lower
from collsyn.model.plan import Plan
from collsyn.model.schedule import Schedule
from collsyn.synth.problem import Options as SynthOptions
from collsyn.synth.problem import Problem
from collsyn.synth.table import method
from collsyn.units import format_size, s_to_us

# NCCL's name -> ours.
ALGORITHMS = {"ring": "ring", "tree": "double-binary-tree"}
PROTOCOLS = ("ll", "ll128", "simple")
COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
COLUMNS = "collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks"
# Simulated times this close are equally good: what the simulator leaves out is more.
ALIKE = 1.01
# The reader keeps sizes in 64 bits without a sign; as many as all of them have.
_NO_END = (1 << 63) - 1


@dataclass(frozen=True)
class _Verdict:
    """At one size: the best of NCCL's algorithms and its time, and the time of what is recommended."""

    size_bytes: int
    algorithm: str | None
    nccl_s: float
    ours_s: float

    @property
    def is_nccl(self) -> bool:
        """Whether NCCL has nothing to lose with its own algorithm."""
        return self.algorithm is not None and self.nccl_s <= self.ours_s * ALIKE


def export(sources: Sequence[tuple[Path, Schedule | Plan]], options: Options) -> list[Exported]:
    """One file for schedules of any collectives and sizes; raises InputError where no row is left."""
    refused = ("dialect", "in_place", "min_bytes", "max_bytes", "size_bytes", "instances", "max_channels")
    options.refuse("tuner-csv", *refused)
    if options.protocol is not None and options.protocol.lower() not in PROTOCOLS:
        raise InputError(f"--proto: is {options.protocol!r}; expected one of {', '.join(PROTOCOLS)}")
    sets: dict[tuple[str, str], list[tuple[Path, Schedule]]] = {}
    for path, source in sources:
        if isinstance(source, Plan):
            raise InputError(f"{path}: is a plan; expected schedules, whose method is compared with NCCL's")
        kind = source.collective.kind
        if kind not in COLLECTIVES:
            raise InputError(f"{path}: NCCL's tuner knows no {kind}; it knows {', '.join(COLLECTIVES)}")
        if len(source.collective.groups) > 1 or source.collective.spec.get("counts") is not None:
            raise InputError(f"{path}: is for process groups or counts, which NCCL's tuner cannot tell apart")
        sets.setdefault((kind, source.topology.name), []).append((path, source))
    lines, notes = [f"# {COLUMNS}"], []
    for (kind, _), members in sorted(sets.items()):
        rows, left_out = _rows(kind, members, options)
        lines += rows
        notes += left_out
    if len(lines) == 1:
        raise InputError(f"tuner-csv: no row is left: {'; '.join(notes)}; MSCCL XML or MSCCL++ JSON can say these")
    text = "\n".join([*lines, *(f"# {note}" for note in notes), ""])
    facts = {"format": "tuner-csv", "rows": len(lines) - 1, "left_out": notes}
    return [Exported("nccl-tuner.csv", text.encode(), facts)]


def _rows(kind: str, members: Sequence[tuple[Path, Schedule]], options: Options) -> tuple[list[str], list[str]]:
    """Rows of a collective on a topology, each for the sizes around its own, and why others are left out."""
    protocol = options.protocol
    ordered = sorted(members, key=lambda member: member[1].size_bytes)
    for (_, a), (path, b) in pairwise(ordered):
        if a.size_bytes == b.size_bytes:
            raise InputError(f"{path}: is for {format_size(a.size_bytes)} like another; expected one file a size")
    sizes = [schedule.size_bytes for _, schedule in ordered]
    between = options.borders if options.borders is not None else [isqrt(a * b) for a, b in pairwise(sizes)]
    borders = [0, *between, _NO_END]
    rows, left_out = [], []
    for number, (_, schedule) in enumerate(ordered):
        verdict = _judged(schedule)
        here = f"{kind} of {format_size(verdict.size_bytes)} on {schedule.topology.name}"
        if not verdict.is_nccl:
            other = "none of NCCL's is known to serve it"
            if verdict.algorithm is not None:
                other = f"NCCL's {verdict.algorithm} takes {s_to_us(verdict.nccl_s):.4g} us"
            ours = schedule.provenance.get("method", "the schedule")
            left_out.append(f"{here}: {ours} takes {s_to_us(verdict.ours_s):.4g} us, {other}")
            continue
        how = (protocol or by_protocol(verdict.size_bytes, PROTOCOLS)).lower()
        nodes = max(1, len(schedule.topology.boxes))
        first, last = borders[number], borders[number + 1] - (number + 1 < len(ordered))
        rows.append(f"{kind},{first},{last},{verdict.algorithm},{how},-1,{nodes},{schedule.topology.num_ranks}")
    return rows, left_out


def _judged(schedule: Schedule) -> _Verdict:
    """Times by plans, as runtimes go through them: the schedule's own, and NCCL's algorithms on the same problem."""
    collective = schedule.collective
    problem = Problem(collective.kind, schedule.topology, schedule.size_bytes, root=collective.root)
    best: tuple[float, str | None] = (float("inf"), None)
    for name, ours in ALGORITHMS.items():
        known = method(ours)
        if (name == "tree" and collective.kind != "allreduce") or known.accepts(problem) is not None:
            continue
        try:
            best = min(best, (_time_s(known.synthesize(problem, SynthOptions())), name), key=lambda pair: pair[0])
        except Infeasible:
            continue
    return _Verdict(schedule.size_bytes, best[1], best[0], _time_s(schedule))


def _time_s(schedule: Schedule) -> float:
    return simulate_plan(lower(schedule, ahead=False), schedule.topology, schedule.size_bytes).finish_s
