"""Schedules of very many sends on equal links, kept as a table of steps: meshes by construction, others by matching."""

from pathlib import Path

import numpy as np

from collsyn.errors import InputError
from collsyn.model.large_file import new_table
from collsyn.model.schedule import Schedule
from collsyn.model.steps import GATHER, MAX_PORTS, PHASES, Ports, Steps, StepTable, lag_of, links_both_ways, neighbours
from collsyn.synth.problem import Options, Problem, provenance
from collsyn.topology.grid_shape import mesh_sizes

# Sends of a schedule that is listed; and up to which both ways are tried on a mesh.
LISTED, TRIED = 20_000_000, 2_000_000


class Lockstep:
    """Serves allgather, reduce-scatter and allreduce of all ranks on equal links; see docs/large.md."""

    name = "lockstep"

    def accepts(self, problem: Problem) -> str | None:
        """Needs equal links between ranks, and one group."""
        return not_in_lockstep(problem)

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The table's sends as an ordinary schedule; raises InputError where they are too many to be listed."""
        if _num_sends(problem) > LISTED:
            sends = _num_sends(problem)
            raise InputError(f"lockstep: {sends} sends are too many to be listed; write them to a file NAME.large")
        return self.large(problem, options).expand()

    def large(self, problem: Problem, options: Options, path: Path | None = None) -> StepTable:
        """The table of an accepted problem, in memory, or where that lacks room on the disk of `path`.

        O(sends) on meshes, O(links x chunks) elsewhere, on all cores. Raises InputError where there is no room,
        Infeasible where a rank cannot be reached.
        """
        from collsyn.synth.grid import fill_mesh
        from collsyn.synth.lockstep_greedy import beside_bytes, fill_greedily

        topology, chunks = problem.topology, problem.chunks_per_rank or 1
        collective, sizes, phase = problem.collective(chunks), mesh_sizes(topology), PHASES[problem.kind][-1]
        longest = float(collective.chunk_bytes(problem.size_bytes).max())
        lag = lag_of(topology, longest, GATHER in PHASES[problem.kind])
        shape = (topology.num_ranks, collective.num_chunks)
        found: list[tuple[int, Steps, Ports]] = []
        if sizes is not None:
            table = new_table(shape, collective.num_chunks + 2 * lag * sum(sizes), path)
            found.append((fill_mesh(topology, sizes, chunks, lag, *table), *table))
        if sizes is None or _num_sends(problem) <= TRIED:
            # No link is idle for longer than it takes a chunk to come from afar.
            table = new_table(shape, collective.num_chunks + 2 * lag * topology.num_ranks, path, beside_bytes(shape))
            found.append((fill_greedily(topology, phase, chunks, lag, *table), *table))
        end, steps, ports = min(found, key=lambda each: each[0])
        origin = provenance(problem, options, self.name, chunks_per_rank=chunks)
        return StepTable(collective, topology, problem.size_bytes, lag, end, steps, ports, origin)


def _num_sends(problem: Problem) -> int:
    ranks = problem.topology.num_ranks
    return len(PHASES[problem.kind]) * (problem.chunks_per_rank or 1) * ranks * (ranks - 1)


def not_in_lockstep(problem: Problem) -> str | None:
    """Why a problem cannot be served in equal steps by trees that reach all ranks, None if it can."""
    topology = problem.topology
    if problem.kind not in PHASES:
        return f"serves {', '.join(PHASES)}, not {problem.kind}"
    if problem.groups is not None or problem.counts is not None:
        return "serves all ranks at once with equal chunks, no groups or counts"
    if topology.switch_names or topology.num_links == 0:
        return "the ranks are not joined by links alone"
    costs = (topology.alpha_s, topology.beta_s_per_byte, topology.overhead_s)
    if topology.size_rates or any(np.ptp(cost) > 1e-12 * cost.max() for cost in costs):
        return "the links are unequal"
    phases = PHASES[problem.kind]
    if int(neighbours(topology, phases[0]).lengths().max()) > MAX_PORTS:
        return f"a rank has more than {MAX_PORTS} neighbours"
    return "an allreduce needs links both ways" if len(phases) == 2 and not links_both_ways(topology) else None


LOCKSTEP = Lockstep()
