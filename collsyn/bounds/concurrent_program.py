"""Maximum concurrent flow: data from rank to rank split over all ways so that the busiest link is done earliest."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.errors import SolverFailed
from collsyn.model.arrays import F64, I64, Bools
from collsyn.model.topology import Topology
from collsyn.solver import ArrayModel, Limits, Status, solve
from collsyn.topology.symmetry import link_images

# What the time that all links are busy, taken together, counts beside the time of the busiest: enough that flows take
# no detours in vain.
DETOURS = 1e-4
# Symmetries that keep a source in place: so many numbers are looked at to find which links they exchange.
MOST_IMAGES = 1 << 24


@dataclass(frozen=True, eq=False)
class Source:
    """A rank whose flows are unknowns, and the ranks `images` that it stands for, itself the first.

    `vertices[i]` and `links[i]` are a symmetry that moves it to its i-th image. Links of one class (`link_class[e]`)
    carry alike, since symmetries that keep the rank in place exchange them; likewise vertices.
    """

    rank: int
    images: I64
    vertices: I64
    links: I64
    vertex_class: I64
    link_class: I64


@dataclass(frozen=True, eq=False)
class Flows:
    """A solution: `flow[i, e]` is what source i sends over link e, in bytes; the busiest link is busy for `time_s`.

    `price[e]` is the dual of link e's orbit (lengths that prove the optimum), `sources` whom the rows belong to.
    """

    sources: Sequence[Source]
    flow: F64
    time_s: float
    price: F64


@dataclass(frozen=True, eq=False)
class Program:
    """The linear program of a topology and a demand in bytes, shape [ranks, ranks], one commodity for every source.

    Symmetries of the topology that keep the demand are made use of: of sources that they exchange one is solved for,
    and of links that symmetries exchange which keep it in place one. That loses nothing, since the mean of all images
    of a flow is one. `sources` may be far fewer than ranks, and `num_flows` than sources times links.
    """

    topology: Topology
    demand: F64

    @cached_property
    def images(self) -> list[tuple[I64, I64]]:
        """Generators: images of all vertices and of all links under the symmetries that keep the demand."""
        found = []
        for perm in self.topology.symmetries:
            vertices = np.array(perm, dtype=np.int64)
            ranks, links = vertices[: self.topology.num_ranks], link_images(self.topology, vertices)
            if links is not None and np.array_equal(self.demand[ranks[:, None], ranks], self.demand):
                found.append((vertices, links))
        return found

    @cached_property
    def orbit(self) -> I64:
        """The number of the orbit of every link."""
        return _parts([links for _, links in self.images], self.topology.num_links)

    @cached_property
    def sources(self) -> list[Source]:
        """One rank of every orbit of those that have something to send."""
        t, sending = self.topology, self.demand.sum(axis=1) > 0
        rank_orbit = _parts([vertices for vertices, _ in self.images], t.num_vertices)[: t.num_ranks]
        _, first = np.unique(rank_orbit, return_index=True)
        return [self._source(rank) for rank in sorted(first.tolist()) if bool(sending[rank])]

    def _source(self, rank: int) -> Source:
        """A source and its images, each reached from the one before it in a search by one generator."""
        t = self.topology
        place = {rank: 0}
        vertices, links = [np.arange(t.num_vertices)], [np.arange(t.num_links)]
        order = [rank]
        for at in order:
            for vertex_image, link_image in self.images:
                there = int(vertex_image[at])
                if there not in place:
                    place[there] = len(order)
                    order.append(there)
                    vertices.append(vertex_image[vertices[place[at]]])
                    links.append(link_image[links[place[at]]])
        moved, carried = np.array(vertices), np.array(links)
        images = np.array(order, dtype=np.int64)
        keep_vertices, keep_links = self._keepers(images, moved, carried, rank)
        classes = _parts(keep_vertices, t.num_vertices), _parts(keep_links, t.num_links)
        return Source(rank, images, moved, carried, *classes)

    def _keepers(self, images: I64, vertices: I64, links: I64, rank: int) -> tuple[list[I64], list[I64]]:
        """Symmetries that keep the source in place and generate all that do (Schreier's lemma)."""
        place = np.full(self.topology.num_ranks, -1)
        place[images] = np.arange(len(images))
        width = vertices.shape[1] + links.shape[1]
        many = max(1, MOST_IMAGES // max(1, width * max(1, len(self.images))))
        chosen = np.unique(np.linspace(0, len(images) - 1, min(many, len(images))).astype(np.int64))
        found: tuple[list[I64], list[I64]] = ([], [])
        for vertex_image, link_image in self.images:
            for i in chosen.tolist():
                back = place[vertex_image[images[i]]]
                for kept, image, moved in ((found[0], vertex_image, vertices), (found[1], link_image, links)):
                    inverse = np.empty(moved.shape[1], dtype=np.int64)
                    inverse[moved[back]] = np.arange(moved.shape[1])
                    kept.append(inverse[image[moved[i]]])
                assert found[0][-1][rank] == rank
        return found

    @cached_property
    def num_flows(self) -> int:
        """Unknowns: links of every source, those of a class together."""
        return int(sum(int(source.link_class.max(initial=-1)) + 1 for source in self.sources))

    def solved(self, corner: bool, detours: float = DETOURS) -> Flows | None:
        """The flows; None where the solver fails.

        A solution at a corner has few ways in use; one from inside is found sooner where there are many flows.
        """
        matrix = self._matrix
        try:
            answer = solve(matrix.model(detours), Limits(inside=not corner))
        except SolverFailed:
            return None
        if answer.status is not Status.OPTIMAL or answer.values is None:
            return None
        amount = np.maximum(answer.values, 0.0)
        flow = np.zeros((len(self.sources), self.topology.num_links))
        for i, source in enumerate(self.sources):
            flow[i] = amount[matrix.first[i] + source.link_class] * matrix.scale
            flow[i, self.topology.dst == source.rank] = 0.0
        price = np.maximum(-answer.row_dual[matrix.num_balances :], 0.0)
        return Flows(self.sources, flow, float(self.load(flow).max(initial=0.0)), price[self.orbit])

    def load(self, flow: F64) -> F64:
        """Seconds that every link is busy with the flows of all sources and their images."""
        total = np.zeros(self.topology.num_links)
        for i, source in enumerate(self.sources):
            for links in source.links:
                total[links] += flow[i]
        return np.asarray(total * self.topology.beta_s_per_byte)

    @cached_property
    def _matrix(self) -> "_Matrix":
        return _Matrix.of(self)


@dataclass(frozen=True, eq=False)
class _Matrix:
    """Columns: flows on the classes of links of every source from `first[i]` on, and the time last.

    Rows: of every source what enters a class of vertices less what leaves it (`num_balances` in all), then the load of
    every orbit of links less what it bears. Amounts in units of `scale` bytes.
    """

    rows: Any
    need: F64
    first: I64
    num_balances: int
    num_columns: int
    share: F64
    useless: Bools
    scale: float

    @classmethod
    def of(cls, program: Program) -> "_Matrix":
        """The matrix of a program."""
        from scipy.sparse import coo_array

        t, orbit = program.topology, program.orbit
        scale = float(program.demand.max())
        first = np.cumsum([0, *(int(source.link_class.max()) + 1 for source in program.sources)])
        orbits, width = int(orbit.max()) + 1, int(first[-1]) + 1
        room = np.bincount(orbit, weights=t.bandwidth / t.bandwidth.max(), minlength=orbits)
        useless, share = np.zeros(width, dtype=np.bool_), np.zeros(width)
        parts: list[tuple[npt.NDArray[Any], ...]] = []
        need, begin = [], 0
        for i, source in enumerate(program.sources):
            column = first[i] + source.link_class
            useless[column[t.dst == source.rank]] = True
            # One vertex speaks for its class; nothing is asked of the source itself.
            _, speaker = np.unique(source.vertex_class, return_index=True)
            speaker = speaker[speaker != source.rank]
            row = np.full(t.num_vertices, -1)
            row[speaker] = begin + np.arange(len(speaker))
            for end, sign in ((t.dst, 1.0), (t.src, -1.0)):
                mine = row[end] >= 0
                parts.append((row[end][mine], column[mine], np.full(int(mine.sum()), sign)))
            amount = np.zeros(t.num_vertices)
            amount[: t.num_ranks] = program.demand[source.rank] / scale
            need.append(amount[speaker])
            begin += len(speaker)
            many = float(len(source.images))
            np.add.at(share, column, many * t.bandwidth.max() / t.bandwidth / t.num_links)
            parts.append((-1 - orbit, column, np.full(t.num_links, many)))
        parts.append((-1 - np.arange(orbits), np.full(orbits, width - 1), -room))
        row, column, value = (np.concatenate(values) for values in zip(*parts, strict=True))
        row = np.where(row < 0, begin - 1 - row, row)
        rows = coo_array((value, (row, column)), shape=(begin + orbits, width)).tocsc()
        return cls(rows, np.concatenate(need), first, begin, width, share, useless, scale)

    def model(self, detours: float) -> ArrayModel:
        """The program, in which detours count that much."""
        loads = self.rows.shape[0] - self.num_balances
        cost = detours * self.share
        cost[-1] = 1.0
        return ArrayModel(
            name="flow",
            matrix=self.rows,
            row_low=np.concatenate([self.need, np.full(loads, -np.inf)]),
            row_high=np.concatenate([self.need, np.zeros(loads)]),
            low=np.zeros(self.num_columns),
            high=np.where(self.useless, 0.0, np.inf),
            cost=cost,
        )


def _parts(images: Sequence[I64], count: int) -> I64:
    """Numbers 0, 1, ... of the orbits of 0 .. count - 1 under permutations."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    starts = np.tile(np.arange(count), len(images))
    ends = np.concatenate(images) if images else starts
    graph = coo_array((np.ones(len(ends), dtype=np.int8), (starts, ends)), shape=(count, count))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)
