"""Repair: a schedule carried over to a changed topology, what failed dropped, and what is missing filled in."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from collsyn.errors import Infeasible
from collsyn.model.arrays import F64, I64, Rows
from collsyn.model.collective import Collective
from collsyn.model.schedule import REDUCE, RouteCosts, Schedule
from collsyn.model.topology import Topology
from collsyn.synth import repair_kernels as kernels
from collsyn.synth.alltoall import goes_to_one
from collsyn.synth.baseline import hops_of
from collsyn.synth.problem import Options, Problem, provenance, turned
from collsyn.synth.repair_map import Map, map_onto, why_not
from collsyn.synth.repair_paths import rerouted
from collsyn.synth.timing import message_of_rows
from collsyn.synth.transform import compose, reverse

U8 = npt.NDArray[np.uint8]

# What arrives after a share of the least time (by what must enter the ranks), or later than before by another share of
# it, is dropped and brought in other ways; so is what reaches the ranks that need longest after a third share. A finish
# CLOSE_ENOUGH to the least time ends the trials, after a FEW of them one that is GOOD_ENOUGH. Those ranks need longest
# that need a TIGHT share of the least time.
LIMITS = (
    (np.inf, np.inf, np.inf),
    (1.0, 0.1, 1.0),
    (1.0, 0.03, 1.0),
    (1.0, 0.03, 0.3),
    (1.0, 0.03, 0.1),
    (1.0, 0.1, 0.3),
    (1.0, 0.01, 0.5),
    (1.0, 0.01, 0.1),
    (1.0, np.inf, 0.5),
    (0.9, 0.03, 0.9),
    (0.6, np.inf, 0.6),
    (0.0, 0.0, 0.0),
)
CLOSE_ENOUGH, FEW, GOOD_ENOUGH, TIGHT = 1.01, 4, 1.03, 0.97
MOST_FLOWS = 64


class Repair:
    """A synthesizer that begins with a schedule, made for the same collective before links or ranks failed.

    Sends over what is left keep their order and are timed anew; those that come too late, or whose data never came, are
    dropped; and a matching brings what is missing over links that are free (`repair_kernels.fill`). Pieces with one
    receiver keep their paths unless these have failed (repair_paths.py). Reductions are repaired as the copies that
    they are backwards. O(sends x links of a route) for each of a few trials.
    """

    name = "warm-start"

    def __init__(self, old: Schedule) -> None:
        self.old = old

    def accepts(self, problem: Problem) -> str | None:
        """None if the schedule can be repaired for the problem, else why not."""
        return why_not(self.old, problem)

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The repaired schedule; raises Infeasible where a receiver cannot be reached."""
        chunks = self.old.collective.chunks_per_rank
        carried = map_onto(self.old, problem)
        if not problem.reduces and (goes_to_one(problem) or problem.kind == "gather"):
            found, kept = rerouted(self.old, problem, carried, options)
        else:
            found, kept = _spread(self.old, problem, carried)
        choices = {"chunks_per_rank": chunks, "kept_sends": kept, "new_sends": found.num_sends - kept}
        origin = provenance(problem, options, self.name, **choices)
        before = self.old.provenance.get("method")
        return replace(found, provenance=origin | ({"repaired_method": before} if isinstance(before, str) else {}))


def _spread(old: Schedule, problem: Problem, carried: Map) -> tuple[Schedule, int]:
    """Repaired copies, sums, or sums and then copies; and how many rows are those of the old schedule."""
    collective, topology = problem.collective(old.collective.chunks_per_rank), problem.topology
    if not problem.reduces:
        return _Phase(old, problem, carried, collective, topology, np.ones(old.num_sends, np.bool_)).best()
    # As in greedy: every chunk is summed at a hub, and copied from there where it has other receivers.
    known = Rows(
        np.append(collective.sets.ptr, collective.sets.ptr[-1] + 1 + np.arange(topology.num_ranks)),
        np.append(collective.sets.data, np.arange(topology.num_ranks)),
    )
    at_hubs = (len(collective.sets) + carried.hub).astype(np.int32)
    inward = replace(collective, sets=known, pre=at_hubs, post=collective.pre, reduces=False)
    gathered = collective
    if problem.kind == "allreduce":
        gathered = replace(collective, sets=known, post=at_hubs)
    sums = old.op == REDUCE
    first, kept = _Phase(old, problem, carried, inward, turned(topology), sums).best()
    summed = reverse(first, gathered, topology)
    if problem.kind != "allreduce":
        return summed, kept
    outward = replace(collective, sets=known, pre=at_hubs, reduces=False)
    second, more = _Phase(old, problem, carried, outward, topology, ~sums).best()
    return compose(summed, second, collective), kept + more


@dataclass(frozen=True, eq=False)
class _Trial:
    """What some limits led to: the finish, which old rows stay and when, and the new messages (chunk, hop, start)."""

    finish_s: float
    kept: U8
    start_s: F64
    fresh: tuple[I64, I64, F64]


class _Phase:
    """Copies of a collective on a topology, from some rows of the old schedule (backwards, if these are sums)."""

    def __init__(
        self,
        old: Schedule,
        problem: Problem,
        carried: Map,
        collective: Collective,
        topology: Topology,
        rows: npt.NDArray[np.bool_],
    ) -> None:
        self.problem, self.collective, self.topology = problem, collective, topology
        self.chunk_bytes = collective.chunk_bytes(problem.size_bytes)
        backwards = bool((old.op[rows] == REDUCE).any())
        table = hops_of(topology)
        self.num_hops, routes, asked, way = carried.ways(table.routes, backwards)
        messages = old.messages
        message = message_of_rows(messages)
        key = -messages.arrival_s if backwards else messages.start_s
        ends_s = old.finish_s - messages.start_s if backwards else messages.arrival_s
        chosen = np.flatnonzero(rows & (carried.chunk[old.chunk] >= 0) & (old.src != old.dst))
        chosen = chosen[np.lexsort((message[chosen], key[message[chosen]]))]
        self.chunk = carried.chunk[old.chunk[chosen]]
        begins = np.flatnonzero(np.diff(message[chosen], prepend=-1))
        self.row_ptr = np.append(begins, len(chosen)).astype(np.int64)
        # Ends at another size are in proportion, but for the latency.
        self.ended_s = ends_s[message[chosen[begins]]] * (problem.size_bytes / old.size_bytes)
        self.message_way = way[carried.way_of_row[chosen[begins]]]
        self.asked, self.routes = asked, routes
        self.ways = _ways(topology, routes, asked)
        members = np.zeros((len(collective.sets), topology.num_ranks), dtype=np.uint8)
        members[np.repeat(np.arange(len(collective.sets)), collective.sets.lengths()), collective.sets.data] = 1
        self.have = np.ascontiguousarray(members[collective.pre].T)
        self.want = np.ascontiguousarray(members[collective.post].T)

    def best(self) -> tuple[Schedule, int]:
        """The schedule of the best limits, and how many of its rows are old."""
        into = self.topology.dst < self.topology.num_ranks
        in_rate = np.zeros(self.topology.num_ranks)
        np.add.at(in_rate, self.topology.dst[into], self.topology.bandwidth[into])
        need = (self.want & ~self.have & 1) @ self.chunk_bytes
        least_s = float((need / np.maximum(in_rate, 1.0)).max(initial=0.0))
        tight = need / np.maximum(in_rate, 1.0) >= TIGHT * least_s
        late = tight[self.ways.dst[self.message_way]]
        # Whole chunks end a chunk later than the least time at worst where nothing waits.
        chunk_s = float(self.chunk_bytes.max(initial=0.0) / self.ways.rate.max(initial=1.0))
        best: _Trial | None = None
        for turn, (end, delay, end_of_tight) in enumerate(LIMITS):
            share = CLOSE_ENOUGH if turn < FEW else GOOD_ENOUGH
            if best is not None and best.finish_s <= max(share * least_s, least_s + chunk_s):
                break
            limit_s = np.minimum(np.where(late, end_of_tight, end) * least_s, self.ended_s + delay * least_s)
            found = self._trial(limit_s, in_rate, turn)
            if best is None or found.finish_s < best.finish_s * (1 - 1e-9):
                best = found
        assert best is not None
        return self._schedule(best), int(best.kept.sum())

    def _trial(self, limit_s: F64, in_rate: F64, seed: int) -> _Trial:
        links, flows_of = self.topology.num_links, _most_flows(self.ways)
        flows = kernels.Flows(np.zeros((links, flows_of)), np.zeros((links, flows_of)), np.zeros(links, np.int64))
        held_s = np.where(self.have, 0.0, np.inf)
        kept, start_s = np.zeros(len(self.chunk), np.uint8), np.zeros(len(self.chunk))
        rows = (self.message_way, self.row_ptr, self.chunk)
        kernels.keep(self.ways, flows, *rows, self.chunk_bytes, limit_s, held_s, start_s, kept)
        out_of = hops_of(self.topology).out_of
        hops = np.array(out_of.ptr), out_of.data.astype(np.int64)
        chunk, hop, begin_s, left = kernels.fill(
            self.ways, flows, *hops, self.chunk_bytes, self.want, in_rate, held_s, seed
        )
        finish_s = float(held_s[self.want.astype(np.bool_)].max(initial=0.0))
        if left:
            rank, lost = (int(found[0]) for found in np.nonzero(self.want.astype(np.bool_) & np.isinf(held_s)))
            holder = int(np.flatnonzero(self.have[:, lost])[0])
            raise Infeasible(
                f"warm start: chunk {lost} of rank {holder} cannot reach rank {rank} through ranks that want it"
            )
        return _Trial(finish_s, kept, start_s, (chunk, hop, begin_s))

    def _schedule(self, trial: _Trial) -> Schedule:
        rows = np.flatnonzero(trial.kept)
        message = np.repeat(np.arange(len(self.message_way)), np.diff(self.row_ptr))[rows]
        chunk, hop, start_s = trial.fresh
        begin_s, moved = np.concatenate([trial.start_s[rows], start_s]), np.concatenate([self.chunk[rows], chunk])
        way = np.concatenate([self.message_way[message], hop])
        # The order of Schedule by three keys instead of five.
        order = np.lexsort((self.ways.dst[way], moved, begin_s))
        way = way[order]
        columns: dict[str, npt.ArrayLike] = {
            "chunk": moved[order],
            "src": self.ways.src[way],
            "dst": self.ways.dst[way],
            "route": way,
            "start_s": begin_s[order],
        }
        if self.asked.any():
            columns["rate"] = self.asked[way]
        if (np.diff(message) == 0).any():
            columns["batch"] = np.concatenate([message, len(self.message_way) + np.arange(len(chunk))])[order]
        return Schedule.build(self.collective, self.topology, self.problem.size_bytes, self.routes, {}, **columns)


def _ways(topology: Topology, routes: Rows, asked: F64) -> kernels.Ways:
    """Routes as the kernels take them; a rate of 0 is the full one."""
    costs = RouteCosts.of(topology, routes)
    return kernels.Ways(
        src=topology.src[routes.data[routes.ptr[:-1]]].astype(np.int64),
        dst=topology.dst[routes.data[routes.ptr[1:] - 1]].astype(np.int64),
        alpha_s=np.array(costs.alpha_s),
        overhead_s=np.array(costs.overhead_s),
        rate=np.where(asked > 0, np.minimum(asked, costs.rate), costs.rate),
        ptr=np.array(routes.ptr),
        links=np.array(routes.data),
        before_s=np.array(costs.before_s),
        bandwidth=np.array(topology.bandwidth),
    )


def _most_flows(ways: kernels.Ways) -> int:
    """How many flows a link has to tell apart."""
    share = ways.bandwidth[ways.links] / np.repeat(ways.rate, np.diff(ways.ptr))
    return int(np.clip(np.ceil(share.max(initial=1.0)) + 1, 2, MOST_FLOWS))
