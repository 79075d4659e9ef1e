"""Short cuts on rings and tori: partners at distances 1, 1, 3, 5, 11, ..., the ways to them, and chunks spread along.

The distances are sums of powers of -2: (1 - (-2)^(k+1)) / 3 is 1, -1, 3, -5, 11, ... Partner by partner, they reach
everyone of a power of two in as few rounds as any method, and stay nearer than the 1, 2, 4, 8, ... of recursive
doubling: Swing (De Sensi et al., NSDI 2024) and Bine trees (De Sensi et al., SC 2025) are made of them.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from collsyn.model.topology import Topology
from collsyn.synth.baseline import Message, joined_pairs

# Ranks from the first to the last, each joined to the next by a hop.
Way = tuple[int, ...]


@dataclass(frozen=True)
class Grid:
    """The places of a process group: the first dimension counts fastest.

    `stepwise`: hops join neighbours along a dimension only, as in a torus, so that ways lead through all places between
    two partners; otherwise a hop joins the partners themselves.
    """

    members: tuple[int, ...]
    sizes: tuple[int, ...]
    stepwise: bool

    def partners(self, port: "Port") -> Iterator[list[Way]]:
        """The ways of every round, nearest partners first; along a line each two partners exchange."""
        rounds = [(size - 1).bit_length() for size in self.sizes]
        order = [(port.first + i) % len(self.sizes) for i in range(len(self.sizes))]
        for k in range(max(rounds, default=0)):
            for dimension in (d for d in order if k < rounds[d]):
                distance = -shortcut(k) if port.mirrored else shortcut(k)
                yield [self.way(place, dimension, distance) for place in range(len(self.members))]

    def way(self, place: int, dimension: int, distance: int) -> Way:
        """From a place to its partner in that dimension; even places go `distance` on, odd ones back."""
        size, stride = self.sizes[dimension], prod(self.sizes[:dimension])
        at = place // stride % size
        move = -distance if at % 2 else distance
        steps = move % size
        # The shorter way round; of two equal ones that of the distance itself.
        if 2 * steps > size or (2 * steps == size and move < 0):
            steps -= size
        sign = 1 if steps > 0 else -1
        stops = range(0, steps + sign, sign) if self.stepwise else (0, steps)
        return tuple(self.members[place + ((at + step) % size - at) * stride] for step in stops)

    def ports(self) -> list["Port"]:
        """One port a link of a rank, so that parts of the data that take one each load all links alike."""
        if not self.stepwise:
            return [Port(0, False)]
        both = (False, True) if max(self.sizes, default=0) > 2 else (False,)
        return [Port(first, mirrored) for mirrored in both for first in range(max(len(self.sizes), 1))]


@dataclass(frozen=True)
class Port:
    """Which dimension comes first, and whether even places go the other way round."""

    first: int
    mirrored: bool


def shortcut(k: int) -> int:
    """The signed distance of the partners of round k: 1, -1, 3, -5, 11, ..."""
    return ((1 << (k + 1)) + (1 if k % 2 == 0 else -1)) // 3 * (1 if k % 2 == 0 else -1)


@lru_cache(maxsize=256)
def torus_sizes(topology: Topology, members: tuple[int, ...]) -> tuple[int, ...] | None:
    """Sizes of the torus whose links are the hops between the members, or None where they are no torus.

    Members count as in the preset `torus`, the first dimension fastest; a ring is a torus of one dimension, and a
    dimension of size 2 has one link. O(hops).
    """
    place = {rank: i for i, rank in enumerate(members)}
    near: list[set[int]] = [set() for _ in members]
    for a, b in joined_pairs(topology):
        if a in place and b in place:
            near[place[a]].add(place[b])
    return next((sizes for sizes in _sizes(len(members), 1, near[0]) if _is_torus(sizes, near)), None)


def _sizes(left: int, stride: int, near: Container[int]) -> Iterator[tuple[int, ...]]:
    """Sizes with that product whose neighbours of place 0 are among those given."""
    if left == 1:
        yield ()
        return
    for size in (s for s in range(2, left + 1) if left % s == 0):
        if stride in near and (size - 1) * stride in near:
            yield from ((size, *rest) for rest in _sizes(left // size, stride * size, near))


def _is_torus(sizes: Sequence[int], near: Sequence[set[int]]) -> bool:
    for place, found in enumerate(near):
        expected, stride = set(), 1
        for size in sizes:
            at = place // stride % size
            expected |= {place + ((at + step) % size - at) * stride for step in (1, -1)}
            stride *= size
        if found != expected:
            return False
    return True


def spread(
    rounds: Iterable[Sequence[Way]],
    held: Mapping[int, Iterable[int]],
    wanted: Mapping[int, Container[int]],
    lanes: int = 1,
    spared: Mapping[int, Container[int]] | None = None,
) -> tuple[list[list[Message]], dict[int, set[int]]]:
    """Messages, round by round, that copy chunks along ways until all who want them have them; and who holds what then.

    In a round the first rank of each way sends all that it holds and the last one lacks. Ranks on the way keep what
    passes; none gets a chunk twice, and none one that neither it nor a rank behind it wants. `held` are the chunks of a
    rank at the start, `wanted` the receivers of a chunk; on ways of several hops the chunks of a message follow each
    other in that many `lanes`. What a rank is `spared` it has already, but sends on only as if it came now.
    O(chunks moved).
    """
    there: Mapping[int, Container[int]] = spared or {}
    has: defaultdict[int, set[int]] = defaultdict(set, {rank: set(chunks) for rank, chunks in held.items()})
    steps = [step for ways in rounds for step in _round(ways, has, lanes)]
    passed_on: set[tuple[int, int]] = set()
    kept_steps: list[list[Message]] = []
    for step in reversed(steps):
        kept = []
        for src, dst, chunks in reversed(step):
            new = (c for c in chunks if c not in there.get(dst, ()))
            needed = [c for c in new if dst in wanted[c] or (dst, c) in passed_on]
            passed_on.update((src, c) for c in needed)
            if needed:
                kept.append(Message(needed, src, dst))
        kept_steps.append(kept[::-1])
    after = defaultdict(set, {rank: set(chunks) for rank, chunks in held.items()})
    for message in (message for step in kept_steps for message in step):
        after[message.dst].update(message.chunks)
    return kept_steps[::-1], after


_Move = tuple[int, int, list[int]]


def _round(ways: Sequence[Way], has: dict[int, set[int]], lanes: int) -> list[list[_Move]]:
    """The hops of one round in their order; `has` takes in what arrives."""
    loads = []
    for way in ways:
        chunks = sorted(has[way[0]] - has[way[-1]])
        cuts = min(lanes, len(chunks)) if len(way) > 2 else min(1, len(chunks))
        loads.append([chunks[len(chunks) * i // cuts : len(chunks) * (i + 1) // cuts] for i in range(cuts)])
    steps = []
    for time in range(max((len(way) + len(load) - 2 for way, load in zip(ways, loads, strict=True)), default=0)):
        step: list[_Move] = []
        for way, load in zip(ways, loads, strict=True):
            for hop in range(max(0, time - len(load) + 1), min(time + 1, len(way) - 1)):
                src, dst = way[hop], way[hop + 1]
                fresh = [c for c in load[time - hop] if c not in has[dst]]
                has[dst].update(fresh)
                step.append((src, dst, fresh))
        steps.append(step)
    return steps
