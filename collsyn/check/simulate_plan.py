"""How long a plan takes: its channels, flags and transfers, with links shared fairly (docs/plan-simulation.md)."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from collsyn.check.interleave import flag_ids, interleaving, owners, place
from collsyn.errors import Infeasible, InputError, VerificationError
from collsyn.model.arrays import F64, I64, Bools, Rows
from collsyn.model.plan import READS_PEER, Op, Plan
from collsyn.model.schedule import RouteCosts
from collsyn.model.size_rates import SizedRoutes
from collsyn.model.topology import Topology
from collsyn.model.working_set import at_size
from collsyn.topology.hops import Hops, chains, hops

if TYPE_CHECKING:
    from collsyn.check._sharing_kernels import Net


@dataclass(frozen=True, eq=False)
class PlanTimes:
    """Times of a simulated plan, in seconds from its start; columns have one entry an instruction.

    A channel begins an instruction at `start_s` and goes on at `end_s`; what it sends (data of PUT and GET, SIGNAL) is
    there at `arrival_s` (NaN for others). `link_bytes[l]` bytes pass link l in all.
    """

    finish_s: float
    start_s: F64
    end_s: F64
    arrival_s: F64
    link_bytes: F64
    topology: Topology

    @cached_property
    def utilisation(self) -> F64:
        """Part of its bandwidth that every link uses until the finish."""
        busy_s = self.link_bytes * self.topology.beta_s_per_byte
        return busy_s / self.finish_s if self.finish_s > 0 else np.zeros_like(busy_s)


def simulate_plan(plan: Plan, topology: Topology, size_bytes: int) -> PlanTimes:
    """Run a plan's instruction streams against the links of a topology.

    A transfer (PUT, GET, GET_REDUCE) takes the route that the plan names, else the cheapest hop for its length, else
    the quickest chain of hops as one route. All transfers under way share the links they use max-min fairly. Its bytes
    arrive the latencies of the route after they were sent; after them the transfer occupies the links for the largest
    overhead of the route (as many bytes as pass the route in that time). A channel goes on when that is over, for GET
    when the data is there, too, and reduces at the rate of its rank. SIGNAL costs no time; it travels for the latency
    from rank to rank, right behind the last byte of a PUT directly before it, and arrives after all that its channel
    has sent. A message alone takes exactly the time of the model of Topology; loads count from the start at every link
    of a route.

    Lengths are those of the fluid size (parts of bytes count). Raises VerificationError for a deadlock (naming who
    waits for whom) or a rank or flag that is not there, InputError for routes of other wiring, Infeasible where no
    links join two ranks. Complexity: O(transfers * (transfers that share links with one, at once)) at worst.
    """
    if size_bytes < 1:
        raise InputError(f"size: is {size_bytes} bytes; expected at least 1")
    if plan.num_ranks != topology.num_ranks:
        raise InputError(f"topology {topology.name} has {topology.num_ranks} ranks; the plan needs {plan.num_ranks}")
    topology = at_size(topology, plan.collective, size_bytes)
    _check_ranks(plan)
    num_bytes = plan.columns["length"] * (size_bytes / plan.total_units) * plan.bytes_on_links
    transfers = Transfers.of(plan, topology, num_bytes)
    start_s, end_s, arrival_s = _run(plan, topology, num_bytes, transfers)
    on_route = np.bincount(
        transfers.route[transfers.rows], weights=num_bytes[transfers.rows], minlength=len(transfers.routes)
    )
    on_link = np.repeat(on_route, transfers.routes.lengths())
    return PlanTimes(
        finish_s=float(max(end_s.max(initial=0.0), arrival_s[transfers.rows].max(initial=0.0))),
        start_s=start_s,
        end_s=end_s,
        arrival_s=arrival_s,
        link_bytes=np.bincount(transfers.routes.data, weights=on_link, minlength=topology.num_links).astype(np.float64),
        topology=topology,
    )


@dataclass(frozen=True, eq=False)
class Transfers:
    """Instructions that load links (`rows`), and per instruction the number of its route in `routes`.

    They move bytes between ranks, or copy or reduce them within one where that takes the rank's port.
    """

    rows: I64
    route: I64
    routes: Rows

    @classmethod
    def of(cls, plan: Plan, topology: Topology, num_bytes: F64) -> "Transfers":
        """Find the routes of all transfers."""
        c, owner = plan.columns, owners(plan)
        reads = np.isin(c["op"], list(READS_PEER))
        rows = np.flatnonzero((reads | (c["op"] == Op.PUT)) & (c["peer"] != owner) & (c["length"] > 0))
        within = np.isin(c["op"], [Op.COPY, Op.REDUCE]) & (c["length"] > 0)
        copies = np.flatnonzero(within) if topology.copies_take_port else rows[:0]
        src = np.where(reads, c["peer"], owner)[rows].tolist()
        dst = np.where(reads, owner, c["peer"])[rows].tolist()
        named, length = c["route"][rows].tolist(), num_bytes[rows].tolist()
        ways = _ways(topology)
        number: dict[tuple[int, ...], int] = {}
        known: dict[tuple[int, int, int, float], int] = {}
        route = np.full(plan.num_instructions, -1, dtype=np.int64)
        for row, a, b, name, size in zip(rows.tolist(), src, dst, named, length, strict=True):
            key = (a, b, name, 0.0 if name >= 0 else size)
            if key not in known:
                links = _named_route(plan, topology, name, a, b) if name >= 0 else ways.route(a, b, size)
                known[key] = number.setdefault(links, len(number))
            route[row] = known[key]
        for row, rank in zip(copies.tolist(), owner[copies].tolist(), strict=True):
            ports = topology.out_links[rank]
            if len(ports) == 1:
                route[row] = number.setdefault((int(ports[0]),), len(number))
        return cls(np.flatnonzero(route >= 0), route, Rows.of(number))

    def work_bytes(self, plan: Plan, topology: Topology, num_bytes: F64) -> F64:
        """Bytes that count for time: where copies take the port of a rank, so does what reductions take besides."""
        if not topology.copies_take_port:
            return num_bytes
        rate = np.append(RouteCosts.of(topology, self.routes).rate, 0.0)[self.route]
        reduces = np.isin(plan.columns["op"], [Op.REDUCE, Op.GET_REDUCE])
        return num_bytes * np.where(reduces, 1.0 + topology.reduce_s_per_byte[owners(plan)] * rate, 1.0)


def _check_ranks(plan: Plan) -> None:
    c = plan.columns
    bad: Bools = np.isin(c["op"], [Op.PUT, *READS_PEER]) & ((c["peer"] < 0) | (c["peer"] >= plan.num_ranks))
    if bad.any():
        raise VerificationError(f"{place(plan, int(np.flatnonzero(bad)[0]))}: there is no such rank")


def _named_route(plan: Plan, topology: Topology, name: int, src: int, dst: int) -> tuple[int, ...]:
    """Links of a route of the plan, if it leads from rank to rank on this topology; raises InputError."""
    links = plan.routes[name].tolist() if name < len(plan.routes) else []
    fits = bool(links) and all(0 <= link < topology.num_links for link in links)
    if fits:
        vertices = [int(topology.src[links[0]]), *topology.dst[links].tolist()]
        fits = vertices[:-1] == topology.src[links].tolist() and (vertices[0], vertices[-1]) == (src, dst)
    if not fits:
        raise InputError(
            f"plan {plan.name}: route {name} does not lead from rank {src} to rank {dst} on topology {topology.name}; "
            "a plan with routes runs only where the wiring is that of its own topology"
        )
    return tuple(links)


class _Ways:
    """Cheapest ways between ranks of a topology: one hop where there is any, else the quickest chain of them."""

    def __init__(self, topology: Topology, both_ways: bool = False) -> None:
        self._topology, self._both_ways = topology, both_ways
        self._table: Hops = hops(topology)
        self._name = topology.name
        self._of_pair: dict[tuple[int, int], list[int]] = {}
        for hop, pair in enumerate(zip(self._table.src.tolist(), self._table.dst.tolist(), strict=True)):
            self._of_pair.setdefault(pair, []).append(hop)
        self._alpha: list[float] = self._table.alpha_s.tolist()
        self._beta: list[float] = self._table.beta_s_per_byte.tolist()
        self._chains: dict[tuple[int, float], dict[int, tuple[int, ...]]] = {}

    @cached_property
    def _turned(self) -> "_Ways | None":
        """The ways if every link could be taken backwards, too; None where it can already."""
        if self._both_ways:
            return None
        t = self._topology
        twice = t.link_columns(np.tile(np.arange(t.num_links), 2), np.arange(t.num_vertices))
        ends = {"src": np.concatenate([t.src, t.dst]), "dst": np.concatenate([t.dst, t.src])}
        return _Ways(replace(t, **{**twice, **ends}), both_ways=True)

    def hops(self, src: int, dst: int, num_bytes: float) -> tuple[int, ...]:
        """Hops of the cheapest way for a message of that length, () if there is none."""
        direct = self._of_pair.get((src, dst))
        if direct:
            return (min(direct, key=lambda hop: self._alpha[hop] + num_bytes * self._beta[hop]),)
        if (src, num_bytes) not in self._chains:
            self._chains[src, num_bytes] = chains(self._table, num_bytes, src)
        return self._chains[src, num_bytes].get(dst, ())

    def route(self, src: int, dst: int, num_bytes: float) -> tuple[int, ...]:
        """Links of that way; raises Infeasible if there is none."""
        way = self.hops(src, dst, num_bytes)
        if not way:
            raise Infeasible(f"rank {src} cannot reach rank {dst}: no links of topology {self._name} lead there")
        return tuple(link for hop in way for link in self._table.routes[hop].tolist())

    def alpha_s(self, src: int, dst: int) -> float:
        """Latency of a signal from rank to rank, 0 to itself; raises Infeasible where no links join the two.

        Where no links lead there, flags still go both ways on any machine: links are then taken backwards, too.
        """
        if src == dst:
            return 0.0
        way = self.hops(src, dst, 0.0)
        if way:
            return sum(self._alpha[hop] for hop in way)
        if self._turned is None:
            raise Infeasible(f"rank {src} cannot signal rank {dst}: no links of topology {self._name} join them")
        return self._turned.alpha_s(src, dst)


@lru_cache(maxsize=8)
def _ways(topology: Topology) -> _Ways:
    return _Ways(topology)


def _run(plan: Plan, topology: Topology, num_bytes: F64, transfers: Transfers) -> tuple[F64, F64, F64]:
    """Start, end and arrival of every instruction; raises VerificationError for a deadlock."""
    from collsyn.check import _plan_kernels as kernels
    from collsyn.check._sharing_kernels import new_flows, new_queue

    net, route = net_for(topology, transfers, num_bytes)
    program = kernels.Program(
        channel_ptr=plan.channel_ptr,
        kind=_kinds(plan, transfers),
        num_bytes=transfers.work_bytes(plan, topology, num_bytes),
        local_s=local_s(plan, topology, num_bytes, transfers),
        route=route,
        signal_s=signal_s(plan, topology),
        flag=np.array(flag_ids(plan), dtype=np.int64),
        value=plan.columns["value"].astype(np.int64),
    )
    times = kernels.Times(*(np.full(plan.num_instructions, np.nan) for _ in range(3)))
    stuck = kernels.run(
        program,
        net,
        new_queue(plan.num_channels),
        new_queue(plan.num_instructions),
        new_flows(plan.num_channels, len(net.bandwidth), net.width),
        kernels.Channels(
            at=plan.channel_ptr[:-1].copy(),
            state=np.zeros(plan.num_channels, np.int64),
            sent_s=np.zeros(plan.num_channels),
            landed_s=np.zeros(plan.num_channels),
            next_waiter=np.full(plan.num_channels, -1, np.int64),
        ),
        kernels.Flags(
            level=np.zeros(int(plan.num_flags.sum()), np.int64),
            first_waiter=np.full(int(plan.num_flags.sum()), -1, np.int64),
        ),
        times,
    )
    if stuck:
        interleaving(plan)  # raises, and says who waits for whom
        raise AssertionError("a plan that can run got stuck")
    return times.start_s, times.end_s, times.arrival_s


def net_for(topology: Topology, transfers: Transfers, num_bytes: F64) -> tuple["Net", I64]:
    """Links and routes as the kernels of sharing take them, and the route of every instruction there.

    A transfer loads a link for its length over the rate that its length has there. O(transfers).
    """
    from collsyn.check._sharing_kernels import Net

    sized = SizedRoutes.of(topology, transfers.routes, transfers.route, num_bytes)
    costs = RouteCosts.of(topology, sized.routes)
    net = Net(
        route_ptr=sized.routes.ptr,
        route_link=sized.routes.data,
        weight=topology.bandwidth[sized.routes.data] / sized.link_rate,
        alpha_s=costs.alpha_s,
        tail_bytes=costs.overhead_s * sized.rate,
        bandwidth=topology.bandwidth,
        width=int(sized.routes.lengths().max(initial=1)),
    )
    return net, sized.route


def _kinds(plan: Plan, transfers: Transfers) -> I64:
    from collsyn.check import _plan_kernels as kernels

    op = plan.columns["op"]
    kind = np.full(len(op), kernels.INSTANT, dtype=np.int64)
    # Copies within a rank that load no port are free; what is reduced within a rank is not, wherever it was read.
    kind[np.isin(op, [Op.REDUCE, Op.GET_REDUCE])] = kernels.LOCAL
    sends = op[transfers.rows] == Op.PUT
    kind[transfers.rows] = np.where(sends, kernels.SEND, kernels.FETCH)
    kind[op == Op.SIGNAL] = kernels.RAISE
    kind[op == Op.WAIT] = kernels.AWAIT
    return kind


def local_s(plan: Plan, topology: Topology, num_bytes: F64, transfers: Transfers) -> F64:
    """Seconds of work within a rank of every instruction, 0 where there is none or it takes the rank's port."""
    reduces = np.isin(plan.columns["op"], [Op.REDUCE, Op.GET_REDUCE])
    if topology.copies_take_port:
        reduces &= transfers.route < 0
    return np.where(reduces, topology.reduce_s_per_byte[owners(plan)] * num_bytes, 0.0)


def signal_s(plan: Plan, topology: Topology) -> F64:
    """Latency of every signal, 0 elsewhere."""
    op, owner = plan.columns["op"], owners(plan)
    latency = np.zeros(len(op))
    rows = np.flatnonzero(op == Op.SIGNAL)
    pairs = owner[rows] * plan.num_ranks + plan.columns["peer"][rows]
    distinct, inverse = np.unique(pairs, return_inverse=True)
    ways = _ways(topology)
    known = [ways.alpha_s(*divmod(pair, plan.num_ranks)) for pair in distinct.tolist()]
    latency[rows] = np.array(known, dtype=np.float64)[inverse.reshape(-1)]
    return latency
