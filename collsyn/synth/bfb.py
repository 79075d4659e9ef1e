"""Breadth-first broadcast on machines wired rank to rank: latency-optimal, loads of every step balanced.

Source: Efficient Direct-Connect Topologies for Collective Communications, arXiv 2202.03356; docs/bfb.md has the
definitions.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import lcm

from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology
from collsyn.synth.baseline import MAX_ROWS
from collsyn.synth.bfb_broadcast import broadcast
from collsyn.synth.bfb_cost import BfbCost, arcs_of, bfb_cost
from collsyn.synth.bfb_paths import pieces_to_one, too_many
from collsyn.synth.bfb_shares import Shares, in_order_of_steps, in_step, shares
from collsyn.synth.problem import Options, Problem, provenance
from collsyn.synth.transform import by_composition, by_reversal

# Kinds in which every piece goes to one rank.
TO_ONE = ("alltoall", "alltoallv", "scatter", "sendrecv")
# Schedules of more sends are not made; of what is made from an allgather, for which sends have to be sorted.
MOST_ROWS, MOST_SORTED = 1 << 25, 1 << 20
# Where one chunk a rank makes more than MAX_ROWS sends, so many sends may be made of several.
MANY_ROWS = 1 << 21
# Chunks a rank that are tried; all steps are exact at the least common multiple of their loads' denominators.
CHUNKS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 60)
# A choice of chunks this close to the best one is as good.
ALIKE = 1.001


class BfbMethod:
    """Serves allgather, broadcast, their reversals, allreduce, and what goes from one rank to one other."""

    name = "bfb"

    def accepts(self, problem: Problem) -> str | None:
        """None if it serves the problem, else why not."""
        return obstacle(problem) or _too_large(problem)

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The schedule; raises Infeasible where a rank cannot be reached."""
        schedule = self._solve(problem)
        chunks = schedule.collective.chunks_per_rank
        return replace(
            schedule, provenance=provenance(problem, options, self.name, chunks_per_rank=chunks, **costs(problem))
        )

    def _solve(self, problem: Problem) -> Schedule:
        if problem.kind == "allreduce":
            return by_composition(problem, self._solve)
        if problem.kind in ("reducescatter", "reduce", "gather"):
            return by_reversal(problem, self._solve)
        if problem.kind in TO_ONE:
            return pieces_to_one(problem)
        return broadcast(problem) if problem.kind == "broadcast" else allgather(problem)


def obstacle(problem: Problem) -> str | None:
    """Why breadth-first broadcast does not serve a problem on any topology of its kind, or None."""
    if problem.kind == "custom":
        return "makes no custom"
    if problem.topology.switch_names:
        return "needs links from rank to rank; this machine has switches"
    if problem.kind in TO_ONE or problem.kind == "gather":
        return too_many(problem)
    if problem.groups is not None:
        return "serves all ranks at once, no process groups"
    if problem.counts is not None:
        return "needs parts of equal length"
    return None


def _too_large(problem: Problem) -> str | None:
    n = problem.topology.num_ranks
    most = MOST_ROWS if problem.kind == "allgather" else MOST_SORTED
    if problem.kind not in ("allgather", "reducescatter", "allreduce") or n * (n - 1) <= most:
        return None
    return f"makes at most {most} sends; {n} ranks need {n * (n - 1)}"


@lru_cache(maxsize=32)
def known_cost(topology: Topology) -> BfbCost:
    """`bfb_cost`, computed once."""
    return bfb_cost(topology)


def costs(problem: Problem) -> dict[str, object]:
    """What a schedule of all ranks' data says of its steps and its exact bandwidth factor."""
    if problem.kind not in ("allgather", "reducescatter"):
        return {}
    cost = known_cost((problem if problem.kind == "allgather" else problem.reversed).topology)
    return {"steps": cost.steps, "bandwidth_factor": str(cost.factor)}


def allgather(problem: Problem) -> Schedule:
    """The allgather with the chunks that pay, those of one link and step as one message or each alone."""
    topology, n = problem.topology, problem.topology.num_ranks
    options = list(_candidates(problem))
    best_s = min(seconds for seconds, _ in options)
    chosen = next(found for seconds, found in options if seconds <= best_s * ALIKE)
    if n * (n - 1) * chosen.chunks > MAX_ROWS and not topology.size_rates:
        return in_step(problem, chosen)
    finer = [chosen]
    if problem.chunks_per_rank is None:
        most = min(MAX_ROWS // max(n * (n - 1), 1), most_chunks(problem))
        finer += [shares(topology, chosen.chunks * k) for k in (2, 4) if chosen.chunks * k <= most]
    found = [in_order_of_steps(problem, each, whole) for each in finer for whole in (True, False)]
    return min(found, key=lambda schedule: schedule.finish_s)


def most_chunks(problem: Problem) -> int:
    """Chunks a rank that are long enough for a message."""
    return max(1, problem.size_bytes // (problem.topology.num_ranks * max(problem.topology.min_piece_bytes, 1)))


def _candidates(problem: Problem) -> Iterator[tuple[float, Shares]]:
    """Shares for several numbers of chunks, each with the time of its steps one after the other; few chunks first."""
    topology, n = problem.topology, problem.topology.num_ranks
    if problem.chunks_per_rank is not None:
        counts = [problem.chunks_per_rank]
    else:
        exact = _exact_chunks(topology)
        rows = n * max(n - 1, 1)
        most = MAX_ROWS if rows <= MAX_ROWS else MANY_ROWS
        ladder = sorted({*CHUNKS, exact})
        counts = [c for c in ladder if c == 1 or (c <= exact and c * rows <= most and c <= most_chunks(problem))]
    for chunks in counts:
        found = shares(topology, chunks)
        yield float(found.step_seconds(problem.size_bytes / (n * chunks)).sum()), found


def _exact_chunks(topology: Topology) -> int:
    """Chunks a rank with which the busiest links of every step carry whole ones."""
    unit = Fraction(topology.num_ranks, max(arcs_of(topology).into_most, 1))
    return lcm(*((step * unit).denominator for step in known_cost(topology).per_step))


BFB = BfbMethod()
