"""Any method under a sketch: it sees the topology that the sketch leaves, and what it makes is held to the rules."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from collsyn.errors import Infeasible
from collsyn.model.arrays import I32, I64, Bools, Rows
from collsyn.model.schedule import COPY, Schedule
from collsyn.model.sketch import Sketch
from collsyn.model.topology import Topology
from collsyn.model.topology_file import topology_digest
from collsyn.synth.problem import Options, Problem, Synthesizer
from collsyn.topology.hops import hops as hop_table
from collsyn.topology.symmetry import is_symmetry


@dataclass(frozen=True)
class Sketched:
    """A synthesizer that keeps to a sketch (`synth/problem.py` says what all synthesizers have).

    The inner method sees a topology without the links that no allowed pair needs, and with `allowed_pairs`. Its
    schedule is of the whole topology again. Infeasible where it breaks a rule that it cannot know, such as a relay.
    """

    inner: Synthesizer
    sketch: Sketch

    @property
    def name(self) -> str:
        """That of the inner method."""
        return self.inner.name

    def accepts(self, problem: Problem) -> str | None:
        """What the inner method says to the problem as it is under the sketch."""
        return self.inner.accepts(self._narrowed(problem))

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The inner method's schedule, on the problem's own topology; raises Infeasible where it breaks the sketch."""
        narrowed = self._narrowed(problem)
        made = self.inner.synthesize(narrowed, replace(options, sketch=self.sketch))
        broken = broken_rule(made, self.sketch)
        if broken is not None:
            raise Infeasible(f"sketch {self.sketch.name}: {self.name} {broken}")
        kept = links_left(problem.topology, self.sketch)
        routes = Rows(made.routes.ptr, kept[made.routes.data])
        whole = Schedule.build(
            made.collective, problem.topology, made.size_bytes, routes, made.provenance, **made.columns()
        )
        bounds = [bound for bound in made.bounds if bound.scope == "tree" and narrowed.topology is problem.topology]
        notes = {"sketch": self.sketch.name, "topology_digest": topology_digest(problem.topology)}
        return whole.with_notes(bounds=bounds, **notes)

    def _narrowed(self, problem: Problem) -> Problem:
        chunks = problem.chunks_per_rank if problem.spec is not None else problem.chunks_per_rank or self.sketch.chunks
        return replace(problem, topology=narrowed(problem.topology, self.sketch), chunks_per_rank=chunks)


@lru_cache(maxsize=32)
def narrowed(topology: Topology, sketch: Sketch) -> Topology:
    """The topology of the pairs that a sketch leaves; vertices keep their numbers, links do not (`links_left`)."""
    if sketch.pairs is None:
        return topology
    columns = topology.link_columns(links_left(topology, sketch), np.arange(topology.num_vertices))
    left = replace(topology, **columns, allowed_pairs=sketch.pairs, symmetries=())
    kept = tuple(
        image
        for image in topology.symmetries
        if is_symmetry(left, image) and frozenset((image[a], image[b]) for a, b in sketch.pairs) == sketch.pairs
    )
    return replace(left, symmetries=kept)


def links_left(topology: Topology, sketch: Sketch) -> I64:
    """The links by which a message of some allowed pair can pass. O(links x ranks^2), few links being of switches."""
    if sketch.pairs is None:
        return np.arange(topology.num_links)
    allowed = np.zeros((topology.num_ranks, topology.num_ranks), dtype=np.bool_)
    pairs = np.array(sorted(sketch.pairs), dtype=np.int64).reshape(-1, 2)
    allowed[pairs[:, 0], pairs[:, 1]] = True
    behind = _reach(topology, topology.src, topology.dst)
    ahead = _reach(topology, topology.dst, topology.src)
    kept = [
        link
        for link, (a, b) in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
        if allowed[np.ix_(behind[a], ahead[b])].any()
    ]
    return np.array(kept, dtype=np.int64)


def _reach(topology: Topology, tails: I32, heads: I32) -> Bools:
    """Row v: the ranks from which v is reached over switches alone, following links from tail to head."""
    reach = np.zeros((topology.num_vertices, topology.num_ranks), dtype=np.bool_)
    reach[np.arange(topology.num_ranks), np.arange(topology.num_ranks)] = True
    ends = [(int(a), int(b)) for a, b in zip(tails, heads, strict=True) if b >= topology.num_ranks]
    while True:
        before = reach.sum()
        for a, b in ends:
            reach[b] |= reach[a]
        if reach.sum() == before:
            return reach


def broken_rule(schedule: Schedule, sketch: Sketch) -> str | None:
    """The first rule of a sketch that a schedule breaks, as the rest of a sentence; None if it keeps to all.

    Relays are those of data that one rank begins with or one rank ends with, hops those of copies. O(sends log sends).
    """
    moves = schedule.src != schedule.dst
    ends = np.unique(np.stack([schedule.src[moves], schedule.dst[moves]], axis=1), axis=0).tolist()
    odd = next(((a, b) for a, b in ends if not sketch.allows(a, b)), None)
    if odd is not None:
        return f"sends from rank {odd[0]} to rank {odd[1]}, which the sketch does not allow"
    return _broken_relay(schedule, sketch) or _broken_length(schedule, sketch)


def _broken_relay(schedule: Schedule, sketch: Sketch) -> str | None:
    box = {rank: number for number, ranks in enumerate(schedule.topology.rank_boxes) for rank in ranks}
    collective = schedule.collective
    columns = (schedule.chunk, schedule.src, schedule.dst, schedule.op)
    for chunk, a, b, op in zip(*(column.tolist() for column in columns), strict=True):
        if box[a] == box[b]:
            continue
        copies = op == COPY
        owners = collective.contributors(chunk) if copies else collective.receivers(chunk)
        through, by = (sketch.carriers, a) if copies else (sketch.receivers, b)
        owner = int(owners[0])
        if len(owners) == 1 and box[owner] == box[by] and by not in through.get(owner, {by}):
            return f"lets data of rank {owner} {'leave' if copies else 'enter'} its box by rank {by}, which is no relay"
    return None


def _broken_length(schedule: Schedule, sketch: Sketch) -> str | None:
    if sketch.extra_hops is None or schedule.collective.reduces:
        return None
    fewest = fewest_hops(narrowed(schedule.topology, sketch))
    hops = {
        (int(rank), chunk): 0
        for chunk in range(schedule.collective.num_chunks)
        for rank in schedule.collective.contributors(chunk)
    }
    columns = (schedule.chunk, schedule.src, schedule.dst)
    for chunk, a, b in zip(*(column.tolist() for column in columns), strict=True):
        hops[b, chunk] = min(hops.get((b, chunk), schedule.num_sends), hops[a, chunk] + 1)
    for chunk in range(schedule.collective.num_chunks):
        begins = schedule.collective.contributors(chunk)
        for rank in schedule.collective.receivers(chunk).tolist():
            if hops[rank, chunk] > fewest[begins, rank].min() + sketch.extra_hops:
                return f"takes {hops[rank, chunk]} hops to rank {rank}, more than extra_hops {sketch.extra_hops} allows"
    return None


@lru_cache(maxsize=32)
def fewest_hops(topology: Topology) -> npt.NDArray[np.int64]:
    """Hops from rank to rank (shape [ranks, ranks]) over pairs that may exchange messages; ranks + 1 where none."""
    table = hop_table(topology)
    far = topology.num_ranks + 1
    distance = np.full((topology.num_ranks, topology.num_ranks), far, dtype=np.int64)
    np.fill_diagonal(distance, 0)
    for step in range(1, topology.num_ranks):
        reached = (distance[:, table.src] == step - 1) & (distance[:, table.dst] == far)
        source, hop = np.nonzero(reached)
        if not len(source):
            break
        distance[source, table.dst[hop]] = step
    return distance
