"""Schedules of symmetric topologies: trees for the chunks of one rank an orbit, moved to all others at the same times.

A send of a stored tree stands for its images under all translations, which are on different links: so an orbit of links
may be used by one stored send at a time. The trees grow by the same rule as in the greedy matching (greedy.py), on a
problem that is smaller by the order of the group.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np

from collsyn.errors import Infeasible, InputError
from collsyn.model.arrays import F64, I64
from collsyn.model.orbit import OrbitSchedule, link_routes, part
from collsyn.model.schedule import COPY, REDUCE, Schedule
from collsyn.model.steps import GATHER, PHASES
from collsyn.model.topology import Topology
from collsyn.model.translations import Translations, independent
from collsyn.synth.problem import Options, Problem, provenance, turned
from collsyn.topology.symmetry import is_symmetry

# Sends that are stored at most, and that are listed.
STORED, LISTED = 4_000_000, 20_000_000
# Links looked at, and sends listed, for a chunk count beyond the first.
LOOKS, SEARCHED = 2_000_000, 1_000_000
CHUNKS = (1, 2, 3, 4, 6, 8)
# Halvings of the time between the first finish and what the links take at least.
HALVINGS = 8
# How near the finish may be to that of all links evenly loaded for the search for chunk counts to end.
CLOSE_ENOUGH = 1.001


class Symmetric:
    """Serves allgather, reduce-scatter and allreduce of all ranks where translations are known; see docs/large.md."""

    name = "symmetric"

    def accepts(self, problem: Problem) -> str | None:
        """Needs ranks joined by links alone and symmetries that commute and keep no rank in place."""
        topology = problem.topology
        if problem.kind not in PHASES:
            return f"serves {', '.join(PHASES)}, not {problem.kind}"
        if problem.groups is not None or problem.counts is not None:
            return "serves all ranks at once with equal chunks, no groups or counts"
        if topology.switch_names or topology.num_links == 0 or topology.size_rates:
            return "the ranks are not joined by links alone, or those have rates by length"
        if np.ptp(topology.reduce_s_per_byte):
            return "ranks reduce at different speeds"
        keys = topology.src.astype(np.int64) * topology.num_ranks + topology.dst
        if len(np.unique(keys)) < len(keys):
            return "there are links side by side"
        group = translations(topology)
        if not group:
            return "the topology knows no symmetries that commute and keep no rank in place"
        stored = self._stored(problem, group, problem.chunks_per_rank or 1)
        return None if stored <= STORED else f"{stored} sends would be stored, more than {STORED}"

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The sends of the symmetric schedule, listed; raises InputError where they are too many."""
        sends = _num_sends(problem, problem.chunks_per_rank or 1)
        if sends > LISTED:
            raise InputError(f"symmetric: {sends} sends are too many to be listed; write them to a file NAME.large")
        return self._best(problem, options, SEARCHED).excerpt()

    def large(self, problem: Problem, options: Options, path: Path | None = None) -> OrbitSchedule:
        """The stored sends of an accepted problem and its symmetries; raises Infeasible where ranks are not reached.

        O(stored chunks x links x log) for each count of chunks tried, of which more are while that is little work.
        """
        del path  # what is stored is small
        return self._best(problem, options)

    def _best(self, problem: Problem, options: Options, most_sends: float = np.inf) -> OrbitSchedule:
        """The quickest of several chunk counts: the first, and others that make little work and not too many sends."""
        group = translations(problem.topology)
        share = (problem.topology.num_ranks - 1) * len(PHASES[problem.kind])
        enough_s = CLOSE_ENOUGH * share * problem.size_bytes / float(problem.topology.bandwidth.sum())
        best: OrbitSchedule | None = None
        for chunks in (problem.chunks_per_rank,) if problem.chunks_per_rank else CHUNKS:
            work = self._stored(problem, group, chunks) * problem.topology.num_links // problem.topology.num_ranks
            too_many = work > LOOKS or chunks > problem.size_bytes or _num_sends(problem, chunks) > most_sends
            if best is not None and (too_many or best.finish_s < enough_s):
                break
            found = self._solve(problem, options, group, chunks)
            if best is None or found.finish_s < best.finish_s * (1 - 1e-9):
                best = found
        assert best is not None
        return best

    def _stored(self, problem: Problem, group: tuple[tuple[int, ...], ...], chunks: int) -> int:
        known = Translations.of(group, problem.topology.num_vertices)
        assert known is not None
        ranks = problem.topology.num_ranks
        return len(PHASES[problem.kind]) * ranks // known.size * chunks * (ranks - 1)

    def _solve(
        self, problem: Problem, options: Options, group: tuple[tuple[int, ...], ...], chunks: int
    ) -> OrbitSchedule:
        topology, collective = problem.topology, problem.collective(chunks)
        known = Translations.of(group, topology.num_vertices)
        assert known is not None
        roots = np.repeat(known.vertex[:, 0], chunks)
        representatives = roots * chunks + np.tile(np.arange(chunks), len(known.vertex))
        chunk_bytes = float(collective.chunk_bytes(problem.size_bytes)[0])
        orbit = known.link_orbits(topology.src, topology.dst)
        parts, begin_s = [], 0.0
        for phase in PHASES[problem.kind]:
            gathers = phase == GATHER
            machine = turned(topology) if gathers else topology
            reduce_s = chunk_bytes * float(topology.reduce_s_per_byte.max(initial=0.0)) if gathers else 0.0
            tree, link, start_s, ready_s = _trees(machine, roots, orbit, chunk_bytes, reduce_s)
            end_s = float((start_s + ready_s).max())
            # Backwards: what arrived last leaves first.
            when_s = end_s - start_s - ready_s if gathers else start_s
            parts.append((tree, link, begin_s + when_s, np.full(len(tree), REDUCE if gathers else COPY)))
            begin_s += end_s
        chunk, link, start_s, op = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        columns = {"chunk": chunk, "src": topology.src[link], "dst": topology.dst[link], "route": link}
        columns |= {"start_s": np.maximum(start_s, 0.0), "op": op}
        own = part(collective, representatives)
        base = Schedule.build(own, topology, problem.size_bytes, link_routes(topology), None, **columns)
        origin = provenance(problem, options, self.name, chunks_per_rank=chunks)
        return OrbitSchedule(collective, group, representatives, base, origin)


def _num_sends(problem: Problem, chunks: int) -> int:
    ranks = problem.topology.num_ranks
    return len(PHASES[problem.kind]) * chunks * ranks * (ranks - 1)


@lru_cache(maxsize=32)
def translations(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Generators of translations among the recorded symmetries and the turn of all ranks by one; empty where none."""
    turn = (*np.roll(np.arange(topology.num_ranks), -1).tolist(), *range(topology.num_ranks, topology.num_vertices))
    known = [image for image in (*topology.symmetries, turn) if is_symmetry(topology, image)]
    return independent(known, topology.num_vertices)


def _trees(
    topology: Topology, roots: I64, orbit: I64, chunk_bytes: float, reduce_s: float
) -> tuple[I64, I64, F64, F64]:
    """Rows (tree, link, start, time until arrival) of the quickest trees that deadlines led to."""
    from collsyn.synth.symmetric_kernels import grow

    first = np.unique(orbit, return_index=True)[1]
    transfer_s = chunk_bytes * topology.beta_s_per_byte[first]
    ready_s = topology.alpha_s[first] + transfer_s + reduce_s
    busy_s = topology.overhead_s[first] + transfer_s
    out = topology.out_links
    ends = topology.dst.astype(np.int64)
    asked = (topology.num_ranks, roots, out.ptr, out.data.astype(np.int64), ends, orbit, ready_s, busy_s)
    wanted = len(roots) * (topology.num_ranks - 1)

    def grown(deadline_s: float) -> tuple[I64, I64, F64] | None:
        rows, tree, link, start_s = grow(*asked, deadline_s)
        return (tree, link, start_s) if rows == wanted else None

    best = grown(np.inf)
    if best is None:
        raise Infeasible(f"symmetric: the links of topology {topology.name} do not lead from each rank to all others")
    finish_s = _finish(best, orbit, ready_s)
    least_s = max(float(ready_s.min()), wanted / float((1 / busy_s).sum()))
    # A slow orbit must not begin what others bring sooner; where all are alike there is nothing to gain.
    for _ in range(HALVINGS if np.ptp(ready_s) > 0 else 0):
        deadline_s = (least_s + finish_s) / 2
        found = grown(deadline_s)
        if found is None:
            least_s = deadline_s
        else:
            best, finish_s = found, _finish(found, orbit, ready_s)
    tree, link, start_s = best
    return tree, link, start_s, ready_s[orbit[link]]


def _finish(found: tuple[I64, I64, F64], orbit: I64, ready_s: F64) -> float:
    _, link, start_s = found
    return float((start_s + ready_s[orbit[link]]).max(initial=0.0))


SYMMETRIC = Symmetric()
