"""Starts for sends whose order is known: each leaves as soon as its data is there and its links have room."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64, I64, Rows
from collsyn.model.collective import Collective
from collsyn.model.schedule import (
    COPY,
    REDUCE,
    VALUE,
    Messages,
    RouteCosts,
    Schedule,
    column_dtypes,
    message_rates,
)
from collsyn.model.size_rates import SizedRoutes
from collsyn.model.topology import Topology

_COLUMNS = ("chunk", "src", "dst", "route", "rate", "op", "batch", "src_slot", "dst_slot")


class Sends:
    """Messages in the order in which they shall take their links; becomes a schedule by `timed`.

    `routes` is the table that the `route` of every message indexes (of hops, say); route -1 is the empty one, for
    merging slots inside a rank.
    """

    def __init__(self, routes: Rows) -> None:
        self._routes = routes
        self._columns: dict[str, list[int]] = {name: [] for name in _COLUMNS if name != "rate"}
        self._messages = 0

    def add(
        self,
        chunks: Sequence[int] | npt.NDArray[np.integer],
        src: int,
        dst: int,
        route: int,
        op: int = COPY,
        src_slot: int = VALUE,
        dst_slot: int = VALUE,
    ) -> None:
        """One message of some chunks (a batch where they are several); nothing is sent where there are none."""
        n = len(chunks)
        values = {"src": src, "dst": dst, "route": route if route >= 0 else len(self._routes), "op": op}
        values |= {"batch": self._messages, "src_slot": src_slot, "dst_slot": dst_slot}
        self._columns["chunk"] += [int(chunk) for chunk in chunks]
        for name, value in values.items():
            self._columns[name] += [value] * n
        self._messages += 1

    def __len__(self) -> int:
        return len(self._columns["chunk"])

    def timed(
        self,
        collective: Collective,
        topology: Topology,
        size_bytes: int,
        provenance: Mapping[str, Any] | None = None,
    ) -> Schedule:
        """The schedule in which every message starts as early as this order allows."""
        routes = Rows(np.append(self._routes.ptr, self._routes.ptr[-1]), self._routes.data)
        return in_order(collective, topology, size_bytes, routes, self._columns, provenance)


def in_order(
    collective: Collective,
    topology: Topology,
    size_bytes: int,
    routes: Rows,
    columns: Mapping[str, npt.ArrayLike],
    provenance: Mapping[str, Any] | None = None,
    fixed_s: npt.ArrayLike | None = None,
) -> Schedule:
    """A schedule of rows in the order of their arrays, messages started as early as that order allows.

    `columns` are those of Schedule without the starts; rows of one batch follow each other. Rows whose `fixed_s` is a
    number (not NaN) keep that start.
    """
    types = column_dtypes()
    full = {name: np.asarray(columns.get(name, _default(name, columns)), dtype=types[name]) for name in _COLUMNS}
    start_s = earliest_starts(collective, topology, size_bytes, routes, full, fixed_s)
    used = np.unique(full["route"])
    new_id = np.zeros(len(routes), dtype=np.int32)
    new_id[used] = np.arange(len(used))
    kept = Rows.of([routes[int(route)] for route in used])
    shown = {**full, "route": new_id[full["route"]], "start_s": start_s}
    return Schedule.build(collective, topology, size_bytes, kept, provenance, **shown)


def earliest_starts(
    collective: Collective,
    topology: Topology,
    size_bytes: int,
    routes: Rows,
    columns: Mapping[str, npt.NDArray[Any]],
    fixed_s: npt.ArrayLike | None = None,
) -> F64:
    """Earliest start of every row, in seconds, when messages take their links in the order of the rows.

    A message waits for the values it reads, for room on every link of its route (links are shared by flows slower than
    they are), and for the start of earlier messages that read what it overwrites. O(sends x links per route).
    """
    from collsyn.synth import _kernels

    message, row_ptr = message_rows(columns["batch"])
    first = row_ptr[:-1]
    num_messages = len(first)
    if not num_messages:
        return np.zeros(0)
    costs = RouteCosts.of(topology, routes)
    route = columns["route"][first].astype(np.int32)
    asked = columns["rate"][first]
    lengths = collective.chunk_bytes(size_bytes)[columns["chunk"]]
    num_bytes = np.bincount(message, weights=lengths, minlength=num_messages).astype(np.float64)
    rate = message_rates(topology, routes, costs, route, asked, num_bytes)
    # Where a link's rate depends on lengths, each length has a route of its own, whose links a byte loads more.
    sized = SizedRoutes.of(topology, routes, route, num_bytes)
    routes, route, costs = sized.routes, sized.route.astype(np.int32), RouteCosts.of(topology, sized.routes)
    weight = topology.bandwidth[routes.data] / sized.link_rate
    transfer_s = np.where(np.isinf(rate), 0.0, num_bytes / rate)
    reduces = np.zeros(num_messages, dtype=np.bool_)
    reduces[message[columns["op"] == REDUCE]] = True
    reduce_s = np.where(reduces, topology.reduce_s_per_byte[columns["dst"][first]] * num_bytes, 0.0)
    src_key, dst_key, num_keys = _value_keys(columns, topology.num_ranks)
    fixed = np.full(len(message), np.nan) if fixed_s is None else np.asarray(fixed_s, dtype=np.float64)
    start = _kernels.earliest_starts(
        row_ptr,
        src_key,
        dst_key,
        columns["op"] == COPY,
        num_keys,
        route,
        costs.alpha_s[route] + transfer_s,
        costs.overhead_s[route] + transfer_s,
        reduce_s,
        rate,
        fixed[first],
        routes.ptr,
        routes.data,
        costs.before_s,
        topology.bandwidth,
        weight,
        _flows_per_link(topology, routes, route, rate, weight),
    )
    return np.asarray(start)[message]


def by_start(schedule: Schedule) -> dict[str, npt.NDArray[Any]]:
    """Columns with the rows of a message together, messages in the order of their starts and numbered as batches."""
    message = message_of_rows(schedule.messages)
    order = np.lexsort((message, schedule.start_s))
    columns = {name: np.array(values[order]) for name, values in schedule.columns().items()}
    columns["batch"] = message[order].astype(np.int32)
    return columns


def message_of_rows(messages: Messages) -> I64:
    """The message that every row of a schedule belongs to."""
    message = np.empty(len(messages.rows.data), dtype=np.int64)
    message[messages.rows.data] = np.repeat(np.arange(len(messages)), messages.rows.lengths())
    return message


def message_rows(batch: npt.NDArray[Any]) -> tuple[I64, I64]:
    """Message of every row, and first rows of the messages (with the end), for rows whose batches stand together."""
    if not len(batch):
        return np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    begins = np.ones(len(batch), dtype=np.bool_)
    begins[1:] = (batch[1:] != batch[:-1]) | (batch[1:] < 0)
    row_ptr = np.append(np.flatnonzero(begins), len(batch)).astype(np.int64)
    return np.cumsum(begins) - 1, row_ptr


def _value_keys(columns: Mapping[str, npt.NDArray[Any]], num_ranks: int) -> tuple[I64, I64, int]:
    """Numbers 0, 1, ... of the values (chunk, rank, slot) that rows read and write."""
    keys = [
        (columns["chunk"].astype(np.int64) * num_ranks + columns[end]) * 256 + columns[slot].astype(np.int64) + 1
        for end, slot in (("src", "src_slot"), ("dst", "dst_slot"))
    ]
    known, ids = np.unique(np.concatenate(keys), return_inverse=True)
    ids = ids.reshape(2, -1).astype(np.int64)
    return ids[0], ids[1], len(known)


def _flows_per_link(topology: Topology, routes: Rows, route: npt.NDArray[np.int32], rate: F64, weight: F64) -> int:
    """How many flows a link has to tell apart: its bandwidth over the smallest load that crosses it (64 at most)."""
    slowest = np.full(len(routes), np.inf)
    np.minimum.at(slowest, route, rate)
    per_entry = np.repeat(slowest, routes.lengths())
    entries = np.isfinite(per_entry)
    if not entries.any():
        return 2
    share = topology.bandwidth[routes.data[entries]] / (per_entry[entries] * weight[entries])
    return int(np.clip(np.ceil(share.max()) + 1, 2, 64))


def _default(name: str, columns: Mapping[str, npt.ArrayLike]) -> npt.NDArray[Any]:
    rows = len(np.asarray(columns["chunk"]))
    return np.zeros(rows) if name == "rate" else np.full(rows, -1 if name == "batch" else 0)
