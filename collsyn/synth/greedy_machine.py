"""A topology as the arrays of the greedy matching: hops, the links they share, and the regions that slow hops enter."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, shortest_path

from collsyn.model.arrays import F64, I64, Rows
from collsyn.model.schedule import RouteCosts
from collsyn.model.topology import Topology
from collsyn.synth.baseline import hops_of
from collsyn.synth.event_kernels import Machine
from collsyn.topology.hops import Hops

# A hop is fast against another from this ratio of their rates on; only the MAX_LEVELS coarsest sets of regions count.
FASTER, MAX_LEVELS = 1.5, 4

# A link is left partly idle by the widest flows over it if they fill less than this share.
WELL_FILLED = 0.98


@dataclass(frozen=True, eq=False)
class MachineModel:
    """Hops of a topology, and `Machine` for given messages."""

    topology: Topology
    table: Hops

    @classmethod
    def of(cls, topology: Topology) -> "MachineModel":
        """The model of a topology."""
        return cls(topology, hops_of(topology))

    @cached_property
    def rates(self) -> F64:
        """Bytes/s of every hop at full bandwidth."""
        return 1.0 / self.table.beta_s_per_byte

    @cached_property
    def fitted_rates(self) -> F64:
        """Rates lowered so that a whole number of flows fills every link that the full rates would leave partly idle.

        A network card of 12.5 GB/s behind lanes of 12 is filled by two flows of 6.25, not by one of 12.
        """
        links, owner = self.table.routes.data, self._owner
        share = self.topology.bandwidth[links] / self.rates[owner]
        whole = np.floor(share * (1 + 1e-9))
        flows = np.where(whole < WELL_FILLED * share, whole + 1, share)
        fitted = self.rates.copy()
        np.minimum.at(fitted, owner, self.topology.bandwidth[links] / flows)
        return fitted

    @cached_property
    def has_fitted(self) -> bool:
        """Whether lower rates can fill links better."""
        return bool((self.fitted_rates < self.rates * (1 - 1e-9)).any())

    def asked_rates(self, fitted: bool) -> F64:
        """The column `rate` of schedules for every hop: 0 where it is the full one."""
        lowered = fitted & (self.fitted_rates < self.rates * (1 - 1e-9))
        return np.where(lowered, self.fitted_rates, 0.0)

    @cached_property
    def distance(self) -> F64:
        """Fewest hops from every rank to every other (infinite where none lead there)."""
        n = self.topology.num_ranks
        joined = csr_array((np.ones(len(self.table)), (self.table.src, self.table.dst)), shape=(n, n))
        hops_between: F64 = shortest_path(joined, unweighted=True)
        return hops_between

    @cached_property
    def unequal(self) -> bool:
        """Whether hops differ in rate."""
        return bool(self.rates.max(initial=0.0) > 1.01 * self.rates.min(initial=np.inf))

    @cached_property
    def has_regions(self) -> bool:
        """Whether slow hops lead between parts that are fast inside."""
        return bool(self._levels)

    def machine(self, fitted: bool, overheads: float, chunk_bytes: float) -> Machine:
        """The arrays; a message holds as many chunks of that length as take `overheads` times its overhead."""
        base = self._fitted if fitted else self._full
        batch = np.maximum(1, np.rint(overheads * self.table.overhead_s * base.rate / chunk_bytes))
        return base._replace(batch=np.minimum(batch, 1 << 20).astype(np.int64))

    def turned_round(self, machine: Machine) -> Machine:
        """The machine with every hop turned round, for sending backwards (hops and links keep their numbers)."""
        alpha_s, hop_alpha_s = self.topology.alpha_s[machine.route_links], machine.alpha_s[self._owner]
        after_s = hop_alpha_s - machine.before_s - alpha_s
        return machine._replace(src=machine.dst, dst=machine.src, before_s=after_s)

    @cached_property
    def _full(self) -> Machine:
        return self._build(self.rates)

    @cached_property
    def _fitted(self) -> Machine:
        return self._build(self.fitted_rates)

    @cached_property
    def _owner(self) -> I64:
        """The hop of every entry of the route table."""
        return np.repeat(np.arange(len(self.table)), self.table.routes.lengths())

    @cached_property
    def _levels(self) -> list[I64]:
        """Label of every rank in the parts that hops much faster than some rate join, from slow rates to fast ones."""
        table, n = self.table, self.topology.num_ranks
        labels: list[I64] = []
        for rate in np.unique(np.round(self.rates, 3)).tolist():
            fast = self.rates >= FASTER * rate
            joined = csr_array((np.ones(int(fast.sum())), (table.src[fast], table.dst[fast])), shape=(n, n))
            parts, label = connected_components(joined, directed=True, connection="strong")
            if 1 < parts < n and not any(np.array_equal(label, known) for known in labels):
                labels.append(label.astype(np.int64))
        return labels[:MAX_LEVELS]

    def _build(self, rate: F64) -> Machine:
        table, topology = self.table, self.topology
        links = table.routes.data
        first_of_level = np.cumsum([0, *(int(label.max()) + 1 for label in self._levels)])
        regions_of = [label + first for label, first in zip(self._levels, first_of_level, strict=False)]
        entered = Rows.of(
            [
                [int(region[v]) for region in regions_of if region[u] != region[v]]
                for u, v in zip(table.src.tolist(), table.dst.tolist(), strict=True)
            ]
        )
        member = Rows.of([[int(region[v]) for region in regions_of] for v in range(topology.num_ranks)])
        slowest = np.full(topology.num_links, np.inf)
        np.minimum.at(slowest, links, rate[self._owner])
        flows = topology.bandwidth / slowest
        users = Rows.grouped(links, topology.num_links)
        in_rate = np.zeros(topology.num_ranks)
        into = topology.dst < topology.num_ranks
        np.add.at(in_rate, topology.dst[into], topology.bandwidth[into])
        best_rate = np.zeros(topology.num_ranks)
        np.maximum.at(best_rate, table.dst, rate)
        # Hops into a coarse region are the scarcest, then those into finer ones, then the fast ones.
        entered_level = np.full(len(table), len(self._levels))
        for level, label in reversed(list(enumerate(self._levels))):
            entered_level[label[table.src] != label[table.dst]] = level
        precedence = entered_level + (1.0 - rate / rate.max(initial=1.0)) / 2
        return Machine(
            src=table.src.astype(np.int64),
            dst=table.dst.astype(np.int64),
            rate=np.array(rate),
            alpha_s=np.array(table.alpha_s),
            overhead_s=np.array(table.overhead_s),
            batch=np.ones(len(table), dtype=np.int64),
            route_ptr=np.array(table.routes.ptr),
            route_links=np.array(links),
            before_s=np.array(RouteCosts.of(topology, table.routes).before_s),
            region_ptr=np.array(entered.ptr),
            regions=entered.data.astype(np.int64),
            bandwidth=np.array(topology.bandwidth),
            shared=(flows >= 2 * (1 - 1e-9)).astype(np.uint8),
            link_ptr=np.array(users.ptr),
            link_hops=self._owner[users.data],
            out_ptr=np.array(table.out_of.ptr),
            out_hops=table.out_of.data.astype(np.int64),
            member_ptr=np.array(member.ptr),
            member=member.data.astype(np.int64),
            in_rate=np.maximum(in_rate, 1.0),
            best_rate=best_rate,
            precedence=precedence,
            num_regions=max(int(first_of_level[-1]), 1),
            flows=int(np.clip(np.ceil(flows[np.isfinite(flows)].max(initial=1.0)) + 1, 2, 64)),
        )
