"""Why no schedule keeps to a sketch: the pair of ranks, the rule in its way, and what to relax."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from collsyn.errors import Infeasible
from collsyn.model.sketch import Sketch
from collsyn.model.topology import Topology
from collsyn.synth.problem import REVERSED, Problem
from collsyn.synth.sketched import fewest_hops, narrowed

Distances = npt.NDArray[np.int64]


def require_feasible(problem: Problem, sketch: Sketch) -> None:
    """Raise Infeasible where a sketch rules out every schedule of a problem; one line names the pair and the rule.

    What is found: ranks that no allowed pairs join, relays that nothing leads on from, relays against the limit of
    hops, and symmetries that move what must stay (a root, groups, counts). Pairs that the topology itself does not join
    are for others to tell. O(ranks x allowed pairs).
    """
    moved = _moved(problem, sketch)
    if moved is not None:
        raise Infeasible(f"sketch {sketch.name}: {moved}")
    for phase, rules in _phases(problem, sketch):
        blocked = _blocked(phase, rules, forward=rules is sketch)
        if blocked is not None:
            raise Infeasible(f"sketch {sketch.name}: {blocked}")


def _phases(problem: Problem, sketch: Sketch) -> Iterator[tuple[Problem, Sketch]]:
    """The problems of copies whose schedules, turned round where they reduce, serve the problem."""
    if problem.kind == "allreduce":
        yield problem.as_kind("reducescatter").reversed, sketch.reversed()
        yield problem.as_kind("allgather"), sketch
    elif problem.reduces and problem.kind in REVERSED:
        yield problem.reversed, sketch.reversed()
    elif not problem.reduces:
        yield problem, sketch


def _moved(problem: Problem, sketch: Sketch) -> str | None:
    """What a symmetry of the sketch moves although the problem holds it in place."""
    collective = problem.collective(1)
    sets = [frozenset(ranks) for ranks in collective.sets.tuples()]
    wanted: dict[tuple[frozenset[int], frozenset[int]], int] = {}
    for begin, end, units in zip(
        collective.pre.tolist(), collective.post.tolist(), collective.units.tolist(), strict=True
    ):
        key = (sets[begin], sets[end])
        wanted[key] = wanted.get(key, 0) + units
    for number, image in enumerate(sketch.permutations, 1):
        for (begin, end), units in wanted.items():
            there = (frozenset(image[rank] for rank in begin), frozenset(image[rank] for rank in end))
            if wanted.get(there) != units:
                return _moved_words(problem, number, image)
    return None


def _moved_words(problem: Problem, number: int, image: tuple[int, ...]) -> str:
    relax = "leave symmetry out"
    if problem.kind in REVERSED and problem.kind not in ("allgather", "reducescatter"):
        root = problem.roots()[0]
        if image[root] != root:
            return (
                f"symmetry number {number} moves the root, rank {root}, to rank {image[root]}, but the one root of a "
                f"{problem.kind} has to stay where it is; {relax}, or give one that keeps rank {root}"
            )
    rank = next(rank for rank, other in enumerate(image) if rank != other)
    return (
        f"symmetry number {number} moves rank {rank} to rank {image[rank]}, which has other data, groups or counts in "
        f"this {problem.kind}; {relax}"
    )


def _blocked(problem: Problem, sketch: Sketch, forward: bool) -> str | None:
    """The first pair that the rules keep apart, with the rule; `forward` says that time runs as the user sees it."""
    topology, left = problem.topology, narrowed(problem.topology, sketch)
    whole, allowed = fewest_hops(topology), fewest_hops(left)
    relayed = _with_relays(left, sketch)
    far = topology.num_ranks + 1
    found: list[tuple[int, int, str]] = []
    for source, target in _pairs(problem):
        if source == target or whole[source, target] == far:
            continue
        if allowed[source, target] == far:
            found.append((source, target, "pairs"))
        elif relayed[source, target] == far:
            found.append((source, target, "relays"))
        elif sketch.extra_hops is not None and relayed[source, target] > allowed[source, target] + sketch.extra_hops:
            found.append((source, target, "hops"))
    if not found:
        return None
    source, target, rule = found[0]
    a, b = (source, target) if forward else (target, source)
    what = f"data of rank {a} cannot reach rank {b}" if forward else f"partial sums of rank {a} cannot reach rank {b}"
    more = f" (and {len(found) - 1} more pairs)" if len(found) > 1 else ""
    key = "relays" if forward else "receivers"
    through = sorted(sketch.carriers.get(source, ()))
    by = " or ".join(map(str, through))
    if rule == "pairs":
        which = _narrow_key(topology, sketch, source, target)
        return f"{what}{more}: {which} leaves no way between them; allow more pairs in {which}"
    side = f"{key} let it {'leave' if forward else 'enter'} the box of rank {source} by rank {by} only"
    if rule == "relays":
        where = "from there to" if forward else "to there from"
        return f"{what}{more}: {side}, and no allowed pair leads {where} another box; relax {key}, inside or across"
    needs, fewest = int(relayed[source, target]), int(allowed[source, target])
    return (
        f"{what}{more}: {side}, which takes {needs} hops, but extra_hops {sketch.extra_hops} allows "
        f"{fewest + (sketch.extra_hops or 0)} (the fewest are {fewest}); set extra_hops to {needs - fewest}, or relax "
        f"{key}"
    )


def _narrow_key(topology: Topology, sketch: Sketch, source: int, target: int) -> str:
    """Which of the keys `inside` and `across` alone keeps two ranks apart; both where only both together do."""
    box = {rank: number for number, ranks in enumerate(topology.rank_boxes) for rank in ranks}
    assert sketch.pairs is not None
    every = range(topology.num_ranks)
    keys = [("across", False), ("inside", True)]
    for key, same in sorted(keys, key=lambda each: each[1] != (box[source] == box[target])):
        freed = sketch.pairs | {(a, b) for a in every for b in every if a != b and (box[a] == box[b]) == same}
        wider = narrowed(topology, replace(sketch, pairs=frozenset(freed)))
        if fewest_hops(wider)[source, target] <= topology.num_ranks:
            return key
    return "inside and across"


def _with_relays(left: Topology, sketch: Sketch) -> Distances:
    """Fewest hops from rank to rank when data leave their box by their carriers only."""
    allowed = fewest_hops(left)
    if not sketch.carriers:
        return allowed
    box = np.zeros(left.num_ranks, dtype=np.int64)
    for number, ranks in enumerate(left.rank_boxes):
        box[list(ranks)] = number
    pairs = np.argwhere(allowed == 1)
    distance = allowed.copy()
    for source, carriers in sketch.carriers.items():
        leaves = (box[pairs[:, 0]] == box[source]) & (box[pairs[:, 1]] != box[source])
        usable = pairs[~leaves | np.isin(pairs[:, 0], sorted(carriers))]
        distance[source] = _fewest_from(source, usable, left.num_ranks)
    return distance


def _fewest_from(source: int, pairs: npt.NDArray[np.int64], num_ranks: int) -> Distances:
    distance = np.full(num_ranks, num_ranks + 1, dtype=np.int64)
    distance[source] = 0
    for step in range(1, num_ranks):
        ahead = pairs[(distance[pairs[:, 0]] == step - 1) & (distance[pairs[:, 1]] > num_ranks), 1]
        if not len(ahead):
            break
        distance[ahead] = step
    return distance


def _pairs(problem: Problem) -> list[tuple[int, int]]:
    """Who needs data of whom, in order; of data that several ranks begin with nothing is said."""
    collective = problem.collective(1)
    sets = collective.sets.tuples()
    kinds = sorted(set(zip(collective.pre.tolist(), collective.post.tolist(), strict=True)))
    return sorted({(sets[begin][0], rank) for begin, end in kinds if len(sets[begin]) == 1 for rank in sets[end]})
