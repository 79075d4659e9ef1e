"""Machines whose rates depend on how much memory a call works on, as where caches end."""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from collsyn.model.collective import Collective
from collsyn.model.size_rates import SizeRates, rates_at
from collsyn.model.topology import Topology
from collsyn.units import tidy_beta


def working_set_bytes(collective: Collective, size_bytes: int) -> float:
    """Bytes of the buffers that a rank reads and must fill in a call: inputs and outputs, of the rank with most.

    O(chunks + members of rank sets).
    """
    of_set = np.zeros(len(collective.sets))
    for sets in (collective.pre, collective.post):
        np.add.at(of_set, sets, collective.units)
    of_rank = np.zeros(collective.num_ranks)
    np.add.at(of_rank, collective.sets.data, np.repeat(of_set, collective.sets.lengths()))
    return float(of_rank.max() * (size_bytes / collective.total_units))


def at_size(topology: Topology, collective: Collective, size_bytes: int) -> Topology:
    """The machine as it is for a call: links and reductions have the rates that its working set leaves them.

    The rates by working set stay, so that the result can be asked for other sizes; a topology without any is returned
    as it is.
    """
    if not topology.working_set_rates and not topology.reduce_working_set_rates:
        return topology
    return _at(topology, working_set_bytes(collective, size_bytes))


@lru_cache(maxsize=64)
def _at(topology: Topology, num_bytes: float) -> Topology:
    # What is derived from topologies is kept with them, so equal ones should be one.
    beta, reduce_s = topology.beta_s_per_byte, topology.reduce_s_per_byte
    for link, points in enumerate(topology.working_set_rates):
        if points:
            beta = np.where(np.arange(len(beta)) == link, tidy_beta(1.0 / _rate(points, num_bytes)), beta)
    if topology.reduce_working_set_rates:
        reduce_s = np.full(topology.num_ranks, tidy_beta(1.0 / _rate(topology.reduce_working_set_rates, num_bytes)))
    unchanged = np.array_equal(beta, topology.beta_s_per_byte) and np.array_equal(reduce_s, topology.reduce_s_per_byte)
    return topology if unchanged else replace(topology, beta_s_per_byte=beta, reduce_s_per_byte=reduce_s)


def _rate(points: SizeRates, num_bytes: float) -> float:
    return float(rates_at(points, num_bytes))
