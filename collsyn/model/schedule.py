"""A schedule: which chunk travels when, over which route, at which rate; columns, one row a send."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64, I32, I64, Rows, column
from collsyn.model.bound import Bound
from collsyn.model.collective import Collective
from collsyn.model.size_rates import SizedRoutes
from collsyn.model.topology import Topology

COPY, REDUCE = 0, 1
OP_NAMES = ("copy", "reduce")

# Slots name the places where a rank keeps partial results of one chunk.
VALUE = 0  # begins as the rank's own contribution (where it has one) and must be the result at the end
OWN = -1  # the rank's own contribution as given, never changed; only ever a source

_DTYPES: dict[str, npt.DTypeLike] = {
    "chunk": np.int32,
    "src": np.int32,
    "dst": np.int32,
    "route": np.int32,
    "start_s": np.float64,
    "rate": np.float64,
    "op": np.uint8,
    "batch": np.int32,
    "src_slot": np.int8,
    "dst_slot": np.int8,
}
_DEFAULTS = {"rate": 0.0, "op": COPY, "batch": -1, "src_slot": VALUE, "dst_slot": VALUE}


@dataclass(frozen=True, eq=False)
class Schedule:
    """Sends of a collective on a topology at one size.

    Row i: chunk `chunk[i]` leaves rank `src[i]` at `start_s[i]` over the links `routes[route[i]]` and reaches `dst[i]`,
    where it replaces (`op` COPY) or joins (REDUCE) what is there. What is sent is what the source holds at the start.
    `rate` is in bytes/s, 0 meaning the whole bandwidth of the route's slowest link. Rows of one `batch` (-1: alone)
    have equal source, destination, route, start and rate, and travel as one message. `src_slot` and `dst_slot` choose
    among several partial results of a chunk at a rank (VALUE 0; OWN -1, the untouched input; 1, 2, ... begin empty).
    A row whose source is its destination has the empty route and merges slots in no time.
    """

    collective: Collective
    topology: Topology
    size_bytes: int
    routes: Rows
    chunk: I32
    src: I32
    dst: I32
    route: I32
    start_s: F64
    rate: F64
    op: npt.NDArray[np.uint8]
    batch: I32
    src_slot: npt.NDArray[np.int8]
    dst_slot: npt.NDArray[np.int8]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    bounds: tuple[Bound, ...] = ()

    @classmethod
    def build(
        cls,
        collective: Collective,
        topology: Topology,
        size_bytes: int,
        routes: Rows | Sequence[Sequence[int]],
        provenance: Mapping[str, Any] | None = None,
        **columns: npt.ArrayLike,
    ) -> "Schedule":
        """A schedule from its columns in any order; columns that are left out take their defaults.

        Rows are sorted by start, then chunk, destination and source, and batches renumbered in that order, so that
        equal schedules are equal arrays.
        """
        num_rows = len(np.asarray(columns["chunk"]))
        full: dict[str, Any] = {
            name: np.asarray(columns[name] if name in columns else np.full(num_rows, _DEFAULTS[name]), dtype=dtype)
            for name, dtype in _DTYPES.items()
        }
        keys = [full[name] for name in ("start_s", "chunk", "dst", "src", "src_slot")]
        if not _ascend(keys):
            order = np.lexsort(keys[::-1])
            full = {name: values[order] for name, values in full.items()}
        full["batch"] = _renumbered(full["batch"])
        table = routes if isinstance(routes, Rows) else Rows.of(routes)
        return cls(collective, topology, size_bytes, table, **full, provenance=provenance or {})

    def __post_init__(self) -> None:
        for name, dtype in _DTYPES.items():
            object.__setattr__(self, name, column(getattr(self, name), dtype))
        assert len({len(getattr(self, name)) for name in _DTYPES}) == 1, "schedule columns differ in length"

    @property
    def num_sends(self) -> int:
        """Rows: chunks moved, batched or not."""
        return len(self.chunk)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """All columns by name, in the order of files."""
        return {name: getattr(self, name) for name in _DTYPES}

    def with_times(self, start_s: npt.ArrayLike, size_bytes: int, rate: npt.ArrayLike | None = None) -> "Schedule":
        """The same sends at other times and another size."""
        changed = {**self.columns(), "start_s": start_s} | ({} if rate is None else {"rate": rate})
        return type(self).build(self.collective, self.topology, size_bytes, self.routes, self.provenance, **changed)

    def with_notes(self, bounds: Sequence[Bound] | None = None, **provenance: object) -> "Schedule":
        """The same schedule with bounds or provenance added."""
        notes = {**self.provenance, **provenance}
        return replace(self, provenance=notes, bounds=self.bounds if bounds is None else tuple(bounds))

    @cached_property
    def messages(self) -> "Messages":
        """The sends grouped into what travels together."""
        return Messages.of(self)

    @cached_property
    def finish_s(self) -> float:
        """When the last message has arrived and been reduced, seconds from the start (0 without messages)."""
        return float(self.messages.done_s.max(initial=0.0))


def is_default(name: str, values: npt.NDArray[Any]) -> bool:
    """Whether a column holds only its default, so that files leave it out."""
    return name in _DEFAULTS and bool((values == _DEFAULTS[name]).all())


def column_dtypes() -> dict[str, npt.DTypeLike]:
    """Names and types of the columns, in the order of files."""
    return dict(_DTYPES)


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages of a schedule as columns: `rows[m]` are its sends; times follow the time model of Topology."""

    rows: Rows
    src: I32
    dst: I32
    route: I32
    start_s: F64
    num_bytes: F64
    rate: F64
    busy_s: F64
    arrival_s: F64
    done_s: F64

    @classmethod
    def of(cls, schedule: Schedule) -> "Messages":
        """Group rows by batch; the first row of a batch speaks for it (the checker tests that the others agree)."""
        _, first, inverse = np.unique(_message_ids(schedule.batch), return_index=True, return_inverse=True)
        first_order = np.argsort(first, kind="stable")
        rank_of = np.empty_like(first_order)
        rank_of[first_order] = np.arange(len(first))
        message = rank_of[inverse.reshape(-1)]
        lead = first[first_order]
        rows = Rows.grouped(message, len(lead))
        lengths = schedule.collective.chunk_bytes(schedule.size_bytes)[schedule.chunk]
        num_bytes = np.bincount(message, weights=lengths, minlength=len(lead)).astype(np.float64)
        costs = RouteCosts.of(schedule.topology, schedule.routes)
        route, start_s = schedule.route[lead], schedule.start_s[lead]
        full_rate = costs.rate[route]
        rate = message_rates(schedule.topology, schedule.routes, costs, route, schedule.rate[lead], num_bytes)
        with np.errstate(invalid="ignore"):
            transfer_s = np.where(np.isinf(full_rate), 0.0, num_bytes / rate)
        arrival_s = start_s + costs.alpha_s[route] + transfer_s
        reduced = np.zeros(len(lead), dtype=np.bool_)
        reduced[message[schedule.op == REDUCE]] = True
        reduce_s = np.where(reduced, schedule.topology.reduce_s_per_byte[schedule.dst[lead]] * num_bytes, 0.0)
        return cls(
            rows=rows,
            src=schedule.src[lead],
            dst=schedule.dst[lead],
            route=route,
            start_s=start_s,
            num_bytes=num_bytes,
            rate=rate,
            busy_s=costs.overhead_s[route] + transfer_s,
            arrival_s=arrival_s,
            done_s=arrival_s + reduce_s,
        )

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True, eq=False)
class RouteCosts:
    """Costs of the routes of a table.

    Per route: total alpha, largest overhead, bytes/s of its slowest link (infinite for the empty route); `before_s` has
    one entry for each entry of the table: the alphas before that link.
    """

    alpha_s: F64
    overhead_s: F64
    rate: F64
    before_s: F64

    @classmethod
    def of(cls, topology: Topology, routes: Rows) -> "RouteCosts":
        """Costs of every route of a table."""
        owner = np.repeat(np.arange(len(routes)), routes.lengths())
        alpha = topology.alpha_s[routes.data]
        total = np.bincount(owner, weights=alpha, minlength=len(routes)).astype(np.float64)
        overhead = np.zeros(len(routes))
        np.maximum.at(overhead, owner, topology.overhead_s[routes.data])
        beta = np.zeros(len(routes))
        np.maximum.at(beta, owner, topology.beta_s_per_byte[routes.data])
        before, lengths = np.zeros(len(alpha)), routes.lengths()
        for place in range(1, int(lengths.max(initial=0))):
            entry = routes.ptr[:-1][lengths > place] + place
            before[entry] = before[entry - 1] + alpha[entry - 1]
        with np.errstate(divide="ignore"):
            return cls(total, overhead, 1.0 / beta, before)


def message_rates(
    topology: Topology, routes: Rows, costs: RouteCosts, route: npt.NDArray[np.integer], asked: F64, num_bytes: F64
) -> F64:
    """Bytes per second of messages: what they ask for (0: all) of the slowest link, at most what their length has."""
    rate = np.where(asked > 0, asked, costs.rate[route])
    if not topology.size_rates:
        return rate
    sized = SizedRoutes.of(topology, routes, route, num_bytes)
    return np.minimum(rate, sized.rate[sized.route])


def _message_ids(batch: I32) -> I64:
    """Batch ids made distinct from rows that travel alone."""
    ids = batch.astype(np.int64)
    alone = ids < 0
    ids[alone] = ids.max(initial=-1) + 1 + np.arange(int(alone.sum()))
    return ids


def _ascend(keys: Sequence[npt.NDArray[Any]]) -> bool:
    """Whether rows are in lexicographic order already, the first key counting most."""
    less = np.zeros(max(len(keys[0]) - 1, 0), dtype=np.bool_)
    for key in keys:
        if (~less & (key[1:] < key[:-1])).any():
            return False
        less |= key[:-1] < key[1:]
    return True


def _renumbered(batch: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Batches numbered 0, 1, ... by first appearance; a batch of one row is no batch."""
    together = np.flatnonzero(batch >= 0)
    if not len(together) or _is_renumbered(batch[together]):
        return batch
    _, first, inverse, size = np.unique(batch[together], return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    new_id = np.empty_like(order)
    new_id[order] = np.cumsum(size[order] > 1) - 1
    ids = np.where(size > 1, new_id, -1)
    result = np.full_like(batch, -1)
    result[together] = ids[inverse.reshape(-1)]
    return result


def _is_renumbered(batch: npt.NDArray[Any]) -> bool:
    """Whether batches of two rows and more appear as 0, 1, ... for the first time."""
    highest = np.maximum.accumulate(batch)
    if batch[0] != 0 or (batch[1:] > highest[:-1] + 1).any():
        return False
    return bool(np.bincount(batch).min() > 1)
