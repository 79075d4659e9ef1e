"""Box by box: an inner method in every box, another across boxes between peers of the same local rank."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from collsyn.errors import InputError
from collsyn.model.arrays import Rows
from collsyn.model.schedule import Schedule
from collsyn.synth.baseline import MAX_ROWS, Baseline, affordable, chunks_of, quickest
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import METHODS, method
from collsyn.synth.timing import by_start, in_order
from collsyn.synth.transform import compose

# What is tried for a phase where no inner method is named: those that take no search.
USUAL = ("ring", "two-way-ring", "recursive", "direct", "binomial", "double-binary-tree", "bine")

Group = tuple[int, ...]
Groups = tuple[Group, ...]


class Hierarchical(Baseline):
    """Allgather and broadcast across boxes and inside them; reductions by reversal, allreduce from both.

    With boxes of L ranks: in an allgather the ranks of the same place in their boxes gather their shards, then every
    box gathers what its ranks have (at once, or box by box as it comes); so only 1/L of the data crosses each card, and
    crosses it once. A broadcast goes across from the root to its peers and then through every box, or is scattered in
    the root's box, goes across between all peers, and is gathered in every box; whichever ends first. Any method serves
    inside and across (`hierarchical:INNER`, `hierarchical:INNER+ACROSS`); where none is named, or the named one makes
    no scatter, the quickest of USUAL does.
    """

    builds = frozenset({"allgather", "broadcast"})
    phases = ("reducescatter", "allgather")

    def __init__(self, inner: str | None = None, across: str | None = None) -> None:
        self.inner, self.across = inner, across
        named = "+".join(filter(None, (inner, across)))
        self.name = f"hierarchical:{named}" if named else "hierarchical"

    def with_inner(self, text: str) -> "Hierarchical":
        """The same with the inner methods of `INNER` or `INNER+ACROSS`; raises InputError."""
        names = text.split("+")
        for name in names:
            if name not in METHODS or name == self.name:
                known = ", ".join(other for other in METHODS if other != self.name)
                raise InputError(f"method hierarchical:{text}: {name!r} is no inner method; expected one of {known}")
        if len(names) > 2:
            raise InputError(f"method hierarchical:{text}: expected hierarchical:INNER or hierarchical:INNER+ACROSS")
        return Hierarchical(*names)

    def obstacle(self, problem: Problem) -> str | None:
        """Needs equal boxes that the topology knows, and methods that serve the phases."""
        reason = _no_boxes(problem)
        if reason is not None:
            return reason
        if problem.kind == "allgather":
            return self._first_refusal(_gathers(problem))
        forms = [self._first_refusal(phases) for phases in (_whole(problem, 1), _in_parts(problem, 1))]
        return None if None in forms else forms[0]

    def build(self, problem: Problem) -> Schedule:
        """The quickest form and number of chunks."""
        if problem.kind == "allgather":
            rows = sum(len(group) ** 2 for group in problem.members)
            return quickest(problem, affordable((1, 2, 4, 8), rows), self._allgather)
        ranks, found = len(_boxes(problem)[0][0]), []
        if self._first_refusal(_whole(problem, 1)) is None:
            found.append(quickest(problem, (1, 4, 16, 64), partial(self._broadcast, form=_whole)))
        if self._first_refusal(_in_parts(problem, 1)) is None:
            ladder = tuple(ranks * lanes for lanes in (1, 4, 16))
            found.append(quickest(problem, ladder, partial(self._broadcast, form=_in_parts)))
        return min(found, key=lambda schedule: schedule.finish_s)

    def _names(self, phase: "Phase") -> Sequence[str]:
        """The methods that may serve a phase, the named one alone where it can."""
        named = self.across if phase.crosses else self.inner
        if named is None or (phase.problem.kind == "scatter" and method(named).accepts(phase.problem) is not None):
            return USUAL
        return (named,)

    def _first_refusal(self, phases: Sequence["Phase"]) -> str | None:
        for phase in phases:
            reasons = {name: method(name).accepts(phase.problem) for name in self._names(phase)}
            if None not in reasons.values():
                name, reason = next(iter(reasons.items()))
                return f"{'across' if phase.crosses else 'inside'} boxes: {name} {reason}"
        return None

    def _solved(self, phase: "Phase") -> Schedule:
        """The quickest schedule of a phase by itself."""
        names = [name for name in self._names(phase) if method(name).accepts(phase.problem) is None]
        schedules = (method(name).synthesize(phase.problem, Options()) for name in names)
        return min(schedules, key=lambda schedule: schedule.finish_s)

    def _allgather(self, problem: Problem) -> Schedule:
        own = chunks_of(problem.collective())
        lanes = problem.collective().chunks_per_rank
        across, inside = _gathers(problem)
        peers = {rank: peers for boxes in _boxes(problem) for peers in zip(*boxes, strict=True) for rank in peers}

        def shard(rank: int, further: int = 0, lane: int = 0, every: int = 1) -> list[int]:
            """What the peer that many boxes further brings along: each `every`-th of its chunks."""
            at = (peers[rank].index(rank) + further) % len(peers[rank])
            return own.get(peers[rank][at], [])[lane::every]

        crossing = _carry(problem, self._solved(across), shard)
        boxes = max(map(len, peers.values()))
        all_of_it = _carry(
            problem, self._solved(inside), lambda rank: [c for i in range(len(peers[rank])) for c in shard(rank, i)]
        )
        found = [compose(crossing, all_of_it, problem.collective())]
        # Rows of all parts, each of which costs some time besides.
        rows = lanes * (sum(len(group) ** 2 for group in problem.members) + 1000 * boxes)
        if rows <= MAX_ROWS and all(len(some) == boxes for some in peers.values()):
            crossing_s, inside_s = (
                self._solved(phase.cut(share)) for phase, share in ((across, lanes), (inside, boxes * lanes))
            )
            # Own shards need no card; then, lane by lane, those of the nearest boxes before, which come first.
            parts = [_carry(problem, inside_s, partial(shard, lane=lane, every=lanes)) for lane in range(lanes)]
            for lane in range(lanes):
                parts.append(_carry(problem, crossing_s, partial(shard, lane=lane, every=lanes)))
                parts += [
                    _carry(problem, inside_s, partial(shard, further=further, lane=lane, every=lanes))
                    for further in range(boxes - 1, 0, -1)
                ]
            found.append(_interleaved(problem, parts))
        return min(found, key=lambda schedule: schedule.finish_s)

    def _broadcast(self, problem: Problem, form: Callable[[Problem, int], list["Phase"]]) -> Schedule:
        collective = problem.collective()
        shares: dict[int, list[int]] = {}
        for root, boxes in zip(problem.roots(), _boxes(problem), strict=True):
            chunks = collective.held_by(root).tolist()
            for peers in zip(*boxes, strict=True):
                place, ranks = boxes[0].index(peers[0]), len(boxes[0])
                own = chunks if form is _whole else chunks[place::ranks]
                shares |= dict.fromkeys(peers, own)
        if form is _whole:
            phases = form(problem, collective.chunks_per_rank)
            first, second = (_carry(problem, self._solved(phase), shares.__getitem__) for phase in phases)
            return compose(first, second, collective)
        # Scatter and gather lane by lane, so that the cards are busy from the first lane to the last.
        lanes = max(1, collective.chunks_per_rank // len(_boxes(problem)[0][0]))
        scatter, across, gather = form(problem, lanes)

        def lane_by_lane(phase: Phase) -> list[Schedule]:
            solved = self._solved(phase.cut(lanes))
            return [_carry(problem, solved, partial(share, lane=lane)) for lane in range(lanes)]

        def share(rank: int, lane: int) -> list[int]:
            return shares[rank][lane::lanes]

        # A method may know how to pipeline chunks across, or send all that it has in one message.
        crossings = [[_carry(problem, self._solved(across), shares.__getitem__)], lane_by_lane(across)]
        before, after = lane_by_lane(scatter), lane_by_lane(gather)
        found = [_interleaved(problem, [*before, *crossing, *after]) for crossing in crossings]
        return min(found, key=lambda schedule: schedule.finish_s)


class Phase:
    """A collective of some boxes, or of peers across boxes."""

    def __init__(self, problem: Problem, crosses: bool) -> None:
        self.problem, self.crosses = problem, crosses

    def cut(self, lanes: int) -> "Phase":
        """The same for one of some equal parts of the data, in as many chunks as pay."""
        size = max(1, self.problem.size_bytes // lanes)
        return Phase(replace(self.problem, size_bytes=size, chunks_per_rank=None), self.crosses)


def _boxes(problem: Problem) -> list[list[Group]]:
    """For every process group its ranks by box, in the order of the boxes."""
    box_of = {vertex: number for number, box in enumerate(problem.topology.boxes) for vertex in box}
    found = []
    for group in problem.members:
        parts: dict[int, list[int]] = {}
        for rank in group:
            parts.setdefault(box_of[rank], []).append(rank)
        found.append([tuple(parts[number]) for number in sorted(parts)])
    return found


def _no_boxes(problem: Problem) -> str | None:
    """Why the boxes of the topology cannot be used, or None."""
    if not problem.topology.boxes:
        return "needs boxes, and the topology does not say which ranks form one"
    inside = {vertex for box in problem.topology.boxes for vertex in box}
    alone = next((rank for group in problem.members for rank in group if rank not in inside), None)
    if alone is not None:
        return f"needs every rank in a box of the topology; rank {alone} is in none"
    if any(len(boxes) < 2 for boxes in _boxes(problem)):
        return "needs ranks in two boxes or more"
    sizes = sorted({len(box) for boxes in _boxes(problem) for box in boxes})
    if len(sizes) > 1:
        return f"needs as many ranks in every box, not {sizes[0]} and {sizes[-1]}"
    return "needs two ranks or more in every box" if sizes == [1] else None


def _phase(problem: Problem, kind: str, share: int, groups: Sequence[Group], crosses: bool, lanes: int = 0) -> Phase:
    """A phase over 1/share of the data, rooted (if it is) at the first rank of every group."""
    size = max(1, problem.size_bytes // share)
    return Phase(Problem(kind, problem.topology, size, lanes or None, groups=tuple(groups)), crosses)


def _gathers(problem: Problem) -> list[Phase]:
    """Among peers, then in boxes."""
    boxes = [box for boxes in _boxes(problem) for box in boxes]
    peers = [peers for boxes in _boxes(problem) for peers in zip(*boxes, strict=True)]
    return [
        _phase(problem, "allgather", len(boxes[0]), peers, crosses=True),
        _phase(problem, "allgather", 1, boxes, crosses=False),
    ]


def _rooted(problem: Problem) -> Iterator[list[Group]]:
    """The boxes of every group, that of the root first, and in each the peer of the root first."""
    for root, boxes in zip(problem.roots(), _boxes(problem), strict=True):
        home = next(box for box in boxes if root in box)
        at = home.index(root)
        turned = [box[at:] + box[:at] for box in boxes]
        yield sorted(turned, key=lambda box: root not in box)


def _whole(problem: Problem, lanes: int) -> list[Phase]:
    """Broadcasts: from the root to its peers, and from these through their boxes."""
    grouped = list(_rooted(problem))
    peers = [tuple(box[0] for box in boxes) for boxes in grouped]
    boxes = [box for boxes in grouped for box in boxes]
    return [
        _phase(problem, "broadcast", 1, peers, crosses=True, lanes=lanes),
        _phase(problem, "broadcast", 1, boxes, crosses=False, lanes=lanes),
    ]


def _in_parts(problem: Problem, lanes: int) -> list[Phase]:
    """A scatter in the root's box, broadcasts of the parts between peers, and allgathers in all boxes."""
    grouped = list(_rooted(problem))
    boxes = [box for boxes in grouped for box in boxes]
    peers = [peers for boxes in grouped for peers in zip(*boxes, strict=True)]
    return [
        _phase(problem, "scatter", 1, [boxes[0] for boxes in grouped], crosses=False, lanes=lanes),
        _phase(problem, "broadcast", len(boxes[0]), peers, crosses=True, lanes=lanes),
        _phase(problem, "allgather", 1, boxes, crosses=False, lanes=lanes),
    ]


def _carry(problem: Problem, phase: Schedule, share: Callable[[int], Sequence[int]]) -> Schedule:
    """The schedule of a phase with chunks of the whole problem in the place of its own.

    `share` are the chunks that a rank owns in the phase: where it begins with a shard (or, as the receiver of a
    scatter, ends with one), or all that its root sends. Of K chunks of the phase the first stands for each K-th chunk.
    """
    collective, inner = problem.collective(), phase.collective
    ends = inner.post if inner.kind == "scatter" else inner.pre
    owner = inner.sets.data[inner.sets.ptr[:-1]][ends].tolist()
    number: dict[int, int] = {}
    stands_for = []
    for rank in owner:
        at = number[rank] = number.get(rank, -1) + 1
        stands_for.append(share(rank)[at :: inner.chunks_per_rank])
    rows = by_start(phase)
    del rows["start_s"]
    chunks = [stands_for[chunk] for chunk in rows["chunk"].tolist()]
    repeats = np.array([len(some) for some in chunks], dtype=np.int64)
    columns: Mapping[str, np.ndarray] = {name: np.repeat(values, repeats) for name, values in rows.items()}
    columns = {**columns, "chunk": np.array([c for some in chunks for c in some], dtype=np.int32)}
    return in_order(collective, problem.topology, problem.size_bytes, phase.routes, columns)


def _interleaved(problem: Problem, parts: Sequence[Schedule]) -> Schedule:
    """The sends of all parts, each as soon as its data and its links allow; links serve earlier parts first."""
    columns: list[dict[str, np.ndarray]] = []
    routes: list[tuple[int, ...]] = []
    batches = 0
    for part in parts:
        rows = by_start(part)
        rows["route"] = rows["route"] + len(routes)
        rows["batch"] = rows["batch"] + batches
        routes += part.routes.tuples()
        batches += len(part.messages)
        columns.append(rows)
    joined = {name: np.concatenate([rows[name] for rows in columns]) for name in columns[0] if name != "start_s"}
    return in_order(problem.collective(), problem.topology, problem.size_bytes, Rows.of(routes), joined)


HIERARCHICAL = Hierarchical()
