"""Schedules of very many sends in lockstep: a table of when every chunk comes to every rank, and from where."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.errors import InputError
from collsyn.model.arrays import Rows
from collsyn.model.bound import Bound
from collsyn.model.collective import Collective
from collsyn.model.schedule import COPY, REDUCE, Schedule
from collsyn.model.topology import Topology

Steps = npt.NDArray[np.unsignedinteger[Any]]
Ports = npt.NDArray[np.uint8]

# What a table can hold: every chunk goes from one rank to all, or from all to one, or both.
GATHER, SPREAD = "gather", "spread"
PHASES = {"allgather": (SPREAD,), "reducescatter": (GATHER,), "allreduce": (GATHER, SPREAD)}
MAX_PORTS = 256
# A check keeps a bit for each step and neighbour of a rank.
MAX_STEPS = 1 << 26


@dataclass(frozen=True, eq=False)
class StepTable:
    """A schedule in which messages start at multiples of one step, and each chunk spreads along one tree.

    `steps[r, c]` is the step in which chunk c comes to rank r and `ports[r, c]` the neighbour it comes from, counted
    in `neighbours`; the root of a chunk's tree has `never(steps)` there. Both have the shape [ranks, chunks]; steps are
    uint16 or uint32, and may be memory maps of files larger than the memory. What comes in step s can be sent on in
    step s + `lag`. A gather is the same backwards: in step `num_steps` - 1 - s rank r sends its sum of chunk c to that
    neighbour. An allreduce gathers, then spreads, along the same trees.
    """

    collective: Collective
    topology: Topology
    size_bytes: int
    lag: int
    num_steps: int
    steps: Steps
    ports: Ports
    provenance: Mapping[str, Any] = field(default_factory=dict)
    bounds: tuple[Bound, ...] = ()

    @property
    def phases(self) -> tuple[str, ...]:
        """What is done one after the other: gather, spread or both."""
        return PHASES[self.collective.kind]

    @property
    def num_sends(self) -> int:
        """Chunks moved."""
        return len(self.phases) * self.collective.num_chunks * (self.topology.num_ranks - 1)

    @cached_property
    def step_s(self) -> float:
        """Seconds of a step: links are free again after one step, and data is there after `lag` steps."""
        return max(self._most_s(self.topology.overhead_s), self.arrival_s / self.lag)

    @cached_property
    def arrival_s(self) -> float:
        """Seconds from the start of a message until it has arrived and been reduced, on the slowest link."""
        reduce_s = self._longest_bytes * float(self.topology.reduce_s_per_byte.max(initial=0.0))
        return self._most_s(self.topology.alpha_s) + (reduce_s if GATHER in self.phases else 0.0)

    def _most_s(self, fixed_s: npt.NDArray[np.float64]) -> float:
        return float((fixed_s + self._longest_bytes * self.topology.beta_s_per_byte).max())

    @property
    def _longest_bytes(self) -> float:
        return float(self.collective.chunk_bytes(self.size_bytes).max())

    def begin_s(self, phase: str) -> float:
        """When a phase begins."""
        return 0.0 if phase == self.phases[0] else self._phase_s

    @property
    def _phase_s(self) -> float:
        return (self.num_steps - 1) * self.step_s + self.arrival_s

    @property
    def finish_s(self) -> float:
        """When all is done."""
        return len(self.phases) * self._phase_s

    def with_notes(self, bounds: Sequence[Bound] | None = None, **provenance: object) -> "StepTable":
        """The same schedule with bounds or provenance added."""
        notes = {**self.provenance, **provenance}
        return replace(self, provenance=notes, bounds=self.bounds if bounds is None else tuple(bounds))

    def at(self, size_bytes: int, topology: Topology | None = None) -> "StepTable":
        """The same steps at another size or the costs of another topology of equal wiring; raises InputError."""
        new = self.topology if topology is None else topology
        if new.wiring != self.topology.wiring:
            raise InputError(f"topology {new.name}: is wired differently from {self.topology.name}")
        if new.size_rates:
            raise InputError(f"topology {new.name}: has rates by length, which schedules in lockstep do not know")
        return replace(self, topology=new, size_bytes=size_bytes, bounds=())

    def excerpt(self, ranks: Sequence[int] | None = None, window_s: tuple[float, float] | None = None) -> Schedule:
        """The sends that leave some ranks (None: all) and are on their way in a window of time, as a schedule.

        It is no whole collective, to be looked at only. O(chunks x neighbours of the ranks).
        """
        parts = [self._part(phase, ranks, window_s) for phase in self.phases]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        routes = Rows(np.arange(self.topology.num_links + 1), np.arange(self.topology.num_links))
        columns["route"] = columns.pop("link")
        built = Schedule.build(self.collective, self.topology, self.size_bytes, routes, self.provenance, **columns)
        return built.with_notes(self.bounds)

    def _part(
        self, phase: str, ranks: Sequence[int] | None, window_s: tuple[float, float] | None
    ) -> dict[str, npt.NDArray[Any]]:
        """Columns of one phase, `link` in the place of the route."""
        low_s, high_s = (-np.inf, np.inf) if window_s is None else window_s
        near, far = neighbours(self.topology, phase), far_ends(self.topology, phase)
        rows = []
        for rank in self._rows_of(phase, ranks):
            steps = np.asarray(self.steps[rank])
            chunk = np.flatnonzero(steps != never(steps))
            step = steps[chunk].astype(np.int64)
            step = self.num_steps - 1 - step if phase == GATHER else step
            start_s = self.begin_s(phase) + step * self.step_s
            kept = (start_s < high_s) & (start_s + self.arrival_s > low_s)
            link = near[rank][self.ports[rank][chunk[kept]]].astype(np.int64)
            # A rank of the table sends in a gather; in a spread its neighbours send to it.
            ends = [np.full(len(link), rank), far[link].astype(np.int64)]
            src, dst = ends if phase == GATHER else ends[::-1]
            asked = slice(None) if ranks is None else np.isin(src, ranks)
            rows.append([column[asked] for column in (chunk[kept], src, dst, link, start_s[kept])])
        names = ("chunk", "src", "dst", "link", "start_s")
        found = {
            name: np.concatenate([np.zeros(0, np.int64), *parts]) for name, *parts in zip(names, *rows, strict=True)
        }
        return {**found, "op": np.full(len(found["chunk"]), REDUCE if phase == GATHER else COPY)}

    def _rows_of(self, phase: str, ranks: Sequence[int] | None) -> list[int]:
        """Rows of the table in which sends from some ranks stand."""
        if ranks is None:
            return list(range(len(self.steps)))
        if phase == GATHER:
            return sorted(ranks)
        near, far = neighbours(self.topology, phase), far_ends(self.topology, phase)
        owner = np.repeat(np.arange(len(near)), near.lengths())
        found: list[int] = np.unique(owner[np.isin(far[near.data], ranks)]).tolist()
        return found

    def expand(self) -> Schedule:
        """The ordinary schedule of the same sends; for small ones: it takes some 100 bytes a send."""
        return self.excerpt()


def neighbours(topology: Topology, phase: str) -> Rows:
    """Row r: the links from (spread) or to (gather) the neighbours of rank r, in the order of their numbers."""
    here, there = (topology.dst, topology.src) if phase == SPREAD else (topology.src, topology.dst)
    order = np.lexsort((np.arange(topology.num_links), there, here))
    ptr = np.zeros(topology.num_vertices + 1, dtype=np.int64)
    np.cumsum(np.bincount(here, minlength=topology.num_vertices), out=ptr[1:])
    return Rows(ptr[: topology.num_ranks + 1], order)


def links_both_ways(topology: Topology) -> bool:
    """Whether every rank's neighbours send to it as it sends to them, so that one table serves both directions."""
    out, into = neighbours(topology, GATHER), neighbours(topology, SPREAD)
    to, come = far_ends(topology, GATHER)[out.data], far_ends(topology, SPREAD)[into.data]
    return np.array_equal(out.ptr, into.ptr) and np.array_equal(to, come)


def far_ends(topology: Topology, phase: str) -> npt.NDArray[np.int32]:
    """For every link the end at which the neighbour of `neighbours` stands."""
    return topology.src if phase == SPREAD else topology.dst


def never(steps: Steps) -> int:
    """What stands in a table for a chunk that does not come: the largest number of its type."""
    return int(np.iinfo(steps.dtype).max)


def lag_of(topology: Topology, chunk_bytes: float, reduces: bool) -> int:
    """Steps from the start of a message until it can be sent on, where steps are as long as a message loads a link."""
    busy_s = topology.overhead_s + chunk_bytes * topology.beta_s_per_byte
    arrival_s = topology.alpha_s + chunk_bytes * topology.beta_s_per_byte
    if reduces:
        arrival_s = arrival_s + chunk_bytes * float(topology.reduce_s_per_byte.max(initial=0.0))
    return max(1, int(np.ceil(arrival_s.max() / busy_s.max() * (1 - 1e-12))))
