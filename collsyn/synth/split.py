"""Allreduce from split links: a reduce-scatter in one part of every link beside an allgather in the other, at once.

The joint linear program (bounds/joint.py) splits the links so that every rank is the root of as much. Chunks then start
one after another: while the sums of one part of the data are gathered at their owners, the results of another part
spread, each phase by greedy choice on links with their part of the bandwidth, the reduce-scatter backwards in time.
Takes seconds for hundreds of ranks, where trees (joint.py) take minutes; docs/allreduce.md.
"""

import time
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, inf
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.bounds import tree_bound
from collsyn.bounds.joint import EvenSplit, even_split
from collsyn.bounds.tightest import tightest_rate
from collsyn.bounds.ways import steps_from_ranks
from collsyn.errors import Infeasible
from collsyn.model.arrays import F64, I64, Rows
from collsyn.model.schedule import COPY, REDUCE, Schedule
from collsyn.model.topology import Topology
from collsyn.synth.problem import Options, Problem, provenance

MAX_RANKS = 1024
# Sends of a schedule: of machines whose plans are simulated, for each rank of others, and of these in all.
FEW_ROWS, SMALL_RANKS, ROWS_PER_RANK, MAX_ROWS = 200_000, 64, 11_000, 6_000_000
# Chunks a rank that are asked for may lead to so many.
MOST_ROWS = 40_000_000
# FEW_ROWS more sends, which make the plans of small machines longer, have to win this much.
SENDS_COST = 0.02
# Sends of all attempts; seeds that are tried with the best number of chunks.
WORK, SEEDS = 16_000_000, 8
# Chunks are no shorter than this, but in small buffers so many are allowed.
SHORT_BYTES, MANY = 16384, 64
# Parts of links below this share of the bandwidth are not used, because their chunks would take too long, nor those
# below the first of these shares of what a rank is the root of that leaves enough to join all ranks.
LEAST_SHARE, LEAST_OF_ROOT = 1e-3, (0.25, 1e-2, 1e-6)
# Of the linear program's parts this much is left free, so that rounding does not overload a link.
SLACK = 1e-10
# Of how many chunks, among how many, a link takes the rarest.
SAMPLES, WINDOW = 4, 64
_GOLDEN, _CYCLE = (5**0.5 - 1) / 2, 97


class SplitMethod:
    """Serves an allreduce among all ranks on links that nothing shares, where two phases at once beat two in turn."""

    name = "split"

    def accepts(self, problem: Problem) -> str | None:
        """None if it serves the problem, else why not. Costs a linear program and some flows."""
        topology, chunks = problem.topology, problem.chunks_per_rank or 1
        if problem.kind != "allreduce":
            return f"makes no {problem.kind}"
        if not 2 <= topology.num_ranks <= MAX_RANKS:
            return f"needs 2 to {MAX_RANKS} ranks"
        if problem.groups is not None:
            return "needs all ranks in one process group"
        if topology.switch_names or topology.size_rates:
            return "needs links from rank to rank whose rate does not depend on the length"
        if topology.reduce_s_per_byte.any():
            return "needs reductions that take no time"
        if rows_of(topology.num_ranks, chunks) > MOST_ROWS:
            return "would need too many sends"
        try:
            split = even_split(topology)
        except Infeasible:
            return "needs ranks that reach each other"
        phase = tightest_rate(problem.as_kind("allgather", 1).collective(), topology)
        other = tightest_rate(problem.as_kind("reducescatter", 1).collective(), topology)
        if phase and other and split.rate * 1e-9 <= float(1 / (1 / phase + 1 / other) * (1 + Fraction(1, 10**6))):
            return "is no faster than a reduce-scatter and an allgather in turn"
        return None

    def prepare(self, kind: str) -> None:
        """Compile, or load, what is needed."""
        if kind == "allreduce":
            from collsyn.synth.split_kernels import spread

            two, one = np.arange(2), np.ones(2)
            spread(two, two[::-1].copy(), one, one, np.arange(3), two, two, one, SAMPLES, WINDOW, 0)

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The schedule, with the bound on trees. Without a time limit always the same work is done."""
        best = _Search(problem, options).solve()
        chunks = best.chunks_per_rank
        notes = {"chunks_per_rank": chunks, "split_algbw_gb_s": round(even_split(problem.topology).rate * 1e-9, 6)}
        origin = provenance(problem, options, self.name, **notes)
        schedule = best.schedule(problem, origin)
        bound = tree_bound(schedule.collective, problem.topology, problem.size_bytes)
        return replace(schedule, bounds=() if bound is None else (bound,))


def rows_of(ranks: int, chunks_per_rank: int) -> int:
    """Sends of a schedule: every chunk comes to its owner from all other ranks, and goes back to them."""
    return 2 * (ranks - 1) * ranks * chunks_per_rank


@dataclass(frozen=True, eq=False)
class Phase:
    """One part of the links, which the allgather uses forwards or the reduce-scatter backwards.

    `link` are the links that have a part, `src` and `dst` their ends as the chunks spread, `rate` their bytes/s.
    """

    topology: Topology
    link: I64
    src: I64
    dst: I64
    rate: F64

    @classmethod
    def of(cls, topology: Topology, part: F64, rate: float, backwards: bool) -> "Phase":
        """The part that a split with that rate of all data gives to one phase."""
        for share in LEAST_OF_ROOT:
            least = np.minimum(LEAST_SHARE * topology.bandwidth, share * rate / topology.num_ranks)
            link = np.flatnonzero(part > least)
            if _joins_all(topology, link):
                break
        src, dst = topology.src[link].astype(np.int64), topology.dst[link].astype(np.int64)
        return cls(topology, link, *((dst, src) if backwards else (src, dst)), part[link] * (1 - SLACK))

    def spread(self, owner: I64, release_s: F64, chunk_bytes: float, seed: int) -> "Run | None":
        """Chunks on their ways from their owners to all ranks; None where a rank cannot be reached."""
        from collsyn.synth.split_kernels import spread

        ranks, transfer_s = self.topology.num_ranks, chunk_bytes / self.rate
        arrival_s = self.topology.alpha_s[self.link] + transfer_s
        busy_s = self.topology.overhead_s[self.link] + transfer_s
        out_ptr = np.concatenate([[0], np.cumsum(np.bincount(self.src, minlength=ranks))])
        ways = self.src, self.dst, busy_s, arrival_s, out_ptr, np.argsort(self.src, kind="stable")
        finish_s, over, chunk, start_s = spread(*ways, owner, release_s, SAMPLES, WINDOW, seed)
        if len(chunk) < (ranks - 1) * len(owner):
            return None
        first_s = np.full(len(owner), inf)
        np.minimum.at(first_s, chunk, start_s)
        return Run(self, finish_s, over, chunk, start_s, arrival_s, first_s)


@dataclass(frozen=True, eq=False)
class Run:
    """Sends of a phase; `over` counts its links, and `first_s` is when each chunk leaves its owner first."""

    phase: Phase
    finish_s: float
    over: I64
    chunk: npt.NDArray[np.int32]
    start_s: F64
    arrival_s: F64
    first_s: F64

    def columns(self, begin_s: F64, chunk: npt.NDArray[np.int32], op: int) -> dict[str, npt.NDArray[Any]]:
        """Columns of a schedule whose sends begin then."""
        phase, over = self.phase, self.over
        ends = (phase.src, phase.dst) if op == COPY else (phase.dst, phase.src)
        return {
            "chunk": chunk,
            "src": ends[0].astype(np.int32)[over],
            "dst": ends[1].astype(np.int32)[over],
            "route": phase.link.astype(np.int32)[over],
            "start_s": begin_s,
            "rate": phase.rate[over],
            "op": np.full(len(over), op, dtype=np.uint8),
        }


@dataclass(frozen=True, eq=False)
class Pair:
    """A run for each phase; chunk c of `up`, which goes backwards in time, is the last but c of the data."""

    chunks_per_rank: int
    up: Run
    down: Run

    @property
    def delay_s(self) -> float:
        """The least time by which the allgather is behind the beginning so that every chunk is summed up by then."""
        return max(0.0, float((self.up.finish_s - self.up.first_s[::-1] - self.down.first_s).max()))

    @property
    def finish_s(self) -> float:
        """When all is done."""
        return max(self.up.finish_s, self.delay_s + self.down.finish_s)

    def schedule(self, problem: Problem, origin: dict[str, Any]) -> Schedule:
        """Both runs as a schedule."""
        up, down, last = self.up, self.down, len(self.up.first_s) - 1
        begin_s = np.maximum(up.finish_s - up.start_s - up.arrival_s[up.over], 0.0)
        parts = (
            up.columns(begin_s, (last - up.chunk).astype(np.int32), REDUCE),
            down.columns(self.delay_s + down.start_s, down.chunk, COPY),
        )
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        single = Rows(np.arange(problem.topology.num_links + 1), np.arange(problem.topology.num_links))
        collective = problem.collective(self.chunks_per_rank)
        return Schedule.build(collective, problem.topology, problem.size_bytes, single, origin, **columns)


class _Search:
    """Numbers of chunks from the most that is allowed down, then other seeds, as long as there is work left."""

    def __init__(self, problem: Problem, options: Options) -> None:
        self.problem, self.options = problem, options
        topology = problem.topology
        self.split: EvenSplit = even_split(topology)
        up = np.minimum(self.split.up, topology.bandwidth - self.split.down)
        parts = ((up, True), (self.split.down, False))
        self.phases = [Phase.of(topology, part, self.split.rate, backwards) for part, backwards in parts]
        self.best: Pair | None = None
        self._spent, self._begin_s = 0, time.monotonic()

    def solve(self) -> Pair:
        """The best pair; raises Infeasible where a phase does not reach all ranks."""
        for chunks in self._counts():
            before = self.best
            if not self._affords(chunks):
                break
            self._attempt(chunks, self.options.seed)
            if self.best is before:
                break
        assert self.best is not None
        for turn in range(1, SEEDS + 1):
            if not self._affords(self.best.chunks_per_rank):
                break
            self._attempt(self.best.chunks_per_rank, self.options.seed + turn * 1_000_003)
        return self.best

    def _counts(self) -> list[int]:
        """Chunks a rank to be tried, the most first."""
        if self.problem.chunks_per_rank is not None:
            return [self.problem.chunks_per_rank]
        ranks, size = self.problem.topology.num_ranks, self.problem.size_bytes
        rows = FEW_ROWS if ranks <= SMALL_RANKS else min(ROWS_PER_RANK * ranks, MAX_ROWS)
        least = max(self.problem.topology.min_piece_bytes, min(SHORT_BYTES, size / MANY), 1)
        most = max(1, min(rows // rows_of(ranks, 1), int(size / ranks / least)))
        return [count for turn in range(most.bit_length()) if (count := most >> turn)]

    def _affords(self, chunks: int) -> bool:
        """Whether one more attempt fits into the work, or the time; the first one does."""
        if self.best is None:
            return True
        limit_s, cost = self.options.time_limit_s, rows_of(self.problem.topology.num_ranks, chunks)
        if limit_s is None:
            return self._spent + cost <= WORK
        return (time.monotonic() - self._begin_s) * (1 + cost / self._spent) < limit_s

    def _attempt(self, chunks: int, seed: int) -> None:
        """Keep a pair that is better than the best."""
        ranks = self.problem.topology.num_ranks
        total, size = ranks * chunks, self.problem.size_bytes
        release_s = np.arange(total, dtype=np.float64) * (size / self.split.rate / total)
        owner = owners(self.problem.topology, chunks)
        up = self.phases[0].spread(owner[::-1].copy(), release_s, size / total, seed)
        down = self.phases[1].spread(owner, release_s, size / total, seed + 1)
        if up is None or down is None:
            raise Infeasible("a part of the links does not join all ranks")
        self._spent += rows_of(ranks, chunks)
        pair = Pair(chunks, up, down)
        if self.best is None or self._cost_s(pair) < self._cost_s(self.best):
            self.best = pair
            if self.options.progress is not None:
                self.options.progress(min(1.0, self._spent / WORK), f"{pair.finish_s * 1e6:.1f} us")

    def _cost_s(self, pair: Pair) -> float:
        """The finish, and a little for every send of a plan."""
        ranks = self.problem.topology.num_ranks
        sends = rows_of(ranks, pair.chunks_per_rank) if ranks <= SMALL_RANKS else 0
        return pair.finish_s * (1 + SENDS_COST * sends / FEW_ROWS)


def _joins_all(topology: Topology, links: I64) -> bool:
    """Whether these links lead from every rank to every other one."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    shape = (topology.num_ranks,) * 2
    graph = csr_array((np.ones(len(links)), (topology.src[links], topology.dst[links])), shape=shape)
    return int(connected_components(graph, connection="strong")[0]) == 1


def owners(topology: Topology, chunks_per_rank: int) -> I64:
    """The owner of every chunk: each rank once a turn, in an order that is near no wiring.

    Ranks that are near all others come first in the first turn, whose chunks are gathered in haste, and last in the
    last one, whose results have to be everywhere soon. O(ranks x links + chunks).
    """
    ranks = topology.num_ranks
    stride = next(step for step in range(max(1, round(ranks * _GOLDEN)), 2 * ranks) if gcd(step, ranks) == 1)
    turn, place = np.divmod(np.arange(ranks * chunks_per_rank), ranks)
    found = np.asarray((place * stride + turn * _CYCLE) % ranks, dtype=np.int64)
    if chunks_per_rank > 1:
        away = steps_from_ranks(topology)[:, :ranks]
        radius = np.maximum(away.max(axis=1), away.max(axis=0))
        first, last = found[:ranks], found[-ranks:]
        found[:ranks] = first[np.argsort(radius[first], kind="stable")]
        found[-ranks:] = last[np.argsort(-radius[last], kind="stable")]
    return found


SPLIT = SplitMethod()
