"""What the integer programs see of a problem: chunks, hops that a sketch leaves, and the symmetries of both."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.errors import Infeasible
from collsyn.model.arrays import F64, I64, Bools, Rows
from collsyn.model.collective import Collective
from collsyn.model.schedule import RouteCosts
from collsyn.model.sketch import Sketch
from collsyn.model.topology import Topology
from collsyn.synth.baseline import hops_of
from collsyn.synth.problem import Problem
from collsyn.synth.trees_symmetry import Moves, moves
from collsyn.topology.hops import Hops
from collsyn.topology.symmetry import extended_to_switches, link_images

# Hops beyond which a chain is none.
_FAR = 1 << 20


@dataclass(frozen=True, eq=False)
class Case:
    """Chunks that are copied from where they are (`holds[c, r]`) to where they are wanted (`wanted[c, r]`).

    `chunk_image` and `hop_image` have a row an element of `group`, the identity first. The group moves every link that
    hops use as often as it has elements. So a chunk that stands for its orbit, crossing a hop, loads each link of the
    orbits of the hop's links once in all its images: what fits orbits as if they were links, fits all links.
    """

    problem: Problem
    collective: Collective
    table: Hops
    sketch: Sketch | None
    group: Moves
    chunk_image: I64
    hop_image: I64

    @classmethod
    def of(cls, problem: Problem, chunks: int | None, sketch: Sketch | None) -> "Case":
        """The case of a problem that reduces nothing, with that many chunks a rank (None: the problem's own)."""
        topology, collective = problem.topology, problem.collective(chunks)
        table = hops_of(topology)
        classes = _Classes.of(collective)
        hop_number = {route: hop for hop, route in enumerate(table.routes.tuples())}

        def hop_images(links: I64) -> list[int]:
            moved = Rows(table.routes.ptr, links[table.routes.data]).tuples()
            return [hop_number.get(route, -1) for route in moved]

        def keeps(image: I64) -> bool:
            links = link_images(topology, image)
            return links is not None and classes.image(image) is not None and -1 not in hop_images(links)

        hinted = topology if sketch is None or not sketch.permutations else _with_hints(topology, sketch)
        group = moves(hinted, keeps)
        used = np.unique(table.routes.data)
        trivial = moves(replace(topology, symmetries=()), keeps)
        if (group.orbit_size[group.orbit[used]] < len(group)).any():  # a link would bear a chunk several times
            group = trivial
        case = cls._with(problem, collective, table, sketch, group, classes, hop_images)
        if case.keeps_rules:
            return case
        return cls._with(problem, collective, table, sketch, trivial, classes, hop_images)

    @classmethod
    def _with(
        cls,
        problem: Problem,
        collective: Collective,
        table: Hops,
        sketch: Sketch | None,
        group: Moves,
        classes: "_Classes",
        hop_images: Callable[[I64], list[int]],
    ) -> "Case":
        images = [classes.image(image) for image in group.vertices]
        hop_image = np.array([hop_images(links) for links in group.links], dtype=np.int64)
        return cls(problem, collective, table, sketch, group, np.array(images, dtype=np.int64), hop_image)

    @property
    def keeps_rules(self) -> bool:
        """Whether what a sketch allows is the same for all images."""
        return all(
            np.array_equal(self.allowed[chunks][:, hops], self.allowed)
            for chunks, hops in zip(self.chunk_image, self.hop_image, strict=True)
        )

    def canonical(self, chunk: I64, hop: I64) -> tuple[I64, I64]:
        """The images of some crossings whose hops stand for their orbits.

        What crosses images of one hop at a time can share messages, and does so over the hop that stands for them.
        """
        element = np.argmin(self.hop_image[:, hop], axis=0)
        return self.chunk_image[element, chunk], self.hop_image[element, hop]

    def places(self, chunk: npt.NDArray[np.integer[Any]], rank: npt.NDArray[np.integer[Any]]) -> list[int]:
        """Numbers of (chunk, rank) pairs, equal for images of each other."""
        element = np.argmin(self.chunk_image[:, chunk], axis=0)
        first = self.chunk_image[element, chunk] * self.table.num_ranks + self.group.vertices[element, rank]
        return [int(number) for number in first]

    @cached_property
    def routes(self) -> Rows:
        """Orbits of the links of every hop's route."""
        return Rows(self.table.routes.ptr, self.group.orbit[self.table.routes.data])

    @cached_property
    def link_share(self) -> F64:
        """Part of a link's bandwidth that a message takes there, for every entry of the routes."""
        topology, routes = self.problem.topology, self.table.routes
        beta = np.repeat(self.table.beta_s_per_byte, routes.lengths())
        return np.minimum(1.0, topology.beta_s_per_byte[routes.data] / beta)

    @cached_property
    def before_s(self) -> F64:
        """Latency ahead of every entry of the routes."""
        return RouteCosts.of(self.problem.topology, self.table.routes).before_s

    @cached_property
    def lanes(self) -> I64:
        """Messages that a link of every orbit carries side by side at full rate, at most 64."""
        fastest = np.zeros(len(self.group.orbit_size))
        np.maximum.at(fastest, self.routes.data, self.link_share)
        return np.clip(np.floor((1 + 1e-9) / np.where(fastest > 0, fastest, 1.0)), 1, 64).astype(np.int64)

    @cached_property
    def work_s(self) -> F64:
        """How long every chunk alone occupies the links of a hop: shape [chunks, hops]."""
        return self.chunk_bytes[:, None] * self.table.beta_s_per_byte + self.table.overhead_s

    @cached_property
    def chunk_bytes(self) -> F64:
        """Length of every chunk."""
        return self.collective.chunk_bytes(self.problem.size_bytes)

    @cached_property
    def holds(self) -> Bools:
        """Whether a rank has a chunk at the start: shape [chunks, ranks]."""
        return _members(self.collective, self.collective.pre)

    @cached_property
    def wanted(self) -> Bools:
        """Whether a rank has to get a chunk: shape [chunks, ranks]."""
        return _members(self.collective, self.collective.post) & ~self.holds

    @cached_property
    def moving(self) -> I64:
        """Chunks that have to travel and stand for their orbits."""
        first = np.unique(self.chunk_image.min(axis=0)) if self.collective.num_chunks else np.zeros(0, np.int64)
        return np.asarray(first[self.wanted[first].any(axis=1)], dtype=np.int64)

    @cached_property
    def seconds(self) -> F64:
        """Time of every chunk over every hop: shape [chunks, hops]."""
        return self.table.alpha_s + self.chunk_bytes[:, None] * self.table.beta_s_per_byte

    @cached_property
    def fewest_hops(self) -> I64:
        """Hops from every chunk's nearest holder to every rank: shape [chunks, ranks]."""
        away = np.where(self.holds, 0, _FAR).astype(np.int64)
        while True:
            before = away.copy()
            np.minimum.at(away.T, self.table.dst, away.T[self.table.src] + 1)
            if np.array_equal(before, away):
                return away

    @cached_property
    def allowed(self) -> Bools:
        """Whether a sketch lets a chunk cross a hop: nothing goes back to who has it, relays keep to their ranks."""
        lets = ~self.holds[:, self.table.dst]
        if self.sketch is None:
            return lets
        if self.sketch.extra_hops is not None:
            more = self.fewest_hops[:, self.table.src] + 1 - self.fewest_hops[:, self.table.dst]
            lets &= more <= self.sketch.extra_hops
        box = np.zeros(self.table.num_ranks, dtype=np.int64)
        for number, ranks in enumerate(self.problem.topology.rank_boxes):
            box[list(ranks)] = number
        leaves = box[self.table.src] != box[self.table.dst]
        for rank, carriers in self.sketch.carriers.items():
            others = leaves & (box[self.table.src] == box[rank]) & ~np.isin(self.table.src, list(carriers))
            alone = self.holds[:, rank] & (self.holds.sum(axis=1) == 1)
            lets &= ~(alone[:, None] & others)
        return lets

    @cached_property
    def away_s(self) -> F64:
        """Least time from a chunk's holders to every rank along allowed hops: shape [chunks, ranks]."""
        return self._settled(np.where(self.holds, 0.0, np.inf), self.table.src, self.table.dst)

    @cached_property
    def ahead_s(self) -> F64:
        """Least time from every rank to the nearest rank that wants a chunk, along allowed hops: [chunks, ranks]."""
        return self._settled(np.where(self.wanted, 0.0, np.inf), self.table.dst, self.table.src)

    def _settled(self, away: F64, tail: npt.NDArray[np.int32], head: npt.NDArray[np.int32]) -> F64:
        cost = np.where(self.allowed, self.seconds, np.inf)
        while True:
            before = away.copy()
            np.minimum.at(away.T, head, (away[:, tail] + cost).T)
            if np.array_equal(before, away):
                return away

    def require_reachable(self) -> None:
        """Raise Infeasible naming a chunk and a rank that it cannot get to."""
        lost = self.wanted & ~np.isfinite(self.away_s)
        if lost.any():
            chunk, rank = (int(i) for i in np.argwhere(lost)[0])
            source = self.collective.contributors(chunk).tolist()
            rules = "" if self.sketch is None else f" under sketch {self.sketch.name}"
            raise Infeasible(f"milp: no way leads from rank {source[0]} to rank {rank}{rules}")


@dataclass(frozen=True, eq=False)
class _Classes:
    """Chunks alike: of one length, held by the same ranks and wanted by the same, in the order of their numbers."""

    sets: list[tuple[int, ...]]
    chunk: list[tuple[int, int, int]]
    members: dict[tuple[int, int, int], list[int]]

    @classmethod
    def of(cls, collective: Collective) -> "_Classes":
        keys = list(
            zip(collective.pre.tolist(), collective.post.tolist(), np.asarray(collective.units).tolist(), strict=True)
        )
        members: dict[tuple[int, int, int], list[int]] = {}
        for chunk, key in enumerate(keys):
            members.setdefault(key, []).append(chunk)
        return cls(collective.sets.tuples(), keys, members)

    def image(self, image: I64) -> list[int] | None:
        """Where a symmetry takes every chunk: to the one with as many like it before it; None if it keeps them not."""
        number = {ranks: i for i, ranks in enumerate(self.sets)}
        moved = [number.get(tuple(sorted(image[list(ranks)].tolist())), -1) for ranks in self.sets]
        result = [0] * len(self.chunk)
        for (pre, post, units), chunks in self.members.items():
            target = self.members.get((moved[pre], moved[post], units))
            if target is None or len(target) != len(chunks):
                return None
            for chunk, goal in zip(chunks, target, strict=True):
                result[chunk] = goal
        return result


def _members(collective: Collective, numbers: npt.NDArray[np.int32]) -> Bools:
    sets = np.zeros((len(collective.sets), collective.num_ranks), dtype=np.bool_)
    sets[np.repeat(np.arange(len(collective.sets)), collective.sets.lengths()), collective.sets.data] = True
    return np.asarray(sets[numbers])


def _with_hints(topology: Topology, sketch: Sketch) -> Topology:
    """The topology with the sketch's permutations of ranks for its symmetries."""
    found = (extended_to_switches(topology, ranks) for ranks in sketch.permutations)
    return replace(topology, symmetries=tuple(image for image in found if image is not None))
