"""What the options of a command say together: the problem to solve, and the topology where none is named."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collsyn.model.topology import Topology
    from collsyn.synth.problem import Problem

OUT = Path("collsyn-out")


def chosen_topology(topology: str | None) -> str:
    """The topology asked for, else the machine profile in ./collsyn-out, which is said."""
    if topology is not None:
        return topology
    profile = OUT / "profile.yaml"
    if not profile.is_file():
        raise click.UsageError(f"no --topology, and no {profile} here; run collsyn profile or name one")
    from ._output import note

    note(f"topology: {profile}")
    return str(profile)


def note_assumptions(machine: "Topology") -> None:
    """Say on stderr what no file said of an imported topology."""
    from collsyn.topology.imports.assemble import assumed

    from ._output import note

    for line in assumed(machine):
        note(line)


def require_ranks(show_ranks: tuple[int, ...] | None, machine: "Topology") -> None:
    """Raise InputError for a rank to be shown that is not there."""
    from collsyn.errors import InputError

    beyond = [rank for rank in show_ranks or () if rank >= machine.num_ranks]
    if beyond:
        raise InputError(f"--show-ranks: rank {beyond[0]} is not there; expected 0 .. {machine.num_ranks - 1}")


def make_problem(
    collective: str,
    topology: str,
    size_bytes: int,
    chunks: int | None = None,
    root: int | None = None,
    subset: Sequence[int] | None = None,
    groups: tuple[tuple[int, ...], ...] | None = None,
    counts: Path | None = None,
    spec: Path | None = None,
) -> "Problem":
    """The problem of the options of `problem_options`; raises InputError."""
    from collsyn.errors import InputError
    from collsyn.model.collective_file import read_collective, read_counts
    from collsyn.synth.problem import Problem
    from collsyn.topology.resolve import load_topology

    if chunks is not None and chunks > size_bytes:
        raise InputError(f"chunks: is {chunks}; expected at most one a byte ({size_bytes})")
    machine = load_topology(topology)
    note_assumptions(machine)
    return Problem(
        kind=collective,
        topology=machine if subset is None else machine.subset(subset),
        size_bytes=size_bytes,
        chunks_per_rank=chunks,
        root=root,
        groups=groups,
        counts=None if counts is None else read_counts(counts),
        spec=None if spec is None else read_collective(spec),
    )
