"""Allreduce along pairs of trees: sums go up to roots in one part of every link, copies down in the other, at once.

A reduce-scatter followed by an allgather makes every rank a root of as much as any other, and each phase leaves links
idle that only the other one needs. The joint linear program (bounds/joint.py) chooses roots and splits links; on a mesh
it is nearly twice as fast. Trees are found by column generation (joint_mix.py); docs/allreduce.md.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, inf

import numpy as np

from collsyn.bounds import tree_bound
from collsyn.bounds.joint import joint_split
from collsyn.bounds.tightest import tightest_rate
from collsyn.errors import Infeasible
from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology
from collsyn.synth.joint_flow import JointFlow, Pace, Pairs, paired
from collsyn.synth.joint_mix import Counts, JointPools, Mix, exact_units, in_units
from collsyn.synth.problem import Options, Problem, provenance

MAX_RANKS = 1024
# Messages put in order in all; a finish this close to the time of the bytes at the optimum is good enough.
WORK, GOOD_ENOUGH = 6_000_000, 1.015
# Rows of a schedule, unless the least number of chunks needs more; more for each rank of machines whose plans are not
# simulated.
MAX_ROWS, ROWS_PER_RANK, SMALL_RANKS = 200_000, 5_000, 64
# Parts in which the mix of an orbit of trees is rounded, besides those that need no rounding.
UNITS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128, 192, 256, 384, 512)
# How many roundings of a mix, and mixes, are tried; chunks of a part; changes in vain after which no more are tried.
KEPT, MIXES, PATIENCE = 8, 3, 40
# Congestion over the least that fewer parts may have for still fewer ones to be looked at.
WORST = 1.25
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_LEAD, _LEADS, _HORIZONS = 0.06, (0.0, 0.03, 0.06, 0.12, 0.3, 1.0), (0.0, 0.0, 0.95)
_ALL = 1 << 40
# Chunks are no shorter than this, but in small buffers so many are allowed.
SHORT_BYTES, MANY = 16384, 64
# Roundings with more trees have to win this much; MAX_ROWS messages more, which make plans longer, that much.
_WORTH_IT, _MESSAGES = 2e-3, 0.02


class JointMethod:
    """Serves an allreduce among all ranks wherever reduce-scatter and allgather do not reach the same rate."""

    name = "joint"

    def accepts(self, problem: Problem) -> str | None:
        """None if it serves the problem, else why not. Costs a linear program and some flows."""
        topology = problem.topology
        if problem.kind != "allreduce":
            return f"makes no {problem.kind}"
        if not 2 <= topology.num_ranks <= MAX_RANKS:
            return f"needs 2 to {MAX_RANKS} ranks"
        if problem.groups is not None:
            return "needs all ranks in one process group"
        try:
            split = joint_split(topology)
            JointPools(topology, 0, lambda: False).start()
        except Infeasible:
            return "needs ranks that reach each other"
        phase = tightest_rate(problem.as_kind("allgather", 1).collective(), topology)
        other = tightest_rate(problem.as_kind("reducescatter", 1).collective(), topology)
        if phase and other and split.algbw_exact <= 1 / (1 / phase + 1 / other) * (1 + Fraction(1, 10**6)):
            return "is no faster than a reduce-scatter and an allgather, which reach the same rate"
        return None

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The schedule, with the bound on trees. Without a time limit always the same work is done."""
        end_s = inf if (limit := options.time_limit_s) is None else time.monotonic() + limit
        found = _best(problem, options.seed, lambda: time.monotonic() > end_s)
        flow, pairs = found.flow, found.flow.pairs
        chunks = flow.num_chunks // problem.topology.num_ranks
        schedule = flow.schedule(problem.collective(chunks), found.pace)
        rate = 1e-9 / pairs.least_part_s
        notes = {"chunks_per_rank": chunks, "pairs": len(pairs.units), "height": pairs.height}
        origin = provenance(problem, options, self.name, **notes, trees_algbw_gb_s=round(rate, 6))
        bound = tree_bound(schedule.collective, problem.topology, problem.size_bytes)
        return replace(schedule, provenance=origin, bounds=() if bound is None else (bound,))


@dataclass(frozen=True, eq=False)
class _Choice:
    flow: JointFlow
    pace: Pace
    finish_s: float
    messages: int

    @property
    def cost_s(self) -> float:
        """The finish, and a little for every message of a plan."""
        small = self.flow.pairs.topology.num_ranks <= SMALL_RANKS
        return self.finish_s * (1 + (_MESSAGES * self.messages / MAX_ROWS if small else 0.0))


def _best(problem: Problem, seed: int, late: Callable[[], bool]) -> _Choice:
    """The best choice that the work allows: roundings of several mixes, few chunks and many, then other paces."""
    search = _Search(problem, late)
    pools = JointPools(problem.topology, seed, late)
    for mix in reversed(pools.mixes()[-MIXES:]):
        for pairs in _roundings(pools, mix, search):
            search.look_at(pairs)
    search.refine(seed)
    assert search.best is not None
    return search.best


def _roundings(pools: JointPools, mix: Mix, search: "_Search") -> Iterator[Pairs]:
    """Pairs of trees for ever fewer parts, unless other parts as few have clearly less congestion."""
    known: list[Counts] = []
    exact = exact_units(mix)
    for units in sorted({*UNITS, *([exact] if exact else [])}, reverse=True):
        if not search.splits(units * len(pools.symmetry)) or (known and search.late()):
            continue
        known.append(in_units(mix, pools.pools[0].room, units))
        if known[-1].congestion > WORST * min(counts.congestion for counts in known):
            break
    front: list[Counts] = []
    for counts in reversed(known):
        if not front or counts.congestion < front[-1].congestion * (1 - _WORTH_IT):
            front.append(counts)
    for counts in reversed(front[-KEPT:]):
        yield paired(*(pools.unfolded(counts, kind) for kind in (0, 1)))


class _Search:
    """The best choice so far, and what is left of the work."""

    def __init__(self, problem: Problem, late: Callable[[], bool]) -> None:
        self.problem, self.late = problem, late
        self.topology: Topology = problem.topology
        self.optimum_s = problem.size_bytes / float(joint_split(problem.topology).algbw_exact) * 1e-9
        self.best: _Choice | None = None
        self.work = 0

    @property
    def is_over(self) -> bool:
        """Whether there is a choice, and it is good enough or nothing is left to find a better one with."""
        if self.best is None:
            return False
        return self.best.finish_s <= GOOD_ENOUGH * self.optimum_s or self.work > WORK or self.late()

    def splits(self, units: int) -> list[int]:
        """Chunks for every unit that are allowed: all chunks together are a multiple of the ranks, or as asked."""
        ranks, asked = self.topology.num_ranks, self.problem.chunks_per_rank
        step = ranks // gcd(ranks, units)
        if asked is not None:
            return [asked * ranks // units] if asked * ranks % units == 0 else []
        rows = units * 2 * (ranks - 1)
        least = max(self.topology.min_piece_bytes, min(SHORT_BYTES, self.problem.size_bytes / MANY), 1)
        most_rows = MAX_ROWS if ranks <= SMALL_RANKS else ROWS_PER_RANK * ranks
        allowed = [step * s for s in SPLITS if rows * step * s <= most_rows]
        wide = [s for s in allowed if self.problem.size_bytes / (units * s) >= least]
        return wide or ([step] if step * units == ranks else [])

    def look_at(self, pairs: Pairs) -> None:
        """Try pairs with few chunks and with many, each chunk alone, or all that are there together."""
        for split in self.splits(int(pairs.units.sum()))[::-2][::-1]:
            flow = JointFlow(pairs, split, self.problem.size_bytes)
            for batch in (1, _ALL) if split > 1 else (1,):
                self.attempt(flow, Pace(batch, _LEAD, 0.0))

    def attempt(self, flow: JointFlow, pace: Pace) -> None:
        """Keep a choice that is better than the best."""
        if self.is_over or (self.best is not None and flow.least_s >= self.best.finish_s):
            return
        messages, _, _, finish_s = flow.order(pace)
        self.work += len(messages)
        choice = _Choice(flow, pace, finish_s, len(messages))
        if self.best is None or choice.cost_s < self.best.cost_s:
            self.best = choice

    def refine(self, seed: int) -> None:
        """Change the pace of the best, and its number of chunks, at random, until nothing was won PATIENCE times."""
        random, in_vain = np.random.default_rng(seed), 0
        while not self.is_over and in_vain < PATIENCE:
            best, in_vain = self.best, in_vain + 1
            assert best is not None
            pairs = best.flow.pairs
            splits = [s for s in self.splits(int(pairs.units.sum())) if best.flow.split / 4 <= s <= 4 * best.flow.split]
            split, lead, horizon = (random.choice(of) for of in (splits, _LEADS, _HORIZONS))
            pace = Pace(best.pace.batch, float(lead), float(horizon), int(random.integers(1, 1 << 30)))
            self.attempt(JointFlow(pairs, int(split), self.problem.size_bytes), pace)
            if self.best is not best:
                in_vain = 0


JOINT = JointMethod()
