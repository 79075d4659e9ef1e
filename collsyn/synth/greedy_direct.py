"""Greedy allgather on links that nothing shares: equal ones in lockstep, others by a queue of events a speed."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64, I64, Rows
from collsyn.model.collective import Collective
from collsyn.model.schedule import COPY, REDUCE, Schedule
from collsyn.model.topology import Topology
from collsyn.synth.problem import Options, Problem, turned

if TYPE_CHECKING:
    from collsyn.synth.greedy_rate_kernels import Network
    from collsyn.synth.greedy_step_kernels import U16

# What is served: an allgather, and what is one backwards, or both.
KINDS = ("allgather", "reducescatter", "allreduce")

# Numbers of chunks are kept in 16 bits, one of which means none.
MOST_CHUNKS = 65_535

# What the runs of one search may cost in sends, a look at one more candidate for a chunk being LOOK of a send;
# schedules of more sends than MOST_SENDS are not listed.
WORK, LOOK, MOST_SENDS = 2_500_000, 0.1, 40_000_000

# From so many deliveries on runs in lockstep use all cores.
MANY = 8_000_000

# A finish this close to the bound of whole chunks, or to that of any splitting, needs no better one.
CLOSE_TO_CHUNKS, CLOSE_TO_FLUID = 1 + 1e-9, 1.001

# The best chunk counts are tried again with so many other seeds, more of them where time decides.
REFINED, SEEDS, MOST_SEEDS = 2, 3, 1000


@dataclass(frozen=True, eq=False)
class Links:
    """Links of a topology in the order of (end, source): those into rank v are `into[v] : into[v + 1]`.

    `number` are their numbers in the topology; `speed` is which of the kinds of links, by costs, each one is.
    """

    topology: Topology
    number: I64
    src: I64
    dst: I64
    into: I64
    out_of: I64
    out_links: I64
    speed: I64
    kinds: I64

    @classmethod
    def of(cls, topology: Topology) -> "Links":
        """The links of a topology without switches."""
        ranks = topology.num_ranks
        number = np.lexsort((np.arange(topology.num_links), topology.src, topology.dst))
        src, dst = topology.src[number].astype(np.int64), topology.dst[number].astype(np.int64)
        costs = np.stack([topology.alpha_s, topology.beta_s_per_byte, topology.overhead_s])[:, number]
        _, kinds, speed = np.unique(costs, axis=1, return_index=True, return_inverse=True)
        ends = [np.concatenate([[0], np.cumsum(np.bincount(end, minlength=ranks))]) for end in (dst, src)]
        out_links = np.argsort(src, kind="stable")
        return cls(topology, number, src, dst, ends[0], ends[1], out_links, speed.reshape(-1), number[kinds])

    def alike(self, other: "Links") -> bool:
        """Whether another topology has links of the same costs between the same ranks."""
        ends = np.array_equal(self.src, other.src) and np.array_equal(self.dst, other.dst)
        return ends and np.array_equal(self.costs, other.costs)

    @property
    def costs(self) -> F64:
        """Alpha, beta and overhead of every link."""
        columns = [self.topology.alpha_s, self.topology.beta_s_per_byte, self.topology.overhead_s]
        return np.stack(columns)[:, self.number]

    def times(self, num_bytes: float) -> tuple[F64, F64]:
        """Per kind, how long a message of that many bytes occupies a link, and when it arrives."""
        transfer_s = num_bytes * self.topology.beta_s_per_byte[self.kinds]
        return self.topology.overhead_s[self.kinds] + transfer_s, self.topology.alpha_s[self.kinds] + transfer_s

    @cached_property
    def kinds_into(self) -> I64:
        """The different numbers of links of each kind that enter some rank; one row a combination."""
        counts = np.zeros((self.topology.num_ranks, len(self.kinds)), dtype=np.int64)
        np.add.at(counts, (self.dst, self.speed), 1)
        return np.unique(counts, axis=0)

    def least_steps(self, chunks: int) -> int:
        """Steps in which so many chunks can enter the rank with the fewest links."""
        return -(-chunks // int(np.diff(self.into).min()))

    def bound_s(self, chunks: int, num_bytes: float) -> float:
        """No rank gets that many chunks of that length, one a message, earlier over the links into it."""
        busy_s, arrival_s = self.times(num_bytes)
        latest = 0.0
        for counts in self.kinds_into:
            low = 0.0
            high = float((arrival_s + chunks * busy_s)[counts > 0].min(initial=math.inf))
            while high < math.inf and high - low > 1e-12 * high:
                middle = (low + high) / 2
                brought = np.floor((middle - arrival_s) / busy_s * (1 + 1e-12)) + 1
                enough = (np.maximum(brought, 0) * counts).sum() >= chunks
                low, high = (low, middle) if enough else (middle, high)
            latest = max(latest, high)
        return latest

    def fluid_bound_s(self, num_bytes: float) -> float:
        """No rank gets that many bytes earlier over the links into it, however they are split."""
        rates = (self.kinds_into / self.topology.beta_s_per_byte[self.kinds]).sum(axis=1)
        slowest = float(rates.min())
        return num_bytes / slowest + float(self.topology.alpha_s.min()) if slowest > 0 else math.inf

    @cached_property
    def regions(self) -> I64:
        """A number for every rank: which of the parts it is in that all but the slower links join."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        beta = self.topology.beta_s_per_byte[self.kinds][self.speed]
        labels: I64 = np.zeros(self.topology.num_ranks, dtype=np.int64)
        for slowest in np.unique(beta)[:-1]:
            kept = beta <= slowest
            shape = (self.topology.num_ranks,) * 2
            joined = csr_array((np.ones(int(kept.sum())), (self.src[kept], self.dst[kept])), shape=shape)
            parts, found = connected_components(joined, directed=False)
            if parts > 1:
                return np.asarray(found, dtype=np.int64)
        return labels


@dataclass(frozen=True, eq=False)
class DirectRun:
    """Sends in the order of (start, chunk, link), which counts those of `links`; `arrival_s` has one entry a kind."""

    links: Links
    collective: Collective
    finish_s: float
    arrival_s: F64
    start_s: F64
    chunk: I64
    link: I64


# What an attempt costs in sends, and the attempt: its finish, and the run if it is the best so far.
Attempt = tuple[float, Callable[[Collective, I64], tuple[float, DirectRun | None]]]


def obstacle(problem: Problem) -> str | None:
    """Why a problem is not one of this module, None if it is."""
    topology = problem.topology
    if problem.kind not in KINDS:
        return "is no allgather or what comes from one"
    if problem.reduces and topology.reduce_s_per_byte.any():
        return "has reductions that take time"
    if problem.groups is not None or problem.counts is not None or problem.spec is not None:
        return "is not among all ranks with equal shares"
    if topology.switch_names or topology.size_rates or topology.num_links == 0 or topology.num_ranks < 2:
        return "has links that messages share, or whose rate depends on the length"
    if (problem.chunks_per_rank or 1) * topology.num_ranks > MOST_CHUNKS:
        return "has too many chunks"
    return None


class DirectSearch:
    """The search for the best run; `problem` must be an allgather without obstacle."""

    def __init__(self, problem: Problem, options: Options) -> None:
        self.problem, self.options = problem, options
        self.links = Links.of(problem.topology)
        self.best: DirectRun | None = None
        self._start_s, self._spent = time.monotonic(), 0.0
        shard = problem.size_bytes / problem.topology.num_ranks
        self._fluid_s = self.links.fluid_bound_s(shard * (problem.topology.num_ranks - 1))

    def solve(self) -> DirectRun | None:
        """The best run within the work or the time limit; None where a rank cannot be reached."""
        if int(np.diff(self.links.into).min()) == 0:
            return None
        found: dict[int, float] = {}
        for chunks in self._chunk_counts():
            found[chunks] = self._try(chunks, self._first(chunks))
            if self.best is None:
                return None
        for turn in range(SEEDS if self.options.time_limit_s is None else MOST_SEEDS):
            for chunks in sorted(found, key=lambda count: found[count])[:REFINED]:
                found[chunks] = min(found[chunks], self._try(chunks, self._more(chunks, turn)))
            if self._enough() or not self._affords(0.0):
                break
        return self.best

    def _try(self, chunks: int, attempts: Iterable[Attempt]) -> float:
        """The best finish of some attempts, as far as they are affordable and can help."""
        best_s, bound_s = math.inf, self._bound_s(chunks)
        collective = self.problem.collective(chunks)
        owner = collective.sets.data[collective.sets.ptr[collective.pre]].astype(np.int64)
        for cost, attempt in attempts:
            if self._enough() or best_s <= bound_s * CLOSE_TO_CHUNKS or not self._affords(cost):
                break
            self._spent += cost
            finish_s, run = attempt(collective, owner)
            best_s = min(best_s, finish_s)
            if run is not None:
                self.best = run
                if self.options.progress is not None:
                    self.options.progress(min(1.0, self._spent / WORK), f"{finish_s * 1e6:.1f} us")
        return best_s

    def _enough(self) -> bool:
        """Whether nothing is left to gain."""
        return self.best is not None and self.best.finish_s <= self._fluid_s * CLOSE_TO_FLUID

    def _affords(self, cost: float) -> bool:
        """Whether a run of that many sends, or what costs as much, fits into the work or time; the first one does."""
        if self.best is None:
            return True
        if self.options.time_limit_s is None:
            return self._spent + cost <= WORK
        passed_s = time.monotonic() - self._start_s
        return passed_s * (1 + cost / self._spent) < self.options.time_limit_s

    def done(self) -> bool:
        """Whether a search of another kind has nothing, or too little, to gain."""
        if self.best is None:
            return False
        chunks = self.best.collective.chunks_per_rank
        if self.best.finish_s <= self._fluid_s * CLOSE_TO_FLUID:
            return True
        at_bound = self.best.finish_s <= self._bound_s(chunks) * CLOSE_TO_CHUNKS
        return self.problem.chunks_per_rank is not None and at_bound and self.overhead_share <= 0.02

    @property
    def overhead_share(self) -> float:
        """Share of the time of a message that is not its bytes, for the best run."""
        assert self.best is not None
        busy_s, arrival_s = self.links.times(self._chunk_bytes(self.best.collective.chunks_per_rank))
        transfer_s = arrival_s - self.links.topology.alpha_s[self.links.kinds]
        return float((1 - transfer_s / busy_s).max())

    def _chunk_counts(self) -> Iterator[int]:
        """The count that is asked for, or those that might do better than the best so far."""
        if self.problem.chunks_per_rank is not None:
            yield self.problem.chunks_per_rank
            return
        ranks, shard = self.problem.topology.num_ranks, self._chunk_bytes(1)
        for chunks in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64):
            least_bytes = max(16384.0, self.problem.topology.min_piece_bytes)
            few = chunks * ranks <= MOST_CHUNKS and chunks * ranks * (ranks - 1) <= MOST_SENDS
            if chunks > 1 and (not few or shard / chunks < least_bytes):
                return
            if self._enough() or not self._affords(float(chunks * ranks * (ranks - 1))):
                return
            if self.best is None or self._bound_s(chunks) < self.best.finish_s * (1 - 1e-6):
                yield chunks

    def _chunk_bytes(self, chunks: int) -> float:
        return self.problem.size_bytes / self.problem.topology.num_ranks / chunks

    def _bound_s(self, chunks: int) -> float:
        return self.links.bound_s((self.problem.topology.num_ranks - 1) * chunks, self._chunk_bytes(chunks))

    def _first(self, chunks: int) -> Iterator[Attempt]:
        """The cheapest attempts with that many chunks a rank."""
        sends = float(chunks * self.links.topology.num_ranks * (self.links.topology.num_ranks - 1))
        busy_s, arrival_s = self.links.times(self._chunk_bytes(chunks))
        if len(busy_s) > 1:
            yield sends, partial(self._by_events, (0, False), self.options.seed)
            return
        yield sends, partial(self._in_steps, 1, self.options.seed)
        if busy_s[0] < arrival_s[0]:
            if arrival_s[0] <= 2 * busy_s[0]:
                yield sends, partial(self._in_steps, 2, self.options.seed)
            yield 3 * sends, partial(self._by_events, (0, False), self.options.seed)

    def _more(self, chunks: int, turn: int) -> Iterator[Attempt]:
        """Dearer attempts, which differ from turn to turn."""
        sends = float(chunks * self.links.topology.num_ranks * (self.links.topology.num_ranks - 1))
        seed = self.options.seed + (turn + 1) * 1_000_003
        if len(self.links.kinds) == 1:
            yield from ((cost, attempt) for cost, attempt in self._again(sends, seed))
            return
        for samples, declines in ((32, True), (8, True), (0, True), (32, False)):
            yield sends * (1 + LOOK * samples), partial(self._by_events, (samples, declines), seed)

    def _again(self, sends: float, seed: int) -> Iterator[Attempt]:
        yield sends, partial(self._in_steps, 1, seed)
        yield 3 * sends, partial(self._by_events, (0, False), seed)

    def _in_steps(self, lag: int, seed: int, collective: Collective, owner: I64) -> tuple[float, DirectRun | None]:
        """The finish of a run in lockstep with a repaired end, and the run if it is the best so far."""
        from collsyn.synth import greedy_step_kernels, greedy_tail_kernels

        links, chunks, length = self.links, len(owner), self._chunk_bytes(collective.chunks_per_rank)
        busy_s, arrival_s = (float(times[0]) for times in links.times(length))
        step_s = max(busy_s, arrival_s / lag)
        sent = match(links, owner, lag, seed)
        if sent is None:
            return math.inf, None
        least, steps = links.least_steps(chunks - collective.chunks_per_rank), len(sent)
        for aim in range(least, steps):
            shorter = sent[:aim].copy()
            ways = links.into, links.src, links.out_of, links.out_links
            if greedy_tail_kernels.repair_tail(*ways, owner, lag, shorter):
                sent, steps = shorter, aim
                break
        finish_s = (steps - 1) * step_s + arrival_s
        if self.best is not None and finish_s >= self.best.finish_s * (1 - 1e-12):
            return finish_s, None
        step, chunk, link = greedy_step_kernels.sends_in_order(sent, chunks)
        return finish_s, DirectRun(
            links, collective, finish_s, np.array([arrival_s]), np.asarray(step * step_s, dtype=np.float64), chunk, link
        )

    def _by_events(
        self, choice: tuple[int, bool], seed: int, collective: Collective, owner: I64
    ) -> tuple[float, DirectRun | None]:
        """The same for a run that follows every link on its own."""
        from collsyn.synth import greedy_rate_kernels

        links, (samples, declines) = self.links, choice
        busy_s, arrival_s = links.times(self._chunk_bytes(collective.chunks_per_rank))
        samples_of = np.where(busy_s <= busy_s.min() * 1.01, 0, samples)
        rules = greedy_rate_kernels.Choice(samples_of, declines, 1e-9 * float(busy_s.min()), seed)
        left, finish_s, log = greedy_rate_kernels.match_rates(self._network(busy_s, arrival_s), owner, rules)
        if left > 0:
            return math.inf, None
        if self.best is not None and finish_s >= self.best.finish_s * (1 - 1e-12):
            return finish_s, None
        order = greedy_rate_kernels.order_of_sends(log.start_s, log.chunk, log.link, len(links.src), len(owner))
        columns = log.start_s[order], log.chunk[order].astype(np.int64), log.link[order].astype(np.int64)
        return finish_s, DirectRun(links, collective, float(finish_s), arrival_s, *columns)

    def _network(self, busy_s: F64, arrival_s: F64) -> "Network":
        from collsyn.synth.greedy_rate_kernels import Network

        links = self.links
        rate_into = np.bincount(links.dst, weights=1 / busy_s[links.speed], minlength=links.topology.num_ranks)
        tail = np.ceil(arrival_s[links.speed] * rate_into[links.dst]).astype(np.int64) + len(busy_s)
        into_links = np.arange(len(links.src))
        return Network(
            links.src,
            links.dst,
            links.speed,
            busy_s,
            arrival_s,
            links.into,
            into_links,
            links.out_of,
            links.out_links,
            tail,
            links.regions,
        )


def match(links: Links, owner: I64, lag: int, seed: int) -> "U16 | None":
    """What every link carries in every step, `sent[step, link]`; None where a rank cannot be reached.

    `owner[chunk]` holds a chunk at first, all ranks get all. O(links x chunks), on all cores where chunks are many.
    """
    from collsyn.synth import greedy_step_kernels

    ranks = links.topology.num_ranks
    if ranks * len(owner) >= MANY:
        from collsyn.synth.greedy_blocks import match_in_blocks

        return match_in_blocks(links.into, links.src, owner, lag, seed)
    least = links.least_steps(len(owner) * (ranks - 1) // ranks)
    most, steps = least + least // 4 + 8 * lag + 4 * math.isqrt(ranks), -1
    while steps == -1:
        sent = np.full((most, len(links.src)), greedy_step_kernels.NOTHING, dtype=np.uint16)
        steps = greedy_step_kernels.match_steps(links.into, links.src, owner, lag, seed, sent)
        most *= 2
    return sent[:steps] if steps >= 0 else None


def solve(problem: Problem, options: Options) -> tuple[Schedule | None, bool]:
    """A schedule of a problem without obstacle, and whether another search has nothing to gain; None if none was found.

    O(links x chunks) a run; the search makes as many runs as a fixed amount of work allows, or the time limit.
    """
    topology = problem.topology
    if problem.kind == "allgather":
        search = DirectSearch(problem, options)
        run = search.solve()
        return (None, False) if run is None else (_schedule(problem, [(run, False)]), search.done())
    forward = replace(problem, kind="allgather", topology=turned(topology))
    if problem.kind == "allreduce" and options.time_limit_s is not None:
        options = replace(options, time_limit_s=options.time_limit_s / 2)
    search = DirectSearch(forward, options)
    gather = search.solve()
    if gather is None:
        return None, False
    if problem.kind == "reducescatter":
        return _schedule(problem, [(gather, True)]), search.done()
    links = Links.of(topology)
    spread: DirectRun | None = replace(gather, links=links)
    if not links.alike(gather.links):
        spread = DirectSearch(problem.as_kind("allgather", gather.collective.chunks_per_rank), options).solve()
    return (None, False) if spread is None else (_schedule(problem, [(gather, True), (spread, False)]), search.done())


def prepare() -> None:
    """Call every compiled function once: two ranks, one link each way, of equal and of other speeds."""
    from collsyn.synth import greedy_tail_kernels

    for slower in (1.0, 2.0):
        columns = {"alpha_s": [0.0] * 2, "overhead_s": [0.0] * 2, "count": [1] * 2}
        pair = Topology("pair", 2, src=[0, 1], dst=[1, 0], beta_s_per_byte=[1e-9, slower * 1e-9], **columns)  # type: ignore[arg-type]
        solve(Problem("reducescatter", pair, 2, chunks_per_rank=1), Options())
        links = Links.of(pair)
        ways = links.into, links.src, links.out_of, links.out_links
        greedy_tail_kernels.repair_tail(*ways, np.arange(2), 1, np.array([[1, 0]], dtype=np.uint16))


def _schedule(problem: Problem, phases: Sequence[tuple[DirectRun, bool]]) -> Schedule:
    """One run after the other as a schedule; those marked are backwards, and sum up what they move."""
    begin_s, parts = 0.0, []
    for run, backwards in phases:
        parts.append(_backwards(run, begin_s) if backwards else _forwards(run, begin_s))
        begin_s += run.finish_s
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    rows, chunks = len(columns["chunk"]), phases[0][0].collective.chunks_per_rank
    single = Rows(np.arange(problem.topology.num_links + 1), np.arange(problem.topology.num_links))
    notes = {"options": {"chunks_per_rank": chunks}}
    slots = np.zeros(rows, dtype=np.int8)
    # The rows stand in the order that `Schedule.build` would give them.
    return Schedule(
        problem.collective(chunks),
        problem.topology,
        problem.size_bytes,
        single,
        rate=np.zeros(rows),
        batch=np.full(rows, -1, dtype=np.int32),
        src_slot=slots,
        dst_slot=slots,
        provenance=notes,
        **columns,
    )


def _forwards(run: DirectRun, begin_s: float) -> dict[str, npt.NDArray[Any]]:
    links = run.links
    return {
        "start_s": begin_s + run.start_s,
        "chunk": run.chunk.astype(np.int32),
        "src": links.src[run.link].astype(np.int32),
        "dst": links.dst[run.link].astype(np.int32),
        "route": links.number[run.link].astype(np.int32),
        "op": np.full(len(run.chunk), COPY, dtype=np.uint8),
    }


def _backwards(run: DirectRun, begin_s: float) -> dict[str, npt.NDArray[Any]]:
    """The sends mirrored in time and turned round, sorted again."""
    from collsyn.synth.greedy_rate_kernels import order_of_sends

    links = run.links
    arrival_s = run.start_s + run.arrival_s[links.speed[run.link]]
    latest_first = np.argsort(-arrival_s, kind="stable")
    start_s = np.maximum(run.finish_s - arrival_s[latest_first], 0.0)
    chunk = run.chunk[latest_first].astype(np.uint16)
    place = np.empty(len(links.out_links), dtype=np.int32)
    place[links.out_links] = np.arange(len(place))
    placed = place[run.link[latest_first]]
    order = order_of_sends(start_s, chunk, placed, len(place), run.collective.num_chunks)
    link = run.link[latest_first][order]
    return {
        "start_s": begin_s + start_s[order],
        "chunk": chunk[order].astype(np.int32),
        "src": links.dst[link].astype(np.int32),
        "dst": links.src[link].astype(np.int32),
        "route": links.number[link].astype(np.int32),
        "op": np.full(len(link), REDUCE, dtype=np.uint8),
    }
