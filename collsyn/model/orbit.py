"""Schedules of symmetric topologies: the sends of a few chunks, and the symmetries that move them to all others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from collsyn.errors import InputError
from collsyn.model.arrays import I64, Rows
from collsyn.model.bound import Bound
from collsyn.model.collective import Collective
from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology
from collsyn.model.translations import Translations


@dataclass(frozen=True, eq=False)
class OrbitSchedule:
    """The sends `base` of the chunks `representatives`, and the same moved by every product of the `generators`.

    `base` is a schedule of `part(collective, representatives)`, whose routes are single links. Generators permute the
    vertices; chunk j of rank r moves to chunk j of the rank that r moves to, at the same times.
    """

    collective: Collective
    generators: tuple[tuple[int, ...], ...]
    representatives: I64
    base: Schedule
    provenance: Mapping[str, Any] = field(default_factory=dict)
    bounds: tuple[Bound, ...] = ()

    @property
    def topology(self) -> Topology:
        """Where."""
        return self.base.topology

    @property
    def size_bytes(self) -> int:
        """At which size."""
        return self.base.size_bytes

    @property
    def finish_s(self) -> float:
        """When the last message has arrived and been reduced: moved sends take the same times."""
        return self.base.finish_s

    @property
    def num_sends(self) -> int:
        """Chunks moved."""
        return self.base.num_sends * (self.collective.num_chunks // len(self.representatives))

    @cached_property
    def group(self) -> Translations | None:
        """All products of the generators; None where they are no translations."""
        return Translations.of(self.generators, self.topology.num_vertices)

    def with_notes(self, bounds: Sequence[Bound] | None = None, **provenance: object) -> "OrbitSchedule":
        """The same schedule with bounds or provenance added."""
        notes = {**self.provenance, **provenance}
        return replace(self, provenance=notes, bounds=self.bounds if bounds is None else tuple(bounds))

    def excerpt(self, ranks: Sequence[int] | None = None, window_s: tuple[float, float] | None = None) -> Schedule:
        """The sends that leave some ranks (None: all) and are on their way in a window of time, as a schedule.

        Without ranks and window it is the ordinary schedule of the same sends, for small ones; else to be looked at.
        The group must be one. O(ranks x sends of the base).
        """
        base, group, each = self.base, self.group, self.collective.chunks_per_rank
        assert group is not None
        shown = np.arange(base.num_sends)
        if window_s is not None:
            messages = base.messages
            inside = (messages.start_s < window_s[1]) & (messages.arrival_s > window_s[0])
            shown = np.sort(messages.rows.data[np.repeat(inside, messages.rows.lengths())])
        if ranks is None:
            rows, element = np.repeat(shown, group.size), np.tile(np.arange(group.size), len(shown))
        else:
            asked = np.asarray(ranks, dtype=np.int64)
            here, send = np.nonzero(group.orbit[asked][:, None] == group.orbit[base.src[shown]])
            rows = shown[send]
            element = group.element(base.src[rows], asked[here])
        owner, number = np.divmod(self.representatives[base.chunk[rows]], each)
        src, dst = group.moved(base.src[rows], element), group.moved(base.dst[rows], element)
        columns = {name: values[rows] for name, values in base.columns().items() if name not in ("batch", "rate")}
        columns |= {"src": src, "dst": dst, "chunk": group.moved(owner, element) * each + number}
        used, route = np.unique(links_between(self.topology, src, dst), return_inverse=True)
        columns["route"] = route.reshape(-1)
        routes = Rows(np.arange(len(used) + 1), used)
        built = Schedule.build(self.collective, self.topology, self.size_bytes, routes, self.provenance, **columns)
        return built.with_notes(self.bounds)


def part(collective: Collective, chunks: I64) -> Collective:
    """The collective of some of the chunks alone, numbered in the order given."""
    columns = {name: getattr(collective, name)[chunks] for name in ("units", "in_offset", "out_offset", "pre", "post")}
    return replace(collective, **columns)


def link_routes(topology: Topology) -> Rows:
    """Every link as a route, numbered alike."""
    return Rows(np.arange(topology.num_links + 1), np.arange(topology.num_links))


def links_between(topology: Topology, src: I64, dst: I64) -> I64:
    """The first link from each source to its destination; -1 where there is none."""
    keys = topology.src.astype(np.int64) * topology.num_vertices + topology.dst
    order = np.argsort(keys, kind="stable")
    asked = src * topology.num_vertices + dst
    spot = np.minimum(np.searchsorted(keys[order], asked), len(keys) - 1)
    return np.where(keys[order[spot]] == asked, order[spot], -1)


def retimed(schedule: OrbitSchedule, base: Schedule) -> OrbitSchedule:
    """The same sends at the times, size and costs of another base; raises InputError if it moves other chunks."""
    if base.num_sends != schedule.base.num_sends:
        raise InputError("the base has other sends")
    return replace(schedule, base=base, bounds=())
