"""What a synthesizer is asked (Problem), how it shall work (Options), and what its schedules say of their origin."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Protocol

from collsyn import __version__
from collsyn.errors import InputError
from collsyn.model.collective import Collective, make_collective
from collsyn.model.kinds import ALIASES, KINDS, REDUCING, ROOTED
from collsyn.model.schedule import Schedule
from collsyn.model.sketch import Sketch
from collsyn.model.topology import Topology
from collsyn.model.topology_file import topology_digest
from collsyn.model.working_set import at_size

# What a collective becomes when time runs backwards and every link is turned round; chunks keep their numbers.
REVERSED = {
    "allgather": "reducescatter",
    "reducescatter": "allgather",
    "broadcast": "reduce",
    "reduce": "broadcast",
    "gather": "scatter",
    "scatter": "gather",
}


@dataclass(frozen=True, eq=False)
class Problem:
    """A collective to be done on a topology at one size.

    `chunks_per_rank` None leaves the number to the synthesizer. `root`, `groups` and `counts` are those of
    `make_collective`; `spec` is the collective itself where `kind` is custom.
    """

    kind: str
    topology: Topology
    size_bytes: int
    chunks_per_rank: int | None = None
    root: int | None = None
    groups: tuple[tuple[int, ...], ...] | None = None
    counts: Sequence[Any] | None = None
    spec: Collective | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", ALIASES.get(self.kind, self.kind))
        if self.kind not in KINDS:
            raise InputError(f"collective {self.kind!r} is not known; expected one of {', '.join(KINDS)}")
        if self.size_bytes < 1:
            raise InputError(f"size: is {self.size_bytes} bytes; expected at least 1")
        if self.kind == "custom":
            self._check_custom()
        elif self.spec is not None:
            raise InputError(f"spec: {self.kind} takes none; only custom does")
        elif self.kind == "alltoallv" and self.counts is None:
            raise InputError("counts: alltoallv needs a matrix of counts [sender][receiver]; give --counts FILE")
        else:
            self.collective()

    def _check_custom(self) -> None:
        if self.spec is None:
            raise InputError("spec: a custom collective needs its definition; give --spec FILE")
        if self.spec.num_ranks != self.topology.num_ranks:
            raise InputError(
                f"spec: is for {self.spec.num_ranks} ranks; topology {self.topology.name} has {self.topology.num_ranks}"
            )
        for name in ("chunks_per_rank", "root", "groups", "counts"):
            if getattr(self, name) is not None:
                raise InputError(f"{name}: a custom collective takes none; its file says all")

    def collective(self, chunks_per_rank: int | None = None) -> Collective:
        """The collective with that many chunks a rank (by default the problem's own number, else 1)."""
        if self.spec is not None:
            return self.spec
        own = 1 if self.chunks_per_rank is None else self.chunks_per_rank
        chunks = own if chunks_per_rank is None else chunks_per_rank
        if chunks not in self._collectives:
            ranks = self.topology.num_ranks
            made = make_collective(self.kind, ranks, chunks, self.root, self.groups, self.counts)
            self._collectives[chunks] = made
        return self._collectives[chunks]

    @cached_property
    def _collectives(self) -> dict[int, Collective]:
        return {}

    @property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The process groups; one of all ranks where none are given (and for custom collectives)."""
        return self.groups or (tuple(range(self.topology.num_ranks)),)

    @property
    def reduces(self) -> bool:
        """Whether data is reduced on the way."""
        return self.spec.reduces if self.spec is not None else self.kind in REDUCING

    def roots(self) -> tuple[int, ...]:
        """The root of every group, as ranks of the topology."""
        assert self.kind in ROOTED
        return tuple(group[self.root or 0] for group in self.members)

    @cached_property
    def reversed(self) -> "Problem":
        """The problem whose schedules, reversed in time, solve this one; the kind must be a key of REVERSED."""
        return replace(self, kind=REVERSED[self.kind], topology=turned(self.topology))

    def at_size(self) -> "Problem":
        """The problem on the machine as it is for a call of this size (see `working_set.at_size`)."""
        machine = at_size(self.topology, self.collective(), self.size_bytes)
        return self if machine is self.topology else replace(self, topology=machine)

    def as_kind(self, kind: str, chunks_per_rank: int | None = None) -> "Problem":
        """The same ranks, groups and size with another collective (a phase of this one), and other chunks if given."""
        chunks = self.chunks_per_rank if chunks_per_rank is None else chunks_per_rank
        return replace(self, kind=kind, chunks_per_rank=chunks)


@lru_cache(maxsize=32)
def turned(topology: Topology) -> Topology:
    """The topology with every link turned round, made once so that what is derived from it is too."""
    return topology.reversed()


@dataclass(frozen=True)
class Options:
    """How to work: `seed` of all randomness, `time_limit_s` (None: one pass), `progress(share, detail)` for watchers.

    `share` is how much of the work is done, 0 .. 1; `detail` is the best so far in words. `sketch` are the user's rules
    and hints, which `synth/sketched.py` applies to any method.
    """

    seed: int = 0
    time_limit_s: float | None = None
    progress: Callable[[float, str], None] | None = None
    sketch: Sketch | None = None


class Synthesizer(Protocol):
    """What every row of the table is."""

    @property
    def name(self) -> str:
        """Its name in the table, in files and on the command line."""

    def accepts(self, problem: Problem) -> str | None:
        """None if it can serve the problem, else the reason why not, as the rest of the sentence `ring: ...`."""

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """A schedule of an accepted problem; raises Infeasible, InputError or SolverFailed."""


def provenance(problem: Problem, options: Options, method: str, **choices: object) -> dict[str, Any]:
    """What a schedule says of its origin: tool, method, seed, what was chosen, digest of the topology.

    No time of day, host or path. A budget in seconds is named, because the result may depend on it, and so is what was
    assumed of an imported topology.
    """
    origin: dict[str, Any] = {"tool": "collsyn", "version": __version__, "method": method, "seed": options.seed}
    if options.time_limit_s is not None:
        origin["time_limit_s"] = options.time_limit_s
    assumed = problem.topology.provenance.get("assumed")
    if assumed:
        origin["topology_assumed"] = list(assumed)
    return {**origin, "options": dict(choices), "topology_digest": topology_digest(problem.topology)}
