"""Pieces that each go to one receiver (alltoall, scatter, sendrecv): balanced paths, and list scheduling along them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64, I32, I64
from collsyn.model.collective import Collective
from collsyn.model.schedule import Schedule
from collsyn.synth import alltoall_kernels as kernels
from collsyn.synth.alltoall_wide import balanced
from collsyn.synth.event_kernels import Machine
from collsyn.synth.greedy_effort import PATIENCE, Effort
from collsyn.synth.greedy_machine import MachineModel
from collsyn.synth.problem import Options, Problem
from collsyn.synth.timing import in_order

# One pass: this much work (a unit is about a microsecond), and no more legs than this in one schedule.
WORK, MOST_LEGS = 4_000_000, 300_000

# Work of a leg grows by one for so many hops that share its links, that of a search for a path for so many hops in all.
# Paths for the best chunk counts are chosen anew at most MOST_TURNS times.
SHARING_HOPS, SEARCHED_HOPS, MOST_TURNS = 15, 150, 200

# Powers of the load that a link's price rises with: from the first to the last over as many passes as pieces allow, at
# most MOST_PASSES; a middle one where there is but one pass.
POWERS, MOST_PASSES, PIECES_OF_ALL_PASSES = (4.0, 16.0, 64.0), 24, 100_000

# From so many pieces on those of one source are routed together.
MANY_PIECES = 20_000

# How often the pieces are sent forwards and backwards along one choice of paths, while counts are compared and later.
ROUNDS = (1, 4)


@dataclass(frozen=True, eq=False)
class Paths:
    """Pieces and their legs: piece p is chunk `chunk[p]` and goes along the hops `hops[ptr[p] : ptr[p + 1]]`."""

    collective: Collective
    chunk: I64
    num_bytes: F64
    ptr: I64
    hops: I64

    @classmethod
    def of(cls, collective: Collective, chunk: I64, num_bytes: F64, hops: I32, lengths: I64) -> "Paths":
        """Paths from the hops (rows) of every piece and their number."""
        legs = hops[np.arange(hops.shape[1]) < lengths[:, None]].astype(np.int64)
        return cls(collective, chunk, num_bytes, np.concatenate([[0], np.cumsum(lengths)]), legs)

    @property
    def lengths(self) -> I64:
        """Legs of every piece."""
        return np.diff(self.ptr)

    def columns(self) -> tuple[I64, I64, F64]:
        """What `kernels.send` takes."""
        return self.ptr, self.hops, self.num_bytes

    def mirrored(self) -> "tuple[Paths, I64]":
        """The paths from end to start, and for every leg of either the number of the same leg in the other."""
        first = np.repeat(self.ptr[:-1], self.lengths)
        mirror = first + np.repeat(self.ptr[1:], self.lengths) - 1 - np.arange(len(self.hops))
        return replace(self, hops=self.hops[mirror]), mirror


@dataclass(frozen=True)
class Setting:
    """Chunks a rank or pair, whether rates are fitted, how many overheads a message is worth, and whether the first
    order spreads the pieces of every pair evenly over the time."""

    chunks: int
    fitted: bool = False
    overheads: float = 0.0
    even: bool = False


@dataclass(frozen=True, eq=False)
class Times:
    """Start and message of every leg, and when all is done.

    `exact`: the starts are those of the time model; else (they were found backwards) only their order is.
    """

    finish_s: float
    start_s: F64
    message: I32
    exact: bool


@dataclass(frozen=True, eq=False)
class Sent:
    """A complete schedule, and what it was made by."""

    setting: Setting
    paths: Paths
    times: Times


def goes_to_one(problem: Problem) -> bool:
    """Whether every chunk has at most one receiver that does not hold it."""
    _, pre, post = _ends(problem.collective(1))
    return all(len(after - before) <= 1 for before, after in zip(pre, post, strict=True))


def _ends(collective: Collective) -> tuple[I64, list[frozenset[int]], list[frozenset[int]]]:
    """For every chunk the number of its pair of rank sets, and for every such pair its holders and receivers."""
    number, pair = np.unique(
        collective.pre.astype(np.int64) * len(collective.sets) + collective.post, return_inverse=True
    )
    sets = [frozenset(members) for members in collective.sets.tuples()]
    pre, post = ([sets[i] for i in ids.tolist()] for ids in np.divmod(number, len(sets)))
    return pair.reshape(-1), pre, post


def pieces(collective: Collective, size_bytes: int) -> tuple[I64, I64, I64, F64]:
    """Chunk, source, target and bytes of every piece that has to move."""
    pair, pre, post = _ends(collective)
    source = np.array([min(before) for before in pre])
    target = np.array([min(after - before, default=-1) for before, after in zip(pre, post, strict=True)])
    chunk = np.flatnonzero(target[pair] >= 0)
    num_bytes = collective.chunk_bytes(size_bytes)[chunk]
    return chunk, source[pair[chunk]], target[pair[chunk]], num_bytes


def along_paths(problem: Problem, options: Options, model: MachineModel) -> Schedule:
    """The best schedule found; raises Infeasible where a receiver cannot be reached."""
    return Search(problem, options, model).solve()


class Search:
    """Paths for rising numbers of chunks, each sent under several settings; the best is kept.

    So many numbers in a row as `patience` says may be in vain; of WORK the part `share` is done.
    """

    patience, share = PATIENCE, 1.0

    def __init__(self, problem: Problem, options: Options, model: MachineModel) -> None:
        self.problem, self.options, self.model = problem, options, model
        self.best: Sent | None = None
        self.effort = Effort(problem, options, self.share * WORK)
        machine = model.machine(False, 0.0, 1.0)
        users = np.diff(machine.link_ptr)[machine.route_links].sum() / max(len(machine.src), 1)
        self._work_per_leg = 1 + float(users) / SHARING_HOPS
        self.work_per_search = 1 + len(machine.src) / SEARCHED_HOPS
        self._longest = 2 * int(model.distance[np.isfinite(model.distance)].max()) + 2

    def solve(self) -> Schedule:
        """The best schedule found."""
        _, source, target, num_bytes = pieces(self.problem.collective(1), self.problem.size_bytes)
        legs = int(self.model.distance[source, target].sum())
        tried: list[int] = []
        largest, most = float(num_bytes.max(initial=0.0)), MOST_LEGS // max(legs, 1)
        for chunks in self.effort.chunk_counts(largest, most, self.patience):
            if self.effort.over(0.6):
                break
            tried.append(chunks)
            self._try(chunks, self.settings(chunks), ROUNDS[0])
        # Other paths for the best counts, as long as there is work left.
        for turn in count() if self.effort.timed else range(MOST_TURNS):
            assert self.best is not None
            hopeful = [n for n in (self.best.setting.chunks, *tried[-2:]) if self.effort.can_gain(n)]
            if not hopeful:
                break
            chunks = hopeful[turn % len(hopeful)]
            self._try(chunks, [replace(self.best.setting, chunks=chunks)], ROUNDS[1])
        assert self.best is not None
        return self._schedule(self.best)

    def settings(self, chunks: int) -> list[Setting]:
        """All settings for a chunk count."""
        settings = [Setting(chunks, fitted) for fitted in ((False, True) if self.model.has_fitted else (False,))]
        if self.problem.topology.overhead_s.any():
            settings += [replace(setting, overheads=50.0) for setting in settings]
        return settings

    def _try(self, chunks: int, settings: list[Setting], rounds: int) -> None:
        """Choose paths for a chunk count, and send along them under several settings."""
        paths = self.paths(chunks)
        if paths is None:
            return
        for setting in settings:
            self._send(paths, setting, rounds)
            if self.effort.over():
                return

    def paths(self, chunks: int) -> Paths | None:
        """Pieces of so many chunks a pair, and the hops that each goes; None where these cannot be the best."""
        collective = self.problem.collective(chunks)
        chunk, *ends, num_bytes = pieces(collective, self.problem.size_bytes)
        choose = self._by_source if len(chunk) > MANY_PIECES else self._one_by_one
        hops, lengths = choose(ends[0], ends[1], num_bytes)
        return Paths.of(collective, chunk, num_bytes, hops, lengths)

    def _one_by_one(self, source: I64, target: I64, num_bytes: F64) -> tuple[I32, I64]:
        """Hops (rows) and their number for every piece, each by a search of its own."""
        passes = max(1, min(MOST_PASSES, PIECES_OF_ALL_PASSES // max(len(source), 1)))
        powers = np.geomspace(POWERS[0], POWERS[2], passes) if passes > 1 else np.array([POWERS[1]])
        hops, lengths = np.zeros((len(source), self._longest), np.int32), np.zeros(len(source), np.int64)
        machine, seed = self.model.machine(False, 0.0, 1.0), self.effort.seed()
        kernels.route(machine, source, target, num_bytes, powers, seed, hops, lengths)
        self.effort.spend(passes * len(source) * self.work_per_search)
        return hops, lengths

    def _by_source(self, source: I64, target: I64, num_bytes: F64) -> tuple[I32, I64]:
        """The same with a search for all pieces of a source."""
        machine = self.model.machine(False, 0.0, 1.0)
        found = balanced(machine, self.model.distance, source, target, num_bytes, self.effort.seed())
        self.effort.spend(found.searches * self.work_per_search)
        return found.hops, found.lengths

    def _send(self, paths: Paths, setting: Setting, rounds: int) -> None:
        """Send along paths forwards and backwards, and keep the best."""
        mean_bytes = float(paths.num_bytes.mean()) if len(paths.num_bytes) else 1.0
        machine = self.model.machine(setting.fitted, setting.overheads, mean_bytes)
        if setting.overheads and machine.batch.max(initial=1) == 1:
            return  # no other messages than without
        # Ties are broken by how far apart the ranks are, which pairs the ports of a switch well.
        turn = (machine.dst[paths.hops] - machine.src[paths.hops]) % self.problem.topology.num_ranks
        due_s = _evenly(machine, paths) if setting.even else None
        for times in sendings(machine, self.model.turned_round(machine), paths, turn, rounds, due_s):
            self._keep(Sent(setting, paths, times))
            if self.effort.over():
                return

    def _keep(self, sent: Sent) -> None:
        """Count the work of a schedule, and keep it if it is the best."""
        self.effort.spend(len(sent.paths.hops) * self._work_per_leg)
        if self.best is None or sent.times.finish_s < self.best.times.finish_s * (1 - 1e-9):
            self.best = sent
            self.effort.improved(sent.times.finish_s)

    def _schedule(self, sent: Sent) -> Schedule:
        order = np.lexsort((sent.times.message, sent.times.start_s))
        hop = sent.paths.hops[order]
        columns: dict[str, npt.ArrayLike] = {
            "chunk": np.repeat(sent.paths.chunk, sent.paths.lengths)[order],
            "src": self.model.table.src[hop],
            "dst": self.model.table.dst[hop],
            "route": hop,
            "rate": self.model.asked_rates(sent.setting.fitted)[hop],
            "batch": sent.times.message[order],
        }
        notes = {"options": {"chunks_per_rank": sent.setting.chunks}}
        collective, problem, routes = sent.paths.collective, self.problem, self.model.table.routes
        if sent.times.exact and len(hop) > MOST_LEGS:
            columns["start_s"] = sent.times.start_s[order]
            return Schedule.build(collective, problem.topology, problem.size_bytes, routes, notes, **columns)
        return in_order(collective, problem.topology, problem.size_bytes, routes, columns, notes)


def sendings(
    machine: Machine, backwards: Machine, paths: Paths, turn: I64, rounds: int, due_s: F64 | None = None
) -> Iterator[Times]:
    """Times along paths: forwards, then from the ends backwards, then forwards again, each in the order of the last.

    `backwards` is the machine with every hop turned round; of legs with equally much to go those of large `turn` wait.
    `due_s` has for every piece how much less urgent it is at first.
    What arrives last goes first when time is turned round, and so on (forward-backward improvement of schedules).
    Backwards schedules are as good as forwards ones.
    """
    shortest_s = float(paths.num_bytes.min(initial=np.inf) / machine.rate.max(initial=1.0))
    mirrored, mirror = paths.mirrored()
    priority = _to_go(machine, paths) - turn * (1e-3 * shortest_s)
    if due_s is not None:
        priority -= np.repeat(due_s, paths.lengths)
    for _ in range(rounds):
        start_s, message, _ = kernels.send(machine, *paths.columns(), priority, 1e-7 * shortest_s)
        end_s = _end_times(machine, paths, start_s, message)
        yield Times(float(end_s.max(initial=0.0)), start_s, message, exact=True)
        start_s, message, _ = kernels.send(backwards, *mirrored.columns(), end_s[mirror], 1e-7 * shortest_s)
        end_s = _end_times(machine, mirrored, start_s, message)
        finish_s = float(end_s.max(initial=0.0))
        priority = end_s[mirror]
        yield Times(finish_s, finish_s - priority, message[mirror], exact=False)


def _to_go(machine: Machine, paths: Paths) -> F64:
    """Seconds from the start of every leg to the arrival of its piece with nothing else under way."""
    leg_s = machine.alpha_s[paths.hops] + np.repeat(paths.num_bytes, paths.lengths) / machine.rate[paths.hops]
    done_s = np.concatenate([[0.0], np.cumsum(leg_s)])
    to_go_s: F64 = np.repeat(done_s[paths.ptr[1:]], paths.lengths) - done_s[:-1]
    return to_go_s


def _evenly(machine: Machine, paths: Paths) -> F64:
    """When every piece is due if those of each pair follow each other evenly while the busiest link works.

    So every link is fed from all sides all the time, as by the flow of which the pieces are parts.
    """
    lengths = np.diff(machine.route_ptr)[paths.hops]
    entry = np.repeat(machine.route_ptr[paths.hops] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    link = machine.route_links[entry]
    sent = np.bincount(link, np.repeat(np.repeat(paths.num_bytes, paths.lengths), lengths), len(machine.bandwidth))
    pair = machine.src[paths.hops[paths.ptr[:-1]]] * len(machine.out_ptr) + machine.dst[paths.hops[paths.ptr[1:] - 1]]
    order = np.argsort(pair, kind="stable")
    _, first, many = np.unique(pair[order], return_index=True, return_counts=True)
    part = np.empty(len(pair))
    part[order] = (np.arange(len(pair)) - np.repeat(first, many) + 0.5) / np.repeat(many, many)
    due_s: F64 = part * float((sent / machine.bandwidth).max(initial=0.0))
    return due_s


def _end_times(machine: Machine, paths: Paths, start_s: F64, message: I32) -> F64:
    """When the message of every leg arrives."""
    total = np.bincount(message, weights=np.repeat(paths.num_bytes, paths.lengths), minlength=1)
    end_s: F64 = start_s + machine.alpha_s[paths.hops] + total[message] / machine.rate[paths.hops]
    return end_s
