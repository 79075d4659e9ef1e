"""How busy every link is over time, for schedules and simulated plans, and which links share a row of a picture."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collsyn.check.loads import Occupancy
from collsyn.check.simulate_plan import PlanTimes, Transfers, net_for
from collsyn.model.arrays import F64
from collsyn.model.plan import Plan
from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology

BINS = 240
MAX_ROWS = 40


@dataclass(frozen=True, eq=False)
class LinkUse:
    """Shape [links, bins]: the part of a link's bandwidth in use (overhead included), averaged over each bin.

    Bins divide 0 .. `span_s` evenly, which is until the last link is free: the finish, or later where an overhead
    holds a link beyond the last arrival.
    """

    busy: F64
    span_s: float
    finish_s: float

    @property
    def per_link(self) -> F64:
        """Part of its bandwidth that each link uses until the finish."""
        if self.finish_s <= 0:
            return np.zeros(len(self.busy))
        return np.asarray(self.busy.mean(axis=1) * (self.span_s / self.finish_s))


def schedule_use(schedule: Schedule, num_bins: int = BINS) -> LinkUse:
    """Use of the links by a schedule, at its times; O(messages x links of a route + links x bins)."""
    occupancy = Occupancy.of(schedule)
    span_s = max(schedule.finish_s, float(occupancy.end_s.max(initial=0.0)))
    num_links = schedule.topology.num_links
    if span_s <= 0:
        return LinkUse(np.zeros((num_links, num_bins)), 0.0, schedule.finish_s)
    scale = num_bins / span_s
    begin, end = occupancy.begin_s * scale, occupancy.end_s * scale
    # The share is added in whole from the bin of the beginning on, and taken away from that of the end on; in those two
    # bins itself the parts outside are taken back.
    change = np.zeros((num_links, num_bins + 1))
    for moment, share in ((begin, occupancy.share), (end, -occupancy.share)):
        place = np.minimum(moment.astype(np.int64), num_bins - 1)
        inside = place + 1 - moment
        np.add.at(change, (occupancy.link, place), share * inside)
        np.add.at(change, (occupancy.link, place + 1), share * (1 - inside))
    busy = np.cumsum(change, axis=1)[:, :num_bins]
    # What is left of sums that cancel is rounding.
    busy[np.abs(busy) < 1e-9] = 0.0
    return LinkUse(busy, span_s, schedule.finish_s)


def plan_use(plan: Plan, times: PlanTimes, size_bytes: int, num_bins: int = BINS) -> LinkUse:
    """Use of the links by a plan that was simulated at that size; rates are those that the simulator had."""
    from collsyn.check._sharing_kernels import new_flows, new_queue
    from collsyn.pictures._kernels import replay

    topology = times.topology
    busy = np.zeros((topology.num_links, num_bins))
    num_bytes = plan.columns["length"] * (size_bytes / plan.total_units)
    transfers = Transfers.of(plan, topology, num_bytes)
    if len(transfers.rows) and times.finish_s > 0:
        net, route_of = net_for(topology, transfers, num_bytes)
        order = transfers.rows[np.argsort(times.start_s[transfers.rows], kind="stable")]
        route = route_of[order]
        channel = np.repeat(np.arange(plan.num_channels), np.diff(plan.channel_ptr))
        replay(
            times.start_s[order],
            transfers.work_bytes(plan, topology, num_bytes)[order] + net.tail_bytes[route],
            route,
            channel[order],
            net,
            new_queue(plan.num_channels),
            new_flows(plan.num_channels, len(net.bandwidth), net.width),
            times.finish_s / num_bins,
            busy,
        )
    return LinkUse(busy, times.finish_s, times.finish_s)


@dataclass(frozen=True)
class LinkRow:
    """Links that share a row of a picture, which shows their mean; `group` names what they have in common."""

    links: tuple[int, ...]
    group: str


def link_rows(topology: Topology, per_link: F64, max_rows: int = MAX_ROWS) -> list[LinkRow]:
    """Rows for all links, the busiest first: one a link where they fit, else as few links of a kind a row as do.

    Links of a kind join ranks or like-named switches at one bandwidth, and stay together; of more than `max_rows` kinds
    the smallest become one. O(links log links).
    """
    order = np.lexsort((np.arange(topology.num_links), -np.round(per_link, 9))).tolist()
    if topology.num_links <= max_rows:
        return [LinkRow((link,), topology.link_name(link)) for link in order]
    kinds: dict[str, list[int]] = {}
    for link in order:
        kinds.setdefault(_kind(topology, link), []).append(link)
    if len(kinds) > max_rows:
        large = sorted(kinds, key=lambda kind: -len(kinds[kind]))[: max_rows - 1]
        others = [link for link in order if _kind(topology, link) not in large]
        kinds = {kind: kinds[kind] for kind in kinds if kind in large} | {"others": others}
    together = next(
        many for many in range(2, topology.num_links + 1) if sum(-(-len(k) // many) for k in kinds.values()) <= max_rows
    )
    return [
        LinkRow(tuple(links[first : first + together]), kind)
        for kind, links in kinds.items()
        for first in range(0, len(links), together)
    ]


def row_means(rows: Sequence[LinkRow], busy: F64) -> F64:
    """Mean use of the links of every row; shape [rows, bins]."""
    return np.stack([busy[list(row.links)].mean(axis=0) for row in rows])


def _kind(topology: Topology, link: int) -> str:
    """What a link joins, without numbers, and its bandwidth."""
    ends = [int(topology.src[link]), int(topology.dst[link])]
    names = [
        re.sub(r"^box\d+\.|\d+", "", topology.vertex_name(end)).strip("._-") or "switch"
        if topology.is_switch(end)
        else "rank"
        for end in ends
    ]
    return f"{names[0]} to {names[1]}, {topology.bandwidth[link] / 1e9:.4g} GB/s"
