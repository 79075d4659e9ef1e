"""Allgather schedules from carried shares: verified step by step, then put together as those of the method bfb are."""

from collsyn.errors import InputError
from collsyn.finder.carried import MAX_CHUNKS, Carried, carried
from collsyn.model.schedule import Schedule
from collsyn.synth.bfb_shares import in_order_of_steps, in_step
from collsyn.synth.problem import Options, Problem, provenance

# Schedules of more sends begin every step everywhere at once, which needs no search for starts.
MAX_ROWS = 1 << 18
# Chunks of all pairs of ranks that fit into memory with room to work.
MAX_CELLS = 1 << 24


def carried_schedule(problem: Problem, text: str, base: str | None = None, options: Options | None = None) -> Schedule:
    """The allgather of a problem on the topology of a preset's text, solved on the graph `base` in it (see `carried`).

    Raises InputError for another collective or a topology that is wired otherwise. O(ranks^2 * chunks).
    """
    most = max(MAX_CELLS // problem.topology.num_ranks**2, 1)
    found = carried(text, base, min(most, MAX_CHUNKS))
    found.check()
    if problem.kind != "allgather":
        raise InputError(f"collective: {problem.kind} is not carried along; expected allgather")
    require_wiring(problem, found)
    shares = found.shares(problem.topology)
    many = found.chunks * problem.topology.num_ranks**2 > MAX_ROWS
    schedule = in_step(problem, shares) if many else in_order_of_steps(problem, shares, whole=True)
    notes = {"chunks_per_rank": found.chunks, "steps": found.cost.steps, "bandwidth_factor": str(found.cost.factor)}
    origin = provenance(problem, options or Options(), "carried", topology=text, solved_on=base, **notes)
    return schedule.with_notes(**origin)


def require_wiring(problem: Problem, found: Carried) -> None:
    """Raise InputError unless the links of a topology are those of the graph, in its order."""
    topology, wiring = problem.topology, found.wiring
    same = topology.num_vertices == wiring.num_ranks and topology.num_links == len(wiring.src)
    if not same or (topology.src != wiring.src).any() or (topology.dst != wiring.dst).any():
        raise InputError(f"topology {topology.name}: is wired otherwise than the graph of the carried schedule")
