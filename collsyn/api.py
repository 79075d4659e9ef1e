"""The library: what the command line does, as typed functions; `import collsyn` offers all names of this module."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collsyn.bounds import fluid_bound
from collsyn.check.report import Report
from collsyn.check.simulate import retime
from collsyn.check.verify import verify_file, verify_plan, verify_schedule
from collsyn.lower.lower import lower
from collsyn.model.bound import Bound
from collsyn.model.collective import Collective
from collsyn.model.collective_file import read_collective
from collsyn.model.plan import Plan
from collsyn.model.plan_file import read_plan, write_plan
from collsyn.model.profile import Profile, read_profile, write_profile
from collsyn.model.schedule import Schedule
from collsyn.model.schedule_file import read_schedule, write_schedule
from collsyn.model.topology import Topology
from collsyn.model.topology_file import read_topology, write_topology
from collsyn.synth.problem import Options, Problem
from collsyn.topology.resolve import load_topology
from collsyn.units import parse_size

if TYPE_CHECKING:
    from collsyn.comm.algorithms import AlgorithmSet
    from collsyn.comm.communicator import Communicator

__all__ = [
    "AlgorithmSet",
    "Bound",
    "Collective",
    "Communicator",
    "Plan",
    "Problem",
    "Profile",
    "Report",
    "Schedule",
    "Topology",
    "bound",
    "load_topology",
    "lower",
    "read_collective",
    "read_plan",
    "read_profile",
    "read_schedule",
    "read_topology",
    "simulate",
    "synthesize",
    "verify",
    "write_plan",
    "write_profile",
    "write_schedule",
    "write_topology",
]

# What runs on ranks is imported when it is asked for.
_ON_DEMAND = {"AlgorithmSet": "collsyn.comm.algorithms", "Communicator": "collsyn.comm.communicator"}
# The package of the same name took this place when it was imported.
vars(import_module("collsyn"))["lower"] = lower


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return getattr(import_module(_ON_DEMAND[name]), name)
    raise AttributeError(f"module 'collsyn.api' has no attribute {name!r}")


def synthesize(
    collective: str | Collective,
    topology: str | Topology,
    size: str | int = "64M",
    *,
    method: str = "auto",
    chunks: int | None = None,
    root: int | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    counts: Sequence[Any] | None = None,
    seed: int = 0,
    time_limit_s: float | None = None,
    jobs: int = 1,
) -> Schedule:
    """A verified schedule, by one method or the best of all that serve the problem.

    `collective` is a name (`allgather`, ...) or a custom Collective, `topology` a preset, a file or a Topology, `size`
    as in nccl-tests (`64M` or bytes), `chunks` the number of chunks a rank (chosen if None), `jobs` the number of
    processes that methods are tried in. Raises InputError, Infeasible, and VerificationError if no method's schedule
    stands the check.
    """
    from collsyn.portfolio.auto import best_schedule

    problem = _problem(collective, topology, size, chunks, root, groups, counts)
    return best_schedule(problem, Options(seed=seed, time_limit_s=time_limit_s), method, jobs=jobs)


def bound(
    collective: str | Collective,
    topology: str | Topology,
    size: str | int = "64M",
    *,
    root: int | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    counts: Sequence[Any] | None = None,
) -> Bound:
    """The strongest known lower bound on the time of any schedule, however it splits the data; see `synthesize`."""
    problem = _problem(collective, topology, size, None, root, groups, counts)
    return fluid_bound(problem.collective(), problem.topology, problem.size_bytes)


def verify(what: Schedule | Plan | str | Path) -> Report:
    """The checks of a schedule, a plan or a file of either; `report.ok` says whether all passed."""
    if isinstance(what, Schedule):
        return verify_schedule(what)
    return verify_plan(what) if isinstance(what, Plan) else verify_file(what)


def simulate(schedule: Schedule, size: str | int, topology: str | Topology | None = None) -> Schedule:
    """The schedule retimed for another size, or for other costs of equal wiring; its `finish_s` is the time."""
    costs = load_topology(topology) if isinstance(topology, str) else topology
    return retime(schedule, parse_size(size), costs)


def _problem(
    collective: str | Collective,
    topology: str | Topology,
    size: str | int,
    chunks: int | None,
    root: int | None,
    groups: Sequence[Sequence[int]] | None,
    counts: Sequence[Any] | None,
) -> Problem:
    machine = load_topology(topology) if isinstance(topology, str) else topology
    custom = collective if isinstance(collective, Collective) else None
    return Problem(
        kind="custom" if custom is not None else str(collective),
        topology=machine,
        size_bytes=parse_size(size),
        chunks_per_rank=chunks,
        root=root,
        groups=None if groups is None else tuple(tuple(group) for group in groups),
        counts=counts,
        spec=custom,
    )
